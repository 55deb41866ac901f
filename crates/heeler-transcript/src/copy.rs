//! Copies the beginning of a transcript, for a fork.
//!
//! Only whole lines are copied, and the copy appears under its name once it is complete and synced.
//! Start at [`copy_prefix`].

use std::fs::File;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

use crate::disk::{DiskBackend, DiskError, PublishMode, publish};
use crate::line_index::LineNumbers;
use crate::line_reader::last_line_end;

/// Amount of a transcript to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyLimit {
    /// The first lines up to this count, faults and blank lines included.
    Line(u64),
    /// The lines before this offset, which is the start of a line: a record's `next`.
    Offset(u64),
}

/// Reason that a transcript was not copied.
#[derive(Debug, Error)]
pub enum TranscriptCopyError {
    /// The source is shorter than requested.
    #[error("cannot copy {up_to:?} of {path}: its whole lines end at byte {end}")]
    TooShort {
        path: Utf8PathBuf,
        /// Requested limit.
        up_to: CopyLimit,
        /// End of the source's last whole line.
        end: u64,
    },
    /// The offset is in the middle of a line.
    #[error("cannot copy {path} up to byte {offset}, which is inside a line")]
    InsideLine { path: Utf8PathBuf, offset: u64 },
    /// The copy's name is taken; the existing file is left unchanged.
    #[error("cannot copy to {path}: it exists already")]
    Exists { path: Utf8PathBuf },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Copies the first lines of `source` to the new file `copy`; returns its size in bytes.
///
/// The source may be appended to meanwhile. The copy is durable when this returns.
pub fn copy_prefix(
    disk: &dyn DiskBackend,
    source: &Utf8Path,
    copy: &Utf8Path,
    up_to: CopyLimit,
) -> Result<u64, TranscriptCopyError> {
    let file = File::open(source).map_err(DiskError::at("open", source))?;
    // The end is determined once. Lines that are appended during the copy are not part of it.
    let len = find_end(source, &file, up_to)?;
    // An early check saves the work; `publish` refuses a taken name in any case.
    if copy.symlink_metadata().is_ok() {
        return Err(TranscriptCopyError::Exists { path: copy.to_owned() });
    }
    let copied = publish(disk, copy, PublishMode::Refuse, |draft| draft.copy_from(&file, len));
    match copied {
        // Another process may have created the file since the check.
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {
            Err(TranscriptCopyError::Exists { path: copy.to_owned() })
        }
        result => Ok(result.map(|()| len)?),
    }
}

/// Returns the number of bytes to copy.
fn find_end(source: &Utf8Path, file: &File, up_to: CopyLimit) -> Result<u64, TranscriptCopyError> {
    let failed = DiskError::at("read", source);
    let len = file.metadata().map_err(failed)?.len();
    let whole = last_line_end(file, len).map_err(failed)?;
    let path = source.to_owned();
    match up_to {
        CopyLimit::Line(number) => {
            let numbers = LineNumbers::new(source, file, whole);
            // A source that is too short is refused, because a fork must not lack messages
            // unnoticed.
            if numbers.count().map_err(failed)? < number {
                return Err(TranscriptCopyError::TooShort { path, up_to, end: whole });
            }
            Ok(numbers.line_start(number).map_err(failed)?)
        }
        CopyLimit::Offset(offset) if offset > whole => {
            Err(TranscriptCopyError::TooShort { path, up_to, end: whole })
        }
        // A cut inside a line would put a torn line into a new transcript.
        CopyLimit::Offset(offset) if last_line_end(file, offset).map_err(failed)? < offset => {
            Err(TranscriptCopyError::InsideLine { path, offset })
        }
        CopyLimit::Offset(offset) => Ok(offset),
    }
}
