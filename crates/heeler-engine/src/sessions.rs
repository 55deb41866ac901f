//! Operations on sessions: fork, delete, restore, adopt, import, clean up.
//!
//! Files are read and written first, outside the dispatcher. This may be interrupted anywhere,
//! because nothing refers to the new files yet. One transaction then commits the change. Files are
//! moved after that, which the next daemon can repeat. Start at [`prepare_change`].

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
pub use removal::{CLEANUP_MAX, CleanupPlan, plan_cleanup};
pub(crate) use removal::{SessionMoveLocks, sync_session_files};
pub(crate) use worktree::{is_worktree_missing, recreate_worktree};

/// Origin of a session that was created with the agent's program outside Heeler.
pub const NATIVE_ORIGIN: &str = "claude";

/// Operation on sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionOperation {
    /// Create a session with the history of another.
    Fork {
        /// The source, which stays unchanged.
        session: SessionId,
        /// Last message to copy. Default: the last message at which the source can be forked.
        at_message: Option<u64>,
        /// Agent of the fork. Default: the agent of the source.
        agent: Option<String>,
        /// True to create a worktree with the files as they were at that message.
        workspace: bool,
    },
    /// Move a session to the trash, or purge one from the trash.
    Delete {
        session: SessionId,
        /// Delete permanently.
        purge: bool,
    },
    /// Restore a session from the trash.
    Restore { session: SessionId },
    /// Adopt a session that was created with claude outside Heeler.
    Adopt {
        /// Claude's ID of the session, or a unique prefix.
        id: String,
        /// Agent to assign the session to.
        agent: String,
    },
    /// Import an exported session.
    Import {
        /// The session bundle.
        file: Utf8PathBuf,
        /// Agent to assign the session to. Default: the agent with the same name as at the export.
        agent: Option<String>,
    },
    /// Move sessions to the trash that have expired or ended.
    Cleanup {
        /// Only sessions that were last used before this time.
        before: Timestamp,
    },
}

/// A prepared session operation, ready to be committed.
#[derive(Debug)]
pub(crate) enum SessionChange {
    Fork(Box<fork::PreparedFork>),
    Delete { session: SessionId, purge: bool },
    Cleanup(Vec<SessionId>),
    Restore(SessionId),
    Adopt(Box<adoption::SessionAdoption>),
}

/// Reply: a session that was adopted or imported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdoptedSession {
    pub id: SessionId,
    /// ID of the native session.
    pub agent_session_id: Option<AgentSessionId>,
    pub agent: String,
    /// Number of messages.
    pub messages: u64,
    /// Directory in which it continues.
    pub working_directory: Option<Utf8PathBuf>,
    /// Number of snapshots that were imported.
    pub snapshots: u64,
}

/// Reply: a session that should have been removed but was kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetainedSession {
    pub id: SessionId,
    pub reason: String,
}

/// Reply: a fork that was created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForkedSession {
    pub id: SessionId,
    /// ID of the native session.
    pub agent_session_id: AgentSessionId,
    pub agent: String,
    /// Source of the fork.
    pub parent: SessionId,
    /// Last message that the fork contains.
    pub at_message: u64,
    /// The requested message, if the session could not be forked there.
    pub asked_for: Option<u64>,
    /// Worktree of the fork.
    pub workspace: Option<Utf8PathBuf>,
    /// Files of the snapshot that the worktree lacks.
    pub left_out: Vec<Json>,
    /// Jobs that ran in the same directory when the snapshot was taken.
    #[serde(default)]
    pub others: Vec<String>,
    /// Number of messages after the fork point that could not be copied because their turn did not
    /// end. 0 if a message was requested.
    #[serde(default)]
    pub left_behind: u64,
}

/// Checks an operation and creates its files, to which nothing refers yet.
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

/// Commits a prepared operation. [`sync_session_files`] then moves the files.
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

/// Returns true if a session uses its own directory, regardless of its agent's working directory.
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
