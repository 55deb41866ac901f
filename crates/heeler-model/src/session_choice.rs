//! Which conversation a run continues: the checks before a session is resumed.
//!
//! A pure decision over what the store knows. Ids are minted by the caller. Start at [`choose`].

use camino::Utf8Path;
use jiff::Timestamp;
use uuid::Uuid;

use crate::config::{RuntimeType, SessionRules};
use crate::run::{SessionPlan, SessionStart};
use crate::{AgentSessionId, Session};

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Wish<'s> {
    /// What the agent's rules say, with the session that its next job would continue.
    Usual {
        /// The agent's session, or its channel's; none if there is none.
        session: Option<&'s Session>,
    },
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
pub struct Context<'c> {
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
pub fn choose(_wish: &Wish<'_>, _context: &Context<'_>, new_id: AgentSessionId) -> SessionPlan {
    SessionPlan { start: SessionStart::Fresh { id: new_id }, reason: String::new() }
}
