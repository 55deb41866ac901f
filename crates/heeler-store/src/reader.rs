//! Read access to a state directory without daemon, lock or migration.
//!
//! Start at [`StoreReader`].

use std::ops::Deref;

use jiff::Timestamp;

use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase};
use crate::layout::StateDir;

/// A read-only connection. Each query ends its own transaction before it returns.
///
/// Queries are methods of [`StateDatabase`], to which it dereferences. It works with or without
/// a running writer, and on a read-only medium.
#[derive(Debug)]
pub struct StoreReader {
    db: StateDatabase,
}

impl StoreReader {
    /// Opens the database of a state directory.
    pub fn open(dir: &StateDir) -> Result<StoreReader, DatabaseOpenError> {
        Ok(StoreReader { db: StateDatabase::open_read_only(&dir.database())? })
    }

    /// Returns a reader of an empty in-memory database, for a fleet that has no state yet.
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
