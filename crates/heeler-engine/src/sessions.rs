//! What people do with sessions: fork, delete, bring back, clean up.
//!
//! What needs reading or writing files is found out and made first, beside the dispatcher, and can be
//! cut off anywhere: nothing refers to it yet. Then one transaction makes it count. What is done to
//! files after that can be done again by the next daemon. Start at [`prepare_change`].

mod adoption;
mod expiry;
mod fork;
mod removal;
mod worktree;

use std::error::Error;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{AgentSessionId, Session, SessionId, error_chain};
use heeler_store::{DatabaseError, StoreReader, StoreTransaction};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::fleet::EngineContext;
use crate::setup::DaemonSetup;

pub(crate) use expiry::{EXPIRED_MAX, expire_sessions};
pub use expiry::{expired_sessions, has_expired};
pub use removal::{CLEANUP_MAX, CleanupPlan, plan_cleanup};
pub(crate) use removal::{SessionMoveLocks, sync_session_files};
pub(crate) use worktree::{is_worktree_missing, recreate_worktree};

/// Where a session came from that somebody made with the agent's program, not through us.
pub const NATIVE_ORIGIN: &str = "claude";

/// What is to be done with a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionOperation {
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
pub(crate) enum SessionChange {
    Fork(Box<fork::PreparedFork>),
    Delete { session: SessionId, purge: bool },
    Cleanup(Vec<SessionId>),
    Restore(SessionId),
    Adopt(Box<adoption::SessionAdoption>),
}

/// A session that was taken over, as whoever asked is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdoptedSession {
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
pub struct RetainedSession {
    /// Its id.
    pub id: SessionId,
    /// Why.
    pub reason: String,
}

/// A session that was made, as its maker is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForkedSession {
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
pub(crate) fn prepare_change(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    order: SessionOperation,
) -> Result<SessionChange, DaemonCommandError> {
    let reader = StoreReader::open(&fleet.dir).map_err(|error| internal_error(&error))?;
    match order {
        SessionOperation::Fork { session, at_message, agent, workspace } => {
            let wish = fork::ForkOptions { at_message, agent, workspace };
            fork::prepare_fork(fleet, setup, &reader, &session, &wish)
                .map(|fork| SessionChange::Fork(Box::new(fork)))
        }
        SessionOperation::Delete { session, purge } => Ok(SessionChange::Delete { session, purge }),
        SessionOperation::Restore { session } => {
            removal::prepare_restore(&fleet.dir, &setup.home, &reader, &session)?;
            Ok(SessionChange::Restore(session))
        }
        SessionOperation::Adopt { id, agent } => {
            let taken = adoption::adopt_native_session(fleet, setup, &reader, &id, &agent)?;
            Ok(SessionChange::Adopt(Box::new(taken)))
        }
        SessionOperation::Import { file, agent } => {
            let taken = adoption::import_bundle(fleet, setup, &reader, &file, agent.as_deref())?;
            Ok(SessionChange::Adopt(Box::new(taken)))
        }
        SessionOperation::Cleanup { before } => {
            let now = (fleet.now)();
            let old = removal::removable_sessions(&reader, Some(&setup.loaded), before, now);
            let old = old.map_err(|error| internal_error(&error))?;
            Ok(SessionChange::Cleanup(old.into_iter().map(|session| session.id).collect()))
        }
    }
}

/// Makes a change count. What follows from it for files is for [`sync_session_files`].
pub(crate) fn commit_change(
    tx: &mut StoreTransaction<'_>,
    home: &Utf8Path,
    change: &SessionChange,
    by: &str,
    now: Timestamp,
) -> Result<Result<CommandReply, DaemonCommandError>, DatabaseError> {
    match change {
        SessionChange::Fork(fork) => fork::commit_fork(tx, fork, now),
        SessionChange::Delete { session, purge } => {
            removal::delete_session(tx, home, session, *purge, by, now)
        }
        SessionChange::Cleanup(sessions) => removal::clean_up(tx, home, sessions, by, now),
        SessionChange::Restore(session) => removal::restore_session(tx, session),
        SessionChange::Adopt(taken) => adoption::commit_adoption(tx, taken, by),
    }
}

/// Says whether a session runs in its own directory, wherever its agent works now.
pub(crate) fn has_own_directory(session: &Session) -> bool {
    session.workspace.is_some() || session.origin.as_deref() == Some(NATIVE_ORIGIN)
}

fn internal_error(error: &dyn Error) -> DaemonCommandError {
    DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(error))
}

fn session_not_found(session: &SessionId) -> DaemonCommandError {
    let refused = DaemonCommandError::new(
        DaemonCommandErrorKind::NotFound,
        format!("there is no session {session}"),
    );
    refused.with_hint("heeler session list")
}

#[cfg(test)]
mod tests;
