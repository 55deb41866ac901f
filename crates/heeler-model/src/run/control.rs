//! Control socket of a runner: one JSON object per line, in both directions.
//!
//! Start at [`ControlRequest`] and [`ControlEvent`].

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use uuid::Uuid;

use super::result::{AgentQuestion, RunResult};
use crate::job_row::JobRow;
use crate::{AgentSessionId, JobId, RunId};

/// Request of a client to a runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControlRequest {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// Chosen by the client and repeated in the reply.
    pub id: u64,
    #[serde(flatten)]
    pub op: ControlOperation,
}

/// Operation of a runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum ControlOperation {
    /// Ends the run: first an interrupt, then harsher means after each grace period.
    Cancel {
        /// Kills the agent immediately.
        now: bool,
        /// Caller, for the record.
        by: String,
    },
    /// Sends another message to the agent.
    Message {
        text: String,
        /// Identifies the message among those to the run, and becomes the ID of its row. A message
        /// with a known ID is not sent again: the reply is that of the first time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message_id: Option<Uuid>,
    },
    /// Answers a question of the agent.
    Answer {
        /// [`AgentQuestion::id`].
        ask: String,
        answer: QuestionAnswer,
        /// Caller, for the record and for later viewers.
        by: String,
        /// Hash of what the caller was shown; see [`AgentQuestion::shown_hash`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<String>,
    },
    /// Returns the state of the run.
    Status,
    /// Sends every event from now on.
    Subscribe,
}

impl ControlOperation {
    /// Returns a message without an ID: it is sent each time.
    pub fn message(text: String) -> ControlOperation {
        ControlOperation::Message { text, message_id: None }
    }
}

/// Answer of a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "behavior")]
pub enum QuestionAnswer {
    /// Consent, optionally with another input. The answers to a question are part of the input.
    Allow {
        /// Replacement for the requested tool input.
        input: Option<Json>,
    },
    /// Consent to this request and to all that [`AgentQuestion::grant`] covers, until the agent's
    /// process ends.
    AllowSession,
    /// Consent to this request and to the rules of [`AgentQuestion::grant`], in this process and in
    /// all later runs of the agent.
    AllowAlways,
    /// Refusal of the request.
    Deny {
        /// Reason, for the agent.
        message: String,
        /// Also ends the turn.
        interrupt: bool,
    },
}

/// Reply of a runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControlReply {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// [`ControlRequest::id`].
    pub id: u64,
    #[serde(flatten)]
    pub body: ControlReplyBody,
}

/// Content of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub enum ControlReplyBody {
    /// The operation is done or in progress.
    Done,
    /// State of the run.
    Status(RunState),
    /// The operation is not possible.
    Refused {
        /// Reason, and an alternative.
        reason: String,
    },
}

/// State of a run in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    pub run: RunId,
    pub job: JobId,
    pub session: AgentSessionId,
    pub agent_pid: Option<u32>,
    pub started_at: Timestamp,
    /// Time of the agent's last line.
    pub last_line_at: Option<Timestamp>,
    /// Number of rows written to the job transcript.
    pub rows: u64,
    /// Cost until now, if the agent reports it.
    pub cost_usd: Option<f64>,
    /// Open questions to people.
    pub asks: Vec<AgentQuestion>,
    /// True while the run is being ended.
    pub cancelling: bool,
    /// Reason why rows cannot be written. The run and its agent wait until writing succeeds.
    #[serde(default)]
    pub disk_trouble: Option<String>,
}

/// Event for a subscriber. A row is on disk before its event is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ControlEvent {
    /// Row of the job transcript.
    Row {
        /// Row number in the job transcript, from zero.
        at: u64,
        row: JobRow,
    },
    /// Fragment of a text that is still being generated. The row with the whole text follows.
    Delta {
        text: String,
        /// Number of bytes of the text before this fragment. Older runners omit it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
    },
    /// A question to a person was opened.
    Asked { ask: AgentQuestion },
    /// A question was answered, denied or withdrawn.
    Settled {
        /// [`AgentQuestion::id`].
        ask: String,
    },
    /// Writing rows began to fail, so the run waits; or it works again.
    Disk {
        /// Reason, or `None` if writing works again.
        trouble: Option<String>,
    },
    /// The subscriber was too slow, and rows were omitted here. Read them from the transcript.
    Lagged,
    /// The run has ended.
    Ended { result: Box<RunResult> },
}

/// Length of a control socket's name. Its directory must leave room for it in a socket address.
pub const SOCKET_NAME_LEN: usize = SOCKET_ID_LEN + SOCKET_ENDING.len();
const SOCKET_ID_LEN: usize = 12;
const SOCKET_ENDING: &str = ".sock";

/// Returns the name of a run's control socket: the last digits of the run ID. They are random,
/// whereas the first digits encode the time.
pub fn socket_name(run: RunId) -> String {
    let run = run.to_string();
    // The name is short because socket addresses are limited to about a hundred bytes.
    format!("{}{SOCKET_ENDING}", &run[run.len() - SOCKET_ID_LEN..])
}
