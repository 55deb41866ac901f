//! One line of a conversation, in the shape that agents-fleet documents, with what we add beside it.

use heeler_model::JobId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use uuid::Uuid;

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryRole {
    /// The person.
    User,
    /// The agent.
    Assistant,
    /// The program.
    System,
    /// A tool that the agent used.
    Tool,
    /// Somebody whom another program knows.
    #[serde(untagged)]
    Other(String),
}

/// Which row of a job an entry was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntrySource {
    /// The job.
    pub job: JobId,
    /// The row's number in the job's log, from zero.
    pub row: u64,
}

/// One line of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationEntry {
    /// Who speaks.
    pub role: EntryRole,
    /// What is said: text, or whatever another program has put there.
    #[serde(default, skip_serializing_if = "Json::is_null")]
    pub content: Json,
    /// The tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the tool was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Json>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The turn that a person's words began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Uuid>,
    /// Where it comes from.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub source: Option<EntrySource>,
    /// Names the call, in the entries of a tool and of what it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// What we do not know.
    #[serde(flatten)]
    pub other: Map<String, Json>,
}

impl ConversationEntry {
    /// Makes an entry.
    pub fn new(role: EntryRole, content: impl Into<String>, at: Timestamp) -> ConversationEntry {
        ConversationEntry {
            role,
            content: Json::String(content.into()),
            name: None,
            args: None,
            at: Some(at),
            turn: None,
            source: None,
            call: None,
            other: Map::new(),
        }
    }

    /// Returns what is said, as text.
    pub fn text(&self) -> String {
        match &self.content {
            Json::String(text) => text.clone(),
            Json::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// Says whether it counts as a message: what a person or the agent said.
    pub fn is_message(&self) -> bool {
        matches!(self.role, EntryRole::User | EntryRole::Assistant)
    }
}
