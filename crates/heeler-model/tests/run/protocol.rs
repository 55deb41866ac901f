//! The forms of the runner protocol. A runner outlives an upgrade, so a change of these files is a
//! change that both releases must read: see [`heeler_model::run::PROTOCOL`].

use expect_test::{ExpectFile, expect_file};
use heeler_config::RuntimeType;
use heeler_model::job_row::JobRow;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{
    AgentLaunchSpec, AgentQuestion, ClaudeLaunchSpec, ClosedQuestion, ControlEvent,
    ControlOperation, ControlReply, ControlReplyBody, ControlRequest, ErrorClass, McpServerSpec,
    PROTOCOL, QuestionAnswer, QuestionOutcome, QuestionPolicy, RunAuthority, RunCost, RunEnd,
    RunError, RunLimits, RunRecovery, RunResult, RunSpec, RunStartRecord, RunState,
    RuntimeLaunchSpec, SessionEnd, SessionPlan, SessionStart, UsageLimitState,
};
use heeler_model::{ExitReason, NativeSessionPosition, TriggerType, UsageTotals};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use uuid::Uuid;

const ENTRY: Uuid = uuid::uuid!("de03ca1e-3bc8-43f1-b418-f7403063818f");
const RUN: &str = "0199d3f1-7c00-7000-8000-000000000001";
const SESSION: &str = "8c6f5dd1-1b4b-4bde-9f9d-cf3bda6325d1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_794_703_600 + second).unwrap()
}

/// Holds the values' forms against a file and reads them back.
#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq>(values: &[T], forms: &ExpectFile) {
    let json = serde_json::to_string_pretty(values).unwrap();
    forms.assert_eq(&format!("{json}\n"));
    let again: Vec<T> = serde_json::from_str(&json).unwrap();
    assert!(again == values, "they read back as something else");
    for value in values {
        assert!(!serde_json::to_string(value).unwrap().contains('\n'), "it is more than a line");
    }
}

fn spec() -> RunSpec {
    RunSpec {
        protocol: PROTOCOL,
        run: RUN.parse().unwrap(),
        job: "job-2026-11-15-a1b2c3".parse().unwrap(),
        attempt: 1,
        agent: "website.coder".parse().unwrap(),
        trigger: TriggerType::Schedule,
        runtime: RuntimeType::Sdk,
        working_directory: "/srv/demo".into(),
        job_log: "/srv/demo/.heeler/jobs/job-2026-11-15-a1b2c3.jsonl".into(),
        projects: "/srv/demo/.heeler/agent-sessions/projects".into(),
        output_file: Some("/srv/demo/.heeler/jobs/job-2026-11-15-a1b2c3/output.log".into()),
        home: "/home/ada/.heeler".into(),
        sockets: "/run/user/1000/heeler".into(),
        session: SessionPlan::new(
            SessionStart::Resume { id: SESSION.parse().unwrap() },
            "the session goes on",
        ),
        limits: RunLimits {
            timeout_ms: Some(3_600_000),
            stall_timeout_ms: Some(600_000),
            max_turns: Some(50),
            budget_usd: Some(1.5),
            budget_source: None,
            grace_ms: Some(5000),
            lease_ms: None,
        },
        attendance: QuestionPolicy::Person { timeout_ms: 300_000 },
        sync_each_row: false,
        workspaces: None,
        keep_output: false,
        keep_agent: None,
    }
}

#[test]
fn specs() {
    let fork = RunSpec {
        runtime: RuntimeType::Scripted,
        trigger: TriggerType::Fork,
        output_file: None,
        session: SessionPlan::new(
            SessionStart::Fork {
                source: SESSION.parse().unwrap(),
                id: "new".parse().unwrap(),
                at: Some(ENTRY),
            },
            "as asked",
        ),
        limits: RunLimits::default(),
        attendance: QuestionPolicy::Nobody,
        sync_each_row: true,
        ..spec()
    };
    let start = SessionStart::Fresh { id: "new".parse().unwrap() };
    let fresh = RunSpec {
        session: SessionPlan { is_unrecorded: true, ..SessionPlan::new(start, "as asked") },
        runtime: RuntimeType::Command,
        keep_output: true,
        ..fork.clone()
    };
    let start = SessionStart::Continue {
        source: SESSION.parse().unwrap(),
        id: "new".parse().unwrap(),
        keep: 50,
    };
    let own = Some(NativeSessionPosition { bytes: 4096, last: ENTRY, hash: None });
    let session = SessionPlan { own, take_in: true, ..SessionPlan::new(start, "it is full") };
    let workspaces = Some("/srv/demo/.heeler/workspaces".into());
    let goes_on = RunSpec { session, workspaces, ..spec() };
    check(&[spec(), fork, fresh, goes_on], &expect_file!["protocol/spec.json"]);
}

