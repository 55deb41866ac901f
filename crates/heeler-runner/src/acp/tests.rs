mod permissions;

use std::iter::once;

use heeler_config::{KNOWN_AGENTS, find_known_agent};
use heeler_model::run::TokenRates;
use proptest::prelude::*;

use super::*;
use crate::native_fork::NativeForkPoint;
use crate::program_rows::COLLECTED_TEXT_BYTES_MAX;
use crate::protocol_replay::RuntimeTrace;

pub(super) fn fresh() -> SessionStart {
    SessionStart::Fresh { id: "heeler-session".parse().unwrap() }
}

pub(super) fn resumed() -> SessionStart {
    SessionStart::Resume { id: "heeler-session".parse().unwrap() }
}

pub(super) fn options(known: Option<&'static KnownAgent>) -> AcpLaunchOptions {
    let mode = PermissionMode::Default;
    let protected = vec!["/project/heeler.yaml".into()];
    AcpLaunchOptions {
        launch: LaunchSpec { program: "agent".into(), args: Vec::new(), env: Vec::new() },
        agent: known.map_or("agent", |known| known.name).to_owned(),
        known,
        mode,
        policy: ProgramPolicy::new(mode, protected, Vec::new(), "/project".into()),
        client_tools: ClientTools::NONE,
        system_prompt: None,
        model: None,
        mcp_servers: IndexMap::new(),
        injected: Vec::new(),
        working_directory: "/project".into(),
        native_session: None,
        fork: None,
        budget: TokenBudget::default(),
    }
}

/// Opens a session and sends the prompt.
fn open(trace: &mut RuntimeTrace<'_>, session_reply: &Json) {
    let begin = trace.runtime.begin(Uuid::nil());
    trace.record(begin);
    let initialized = json!({ "protocolVersion": 1, "agentCapabilities": {
        "loadSession": true, "mcpCapabilities": { "http": true } } });
    reply(trace, "initialize", &initialized);
    reply(trace, "session/new", session_reply);
}

pub(super) fn reply(trace: &mut RuntimeTrace<'_>, method: &str, result: &Json) {
    let id = trace.requests.remove(method).unwrap_or_else(|| panic!("no request {method}"));
    trace.feed(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
}

fn update(fields: Json) -> Json {
    let params = json!({ "sessionId": "s", "update": fields });
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": params })
}

fn question(id: u64, path: &str) -> Json {
    json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "s",
        "toolCall": { "toolCallId": "c", "kind": "edit", "title": "edit",
            "locations": [{ "path": path }] },
        "options": [
            { "optionId": "always", "kind": "allow_always" },
            { "optionId": "yes", "kind": "allow_once" },
            { "optionId": "no", "kind": "reject_once" },
        ],
    } })
}

/// Runs a turn with these lines of the agent, and returns the trace of what follows the prompt.
fn run_turn(options: AcpLaunchOptions, lines: &[Json]) -> String {
    let mode = options.known.and_then(|known| known.modes.ask);
    let modes = json!({ "currentModeId": mode, "availableModes": [{ "id": mode }] });
    let mut runtime = AcpRuntime::new("hello".to_owned(), options);
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s", "modes": modes }));
    trace.trace.clear();
    lines.iter().for_each(|line| trace.feed(line));
    if trace.requests.contains_key("session/prompt") {
        reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn" }));
    }
    trace.exit()
}

#[test]
fn a_turn_that_uses_the_budget_is_the_last() {
    let rates = TokenRates { input: 1.0, output: 1.0, cache_read: 1.0, cache_write: 1.0 };
    let budget = TokenBudget::new(Some(rates), Some(0.5));
    let mut runtime =
        AcpRuntime::new("hello".to_owned(), AcpLaunchOptions { budget, ..options(None) });
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    // It waits for the next turn, which never begins.
    let effects = trace.runtime.send_message(Uuid::nil(), "more").unwrap();
    trace.record(effects);
    let usage = json!({ "inputTokens": 400_000, "outputTokens": 200_000 });
    reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn", "usage": usage }));
    assert!(trace.is_done);
    assert!(!trace.requests.contains_key("session/prompt"), "{}", trace.trace);
    assert!(trace.trace.contains("reached its budget of $0.5"), "{}", trace.trace);
}

