//! Test helpers for the runtimes of agent programs: recorded conversations with real agents, and a
//! readable trace of the effects of a runtime, of the rows of the job and of the outcome.
//!
//! Start at [`RuntimeTrace`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use heeler_model::message::{AgentMessage, MessageBody};
use heeler_model::outcome::{AgentProcessExit, RunOutcome, RunOutcomeBuilder};
use heeler_model::recorder::TranscriptRecorder;
use heeler_model::run::QuestionAnswer;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::captured_output::parse_capture;
use crate::runtime::{AgentRuntime, RuntimeEffect};

/// Fields of a row that say when and where it was recorded.
const UNSTABLE_KEYS: [&str; 2] = ["uuid", "timestamp"];

/// Line of a recording: written to the agent, or by it.
#[derive(Debug, Clone)]
pub(crate) struct RecordedLine {
    pub(crate) is_agents: bool,
    pub(crate) text: String,
    /// `null` if the line is damaged, or no message.
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
    parse_capture(&std::fs::read_to_string(recordings(protocol).join(name)).unwrap()).lines
}

/// Returns the names of the recordings of a protocol.
pub(crate) fn recording_names(protocol: &str) -> Vec<String> {
    let files = std::fs::read_dir(recordings(protocol)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".io")).collect();
    names.sort();
    names
}

/// Conversation that was replayed to its end.
#[derive(Debug)]
pub(crate) struct ReplayedConversation {
    /// Effects, rows of the job and outcome, one per line.
    pub(crate) trace: String,
    pub(crate) outcome: RunOutcome,
    pub(crate) is_done: bool,
    /// Lines that the runtime wrote, as far as they are JSON.
    pub(crate) written: Vec<Json>,
    /// Errors of the runtime: calls without a result, and requests without a reply.
    pub(crate) faults: Vec<String>,
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
    /// Lines that the runtime wrote, as far as they are JSON.
    pub(crate) written: Vec<Json>,
    /// Calls without a result.
    open_calls: Vec<String>,
    /// Requests of the agent without a reply.
    unanswered: Vec<String>,
    faults: Vec<String>,
    is_interrupted: bool,
    recorder: TranscriptRecorder,
    tally: RunOutcomeBuilder,
    rows: Vec<Json>,
}

impl<'r> RuntimeTrace<'r> {
    pub(crate) fn new(runtime: &'r mut dyn AgentRuntime) -> RuntimeTrace<'r> {
        let session = "recorded".parse().unwrap();
        RuntimeTrace {
            runtime,
            trace: String::new(),
            requests: HashMap::new(),
            questions: Vec::new(),
            is_done: false,
            written: Vec::new(),
            open_calls: Vec::new(),
            unanswered: Vec::new(),
            faults: Vec::new(),
            is_interrupted: false,
            recorder: TranscriptRecorder::new(session, "/project".into()),
            tally: RunOutcomeBuilder::new(),
            rows: Vec::new(),
        }
    }

    /// Judges the run by `tally`.
    pub(crate) fn with_tally(self, tally: RunOutcomeBuilder) -> RuntimeTrace<'r> {
        RuntimeTrace { tally, ..self }
    }

    pub(crate) fn feed(&mut self, message: &Json) {
        self.record_asked(message);
        let effects = self.runtime.handle_line(message.to_string().as_bytes());
        self.record(effects);
    }

    /// Gives the runtime a line that is no message.
    pub(crate) fn feed_text(&mut self, text: &str) {
        let effects = self.runtime.handle_line(text.as_bytes());
        self.record(effects);
    }

    /// Remembers that the agent waits for a reply.
    fn record_asked(&mut self, message: &Json) {
        let id = &message["id"];
        if message["method"].is_string() && (id.is_string() || id.is_number()) {
            self.unanswered.push(id.to_string());
        } else if message["type"] == "control_request" {
            self.unanswered.extend(message["request_id"].as_str().map(str::to_owned));
        } else if message["type"] == "control_cancel_request" {
            // The agent waits no longer.
            self.record_replied(message["request_id"].as_str().unwrap_or_default());
        }
    }

    fn record_replied(&mut self, id: &str) {
        if let Some(at) = self.unanswered.iter().position(|open| open == id) {
            self.unanswered.remove(at);
        }
    }

    pub(crate) fn answer(&mut self, ask: &str, answer: &QuestionAnswer) {
        self.questions.retain(|open| open != ask);
        let effects = self.runtime.deliver_answer(ask, answer);
        self.record(effects);
    }

    pub(crate) fn interrupt(&mut self) {
        let effects = self.runtime.interrupt();
        self.is_interrupted = true;
        self.line("(interrupt)");
        self.record(effects);
    }

