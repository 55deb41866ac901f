use heeler_model::run::TokenRates;

use super::*;
use crate::protocol_replay::RuntimeTrace;

pub(super) fn fresh() -> SessionStart {
    SessionStart::Fresh { id: "heeler-session".parse().unwrap() }
}

pub(super) fn options() -> QwenLaunchOptions {
    let mode = PermissionMode::Default;
    let protected = vec!["/project/heeler.yaml".into()];
    QwenLaunchOptions {
        launch: LaunchSpec { program: "qwen".into(), args: Vec::new(), env: Vec::new() },
        mode,
        policy: ProgramPolicy::new(mode, protected, Vec::new(), "/project".into()),
        system_prompt: None,
        model: None,
        effort: None,
        max_turns: None,
        servers: Map::new(),
        native_session: None,
        session_usage: None,
        budget: TokenBudget::default(),
    }
}

pub(super) fn initialized(session: &str) -> Json {
    let capabilities = json!({ "can_handle_can_use_tool": true });
    let reply = json!({ "session_id": session, "capabilities": capabilities });
    let response = json!({ "subtype": "success", "request_id": INITIALIZE, "response": reply });
    json!({ "type": "control_response", "response": response })
}

fn turn_begin() -> Json {
    json!({ "type": "system", "subtype": "init", "model": "m", "qwen_code_version": "0.24.4" })
}

fn turn_end(input: u64, output: u64) -> Json {
    let usage = json!({ "input_tokens": input, "output_tokens": output });
    json!({ "type": "result", "subtype": "success", "is_error": false, "result": "done",
        "usage": usage })
}

fn said(input: u64, output: u64) -> Json {
    let usage = json!({ "input_tokens": input, "output_tokens": output });
    let content = json!([{ "type": "text", "text": "hi" }]);
    json!({ "type": "assistant", "message": { "content": content, "usage": usage } })
}

fn call(id: &str) -> Json {
    let content =
        json!([{ "type": "tool_use", "id": id, "name": "run_shell_command", "input": {} }]);
    json!({ "type": "assistant", "message": { "content": content } })
}

fn question(id: &str, tool: &str, input: Json) -> Json {
    let request = json!({ "subtype": "can_use_tool", "tool_name": tool, "tool_use_id": "call",
        "input": input });
    json!({ "type": "control_request", "request_id": id, "request": request })
}

/// Opens a session and begins the first turn.
fn open<'r>(runtime: &'r mut QwenRuntime, session: &SessionStart) -> RuntimeTrace<'r> {
    runtime.launch_spec(session);
    let begin = runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(runtime);
    trace.record(begin);
    trace.feed(&initialized("s"));
    trace.feed(&turn_begin());
    trace
}

/// Returns the rows of results that a message leads to.
fn results(runtime: &mut QwenRuntime, line: &Json) -> Vec<Map<String, Json>> {
    let effects = runtime.handle_line(line.to_string().as_bytes());
    let row = |effect| match effect {
        RuntimeEffect::Message(AgentMessage { body: MessageBody::Result(_), fields, .. }) => {
            Some(fields)
        }
        _ => None,
    };
    effects.into_iter().filter_map(row).collect()
}

#[test]
fn options_of_the_config_become_arguments() {
    let setup = QwenLaunchOptions {
        launch: LaunchSpec {
            program: "node".into(),
            args: vec![LaunchArg::ConfigText("program", "qwen.js".to_owned())],
            env: Vec::new(),
        },
        mode: PermissionMode::AcceptEdits,
        system_prompt: Some("--be brief".to_owned()),
        model: Some("m".to_owned()),
        max_turns: Some(3),
        native_session: Some("s".to_owned()),
        ..options()
    };
    let resume = SessionStart::Resume { id: "heeler-session".parse().unwrap() };
    let launch = QwenRuntime::new(String::new(), setup).launch_spec(&resume);
    let args: Vec<String> = launch.args.iter().map(|arg| format!("{arg:?}")).collect();
    assert_eq!(
        args.join(" "),
        "\"qwen.js\" \"--input-format\" \"stream-json\" \"--output-format\" \"stream-json\" \
         \"--include-partial-messages\" \"--approval-mode\" \"default\" \"--resume=s\" \
         \"--model=m\" \"--append-system-prompt=--be brief\" \"--max-session-turns=3\""
    );
}

#[test]
fn the_tokens_of_a_turn_are_the_increase_of_the_session() {
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    open(&mut runtime, &fresh()).feed(&said(100, 10));
    // A request that was not shown counts too.
    let rows = results(&mut runtime, &turn_end(150, 15));
    assert_eq!(rows[0]["usage"]["input_tokens"], 150);
    assert_eq!(rows[0]["session_usage"]["input_tokens"], 150);

    let resume = SessionStart::Resume { id: "heeler-session".parse().unwrap() };
    for (earlier, expected) in [(Some(150), 60), (None, 40), (Some(1000), 40)] {
        let usage = |input| TurnUsage { input, output: 1, ..TurnUsage::default() };
        let setup = QwenLaunchOptions {
            native_session: Some("s".to_owned()),
            session_usage: earlier.map(usage),
            ..options()
        };
        let mut runtime = QwenRuntime::new("hello".to_owned(), setup);
        open(&mut runtime, &resume).feed(&said(40, 4));
        let rows = results(&mut runtime, &turn_end(210, 20));
        assert_eq!(rows[0]["usage"]["input_tokens"], expected, "{earlier:?}");
    }
}

