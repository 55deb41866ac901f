//! Append-only JSONL transcripts that survive crashes: append, sync, repair, tail, range, follow,
//! copy, count and search.
//!
//! Only [`TranscriptWriter`] writes these files, one writer at a time. Once a line ends in its
//! newline, it is never changed or removed, so readers need no lock: [`read_tail`],
//! [`read_range()`], [`count_lines`], [`TranscriptScanner`], [`ReverseTranscriptReader`],
//! [`TranscriptFollower`] and [`search()`] return whole lines only, and report anything else as a
//! [`TranscriptFault`]. This crate does not interpret the lines. Start at [`TranscriptWriter`].
//!
//! The crate also holds file utilities that every Heeler process needs: [`replace_file`], locks
//! between processes ([`LockFile`]), and [`untrusted_file`] for files that others may have put
//! there.

mod copy;
mod disk;
#[cfg(feature = "fault-points")]
pub mod fault;
mod file_watch;
mod folder_watch;
mod follow;
mod line_index;
mod line_reader;
mod lock;
mod numbered_lines;
mod page;
mod record;
mod repair;
mod reverse_records;
mod safe_names;
mod scan;
mod search;
mod set_aside;
mod syncer;
pub mod untrusted_file;
mod watched_file;
mod writer;

pub use copy::{CopyLimit, TranscriptCopyError, copy_prefix};
pub use disk::{
    DiskBackend, DiskError, OsDisk, PlacedFiles, create_folder, create_subfolder, is_temp,
    place_files, replace_file, replace_file_with_mode, replace_files, sync_file_system, sync_files,
    temp_name, write_new_file,
};
pub use folder_watch::{FolderWatch, FolderWatchStopper};
pub use follow::{
    FollowRestartReason, FollowStart, FollowStopper, FollowUpdate, FollowWaker, TranscriptFollower,
};
pub use lock::{LockError, LockFile, LockHolder, LockState, SuspendedLock};
pub use numbered_lines::{NumberedLine, NumberedLineReader};
pub use page::{
    PAGE_BYTES_MAX, PAGE_FAULTS_MAX, PageBoundary, TranscriptPage, count_lines, read_range,
    read_tail,
};
pub use record::{
    LINE_BYTES_MAX, TranscriptEntry, TranscriptFault, TranscriptFaultKind, TranscriptRecord,
};
pub use repair::TailRepair;
pub use reverse_records::ReverseRecordReader;
pub use safe_names::{ID_BYTES_MAX, NameError, PATH_BYTES_MAX, resolve_inside, validate_id};
pub use scan::{RawLine, ReverseTranscriptReader, TranscriptScanner};
pub use search::{
    CaseSensitivity, LineMatcher, SearchPattern, SearchPatternError, TranscriptHit,
    TranscriptQuery, TranscriptSearchOutcome, search,
};
pub use set_aside::set_file_aside;
pub use writer::{
    AppendError, OpenedTranscript, SyncError, TranscriptDurability, TranscriptOpenError,
    TranscriptWriter, TranscriptWriterOptions,
};
