//! Every capture of the real agent, with the rows and the conclusion that come of it.

use expect_test::expect_file;
use heeler_model::message::{MessageBody, parse_line};
use heeler_model::outcome::{AgentProcessExit, RunOutcome, RunOutcomeBuilder};
use heeler_model::recorder::{RecordedRows, TranscriptRecorder};
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use std::fmt::Write as _;
use std::time::Duration;
use uuid::Uuid;

/// The prompt of a capture that does not repeat its own.
const PROMPT: Uuid = uuid::uuid!("00000000-0000-4000-8000-000000000001");

/// A run of a capture: the agent's lines and how its process ended.
struct Played {
    rows: RecordedRows,
    recorder: TranscriptRecorder,
    conclusion: RunOutcome,
}

fn recorder() -> TranscriptRecorder {
    TranscriptRecorder::new("the-session".parse().unwrap(), "/srv/demo/proj".into())
}

/// Plays a capture as a runner would: control lines never get as far as the recorder, and each line
/// comes a tenth of a second after the one before.
fn play(capture: &str, end: &AgentProcessExit) -> Played {
    let mut now: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    let mut recorder = recorder();
    let mut tally = RunOutcomeBuilder::new();
    let (uuid, text) = prompt_of(capture);
    let mut all = recorder.record_prompt(uuid, &text, now);
    for line in capture.lines().filter(|line| !is_control(line)) {
        now += Duration::from_millis(100);
        let message = parse_line(line.as_bytes());
        tally.add_message(&message);
        let rows = recorder.record_message(message, now);
        all.session.extend(rows.session);
        all.job.extend(rows.job);
        all.deltas.extend(rows.deltas);
    }
    Played { rows: all, recorder, conclusion: tally.conclude(end) }
}

fn is_control(line: &str) -> bool {
    let line: Json = serde_json::from_str(line).unwrap();
    line["type"].as_str().unwrap().starts_with("control_")
}

/// Returns the prompt that the agent repeats first, as if we had sent that one.
fn prompt_of(capture: &str) -> (Uuid, String) {
    let repeated = capture.lines().find_map(|line| {
        let message = parse_line(line.as_bytes());
        let MessageBody::User(user) = message.body else { return None };
        let text = user.message["content"].as_str()?.to_owned();
        Some((message.uuid?, text)).filter(|_| user.replay)
    });
    repeated.unwrap_or((PROMPT, "the prompt".to_owned()))
}

fn exited(code: i32, stderr: &str) -> AgentProcessExit {
    AgentProcessExit::Exited { code: Some(code), signal: None, stderr: stderr.to_owned() }
}

fn shown(played: &Played) -> String {
    let mut text = String::new();
    let RunOutcome { exit_reason, stop_reason, summary, error, cost, .. } = &played.conclusion;
    let conclusion = json!({
        "exit_reason": exit_reason, "stop_reason": stop_reason, "summary": summary,
        "error": error, "cost": cost,
    });
    writeln!(text, "# conclusion\n{conclusion:#}").unwrap();
    let (messages, tokens) = (played.recorder.messages(), played.recorder.tokens());
    writeln!(text, "# {messages} messages, about {tokens} tokens").unwrap();
    writeln!(text, "# deltas\n{}", json!(played.rows.deltas)).unwrap();
    writeln!(text, "# job rows").unwrap();
    played.rows.job.iter().for_each(|row| writeln!(text, "{row}").unwrap());
    writeln!(text, "# session rows").unwrap();
    played.rows.session.iter().for_each(|row| writeln!(text, "{}", elided(row.clone())).unwrap());
    text
}

/// Leaves out the lists of names that every turn begins with.
fn elided(row: Json) -> Json {
    match row {
        Json::Array(items) if items.len() > 5 => format!("({} items)", items.len()).into(),
        Json::Array(items) => items.into_iter().map(elided).collect(),
        Json::Object(fields) => Json::Object(
            fields
                .into_iter()
                .filter(|(key, _)| key != "subagent_stats")
                .map(|(key, value)| (key, elided(value)))
                .collect(),
        ),
        other => other,
    }
}

