//! Single facts of the fleet by name: the table `meta`.

use rusqlite::Connection;

use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_first, sql};

sql! {
    GET = "SELECT value FROM meta WHERE key = ?1";
    SET = "INSERT INTO meta (key, value) VALUES (?1, ?2) \
        ON CONFLICT(key) DO UPDATE SET value = excluded.value";
}

/// Grows by one with each restore, so that a living writer notices.
pub(crate) const EPOCH: &str = "epoch";

/// When the fleet was started: `fleet.started_at` of `state.yaml`.
pub const STARTED_AT: &str = "started_at";

/// When a person stopped the fleet, if it has not been started since; else empty.
pub const STOPPED_AT: &str = "stopped_at";

impl StateDatabase {
    /// Returns a fact by name.
    pub fn meta(&self, key: &str) -> Result<Option<String>, DatabaseError> {
        query_first(&self.conn, GET, [key], "read a fact", |row| {
            ColumnReader::new("meta", row).get()
        })
    }

    /// Returns how often this state was restored, counted from one.
    pub fn epoch(&self) -> Result<i64, DatabaseError> {
        let text = self.meta(EPOCH)?.unwrap_or_default();
        text.parse().map_err(|_| DatabaseError::BadRow {
            table: "meta",
            row: EPOCH.to_owned(),
            reason: format!("`{text}` is not a number"),
        })
    }
}

pub(crate) fn set(conn: &Connection, key: &str, value: &str) -> Result<(), DatabaseError> {
    execute(conn, SET, [key, value], "write a fact").map(|_| ())
}
