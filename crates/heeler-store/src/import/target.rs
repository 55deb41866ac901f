//! Where an import goes: a living store, or a database that is still being built.

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::resolve_inside;

use super::{ImportError, place};
use crate::db::{Attempt as _, Db, DbError};
use crate::layout::StateDir;
use crate::store::{Store, WriteError};
use crate::tx::Tx;

/// The state directory and the database behind it.
pub(crate) struct Target<'a> {
    pub(crate) dir: &'a StateDir,
    sink: Sink<'a>,
}

enum Sink<'a> {
    Store { store: &'a Store, reader: Db },
    Draft(&'a Db),
}

impl<'a> Target<'a> {
    /// Imports into the state that a store writes.
    pub(crate) fn store(store: &'a Store) -> Result<Target<'a>, ImportError> {
        let reader = Db::read(&store.dir().database())
            .map_err(|error| ImportError::Save { source: Box::new(error) })?;
        Ok(Target { dir: store.dir(), sink: Sink::Store { store, reader } })
    }

    /// Imports into a database that nobody else has open.
    pub(crate) fn draft(dir: &'a StateDir, db: &'a Db) -> Target<'a> {
        Target { dir, sink: Sink::Draft(db) }
    }

    /// Returns the database, to ask it.
    pub(crate) fn db(&self) -> &Db {
        match &self.sink {
            Sink::Store { reader, .. } => reader,
            Sink::Draft(db) => db,
        }
    }

    /// Makes everything placed so far durable, then commits the rows that name it.
    pub(crate) fn commit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Result<T, DbError> + Send + 'static,
    ) -> Result<T, ImportError> {
        place::sync(self.dir.root())?;
        place::fault_point()?;
        let failed = |source| ImportError::Save { source };
        match &self.sink {
            Sink::Store { store, .. } => store.write(work).map_err(|error| match error {
                WriteError::Refused(error) => failed(Box::new(error)),
                other => failed(Box::new(other)),
            }),
            Sink::Draft(db) => {
                transaction(self.dir, db, work).map_err(|error| failed(Box::new(error)))
            }
        }
    }

    /// Returns where a file is to be put; no folder above it may be a link.
    pub(crate) fn path(&self, relative: &str) -> Result<Utf8PathBuf, ImportError> {
        resolve_inside(self.dir.root(), relative).map_err(|source| ImportError::Blocked { source })
    }

    /// Says whether a path of the source is already the place it would be copied to.
    pub(crate) fn is_at(&self, source: &Utf8Path, relative: &str) -> bool {
        source == self.dir.root().join(relative)
    }
}

/// Runs a change in a transaction of its own.
pub(crate) fn transaction<T>(
    dir: &StateDir,
    db: &Db,
    work: impl FnOnce(&mut Tx<'_>) -> Result<T, DbError>,
) -> Result<T, DbError> {
    db.conn.execute_batch("BEGIN IMMEDIATE").attempt("begin a transaction")?;
    let done = work(&mut Tx::new(db, dir)).and_then(|value| {
        db.conn.execute_batch("COMMIT").attempt("commit")?;
        Ok(value)
    });
    if done.is_err() {
        // Without a transaction there is nothing to undo, which is as good.
        let _undone = db.conn.execute_batch("ROLLBACK");
    }
    done
}
