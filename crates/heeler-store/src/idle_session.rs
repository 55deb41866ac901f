//! Session records that are read from files, which are idle until a job continues them.

use heeler_model::{AgentSessionId, Session, SessionId, SessionMode, SessionStatus};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

/// Agent of a session for which no agent is known.
pub const UNKNOWN_AGENT: &str = "unknown";

/// Creates the record of an idle session.
///
/// Heeler's id is derived from the native one, so that a repeated import finds the same
/// session.
pub fn idle_session(agent: &str, native_id: Option<AgentSessionId>, at: Timestamp) -> Session {
    let id = derived_id(native_id.as_ref().map_or(agent, AgentSessionId::as_str), 0);
    Session {
        agent_session_id: native_id,
        mode: SessionMode::Persistent,
        status: SessionStatus::Paused,
        runtime: "sdk".to_owned(),
        ..Session::new(id, agent, at)
    }
}

/// Returns the `attempt`th id for a session; later ones are used if another session has the
/// earlier ones.
pub(crate) fn derived_id(native_id: &str, attempt: u32) -> SessionId {
    // Derived and not random: a repeated import must find the session that it created before.
    let hash = Sha256::new().chain_update(native_id).chain_update(attempt.to_le_bytes()).finalize();
    SessionId::mint(u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]))
}
