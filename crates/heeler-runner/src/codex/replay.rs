//! Replays recorded conversations with the real Codex: its lines go in, and rows, questions and the
//! outcome must match the trace beside the recording.

use std::collections::HashMap;

use expect_test::expect_file;
use heeler_model::outcome::AgentProcessExit;

use super::tests::{fresh, options};
use super::*;
use crate::protocol_replay::{
    RecordedLine, ReplayedConversation, RuntimeTrace, read_recording, recording_names, recordings,
};

/// Methods that open a thread.
const OPENING: [&str; 3] = ["thread/start", "thread/resume", "thread/fork"];

fn is_turn(line: &RecordedLine) -> bool {
    !line.is_agents && line.method() == Some("turn/start")
}

/// Replays one turn of a recording, after the lines that open the thread.
struct CodexTurnReplay<'t> {
    trace: RuntimeTrace<'t>,
    /// Methods of the recorded client's requests, by ID.
    methods: HashMap<String, String>,
}

impl CodexTurnReplay<'_> {
    fn replay_line(&mut self, line: &RecordedLine) {
        let message = &line.message;
        let id = message["id"].to_string();
        match (line.is_agents, line.method()) {
            (true, Some(_)) => self.trace.feed(message),
            (true, None) if message.is_null() => self.trace.feed_text(&line.text),
            (true, None) => {
                let method = self.methods.get(&id).cloned().unwrap_or_default();
                // The runtime may have opened its thread in another way than the recorded client.
                let same = match OPENING.contains(&method.as_str()) {
                    true => OPENING.iter().find(|it| self.trace.requests.contains_key(**it)),
                    false => None,
                };
                let method = same.map_or(method.as_str(), |same| *same);
                if let Some(request) = self.trace.requests.remove(method) {
                    let mut message = message.clone();
                    message["id"] = request;
                    self.trace.feed(&message);
                }
            }
            (false, Some("turn/interrupt")) => {
                self.methods.insert(id, "turn/interrupt".to_owned());
                self.trace.interrupt();
            }
            (false, Some("turn/steer")) => {
                self.methods.insert(id, "turn/steer".to_owned());
                let text = message["params"]["input"][0]["text"].as_str().unwrap_or_default();
                let effects = self.trace.runtime.send_message(Uuid::nil(), text);
                self.trace.record(effects.unwrap_or_default());
            }
            (false, Some(method)) => {
                self.methods.insert(id, method.to_owned());
            }
            (false, None) => self.replay_answer(&id, &message["result"]),
        }
    }

    fn replay_answer(&mut self, id: &str, result: &Json) {
        if !self.trace.questions.iter().any(|open| open == id) {
            return;
        }
        let deny = |interrupt| QuestionAnswer::Deny { message: "no".to_owned(), interrupt };
        let answer = match result["decision"].as_str() {
            Some("accept") => QuestionAnswer::Allow { input: None },
            Some("cancel") => deny(true),
            _ => deny(false),
        };
        self.trace.answer(id, &answer);
    }
}

/// Replays the turns of a recording, each in a new conversation.
pub(crate) fn replay_lines(lines: &[RecordedLine]) -> Vec<ReplayedConversation> {
    let first = lines.iter().position(is_turn).unwrap_or(lines.len());
    let (opening, mut rest) = lines.split_at(first);
    let thread = opening.iter().find_map(|line| line.message["result"]["thread"]["id"].as_str());
    let mut conversations = Vec::new();
    while !rest.is_empty() {
        let end = rest[1..].iter().position(is_turn).map_or(rest.len(), |at| at + 1);
        let (turn, later) = rest.split_at(end);
        rest = later;
        // Recordings also have turns of other threads.
        if turn[0].message["params"]["threadId"].as_str() == thread {
            conversations.push(replay_turn(opening, turn));
        }
    }
    if conversations.is_empty() {
        conversations.push(replay_turn(opening, &[]));
    }
    conversations
}

fn replay_turn(opening: &[RecordedLine], turn: &[RecordedLine]) -> ReplayedConversation {
    let prompt = turn.first().and_then(|line| line.message["params"]["input"][0]["text"].as_str());
    let mut runtime = CodexRuntime::new(prompt.unwrap_or_default().to_owned(), options());
    runtime.launch_spec(&fresh());
    let begin = runtime.begin(Uuid::nil());
    let mut replay =
        CodexTurnReplay { trace: RuntimeTrace::new(&mut runtime), methods: HashMap::new() };
    replay.trace.record(begin);
    opening.iter().chain(turn).for_each(|line| replay.replay_line(line));
    let stderr = String::new();
    replay.trace.finish(&AgentProcessExit::Exited { code: Some(0), signal: None, stderr })
}

#[test]
fn recorded_conversations_give_the_same_rows_and_outcomes() {
    for name in recording_names("codex") {
        let trace = recordings("codex").join(name.replace(".io", ".trace"));
        let conversations = replay_lines(&read_recording("codex", &name)).into_iter();
        let traces = conversations.map(|it| {
            assert_eq!(it.faults, Vec::<String>::new(), "{name}");
            it.trace + "----\n"
        });
        expect_file![trace].assert_eq(&traces.collect::<String>());
    }
}
