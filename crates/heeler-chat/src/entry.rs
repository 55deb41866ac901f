//! Entry of a conversation, in the format that agents-fleet documents, with additional keys.

use heeler_model::JobId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use uuid::Uuid;

/// Role of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryRole {
    /// The person.
    User,
    /// The agent.
    Assistant,
    /// The program.
    System,
    /// A tool call or its result.
    Tool,
    /// Role of another program.
    #[serde(untagged)]
    Other(String),
}

/// Row of a job from which an entry was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntrySource {
    pub job: JobId,
    /// Number of the row in the job's transcript, from zero.
    pub row: u64,
}

/// Entry of a conversation: one line of the transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationEntry {
    pub role: EntryRole,
    /// Text, or other JSON of another program.
    #[serde(default, skip_serializing_if = "Json::is_null")]
    pub content: Json,
    /// Name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Input of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Json>,
    /// Time of the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// ID of the turn that this message started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Uuid>,
    /// Origin of the entry.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub source: Option<EntrySource>,
    /// ID of the tool call, in the entries of the call and of its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// Unknown keys.
    #[serde(flatten)]
    pub other: Map<String, Json>,
}

impl ConversationEntry {
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

    /// Returns the content as text.
    pub fn text(&self) -> String {
        match &self.content {
            Json::String(text) => text.clone(),
            Json::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// Returns true if it is a message of the person or the agent.
    pub fn is_message(&self) -> bool {
        matches!(self.role, EntryRole::User | EntryRole::Assistant)
    }
}