macro_rules! captures {
    ($($test:ident: $file:literal, $code:literal, $stderr:literal;)+) => {
        /// Every capture and how its process ended.
        const CAPTURES: &[(&str, &str)] = &[$(($file, include_str!(concat!("captures/", $file, ".jsonl"))),)+];
        $(
            #[test]
            fn $test() {
                let capture = include_str!(concat!("captures/", $file, ".jsonl"));
                let played = play(capture, &exited($code, $stderr));
                expect_file![concat!("rows/", $file, ".txt")].assert_eq(&shown(&played));
            }
        )+
    };
}

captures! {
    a_text: "01_text_default", 0, "";
    partial_text_and_thinking: "02_partial", 0, "";
    a_tool: "03_bash_tool_default_mode", 0, "";
    denied_tools: "04_mode_plan", 0, "";
    two_429s_and_then_success: "10_err429_retryafter_x2", 0, "";
    the_api_stays_overloaded: "10_err529_forever", 1, "";
    the_session_is_unknown: "22_resume_bad", 1, "No conversation found with session ID: 11111111-2222-3333-4444-555555555555\n";
    several_turns: "30_multi_turn_stream", 0, "";
    a_fork_does_not_pay_for_its_source: "31e_fork_at_with_sid", 0, "";
    permissions_are_asked: "40_control_can_use_tool", 0, "";
    an_interrupt_and_a_further_turn: "42_control_interrupt", 0, "";
    hooks: "44_control_hooks", 0, "";
    a_server_in_process: "45_control_sdk_mcp", 0, "";
    servers_by_pipe_and_http: "46_mcp_stdio_http", 0, "";
    no_key: "60_no_key", 1, "";
    out_of_turns: "61_max_turns", 1, "";
    out_of_budget: "61c_budget", 1, "";
    a_message_is_steered_in: "70c_queue_uuid", 0, "";
    a_sub_agent: "75_subagent", 0, "";
    a_background_command: "76_bg_bash", 0, "";
    a_stream_drops_and_its_text_is_discarded: "85_drop_midstream_partial", 0, "";
    an_interrupt_while_asking: "86_cancel_request", 1, "";
    questions: "87_ask_user", 0, "";
    an_older_version: "90_v197_multi", 0, "";
}

#[test]
fn every_capture_is_tested() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/captures");
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(files, CAPTURES.len());
}

#[test]
fn a_job_log_can_be_completed_from_the_session_log_row_by_row() {
    for (name, capture) in CAPTURES {
        let played = play(capture, &exited(0, ""));
        let mut again = recorder();
        let rows: Vec<Json> =
            played.rows.session.iter().flat_map(|row| again.replay_row(row)).collect();
        assert_eq!(rows, played.rows.job, "{name}");
        assert_eq!(again.messages(), played.recorder.messages(), "{name}");
        assert_eq!(again.tokens(), played.recorder.tokens(), "{name}");
    }
}

#[test]
fn ids_are_unique_and_the_first_job_row_shares_its_session_rows() {
    for (name, capture) in CAPTURES {
        let played = play(capture, &exited(0, ""));
        let ids = |rows: &[Json]| -> Vec<String> {
            rows.iter().map(|row| row["uuid"].as_str().unwrap().to_owned()).collect()
        };
        for rows in [&played.rows.session, &played.rows.job] {
            let mut ids = ids(rows);
            let all = ids.len();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), all, "{name}");
        }
        let mut again = recorder();
        for row in &played.rows.session {
            if let Some(first) = again.replay_row(row).first() {
                assert_eq!(first["uuid"], row["uuid"], "{name}");
            }
        }
    }
}

#[test]
fn parents_come_before_their_children() {
    for (name, capture) in CAPTURES {
        let played = play(capture, &exited(0, ""));
        let mut seen = vec![Json::Null];
        for row in &played.rows.session {
            assert!(seen.contains(&row["parentUuid"]), "{name}: {row}");
            seen.push(row["uuid"].clone());
        }
    }
}

#[test]
fn cancelling_a_run_keeps_what_it_had_said() {
    let capture = include_str!("captures/42_control_interrupt.jsonl");
    let until_result = capture.lines().take_while(|line| !line.contains(r#""type":"init""#));
    let upto = until_result.take(20).collect::<Vec<_>>().join("\n");
    let played = play(&upto, &AgentProcessExit::Cancelled { by: "ada".to_owned() });
    let error = played.conclusion.error.unwrap();
    assert_eq!(error.message, "cancelled by ada");
    assert_eq!(played.conclusion.exit_reason.as_str(), "cancelled");
    assert!(played.conclusion.summary.unwrap().starts_with("long long"));
}