#[test]
fn briefs() {
    let map = |key: &str, value: &str| IndexMap::from([(key.to_owned(), value.to_owned())]);
    let (headers, url) = (map("X-Team", "web"), "https://mcp.example.com/mcp".to_owned());
    let servers = IndexMap::from([
        (
            "files".to_owned(),
            McpServerSpec::Stdio {
                command: "npx".to_owned(),
                args: vec!["-y".to_owned()],
                env: map("MODE", "ro"),
                timeout_ms: Some(30_000),
                always_load: Some(true),
                is_on_host: false,
            },
        ),
        (
            "web".to_owned(),
            McpServerSpec::Http {
                url: url.clone(),
                headers: headers.clone(),
                timeout_ms: None,
                always_load: None,
            },
        ),
        (
            "old".to_owned(),
            McpServerSpec::Sse { url, headers, timeout_ms: None, always_load: None },
        ),
    ]);
    let claude = ClaudeLaunchSpec {
        program: "/usr/bin/claude".into(),
        permission_mode: "acceptEdits".to_owned(),
        granted: vec!["Bash(ls:*)".to_owned()],
        tools: Some(vec!["Read".to_owned()]),
        allowed_tools: Some(vec!["Read".to_owned(), "mcp__files__*".to_owned()]),
        denied_tools: vec!["WebFetch".to_owned()],
        protected: vec!["/srv/demo/heeler.yaml".into()],
        instructed: Vec::new(),
        unreadable: vec!["/srv/demo/.env".into()],
        readable: vec!["/srv/demo/.heeler/runs/1/skills".into()],
        review: true,
        system_prompt: Some("You are careful.".to_owned()),
        model: Some("sonnet".to_owned()),
        effort: Some(heeler_config::ReasoningEffort::High),
        setting_sources: vec!["project".to_owned()],
        plugins: vec!["/srv/plugins/a".into()],
        mcp_servers: servers,
    };
    let brief = |work: RuntimeLaunchSpec| AgentLaunchSpec {
        protocol: PROTOCOL,
        prompt: "do it".to_owned(),
        env: map("PATH", "/usr/bin"),
        secrets: vec!["a-secret-of-ours".to_owned()],
        shared_secrets: Vec::new(),
        work,
        send_files_to: Some("/srv/demo/sent".into()),
        authority: RunAuthority::default(),
        may_start_jobs: true,
        sandbox: None,
    };
    let briefs = [
        brief(RuntimeLaunchSpec::Claude(Box::new(claude))),
        brief(RuntimeLaunchSpec::Script { steps: vec![json!({"text": "hello"})] }),
        AgentLaunchSpec {
            send_files_to: None,
            authority: RunAuthority::default(),
            ..brief(RuntimeLaunchSpec::Command { command: "make test".to_owned() })
        },
    ];
    check(&briefs, &expect_file!["protocol/brief.json"]);
}

fn started() -> RunStartRecord {
    RunStartRecord {
        protocol: PROTOCOL,
        run: RUN.parse().unwrap(),
        pid: 4711,
        at: at(0),
        session: SESSION.parse().unwrap(),
        session_log: "/srv/demo/.heeler/agent-sessions/projects/-srv-demo/8c6f.jsonl".into(),
        socket: "/run/user/1000/heeler/r1.sock".into(),
        cgroup: Some("/sys/fs/cgroup/user.slice/heeler-r1".into()),
        job_rows_before: 0,
        session_rows_before: 12,
        own_sessions: None,
        agent_run: None,
    }
}

#[test]
fn starts() {
    let own_sessions = Some("/home/ada/.claude/projects".into());
    let without_cgroup = RunStartRecord { cgroup: None, own_sessions, ..started() };
    check(&[started(), without_cgroup], &expect_file!["protocol/started.json"]);
}

