//! Named values of the fleet: the table `meta`.

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_first, sql};

sql! {
    GET = "SELECT value FROM meta WHERE key = ?1";
    SET = "INSERT INTO meta (key, value) VALUES (?1, ?2) \
        ON CONFLICT(key) DO UPDATE SET value = excluded.value";
}

/// Incremented by each restore, so that a running writer notices it.
pub(crate) const EPOCH: &str = "epoch";

/// Time at which the fleet was started: `fleet.started_at` of `state.yaml`.
pub const STARTED_AT: &str = "started_at";

/// Time at which a person stopped the fleet; empty if it has been started since.
pub const STOPPED_AT: &str = "stopped_at";

/// Content of the config files when the first of the runs in [`CONFIG_EXPOSED_BY`] started, or when a
/// person last confirmed it.
pub const CONFIG_BASELINE: &str = "config_baseline";

/// Jobs whose runs may have changed the config files since; empty if no run could.
pub const CONFIG_EXPOSED_BY: &str = "config_exposed_by";

/// Public keys of the results of command hooks, of the last daemons, separated by spaces.
pub const HOOK_KEYS: &str = "hook_keys";

/// Start of the first run since the config became exposed.
pub const CONFIG_EXPOSED_SINCE: &str = "config_exposed_since";

/// The record of the config's content, which is about files outside of the state: it is not replaced
/// with the rest of the database.
#[derive(Debug)]
pub(crate) struct ConfigRecordRows([(String, String); 3]);

impl ConfigRecordRows {
    pub(crate) fn read(db: &StateDatabase) -> Result<ConfigRecordRows, DatabaseError> {
        let row = |key: &str| {
            let key = db.host_key(key);
            let value = db.meta(&key)?.unwrap_or_default();
            Ok((key, value))
        };
        Ok(ConfigRecordRows([
            row(CONFIG_BASELINE)?,
            row(CONFIG_EXPOSED_BY)?,
            row(CONFIG_EXPOSED_SINCE)?,
        ]))
    }

    /// Returns a record for one that cannot be read: a run may have changed every file, so a person
    /// confirms them all.
    pub(crate) fn unreadable() -> ConfigRecordRows {
        ConfigRecordRows([
            (CONFIG_BASELINE.to_owned(), String::new()),
            (CONFIG_EXPOSED_BY.to_owned(), "[]".to_owned()),
            (CONFIG_EXPOSED_SINCE.to_owned(), String::new()),
        ])
    }

    /// Returns keys and values.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl StateDatabase {
    /// Returns the key of a value that each host of a fleet has of its own.
    pub fn host_key(&self, key: &str) -> String {
        let host = self.conn.as_postgres().and_then(|conn| conn.host.as_deref());
        host.map_or_else(|| key.to_owned(), |host| format!("{key}@{host}"))
    }

    pub fn meta(&self, key: &str) -> Result<Option<String>, DatabaseError> {
        query_first(&self.conn, GET, [key], "read a fact", |row| {
            ColumnReader::new("meta", row).get()
        })
    }

    /// Returns the epoch, which starts at 1 and grows with each restore.
    pub fn epoch(&self) -> Result<i64, DatabaseError> {
        let text = self.meta(EPOCH)?.unwrap_or_default();
        // Writers compare it with their own epoch, so a guess would let a fenced writer continue.
        text.parse().map_err(|_| DatabaseError::BadRow {
            table: "meta",
            row: EPOCH.to_owned(),
            reason: format!("`{text}` is not a number"),
        })
    }
}

pub(crate) fn set(conn: &DatabaseConnection, key: &str, value: &str) -> Result<(), DatabaseError> {
    execute(conn, SET, [key, value], "write a fact").map(|_| ())
}
