//! Writes files into the state directory so that a crash leaves the old file or the complete
//! new one.
//!
//! A written file is durable only after [`sync`]: an import writes many files, syncs once, and
//! then commits the rows that refer to them (see [`super::RecordTarget`]). An existing file is never replaced by a different
//! one: see [`put_new`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read, Seek, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};

use camino::Utf8Path;
use heeler_transcript::{DiskBackend as _, OsDisk, sync_file_system, temp_name, untrusted_file};

use super::error::StagingError;

/// Copies an open file to `target`, replacing an existing file.
pub fn copy(from: &mut File, target: &Utf8Path) -> Result<(), StagingError> {
    replace(target, |to| io::copy(from, to).map(drop))
}

/// Result of [`put_new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The file was written.
    New,
    /// The same file existed.
    Same,
    /// The same file existed, and has grown since.
    Grown,
    /// A different file exists.
    NameTaken,
}

/// Reason for refusing a file with a taken name.
pub const NAME_TAKEN: &str = "a different file with that name exists";

/// Writes a file to `target` without ever replacing a different file.
///
/// A written file is complete. So the leftover of an interrupted import is either the same
/// file, or a prefix of it if the source has grown since; a prefix is completed.
pub fn put_new(
    from: &mut (impl Read + Seek),
    target: &Utf8Path,
) -> Result<PutOutcome, StagingError> {
    let failed = |source| StagingError::Write { path: target.to_owned(), source };
    let there = match untrusted_file::open(target) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fill = |to: &mut File| io::copy(from, to).map(drop);
            // Never over another file: another process may have created it since the check.
            put(target, fill, |temp| OsDisk.rename_new(temp, target))?;
            return Ok(PutOutcome::New);
        }
        // A symbolic link, a directory or a pipe is in the way.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Ok(PutOutcome::NameTaken);
        }
        Err(source) => return Err(failed(source)),
    };
    match compare(from, &there).map_err(failed)? {
        FileComparison::Same => Ok(PutOutcome::Same),
        FileComparison::Longer => Ok(PutOutcome::Grown),
        FileComparison::Prefix => complete(from, &there, target),
        FileComparison::Different => Ok(PutOutcome::NameTaken),
    }
}

/// Replaces an existing file of which it is a prefix with the complete one.
fn complete(
    from: &mut (impl Read + Seek),
    mut there: &File,
    target: &Utf8Path,
) -> Result<PutOutcome, StagingError> {
    let failed = |source| StagingError::Write { path: target.to_owned(), source };
    // The writer of a transcript holds its lock, and may have appended rows until just now.
    if there.try_lock().is_err() {
        return Ok(PutOutcome::NameTaken);
    }
    from.rewind().and_then(|()| there.rewind()).map_err(failed)?;
    // Compared again under the lock, because rows may have been added before it was taken.
    if compare(from, there).map_err(failed)? != FileComparison::Prefix {
        return Ok(PutOutcome::NameTaken);
    }
    from.rewind().map_err(failed)?;
    // Synced first, because the existing file may be the only copy on this disk.
    let fill = |to: &mut File| io::copy(from, to).and_then(|_| to.sync_all());
    put(target, fill, |temp| fs::rename(temp, target))?;
    Ok(PutOutcome::New)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileComparison {
    Same,
    /// The existing file begins with the new content.
    Longer,
    /// The existing file is a prefix of the new content.
    Prefix,
    Different,
}

fn compare(from: &mut impl Read, there: &File) -> io::Result<FileComparison> {
    let (mut from, mut there) = (BufReader::new(from), BufReader::new(there));
    loop {
        let (new, old) = (from.fill_buf()?, there.fill_buf()?);
        let len = new.len().min(old.len());
        if new[..len] != old[..len] {
            return Ok(FileComparison::Different);
        }
        if len == 0 {
            return Ok(match (new.is_empty(), old.is_empty()) {
                (true, true) => FileComparison::Same,
                (false, _) => FileComparison::Prefix,
                (true, false) => FileComparison::Longer,
            });
        }
        from.consume(len);
        there.consume(len);
    }
}

/// Writes a file, replacing an existing one.
pub fn write(bytes: &[u8], target: &Utf8Path) -> Result<(), StagingError> {
    replace(target, |to| to.write_all(bytes))
}

/// Creates a directory and its parents with permissions for the owner only.
pub fn create_folder(path: &Utf8Path) -> Result<(), StagingError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StagingError::Write { path: path.to_owned(), source })
}