#[test]
fn a_protected_file_is_denied_without_a_question() {
    let trace = run_turn(options(None), &[question(7, "/project/x/../heeler.yaml")]);
    assert!(
        trace.contains(r#"> reply {"outcome":{"outcome":"selected","optionId":"no"}}"#),
        "{trace}"
    );
    assert!(!trace.contains("ask "), "{trace}");
    assert!(trace.contains("is protected"), "{trace}");
}

#[test]
fn a_turn_that_the_agent_cancels_is_a_failure_unless_an_action_was_denied() {
    for (lines, is_interrupted) in
        [(Vec::new(), true), (vec![question(7, "/project/heeler.yaml")], false)]
    {
        let mut runtime = AcpRuntime::new("hello".to_owned(), options(None));
        runtime.launch_spec(&fresh());
        let mut trace = RuntimeTrace::new(&mut runtime);
        open(&mut trace, &json!({ "sessionId": "s" }));
        lines.iter().for_each(|line| trace.feed(line));
        reply(&mut trace, "session/prompt", &json!({ "stopReason": "cancelled" }));
        let text = trace.exit();
        assert_eq!(text.contains("the turn was interrupted"), is_interrupted, "{text}");
    }
}

#[test]
fn a_turn_without_a_reply_is_a_failure_of_an_agent_that_hides_errors() {
    let text = update(json!({ "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": "Hi." } }));
    let call = update(json!({ "sessionUpdate": "tool_call", "toolCallId": "c",
        "status": "completed", "kind": "execute", "rawInput": { "command": "ls" } }));
    for (agent, lines, is_failure) in [
        (find_known_agent("kimi"), vec![], true),
        (find_known_agent("kimi"), vec![text], false),
        (find_known_agent("kimi"), vec![call], false),
        (None, vec![], false),
    ] {
        let trace = run_turn(options(agent), &lines);
        assert_eq!(trace.contains("ended the turn without a reply"), is_failure, "{trace}");
    }
}

/// Qwen Code reports the tokens of each request with a part of the text.
#[test]
fn the_tokens_of_all_requests_of_a_turn_count() {
    let rates = TokenRates { input: 1.0, output: 1.0, cache_read: 1.0, cache_write: 1.0 };
    let budget = TokenBudget::new(Some(rates), Some(0.5));
    let mut runtime =
        AcpRuntime::new("hello".to_owned(), AcpLaunchOptions { budget, ..options(None) });
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    for input in [500_000, 10] {
        trace.feed(&update(json!({ "sessionUpdate": "agent_message_chunk",
            "content": { "type": "text", "text": "" },
            "_meta": { "usage": { "inputTokens": input, "outputTokens": 5 } } })));
    }
    reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn" }));
    assert!(trace.trace.contains("reached its budget of $0.5"), "{}", trace.trace);
}

/// goose refines the titles of calls beside the turn, and then waits for SIGTERM.
#[test]
fn an_update_after_the_last_turn_begins_no_other_one() {
    let call = |status: &str| {
        update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": status,
            "title": "touch", "kind": "execute", "rawInput": { "command": "ls" } }))
    };
    let text = update(json!({ "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": "late" } }));
    let title = update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c",
        "title": "touching a file" }));
    let late = [title, call("completed"), text];
    let mut runtime = AcpRuntime::new("hello".to_owned(), options(find_known_agent("goose")));
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    let modes = json!({ "currentModeId": "approve", "availableModes": [{ "id": "approve" }] });
    open(&mut trace, &json!({ "sessionId": "s", "modes": modes }));
    trace.feed(&call("completed"));
    reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn" }));
    trace.trace.clear();
    late.iter().for_each(|line| trace.feed(line));
    let text = trace.exit();
    assert!(!text.contains("assistant") && !text.contains("user"), "{text}");
    // What the agent said is not lost.
    assert_eq!(text.matches("an update after the last turn").count(), 1, "{text}");
}

