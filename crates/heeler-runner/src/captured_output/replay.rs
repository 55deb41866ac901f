//! Replays captures with the runtime that talks to such an agent, and checks what holds for each.
//! Start at [`replay_capture`].

use std::path::{Path, PathBuf};

use expect_test::expect_file;
use heeler_config::{RuntimeType, find_known_agent};
use heeler_model::outcome::{AgentProcessExit, RunOutcomeBuilder};
use uuid::Uuid;

use super::{AgentCapture, CapturedExit, CapturedProtocol, parse_capture};
use crate::command::CommandRuntime;
use crate::protocol_replay::{ReplayedConversation, RuntimeTrace, recordings};
use crate::runtime::AgentRuntime as _;
use crate::{acp, claude, codex, qwen};

/// Variable with a directory of captures to check instead of those of the repository.
const CAPTURES_VARIABLE: &str = "HEELER_CAPTURES";

/// Captured commands of agents that exit with 0 although their work failed: a signal ended the first,
/// and the second was denied what it wanted to do. A command is judged by its exit code alone.
const FAILED_WITH_EXIT_ZERO: [&str; 2] =
    ["gemini_17_sigterm_norelaunch.io", "opencode_15_ask_in_run.io"];

/// Replays the turns of a capture, each in a conversation of its own.
fn replay_capture(capture: &AgentCapture) -> Vec<ReplayedConversation> {
    let exit = process_exit(capture);
    match capture.protocol() {
        CapturedProtocol::Acp => {
            let known = find_known_agent(known_name(capture.program()));
            acp::replay::replay_lines(known, &capture.lines)
        }
        CapturedProtocol::Codex => codex::replay::replay_lines(&capture.lines),
        CapturedProtocol::Qwen => qwen::replay::replay_lines(capture, &exit),
        CapturedProtocol::ClaudeControl => vec![claude::replay_control(&capture.lines, &exit)],
        CapturedProtocol::ClaudeOutput => vec![claude::replay_output(&capture.lines, &exit)],
        CapturedProtocol::Command => vec![replay_command(capture, &exit)],
    }
}

/// Returns the table's name of a program.
fn known_name(program: &str) -> &str {
    match program {
        "claude-agent-acp" => "claude-acp",
        "grok-native" => "grok",
        "vibe-acp" => "vibe",
        program => program,
    }
}

fn process_exit(capture: &AgentCapture) -> AgentProcessExit {
    let stderr = capture.stderr.clone();
    match capture.exit {
        CapturedExit::Code(code) => {
            AgentProcessExit::Exited { code: Some(code), signal: None, stderr }
        }
        CapturedExit::Signal(signal) => {
            AgentProcessExit::Exited { code: None, signal: Some(signal), stderr }
        }
        CapturedExit::TimedOut { after_ms } => AgentProcessExit::TimedOut { after_ms },
    }
}

/// Replays the output of a one-shot program with the runtime `command`.
fn replay_command(capture: &AgentCapture, exit: &AgentProcessExit) -> ReplayedConversation {
    let mut runtime = CommandRuntime::new("hello".to_owned(), capture.command.clone());
    let begin = runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime)
        .with_tally(RunOutcomeBuilder::for_runtime(RuntimeType::Command));
    trace.record(begin);
    capture.lines.iter().filter(|line| line.is_agents).for_each(|line| trace.feed_text(&line.text));
    trace.finish(exit)
}

/// Returns the captures below a directory, in order.
fn captures_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(captures_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "io") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> AgentCapture {
    parse_capture(&String::from_utf8_lossy(&std::fs::read(path).unwrap()))
}

/// Checks any captures: `HEELER_CAPTURES=DIR cargo nextest run -p heeler-runner -E
/// 'test(every_capture_ends_with_an_answer_to_each_request)'`.
#[test]
#[expect(clippy::disallowed_methods, reason = "the variable names captures that are kept apart")]
fn every_capture_ends_with_an_answer_to_each_request() {
    let folder = std::env::var(CAPTURES_VARIABLE).map_or_else(|_| recordings(""), PathBuf::from);
    let captures = captures_below(&folder);
    assert!(!captures.is_empty(), "no captures in {folder:?}");
    for path in captures {
        let capture = read(&path);
        let conversations = replay_capture(&capture);
        assert!(!conversations.is_empty(), "{path:?}");
        for conversation in conversations {
            let ReplayedConversation { trace, outcome, is_done, faults, .. } = conversation;
            assert_eq!(faults, Vec::<String>::new(), "{path:?}\n{trace}");
            assert!(is_done || outcome.error.is_some(), "{path:?} has no end\n{trace}");
        }
    }
}

#[test]
fn captured_one_shot_programs_give_the_same_rows_and_outcomes() {
    let captures = captures_below(&recordings("one_shot"));
    assert!(captures.len() > 60, "{}", captures.len());
    for path in captures {
        let traces = replay_capture(&read(&path)).into_iter().map(|it| it.trace + "----\n");
        expect_file![path.with_extension("trace")].assert_eq(&traces.collect::<String>());
    }
}

#[test]
fn a_command_that_exits_with_zero_is_a_success_whatever_its_agent_says() {
    for name in FAILED_WITH_EXIT_ZERO {
        let capture = read(&recordings("one_shot").join(name));
        assert_eq!(capture.protocol(), CapturedProtocol::Command, "{name}");
        let outcome = replay_capture(&capture).remove(0).outcome;
        assert_eq!(outcome.error, None, "{name}");
    }
}
