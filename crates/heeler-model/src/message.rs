//! Messages of an agent, in the form that all runtimes share.
//!
//! [`parse_line`] reads a line of Claude's stream (runtimes `sdk` and `cli`; the scripted agent
//! prints the same format). Parsing is lenient and total: any bytes yield an [`AgentMessage`]. This
//! module knows nothing of rows and judges no outcome; a runtime handles control lines before they
//! reach it. Start at [`MessageBody`].

mod parse;
mod redact;

use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

pub use parse::{
    BLOCKS_MAX, ID_BYTES_MAX, NESTING_MAX, ROW_VALUES_MAX, VALUES_MAX, message_from_fields,
    parse_line, parse_object, parse_row,
};

/// Text shown to people for an aborted turn.
pub(crate) const INTERRUPTED_TEXT: &str = "the turn was interrupted";

/// One message of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentMessage {
    /// ID, which the native session also uses.
    pub uuid: Option<Uuid>,
    /// Session ID as the agent reports it.
    pub session: Option<String>,
    /// Tool call that a sub-agent works for, if a sub-agent sent the message.
    pub parent_tool_use_id: Option<String>,
    pub body: MessageBody,
    /// All other fields of the line, unchanged.
    pub fields: Map<String, Json>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageBody {
    /// Start of a turn (`system/init`).
    Init(TurnInit),
    /// Text or tool calls of the model.
    Assistant(AssistantMessage),
    /// Tool results, or other input to the model.
    User(UserMessage),
    /// Fragment of a text that is still being generated.
    Delta { text: String },
    /// End of a turn.
    Result(Box<TurnResult>),
    /// A request to the API failed and is retried.
    Retry(ApiRetry),
    /// Report of the API about its limits.
    RateLimit(RateLimit),
    /// Sub-agent or background command (`system/task_*`).
    Task(SubagentTask),
    /// Set of background tasks that are running.
    BackgroundTasks {
        /// Task IDs.
        running: Vec<String>,
    },
    /// State of a message that was sent with an ID.
    CommandLifecycle {
        /// ID that was sent.
        command: String,
        /// `queued`, `started`, `completed`, `cancelled`.
        state: String,
    },
    /// Any other event. Its fields are in [`AgentMessage::fields`].
    System { subtype: String },
    /// The agent gave up (`error`).
    Error {
        message: String,
        /// Agent's error code.
        code: Option<String>,
    },
    /// Message of an unknown type.
    Unknown {
        /// Type, or empty if the line has none.
        kind: String,
        /// Complete line.
        text: String,
    },
    /// Line that is not a message.
    Malformed {
        reason: String,
        /// Complete line.
        text: String,
    },
    /// Message that is never recorded: a status, a count, a stream event.
    Ignored { kind: String },
}

/// Properties reported at the start of a turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnInit {
    /// Version of the agent program.
    pub version: Option<String>,
    pub model: Option<String>,
}

/// Message of the model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AssistantMessage {
    /// API message: `id`, `model`, `content`, `usage`, …, unchanged.
    pub message: Map<String, Json>,
    /// Set if the message reports an API failure instead of model output.
    pub api_error: Option<ApiError>,
}

impl AssistantMessage {
    /// Returns the text blocks of the message, one below the other.
    pub fn text(&self) -> String {
        self.message.get("content").map(content_text).unwrap_or_default()
    }
}

/// API failure, as the agent reports it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiError {
    /// Agent's code: `authentication_failed`, `rate_limit`, `server_error`, …
    pub code: Option<String>,
    /// API's error type: `overloaded_error`, …
    pub kind: Option<String>,
    pub status: Option<u64>,
}

/// Input to the model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UserMessage {
    /// API message: `role` and `content`, unchanged.
    pub message: Map<String, Json>,
    /// True if the agent repeats a message that Heeler sent.
    pub replay: bool,
    /// True if the agent generated the message itself.
    pub synthetic: bool,
}

/// Result of a turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnResult {
    /// `success`, `error_max_turns`, …; does not indicate success.
    pub subtype: String,
    /// True if the turn failed. Judge success by this field only.
    pub is_error: bool,
    /// Final text.
    pub text: Option<String>,
    pub errors: Vec<String>,
    pub stop_reason: Option<String>,
    /// Agent's reason for stopping: `completed`, `api_error`, `max_turns`, …
    pub terminal_reason: Option<String>,
    /// HTTP status, if the API failed.
    pub api_error_status: Option<u64>,
    /// API's error type, if the API failed.
    pub api_error_type: Option<String>,
    pub num_turns: Option<i64>,
    /// Calls that were denied: ID of the call, and tool.
    pub denied_calls: Vec<(String, String)>,
    /// Number of messages that wait for a turn of their own.
    pub queued_turns: u64,
}

/// Retry of an API request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiRetry {
    /// Number of the attempt, from one.
    pub attempt: Option<u64>,
    pub max_retries: Option<u64>,
    /// Delay before the retry.
    pub delay_ms: Option<u64>,
    /// HTTP status. `None` if the API was not reached.
    pub status: Option<u64>,
    /// Agent's error code.
    pub error: Option<String>,
}

/// Report of the API about its limits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RateLimit {
    /// `allowed`, `allowed_warning`, `rejected`.
    pub status: Option<String>,
    /// Time at which the limit resets, in seconds since 1970.
    pub resets_at: Option<i64>,
    /// The account pays for requests beyond the limit.
    pub is_overage: bool,
}

impl RateLimit {
    /// Returns true if the API accepts no further request until the reset.
    pub fn is_used_up(&self) -> bool {
        self.status.as_deref() == Some("rejected") && !self.is_overage
    }
}

/// Sub-agent or background command.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubagentTask {
    /// `task_started`, `task_progress`, `task_updated`, `task_notification`.
    pub subtype: String,
    pub id: String,
    /// `local_agent`, `local_bash`, …
    pub kind: Option<String>,
    /// True if the turn continues without waiting for the task.
    pub background: bool,
    /// `completed`, `failed`, …
    pub status: Option<String>,
}

impl SubagentTask {
    /// Returns true if the task has ended, with or without success.
    pub fn is_finished(&self) -> bool {
        let over = matches!(
            self.status.as_deref(),
            Some("completed" | "failed" | "stopped" | "killed" | "cancelled")
        );
        // A notification is sent only about a task that has ended, whichever status it has.
        over || self.subtype == "task_notification"
    }
}

impl AgentMessage {
    /// Creates a message of an agent that only prints text.
    pub fn from_text(text: &str) -> AgentMessage {
        let Json::Object(message) =
            json!({"role": "assistant", "content": [{"type": "text", "text": text}]})
        else {
            unreachable!("an object literal is an object")
        };
        AgentMessage::from_body(MessageBody::Assistant(AssistantMessage {
            message,
            api_error: None,
        }))
    }

    /// Creates a message with no fields besides its body.
    pub fn from_body(body: MessageBody) -> AgentMessage {
        AgentMessage {
            uuid: None,
            session: None,
            parent_tool_use_id: None,
            body,
            fields: Map::new(),
        }
    }
}

/// Returns the text of a message's content: a string unchanged, text blocks joined by newlines.
pub fn content_text(content: &Json) -> String {
    match content {
        Json::String(text) => text.clone(),
        Json::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| match block {
                Json::String(text) => Some(text.as_str()),
                block if block["type"] == "text" => block["text"].as_str(),
                // Images and tool blocks have no text.
                _ => None,
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
