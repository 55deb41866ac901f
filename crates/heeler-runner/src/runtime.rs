//! One way of running an agent, without IO.
//!
//! A [`Runtime`] is a protocol state machine: lines of the agent and wishes of people go in,
//! [`Step`]s come out, and the one loop of this crate does what they say. A runtime must not read,
//! write, wait or look at a clock. Start at [`Runtime`].

use heeler_model::message::Message;
use heeler_model::run::{Answer, SessionStart};
use rustix::process::Signal;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::process::Launch;

/// One way of running an agent.
pub(crate) trait Runtime {
    /// Says what to start. Asked once for each attempt, before [`Runtime::begin`].
    fn launch(&self, session: &SessionStart) -> Launch;
    /// Says what to send first: the prompt, whose row has this `uuid`. Asked once for each attempt;
    /// everything known of an earlier attempt is forgotten.
    fn begin(&mut self, uuid: Uuid) -> Vec<Step>;
    /// Takes one line of the agent's standard output, without its newline.
    fn line(&mut self, line: &[u8]) -> Vec<Step>;
    /// Says something more to the agent; `uuid` is the one of its row. No steps: it cannot.
    fn say(&mut self, uuid: Uuid, text: &str) -> Vec<Step>;
    /// Hands over what was decided about [`Step::Ask`].
    fn answer(&mut self, ask: &str, answer: &Answer) -> Vec<Step>;
    /// Asks the agent to stop what it does and to end.
    fn interrupt(&mut self) -> Vec<Step>;
    /// Hands over the reply to [`Step::Mcp`].
    fn mcp_reply(&mut self, call: &str, reply: Json) -> Vec<Step>;
    /// Says what is still to be recorded of an agent that exited and whose output was read to its
    /// end. `code` is none when a signal ended it.
    fn exited(&mut self, code: Option<i32>) -> Vec<Step> {
        let _ = code;
        Vec::new()
    }
}

/// What the loop does for a runtime.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// One whole line for the agent's standard input, with its newline.
    Write(Vec<u8>),
    /// Nothing more will be said: the agent's standard input is closed once all is written.
    CloseInput,
    /// A signal to the agent's process.
    Signal(Signal),
    /// Recorded, tallied, told to subscribers.
    Message(Message),
    /// A person is asked; denied at once when nobody attends.
    Ask {
        /// Names it, in its file and in the answer. Free text of the agent: the loop checks it.
        id: String,
        /// What kind of answer it wants.
        kind: AskKind,
        /// The tool that asks.
        tool: String,
        /// What it wants to do, or asks.
        input: Json,
    },
    /// The agent does not want to know any more.
    Withdraw {
        /// The id given with [`Step::Ask`].
        ask: String,
    },
    /// A JSON-RPC message for an injected MCP server.
    Mcp {
        /// Names the call in [`Runtime::mcp_reply`].
        call: String,
        /// The server.
        server: String,
        /// The message.
        message: Json,
    },
    /// The turn ended and nothing is queued or runs in the background: the run may end.
    Done,
}

/// What kind of answer an agent wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskKind {
    /// May it?
    Permission,
    /// Which?
    Question,
}

impl AskKind {
    /// Returns the word for it in `asks/<id>.json`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AskKind::Permission => "permission",
            AskKind::Question => "question",
        }
    }
}
