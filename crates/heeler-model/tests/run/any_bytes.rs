//! Whatever an agent prints: nothing breaks, and nothing is lost without a rule.

use heeler_model::message::{AgentMessage, MessageBody, parse_line};
use heeler_model::outcome::{AgentProcessExit, RunOutcomeBuilder};
use heeler_model::recorder::{JOB_TEXT_BYTES_MAX, RecordedRows, TranscriptRecorder};
use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// A job row holds at most two texts of the largest size, each character escaped, and some words.
const JOB_ROW_BYTES_MAX: usize = 2 * 6 * JOB_TEXT_BYTES_MAX + 64 * 1024;

fn now() -> Timestamp {
    "2026-11-15T00:00:00Z".parse().unwrap()
}

fn recorder() -> TranscriptRecorder {
    TranscriptRecorder::new("s".parse().unwrap(), "/srv".into())
}

/// Says whether the rule is that a message leaves nothing.
fn is_passing(message: &AgentMessage) -> bool {
    match &message.body {
        MessageBody::Ignored { .. }
        | MessageBody::CommandLifecycle { .. }
        | MessageBody::BackgroundTasks { .. } => true,
        MessageBody::Delta { text } => text.is_empty() || message.parent_tool_use_id.is_some(),
        MessageBody::RateLimit(limit) => limit.status.as_deref() == Some("allowed"),
        _ => false,
    }
}

fn check_rows(rows: &RecordedRows) {
    for row in rows.session.iter().chain(&rows.job) {
        let text = row.to_string();
        assert!(row.is_object() && !text.contains('\n'));
        assert_eq!(&serde_json::from_str::<Json>(&text).unwrap(), row, "it can be read again");
        assert!(row["uuid"].is_string() && row["timestamp"].is_string() && row["type"].is_string());
    }
    for row in &rows.job {
        let bytes = row.to_string().len();
        assert!(bytes <= JOB_ROW_BYTES_MAX, "{bytes} bytes");
        let kind = row["type"].as_str().unwrap();
        assert!(["system", "assistant", "tool_use", "tool_result", "error"].contains(&kind));
    }
}

/// Checks what comes of some lines, one after another.
fn check(lines: &[Vec<u8>]) {
    let (mut recorder, mut again, mut tally) = (recorder(), recorder(), RunOutcomeBuilder::new());
    for line in lines {
        let message = parse_line(line);
        tally.add_message(&message);
        let passing = is_passing(&message);
        let rows = recorder.record_message(message, now());
        let is_nothing = rows == RecordedRows::default();
        assert_eq!(is_nothing, passing, "{}", String::from_utf8_lossy(line));
        check_rows(&rows);
        let replayed: Vec<Json> =
            rows.session.iter().flat_map(|row| again.replay_row(row)).collect();
        assert_eq!(replayed, rows.job);
    }
    let end = AgentProcessExit::Exited { code: Some(1), signal: None, stderr: "x".to_owned() };
    let conclusion = tally.conclude(&end);
    if let Some(error) = conclusion.error {
        check_rows(&recorder.record_failure(&error, conclusion.exit_reason, now()));
    }
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        any::<String>().prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Json::from),
            vec((any_key(), inner), 0..6)
                .prop_map(|fields| Json::Object(fields.into_iter().collect())),
        ]
    })
}

/// Keys that mean something, mostly.
fn any_key() -> impl Strategy<Value = String> {
    prop_oneof![9 => prop::sample::select(KEYS).prop_map(str::to_owned), 1 => any::<String>()]
}

/// Objects of every type, with anything in them.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let blocks = vec((prop::sample::select(&BLOCKS[..]), any_json()), 0..4);
    let content = prop_oneof![
        any_json(),
        blocks.prop_map(|blocks| {
            blocks
                .into_iter()
                .map(|(kind, with)| {
                    json!({"type": kind, "id": "t", "tool_use_id": "t",
            "name": with, "input": with, "content": with, "text": with})
                })
                .collect()
        })
    ];
    let kinds = (prop::sample::select(TYPES), prop::sample::select(SUBTYPES));
    (kinds, content, vec((any_key(), any_json()), 0..8)).prop_map(
        |((kind, subtype), content, rest)| {
            let mut line = json!({"message": {"content": content}});
            rest.into_iter().for_each(|(key, value)| line[key.as_str()] = value);
            line["type"] = kind.into();
            line["subtype"] = subtype.into();
            line.to_string().into_bytes()
        },
    )
}

