//! Decides whether a session has expired by the rules of its agent. Start at [`has_expired`].

use heeler_config::{AgentConfig, LoadedConfig, SessionRules};
use jiff::Timestamp;

use crate::session_choice::expiry_rule;
use crate::{Session, SessionMode, SessionStatus};

/// Returns true if a session was unused for as long as its agent's rules say and is not marked yet.
/// A schedule may have its own rules: a session that one of them would still continue has not
/// expired. A fork that has not been used yet does not expire.
pub fn has_expired(session: &Session, loaded: &LoadedConfig, now: Timestamp) -> bool {
    // An active session is in use, and the other states are final already.
    let can_expire = matches!(session.status, SessionStatus::Paused | SessionStatus::Created)
        && session.mode != SessionMode::FreshPerJob
        && session.fork.is_none();
    // The rules of an agent that is gone are unknown, so its sessions stay as they are.
    let Some(agent) = loaded.agent(&session.agent).filter(|_| can_expire) else { return false };
    let mut rules = session_rules_of(agent).peekable();
    // Without rules nothing would continue it, but nothing says that it is too old either.
    rules.peek().is_some() && rules.all(|rules| expiry_rule(session, rules, now).is_some())
}

/// Returns the session rules of an agent: its own and those of its schedules.
pub fn session_rules_of(agent: &AgentConfig) -> impl Iterator<Item = &SessionRules> {
    let schedules = agent.schedules.iter().map(|schedule| &schedule.session);
    let rules = std::iter::once(&agent.session).chain(schedules);
    rules.filter(|rules| rules.mode != SessionMode::FreshPerJob)
}
