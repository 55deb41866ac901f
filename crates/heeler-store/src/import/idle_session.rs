//! Session records of other systems, which are idle after an import.

use heeler_model::{AgentSessionId, Session, SessionId, SessionMode, SessionStatus};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::db::DatabaseError;
use crate::transaction::StoreTransaction;

/// Agent of a session for which no agent is known.
pub(crate) const UNKNOWN_AGENT: &str = "unknown";

/// Creates the record of an idle session.
///
/// Heeler's id is derived from the native one, so that a repeated import finds the same
/// session.
pub(crate) fn idle_session(agent: &str, own: Option<AgentSessionId>, at: Timestamp) -> Session {
    let id = derived_id(own.as_ref().map_or(agent, AgentSessionId::as_str), 0);
    Session {
        agent_session_id: own,
        mode: SessionMode::Persistent,
        status: SessionStatus::Paused,
        runtime: "sdk".to_owned(),
        ..Session::new(id, agent, at)
    }
}

/// Returns the `attempt`th id for a session; later ones are used if another session has the
/// earlier ones.
pub(crate) fn derived_id(own: &str, attempt: u32) -> SessionId {
    let hash = Sha256::new().chain_update(own).chain_update(attempt.to_le_bytes()).finalize();
    SessionId::mint(u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]))
}

/// Inserts a session unless its native id exists: an agent may have kept one session in two
/// projects. Returns true if it was inserted.
pub(crate) fn put_new(
    tx: &mut StoreTransaction<'_>,
    session: Session,
) -> Result<bool, DatabaseError> {
    if let Some(own) = &session.agent_session_id
        && tx.session_by_agent_id(own)?.is_some()
    {
        return Ok(false);
    }
    put_imported(tx, session).map(|_| true)
}

/// Inserts a session under the first unused id, and returns it as inserted.
pub(crate) fn put_imported(
    tx: &mut StoreTransaction<'_>,
    mut session: Session,
) -> Result<Session, DatabaseError> {
    let own = session.agent_session_id.as_ref().map(|id| id.as_str().to_owned());
    let mut attempt = 0;
    while tx.session(&session.id)?.is_some() {
        attempt += 1;
        session.id = derived_id(own.as_deref().unwrap_or(&session.agent), attempt);
    }
    tx.put_session(&session)?;
    Ok(session)
}
