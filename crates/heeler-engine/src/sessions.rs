//! What people do with sessions: fork, delete, bring back, clean up.
//!
//! What needs reading or writing files is found out and made first, beside the dispatcher, and can be
//! cut off anywhere: nothing refers to it yet. Then one transaction makes it count. What is done to
//! files after that can be done again by the next daemon. Start at [`prepare`].

mod expiry;
mod fork;
mod place;
mod removal;
mod taking;

use std::error::Error;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{AgentSessionId, Session, SessionId, chain};
use heeler_store::{DbError, Reader, Tx};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::command::{Answer, Refused, RefusedKind};
use crate::fleet::Fleet;
use crate::setup::Setup;

pub(crate) use expiry::{EXPIRED_MAX, expire};
pub use expiry::{expired, has_expired};
pub(crate) use place::{lacks_worktree, make_worktree_again};
pub use removal::{CLEANUP_MAX, Cleanup, plan_cleanup};
pub(crate) use removal::{Moving, complete};

/// Where a session came from that somebody made with the agent's program, not through us.
pub const NATIVE: &str = "claude";

/// What is to be done with a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionOrder {
    /// Make a new session with the history of this one.
    Fork {
        /// The source, which stays as it is.
        session: SessionId,
        /// The last message that the new one knows; the last that it can be cut at if left out.
        at_message: Option<u64>,
        /// Whose the new one is; its source's if left out.
        agent: Option<String>,
        /// Whether it gets a worktree in the state that the files were in at that message.
        workspace: bool,
    },
    /// Put a session into the trash, or remove one that is there for good.
    Delete {
        /// The session.
        session: SessionId,
        /// For good.
        purge: bool,
    },
    /// Bring a session back from the trash.
    Restore {
        /// The session.
        session: SessionId,
    },
    /// Take over a session that somebody made with claude.
    Adopt {
        /// Claude's id of it, or a beginning that only one has.
        id: String,
        /// Whose it is to be.
        agent: String,
    },
    /// Take over a session that was exported.
    Import {
        /// The file.
        file: Utf8PathBuf,
        /// Whose it is to be; if left out, an agent of the name that it had.
        agent: Option<String>,
    },
    /// Put sessions into the trash that have expired or ended, and were last used before a moment.
    Cleanup {
        /// The moment.
        before: Timestamp,
    },
}

/// A change of sessions that is ready to be made.
#[derive(Debug)]
pub(crate) enum Change {
    Fork(Box<fork::Fork>),
    Delete { session: SessionId, purge: bool },
    Cleanup(Vec<SessionId>),
    Restore(SessionId),
    Take(Box<taking::Taken>),
}

/// A session that was taken over, as whoever asked is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakenSession {
    /// Its id.
    pub id: SessionId,
    /// The agent's own id of it.
    pub agent_session_id: Option<AgentSessionId>,
    /// Whose it is.
    pub agent: String,
    /// How many messages it has.
    pub messages: u64,
    /// Where it goes on.
    pub working_directory: Option<Utf8PathBuf>,
    /// How many snapshots of its files came along.
    pub snapshots: u64,
}

/// A session that is to stay although it was to go, as whoever asked is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptSession {
    /// Its id.
    pub id: SessionId,
    /// Why.
    pub reason: String,
}

/// A session that was made, as its maker is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MadeSession {
    /// Its id.
    pub id: SessionId,
    /// The agent's own id of it.
    pub agent_session_id: AgentSessionId,
    /// Whose it is.
    pub agent: String,
    /// The session that it has its history from.
    pub parent: SessionId,
    /// The last message that it knows.
    pub at_message: u64,
    /// The message that was asked for, if it could not be cut there.
    pub asked_for: Option<u64>,
    /// Its own worktree.
    pub workspace: Option<Utf8PathBuf>,
    /// What that worktree lacks, as the snapshot has it.
    pub left_out: Vec<Json>,
    /// The jobs that were at work in the same folder when the snapshot was taken.
    #[serde(default)]
    pub others: Vec<String>,
    /// How many messages of the source, behind the cut, it could not take over: they belong to a turn
    /// that did not end. None where a message was asked for.
    #[serde(default)]
    pub left_behind: u64,
}

/// Finds out what an order needs and makes what nobody refers to yet.
pub(crate) fn prepare(
    fleet: &Fleet,
    setup: &Setup,
    order: SessionOrder,
) -> Result<Change, Refused> {
    let reader = Reader::open(&fleet.dir).map_err(|error| trouble(&error))?;
    match order {
        SessionOrder::Fork { session, at_message, agent, workspace } => {
            let wish = fork::Wish { at_message, agent, workspace };
            fork::prepare(fleet, setup, &reader, &session, &wish)
                .map(|fork| Change::Fork(Box::new(fork)))
        }
        SessionOrder::Delete { session, purge } => Ok(Change::Delete { session, purge }),
        SessionOrder::Restore { session } => {
            removal::prepare_restore(&fleet.dir, &setup.home, &reader, &session)?;
            Ok(Change::Restore(session))
        }
        SessionOrder::Adopt { id, agent } => {
            let taken = taking::adopt(fleet, setup, &reader, &id, &agent)?;
            Ok(Change::Take(Box::new(taken)))
        }
        SessionOrder::Import { file, agent } => {
            let taken = taking::import(fleet, setup, &reader, &file, agent.as_deref())?;
            Ok(Change::Take(Box::new(taken)))
        }
        SessionOrder::Cleanup { before } => {
            let now = (fleet.now)();
            let old = removal::old(&reader, Some(&setup.loaded), before, now);
            let old = old.map_err(|error| trouble(&error))?;
            Ok(Change::Cleanup(old.into_iter().map(|session| session.id).collect()))
        }
    }
}

/// Makes a change count. What follows from it for files is for [`complete`].
pub(crate) fn commit(
    tx: &mut Tx<'_>,
    home: &Utf8Path,
    change: &Change,
    by: &str,
    now: Timestamp,
) -> Result<Result<Answer, Refused>, DbError> {
    match change {
        Change::Fork(fork) => fork::commit(tx, fork, now),
        Change::Delete { session, purge } => removal::delete(tx, home, session, *purge, by, now),
        Change::Cleanup(sessions) => removal::clean_up(tx, home, sessions, by, now),
        Change::Restore(session) => removal::restore(tx, session),
        Change::Take(taken) => taking::commit(tx, taken, by),
    }
}

/// Says whether a session runs in its own directory, wherever its agent works now.
pub(crate) fn has_own_place(session: &Session) -> bool {
    session.workspace.is_some() || session.origin.as_deref() == Some(NATIVE)
}

fn trouble(error: &dyn Error) -> Refused {
    Refused::new(RefusedKind::Trouble, chain(error))
}

fn unknown(session: &SessionId) -> Refused {
    let refused = Refused::new(RefusedKind::NotFound, format!("there is no session {session}"));
    refused.hint("heeler session list")
}

#[cfg(test)]
mod tests;