#[test]
fn an_output_is_shown_in_its_readable_form() {
    let text = json!([{ "type": "content", "content": { "type": "text", "text": "made" } }]);
    let bytes = json!({ "output": [109, 97, 100, 101], "exit_code": 0 });
    for (content, raw, expected) in [
        (text.clone(), bytes.clone(), "\"made\""),
        (text.clone(), json!({ "stdout": "raw" }), "\"raw\""),
        (json!([]), bytes, "[109,97,100,101]"),
        (text, json!(null), "\"made\""),
    ] {
        let call = update(json!({ "sessionUpdate": "tool_call", "toolCallId": "c",
            "status": "completed", "kind": "execute", "content": content, "rawOutput": raw }));
        let trace = run_turn(options(None), &[call]);
        assert!(trace.contains(expected), "{expected} {trace}");
    }
}

/// Kimi Code reports the input of a call only after the question about it.
#[test]
fn a_question_shows_an_input_that_came_as_text() {
    let text =
        |text: &str| json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
    let call = |status: &str, content: Json| {
        update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "kind": "edit",
            "status": status, "title": "Write", "content": content }))
    };
    let mut asked = question(7, "");
    asked["params"]["toolCall"] = json!({ "toolCallId": "c", "title": "Write",
        "content": text("Requesting approval") });
    let lines = [
        call("pending", text("")),
        call("in_progress", text("{\"pa")),
        call("in_progress", text("{\"path\":\"/elsewhere/a\"}")),
        asked.clone(),
    ];
    let trace = run_turn(options(find_known_agent("kimi")), &lines);
    assert_eq!(trace.matches("\"tool_use\"").count(), 1, "{trace}");
    assert_eq!(trace.matches("/elsewhere/a").count(), 2, "the row and the question: {trace}");
    // The path counts for the protection of files.
    let lines = [call("in_progress", text("{\"path\":\"/project/heeler.yaml\"}")), asked.clone()];
    let trace = run_turn(options(find_known_agent("kimi")), &lines);
    assert!(trace.contains("is protected"), "{trace}");
    // The text of another agent is its output.
    let trace = run_turn(options(None), &lines);
    assert!(!trace.contains("is protected"), "{trace}");
}

#[test]
fn edits_are_allowed_once_if_the_mode_accepts_them() {
    let mode = PermissionMode::AcceptEdits;
    let policy = ProgramPolicy::new(mode, Vec::new(), Vec::new(), "/project".into());
    let accepting = || AcpLaunchOptions { mode, policy: policy.clone(), ..options(None) };
    let trace = run_turn(accepting(), &[question(7, "/project/a.rs")]);
    assert!(trace.contains(r#""optionId":"yes""#), "{trace}");
    // Outside of the working directory a person decides.
    let trace = run_turn(accepting(), &[question(7, "/elsewhere/a.rs")]);
    assert!(trace.contains("ask permission edit"), "{trace}");
}

#[test]
fn what_heeler_does_not_offer_is_refused() {
    for method in ["fs/read_text_file", "fs/write_text_file", "terminal/create", "x/unknown"] {
        let request = json!({ "jsonrpc": "2.0", "id": "r", "method": method,
            "params": { "sessionId": "s", "path": "/etc/passwd" } });
        let trace = run_turn(options(None), &[request]);
        assert!(trace.contains(&format!("> refused: Heeler does not offer `{method}`")), "{trace}");
    }
}

#[test]
fn lines_that_make_no_sense_change_nothing() {
    let lines = [
        json!({ "jsonrpc": "2.0", "id": 99, "result": { "stopReason": "end_turn" } }),
        json!({ "jsonrpc": "2.0", "id": "text", "result": {} }),
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": null }),
        update(json!({ "sessionUpdate": "tool_call_update", "status": "completed" })),
        update(json!({ "sessionUpdate": "tool_call", "toolCallId": "x".repeat(5000) })),
        update(json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "image" } })),
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": {
            "sessionId": "other", "update": { "sessionUpdate": "agent_message_chunk",
            "content": { "type": "text", "text": "forged" } } } }),
        json!({ "jsonrpc": "2.0", "id": 5, "method": "session/request_permission",
            "params": { "sessionId": "other" } }),
        json!([1, 2]),
    ];
    let trace = run_turn(options(None), &lines);
    assert!(!trace.contains("assistant"), "{trace}");
    assert!(trace.ends_with("\"\"\ndone\n"), "{trace}");
}

