//! Target of inserted records: a store, or a database that is being built.
//!
//! Start at [`RecordTarget`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::resolve_inside;

use super::error::StagingError;
use super::state_files;
use crate::db::{DatabaseError, StateDatabase};
use crate::layout::StateDir;
use crate::store::Store;
use crate::store_writer::StoreWriteError;
use crate::transaction::StoreTransaction;

/// A state directory and its database, which receive files and rows.
pub struct RecordTarget<'a> {
    dir: &'a StateDir,
    sink: RecordSink<'a>,
}

enum RecordSink<'a> {
    Store { store: &'a Store, reader: StateDatabase },
    Draft(&'a StateDatabase),
}

impl<'a> RecordTarget<'a> {
    /// Inserts into the state directory of a store.
    pub fn store(store: &'a Store) -> Result<RecordTarget<'a>, StagingError> {
        let reader = StateDatabase::reader_of(store.dir())
            .map_err(|error| StagingError::Save { source: Box::new(error) })?;
        Ok(RecordTarget { dir: store.dir(), sink: RecordSink::Store { store, reader } })
    }

    /// Inserts into a database that no other process has open.
    pub(crate) fn draft(dir: &'a StateDir, db: &'a StateDatabase) -> RecordTarget<'a> {
        RecordTarget { dir, sink: RecordSink::Draft(db) }
    }

    pub fn dir(&self) -> &StateDir {
        self.dir
    }

    /// Returns the database for queries. They see every committed row.
    pub fn db(&self) -> &StateDatabase {
        match &self.sink {
            RecordSink::Store { reader, .. } => reader,
            RecordSink::Draft(db) => db,
        }
    }

    /// Makes all files written to date durable, then commits the rows that refer to them.
    pub fn commit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StoreTransaction<'_>) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, StagingError> {
        // Files first: a row must never refer to a file that a power loss removes.
        state_files::sync(self.dir.root())?;
        // A crash here leaves files without rows, which the next import recognizes as its own.
        state_files::fault_point()?;
        let failed = |source| StagingError::Save { source };
        match &self.sink {
            RecordSink::Store { store, .. } => store.write(work).map_err(|error| match error {
                StoreWriteError::Refused(error) => failed(Box::new(error)),
                other => failed(Box::new(other)),
            }),
            RecordSink::Draft(db) => {
                transaction(self.dir, db, work).map_err(|error| failed(Box::new(error)))
            }
        }
    }

    /// Returns the path for a file; none of its parent directories may be a symbolic link.
    pub fn path(&self, relative: &str) -> Result<Utf8PathBuf, StagingError> {
        // The state directory may come with a clone, so links in it are not followed.
        resolve_inside(self.dir.root(), relative).map_err(|source| StagingError::Blocked { source })
    }

    /// Returns true if a path of the source is already the path to which it would be copied.
    pub fn is_at(&self, source: &Utf8Path, relative: &str) -> bool {
        source == self.dir.root().join(relative)
    }
}

/// Runs a change in its own transaction.
fn transaction<T>(
    dir: &StateDir,
    db: &StateDatabase,
    work: impl FnOnce(&mut StoreTransaction<'_>) -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
    db.conn.begin_write()?;
    let done = work(&mut StoreTransaction::new(db, dir)).and_then(|value| {
        db.conn.commit()?;
        Ok(value)
    });
    if done.is_err() {
        // The rollback fails only if no transaction is open; then there is nothing to undo.
        let _undone = db.conn.rollback();
    }
    done
}
