//! Query for sessions that have expired.

use heeler_config::{LoadedConfig, SessionRules};
use heeler_model::session_expiry::{has_expired, session_rules_of};
use heeler_model::{Session, SessionStatus};
use jiff::{SignedDuration, Timestamp};

use crate::db::{DatabaseError, StateDatabase};

/// Lists the sessions that were unused for as long as their agent's rules say: per agent and status, at most `limit`, least recently used first.
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
        // The shortest limit narrows the query; the exact rule is applied to each session below.
        let Some(least) = limits.min() else { continue };
        let least = SignedDuration::try_from(least).unwrap_or(SignedDuration::MAX);
        // A limit longer than all of time expires nothing.
        let before = now.checked_sub(least).unwrap_or(Timestamp::MIN);
        // Active sessions are in use, and ended ones have expired already.
        for status in [SessionStatus::Paused, SessionStatus::Created] {
            let unused = db.unused_reusable_sessions(agent.name.as_str(), status, before, limit)?;
            let is_over = |session: &Session| has_expired(session, loaded, now);
            found.extend(unused.into_iter().filter(is_over));
        }
    }
    Ok(found)
}
