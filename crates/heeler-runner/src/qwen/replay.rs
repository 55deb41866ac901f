//! Replays recorded conversations with the real Qwen Code: its lines go in, and rows, questions and
//! the outcome must match the trace beside the recording.

use expect_test::expect_file;
use heeler_model::outcome::AgentProcessExit;

use super::tests::{fresh, initialized, options};
use super::*;
use crate::captured_output::{AgentCapture, parse_capture};
use crate::protocol_replay::{
    RecordedLine, ReplayedConversation, RuntimeTrace, recording_names, recordings,
};

fn is_message(line: &RecordedLine) -> bool {
    !line.is_agents && line.message["type"] == "user"
}

fn replay_line(trace: &mut RuntimeTrace<'_>, line: &RecordedLine) {
    let message = &line.message;
    match (line.is_agents, message["type"].as_str().unwrap_or_default()) {
        (true, _) if message.is_null() => trace.feed_text(&line.text),
        (true, _) => trace.feed(message),
        (false, "control_response") => {
            let id = message["response"]["request_id"].as_str().unwrap_or_default();
            let reply = &message["response"]["response"];
            let answer = match reply["behavior"] == "allow" {
                true => QuestionAnswer::Allow { input: Some(reply["updatedInput"].clone()) },
                false => QuestionAnswer::Deny { message: "no".to_owned(), interrupt: false },
            };
            if trace.questions.iter().any(|open| open == id) {
                trace.answer(id, &answer);
            }
        }
        (false, "control_request") if message["request"]["subtype"] == "interrupt" => {
            trace.interrupt();
        }
        (false, _) => {}
    }
}

/// Replays the turns of a capture, each in a new conversation.
pub(crate) fn replay_lines(
    capture: &AgentCapture,
    exit: &AgentProcessExit,
) -> Vec<ReplayedConversation> {
    let lines = &capture.lines;
    let Some(first) = lines.iter().position(is_message) else {
        return vec![replay_one_shot(capture, exit)];
    };
    let (opening, mut rest) = lines.split_at(first);
    let mut conversations = Vec::new();
    while !rest.is_empty() {
        let end = rest[1..].iter().position(is_message).map_or(rest.len(), |at| at + 1);
        let (turn, later) = rest.split_at(end);
        rest = later;
        let prompt = turn[0].message["message"]["content"].as_str().unwrap_or_default().to_owned();
        let mut runtime = QwenRuntime::new(prompt, options());
        runtime.launch_spec(&fresh());
        let begin = runtime.begin(Uuid::nil());
        let mut trace = RuntimeTrace::new(&mut runtime);
        trace.record(begin);
        opening.iter().chain(turn).for_each(|line| replay_line(&mut trace, line));
        conversations.push(trace.finish(exit));
    }
    conversations
}

/// Replays a run with its prompt in an argument. Such a run does not reply to `initialize`, so the
/// reply is made up.
fn replay_one_shot(capture: &AgentCapture, exit: &AgentProcessExit) -> ReplayedConversation {
    let resumed = capture.option("--resume").map(str::to_owned);
    let max_turns = capture.option("--max-session-turns").and_then(|turns| turns.parse().ok());
    let session = capture.lines.iter().find_map(|line| line.message["session_id"].as_str());
    let start = match &resumed {
        Some(_) => SessionStart::Resume { id: "heeler-session".parse().unwrap() },
        None => fresh(),
    };
    let setup = QwenLaunchOptions { max_turns, native_session: resumed, ..options() };
    let mut runtime = QwenRuntime::new("hello".to_owned(), setup);
    runtime.launch_spec(&start);
    let begin = runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime);
    trace.record(begin);
    trace.feed(&initialized(session.unwrap_or("s")));
    capture.lines.iter().for_each(|line| replay_line(&mut trace, line));
    trace.finish(exit)
}

#[test]
fn recorded_conversations_give_the_same_rows_and_outcomes() {
    for name in recording_names("qwen") {
        let path = recordings("qwen").join(&name);
        let capture = parse_capture(&std::fs::read_to_string(&path).unwrap());
        let stderr = String::new();
        let exit = AgentProcessExit::Exited { code: Some(0), signal: None, stderr };
        let traces = replay_lines(&capture, &exit).into_iter().map(|it| {
            assert_eq!(it.faults, Vec::<String>::new(), "{name}");
            it.trace + "----\n"
        });
        let trace = path.with_extension("trace");
        expect_file![trace].assert_eq(&traces.collect::<String>());
    }
}