#[test]
fn a_second_question_with_the_same_id_is_refused() {
    let lines = [question(7, "/elsewhere/a"), question(7, "/elsewhere/b")];
    let trace = run_turn(options(None), &lines);
    assert_eq!(trace.matches("ask permission").count(), 1, "{trace}");
    assert!(trace.contains("> refused: this question is not"), "{trace}");
}

#[test]
fn a_line_that_is_too_long_ends_the_run() {
    let mut runtime = AcpRuntime::new("hello".to_owned(), options(None));
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    trace.trace.clear();
    trace.feed(&update(json!({ "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": "half" } })));
    let effects = trace.runtime.handle_oversized_line();
    trace.record(effects);
    assert_eq!(
        trace.exit(),
        "assistant [{\"type\":\"text\",\"text\":\"half\"}]\n\
         error None the agent sent a message that is too long to be read\ndone\n"
    );
}

#[test]
fn text_that_was_shown_is_recorded_if_the_agent_dies() {
    let mut runtime = AcpRuntime::new("hello".to_owned(), options(None));
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    trace.trace.clear();
    trace.feed(&update(json!({ "sessionUpdate": "tool_call", "toolCallId": "c",
        "status": "in_progress", "kind": "execute", "rawInput": { "command": "ls" } })));
    trace.feed(&update(json!({ "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": "half" } })));
    let text = trace.exit();
    assert!(text.contains(r#"assistant [{"type":"text","text":"half"}]"#), "{text}");
    assert!(text.contains("the agent ended"), "{text}");
}

#[test]
fn a_mode_that_the_agent_does_not_offer_ends_the_run() {
    let mut runtime = AcpRuntime::new("hello".to_owned(), options(find_known_agent("gemini")));
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    let modes = json!({ "currentModeId": "yolo", "availableModes": [{ "id": "yolo" }] });
    open(&mut trace, &json!({ "sessionId": "s", "modes": modes }));
    assert!(trace.is_done);
    let text = trace.exit();
    assert!(text.contains("does not offer its mode `default`"), "{text}");
}

#[test]
fn a_session_without_a_recorded_id_is_lost() {
    let mut runtime = AcpRuntime::new("hello".to_owned(), options(None));
    runtime.launch_spec(&resumed());
    let begin = runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime);
    trace.record(begin);
    let text = trace.exit();
    assert!(text.starts_with("error Some(\"session_not_found\")"), "{text}");
}

#[test]
fn a_message_during_a_turn_gets_the_next_turn() {
    let mut runtime = AcpRuntime::new("hello".to_owned(), options(None));
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    assert_eq!(trace.runtime.send_message(Uuid::nil(), "and this"), Some(Vec::new()));
    reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn" }));
    assert!(!trace.is_done);
    reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn" }));
    assert!(trace.is_done);
    assert_eq!(trace.runtime.send_message(Uuid::nil(), "too late"), None);
}

#[test]
fn a_system_prompt_precedes_the_first_prompt_only() {
    let mut setup = options(None);
    setup.system_prompt = Some("be brief".to_owned());
    let mut runtime = AcpRuntime::new("hello".to_owned(), setup);
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    trace.runtime.send_message(Uuid::nil(), "more").unwrap();
    reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn" }));
    assert_eq!(trace.trace.matches("be brief").count(), 1, "{}", trace.trace);
}

#[test]
fn stop_reasons_that_are_no_success_fail_the_turn() {
    for reason in ["max_tokens", "max_turn_requests", "refusal", "", "later version"] {
        let mut runtime = AcpRuntime::new("hello".to_owned(), options(None));
        runtime.launch_spec(&fresh());
        let mut trace = RuntimeTrace::new(&mut runtime);
        open(&mut trace, &json!({ "sessionId": "s" }));
        reply(&mut trace, "session/prompt", &json!({ "stopReason": reason }));
        assert!(trace.trace.contains("error=true"), "{reason}: {}", trace.trace);
        assert!(trace.is_done);
    }
}