const KEYS: &[&str] = &[
    "type",
    "subtype",
    "uuid",
    "session_id",
    "parent_tool_use_id",
    "message",
    "content",
    "id",
    "name",
    "input",
    "text",
    "tool_use_id",
    "is_error",
    "result",
    "errors",
    "usage",
    "event",
    "delta",
    "modelUsage",
    "model_usage_since_last_result",
    "total_cost_usd",
    "num_turns",
    "duration_api_ms",
    "patch",
    "tasks",
    "error",
    "status",
    "rate_limit_info",
    "resetsAt",
    "retry_delay_ms",
    "output",
    "isReplay",
    "mcp_servers",
    "failure",
    "timestamp",
];

const TYPES: &[&str] = &[
    "system",
    "assistant",
    "user",
    "stream_event",
    "result",
    "tool_use",
    "tool_result",
    "error",
    "tool_progress",
    "auth_status",
    "rate_limit_event",
    "command_lifecycle",
    "control_request",
    "transcript_mirror",
    "brand_new",
];

const SUBTYPES: &[&str] = &[
    "init",
    "api_retry",
    "task_started",
    "task_updated",
    "task_notification",
    "status",
    "permission_denied",
    "background_tasks_changed",
    "session_end",
    "compact_boundary",
    "success",
    "error_max_turns",
    "error_during_execution",
];

const BLOCKS: [&str; 6] =
    ["text", "thinking", "tool_use", "tool_result", "image", "web_search_tool_result"];

proptest! {
    // Each case is several lines, and each line is written, read and replayed.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn any_bytes_become_a_row_or_pass_by_rule(lines in vec(vec(any::<u8>(), 0..300), 1..5)) {
        check(&lines);
    }

    #[test]
    fn any_json_becomes_a_row_or_passes_by_rule(values in vec(any_json(), 1..5)) {
        check(&values.iter().map(|value| value.to_string().into_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn any_message_becomes_a_row_or_passes_by_rule(lines in vec(any_message(), 1..4)) {
        check(&lines);
    }

    #[test]
    fn a_message_cut_anywhere_does_no_harm(line in any_message(), at in any::<prop::sample::Index>()) {
        check(&[line[..at.index(line.len())].to_vec()]);
    }
}

#[test]
fn large_texts_in_every_place_keep_job_rows_small() {
    let large = "\u{1}".repeat(JOB_TEXT_BYTES_MAX + 1);
    let lines = [
        json!({"type": "assistant", "message": {"content": large}}),
        json!({"type": "assistant", "message": {"content": [{"type": large}]}}),
        json!({"type": "tool_use", "tool_name": large, "tool_use_id": large, "input": {"a": large}}),
        json!({"type": "tool_use", "tool_name": "x", "tool_use_id": "t", "input": large}),
        json!({"type": "tool_use", "input": {large.as_str(): large}}),
        json!({"type": "tool_result", "tool_use_id": large, "result": large}),
        json!({"type": "user", "message": {"content": large}, "parent_tool_use_id": large}),
        json!({"type": "system", "subtype": large, "content": large, "status": large}),
        json!({"type": "result", "subtype": large, "result": large, "stop_reason": large}),
        json!({"type": "error", "message": large, "code": large}),
        json!({"type": large, "x": large}),
    ];
    check(&lines.map(|line| line.to_string().into_bytes()));
}

#[test]
fn figures_of_any_size_are_added_up_to_the_most_that_fits() {
    for most in [i64::MAX, i64::MIN] {
        let counts = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
        let usage: Json = counts.iter().map(|key| ((*key).to_owned(), json!(most))).collect();
        let of_model = json!({"inputTokens": most, "outputTokens": most,
            "cacheReadInputTokens": most, "cacheCreationInputTokens": most});
        let plain = json!({"type": "result", "num_turns": most, "duration_api_ms": most,
            "usage": usage});
        let mut by_model = plain.clone();
        by_model["modelUsage"] = json!({"one": of_model, "other": of_model});
        let other_way = json!({"type": "result", "duration_api_ms": -1 - most});
        for line in [plain, by_model] {
            let mut tally = RunOutcomeBuilder::new();
            for line in [&line, &other_way, &line] {
                tally.add_message(&parse_line(line.to_string().as_bytes()));
            }
            let exit =
                AgentProcessExit::Exited { code: Some(0), signal: None, stderr: String::new() };
            let usage = tally.conclude(&exit).cost.usage;
            // A negative count cannot be true.
            let most = Some(most.max(0));
            assert_eq!((usage.num_turns, usage.input_tokens), (most, most), "{line}");
        }
    }
}
