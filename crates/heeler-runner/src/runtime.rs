//! The runtime interface: one way of executing an agent, without IO.
//!
//! An [`AgentRuntime`] is a protocol state machine: agent output and requests of people go in,
//! [`RuntimeEffect`]s come out, and the event loop performs them. A runtime must not read, write,
//! wait or look at a clock. Start at [`AgentRuntime`].

use heeler_model::message::AgentMessage;
use heeler_model::permission_grant::PermissionGrant;
use heeler_model::run::{QuestionAnswer, SessionStart};
use rustix::process::Signal;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::client_tools::{ClientToolReply, ClientToolRequest};
use crate::json_rpc::RpcId;
use crate::process::LaunchSpec;

/// Protocol state machine of one way to execute an agent.
pub(crate) trait AgentRuntime {
    /// Returns the program to start. Called once per attempt, before [`AgentRuntime::begin`].
    fn launch_spec(&mut self, session: &SessionStart) -> LaunchSpec;
    /// Returns the effects that send the prompt; the prompt's row has this `uuid`. Called once per
    /// attempt; all state of an earlier attempt is reset.
    fn begin(&mut self, uuid: Uuid) -> Vec<RuntimeEffect>;
    /// Handles one line of the agent's standard output, without its newline.
    fn handle_line(&mut self, line: &[u8]) -> Vec<RuntimeEffect>;
    /// Handles a line that is too long to be read. Its beginning is in a file of the run.
    fn handle_oversized_line(&mut self) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Returns the effects of lines that were held back. Called when no further line is available.
    fn flush_lines(&mut self) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Returns true if the agent's standard error is recorded in rows for people to read.
    fn records_stderr(&self) -> bool {
        false
    }
    /// Sends a further message to the agent; `uuid` is the ID of its row. `None` if the agent
    /// accepts no more messages.
    fn send_message(&mut self, _uuid: Uuid, _text: &str) -> Option<Vec<RuntimeEffect>> {
        None
    }
    /// Returns true if a person who allows a tool call may change its input.
    fn accepts_changed_input(&self) -> bool {
        true
    }
    /// Delivers the answer to [`RuntimeEffect::Ask`].
    fn deliver_answer(&mut self, _ask: &str, _answer: &QuestionAnswer) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Asks the agent to stop its current work and to end.
    fn interrupt(&mut self) -> Vec<RuntimeEffect>;
    /// Delivers the reply to [`RuntimeEffect::Mcp`].
    fn deliver_mcp_reply(&mut self, _call: &str, _reply: Json) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Delivers the result of [`RuntimeEffect::ClientTool`].
    fn deliver_client_reply(
        &mut self,
        _call: &RpcId,
        _reply: ClientToolReply,
    ) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Returns true if the agent has ended its turn in a state in which its process can take the next
    /// one of the conversation.
    fn can_stay(&self) -> bool {
        false
    }
    /// Handles a line between two turns. Returns false if it is not one of an agent that is idle.
    fn handle_idle_line(&mut self, _line: &[u8]) -> bool {
        false
    }
    /// Returns the permissions that people gave the agent's process, besides those of its start.
    fn session_rules(&self) -> &[String] {
        &[]
    }
    /// Returns the effects that begin the next turn in the process of an earlier one; the prompt's
    /// row has this `uuid`.
    fn begin_next_turn(&mut self, _uuid: Uuid, _turn: &NextTurn) -> Vec<RuntimeEffect> {
        Vec::new()
    }
    /// Returns true while the agent opens its session, which it must do within a time limit.
    fn is_opening(&self) -> bool {
        false
    }
    /// Returns true while the agent waits for a tool: its silence is not a stall.
    fn waits_for_tool(&self) -> bool {
        false
    }
    /// Returns the final effects after the agent ended and its output was read to its end. `code` is
    /// `None` if a signal killed it.
    fn handle_exit(&mut self, _code: Option<i32>) -> Vec<RuntimeEffect> {
        Vec::new()
    }
}

/// Turn of a conversation that begins in the process of an earlier one.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct NextTurn {
    pub(crate) prompt: String,
    /// Permission mode to set; `None` leaves it as it is.
    pub(crate) permission_mode: Option<String>,
    /// Model to set; `None` leaves it as it is.
    pub(crate) model: Option<String>,
}

/// Effect that the event loop performs for a runtime.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RuntimeEffect {
    /// Write one whole line, with its newline, to the agent's standard input.
    Write(Vec<u8>),
    /// Close the agent's standard input once everything is written.
    CloseInput,
    /// Send a signal to the agent's process.
    Signal(Signal),
    /// Record the message, count its usage and cost, and publish it to subscribers.
    Message(AgentMessage),
    /// Ask a person; denied at once if the run is unattended.
    Ask {
        /// ID of the question in its file and in the answer. Untrusted text of the agent: the event
        /// loop validates it.
        id: String,
        /// Kind of answer expected.
        kind: AgentQuestionKind,
        /// Tool that asks.
        tool: String,
        /// Input of the tool call, or the question.
        input: Json,
        /// Permission that a person may give beyond this request.
        grant: Option<PermissionGrant>,
    },
    /// Withdraw a question of the agent.
    Withdraw {
        /// ID given with [`RuntimeEffect::Ask`].
        ask: String,
    },
    /// Send a JSON-RPC message to an injected MCP server.
    Mcp {
        /// ID of the call in [`AgentRuntime::deliver_mcp_reply`].
        call: String,
        server: String,
        message: Json,
    },
    /// Perform a service of the client.
    ClientTool {
        /// ID of the agent's request, for [`AgentRuntime::deliver_client_reply`].
        call: RpcId,
        request: ClientToolRequest,
    },
    /// The turn ended and nothing is queued or running in the background: the run may end.
    Done,
}

/// Kind of answer that an agent expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentQuestionKind {
    /// Allow or deny a tool call.
    Permission,
    /// Choose an answer.
    Question,
}

impl AgentQuestionKind {
    /// Returns the value used in `asks/<id>.json`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AgentQuestionKind::Permission => "permission",
            AgentQuestionKind::Question => "question",
        }
    }
}