/// Values that a hostile or broken agent may send in place of a member.
fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        prop_oneof![
            Just("s"),
            Just("c"),
            Just("in_progress"),
            Just("completed"),
            Just("edit"),
            Just("allow_once"),
            Just("tool_call"),
            Just("/project/heeler.yaml"),
            Just("é\u{0}"),
        ]
        .prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::vec(
                (
                    prop_oneof![
                        Just("sessionId"),
                        Just("update"),
                        Just("sessionUpdate"),
                        Just("content"),
                        Just("text"),
                        Just("toolCallId"),
                        Just("status"),
                        Just("rawInput"),
                        Just("options"),
                        Just("kind"),
                        Just("optionId"),
                        Just("toolCall"),
                    ],
                    inner
                ),
                0..5
            )
            .prop_map(|fields| {
                Json::Object(fields.into_iter().map(|(key, it)| (key.to_owned(), it)).collect())
            }),
        ]
    })
}

/// Messages near the protocol, with members of any form.
fn any_message() -> impl Strategy<Value = Json> {
    let kind = prop_oneof![
        Just("agent_message_chunk"),
        Just("agent_thought_chunk"),
        Just("tool_call"),
        Just("tool_call_update"),
        Just("usage_update"),
        Just("plan"),
        Just("unknown"),
    ];
    let method = prop_oneof![
        Just("session/update"),
        Just("session/request_permission"),
        Just("fs/read_text_file"),
        Just("_x"),
        Just("other"),
    ];
    prop_oneof![
        (0_u64..6, any_json()).prop_map(|(id, it)| json!({ "id": id, "result": it })),
        (0_u64..6, any_json()).prop_map(|(id, it)| json!({ "id": id, "error": it })),
        (any_json(), method, any_json())
            .prop_map(|(id, method, it)| json!({ "id": id, "method": method, "params": it })),
        (kind, any_json()).prop_map(|(kind, it)| {
            let mut fields = if it.is_object() { it } else { json!({ "content": it }) };
            fields["sessionUpdate"] = kind.into();
            update(fields)
        }),
    ]
}

proptest! {
    /// Any output of an agent: no panic, every call gets one result, every request a reply.
    #[test]
    fn any_output_is_survived(
        messages in prop::collection::vec(any_message(), 0..40),
        known in 0..=KNOWN_AGENTS.len(),
        interrupt_at in prop::option::of(0_usize..40),
    ) {
        let mut runtime = AcpRuntime::new("hello".to_owned(), options(KNOWN_AGENTS.get(known)));
        runtime.launch_spec(&fresh());
        let begin = runtime.begin(Uuid::nil());
        let mut trace = RuntimeTrace::new(&mut runtime);
        trace.record(begin);
        let opening = [
            json!({ "id": 1, "result": { "protocolVersion": 1 } }),
            json!({ "id": 2, "result": { "sessionId": "s" } }),
        ];
        for (at, message) in opening.iter().chain(&messages).enumerate() {
            trace.feed(message);
            if interrupt_at == Some(at) {
                trace.interrupt();
            }
        }
        for ask in trace.questions.clone() {
            trace.answer(&ask, &QuestionAnswer::Allow { input: None });
        }
        trace.exit();
    }

    /// Any bytes: no panic, and nothing is held back for ever.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut runtime = AcpRuntime::new("hello".to_owned(), options(None));
        runtime.launch_spec(&fresh());
        runtime.begin(Uuid::nil());
        let effects = runtime.handle_line(&bytes);
        // A row, and for a damaged reply the error and the end.
        prop_assert!(effects.len() <= 3);
        crate::protocol_fuzz::drive_acp(&bytes);
        crate::protocol_fuzz::drive_codex(&bytes);
        crate::protocol_fuzz::drive_qwen(&bytes);
        crate::protocol_fuzz::drive_claude(&bytes);
    }
}

#[test]
fn a_long_stream_is_recorded_in_parts() {
    let chunk = "x".repeat(COLLECTED_TEXT_BYTES_MAX / 2);
    let line = update(json!({ "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": chunk } }));
    let trace = run_turn(options(None), &once(line).cycle().take(5).collect::<Vec<_>>());
    assert_eq!(trace.matches("assistant ").count(), 3, "{}", trace.len());
}

