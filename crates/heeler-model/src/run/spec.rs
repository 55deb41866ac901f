//! What a run is to do, as far as a file may know it: names and paths, no secret, no prompt.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::config::RuntimeType;
use crate::{AgentName, AgentSessionId, JobId, NativeSessionPosition, RunId, TriggerType};

/// `spec.json`: what a run is to do. Written once by the engine, before the runner starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// The run; also the name of its folder.
    pub run: RunId,
    /// The job that it is an attempt at.
    pub job: JobId,
    /// Counted from one.
    pub attempt: u32,
    /// The agent.
    pub agent: AgentName,
    /// What started the job.
    pub trigger: TriggerType,
    /// What runs the agent.
    pub runtime: RuntimeType,
    /// Where the agent works: a real path.
    pub working_directory: Utf8PathBuf,
    /// The job's rows.
    pub job_log: Utf8PathBuf,
    /// The folder of session logs (`agent-sessions/projects`).
    pub projects: Utf8PathBuf,
    /// Readable text of the rows, when it is asked for.
    pub output_file: Option<Utf8PathBuf>,
    /// The user's folder, one for all fleets: session locks are in `locks/` of it.
    pub home: Utf8PathBuf,
    /// The folder in which the control socket is bound; short enough for a socket address.
    pub sockets: Utf8PathBuf,
    /// The conversation that it continues or begins.
    pub session: SessionPlan,
    /// When it is ended.
    pub limits: RunLimits,
    /// Whether somebody can answer what the agent asks.
    pub attendance: QuestionPolicy,
    /// Whether each row is synced before it counts (`durability: event`).
    pub sync_each_row: bool,
    /// The folder of snapshots of work trees, one of which is taken after each turn; none are if left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspaces: Option<Utf8PathBuf>,
    /// Whether the result is to have what the agent said at last, or all that a command printed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_output: bool,
}

/// Which conversation a run continues or begins, and why that one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionPlan {
    /// How it starts.
    pub start: SessionStart,
    /// Why, as a sentence for people; it becomes the first row of the job.
    pub reason: String,
    /// Where the agent's own record ended when we left it; none if we do not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<NativeSessionPosition>,
    /// Whether to go on although somebody else has gone on with it meanwhile. What they said becomes
    /// part of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take_in: bool,
    /// Where its log is, if not where the working directory says: a session's log does not move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Utf8PathBuf>,
}

impl SessionPlan {
    /// A plan that rests on nothing we knew of the conversation.
    pub fn new(start: SessionStart, reason: impl Into<String>) -> SessionPlan {
        SessionPlan { start, reason: reason.into(), own: None, take_in: false, log: None }
    }
}

/// How a run's session starts. Ids are chosen before, so that the lock can be taken before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SessionStart {
    /// A conversation without history.
    Fresh {
        /// Its id.
        id: AgentSessionId,
    },
    /// The next turn of a conversation.
    Resume {
        /// Its id.
        id: AgentSessionId,
    },
    /// A new conversation with the history of another.
    Fork {
        /// The one that stays as it is.
        source: AgentSessionId,
        /// The new one.
        id: AgentSessionId,
        /// The last entry of the source that the new one knows; all of them if left out.
        at: Option<Uuid>,
    },
    /// A new conversation that goes on from one whose context has grown too large: with a summary,
    /// which the agent is asked for, and the last messages.
    Continue {
        /// The one that has grown too large; it stays as it is.
        source: AgentSessionId,
        /// The new one.
        id: AgentSessionId,
        /// How many of the last messages are taken over in full.
        keep: u32,
    },
}

impl SessionStart {
    /// Returns the session that is written to.
    pub fn id(&self) -> &AgentSessionId {
        match self {
            SessionStart::Fresh { id }
            | SessionStart::Resume { id }
            | SessionStart::Fork { id, .. }
            | SessionStart::Continue { id, .. } => id,
        }
    }
}

/// When a run is ended. Durations are in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunLimits {
    /// The whole run.
    pub timeout_ms: Option<u64>,
    /// Without a line from the agent.
    pub stall_timeout_ms: Option<u64>,
    /// Turns.
    pub max_turns: Option<u32>,
    /// US dollars.
    pub budget_usd: Option<f64>,
    /// How long each step of a cancel waits for the next, harder one.
    pub grace_ms: Option<u64>,
}

/// Whether somebody can answer what the agent asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum QuestionPolicy {
    /// Nobody: what needs a person is denied at once and recorded.
    Nobody,
    /// A person, for this long.
    Person {
        /// How long a question waits for its answer.
        timeout_ms: u64,
    },
}