/// Makes all files written under a directory durable.
pub fn sync(folder: &Utf8Path) -> Result<(), StagingError> {
    fault_point()?;
    // One sync for many files: an import of thousands would wait for the disk thousands of times.
    sync_file_system(folder)
        .map_err(|source| StagingError::Write { path: folder.to_owned(), source })
}

fn replace(
    target: &Utf8Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), StagingError> {
    put(target, fill, |temp| fs::rename(temp, target))
}

/// Fills a temp file next to `target` and lets `name` give it its final name.
fn put(
    target: &Utf8Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
    name: impl FnOnce(&Utf8Path) -> io::Result<()>,
) -> Result<(), StagingError> {
    // Each fault point is a write at which a test stops the import.
    fault_point()?;
    let temp = temp_name(target);
    // Never an existing name: another process may be writing it.
    let done = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temp)
        .and_then(|mut file| fill(&mut file))
        .and_then(|()| name(&temp));
    done.map_err(|source| {
        // The first error is the one to report; a leftover temp file is removed by `doctor`.
        let _removed = fs::remove_file(&temp);
        StagingError::Write { path: target.to_owned(), source }
    })
}

/// Renames a file within the state directory, durably.
pub(crate) fn rename(from: &Utf8Path, to: &Utf8Path) -> Result<(), StagingError> {
    fault_point()?;
    let failed = |source| StagingError::Write { path: to.to_owned(), source };
    fs::rename(from, to).map_err(failed)?;
    // Both folders: a power loss must neither lose the new name nor bring the old one back.
    for path in [to, from] {
        sync_folder_of(path)?;
    }
    Ok(())
}

/// Renames like [`rename`], but never replaces an existing file.
pub(crate) fn rename_new(from: &Utf8Path, to: &Utf8Path) -> Result<(), StagingError> {
    fault_point()?;
    let failed = |source| StagingError::Write { path: to.to_owned(), source };
    match OsDisk.rename_new(from, to) {
        // Not every file system supports this rename as one step, so a crash may have left both
        // names.
        Err(_) if is_same_file(from, to) => fs::remove_file(from),
        done => done,
    }
    .map_err(failed)?;
    for path in [to, from] {
        sync_folder_of(path)?;
    }
    Ok(())
}

/// Returns true if two paths name the same file, without opening it.
pub(crate) fn is_same_file(one: &Utf8Path, other: &Utf8Path) -> bool {
    // By identity and without opening: closing a database file would drop SQLite's locks.
    let id = |path: &Utf8Path| path.symlink_metadata().map(|meta| (meta.dev(), meta.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Makes the names in a file's directory durable.
pub(crate) fn sync_folder_of(path: &Utf8Path) -> Result<(), StagingError> {
    let folder = path.parent().unwrap_or(path);
    OsDisk
        .sync_folder(folder)
        .map_err(|source| StagingError::Write { path: folder.to_owned(), source })
}

#[cfg(not(any(test, feature = "fault-points")))]
pub fn fault_point() -> Result<(), StagingError> {
    Ok(())
}

/// Stops a test's import at the chosen write, as a kill would.
#[cfg(any(test, feature = "fault-points"))]
pub fn fault_point() -> Result<(), StagingError> {
    let stopped = |source| StagingError::Write { path: "(fault)".into(), source };
    heeler_transcript::fault::count_write().map_err(stopped)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_beginning_is_completed_unless_it_has_a_writer() {
        let temp = tempfile::tempdir().unwrap();
        let log = Utf8Path::from_path(temp.path()).unwrap().join("a.jsonl");
        let whole = "{\"n\":1}\n{\"n\":2}\n";
        let mut writer =
            heeler_transcript::TranscriptWriter::open(&log, Default::default()).unwrap().writer;
        writer.append(b"{\"n\":1}").unwrap();
        assert_eq!(put_new(&mut Cursor::new(whole), &log).unwrap(), PutOutcome::NameTaken);
        writer.close().unwrap();
        assert_eq!(put_new(&mut Cursor::new(whole), &log).unwrap(), PutOutcome::New);
        assert_eq!(fs::read_to_string(&log).unwrap(), whole);
        assert_eq!(put_new(&mut Cursor::new(whole), &log).unwrap(), PutOutcome::Same);
        assert_eq!(put_new(&mut Cursor::new("{\"n\":1}\n"), &log).unwrap(), PutOutcome::Grown);
        assert_eq!(put_new(&mut Cursor::new("{\"n\":3}\n"), &log).unwrap(), PutOutcome::NameTaken);
        assert_eq!(fs::read_to_string(&log).unwrap(), whole);
    }
}
