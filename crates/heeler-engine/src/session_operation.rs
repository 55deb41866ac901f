//! The operations on sessions, as commands name them, and their replies.
//!
//! Start at [`SessionOperation`].

use camino::Utf8PathBuf;
use heeler_model::{AgentSessionId, SessionId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

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
    /// Adopt a session that was created with an agent program outside Heeler.
    Adopt {
        /// Claude's ID of the session or a unique prefix; `codex:ID`, `copilot:ID` and so on for a
        /// session of another program.
        id: String,
        /// Agent to assign the session to.
        agent: String,
        /// Directory outside of the fleet's working directories to which a person has agreed. The
        /// file of the session names it, and other agents of the same user can write that file.
        #[serde(default)]
        directory: Option<Utf8PathBuf>,
    },
    /// Import an exported session.
    Import {
        /// The session bundle.
        file: Utf8PathBuf,
        /// Agent to assign the session to. Default: the agent with the same name as at the export.
        agent: Option<String>,
    },
    /// Move the files of a session to another host.
    Move {
        session: SessionId,
        /// Name of the host.
        to: String,
    },
    /// Give up the move of a session, which stays where it is.
    CancelMove { session: SessionId },
    /// Move sessions to the trash that have expired or ended.
    Cleanup {
        /// Only sessions that were last used before this time.
        before: Timestamp,
    },
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
    /// The agent program has no native session of it here, so a fork gives its messages as text.
    #[serde(default)]
    pub as_text: bool,
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
    /// The agent cannot fork this session itself, so its first prompt contains the conversation as
    /// text.
    #[serde(default)]
    pub as_text: bool,
}
