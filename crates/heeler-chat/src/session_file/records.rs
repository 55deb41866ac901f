//! Records of a transcript file: reading and counting.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use camino::Utf8Path;
use heeler_transcript::{DiskError, TranscriptRecord, TranscriptScanner, read_tail};

use crate::conversation_state::EntryCount;

/// Iterates over the records of a transcript from an offset on; a missing file has none.
pub(super) fn read_records(
    path: &Utf8Path,
    from: u64,
) -> Result<impl Iterator<Item = Result<TranscriptRecord, DiskError>>, DiskError> {
    let scan = match TranscriptScanner::open_at(path, from) {
        Ok(scan) => Some(scan),
        Err(error) if is_missing(&error.source) => None,
        Err(error) => return Err(error),
    };
    Ok(scan.into_iter().flat_map(TranscriptScanner::records))
}

/// Counts the entries of a transcript up to an offset, starting from an earlier count if that is
/// still valid. Returns `None` if more than `bytes_max` would have to be read.
pub(crate) fn count_entries_from(
    path: &Utf8Path,
    before: EntryCount,
    until: u64,
    bytes_max: u64,
) -> Result<Option<EntryCount>, DiskError> {
    let end = match read_tail(path, 0) {
        Ok(page) => page.end.min(until),
        Err(error) if is_missing(&error.source) => 0,
        Err(error) => return Err(error),
    };
    // The file may have been replaced or truncated since it was counted.
    let is_place = before.bytes <= end && is_line_start(path, before.bytes)?;
    let mut counted = if is_place { before } else { EntryCount::default() };
    if end - counted.bytes > bytes_max {
        return Ok(None);
    }
    if counted.bytes < end {
        for record in read_records(path, counted.bytes)? {
            // Lines may be appended during the count.
            if record?.offset >= end {
                break;
            }
            counted.entries += 1;
        }
        counted.bytes = end;
    }
    Ok(Some(counted))
}

pub(super) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Returns true if a line of the file begins, or may begin, at an offset.
pub(super) fn is_line_start(path: &Utf8Path, at: u64) -> Result<bool, DiskError> {
    let Some(before) = at.checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    let read = File::open(path).and_then(|file| file.read_at(&mut byte, before));
    match read {
        Ok(len) => Ok(len == 1 && byte[0] == b'\n'),
        Err(error) if is_missing(&error) => Ok(false),
        Err(source) => Err(DiskError { action: "read", path: path.to_owned(), source }),
    }
}