fn ask() -> AgentQuestion {
    AgentQuestion {
        protocol: PROTOCOL,
        id: "ask-1".to_owned(),
        at: at(3),
        kind: "permission".to_owned(),
        tool: "Write".to_owned(),
        input: json!({"file_path": "/srv/demo/a.txt", "content": "x"}),
        until: None,
        network_host: None,
        grant: None,
    }
}

#[test]
fn asks() {
    let question = AgentQuestion {
        kind: "question".to_owned(),
        tool: "AskUserQuestion".to_owned(),
        input: json!({"questions": [{"question": "Which?"}]}),
        ..ask()
    };
    let until = Some(at(300));
    let questions = [ask(), question.clone(), AgentQuestion { until, ..ask() }];
    check(&questions, &expect_file!["protocol/ask.json"]);
    let closed = |how, by: Option<&str>, text: Option<&str>| ClosedQuestion {
        protocol: PROTOCOL,
        ask: question.clone(),
        at: at(5),
        how,
        by: by.map(str::to_owned),
        text: text.map(str::to_owned),
        updated_input: None,
        kept_rules: Vec::new(),
    };
    let closed = [
        closed(QuestionOutcome::Allowed, Some("ada"), Some("B")),
        closed(QuestionOutcome::Denied, Some("the terminal"), Some("not now")),
        closed(QuestionOutcome::Expired, None, None),
        closed(QuestionOutcome::Withdrawn, None, None),
    ];
    check(&closed, &expect_file!["protocol/closed.json"]);
}

fn result() -> RunResult {
    RunResult {
        protocol: PROTOCOL,
        run: RUN.parse().unwrap(),
        job: "job-2026-11-15-a1b2c3".parse().unwrap(),
        end: RunEnd::Finished,
        exit_reason: ExitReason::Success,
        stop_reason: Some("end_turn".to_owned()),
        summary: Some("did it".to_owned()),
        error: None,
        cost: RunCost {
            usd: Some(0.25),
            usage: UsageTotals {
                num_turns: Some(2),
                api_duration_ms: Some(448),
                input_tokens: Some(20),
                cache_creation_input_tokens: Some(5),
                cache_read_input_tokens: Some(7),
                output_tokens: Some(10),
                per_model: IndexMap::from([(
                    "claude-opus-5-5".to_owned(),
                    json!({"inputTokens": 20, "costUSD": 0.25}),
                )]),
            },
        },
        session: Some(SessionEnd {
            id: SESSION.parse().unwrap(),
            log: "/srv/demo/.heeler/agent-sessions/projects/-srv-demo/8c6f.jsonl".into(),
            messages: 4,
            tokens: 1200,
            resumable: true,
            own: None,
        }),
        started_at: at(0),
        finished_at: at(9),
        exit_code: Some(0),
        settled: None,
        output: None,
        transcript: None,
        session_transcript: None,
        denied: heeler_model::DeniedTools::default(),
        usage_limit: None,
    }
}

#[test]
fn results() {
    let error = RunError {
        retry_after_ms: Some(30_000),
        resets_at: Some(at(3600)),
        messages_received: 5,
        ..RunError::new(ErrorClass::RateLimited, "API Error: Request rejected (429)")
    };
    let limited =
        RunResult { exit_reason: ExitReason::Error, error: Some(error), summary: None, ..result() };
    let settled = RunResult {
        end: RunEnd::Interrupted,
        exit_reason: ExitReason::Error,
        stop_reason: None,
        error: Some(RunError::new(ErrorClass::Interrupted, "the runner died")),
        cost: RunCost::default(),
        exit_code: None,
        settled: Some(RunRecovery {
            processes_ended: 2,
            rows_completed: 1,
            ..RunRecovery::default()
        }),
        ..result()
    };
    let bare = |end: RunEnd| RunResult {
        end,
        session: None,
        summary: None,
        exit_reason: ExitReason::Error,
        ..settled.clone()
    };
    let kept = RunResult { output: Some("did it\nand said so".to_owned()), ..result() };
    let usage_limit = Some(UsageLimitState { is_used_up: true, resets_at: Some(at(3600)) });
    let used_up = RunResult { usage_limit, ..result() };
    let results = [
        result(),
        limited,
        settled.clone(),
        bare(RunEnd::NeverStarted),
        bare(RunEnd::SessionBusy),
        kept,
        used_up,
    ];
    check(&results, &expect_file!["protocol/result.json"]);
}

