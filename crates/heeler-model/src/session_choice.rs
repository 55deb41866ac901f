//! Choice of the session for a run, with the checks before a session is resumed.
//!
//! A pure function of the store's records. The caller mints IDs. A busy session, or one that the
//! agent no longer has, is only detected when the run starts. Start at [`choose_session`].

use std::num::NonZeroU32;

use camino::Utf8Path;
use heeler_config::{ConfigDuration, RuntimeType, SessionRules};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::run::{SessionPlan, SessionStart};
use crate::{AgentSessionId, PendingFork, Session, SessionMode, SessionStatus, iso_millis};

/// Number of last messages kept in full if `context_window` is not set.
pub const CONTEXT_WINDOW_DEFAULT: u32 = 50;

/// Requested session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SessionChoice {
    /// Session according to the agent's rules.
    Usual,
    /// New session (`--fresh`).
    Fresh,
    /// Given session (`--session`), without further checks.
    Given {
        /// Native session ID.
        id: AgentSessionId,
    },
    /// New session with the history of another.
    Fork {
        /// Native session ID of the source.
        source: AgentSessionId,
        /// Last message to copy. `None` copies all.
        at: Option<Uuid>,
    },
}

/// Environment of the run for which a session is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SessionChoiceContext<'c> {
    /// Canonical path of the working directory.
    pub working_directory: &'c Utf8Path,
    pub runtime: RuntimeType,
    /// True if the agent runs in a container.
    pub docker: bool,
    pub rules: &'c SessionRules,
    pub now: Timestamp,
}

/// Chooses the session of a run. `new_id` is its ID if it is a new one.
///
/// `known` is the record of the requested session. For [`SessionChoice::Usual`], it is the session
/// that the next job of the agent or channel would continue.
pub fn choose_session(
    wish: &SessionChoice,
    known: Option<&Session>,
    context: &SessionChoiceContext<'_>,
    new_id: AgentSessionId,
) -> SessionPlan {
    // The position decides later whether the native session has external messages.
    let own = known.and_then(|session| session.own);
    let (start, reason) = match wish {
        SessionChoice::Fresh => {
            (SessionStart::Fresh { id: new_id }, "new session, as requested".to_owned())
        }
        SessionChoice::Given { id } => {
            let name = display_id(id, known);
            // A fork gets its history when it starts, so until then there is nothing to resume.
            match known.and_then(|session| session.fork.clone()) {
                Some(PendingFork { source, at }) => {
                    let reason = format!("session {name} starts as a fork, as requested");
                    (SessionStart::Fork { source, id: id.clone(), at }, reason)
                }
                None => {
                    let reason = format!("session {name} is resumed, as requested");
                    (SessionStart::Resume { id: id.clone() }, reason)
                }
            }
        }
        SessionChoice::Fork { source, at } => {
            let at_entry = at.map(|at| format!(" up to {at}")).unwrap_or_default();
            let name = display_id(source, known);
            let reason = format!("new session with the history of {name}{at_entry}, as requested");
            (SessionStart::Fork { source: source.clone(), id: new_id, at: *at }, reason)
        }
        // Only here the rules are checked: a named session was chosen on purpose.
        SessionChoice::Usual => match find_resumable(known, context) {
            Ok((id, session)) => continue_session(id, session, context.rules, new_id),
            Err(why) => (SessionStart::Fresh { id: new_id }, format!("new session: {why}")),
        },
    };
    SessionPlan { own, ..SessionPlan::new(start, reason) }
}

/// Resumes a session, or continues it in a new one if its context is too large.
fn continue_session(
    id: AgentSessionId,
    session: &Session,
    rules: &SessionRules,
    new_id: AgentSessionId,
) -> (SessionStart, String) {
    let name = &session.id;
    // A fork that has not started has no context of its own, so its size does not matter.
    if let Some(PendingFork { source, at }) = session.fork.clone() {
        let reason = format!("session {name} starts as a fork");
        return (SessionStart::Fork { source, id, at }, reason);
    }
    let limit = rules.max_context_tokens.map(NonZeroU32::get);
    match limit.filter(|limit| session.token_estimate > i64::from(*limit)) {
        None => (SessionStart::Resume { id }, format!("session {name} is resumed")),
        Some(limit) => {
            let keep = rules.context_window.map_or(CONTEXT_WINDOW_DEFAULT, NonZeroU32::get);
            let reason = format!(
                "new session that continues {name}: its context of about {} tokens exceeds \
                 max_context_tokens ({limit}); it has a summary and the last {keep} messages",
                session.token_estimate
            );
            (SessionStart::Continue { source: id, id: new_id, keep }, reason)
        }
    }
}

/// Returns the ID that people know: Heeler's, or the native session ID if there is no record.
fn display_id<'n>(id: &'n AgentSessionId, known: Option<&'n Session>) -> &'n str {
    known.map_or(id.as_str(), |session| session.id.as_str())
}

/// Returns a resumable session with its native session ID, or the reason why there is none.
fn find_resumable<'s>(
    session: Option<&'s Session>,
    context: &SessionChoiceContext<'_>,
) -> Result<(AgentSessionId, &'s Session), String> {
    // Checked before the record, so that the reason does not depend on what is stored.
    if context.rules.mode == SessionMode::FreshPerJob {
        return Err("each job of this agent has its own".to_owned());
    }
    let session = session.ok_or("there is none to resume")?;
    let id = session.agent_session_id.clone();
    let id = id.ok_or_else(|| format!("the agent never started {}", session.id))?;
    // By age first: a session may be too old before anything has marked it as expired.
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

/// Returns the rule by which a session has expired, if any.
pub fn expiry_rule(
    session: &Session,
    rules: &SessionRules,
    now: Timestamp,
) -> Option<(&'static str, ConfigDuration)> {
    let unused = now.duration_since(session.last_active_at);
    // The config limits durations, so the conversion cannot fail.
    let is_over = |limit: ConfigDuration| unused > limit.get().try_into().expect("ten years fit");
    let limits = [("timeout", rules.expires_after), ("idle_timeout", rules.idle_timeout)];
    let mut limits = limits.into_iter().filter_map(|(key, limit)| Some((key, limit?)));
    limits.find(|(_, limit)| is_over(*limit))
}

/// Checks that the run has the session's environment. Fields missing from an imported session are
/// not checked.
fn check_environment(session: &Session, context: &SessionChoiceContext<'_>) -> Result<(), String> {
    let (id, here) = (&session.id, context.working_directory);
    if let Some(there) = session.working_directory.as_deref().filter(|there| *there != here) {
        return Err(format!("{id} belongs to {there}, the agent now works in {here}"));
    }
    let runtime = context.runtime.as_str();
    // Imported sessions have no runtime.
    if !session.runtime.is_empty() && session.runtime != runtime {
        return Err(format!(
            "{id} was made by runtime {}, the agent now has {runtime}",
            session.runtime
        ));
    }
    // A container has its own home directory, so the native session is in another place.
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
