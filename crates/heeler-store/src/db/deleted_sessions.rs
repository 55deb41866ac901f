//! What is left of sessions that were deleted: the table `deleted_sessions`.
//!
//! The row as it was is kept, so that a session can come back while its files are in the trash.

use heeler_model::{AgentSessionId, Session, SessionId, iso_millis};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    ALL = "SELECT deleted_at, deleted_by, purged_at, record FROM deleted_sessions ORDER BY id";
    ONE = "SELECT deleted_at, deleted_by, purged_at, record FROM deleted_sessions WHERE id = ?1";
    BY_AGENT_SESSION = "SELECT deleted_at, deleted_by, purged_at, record FROM deleted_sessions \
        WHERE agent_session_id = ?1 ORDER BY purged_at IS NOT NULL, deleted_at DESC LIMIT 1";
    BURY = "INSERT INTO deleted_sessions (id, agent_session_id, agent, deleted_at, deleted_by, \
        purged_at, record) VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6) ON CONFLICT(id) DO UPDATE SET \
        deleted_at = excluded.deleted_at, deleted_by = excluded.deleted_by, purged_at = NULL, \
        record = excluded.record";
    PURGE = "UPDATE deleted_sessions SET purged_at = ?2 WHERE id = ?1 AND purged_at IS NULL";
    RAISE = "DELETE FROM deleted_sessions WHERE id = ?1 AND purged_at IS NULL";
}

/// A session that was deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct DeletedSession {
    /// As it was.
    pub session: Session,
    /// When.
    pub deleted_at: Timestamp,
    /// By whom.
    pub deleted_by: String,
    /// When its files were removed for good; until then they are in the trash.
    pub purged_at: Option<Timestamp>,
}

impl StateDatabase {
    /// Lists the sessions that were deleted.
    pub fn deleted_sessions(&self) -> Result<Vec<DeletedSession>, DatabaseError> {
        query_all(&self.conn, ALL, [], "list deleted sessions", read)
    }

    /// Returns a session that was deleted.
    pub fn deleted_session(&self, id: &SessionId) -> Result<Option<DeletedSession>, DatabaseError> {
        query_first(&self.conn, ONE, [id.as_str()], "read a deleted session", read)
    }
}

impl StateDatabase {
    /// Returns the session that was deleted last with the agent's own id, one that can come back first.
    pub fn deleted_session_by_agent_id(
        &self,
        id: &AgentSessionId,
    ) -> Result<Option<DeletedSession>, DatabaseError> {
        query_first(&self.conn, BY_AGENT_SESSION, [id.as_str()], "read a deleted session", read)
    }
}

fn read(row: &Row<'_>) -> Result<DeletedSession, DatabaseError> {
    let mut columns = ColumnReader::new("deleted_sessions", row);
    let (at, by, purged_at) = (columns.time()?, columns.get()?, columns.optional_time()?);
    let record: String = columns.get()?;
    let session = serde_json::from_str(&record).map_err(|error| columns.bad(error.to_string()))?;
    Ok(DeletedSession { session, deleted_at: at, deleted_by: by, purged_at })
}

pub(crate) fn insert_deleted(
    conn: &Connection,
    session: &Session,
    by: &str,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let record = serde_json::to_string(session).expect("a session has only text keys");
    let own = session.agent_session_id.as_ref().map(|id| id.as_str());
    let params = params![session.id.as_str(), own, session.agent, iso_millis(now), by, record];
    execute(conn, BURY, params, "delete a session").map(|_| ())
}

/// Notes that files are gone for good; says whether they were in the trash.
pub(crate) fn purge(
    conn: &Connection,
    id: &SessionId,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![id.as_str(), iso_millis(now)];
    Ok(execute(conn, PURGE, params, "purge a session")? == 1)
}

/// Forgets that a session was deleted; says whether it could come back.
pub(crate) fn remove_deleted(conn: &Connection, id: &SessionId) -> Result<bool, DatabaseError> {
    Ok(execute(conn, RAISE, params![id.as_str()], "bring a session back")? == 1)
}
