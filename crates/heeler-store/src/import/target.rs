//! Target of an import: a store, or a database that is being built.
//!
//! Start at [`ImportTarget`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::resolve_inside;

use super::{ImportError, atomic_files};
use crate::db::{DatabaseError, SqliteResultExt as _, StateDatabase};
use crate::layout::StateDir;
use crate::store::{Store, StoreWriteError};
use crate::transaction::StoreTransaction;

/// The state directory and its database.
pub(crate) struct ImportTarget<'a> {
    pub(crate) dir: &'a StateDir,
    sink: ImportSink<'a>,
}

enum ImportSink<'a> {
    Store { store: &'a Store, reader: StateDatabase },
    Draft(&'a StateDatabase),
}

impl<'a> ImportTarget<'a> {
    /// Imports into the state directory of a store.
    pub(crate) fn store(store: &'a Store) -> Result<ImportTarget<'a>, ImportError> {
        let reader = StateDatabase::open_read_only(&store.dir().database())
            .map_err(|error| ImportError::Save { source: Box::new(error) })?;
        Ok(ImportTarget { dir: store.dir(), sink: ImportSink::Store { store, reader } })
    }

    /// Imports into a database that no other process has open.
    pub(crate) fn draft(dir: &'a StateDir, db: &'a StateDatabase) -> ImportTarget<'a> {
        ImportTarget { dir, sink: ImportSink::Draft(db) }
    }

    pub(crate) fn db(&self) -> &StateDatabase {
        match &self.sink {
            ImportSink::Store { reader, .. } => reader,
            ImportSink::Draft(db) => db,
        }
    }

    /// Makes all files written to date durable, then commits the rows that refer to them.
    pub(crate) fn commit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StoreTransaction<'_>) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, ImportError> {
        atomic_files::sync(self.dir.root())?;
        atomic_files::fault_point()?;
        let failed = |source| ImportError::Save { source };
        match &self.sink {
            ImportSink::Store { store, .. } => store.write(work).map_err(|error| match error {
                StoreWriteError::Refused(error) => failed(Box::new(error)),
                other => failed(Box::new(other)),
            }),
            ImportSink::Draft(db) => {
                transaction(self.dir, db, work).map_err(|error| failed(Box::new(error)))
            }
        }
    }

    /// Returns the path for a file; none of its parent directories may be a symbolic link.
    pub(crate) fn path(&self, relative: &str) -> Result<Utf8PathBuf, ImportError> {
        resolve_inside(self.dir.root(), relative).map_err(|source| ImportError::Blocked { source })
    }

    /// Returns true if a path of the source is already the path to which it would be copied.
    pub(crate) fn is_at(&self, source: &Utf8Path, relative: &str) -> bool {
        source == self.dir.root().join(relative)
    }
}

/// Runs a change in its own transaction.
pub(crate) fn transaction<T>(
    dir: &StateDir,
    db: &StateDatabase,
    work: impl FnOnce(&mut StoreTransaction<'_>) -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
    db.conn.execute_batch("BEGIN IMMEDIATE").attempt("begin a transaction")?;
    let done = work(&mut StoreTransaction::new(db, dir)).and_then(|value| {
        db.conn.execute_batch("COMMIT").attempt("commit")?;
        Ok(value)
    });
    if done.is_err() {
        // The rollback fails only if no transaction is open; then there is nothing to undo.
        let _undone = db.conn.execute_batch("ROLLBACK");
    }
    done
}
