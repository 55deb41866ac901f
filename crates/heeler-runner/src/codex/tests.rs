use heeler_model::run::TokenRates;
use proptest::prelude::*;

use super::*;
use crate::native_fork::NativeForkPoint;
use crate::protocol_replay::RuntimeTrace;

pub(super) fn fresh() -> SessionStart {
    SessionStart::Fresh { id: "heeler-session".parse().unwrap() }
}

pub(super) fn options() -> CodexLaunchOptions {
    let mode = PermissionMode::Default;
    let protected = vec!["/project/heeler.yaml".into()];
    CodexLaunchOptions {
        launch: LaunchSpec { program: "codex".into(), args: Vec::new(), env: Vec::new() },
        mode,
        policy: ProgramPolicy::new(mode, protected, Vec::new(), "/project".into()),
        system_prompt: None,
        model: None,
        effort: None,
        servers: serde_json::Map::new(),
        working_directory: "/project".into(),
        is_isolated: false,
        native_session: None,
        fork: None,
        budget: TokenBudget::default(),
    }
}

fn reply(trace: &mut RuntimeTrace<'_>, method: &str, result: &Json) {
    let id = trace.requests.remove(method).unwrap_or_else(|| panic!("no request {method}"));
    trace.feed(&json!({ "id": id, "result": result }));
}

fn refuse(trace: &mut RuntimeTrace<'_>, method: &str, message: &str) {
    let id = trace.requests.remove(method).unwrap_or_else(|| panic!("no request {method}"));
    trace.feed(&json!({ "id": id, "error": { "code": -32600, "message": message } }));
}

/// Opens a thread; the first turn has no reply yet.
fn open(trace: &mut RuntimeTrace<'_>) {
    let begin = trace.runtime.begin(Uuid::nil());
    trace.record(begin);
    reply(trace, "initialize", &json!({ "userAgent": "heeler/0.166.0 (x)" }));
    reply(trace, "thread/start", &json!({ "thread": { "id": "t" }, "model": "m" }));
}

fn event(method: &str, mut params: Json) -> Json {
    params["threadId"] = "t".into();
    json!({ "method": method, "params": params })
}

fn completed(status: &str) -> Json {
    event("turn/completed", json!({ "turn": { "id": "u", "status": status } }))
}

#[test]
fn the_sandbox_of_codex_is_off_inside_of_heelers() {
    let policies = |mode, is_isolated| {
        let mut setup = options();
        (setup.mode, setup.is_isolated) = (mode, is_isolated);
        CodexRuntime::new(String::new(), setup).policies()
    };
    let (mode, plan) = (PermissionMode::AcceptEdits, PermissionMode::Plan);
    assert_eq!(policies(mode, false), ("untrusted", "workspace-write"));
    assert_eq!(policies(mode, true), ("untrusted", "danger-full-access"));
    assert_eq!(policies(plan, false), ("never", "read-only"));
    let bypass = PermissionMode::BypassPermissions;
    assert_eq!(policies(bypass, false), ("never", "danger-full-access"));
}

#[test]
fn an_interrupt_before_the_turn_has_an_id_follows_later() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace);
    trace.interrupt();
    assert!(!trace.requests.contains_key("turn/interrupt"));
    reply(&mut trace, "turn/start", &json!({ "turn": { "id": "u" } }));
    assert!(trace.requests.contains_key("turn/interrupt"));
    trace.feed(&completed("interrupted"));
    assert!(trace.is_done);
}