#[test]
fn nothing_that_an_agent_says_brings_a_secret_into_a_result() {
    let secret = "hunter2-hunter2";
    let text = || format!("it said {secret}");
    let mut result = result();
    (result.summary, result.stop_reason) = (Some(text()), Some(text()));
    result.output = Some(text());
    let cure = text();
    result.error = Some(RunError { cure, ..RunError::new(ErrorClass::AgentFailed, &text()) });
    let figures = json!({secret: secret});
    result.cost.usage.per_model.insert(secret.to_owned(), figures);
    result.redact(&SecretRedactor::new(&[secret.to_owned()]));
    let written = serde_json::to_string(&result).unwrap();
    assert!(!written.contains(secret), "{written}");
    assert_eq!(written.matches("[secret]").count(), 8, "{written}");
}

#[test]
fn every_error_has_its_cure() {
    let errors: Vec<RunError> =
        ErrorClass::ALL.iter().map(|class| RunError::new(*class, "what happened")).collect();
    check(&errors, &expect_file!["protocol/errors.json"]);
}

#[test]
fn requests() {
    let ops = [
        ControlOperation::Cancel { now: false, by: "ada".to_owned() },
        ControlOperation::message("also this".to_owned()),
        ControlOperation::Answer {
            ask: "ask-1".to_owned(),
            answer: QuestionAnswer::Allow { input: Some(json!({"answers": {"Which?": "B"}})) },
            by: "ada".to_owned(),
            shown: None,
        },
        ControlOperation::Answer {
            ask: "ask-1".to_owned(),
            answer: QuestionAnswer::Allow { input: None },
            by: "ada".to_owned(),
            shown: None,
        },
        ControlOperation::Answer {
            ask: "ask-1".to_owned(),
            answer: QuestionAnswer::Deny { message: "no".to_owned(), interrupt: true },
            by: "ada".to_owned(),
            shown: None,
        },
        ControlOperation::Status,
        ControlOperation::Subscribe,
        ControlOperation::Message {
            text: "once".to_owned(),
            message_id: Some(SESSION.parse().unwrap()),
        },
    ];
    let requests: Vec<ControlRequest> =
        (1..).zip(ops).map(|(id, op)| ControlRequest { protocol: PROTOCOL, id, op }).collect();
    check(&requests, &expect_file!["protocol/request.json"]);
}

#[test]
fn replies() {
    let state = RunState {
        run: RUN.parse().unwrap(),
        job: "job-2026-11-15-a1b2c3".parse().unwrap(),
        session: SESSION.parse().unwrap(),
        agent_pid: Some(4712),
        started_at: at(0),
        last_line_at: Some(at(2)),
        rows: 7,
        cost_usd: Some(0.25),
        asks: vec![ask()],
        cancelling: false,
        disk_trouble: Some("no space left on device".to_owned()),
    };
    let bodies = [
        ControlReplyBody::Done,
        ControlReplyBody::Status(state),
        ControlReplyBody::Refused { reason: "there is no such question".to_owned() },
    ];
    let replies: Vec<ControlReply> =
        (1..).zip(bodies).map(|(id, body)| ControlReply { protocol: PROTOCOL, id, body }).collect();
    check(&replies, &expect_file!["protocol/reply.json"]);
}

#[test]
fn happenings() {
    let happenings = [
        ControlEvent::Row {
            at: 6,
            row: JobRow::new(json!({"type": "assistant", "content": "hello"})),
        },
        ControlEvent::Delta { text: "hel".to_owned(), from: None },
        ControlEvent::Delta { text: "lo".to_owned(), from: Some(3) },
        ControlEvent::Asked { ask: ask() },
        ControlEvent::Settled { ask: "ask-1".to_owned() },
        ControlEvent::Disk { trouble: Some("no space left on device".to_owned()) },
        ControlEvent::Disk { trouble: None },
        ControlEvent::Lagged,
        ControlEvent::Ended { result: Box::new(result()) },
    ];
    check(&happenings, &expect_file!["protocol/happening.json"]);
}
