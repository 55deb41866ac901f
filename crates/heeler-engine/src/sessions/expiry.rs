//! Sessions that were not used for as long as their rules say are put aside.
//!
//! Whether one is resumed is decided by its age in any case; this is for those who look.

use heeler_model::config::SessionRules;
use heeler_model::session_choice::expired_by;
use heeler_model::{Session, SessionEvent, SessionMode, SessionStatus};
use heeler_store::{Db, DbError, Tx};
use jiff::{SignedDuration, Timestamp};

use crate::setup::Setup;

/// How many sessions of an agent are put aside at once.
const PAGE: usize = 1000;

/// Puts sessions aside that were not used for as long as their agent's rules say. Returns how many.
pub(crate) fn expire(tx: &mut Tx<'_>, setup: &Setup, now: Timestamp) -> Result<usize, DbError> {
    let mut expired = expired(tx, setup, now)?;
    for session in &mut expired {
        session.meets(SessionEvent::Expire);
        tx.put_session(session)?;
    }
    Ok(expired.len())
}

/// Lists those sessions. A schedule may have rules of its own: what one of them would still go on with
/// has not expired.
pub(crate) fn expired(db: &Db, setup: &Setup, now: Timestamp) -> Result<Vec<Session>, DbError> {
    let mut found = Vec::new();
    for agent in &setup.loaded.agents {
        let schedules = agent.schedules.iter().map(|schedule| &schedule.session);
        let rules = std::iter::once(&agent.session).chain(schedules);
        let rules: Vec<&SessionRules> =
            rules.filter(|rules| rules.mode != SessionMode::FreshPerJob).collect();
        let limits = |rules: &&SessionRules| [rules.expires_after, rules.idle_timeout];
        let limits = rules.iter().flat_map(limits).flatten().map(|limit| limit.get());
        let Some(limit) = limits.min() else { continue };
        let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        let before = now.checked_sub(limit).unwrap_or(Timestamp::MIN);
        for status in [SessionStatus::Paused, SessionStatus::Created] {
            let unused = db.unused_kept_sessions(agent.name.as_str(), status, before, PAGE)?;
            // A fork that waits to be used is not forgotten.
            let has_expired = |session: &Session| {
                session.fork.is_none()
                    && rules.iter().all(|rules| expired_by(session, rules, now).is_some())
            };
            found.extend(unused.into_iter().filter(has_expired));
        }
    }
    Ok(found)
}
