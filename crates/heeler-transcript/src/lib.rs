//! Append-only JSONL logs that survive crashes: append, sync, repair, tail, range, follow, copy,
//! count and search.
//!
//! Only [`Log`] writes these files, one writer at a time. A line, once it ends in its newline, is
//! never changed or taken back, so readers need no lock: [`tail`], [`range()`], [`count`], [`Scan`],
//! [`LinesBack`], [`Follower`] and [`search()`] see whole lines only, and report what is not a record as a
//! [`Fault`]. This crate does not know what the lines mean. Start at [`Log`].
//!
//! What every process of ours needs of files besides is here too: [`replace_file`], locks between
//! processes ([`LockFile`]), and [`plain`] for files that somebody else may have put there.

mod copy;
mod disk;
mod follow;
mod index;
mod line;
mod lines;
mod lock;
mod log;
mod names;
mod numbered;
mod page;
pub mod plain;
mod repair;
mod scan;
mod search;
mod syncer;
mod watch;

pub use copy::{CopyError, UpTo, copy_prefix};
pub use disk::{
    Disk, DiskError, OsDisk, create_folder, is_temp, place_file, replace_file, replace_files,
    sync_file_system, temp_name,
};
pub use follow::{Follower, Restart, Start, Stopper, Update};
pub use line::{Entry, Fault, FaultKind, LINE_BYTES_MAX, Record};
pub use lock::{Holder, LockError, LockFile, LockState};
pub use log::{AppendError, Durability, Log, LogOptions, OpenError, Opened, SyncError};
pub use names::{ID_BYTES_MAX, NameError, PATH_BYTES_MAX, checked_id, resolve_inside};
pub use numbered::{Numbered, NumberedLine};
pub use page::{Before, PAGE_BYTES_MAX, PAGE_FAULTS_MAX, Page, count, range, tail};
pub use repair::Repair;
pub use scan::{LinesBack, RawLine, Scan};
pub use search::{Case, Finder, Hit, Pattern, Query, QueryError, Searched, search};