#[test]
fn a_run_ends_after_the_turn_that_used_its_budget() {
    let rates = TokenRates { input: 1.0, output: 1.0, cache_read: 1.0, cache_write: 1.0 };
    let budget = TokenBudget::new(Some(rates), Some(0.5));
    let mut runtime =
        QwenRuntime::new("hello".to_owned(), QwenLaunchOptions { budget, ..options() });
    let mut trace = open(&mut runtime, &fresh());
    let queued = trace.runtime.send_message(Uuid::nil(), "more");
    assert_eq!(queued, Some(Vec::new()));
    trace.feed(&turn_end(600_000, 0));
    assert!(trace.is_done && trace.trace.contains("reached its budget of $0.5"), "{}", trace.trace);
    assert!(!trace.trace.contains("more"), "{}", trace.trace);
}

#[test]
fn messages_wait_for_the_end_of_the_turn() {
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    let mut trace = open(&mut runtime, &fresh());
    trace.runtime.send_message(Uuid::nil(), "more").unwrap();
    trace.feed(&turn_end(1, 1));
    assert!(!trace.is_done && trace.trace.ends_with("{\"role\":\"user\",\"content\":\"more\"}\n"));
    trace.feed(&turn_begin());
    trace.feed(&turn_end(2, 2));
    assert!(trace.is_done);
}

/// The end of a background task begins a turn, which is not that of the message.
#[test]
fn a_turn_of_a_background_task_is_not_that_of_the_message() {
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    let mut trace = open(&mut runtime, &fresh());
    trace.runtime.send_message(Uuid::nil(), "more").unwrap();
    trace.feed(&turn_end(1, 1));
    trace.feed(&json!({ "type": "system", "subtype": "task_notification", "task_id": "t",
        "status": "completed" }));
    trace.feed(&turn_begin());
    trace.feed(&turn_end(2, 2));
    assert!(!trace.is_done, "{}", trace.trace);
    trace.feed(&turn_begin());
    trace.feed(&turn_end(3, 3));
    assert!(trace.is_done, "{}", trace.trace);
}

#[test]
fn an_interrupt_before_the_turn_begins_follows_with_its_begin() {
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime);
    trace.feed(&initialized("s"));
    trace.interrupt();
    assert!(!trace.is_done && !trace.trace.contains("> control_request"), "{}", trace.trace);
    trace.feed(&turn_begin());
    assert!(trace.trace.ends_with("> control_request {\"subtype\":\"interrupt\"}\n"));
    trace.feed(&json!({ "type": "result", "subtype": "error_during_execution", "is_error": true,
        "error": { "message": "Operation cancelled." } }));
    assert!(trace.is_done && trace.trace.contains("aborted_tools"), "{}", trace.trace);
}

#[test]
fn an_interrupt_before_any_message_ends_the_run() {
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime);
    trace.interrupt();
    assert!(trace.is_done);
}

#[test]
fn a_question_is_answered_by_the_policy_or_by_a_person() {
    let mode = PermissionMode::AcceptEdits;
    let protected = vec!["/project/heeler.yaml".into()];
    let policy = ProgramPolicy::new(mode, protected, Vec::new(), "/project".into());
    let mut runtime =
        QwenRuntime::new("hello".to_owned(), QwenLaunchOptions { mode, policy, ..options() });
    let mut trace = open(&mut runtime, &fresh());
    trace.feed(&question("1", "write_file", json!({ "file_path": "/project/a", "content": "" })));
    assert!(trace.trace.contains("\"behavior\":\"allow\""), "{}", trace.trace);
    trace.feed(&question("2", "edit", json!({ "file_path": "/project/x/../heeler.yaml" })));
    assert!(trace.trace.contains("is protected"), "{}", trace.trace);
    trace.feed(&question("3", "run_shell_command", json!({ "command": "ls" })));
    assert_eq!(trace.questions, ["3"]);
    trace.feed(&question("3", "run_shell_command", json!({ "command": "rm" })));
    assert!(trace.trace.contains("is open already"), "{}", trace.trace);
}

/// After its own limit, Qwen Code denies the action and does not say so to the runner.
#[test]
fn a_question_about_a_call_with_a_result_is_withdrawn() {
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    let mut trace = open(&mut runtime, &fresh());
    trace.feed(&call("call"));
    trace.feed(&question("1", "run_shell_command", json!({ "command": "ls" })));
    assert_eq!(trace.questions, ["1"]);
    let block = json!({ "type": "tool_result", "tool_use_id": "call", "is_error": true,
        "content": "Error: Control request timeout" });
    trace.feed(&json!({ "type": "user", "message": { "role": "user", "content": [block] } }));
    assert_eq!(trace.questions, Vec::<String>::new());
    let late = trace.runtime.deliver_answer("1", &QuestionAnswer::Allow { input: None });
    assert_eq!(late, Vec::new());
}