fn fork_options() -> AcpLaunchOptions {
    let point = NativeForkPoint { session: "source".to_owned(), turn: None, is_at_end: true };
    let fork = Some(NativeFork { point, prompt: "go on".to_owned() });
    AcpLaunchOptions { fork, ..options(None) }
}

fn initialize(trace: &mut RuntimeTrace<'_>, capabilities: &Json) {
    let begin = trace.runtime.begin(Uuid::nil());
    trace.record(begin);
    let capabilities = json!({ "sessionCapabilities": capabilities });
    reply(trace, "initialize", &json!({ "protocolVersion": 1, "agentCapabilities": capabilities }));
}

#[test]
fn an_agent_that_offers_forks_forks_its_own_session() {
    let mut runtime = AcpRuntime::new("the record. go on".to_owned(), fork_options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    initialize(&mut trace, &json!({ "fork": {} }));
    assert!(trace.trace.contains("> session/fork {"), "{}", trace.trace);
    // Some agents repeat the history of the fork.
    trace.feed(&update(json!({ "sessionUpdate": "agent_message_chunk",
        "content": { "type": "text", "text": "old" } })));
    reply(&mut trace, "session/fork", &json!({ "sessionId": "s" }));
    reply(&mut trace, "session/prompt", &json!({ "stopReason": "end_turn" }));
    let written = trace.written.last().unwrap().to_string();
    assert!(written.contains("\"go on\"") && !written.contains("the record"), "{written}");
    assert!(!trace.trace.contains("old") && trace.is_done, "{}", trace.trace);
}

#[test]
fn without_a_fork_of_its_own_an_agent_gets_the_conversation_as_text() {
    let refused = json!({ "error": { "code": -32603, "message": "no such session" } });
    let same = json!({ "result": { "sessionId": "source" } });
    for (offer, answer) in [
        (json!({}), None),
        (json!({ "fork": {} }), Some(refused)),
        (json!({ "fork": {} }), Some(same)),
    ] {
        let mut runtime = AcpRuntime::new("the record. go on".to_owned(), fork_options());
        runtime.launch_spec(&fresh());
        let mut trace = RuntimeTrace::new(&mut runtime);
        initialize(&mut trace, &offer);
        if let Some(mut answer) = answer {
            answer["id"] = trace.requests.remove("session/fork").unwrap();
            trace.feed(&answer);
        }
        reply(&mut trace, "session/new", &json!({ "sessionId": "s" }));
        let prompt = trace.written.last().unwrap().to_string();
        assert!(prompt.contains("the record. go on"), "{prompt}");
        assert!(trace.trace.contains("system fork"), "{}", trace.trace);
    }
}

fn shell_question(id: u64, command: &str) -> Json {
    json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "s",
        "toolCall": { "toolCallId": "c", "kind": "execute", "title": "run",
            "rawInput": { "command": command } },
        "options": [{ "optionId": "yes", "kind": "allow_once" }],
    } })
}

fn terminal(id: u64, fields: Json) -> Json {
    let mut params = fields;
    params["sessionId"] = "s".into();
    json!({ "jsonrpc": "2.0", "id": id, "method": "terminal/create", "params": params })
}

