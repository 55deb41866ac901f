//! Sessions of other systems, at rest.

use heeler_model::{AgentSessionId, Session, SessionId, SessionMode, SessionStatus};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::db::DatabaseError;
use crate::transaction::StoreTransaction;

/// The agent of a session of which nothing says whose it is.
pub(crate) const UNKNOWN_AGENT: &str = "unknown";

/// Starts the record of a session that nobody is working in.
///
/// Our id follows from the agent's own, so that a second import meets the same session.
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

/// Returns the `attempt`th id for a session; later ones are for when another session has it.
pub(crate) fn derived_id(own: &str, attempt: u32) -> SessionId {
    let hash = Sha256::new().chain_update(own).chain_update(attempt.to_le_bytes()).finalize();
    SessionId::mint(u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]))
}

/// Inserts a session unless its agent's id is there already: an agent may have kept one session in
/// two projects. Returns whether it was inserted.
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

/// Inserts a session under the first id that no other session has, and returns it as inserted.
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