#[test]
fn a_turn_that_uses_the_budget_is_interrupted_and_is_the_last() {
    let rates = TokenRates { input: 1.0, output: 1.0, cache_read: 1.0, cache_write: 1.0 };
    let budget = TokenBudget::new(Some(rates), Some(0.5));
    let setup = CodexLaunchOptions { budget, ..options() };
    let mut runtime = CodexRuntime::new("hello".to_owned(), setup);
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace);
    reply(&mut trace, "turn/start", &json!({ "turn": { "id": "u" } }));
    let usage = |tokens: u64| {
        let counts = json!({ "inputTokens": tokens, "outputTokens": 0 });
        let usage = json!({ "total": counts, "last": counts });
        event("thread/tokenUsage/updated", json!({ "tokenUsage": usage }))
    };
    trace.feed(&usage(400_000));
    assert!(!trace.requests.contains_key("turn/interrupt"));
    trace.feed(&usage(100_001));
    assert!(trace.requests.contains_key("turn/interrupt"), "{}", trace.trace);
    assert_eq!(trace.runtime.send_message(Uuid::nil(), "more"), None);
    trace.feed(&completed("interrupted"));
    assert!(trace.is_done);
    assert!(trace.trace.contains("reached its budget of $0.5"), "{}", trace.trace);
}

#[test]
fn an_interrupt_before_any_turn_ends_the_run() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let begin = runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime);
    trace.record(begin);
    trace.interrupt();
    assert!(trace.is_done);
}

#[test]
fn a_message_that_misses_its_turn_gets_the_next_one() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace);
    reply(&mut trace, "turn/start", &json!({ "turn": { "id": "u" } }));
    let effects = trace.runtime.send_message(Uuid::nil(), "more").unwrap();
    trace.record(effects);
    // The turn ends before the message reaches it, so the run must not end yet.
    trace.feed(&completed("completed"));
    assert!(!trace.is_done);
    refuse(&mut trace, "turn/steer", "no active turn");
    assert!(trace.requests.contains_key("turn/start"), "{}", trace.trace);
    reply(&mut trace, "turn/start", &json!({ "turn": { "id": "v" } }));
    trace.feed(&completed("completed"));
    assert!(trace.is_done);
}

#[test]
fn a_protected_file_is_declined_without_a_question() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace);
    let item = json!({ "type": "fileChange", "id": "i", "status": "inProgress",
        "changes": [{ "path": "/project/heeler.yaml", "kind": { "type": "update" } }] });
    trace.feed(&event("item/started", json!({ "item": item })));
    let mut request = event("item/fileChange/requestApproval", json!({ "itemId": "i" }));
    request["id"] = 0.into();
    trace.feed(&request);
    assert!(trace.trace.contains(r#"> reply {"decision":"decline"}"#), "{}", trace.trace);
    assert!(trace.questions.is_empty());
}

#[test]
fn requests_that_heeler_does_not_know_are_refused() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace);
    let mut request = event("item/tool/requestUserInput", json!({}));
    request["id"] = "x".into();
    trace.feed(&request);
    assert!(trace.trace.contains("> refused: Heeler does not offer"), "{}", trace.trace);
}

#[test]
fn a_notification_that_heeler_does_not_know_keeps_a_row_at_any_time() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    let count = |trace: &RuntimeTrace<'_>, text: &str| trace.trace.matches(text).count();
    let unknown = ["item/telepathy/delta", "turn/paused", "thread/dreamed", "news"];
    let known = ["item/reasoning/textDelta", "turn/diff/updated", "thread/status/changed"];
    let feed = |trace: &mut RuntimeTrace<'_>, methods: &[&str]| {
        for method in methods {
            trace.feed(&event(method, json!({ "note": "words" })));
        }
    };
    open(&mut trace);
    for turn in 1..=2 {
        feed(&mut trace, &unknown);
        feed(&mut trace, &known);
        for method in unknown {
            assert_eq!(count(&trace, &format!("unknown {method}\n")), turn, "{}", trace.trace);
        }
        if turn == 1 {
            // After the last turn, too.
            reply(&mut trace, "turn/start", &json!({ "turn": { "id": "u" } }));
            trace.feed(&completed("completed"));
            assert!(trace.is_done);
        }
    }
    assert_eq!(count(&trace, "unknown "), 2 * unknown.len(), "{}", trace.trace);
}

