//! What an agent said, in the one form that all runtimes share.
//!
//! [`parse_line`] reads a line of Claude's stream (`sdk` and `cli`; the scripted agent speaks the
//! same), loosely and totally: whatever the bytes are, a [`AgentMessage`] comes of them. It knows
//! nothing of rows and judges nothing; a runtime sees control lines before they get here. Start at
//! [`MessageBody`].

mod parse;
mod redact;

use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

pub use parse::{
    BLOCKS_MAX, ID_BYTES_MAX, NESTING_MAX, ROW_VALUES_MAX, VALUES_MAX, parse_line, parse_row,
};

/// How people are told of a turn that was aborted.
pub(crate) const INTERRUPTED_TEXT: &str = "the turn was interrupted";

/// One thing that an agent said.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentMessage {
    /// Its id, by which the agent's own session file knows it too.
    pub uuid: Option<Uuid>,
    /// The session as the agent names it.
    pub session: Option<String>,
    /// The tool call that a sub-agent works for, when a sub-agent said it.
    pub parent_tool_use_id: Option<String>,
    /// What was said.
    pub body: MessageBody,
    /// Everything else of the line, as it came.
    pub fields: Map<String, Json>,
}

/// What was said.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageBody {
    /// A turn begins (`system/init`).
    Init(TurnInit),
    /// The model speaks or calls tools.
    Assistant(AssistantMessage),
    /// Tool results, or something that the model was told.
    User(UserMessage),
    /// A piece of text that is still being said.
    Delta {
        /// The piece.
        text: String,
    },
    /// A turn ended.
    Result(Box<TurnResult>),
    /// A request to the API failed and is tried again.
    Retry(ApiRetry),
    /// What the API says of its limits.
    RateLimit(RateLimit),
    /// A sub-agent or background command (`system/task_*`).
    Task(SubagentTask),
    /// Which background tasks run now.
    BackgroundTasks {
        /// Their ids.
        running: Vec<String>,
    },
    /// What became of a message that was sent with an id.
    CommandLifecycle {
        /// The id that was sent.
        command: String,
        /// `queued`, `started`, `completed`, `cancelled`.
        state: String,
    },
    /// Any other event; its fields are in [`AgentMessage::row_fields`].
    System {
        /// What kind.
        subtype: String,
    },
    /// The agent gave up (`error`).
    Error {
        /// In words.
        message: String,
        /// The agent's name for it.
        code: Option<String>,
    },
    /// A message of a kind that we do not know.
    Unknown {
        /// Its kind, as far as it has one.
        kind: String,
        /// The line.
        text: String,
    },
    /// A line that is no message.
    Malformed {
        /// What is wrong with it.
        reason: String,
        /// The line.
        text: String,
    },
    /// Nothing that anyone needs to see again: a status, a count, the frame of a stream.
    Ignored {
        /// What kind.
        kind: String,
    },
}

/// How a turn begins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnInit {
    /// The agent's version.
    pub version: Option<String>,
    /// The model.
    pub model: Option<String>,
}

/// What the model said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AssistantMessage {
    /// The API's message: `id`, `model`, `content`, `usage`, … as it came.
    pub message: Map<String, Json>,
    /// Set when this is not the model but a report that the API failed.
    pub api_error: Option<ApiError>,
}

/// That the API failed, as the agent tells it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiError {
    /// The agent's name for it: `authentication_failed`, `rate_limit`, `server_error`, …
    pub code: Option<String>,
    /// The API's name for it: `overloaded_error`, …
    pub kind: Option<String>,
    /// The HTTP status.
    pub status: Option<u64>,
}

/// What the model was told.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UserMessage {
    /// The API's message: `role` and `content`, as it came.
    pub message: Map<String, Json>,
    /// It only repeats what we sent.
    pub replay: bool,
    /// The agent made it up.
    pub synthetic: bool,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TurnResult {
    /// `success`, `error_max_turns`, …; says nothing about success.
    pub subtype: String,
    /// Whether it failed: the one thing to judge by.
    pub is_error: bool,
    /// The final text.
    pub text: Option<String>,
    /// What went wrong.
    pub errors: Vec<String>,
    /// The model's own reason for stopping.
    pub stop_reason: Option<String>,
    /// The agent's reason: `completed`, `api_error`, `max_turns`, …
    pub terminal_reason: Option<String>,
    /// The HTTP status, when the API failed.
    pub api_error_status: Option<u64>,
    /// The API's name for its failure.
    pub api_error_type: Option<String>,
    /// Turns taken.
    pub num_turns: Option<i64>,
    /// Messages that wait for a turn of their own.
    pub queued_turns: u64,
}

/// That a request is tried again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiRetry {
    /// Counted from one.
    pub attempt: Option<u64>,
    /// After which attempt it ends.
    pub max_retries: Option<u64>,
    /// After how long it is tried again.
    pub delay_ms: Option<u64>,
    /// The HTTP status; none when the API was not reached.
    pub status: Option<u64>,
    /// The agent's name for what went wrong.
    pub error: Option<String>,
}

/// What the API says of its limits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RateLimit {
    /// `allowed`, `allowed_warning`, `rejected`.
    pub status: Option<String>,
    /// When the limit is lifted, in seconds since 1970.
    pub resets_at: Option<i64>,
}

/// A sub-agent or background command.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubagentTask {
    /// `task_started`, `task_progress`, `task_updated`, `task_notification`.
    pub subtype: String,
    /// Which.
    pub id: String,
    /// `local_agent`, `local_bash`, …
    pub kind: Option<String>,
    /// Whether the turn goes on without waiting for it.
    pub background: bool,
    /// `completed`, `failed`, …
    pub status: Option<String>,
}

impl SubagentTask {
    /// Says whether it has ended, well or not.
    pub fn is_finished(&self) -> bool {
        let over = matches!(
            self.status.as_deref(),
            Some("completed" | "failed" | "stopped" | "killed" | "cancelled")
        );
        over || self.subtype == "task_notification"
    }
}

impl AgentMessage {
    /// Makes a message of an agent that only prints text.
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

    /// Makes a message without anything around its body.
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

/// Returns the text of a message's content: a string as it is, text blocks joined by line breaks.
pub fn content_text(content: &Json) -> String {
    match content {
        Json::String(text) => text.clone(),
        Json::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| match block {
                Json::String(text) => Some(text.as_str()),
                block if block["type"] == "text" => block["text"].as_str(),
                _ => None,
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
