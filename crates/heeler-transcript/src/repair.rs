//! Repairs a file that does not end in a newline before it is appended to.
//!
//! No bytes are discarded: a tail that is a whole record gets its newline, and any other is moved
//! to a file beside the transcript. Start at [`TailRepair`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::{DiskBackend, DiskError, PublishMode, publish};
use crate::line_reader::{last_line_end, read_at};
use crate::record::{LINE_BYTES_MAX, is_record};

/// Repair made while opening a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailRepair {
    /// The last line was a whole record without its newline, which was added.
    NewlineAdded {
        /// Start of that line.
        offset: u64,
    },
    /// The last line was torn, and was moved out of the transcript.
    TornTailMoved {
        /// Former start of that line: now the end of the transcript.
        offset: u64,
        /// Number of bytes cut.
        len: u64,
        /// File that holds these bytes now.
        saved_to: Utf8PathBuf,
    },
}

/// Makes the file end in a newline, or empty. The caller holds its lock, and syncs it afterwards.
pub(crate) fn repair_tail(
    disk: &dyn DiskBackend,
    path: &Utf8Path,
    file: &File,
) -> Result<Option<TailRepair>, DiskError> {
    let read = || {
        let len = file.metadata()?.len();
        Ok((len, last_line_end(file, len)?))
    };
    let (len, offset) = read().map_err(DiskError::at("read", path))?;
    // An empty file ends where it starts, so it needs no repair.
    if offset == len {
        return Ok(None);
    }
    // Other programs may end a file without a newline. Cutting such a record would lose it.
    if is_whole_record(file, offset, len).map_err(DiskError::at("read", path))? {
        let complete = || match disk.write(file, b"\n")? {
            // A single byte is written whole or not at all, so a crash here leaves the same tail to
            // repair.
            1 => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        };
        complete().map_err(DiskError::at("complete the last line of", path))?;
        return Ok(Some(TailRepair::NewlineAdded { offset }));
    }
    let saved_path = save_tail(disk, path, file, offset)?;
    // The bytes are removed only now that they are stored elsewhere.
    disk.truncate(file, offset).map_err(DiskError::at("cut the torn line off", path))?;
    Ok(Some(TailRepair::TornTailMoved { offset, len: len - offset, saved_to: saved_path }))
}

/// Returns true if the tail is a whole object, which lacks only its newline: no proper prefix of an
/// object is one.
fn is_whole_record(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    match usize::try_from(len - offset) {
        Ok(len) if len <= LINE_BYTES_MAX => {
            let mut tail = vec![0; len];
            file.read_exact_at(&mut tail, offset)?;
            Ok(is_record(&tail))
        }
        // A longer tail cannot be a record, whatever it contains.
        _ => Ok(false),
    }
}

/// Copies the bytes from `offset` on to a new file beside the transcript.
fn save_tail(
    disk: &dyn DiskBackend,
    path: &Utf8Path,
    file: &File,
    offset: u64,
) -> Result<Utf8PathBuf, DiskError> {
    // A crash between saving and cutting leaves a saved tail; the next repair takes another name.
    for attempt in 0_u64.. {
        let saved_path = match attempt {
            0 => Utf8PathBuf::from(format!("{path}.torn.{offset}")),
            n => Utf8PathBuf::from(format!("{path}.torn.{offset}.{n}")),
        };
        // The name appears only when the copy is synced, so the cut that follows loses nothing.
        let copy = publish(disk, &saved_path, PublishMode::Refuse, |draft| {
            let mut block = vec![0; 64 * 1024];
            let mut at = offset;
            loop {
                match read_at(file, &mut block, at)? {
                    0 => return Ok(()),
                    len => draft.write_all(&block[..len])?,
                }
                at += block.len() as u64;
            }
        });
        match copy {
            Ok(()) => return Ok(saved_path),
            // Bytes cut at the same place by an earlier repair stay too.
            Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("there are more names than files")
}