#[test]
fn a_thread_that_codex_does_not_have_is_lost() {
    let mut setup = options();
    setup.native_session = Some("old".to_owned());
    let mut runtime = CodexRuntime::new("hello".to_owned(), setup);
    runtime.launch_spec(&SessionStart::Resume { id: "heeler-session".parse().unwrap() });
    let begin = runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime);
    trace.record(begin);
    reply(&mut trace, "initialize", &json!({}));
    refuse(&mut trace, "thread/resume", "no rollout found for thread id old");
    assert!(trace.is_done);
    assert!(trace.trace.contains("error Some(\"session_not_found\")"), "{}", trace.trace);
}

#[test]
fn a_full_limit_is_reported_with_its_reset() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace);
    let limits = |percent: u64| {
        json!({ "method": "account/rateLimits/updated", "params": { "rateLimits": {
            "primary": { "usedPercent": percent, "resetsAt": 1_794_900_000_u64 },
            "secondary": { "usedPercent": 20, "resetsAt": 1_795_900_000_u64 } } } })
    };
    for percent in [10, 50, 92, 95, 100] {
        trace.feed(&limits(percent));
    }
    let rows: Vec<&str> = trace.trace.lines().filter(|it| it.starts_with("limit")).collect();
    assert_eq!(
        rows,
        [
            "limit Some(\"allowed\") resets Some(1795900000)",
            "limit Some(\"allowed_warning\") resets Some(1794900000)",
            "limit Some(\"rejected\") resets Some(1794900000)",
        ]
    );
}

/// Messages near the protocol, with members of any form.
fn any_message() -> impl Strategy<Value = Json> {
    let leaf = || {
        prop_oneof![
            Just(Json::Null),
            Just(json!("t")),
            Just(json!("i")),
            Just(json!(7)),
            Just(json!([])),
            Just(json!({ "id": "i", "type": "commandExecution" })),
            Just(json!({ "id": "i", "type": "agentMessage", "text": "x", "status": "completed" })),
            Just(json!({ "id": "i", "type": "fileChange", "changes": [{ "path": 1 }, null] })),
            Just(json!({ "id": "u", "status": "completed" })),
            Just(json!({ "primary": { "usedPercent": 1e300 } })),
        ]
    };
    let method = prop_oneof![
        Just("item/started"),
        Just("item/completed"),
        Just("item/agentMessage/delta"),
        Just("turn/started"),
        Just("turn/completed"),
        Just("error"),
        Just("other"),
        Just("thread/tokenUsage/updated"),
        Just("account/rateLimits/updated"),
        Just("serverRequest/resolved"),
        Just("item/commandExecution/requestApproval"),
        Just("item/fileChange/requestApproval"),
    ];
    let params = (leaf(), leaf(), leaf(), leaf()).prop_map(|(thread, item, turn, rest)| {
        json!({ "threadId": thread, "item": item, "turn": turn, "itemId": rest, "error": rest,
            "tokenUsage": rest, "rateLimits": rest, "delta": rest, "requestId": rest })
    });
    prop_oneof![
        (0_u64..5, leaf()).prop_map(|(id, it)| json!({ "id": id, "result": it })),
        (0_u64..5, leaf()).prop_map(|(id, it)| json!({ "id": id, "error": it })),
        (method, params.clone()).prop_map(|(method, it)| json!({ "method": method, "params": it })),
        (leaf(), method_of_requests(), params)
            .prop_map(|(id, method, it)| json!({ "id": id, "method": method, "params": it })),
    ]
}

fn method_of_requests() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("item/commandExecution/requestApproval"), Just("other")]
}

