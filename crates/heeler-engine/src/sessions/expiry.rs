//! Marks sessions as expired that were unused for as long as their rules say.
//!
//! This is for display only: a session's age decides at each start whether it is resumed. Start at
//! [`expire_sessions`].

use heeler_model::config::{AgentConfig, LoadedConfig, SessionRules};
use heeler_model::session_choice::expiry_rule;
use heeler_model::{Session, SessionEvent, SessionMode, SessionStatus};
use heeler_store::{DatabaseError, StateDatabase, StoreTransaction};
use jiff::{SignedDuration, Timestamp};

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

/// Lists these sessions: per agent and status, at most `limit`, least recently used first.
pub fn expired_sessions(
    db: &StateDatabase,
    loaded: &LoadedConfig,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Session>, DatabaseError> {
    let mut found = Vec::new();
    for agent in &loaded.agents {
        let limits = |rules: &SessionRules| [rules.expires_after, rules.idle_timeout];
        let limits = session_rules_of(agent).flat_map(limits).flatten().map(|limit| limit.get());
        let Some(least) = limits.min() else { continue };
        let least = SignedDuration::try_from(least).unwrap_or(SignedDuration::MAX);
        let before = now.checked_sub(least).unwrap_or(Timestamp::MIN);
        for status in [SessionStatus::Paused, SessionStatus::Created] {
            let unused = db.unused_reusable_sessions(agent.name.as_str(), status, before, limit)?;
            let is_over = |session: &Session| has_expired(session, loaded, now);
            found.extend(unused.into_iter().filter(is_over));
        }
    }
    Ok(found)
}

/// Returns true if a session was unused for as long as its agent's rules say and is not marked yet.
/// A schedule may have its own rules: a session that one of them would still continue has not
/// expired. A fork that has not been used yet does not expire.
pub fn has_expired(session: &Session, loaded: &LoadedConfig, now: Timestamp) -> bool {
    let can_expire = matches!(session.status, SessionStatus::Paused | SessionStatus::Created)
        && session.mode != SessionMode::FreshPerJob
        && session.fork.is_none();
    let Some(agent) = loaded.agent(&session.agent).filter(|_| can_expire) else { return false };
    let mut rules = session_rules_of(agent).peekable();
    rules.peek().is_some() && rules.all(|rules| expiry_rule(session, rules, now).is_some())
}

/// Returns the session rules of an agent: its own and those of its schedules.
fn session_rules_of(agent: &AgentConfig) -> impl Iterator<Item = &SessionRules> {
    let schedules = agent.schedules.iter().map(|schedule| &schedule.session);
    let rules = std::iter::once(&agent.session).chain(schedules);
    rules.filter(|rules| rules.mode != SessionMode::FreshPerJob)
}
