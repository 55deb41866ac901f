//! Replays recorded conversations with real ACP agents: the agent's lines go in, and rows, questions
//! and the outcome must match the trace beside the recording.

use std::collections::HashMap;

use expect_test::expect_file;
use heeler_config::find_known_agent;
use heeler_model::outcome::AgentProcessExit;

use super::tests::{fresh, options, resumed};
use super::*;
use crate::protocol_replay::{
    RecordedLine, ReplayedConversation, RuntimeTrace, read_recording, recording_names, recordings,
};

/// Methods that open a session.
const OPENING: [&str; 3] = ["session/new", "session/load", "session/resume"];

/// Methods that configure a session. The recorded client made other requests, so their replies are
/// made up.
const CONFIGURING: [&str; 3] =
    ["session/set_mode", "session/set_config_option", "session/set_model"];

/// Returns the table's name of a recorded agent.
pub(super) fn known_name(recording: &str) -> &str {
    match recording.split('_').next().unwrap() {
        "claude" => "claude-acp",
        "codexacp" => "codex-acp",
        name => name,
    }
}

fn is_prompt(line: &RecordedLine) -> bool {
    !line.is_agents && line.method() == Some("session/prompt")
}

/// Replays one turn of a recording, after the lines that open the session.
struct AcpTurnReplay<'t> {
    trace: RuntimeTrace<'t>,
    /// Methods of the recorded client's requests, by ID.
    methods: HashMap<String, String>,
    /// Options of the recorded questions, by ID.
    options: HashMap<String, Json>,
}

impl AcpTurnReplay<'_> {
    fn replay_line(&mut self, line: &RecordedLine) {
        let message = &line.message;
        let id = message["id"].to_string();
        match (line.is_agents, line.method()) {
            (true, Some(method)) => {
                if method == "session/request_permission" {
                    self.options.insert(id, message["params"]["options"].clone());
                }
                self.trace.feed(message);
            }
            (true, None) if message.is_null() => self.trace.feed_text(&line.text),
            (true, None) => self.replay_reply(&id, message),
            (false, Some("session/cancel")) => self.trace.interrupt(),
            (false, Some(method)) => {
                self.methods.insert(id, method.to_owned());
            }
            (false, None) => self.replay_answer(&id, &message["result"]),
        }
        self.configure();
    }

    /// Feeds a reply to the runtime's own request of the same kind, if it made one.
    fn replay_reply(&mut self, id: &str, message: &Json) {
        let Some(method) = self.methods.get(id).cloned() else { return };
        let same = match OPENING.contains(&method.as_str()) {
            true => OPENING.iter().find(|it| self.trace.requests.contains_key(**it)).copied(),
            false => Some(method.as_str()),
        };
        let request = same.and_then(|method| self.trace.requests.remove(method));
        if let Some(request) = request {
            let mut message = message.clone();
            message["id"] = request;
            self.trace.feed(&message);
        }
    }

    /// Gives the recorded answer to a question, unless the policy has answered it.
    fn replay_answer(&mut self, id: &str, result: &Json) {
        if !self.trace.questions.iter().any(|open| open == id) {
            return;
        }
        let chosen = &result["outcome"]["optionId"];
        let options = self.options[id].as_array().cloned().unwrap_or_default();
        let kind = options.iter().find(|option| option["optionId"] == *chosen);
        let kind = kind.and_then(|option| option["kind"].as_str()).unwrap_or_default();
        let answer = match kind.starts_with("allow") {
            true => QuestionAnswer::Allow { input: None },
            false => QuestionAnswer::Deny { message: "no".to_owned(), interrupt: false },
        };
        self.trace.answer(id, &answer);
    }

    fn configure(&mut self) {
        while let Some(id) =
            CONFIGURING.iter().find_map(|method| self.trace.requests.remove(*method))
        {
            self.trace.feed(&json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
        }
    }
}

/// Replays the turns of a recording, each in a new conversation.
pub(crate) fn replay_lines(
    known: Option<&'static KnownAgent>,
    lines: &[RecordedLine],
) -> Vec<ReplayedConversation> {
    let first = lines.iter().position(is_prompt).unwrap_or(lines.len());
    let (opening, rest) = lines.split_at(first);
    let loaded = opening.iter().filter(|it| !it.is_agents).find_map(|line| {
        let is_load = matches!(line.method(), Some("session/load" | "session/resume"));
        line.message["params"]["sessionId"].as_str().filter(|_| is_load).map(str::to_owned)
    });
    let mut turns: Vec<&[RecordedLine]> = Vec::new();
    let mut rest = rest;
    while !rest.is_empty() {
        let end = rest[1..].iter().position(is_prompt).map_or(rest.len(), |at| at + 1);
        turns.push(&rest[..end]);
        rest = &rest[end..];
    }
    if turns.is_empty() {
        turns.push(&[]);
    }
    let mut conversations = Vec::new();
    for turn in turns {
        let session = turn.first().map(|line| line.message["params"]["sessionId"].clone());
        let main = opening_session(opening, loaded.as_deref());
        // A turn of a fork is about another session than the opened one.
        if session.is_some_and(|session| main.is_some_and(|main| session != main)) {
            continue;
        }
        conversations.push(replay_turn(known, opening, turn, loaded.clone()));
    }
    if conversations.is_empty() {
        conversations.push(replay_turn(known, opening, &[], loaded));
    }
    conversations
}

fn opening_session<'l>(opening: &'l [RecordedLine], loaded: Option<&'l str>) -> Option<&'l str> {
    let opened = opening.iter().find_map(|line| line.message["result"]["sessionId"].as_str());
    loaded.or(opened)
}

fn replay_turn(
    known: Option<&'static KnownAgent>,
    opening: &[RecordedLine],
    turn: &[RecordedLine],
    loaded: Option<String>,
) -> ReplayedConversation {
    let mut setup = options(known);
    let start = if loaded.is_some() { resumed() } else { fresh() };
    setup.native_session = loaded;
    let prompt = turn.first().map(|line| {
        line.message["params"]["prompt"][0]["text"].as_str().unwrap_or_default().to_owned()
    });
    let mut runtime = AcpRuntime::new(prompt.unwrap_or_default(), setup);
    runtime.launch_spec(&start);
    let begin = runtime.begin(Uuid::nil());
    let mut replay = AcpTurnReplay {
        trace: RuntimeTrace::new(&mut runtime),
        methods: HashMap::new(),
        options: HashMap::new(),
    };
    replay.trace.record(begin);
    for line in opening.iter().chain(turn) {
        replay.replay_line(line);
    }
    let stderr = String::new();
    replay.trace.finish(&AgentProcessExit::Exited { code: Some(0), signal: None, stderr })
}

#[test]
fn recorded_conversations_give_the_same_rows_and_outcomes() {
    let names = recording_names("acp");
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let trace = recordings("acp").join(name.replace(".io", ".trace"));
        let known = find_known_agent(known_name(&name));
        let conversations = replay_lines(known, &read_recording("acp", &name)).into_iter();
        let traces = conversations.map(|it| {
            assert_eq!(it.faults, Vec::<String>::new(), "{name}");
            it.trace + "----\n"
        });
        expect_file![trace].assert_eq(&traces.collect::<String>());
    }
}
