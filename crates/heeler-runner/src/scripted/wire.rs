//! The player's standard output: lines are gathered and written when the player is about to wait.
//!
//! What is said often has a type here; all else is plain JSON.

use std::io::Write;

use heeler_model::AgentSessionId;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use uuid::Uuid;

/// Gathered lines are written at the latest when they are this long.
const GATHERED_BYTES_MAX: usize = 64 * 1024;

pub(super) struct Wire {
    out: Box<dyn Write>,
    gathered: Vec<u8>,
    /// Nobody reads any more.
    closed: bool,
}

impl Wire {
    pub(super) fn new(out: Box<dyn Write>) -> Wire {
        Wire { out, gathered: Vec::new(), closed: false }
    }

    pub(super) fn line(&mut self, line: &impl Serialize) {
        serde_json::to_writer(&mut self.gathered, line).expect("JSON is written to memory");
        self.bytes(b"\n");
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= GATHERED_BYTES_MAX {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        if self.closed {
            self.gathered.clear();
            return;
        }
        let written = self.out.write_all(&self.gathered).and_then(|()| self.out.flush());
        self.closed = written.is_err();
        self.gathered.clear();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// A message of the conversation.
#[derive(Serialize)]
pub(super) struct Line<'l, M> {
    pub(super) r#type: &'l str,
    pub(super) message: &'l M,
    pub(super) parent_tool_use_id: Option<&'l str>,
    pub(super) session_id: &'l AgentSessionId,
    pub(super) uuid: Uuid,
    pub(super) timestamp: &'l str,
    #[serde(flatten)]
    pub(super) more: Option<&'l Map<String, Json>>,
}

/// What an assistant message holds.
#[derive(Serialize)]
pub(super) struct Assistant<'a> {
    pub(super) id: &'a str,
    pub(super) r#type: &'static str,
    pub(super) role: &'static str,
    pub(super) model: &'a str,
    pub(super) content: &'a [Json],
    pub(super) stop_reason: Option<&'a str>,
    pub(super) stop_sequence: Option<&'a str>,
    pub(super) usage: Tokens,
}

impl<'a> Assistant<'a> {
    pub(super) fn new(id: &'a str, model: &'a str, content: &'a [Json]) -> Assistant<'a> {
        Assistant {
            id,
            r#type: "message",
            role: "assistant",
            model,
            content,
            stop_reason: None,
            stop_sequence: None,
            usage: Tokens::default(),
        }
    }
}

/// What a user message holds.
#[derive(Serialize)]
pub(super) struct User {
    pub(super) role: &'static str,
    pub(super) content: Json,
}

impl User {
    pub(super) fn new(content: Json) -> User {
        User { role: "user", content }
    }
}

/// A count of tokens as the API writes it.
#[derive(Serialize, Default, Clone, Copy)]
pub(super) struct Tokens {
    pub(super) input_tokens: u64,
    pub(super) cache_creation_input_tokens: u64,
    pub(super) cache_read_input_tokens: u64,
    pub(super) output_tokens: u64,
}