proptest! {
    /// Any output of Codex: no panic, and every call gets one result.
    #[test]
    fn any_output_is_survived(
        messages in prop::collection::vec(any_message(), 0..40),
        interrupt_at in prop::option::of(0_usize..40),
    ) {
        let mut runtime = CodexRuntime::new("hello".to_owned(), options());
        runtime.launch_spec(&fresh());
        let mut trace = RuntimeTrace::new(&mut runtime);
        open(&mut trace);
        for (at, message) in messages.iter().enumerate() {
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
}

#[test]
fn a_damaged_line_ends_the_run_only_while_the_thread_is_opened() {
    for line in ["{\"id\":1,\"resu", "{\"id\":9,\"result\":{}}", "{\"id\":[1],\"method\":\"m\"}"] {
        let mut runtime = CodexRuntime::new("hello".to_owned(), options());
        runtime.launch_spec(&fresh());
        let begin = runtime.begin(Uuid::nil());
        let mut trace = RuntimeTrace::new(&mut runtime);
        trace.record(begin);
        trace.feed_text("words of a shell");
        assert!(!trace.is_done && trace.runtime.is_opening());
        trace.feed_text(line);
        assert!(trace.is_done && !trace.runtime.is_opening(), "{line}");

        let mut runtime = CodexRuntime::new("hello".to_owned(), options());
        runtime.launch_spec(&fresh());
        let mut trace = RuntimeTrace::new(&mut runtime);
        open(&mut trace);
        trace.feed_text(line);
        assert!(!trace.is_done && !trace.runtime.is_opening(), "{line}");
    }
}

#[test]
fn codex_forks_its_own_thread_or_gets_the_conversation_as_text() {
    for has_thread in [true, false] {
        let turn = Some("turn 1".to_owned());
        let point = NativeForkPoint { session: "source".to_owned(), turn, is_at_end: false };
        let fork = Some(NativeFork { point, prompt: "go on".to_owned() });
        let setup = CodexLaunchOptions { fork, ..options() };
        let mut runtime = CodexRuntime::new("the record. go on".to_owned(), setup);
        runtime.launch_spec(&fresh());
        let mut trace = RuntimeTrace::new(&mut runtime);
        let begin = trace.runtime.begin(Uuid::nil());
        trace.record(begin);
        reply(&mut trace, "initialize", &json!({ "userAgent": "heeler/0.166.0 (x)" }));
        let asked = trace.written.last().unwrap().clone();
        assert_eq!(asked["params"]["threadId"], "source");
        assert_eq!(asked["params"]["lastTurnId"], "turn 1");
        let opened = json!({ "thread": { "id": "t" }, "model": "m" });
        if has_thread {
            reply(&mut trace, "thread/fork", &opened);
        } else {
            refuse(&mut trace, "thread/fork", "no rollout found");
            reply(&mut trace, "thread/start", &opened);
        }
        let sent = trace.written.last().unwrap().to_string();
        assert_eq!(sent.contains("the record"), !has_thread, "{sent}");
        assert!(trace.trace.contains("system fork"), "{}", trace.trace);
        reply(&mut trace, "turn/start", &json!({ "turn": { "id": "u" } }));
        let effects = trace.runtime.handle_line(completed("completed").to_string().as_bytes());
        let result = effects.iter().find_map(|effect| match effect {
            RuntimeEffect::Message(message) => message.fields.get("native_turn"),
            _ => None,
        });
        assert_eq!(result, Some(&json!("u")), "a later fork can end here");
    }
}

#[test]
fn a_limit_that_is_used_up_is_told_with_each_report_and_not_with_credits() {
    let mut runtime = CodexRuntime::new("hello".to_owned(), options());
    runtime.launch_spec(&fresh());
    let mut trace = RuntimeTrace::new(&mut runtime);
    open(&mut trace);
    let limits = |percent: u64, has_credits: bool| {
        let primary = json!({ "usedPercent": percent, "resetsAt": 4_000_000_000_u64 });
        let credits = json!({ "hasCredits": has_credits, "unlimited": false });
        let limits = json!({ "primary": primary, "credits": credits });
        json!({ "method": "account/rateLimits/updated", "params": { "rateLimits": limits } })
    };
    for (percent, has_credits) in [(95, false), (95, false), (100, false), (100, false)] {
        trace.feed(&limits(percent, has_credits));
    }
    assert_eq!(trace.trace.matches("limit Some(\"allowed_warning\")").count(), 1);
    assert_eq!(trace.trace.matches("limit Some(\"rejected\")").count(), 2);
    trace.feed(&limits(100, true));
    assert_eq!(trace.trace.matches("limit Some(\"rejected\")").count(), 2, "{}", trace.trace);
}
