//! Reading the state in place: no daemon, no lock, no migration.

use std::ops::Deref;

use jiff::Timestamp;

use crate::db::{Db, DbError, OpenError};
use crate::layout::StateDir;

/// A read-only connection. Each question ends its own transaction before it returns.
///
/// It is a [`Db`]: ask it there. It works while a writer lives, while none does, and on a
/// read-only medium.
#[derive(Debug)]
pub struct Reader {
    db: Db,
}

impl Reader {
    /// Opens the database of a state directory.
    pub fn open(dir: &StateDir) -> Result<Reader, OpenError> {
        Ok(Reader { db: Db::read(&dir.database())? })
    }

    /// Reads the record of a fleet of which nothing is on record yet.
    pub fn of_nothing(now: Timestamp) -> Result<Reader, DbError> {
        Ok(Reader { db: Db::of_nothing(now)? })
    }
}

impl Deref for Reader {
    type Target = Db;
    fn deref(&self) -> &Db {
        &self.db
    }
}
