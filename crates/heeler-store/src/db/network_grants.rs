//! Hosts that a person allowed an agent to reach, besides those of its config: `network_grants`.

use heeler_model::{AgentSessionId, iso_millis, parse_iso};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, sql};

sql! {
    LIST = "SELECT agent, session, host, granted_at, granted_by FROM network_grants \
        WHERE agent = ?1 ORDER BY session, host";
    PUT = "INSERT INTO network_grants (agent, session, host, granted_at, granted_by) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT(agent, session, host) DO UPDATE SET \
        granted_at = excluded.granted_at, granted_by = excluded.granted_by";
    REMOVE = "DELETE FROM network_grants WHERE agent = ?1";
}

/// A host that a person allowed an agent to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkGrant {
    pub agent: String,
    /// Native session for which it counts; `None` for all of them.
    pub session: Option<AgentSessionId>,
    /// `name:port`.
    pub host: String,
    pub at: Timestamp,
    pub by: String,
}

impl StateDatabase {
    /// Lists the hosts that people allowed an agent to reach; those for all sessions come first.
    pub fn network_grants(&self, agent: &str) -> Result<Vec<NetworkGrant>, DatabaseError> {
        query_all(&self.conn, LIST, [agent], "list allowed hosts", |row| {
            let mut columns = ColumnReader::new("network_grants", row);
            let (agent, session): (String, String) = (columns.get()?, columns.get()?);
            Ok(NetworkGrant {
                agent,
                session: match session.as_str() {
                    "" => None,
                    id => Some(id.parse().map_err(|error| columns.bad(format!("{error}")))?),
                },
                host: columns.get()?,
                at: parse_iso(&columns.get::<String>()?).unwrap_or(Timestamp::UNIX_EPOCH),
                by: columns.get()?,
            })
        })
    }
}

pub(crate) fn put(conn: &DatabaseConnection, grant: &NetworkGrant) -> Result<(), DatabaseError> {
    let NetworkGrant { agent, session, host, at, by } = grant;
    let session = session.as_ref().map_or("", |session| session.as_str());
    let params = params![agent, session, host, iso_millis(*at), by];
    execute(conn, PUT, params, "allow a host").map(|_| ())
}

/// Removes all hosts of an agent, and returns their number.
pub(crate) fn remove(conn: &DatabaseConnection, agent: &str) -> Result<usize, DatabaseError> {
    execute(conn, REMOVE, params![agent], "forget allowed hosts")
}
