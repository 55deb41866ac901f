//! Reading the state in place: no daemon, no lock, no migration.

use std::ops::Deref;

use jiff::Timestamp;

use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase};
use crate::layout::StateDir;

/// A read-only connection. Each question ends its own transaction before it returns.
///
/// It is a [`StateDatabase`]: ask it there. It works while a writer lives, while none does, and on a
/// read-only medium.
#[derive(Debug)]
pub struct StoreReader {
    db: StateDatabase,
}

impl StoreReader {
    /// Opens the database of a state directory.
    pub fn open(dir: &StateDir) -> Result<StoreReader, DatabaseOpenError> {
        Ok(StoreReader { db: StateDatabase::open_read_only(&dir.database())? })
    }

    /// Reads the record of a fleet of which nothing is on record yet.
    pub fn empty(now: Timestamp) -> Result<StoreReader, DatabaseError> {
        Ok(StoreReader { db: StateDatabase::in_memory(now)? })
    }
}

impl Deref for StoreReader {
    type Target = StateDatabase;
    fn deref(&self) -> &StateDatabase {
        &self.db
    }
}
