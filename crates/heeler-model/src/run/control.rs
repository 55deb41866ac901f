//! The control socket: one JSON object a line, both ways.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::result::{AgentQuestion, RunResult};
use crate::{AgentSessionId, JobId, RunId};

/// What a client asks of a runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControlRequest {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// Chosen by the client; the reply carries it.
    pub id: u64,
    /// What to do.
    #[serde(flatten)]
    pub op: ControlOperation,
}

/// What a runner can be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum ControlOperation {
    /// End the run: interrupt, then harder after each grace.
    Cancel {
        /// Kill at once.
        now: bool,
        /// Who asks, for the record.
        by: String,
    },
    /// Say something more to the agent.
    Message {
        /// What.
        text: String,
    },
    /// Answer what the agent asked.
    Answer {
        /// [`AgentQuestion::id`].
        ask: String,
        /// The answer.
        answer: QuestionAnswer,
        /// Who answers, for the record and for those who come later.
        by: String,
    },
    /// Tell what the run does.
    Status,
    /// Tell everything that happens from now on.
    Subscribe,
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "behavior")]
pub enum QuestionAnswer {
    /// Do it, perhaps with another input. Answers to a question are part of the input.
    Allow {
        /// Replaces what the agent wanted to do.
        input: Option<Json>,
    },
    /// Do not.
    Deny {
        /// Why, for the agent.
        message: String,
        /// End the turn too.
        interrupt: bool,
    },
}

/// What a runner replies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControlReply {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// [`ControlRequest::id`].
    pub id: u64,
    /// What came of it.
    #[serde(flatten)]
    pub body: ControlReplyBody,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub enum ControlReplyBody {
    /// It is done, or under way.
    Done,
    /// What the run does.
    Status(RunState),
    /// It cannot be done.
    Refused {
        /// Why, and what to do instead.
        reason: String,
    },
}

/// What a run does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// The run.
    pub run: RunId,
    /// The job.
    pub job: JobId,
    /// The session.
    pub session: AgentSessionId,
    /// The agent's process.
    pub agent_pid: Option<u32>,
    /// Since when.
    pub started_at: Timestamp,
    /// When the agent last said something.
    pub last_line_at: Option<Timestamp>,
    /// How many rows the job log got.
    pub rows: u64,
    /// What it has cost so far, when the agent says.
    pub cost_usd: Option<f64>,
    /// What waits for a person.
    pub asks: Vec<AgentQuestion>,
    /// Whether it is being ended.
    pub cancelling: bool,
    /// Why the disk does not take its rows; it waits for that, and the agent with it.
    #[serde(default)]
    pub disk_trouble: Option<String>,
}

/// What a subscriber is told. Rows are on disk before they are told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ControlEvent {
    /// A row of the job log.
    Row {
        /// Its number in the job log, from zero.
        at: u64,
        /// The row.
        row: Json,
    },
    /// A piece of text that is still being said; the row with the whole text follows.
    Delta {
        /// The piece.
        text: String,
        /// How many bytes of the text were told before it; older runners do not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
    },
    /// A person is asked.
    Asked {
        /// What.
        ask: AgentQuestion,
    },
    /// A question was answered, denied or withdrawn.
    Settled {
        /// [`AgentQuestion::id`].
        ask: String,
    },
    /// The disk does not take rows, so the run waits; or it takes them again.
    Disk {
        /// Why not; none when it does again.
        trouble: Option<String>,
    },
    /// This subscriber was too slow: rows were left out here; read them from the log.
    Lagged,
    /// The run has ended.
    Ended {
        /// How.
        result: Box<RunResult>,
    },
}

/// How long the name of a control socket is. Its folder leaves room for it in a socket address.
pub const SOCKET_NAME_LEN: usize = SOCKET_ID_LEN + SOCKET_ENDING.len();
const SOCKET_ID_LEN: usize = 12;
const SOCKET_ENDING: &str = ".sock";

/// Returns the name of a run's control socket: the last digits of the run's id, which are random,
/// where the first ones are the time.
pub fn socket_name(run: RunId) -> String {
    let run = run.to_string();
    format!("{}{SOCKET_ENDING}", &run[run.len() - SOCKET_ID_LEN..])
}