    /// Ends the agent, checks that every call has a result, and returns the effects.
    pub(crate) fn exit(mut self) -> String {
        self.end(Some(0));
        assert_eq!((&self.open_calls, &self.faults), (&Vec::new(), &Vec::new()));
        self.trace
    }

    /// Ends the agent. The rows and the outcome follow the effects in the trace.
    pub(crate) fn finish(mut self, exit: &AgentProcessExit) -> ReplayedConversation {
        let code = match exit {
            AgentProcessExit::Exited { code, .. } => *code,
            _ => None,
        };
        self.end(code);
        let cancelled = AgentProcessExit::Cancelled { by: "a person".to_owned() };
        let outcome = self.tally.conclude(if self.is_interrupted { &cancelled } else { exit });
        for row in std::mem::take(&mut self.rows) {
            self.line(&format!("row {}", describe_row(row)));
        }
        self.line(&describe_outcome(&outcome));
        let questions = std::mem::take(&mut self.questions);
        self.unanswered.retain(|id| !questions.contains(id));
        let mut faults = std::mem::take(&mut self.faults);
        faults.extend(self.open_calls.iter().map(|id| format!("no result of call {id}")));
        faults.extend(self.unanswered.iter().map(|id| format!("no reply to request {id}")));
        let RuntimeTrace { trace, is_done, written, .. } = self;
        ReplayedConversation { trace, outcome, is_done, written, faults }
    }

    fn end(&mut self, code: Option<i32>) {
        let effects = self.runtime.handle_exit(code);
        if !self.is_done && !effects.contains(&RuntimeEffect::Done) {
            self.line("(exit without an end)");
        }
        self.record(effects);
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
                    let line = describe_body(&message.body);
                    self.record_message(message);
                    line
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
                RuntimeEffect::Mcp { server, message, .. } => {
                    Some(format!("mcp {server} {}", shorten(&message.to_string())))
                }
                other => Some(format!("{other:?}")),
            };
            if let Some(line) = line {
                self.line(&line);
            }
        }
    }

    /// Records a message as a run does.
    fn record_message(&mut self, message: AgentMessage) {
        self.tally.add_message(&message);
        let rows = self.recorder.record_message(message, Timestamp::UNIX_EPOCH);
        self.rows.extend(rows.job);
    }

    fn record_written(&mut self, line: &[u8]) -> Option<String> {
        // A one-shot agent gets its prompt as it is.
        let Ok(message) = serde_json::from_slice::<Json>(line) else {
            return Some(format!("> {}", shorten(&String::from_utf8_lossy(line))));
        };
        self.written.push(message.clone());
        if let Some(id) = message["response"]["request_id"].as_str() {
            self.record_replied(id);
        }
        if message["method"].is_null() {
            self.record_replied(&message["id"].to_string());
        }
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
                    let id = call["id"].as_str().unwrap_or_default().to_owned();
                    if self.open_calls.contains(&id) {
                        self.faults.push(format!("two rows of call {id}"));
                    }
                    self.open_calls.push(id);
                }
            }
            MessageBody::User(user) => {
                let results = blocks(&user.message).into_iter();
                for result in results.filter(|it| it["type"] == "tool_result") {
                    let id = result["tool_use_id"].as_str().unwrap_or_default();
                    if !self.open_calls.iter().any(|open| open == id) {
                        self.faults.push(format!("a result without call {id}"));
                    }
                    self.open_calls.retain(|open| open != id);
                }
            }
            _ => {}
        }
    }
}

fn describe_row(mut row: Json) -> Json {
    if let Json::Object(fields) = &mut row {
        UNSTABLE_KEYS.iter().for_each(|key| drop(fields.shift_remove(*key)));
    }
    shorten_texts(&mut row);
    row
}

fn shorten_texts(value: &mut Json) {
    match value {
        Json::String(text) => *text = shorten(text),
        Json::Array(values) => values.iter_mut().for_each(shorten_texts),
        Json::Object(fields) => fields.values_mut().for_each(shorten_texts),
        _ => {}
    }
}

fn describe_outcome(outcome: &RunOutcome) -> String {
    let mut line = format!("outcome {}", json!(outcome.exit_reason).as_str().unwrap());
    if let Some(error) = &outcome.error {
        let class = json!(error.class);
        let again = if error.recoverable { ", may be tried again" } else { "" };
        write!(line, " {}{again}: {}", class.as_str().unwrap(), shorten(&error.message)).unwrap();
    }
    let cost = &outcome.cost;
    write!(line, " stop={:?} usd={:?} usage={}", outcome.stop_reason, cost.usd, json!(cost.usage))
        .unwrap();
    if !outcome.denied.is_empty() {
        write!(line, " denied={}", json!(outcome.denied)).unwrap();
    }
    line
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
