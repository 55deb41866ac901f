//! Single facts of the fleet by name: the table `meta`.

use rusqlite::Connection;

use super::{Columns, Db, DbError, execute, first, sql};

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

impl Db {
    /// Returns a fact by name.
    pub fn meta(&self, key: &str) -> Result<Option<String>, DbError> {
        first(&self.conn, GET, [key], "read a fact", |row| Columns::new("meta", row).get())
    }

    /// Returns how often this state was restored, counted from one.
    pub fn epoch(&self) -> Result<i64, DbError> {
        let text = self.meta(EPOCH)?.unwrap_or_default();
        text.parse().map_err(|_| DbError::BadRow {
            table: "meta",
            row: EPOCH.to_owned(),
            reason: format!("`{text}` is not a number"),
        })
    }
}

pub(crate) fn set(conn: &Connection, key: &str, value: &str) -> Result<(), DbError> {
    execute(conn, SET, [key, value], "write a fact").map(|_| ())
}
