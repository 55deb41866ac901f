//! Messages into rows: what the session log and the job log get.
//!
//! [`Recorder`] turns each message into at most one row of the session log (Claude's envelope) and
//! derives the rows of the job log from that row, so that [`Recorder::replay`] can complete a job
//! log from the session log after a crash. It writes nothing and reads no clock.

use camino::Utf8PathBuf;
use jiff::Timestamp;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::AgentSessionId;
use crate::message::Message;
use crate::run::RunError;

/// What one event adds to the logs, in the order in which it is to be written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// For the session log; written first.
    pub session: Vec<Json>,
    /// For the job log.
    pub job: Vec<Json>,
    /// For live subscribers only.
    pub deltas: Vec<String>,
}

/// Turns what happens in one session into rows.
#[derive(Debug, Clone)]
pub struct Recorder {
    messages: u64,
    tokens: u64,
}

impl Recorder {
    /// Starts at the end of a session's log; `last` is the last user or assistant row in it.
    pub fn new(_session: AgentSessionId, _cwd: Utf8PathBuf, _last: Option<Uuid>) -> Recorder {
        Recorder { messages: 0, tokens: 0 }
    }

    /// Records what the agent is asked.
    pub fn prompt(&mut self, _uuid: Uuid, _text: &str, _now: Timestamp) -> Rows {
        Rows::default()
    }

    /// Records what the agent said.
    pub fn message(&mut self, _message: Message, _now: Timestamp) -> Rows {
        Rows::default()
    }

    /// Records something of our own: a decision, a warning, that a person was asked or answered.
    pub fn note(&mut self, _subtype: &str, _content: &str, _now: Timestamp) -> Rows {
        Rows::default()
    }

    /// Records how the run failed.
    pub fn failure(&mut self, _error: &RunError, _now: Timestamp) -> Rows {
        Rows::default()
    }

    /// Takes a row of the session log as if it had just been recorded, and returns its job rows.
    pub fn replay(&mut self, _row: &Json) -> Vec<Json> {
        Vec::new()
    }

    /// Returns how many user and assistant messages were recorded or replayed.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns a rough size of the context in tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }
}
