//! Which conversation a run continues: the checks before a session is resumed.
//!
//! A pure decision over what the store knows. Ids are minted by the caller; that a session is free
//! and that the agent still has it is found out when it starts. Start at [`choose_session`].

use std::num::NonZeroU32;

use camino::Utf8Path;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::config::{ConfigDuration, RuntimeType, SessionRules};
use crate::run::{SessionPlan, SessionStart};
use crate::{AgentSessionId, PendingFork, Session, SessionMode, SessionStatus, iso_millis};

/// How many of the last messages are kept in full where `context_window` does not say.
pub const CONTEXT_WINDOW_DEFAULT: u32 = 50;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SessionChoice {
    /// What the agent's rules say.
    Usual,
    /// A new conversation (`--fresh`).
    Fresh,
    /// This conversation (`--session`): the caller's word is enough.
    Given {
        /// The agent's own id of it.
        id: AgentSessionId,
    },
    /// A new conversation with the history of another.
    Fork {
        /// The agent's own id of the source.
        source: AgentSessionId,
        /// The last entry that is taken over; all if left out.
        at: Option<Uuid>,
    },
}

/// Where the agent is about to run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SessionChoiceContext<'c> {
    /// Its working directory, a real path.
    pub working_directory: &'c Utf8Path,
    /// What runs it.
    pub runtime: RuntimeType,
    /// Whether in a container.
    pub docker: bool,
    /// How it keeps context.
    pub rules: &'c SessionRules,
    /// The moment of the decision.
    pub now: Timestamp,
}

/// Chooses the conversation. `new_id` names it if it is a new one.
///
/// `known` is what is on record of the one that is wished for: by the rules, the one that the agent's
/// or its channel's next job would continue.
pub fn choose_session(
    wish: &SessionChoice,
    known: Option<&Session>,
    context: &SessionChoiceContext<'_>,
    new_id: AgentSessionId,
) -> SessionPlan {
    let own = known.and_then(|session| session.own);
    let (start, reason) = match wish {
        SessionChoice::Fresh => {
            (SessionStart::Fresh { id: new_id }, "a new session, as asked".to_owned())
        }
        SessionChoice::Given { id } => {
            let name = display_id(id, known);
            match known.and_then(|session| session.fork.clone()) {
                Some(PendingFork { source, at }) => {
                    let reason = format!("session {name} begins as a fork, as asked");
                    (SessionStart::Fork { source, id: id.clone(), at }, reason)
                }
                None => {
                    let reason = format!("session {name} goes on, as asked");
                    (SessionStart::Resume { id: id.clone() }, reason)
                }
            }
        }
        SessionChoice::Fork { source, at } => {
            let at_entry = at.map(|at| format!(" up to {at}")).unwrap_or_default();
            let name = display_id(source, known);
            let reason = format!("a new session with the history of {name}{at_entry}, as asked");
            (SessionStart::Fork { source: source.clone(), id: new_id, at: *at }, reason)
        }
        SessionChoice::Usual => match find_resumable(known, context) {
            Ok((id, session)) => continue_session(id, session, context.rules, new_id),
            Err(why) => (SessionStart::Fresh { id: new_id }, format!("a new session: {why}")),
        },
    };
    SessionPlan { own, ..SessionPlan::new(start, reason) }
}

/// Goes on with a session, or from it if its context has grown too large.
fn continue_session(
    id: AgentSessionId,
    session: &Session,
    rules: &SessionRules,
    new_id: AgentSessionId,
) -> (SessionStart, String) {
    let name = &session.id;
    if let Some(PendingFork { source, at }) = session.fork.clone() {
        let reason = format!("session {name} begins as a fork");
        return (SessionStart::Fork { source, id, at }, reason);
    }
    let limit = rules.max_context_tokens.map(NonZeroU32::get);
    match limit.filter(|limit| session.token_estimate > i64::from(*limit)) {
        None => (SessionStart::Resume { id }, format!("session {name} goes on")),
        Some(limit) => {
            let keep = rules.context_window.map_or(CONTEXT_WINDOW_DEFAULT, NonZeroU32::get);
            let reason = format!(
                "a new session goes on from {name}, whose context of about {} tokens is past \
                 max_context_tokens ({limit}): with a summary and its last {keep} messages",
                session.token_estimate
            );
            (SessionStart::Continue { source: id, id: new_id, keep }, reason)
        }
    }
}

/// Returns what people know a session by: our id, or the agent's own where we have none yet.
fn display_id<'n>(id: &'n AgentSessionId, known: Option<&'n Session>) -> &'n str {
    known.map_or(id.as_str(), |session| session.id.as_str())
}

/// Returns a session that may be resumed, with the agent's own id of it, or why it may not.
fn find_resumable<'s>(
    session: Option<&'s Session>,
    context: &SessionChoiceContext<'_>,
) -> Result<(AgentSessionId, &'s Session), String> {
    if context.rules.mode == SessionMode::FreshPerJob {
        return Err("each job of this agent has its own".to_owned());
    }
    let session = session.ok_or("there is none to continue")?;
    let id = session.agent_session_id.clone();
    let id = id.ok_or_else(|| format!("the agent never began {}", session.id))?;
    check_age(session, context)?;
    match session.status {
        SessionStatus::Completed => return Err(format!("{} has ended", session.id)),
        SessionStatus::Expired => return Err(format!("{} has expired", session.id)),
        SessionStatus::Created | SessionStatus::Active | SessionStatus::Paused => {}
    }
    check_environment(session, context)?;
    Ok((id, session))
}

fn check_age(session: &Session, context: &SessionChoiceContext<'_>) -> Result<(), String> {
    let last = || format!("{} was last used at {}", session.id, iso_millis(session.last_active_at));
    match expiry_rule(session, context.rules, context.now) {
        Some((key, limit)) => Err(format!("{}, longer than its {key} of {limit} ago", last())),
        None => Ok(()),
    }
}

/// Returns the rule by which a session has not been used for too long, if there is one.
pub fn expiry_rule(
    session: &Session,
    rules: &SessionRules,
    now: Timestamp,
) -> Option<(&'static str, ConfigDuration)> {
    let unused = now.duration_since(session.last_active_at);
    let is_over = |limit: ConfigDuration| unused > limit.get().try_into().expect("ten years fit");
    let limits = [("timeout", rules.expires_after), ("idle_timeout", rules.idle_timeout)];
    let mut limits = limits.into_iter().filter_map(|(key, limit)| Some((key, limit?)));
    limits.find(|(_, limit)| is_over(*limit))
}

/// Checks that the session runs where it did. What an imported session does not say is not checked.
fn check_environment(session: &Session, context: &SessionChoiceContext<'_>) -> Result<(), String> {
    let (id, here) = (&session.id, context.working_directory);
    if let Some(there) = session.working_directory.as_deref().filter(|there| *there != here) {
        return Err(format!("{id} belongs to {there}, the agent now works in {here}"));
    }
    let runtime = context.runtime.as_str();
    if !session.runtime.is_empty() && session.runtime != runtime {
        return Err(format!(
            "{id} was made by runtime {}, the agent now has {runtime}",
            session.runtime
        ));
    }
    match (session.docker_enabled, context.docker) {
        (true, false) => Err(format!("{id} was made in a container, the agent now runs without")),
        (false, true) => {
            Err(format!("{id} was made without a container, the agent now runs in one"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
