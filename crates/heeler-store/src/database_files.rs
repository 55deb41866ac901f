//! Identity of the files that a database connection has open.
//!
//! Only the processes that have a deleted or replaced file open still see its content. Their changes
//! are lost when they end. So the writer compares the files at the paths with those that it opened
//! before it acknowledges a change. Start at [`DatabaseFiles`].

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

/// Key of a counter that is written only to have an entry in the log.
const LOG_BEGUN: &str = "log_begun";

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

    /// Identifies the files of a database on a server: none.
    pub(crate) fn of_server() -> DatabaseFiles {
        DatabaseFiles { path: Utf8PathBuf::new(), known: [None; 3] }
    }

    /// Identifies the side files too, once. Without an entry in the log, `db` writes one.
    ///
    /// A reader creates an empty log in the place of a deleted one. So only a log with an entry
    /// counts as that of `db`: no other connection writes. Returns false if `db` has another one.
    pub(crate) fn identify_side_files(
        &mut self,
        db: &StateDatabase,
    ) -> Result<bool, DatabaseError> {
        if db.conn.as_sqlite().is_none() || self.add_side_files() {
            return Ok(true);
        }
        // Another value than before: SQLite writes nothing for a row that stays the same.
        let count = db.meta(LOG_BEGUN)?.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        meta::set(&db.conn, LOG_BEGUN, &count.wrapping_add(1).to_string())?;
        Ok(self.add_side_files())
    }

    fn add_side_files(&mut self) -> bool {
        let [database, log, memory] = &mut self.known;
        let at = |suffix| FileIdentity::at(&part(&self.path, suffix));
        *database = database.or_else(|| at(SUFFIXES[0]));
        let log_path = part(&self.path, SUFFIXES[1]);
        let has_entry = log_path.metadata().is_ok_and(|found| found.len() > 0);
        *log = log.or_else(|| at(SUFFIXES[1]).filter(|_| has_entry));
        *memory = memory.or_else(|| at(SUFFIXES[2]));
        log.is_some()
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
    let mut files = DatabaseFiles::of_database(&path);
    let opened = StateDatabase::open_existing(&path).map_err(|error| lost(error_chain(&error)))?;
    if !files.identify_side_files(&opened)? {
        return Err(lost("it was deleted again".to_owned()));
    }
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
