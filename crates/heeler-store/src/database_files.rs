//! Identity of the files that a database connection has open.
//!
//! A file that is deleted or replaced keeps its content for the processes that have it open, and for
//! nobody else: what they write to it is lost with them. So the writer compares the files at the
//! paths with those that it opened before it acknowledges a change. Start at [`DatabaseFiles`].

use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::error_chain;
use heeler_transcript::temp_name;
use jiff::Timestamp;

use crate::backup;
use crate::db::{DatabaseError, StateDatabase, meta};
use crate::layout::StateDir;
use crate::staging::database_placement::replace_database;

/// Suffixes of the files that an open database consists of.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// Meaning of a write-ahead log that is gone.
pub(crate) const LOG_LOST: &str =
    "a daemon was killed, and the last acknowledged changes were in this log";

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Identifies the file at a path; `None` if there is none.
    pub(crate) fn at(path: &Utf8Path) -> Option<FileIdentity> {
        // Links are not followed: a database is never opened through one.
        let found = path.symlink_metadata().ok()?;
        Some(FileIdentity { device: found.dev(), inode: found.ino() })
    }
}

/// Identity of a database and its side files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatabaseFiles {
    path: Utf8PathBuf,
    /// In the order of [`SUFFIXES`]; `None` for a file that was not seen yet.
    known: [Option<FileIdentity>; 3],
}

impl DatabaseFiles {
    /// Identifies a database that is about to be opened. Its side files come with the first
    /// transaction.
    pub(crate) fn of_database(path: &Utf8Path) -> DatabaseFiles {
        let known = [FileIdentity::at(path), None, None];
        DatabaseFiles { path: path.to_owned(), known }
    }

    /// Adds the side files, which exist while a transaction is open.
    pub(crate) fn add_side_files(&mut self) {
        for (known, suffix) in self.known.iter_mut().zip(SUFFIXES) {
            *known = known.or_else(|| FileIdentity::at(&part(&self.path, suffix)));
        }
    }

    /// Returns true if no file was deleted or replaced.
    pub(crate) fn is_intact(&self) -> bool {
        let mut parts = self.known.iter().zip(SUFFIXES);
        parts.all(|(known, suffix)| {
            known.is_none_or(|known| FileIdentity::at(&part(&self.path, suffix)) == Some(known))
        })
    }
}

/// Returns true if a daemon was killed and its write-ahead log, which a clean end removes, is gone:
/// the last acknowledged changes were in it. Must be called while no process has the database open
/// for writing.
pub(crate) fn is_log_lost(dir: &StateDir) -> bool {
    // A daemon that ends removes its file, and so does the next writer.
    let was_killed = dir.daemon_file().symlink_metadata().is_ok();
    // A reader creates an empty log where there is none.
    let log_bytes = part(&dir.database(), SUFFIXES[1]).metadata().map_or(0, |log| log.len());
    was_killed && dir.database().exists() && log_bytes == 0
}

fn part(path: &Utf8Path, suffix: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{path}{suffix}"))
}

/// Writes the content of an open database to its path, where its files were deleted or replaced.
/// Returns the new connection. The caller holds the directory's lock.
///
/// Whatever is at the path is moved to the trash. After a kill, the next process that opens the
/// store completes the replacement.
pub(crate) fn write_back(
    dir: &StateDir,
    open: &StateDatabase,
) -> Result<(StateDatabase, DatabaseFiles), DatabaseError> {
    let path = dir.database();
    let lost = |reason: String| DatabaseError::FilesLost { path: path.clone(), reason };
    let draft = temp_name(&path);
    backup::save_copy(open, &draft).map_err(|error| lost(error_chain(&error)))?;
    let placed = check_copy(&draft).and_then(|written| {
        replace_database(dir, &draft, written).map_err(|error| error_chain(&error))
    });
    let trash = placed.map_err(|reason| {
        // A complete draft is of no use once there is a newer change.
        drop(std::fs::remove_file(&draft));
        lost(reason)
    })?;
    let files = DatabaseFiles::of_database(&path);
    let opened = StateDatabase::open_existing(&path).map_err(|error| lost(error_chain(&error)))?;
    // A first entry in the new log: an empty one would count as lost after a kill.
    meta::set(&opened.conn, "epoch", &opened.epoch()?.to_string())?;
    // Its side files have the names that those of the new database have now.
    open.abandon_files()?;
    tracing::error!(
        "{path} was deleted or replaced while this process used it, and was written back: nothing \
         is lost; what was in its place is in {trash}"
    );
    Ok((opened, files))
}

/// Checks a copy before it replaces anything; returns the time at which it was written.
fn check_copy(draft: &Utf8Path) -> Result<Timestamp, String> {
    let copy = StateDatabase::private(draft).map_err(|error| error_chain(&error))?;
    let faults = copy.integrity_faults().map_err(|error| error_chain(&error))?;
    if let Some(fault) = faults.first() {
        return Err(format!("the copy is damaged: {fault}"));
    }
    let written = draft.metadata().and_then(|found| found.modified());
    let written = written.map_err(|error| error.to_string())?;
    Timestamp::try_from(written).map_err(|error| error.to_string())
}