/// The forms in which agents asked for a command and then created its terminal.
#[test]
fn an_allowed_command_is_performed_once_and_another_one_is_asked_about() {
    let line = "touch a.txt && echo made";
    let forms = [
        json!({ "command": line }),
        json!({ "command": "/bin/bash", "args": ["-c", format!("cd '/project' && {line}")],
            "cwd": "/project" }),
        json!({ "command": "/bin/bash", "args": ["-lc", line], "cwd": "/project" }),
        json!({ "command": line, "env": [
            { "name": "TERM", "value": "dumb" }, { "name": "GIT_PAGER", "value": "cat" },
            { "name": "LC_ALL", "value": "C" }, { "name": "GIT_TERMINAL_PROMPT", "value": "0" },
            { "name": "SHELL", "value": "/bin/bash" },
            { "name": "MAVEN_OPTS", "value": "-Dstyle.color=always" } ] }),
    ];
    let others = [
        json!({ "command": format!("{line}; rm x") }),
        json!({ "command": "/bin/bash", "args": ["-c", format!("cd /etc && {line}")],
            "cwd": "/project" }),
        json!({ "command": "touch", "args": ["a.txt && echo made"] }),
        json!({ "command": "/tmp/bash", "args": ["-c", line] }),
        json!({ "command": line, "cwd": "/" }),
        json!({ "command": line, "cwd": "/project/../other" }),
        json!({ "command": line, "env": [{ "name": "PATH", "value": "/tmp" }] }),
        json!({ "command": line, "env": [{ "name": "LD_PRELOAD", "value": "/tmp/x.so" }] }),
        json!({ "command": line, "env": [{ "name": "GIT_SSH_COMMAND", "value": "/tmp/x" }] }),
        json!({ "command": line, "env": [{ "name": "PAGER", "value": "/tmp/x" }] }),
        json!({ "command": line, "env": [{ "name": "MAVEN_OPTS", "value": "-javaagent:x" }] }),
        json!({ "command": line, "env": [{ "name": "SHELL", "value": "/tmp/bash" }] }),
        json!({ "command": "/bin/bash", "args": ["-c", format!("cd /project/$(x) && {line}")],
            "cwd": "/project/$(x)" }),
        json!({ "command": "/bin/bash", "args": ["-c", format!("cd '/project/'x'' && {line}")],
            "cwd": "/project/'x'" }),
    ];
    for (form, is_allowed) in
        forms.iter().map(|it| (it, true)).chain(others.iter().map(|it| (it, false)))
    {
        let client_tools = ClientTools { terminals: true, ..ClientTools::NONE };
        let setup = AcpLaunchOptions { client_tools, ..options(None) };
        let mut runtime = AcpRuntime::new("hello".to_owned(), setup);
        runtime.launch_spec(&fresh());
        let mut trace = RuntimeTrace::new(&mut runtime);
        open(&mut trace, &json!({ "sessionId": "s" }));
        trace.feed(&shell_question(7, line));
        let ask = trace.questions[0].clone();
        trace.answer(&ask, &QuestionAnswer::Allow { input: None });
        trace.trace.clear();
        trace.feed(&terminal(8, form.clone()));
        assert_eq!(trace.trace.contains("ClientTool"), is_allowed, "{form} {}", trace.trace);
        assert_eq!(trace.trace.contains("ask permission terminal"), !is_allowed, "{form}");
        // The permission is used up.
        trace.trace.clear();
        trace.feed(&terminal(9, forms[0].clone()));
        assert_eq!(trace.trace.contains("ClientTool"), !is_allowed, "{form} {}", trace.trace);
        trace.interrupt();
    }
}

#[test]
fn an_allowed_edit_is_written_without_another_question() {
    let client_tools = ClientTools { writes: true, ..ClientTools::NONE };
    let setup = AcpLaunchOptions { client_tools, ..options(None) };
    let mut runtime = AcpRuntime::new("hello".to_owned(), setup);
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace, &json!({ "sessionId": "s" }));
    trace.feed(&question(7, "/project/src/a.rs"));
    let ask = trace.questions[0].clone();
    trace.answer(&ask, &QuestionAnswer::Allow { input: None });
    let write = |id: u64, path: &str| {
        let params = json!({ "sessionId": "s", "path": path, "content": "new" });
        json!({ "jsonrpc": "2.0", "id": id, "method": "fs/write_text_file", "params": params })
    };
    for (id, (path, expected)) in (8..).zip([
        ("/project/src/a.rs", "ClientTool"),
        ("/project/x/../src/a.rs", "ClientTool"),
        ("/project/src/b.rs", "ask permission write_file"),
        ("/etc/passwd", "ask permission write_file"),
        ("/project/heeler.yaml", "> refused: denied"),
    ]) {
        trace.trace.clear();
        trace.feed(&write(id, path));
        assert!(trace.trace.contains(expected), "{path} {}", trace.trace);
    }
    trace.interrupt();
}