#[test]
fn open_questions_are_limited() {
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    let mut trace = open(&mut runtime, &fresh());
    for number in 0..=crate::program_questions::OPEN_QUESTIONS_MAX {
        trace.feed(&question(&number.to_string(), "run_shell_command", json!({})));
    }
    assert_eq!(trace.questions.len(), crate::program_questions::OPEN_QUESTIONS_MAX);
    assert!(trace.trace.contains("too many questions are open"), "{}", trace.trace);
}

#[test]
fn settings_that_qwen_code_does_not_accept_end_the_run() {
    let failed = json!({ "type": "control_response", "response": {
        "subtype": "error", "request_id": INITIALIZE, "error": "no" } });
    let mut silent = initialized("s");
    silent["response"]["response"]["capabilities"] = json!({});
    for (setup, reply, reason) in [
        (options(), failed, "cannot be initialized: no"),
        (options(), silent, "does not ask before it acts"),
        (options(), initialized(""), "without a usable ID"),
        (
            QwenLaunchOptions { effort: Some(ReasoningEffort::High), ..options() },
            initialized("s"),
            "does not apply the key `effort`",
        ),
    ] {
        let mut runtime = QwenRuntime::new("hello".to_owned(), setup);
        runtime.launch_spec(&fresh());
        runtime.begin(Uuid::nil());
        let mut trace = RuntimeTrace::new(&mut runtime);
        trace.feed(&reply);
        assert!(trace.is_done && trace.trace.contains(reason), "{}", trace.trace);
    }
}

#[test]
fn a_session_that_is_lost_or_another_one_is_not_continued() {
    let resume = SessionStart::Resume { id: "heeler-session".parse().unwrap() };
    let mut lost = QwenRuntime::new("hello".to_owned(), options());
    lost.launch_spec(&resume);
    let begin = lost.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut lost);
    trace.record(begin);
    assert!(trace.is_done && trace.trace.contains("session_not_found"), "{}", trace.trace);

    let setup = QwenLaunchOptions { native_session: Some("mine".to_owned()), ..options() };
    let mut other = QwenRuntime::new("hello".to_owned(), setup);
    other.launch_spec(&resume);
    other.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut other);
    trace.feed(&initialized("other"));
    assert!(trace.is_done && trace.trace.contains("session_not_found"), "{}", trace.trace);
}

#[test]
fn the_limit_of_turns_is_an_exit_without_a_result() {
    for (limit, code, is_limit) in [(Some(2), 53, true), (None, 53, false), (Some(2), 1, false)] {
        let setup = QwenLaunchOptions { max_turns: limit, ..options() };
        let mut runtime = QwenRuntime::new("hello".to_owned(), setup);
        open(&mut runtime, &fresh()).feed(&call("open"));
        let effects = runtime.handle_exit(Some(code));
        let mut trace = RuntimeTrace::new(&mut runtime);
        // The call is one of the first trace.
        trace.feed(&call("open"));
        trace.record(effects);
        assert_eq!(trace.trace.contains("max_turns"), is_limit, "{}", trace.trace);
    }
}

#[test]
fn a_text_that_looks_like_an_error_is_one_only_if_the_turn_failed() {
    let text = "[API Error: 429 slow down]";
    let line = json!({ "type": "assistant",
        "message": { "content": [{ "type": "text", "text": text }] } });
    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    let mut trace = open(&mut runtime, &fresh());
    trace.feed(&line);
    trace.feed(&turn_end(1, 1));
    assert!(
        trace.trace.contains("assistant [{\"type\":\"text\",\"text\":\"[API"),
        "{}",
        trace.trace
    );

    let mut runtime = QwenRuntime::new("hello".to_owned(), options());
    let mut trace = open(&mut runtime, &fresh());
    trace.feed(&line);
    trace.feed(&json!({ "type": "result", "subtype": "error_during_execution", "is_error": true,
        "error": { "message": text } }));
    assert!(trace.trace.contains("api error Some(429) Some(\"rate_limit\")"), "{}", trace.trace);
    assert_eq!(trace.trace.matches("[API Error").count(), 2, "{}", trace.trace);
}

#[test]
fn a_damaged_line_ends_the_run_only_while_the_session_is_opened() {
    let other = json!({ "type": "control_response", "response": { "request_id": "other" } });
    for line in ["{\"type\":\"control_resp".to_owned(), other.to_string()] {
        let mut runtime = QwenRuntime::new("hello".to_owned(), options());
        runtime.launch_spec(&fresh());
        runtime.begin(Uuid::nil());
        let mut trace = RuntimeTrace::new(&mut runtime);
        trace.feed_text("words of a shell");
        assert!(!trace.is_done && trace.runtime.is_opening());
        trace.feed_text(&line);
        assert!(trace.is_done && !trace.runtime.is_opening(), "{line}");

        let mut runtime = QwenRuntime::new("hello".to_owned(), options());
        let mut trace = open(&mut runtime, &fresh());
        trace.feed_text(&line);
        assert!(!trace.is_done, "{line}");
    }
}
