//! Test helpers for runtimes that speak JSON-RPC: recorded conversations with real agents, and a
//! readable trace of the effects of a runtime.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use heeler_model::message::MessageBody;
use heeler_model::run::QuestionAnswer;
use serde_json::Value as Json;

use crate::runtime::{AgentRuntime, RuntimeEffect};

/// Line of a recording: written to the agent, or by it.
#[derive(Debug, Clone)]
pub(crate) struct RecordedLine {
    pub(crate) is_agents: bool,
    pub(crate) message: Json,
}

impl RecordedLine {
    pub(crate) fn method(&self) -> Option<&str> {
        self.message["method"].as_str()
    }
}

/// Folder of the recordings of a protocol.
pub(crate) fn recordings(protocol: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(protocol)
}

/// Returns the lines of a recording.
pub(crate) fn read_recording(protocol: &str, name: &str) -> Vec<RecordedLine> {
    let text = std::fs::read_to_string(recordings(protocol).join(name)).unwrap();
    let line = |line: &str| {
        let (direction, text) = line.split_once(' ')?;
        let message = serde_json::from_str(text).ok()?;
        Some(RecordedLine { is_agents: direction == "<", message })
    };
    text.lines().filter(|text| !text.starts_with('#')).filter_map(line).collect()
}

/// Returns the names of the recordings of a protocol.
pub(crate) fn recording_names(protocol: &str) -> Vec<String> {
    let files = std::fs::read_dir(recordings(protocol)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".io")).collect();
    names.sort();
    names
}

/// Runtime under test, with the requests that it made and a trace of its effects.
pub(crate) struct RuntimeTrace<'r> {
    pub(crate) runtime: &'r mut dyn AgentRuntime,
    pub(crate) trace: String,
    /// IDs of the runtime's requests without a reply, by method.
    pub(crate) requests: HashMap<String, Json>,
    /// IDs of open questions.
    pub(crate) questions: Vec<String>,
    pub(crate) is_done: bool,
    /// Calls without a result.
    open_calls: Vec<String>,
}

impl<'r> RuntimeTrace<'r> {
    pub(crate) fn new(runtime: &'r mut dyn AgentRuntime) -> RuntimeTrace<'r> {
        RuntimeTrace {
            runtime,
            trace: String::new(),
            requests: HashMap::new(),
            questions: Vec::new(),
            is_done: false,
            open_calls: Vec::new(),
        }
    }

    pub(crate) fn feed(&mut self, message: &Json) {
        let effects = self.runtime.handle_line(message.to_string().as_bytes());
        self.record(effects);
    }

    pub(crate) fn answer(&mut self, ask: &str, answer: &QuestionAnswer) {
        self.questions.retain(|open| open != ask);
        let effects = self.runtime.deliver_answer(ask, answer);
        self.record(effects);
    }

    pub(crate) fn interrupt(&mut self) {
        let effects = self.runtime.interrupt();
        self.line("(interrupt)");
        self.record(effects);
    }

    /// Ends the agent, and checks that every call has a result.
    pub(crate) fn exit(mut self) -> String {
        let effects = self.runtime.handle_exit(Some(0));
        if !self.is_done {
            self.line("(exit without an end)");
        }
        self.record(effects);
        assert_eq!(self.open_calls, Vec::<String>::new(), "every call has a result");
        self.trace
    }

    pub(crate) fn line(&mut self, text: &str) {
        writeln!(self.trace, "{text}").unwrap();
    }

    pub(crate) fn record(&mut self, effects: Vec<RuntimeEffect>) {
        for effect in effects {
            let line = match effect {
                RuntimeEffect::Write(line) => self.record_written(&line),
                RuntimeEffect::Message(message) => {
                    self.record_calls(&message.body);
                    describe_body(&message.body)
                }
                RuntimeEffect::Ask { id, kind, tool, input, grant: _ } => {
                    self.questions.push(id);
                    Some(format!("ask {} {tool} {}", kind.as_str(), shorten(&input.to_string())))
                }
                RuntimeEffect::Withdraw { ask } => {
                    self.questions.retain(|open| *open != ask);
                    Some("withdraw".to_owned())
                }
                RuntimeEffect::Done => {
                    self.is_done = true;
                    Some("done".to_owned())
                }
                other => Some(format!("{other:?}")),
            };
            if let Some(line) = line {
                self.line(&line);
            }
        }
    }

    fn record_written(&mut self, line: &[u8]) -> Option<String> {
        let message: Json = serde_json::from_slice(line).unwrap();
        // Claude's protocol and its dialects.
        if let Some(kind) = message["type"].as_str() {
            let body = [&message["request"], &message["response"], &message["message"]];
            let body = body.into_iter().find(|body| !body.is_null()).unwrap_or(&Json::Null);
            return Some(format!("> {kind} {}", shorten(&body.to_string())));
        }
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(id)) => {
                self.requests.insert(method.to_owned(), id.clone());
                Some(format!("> {method} {}", shorten(&message["params"].to_string())))
            }
            (Some(method), None) => Some(format!("> {method}")),
            (None, _) if message.get("error").is_some() => {
                Some(format!("> refused: {}", message["error"]["message"].as_str().unwrap()))
            }
            (None, _) => Some(format!("> reply {}", message["result"])),
        }
    }

    fn record_calls(&mut self, body: &MessageBody) {
        let blocks = |message: &serde_json::Map<String, Json>| {
            message.get("content").and_then(Json::as_array).cloned().unwrap_or_default()
        };
        match body {
            MessageBody::Assistant(said) => {
                let calls = blocks(&said.message).into_iter().filter(|it| it["type"] == "tool_use");
                for call in calls {
                    let id = call["id"].as_str().unwrap().to_owned();
                    assert!(!self.open_calls.contains(&id), "a call has one row: {id}");
                    self.open_calls.push(id);
                }
            }
            MessageBody::User(user) => {
                for result in blocks(&user.message) {
                    let id = result["tool_use_id"].as_str().unwrap();
                    assert!(self.open_calls.iter().any(|open| open == id), "no call {id}");
                    self.open_calls.retain(|open| open != id);
                }
            }
            _ => {}
        }
    }
}

fn describe_body(body: &MessageBody) -> Option<String> {
    Some(match body {
        MessageBody::Delta { .. } | MessageBody::Ignored { .. } => return None,
        MessageBody::Init(init) => format!("init model {:?}", init.model),
        MessageBody::Assistant(said) => {
            let content = shorten(&said.message["content"].to_string());
            match &said.api_error {
                Some(error) => format!("api error {:?} {:?} {content}", error.status, error.code),
                None => format!("assistant {content}"),
            }
        }
        MessageBody::User(user) => {
            format!("user {}", shorten(&user.message["content"].to_string()))
        }
        MessageBody::Result(result) => format!(
            "result {} error={} stop={:?} terminal={:?} status={:?} {:?}",
            result.subtype,
            result.is_error,
            result.stop_reason,
            result.terminal_reason,
            result.api_error_status,
            shorten(result.text.as_deref().unwrap_or_default())
        ),
        MessageBody::RateLimit(limit) => {
            format!("limit {:?} resets {:?}", limit.status, limit.resets_at)
        }
        MessageBody::Retry(retry) => format!("retry {:?}", retry.status),
        MessageBody::System { subtype } => format!("system {subtype}"),
        MessageBody::Error { message, code } => format!("error {code:?} {}", shorten(message)),
        MessageBody::Unknown { kind, .. } => format!("unknown {kind}"),
        MessageBody::Malformed { reason, .. } => format!("malformed {}", shorten(reason)),
        other => format!("{other:?}"),
    })
}

fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 240;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
