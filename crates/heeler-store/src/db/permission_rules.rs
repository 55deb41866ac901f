//! Rules that a person gave an agent for all later runs: `permission_rules`.

use heeler_model::{iso_millis, parse_iso};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, sql};

sql! {
    LIST = "SELECT agent, rule, granted_at, granted_by FROM permission_rules \
        WHERE agent = ?1 ORDER BY rule";
    PUT = "INSERT INTO permission_rules (agent, rule, granted_at, granted_by) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT(agent, rule) DO UPDATE SET \
        granted_at = excluded.granted_at, granted_by = excluded.granted_by";
    REMOVE = "DELETE FROM permission_rules WHERE agent = ?1";
}

/// A rule that a person gave an agent for all later runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptPermissionRule {
    pub agent: String,
    /// Rule of Claude, such as `Bash(npm test:*)`.
    pub rule: String,
    pub at: Timestamp,
    pub by: String,
}

impl StateDatabase {
    /// Lists the rules that people gave an agent for all later runs.
    pub fn permission_rules(&self, agent: &str) -> Result<Vec<KeptPermissionRule>, DatabaseError> {
        query_all(&self.conn, LIST, [agent], "list permission rules", |row| {
            let mut columns = ColumnReader::new("permission_rules", row);
            Ok(KeptPermissionRule {
                agent: columns.get()?,
                rule: columns.get()?,
                at: parse_iso(&columns.get::<String>()?).unwrap_or(Timestamp::UNIX_EPOCH),
                by: columns.get()?,
            })
        })
    }
}

pub(crate) fn put(
    conn: &DatabaseConnection,
    rule: &KeptPermissionRule,
) -> Result<(), DatabaseError> {
    let KeptPermissionRule { agent, rule, at, by } = rule;
    let params = params![agent, rule, iso_millis(*at), by];
    execute(conn, PUT, params, "keep a permission rule").map(|_| ())
}

/// Removes all rules of an agent, and returns their number.
pub(crate) fn remove(conn: &DatabaseConnection, agent: &str) -> Result<usize, DatabaseError> {
    execute(conn, REMOVE, params![agent], "forget permission rules")
}
