//! Standard output of the scripted agent: lines are buffered and written when the agent is about to
//! wait.
//!
//! Frequent messages have a type here; the others are plain JSON.

use std::io::Write;

use heeler_model::AgentSessionId;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use uuid::Uuid;

/// Name used where the stream has a model.
pub(super) const MODEL: &str = "scripted";

/// Size at which buffered lines are written at the latest.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

pub(super) struct ScriptedOutput {
    out: Box<dyn Write>,
    buffer: Vec<u8>,
    /// The reader is gone.
    closed: bool,
}

impl ScriptedOutput {
    pub(super) fn new(out: Box<dyn Write>) -> ScriptedOutput {
        ScriptedOutput { out, buffer: Vec::new(), closed: false }
    }

    pub(super) fn write_line(&mut self, line: &impl Serialize) {
        serde_json::to_writer(&mut self.buffer, line).expect("JSON is written to memory");
        self.write_bytes(b"\n");
    }

    pub(super) fn write_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES_MAX {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        // Without a reader nothing can be delivered, and the buffer must not grow.
        if self.closed {
            self.buffer.clear();
            return;
        }
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.closed = written.is_err();
        self.buffer.clear();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Message of the conversation.
#[derive(Serialize)]
pub(super) struct ScriptedStreamLine<'l, M> {
    pub(super) r#type: &'l str,
    pub(super) message: &'l M,
    pub(super) parent_tool_use_id: Option<&'l str>,
    pub(super) session_id: &'l AgentSessionId,
    pub(super) uuid: Uuid,
    pub(super) timestamp: &'l str,
    #[serde(flatten)]
    pub(super) more: Option<&'l Map<String, Json>>,
}

/// Content of an assistant message.
#[derive(Serialize)]
pub(super) struct ScriptedAssistantMessage<'a> {
    pub(super) id: &'a str,
    pub(super) r#type: &'static str,
    pub(super) role: &'static str,
    pub(super) model: &'a str,
    pub(super) content: &'a [Json],
    pub(super) stop_reason: Option<&'a str>,
    pub(super) stop_sequence: Option<&'a str>,
    pub(super) usage: ScriptedTokenUsage,
}

impl<'a> ScriptedAssistantMessage<'a> {
    pub(super) fn new(
        id: &'a str,
        model: &'a str,
        content: &'a [Json],
    ) -> ScriptedAssistantMessage<'a> {
        ScriptedAssistantMessage {
            id,
            r#type: "message",
            role: "assistant",
            model,
            content,
            stop_reason: None,
            stop_sequence: None,
            usage: ScriptedTokenUsage::default(),
        }
    }
}

/// Content of a user message.
#[derive(Serialize)]
pub(super) struct ScriptedUserMessage {
    pub(super) role: &'static str,
    pub(super) content: Json,
}

impl ScriptedUserMessage {
    pub(super) fn new(content: Json) -> ScriptedUserMessage {
        ScriptedUserMessage { role: "user", content }
    }
}

/// Token usage in the format of the API.
#[derive(Serialize, Default, Clone, Copy)]
pub(super) struct ScriptedTokenUsage {
    pub(super) input_tokens: u64,
    pub(super) cache_creation_input_tokens: u64,
    pub(super) cache_read_input_tokens: u64,
    pub(super) output_tokens: u64,
}

/// Adds the keys of one object to another.
pub(super) fn merge_objects(line: &mut Json, more: Json) {
    if let (Some(line), Json::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
}

/// Writes a line to the standard error; errors are ignored, because they could not be reported.
pub(super) fn write_stderr(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
