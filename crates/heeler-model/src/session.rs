//! A session: the conversation that one or more jobs continue.

use camino::Utf8PathBuf;
use jiff::Timestamp;

use crate::words::words;
use crate::{AgentSessionId, SessionId};

words! {
    /// How context is kept between jobs.
    pub enum SessionMode ("session mode") {
        /// Each job starts with an empty conversation.
        FreshPerJob = "fresh_per_job",
        /// Jobs continue one conversation.
        Persistent = "persistent",
        /// Each chat channel has a conversation of its own.
        PerChannel = "per_channel",
    }
}

words! {
    /// Who approves what the agent does.
    pub enum Approvals ("approvals mode") {
        /// Nobody: the agent runs by itself.
        Autonomous = "autonomous",
        /// A person takes part.
        Interactive = "interactive",
        /// A person approves each action.
        Review = "review",
    }
}

words! {
    /// Where a session is in its life.
    pub enum SessionStatus ("session status") {
        /// Made, not used yet.
        Created = "created",
        /// An agent is at it.
        Active = "active",
        /// At rest, ready to resume.
        Paused = "paused",
        /// Ended.
        Completed = "completed",
        /// Not used for too long.
        Expired = "expired",
    }
}

/// A session and what is known of it without reading its log.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Our id.
    pub id: SessionId,
    /// The agent's own id, once it has one; it names the event log.
    pub agent_session_id: Option<AgentSessionId>,
    /// The agent it belongs to.
    pub agent: String,
    /// How context is kept.
    pub mode: SessionMode,
    /// Who approves.
    pub approvals: Approvals,
    /// Where it is.
    pub status: SessionStatus,
    /// The chat channel, for [`SessionMode::PerChannel`].
    pub channel_id: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used.
    pub last_active_at: Timestamp,
    /// User and assistant messages so far.
    pub message_count: i64,
    /// A rough size of its context.
    pub token_estimate: i64,
    /// How many jobs ran in it.
    pub job_count: i64,
    /// Where its agent works; a session does not move.
    pub working_directory: Option<Utf8PathBuf>,
    /// The runtime it was made with: `sdk`, `cli`, …
    pub runtime: String,
    /// Whether it was made in a container.
    pub docker_enabled: bool,
    /// The session it was forked from.
    pub parent: Option<SessionId>,
    /// The message it was forked at.
    pub forked_at_message: Option<i64>,
    /// Its event log: relative to the state directory, or absolute when it lives elsewhere.
    pub log_path: Option<Utf8PathBuf>,
    /// Where the record came from, when it was imported.
    pub origin: Option<String>,
    /// Grows by one with each change.
    pub version: i64,
}
