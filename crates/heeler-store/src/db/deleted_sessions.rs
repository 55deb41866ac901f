//! Deleted sessions: the table `deleted_sessions`.
//!
//! The original row is kept, so that a session can be restored while its files are in the
//! trash.

use heeler_model::{AgentSessionId, Session, SessionId, iso_millis};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    ALL = "SELECT deleted_at, deleted_by, purged_at, record FROM deleted_sessions ORDER BY id";
    ONE = "SELECT deleted_at, deleted_by, purged_at, record FROM deleted_sessions WHERE id = ?1";
    // One that can still be restored is more useful than a purged one.
    BY_AGENT_SESSION = "SELECT deleted_at, deleted_by, purged_at, record FROM deleted_sessions \
        WHERE agent_session_id = ?1 ORDER BY purged_at IS NOT NULL, deleted_at DESC LIMIT 1";
    // A session may be deleted, restored and deleted again.
    INSERT = "INSERT INTO deleted_sessions (id, agent_session_id, agent, deleted_at, deleted_by, \
        purged_at, record) VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6) ON CONFLICT(id) DO UPDATE SET \
        deleted_at = excluded.deleted_at, deleted_by = excluded.deleted_by, purged_at = NULL, \
        record = excluded.record";
    PURGE = "UPDATE deleted_sessions SET purged_at = ?2 WHERE id = ?1 AND purged_at IS NULL";
    // The files of a purged session are gone, so it cannot come back.
    REMOVE = "DELETE FROM deleted_sessions WHERE id = ?1 AND purged_at IS NULL";
}

#[derive(Debug, Clone, PartialEq)]
pub struct DeletedSession {
    /// The session at the time it was deleted.
    pub session: Session,
    pub deleted_at: Timestamp,
    pub deleted_by: String,
    /// Time at which its files were permanently removed; until then they are in the trash.
    pub purged_at: Option<Timestamp>,
}

impl StateDatabase {
    pub fn deleted_sessions(&self) -> Result<Vec<DeletedSession>, DatabaseError> {
        query_all(&self.conn, ALL, [], "list deleted sessions", read)
    }

    pub fn deleted_session(&self, id: &SessionId) -> Result<Option<DeletedSession>, DatabaseError> {
        query_first(&self.conn, ONE, [id.as_str()], "read a deleted session", read)
    }
}

impl StateDatabase {
    /// Returns the most recently deleted session with this native id; one that can be restored
    /// takes precedence.
    pub fn deleted_session_by_agent_id(
        &self,
        id: &AgentSessionId,
    ) -> Result<Option<DeletedSession>, DatabaseError> {
        query_first(&self.conn, BY_AGENT_SESSION, [id.as_str()], "read a deleted session", read)
    }
}

fn read(row: &SqlRow<'_>) -> Result<DeletedSession, DatabaseError> {
    let mut columns = ColumnReader::new("deleted_sessions", row);
    let (at, by, purged_at) = (columns.time()?, columns.get()?, columns.optional_time()?);
    let record: String = columns.get()?;
    let session = serde_json::from_str(&record).map_err(|error| columns.bad(error.to_string()))?;
    Ok(DeletedSession { session, deleted_at: at, deleted_by: by, purged_at })
}

pub(crate) fn insert_deleted(
    conn: &DatabaseConnection,
    session: &Session,
    by: &str,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let record = serde_json::to_string(session).expect("a session has only text keys");
    let native_id = session.agent_session_id.as_ref().map(|id| id.as_str());
    let params =
        params![session.id.as_str(), native_id, session.agent, iso_millis(now), by, record];
    execute(conn, INSERT, params, "delete a session").map(|_| ())
}

/// Records that files are permanently removed; returns true if they were in the trash.
pub(crate) fn purge(
    conn: &DatabaseConnection,
    id: &SessionId,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![id.as_str(), iso_millis(now)];
    Ok(execute(conn, PURGE, params, "purge a session")? == 1)
}

/// Removes the tombstone of a session; returns true if the session could be restored.
pub(crate) fn remove_deleted(
    conn: &DatabaseConnection,
    id: &SessionId,
) -> Result<bool, DatabaseError> {
    Ok(execute(conn, REMOVE, params![id.as_str()], "bring a session back")? == 1)
}
