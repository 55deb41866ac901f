//! Replays recorded conversations with the real Qwen Code: its lines go in, and rows, questions and
//! the outcome must match the trace beside the recording.

use expect_test::expect_file;

use super::tests::{fresh, options};
use super::*;
use crate::protocol_replay::{
    RecordedLine, RuntimeTrace, read_recording, recording_names, recordings,
};

fn is_message(line: &RecordedLine) -> bool {
    !line.is_agents && line.message["type"] == "user"
}

fn replay_line(trace: &mut RuntimeTrace<'_>, line: &RecordedLine) {
    let message = &line.message;
    match (line.is_agents, message["type"].as_str().unwrap()) {
        (true, _) => trace.feed(message),
        (false, "control_response") => {
            let id = message["response"]["request_id"].as_str().unwrap();
            let reply = &message["response"]["response"];
            let answer = match reply["behavior"] == "allow" {
                true => QuestionAnswer::Allow { input: Some(reply["updatedInput"].clone()) },
                false => QuestionAnswer::Deny { message: "no".to_owned(), interrupt: false },
            };
            assert!(trace.questions.iter().any(|open| open == id), "{id} is no open question");
            trace.answer(id, &answer);
        }
        (false, "control_request") if message["request"]["subtype"] == "interrupt" => {
            trace.interrupt();
        }
        (false, _) => {}
    }
}

/// Replays the turns of a recording, each in a new conversation.
fn replay(name: &str) -> String {
    let lines = read_recording("qwen", name);
    let first = lines.iter().position(is_message).unwrap();
    let (opening, mut rest) = lines.split_at(first);
    let mut traces = String::new();
    while !rest.is_empty() {
        let end = rest[1..].iter().position(is_message).map_or(rest.len(), |at| at + 1);
        let (turn, later) = rest.split_at(end);
        rest = later;
        let prompt = turn[0].message["message"]["content"].as_str().unwrap().to_owned();
        let mut runtime = QwenRuntime::new(prompt, options());
        runtime.launch_spec(&fresh());
        let begin = runtime.begin(Uuid::nil());
        let mut trace = RuntimeTrace::new(&mut runtime);
        trace.record(begin);
        opening.iter().chain(turn).for_each(|line| replay_line(&mut trace, line));
        traces += &(trace.exit() + "----\n");
    }
    traces
}

#[test]
fn recorded_conversations_give_the_same_rows_and_outcomes() {
    for name in recording_names("qwen") {
        let trace = recordings("qwen").join(name.replace(".io", ".trace"));
        expect_file![trace].assert_eq(&replay(&name));
    }
}
