//! Read access to a state directory without daemon, lock or migration.
//!
//! Start at [`StoreReader`].

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_transcript::LockFile;
use jiff::Timestamp;

use crate::database_files::FileIdentity;
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase, migrate, store_name};
use crate::layout::StateDir;
use crate::store_location::PostgresLocation;

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
    /// `None` only while it is dropped.
    db: Option<StateDatabase>,
    source: ReaderSource,
}

/// Source of a reader's rows.
#[derive(Debug)]
enum ReaderSource {
    Memory,
    /// The opened file.
    File(Utf8PathBuf, Option<FileIdentity>),
    Server(PostgresLocation),
}

/// Connections to servers that no reader uses at present. A new connection costs more than most
/// queries, and many readers live for one query only.
static IDLE_CONNECTIONS: Mutex<Vec<(PostgresLocation, StateDatabase)>> = Mutex::new(Vec::new());

/// Number of idle connections that a process keeps.
const IDLE_CONNECTIONS_MAX: usize = 4;

impl StoreReader {
    /// Opens the database of a state directory. Waits a moment for a missing or unreadable one if the
    /// directory has a writer: that creates it, or writes it back.
    pub fn open(dir: &StateDir) -> Result<StoreReader, DatabaseOpenError> {
        if let Some(location) = dir.postgres() {
            let db = match idle_connection(location) {
                // Another release may have changed the schema since.
                Some(db) if migrate::check_current(&db.conn, &store_name(dir)).is_ok() => db,
                _ => StateDatabase::reader_of(dir)?,
            };
            return Ok(StoreReader {
                db: Some(db),
                source: ReaderSource::Server(location.clone()),
            });
        }
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
                db => {
                    let source = ReaderSource::File(path, identity);
                    return Ok(StoreReader { db: Some(db?), source });
                }
            }
        }
    }

    /// Returns true if the opened file still has its name, or the server is still connected.
    pub fn is_current(&self) -> bool {
        match &self.source {
            ReaderSource::Memory => true,
            // Another file may have replaced it.
            ReaderSource::File(path, identity) => FileIdentity::at(path) == *identity,
            ReaderSource::Server(_) => !self.is_closed(),
        }
    }

    /// Runs several queries on one state of the database. SQLite takes its locks once for all of
    /// them.
    pub fn in_snapshot<T>(&self, read: impl FnOnce() -> T) -> Result<T, DatabaseError> {
        self.conn.begin_snapshot()?;
        // Its drop ends the transaction, also when `read` panics.
        let _snapshot = ReadTransaction(self);
        Ok(read())
    }

    /// Returns a reader of an empty in-memory database, for a fleet that has no state yet.
    pub fn empty(now: Timestamp) -> Result<StoreReader, DatabaseError> {
        Ok(StoreReader { db: Some(StateDatabase::in_memory(now)?), source: ReaderSource::Memory })
    }
}

/// Returns true if a process holds the lock of a state directory.
fn has_writer(dir: &StateDir) -> bool {
    LockFile::probe(&dir.lock()).is_ok_and(|held| held.is_some())
}

/// Ends a read transaction.
struct ReadTransaction<'r>(&'r StateDatabase);

impl Drop for ReadTransaction<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.conn.rollback() {
            tracing::warn!(%error, "cannot end a read transaction");
        }
    }
}

/// Takes a connection that no reader uses.
fn idle_connection(location: &PostgresLocation) -> Option<StateDatabase> {
    let mut idle = IDLE_CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    idle.retain(|(_, db)| !db.is_closed());
    let at = idle.iter().position(|(known, _)| known == location)?;
    Some(idle.swap_remove(at).1)
}

impl Drop for StoreReader {
    fn drop(&mut self) {
        let (ReaderSource::Server(location), Some(db)) = (&self.source, self.db.take()) else {
            return;
        };
        let mut idle = IDLE_CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        if !db.is_closed() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push((location.clone(), db));
        }
    }
}

impl Deref for StoreReader {
    type Target = StateDatabase;
    fn deref(&self) -> &StateDatabase {
        self.db.as_ref().expect("it is only taken when dropped")
    }
}
