//! Marks sessions as expired that were unused for as long as their rules say.
//!
//! This is for display only: a session's age decides at each start whether it is resumed. Start at
//! [`expire_sessions`].

use heeler_config::LoadedConfig;
use heeler_model::SessionEvent;
use heeler_store::{DatabaseError, StoreTransaction, expired_sessions};
use jiff::Timestamp;

/// Maximum number of sessions that are marked at once, per agent and status.
pub(crate) const EXPIRED_MAX: usize = 1000;

/// Marks sessions as expired that were unused for as long as their agent's rules say. Returns their
/// number.
pub(crate) fn expire_sessions(
    tx: &mut StoreTransaction<'_>,
    loaded: &LoadedConfig,
    now: Timestamp,
) -> Result<usize, DatabaseError> {
    let mut expired = expired_sessions(tx, loaded, now, EXPIRED_MAX)?;
    for session in &mut expired {
        session.apply_event(SessionEvent::Expire);
        tx.put_session(session)?;
    }
    Ok(expired.len())
}
