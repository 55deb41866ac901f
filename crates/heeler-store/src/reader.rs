//! Read access to a state directory without daemon, lock or migration.
//!
//! Start at [`StoreReader`].

use std::ops::Deref;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_transcript::LockFile;
use jiff::Timestamp;

use crate::database_files::FileIdentity;
use crate::db::{DatabaseError, DatabaseOpenError, SqliteResultExt as _, StateDatabase};
use crate::layout::StateDir;

/// Longest wait for a database that its writer is about to create or to write back.
const WRITER_WAIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A read-only connection. Each query ends its own transaction before it returns, except in
/// [`StoreReader::in_snapshot`].
///
/// Queries are methods of [`StateDatabase`], to which it dereferences. It works with or without
/// a running writer, and on a read-only medium.
#[derive(Debug)]
pub struct StoreReader {
    db: StateDatabase,
    /// The opened file; `None` for a database in memory.
    file: Option<(Utf8PathBuf, Option<FileIdentity>)>,
}

impl StoreReader {
    /// Opens the database of a state directory. Waits a moment for a missing or unreadable one if the
    /// directory has a writer: that creates it, or writes it back.
    pub fn open(dir: &StateDir) -> Result<StoreReader, DatabaseOpenError> {
        let deadline = Instant::now() + WRITER_WAIT;
        loop {
            let path = dir.database();
            // Before the database is opened: a file that replaces it meanwhile is noticed.
            let identity = FileIdentity::at(&path);
            match StateDatabase::open_read_only(&path) {
                // A database of a writer is sound, unless it was lost and is written back just now.
                Err(DatabaseOpenError::Missing { .. } | DatabaseOpenError::Sqlite { .. })
                    if Instant::now() < deadline && has_writer(dir) =>
                {
                    std::thread::sleep(POLL_INTERVAL);
                }
                db => return Ok(StoreReader { db: db?, file: Some((path, identity)) }),
            }
        }
    }

    /// Returns true if the opened file still has its name. Another one may have replaced it.
    pub fn is_current(&self) -> bool {
        self.file.as_ref().is_none_or(|(path, identity)| FileIdentity::at(path) == *identity)
    }

    /// Runs several queries on one state of the database. SQLite takes its locks once for all of
    /// them.
    pub fn in_snapshot<T>(&self, read: impl FnOnce() -> T) -> Result<T, DatabaseError> {
        // Its drop ends the transaction, also when `read` panics.
        let transaction = self.db.conn.unchecked_transaction().attempt("begin to read")?;
        let found = read();
        drop(transaction);
        Ok(found)
    }

    /// Returns a reader of an empty in-memory database, for a fleet that has no state yet.
    pub fn empty(now: Timestamp) -> Result<StoreReader, DatabaseError> {
        Ok(StoreReader { db: StateDatabase::in_memory(now)?, file: None })
    }
}

/// Returns true if a process holds the lock of a state directory.
fn has_writer(dir: &StateDir) -> bool {
    LockFile::probe(&dir.lock()).is_ok_and(|held| held.is_some())
}

impl Deref for StoreReader {
    type Target = StateDatabase;
    fn deref(&self) -> &StateDatabase {
        &self.db
    }
}
