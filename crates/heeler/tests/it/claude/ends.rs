//! How a run ends when it does not end well: limits, errors of the API, cancel, signals.

use expect_test::expect;
use heeler_model::ExitReason::{Cancelled, Error, MaxTurns, Timeout};
use heeler_model::run::ErrorClass;
use heeler_testkit::{ModelScript, ModelScriptStep};
use rustix::process::{Signal, kill_process};
use serde_json::{Value as Json, json};

use super::{BOTH, Cli, End, Rig, Sdk, alike, failed, gone, succeeded, told, tool_results};

fn cheap_tool() -> ModelScriptStep {
    let usage = json!({"input_tokens": 1_000_000, "output_tokens": 1000});
    ModelScriptStep {
        usage: Some(usage),
        ..ModelScriptStep::tools([("Bash", json!({"command": "echo one"}))])
    }
}

#[test]
fn turns_and_money_run_out() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let script = ModelScript::new().step(cheap_tool()).step(cheap_tool()).text("Never said.");
        let mut plan = rig.script(runtime, &script);
        plan.spec.limits.max_turns = Some(1);
        let end = rig.run(plan);
        failed(&end, ErrorClass::MaxTurns, MaxTurns);
        asked_once(&end);
        assert_eq!(end.result.cost.usage.num_turns, Some(2), "{:#?}", end.result.cost);
        let turns = rig.show(&end.rows);

        let mut plan = rig.script(runtime, &script);
        plan.spec.limits.budget_usd = Some(1.0);
        let end = rig.run(plan);
        failed(&end, ErrorClass::Budget, Error);
        asked_once(&end);
        assert!(end.result.cost.usd.is_some_and(|usd| usd > 1.0), "{:#?}", end.result.cost);
        turns + rig.show(&end.rows).as_str()
    });
    alike(
        &shown,
        &expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
        {"type":"tool_use","tool_name":"Bash","tool_use_id":"<tool0>","input":{"command":"echo one"}}
        {"type":"tool_result","tool_use_id":"<tool0>","result":"one","success":true,"tool_name":"Bash"}
        {"type":"tool_result","subtype":"error_max_turns","error":"Reached maximum number of turns (1)","success":false,"is_error":true,"num_turns":2,"stop_reason":"tool_use","terminal_reason":"max_turns","total_cost_usd":4.02}
        {"type":"error","message":"max_turns: raise `max_turns`, or resume the session to continue","code":"max_turns","recoverable":false,"retry_after_ms":null,"resets_at":null,"cure":"raise `max_turns`, or resume the session to continue"}
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
        {"type":"tool_use","tool_name":"Bash","tool_use_id":"<tool0>","input":{"command":"echo one"}}
        {"type":"tool_result","subtype":"error_max_budget_usd","error":"Reached maximum budget ($1)","success":false,"is_error":true,"num_turns":1,"stop_reason":"tool_use","terminal_reason":"budget_exhausted","total_cost_usd":4.02}
        {"type":"error","message":"the run has used its budget of $1.00","code":"budget","recoverable":false,"retry_after_ms":null,"resets_at":null,"cure":"raise the agent's budget or add credit, then resume the session to continue"}
    "#]],
    );
}

/// The model was sent the prompt, and nothing after it.
#[track_caller]
fn asked_once(end: &End) {
    let [sent] = &end.sent[..] else { panic!("{:#?}", end.sent) };
    let [asked] = &sent.history()[..] else { panic!("{:#?}", sent.history()) };
    assert!(asked.starts_with("user: Please. MOCK["), "{asked}");
}

#[test]
fn errors_of_the_api_are_told_by_class() {
    let rig = Rig::new();
    let limited = ModelScriptStep { retry_after: Some(1), ..ModelScriptStep::error(429) };
    let cases = [
        (Sdk, 401, ModelScriptStep::error(401), ErrorClass::Authentication, false),
        (Sdk, 429, limited, ErrorClass::RateLimited, true),
        (Sdk, 500, ModelScriptStep::error(500), ErrorClass::ServerError, true),
        (Sdk, 529, ModelScriptStep::error(529), ErrorClass::Overloaded, true),
        (Sdk, 400, ModelScriptStep::error(400), ErrorClass::InvalidRequest, false),
        (Cli, 529, ModelScriptStep::error(529), ErrorClass::Overloaded, true),
        (Cli, 401, ModelScriptStep::error(401), ErrorClass::Authentication, false),
    ];
    for (runtime, status, step, class, recoverable) in cases {
        let end = rig.run(rig.script(runtime, &ModelScript::new().step(step)));
        failed(&end, class, Error);
        let error = end.result.error.as_ref().unwrap();
        assert_eq!(error.recoverable, recoverable, "{error:#?}");
        assert!(!error.cure.is_empty(), "{error:#?}");
        // What the agent says of it, the end of the turn, and what we say of it.
        let [.., told, turn, ours] = &end.rows[..] else { panic!("{:#?}", end.rows) };
        assert_eq!((&told["type"], &told["status"]), (&json!("error"), &json!(status)), "{told}");
        assert_eq!((&turn["success"], &turn["api_error_status"]), (&json!(false), &json!(status)));
        assert_eq!((&ours["type"], &ours["code"]), (&json!("error"), &json!(class)), "{ours}");
        // It was asked the same each time, and the retries are rows.
        let asked: Vec<_> = end.sent.iter().map(|sent| sent.history()).collect();
        assert!(asked.iter().all(|it| *it == asked[0] && it.len() == 1), "{asked:#?}");
        let is_retry = |row: &&Json| row["subtype"] == "api_retry";
        let retries = end.rows.iter().filter(is_retry).count();
        // What is wrong with a request Claude tries to mend silently.
        let expected = if status == 400 { (6, 0) } else { (2, 1) };
        assert_eq!((asked.len(), retries), expected, "{status}: {:#?}", end.rows);
    }
}

#[test]
fn an_overloaded_api_shows_in_the_rows() {
    let rig = Rig::new();
    let end = rig.run(rig.script(Sdk, &ModelScript::new().step(ModelScriptStep::error(529))));
    failed(&end, ErrorClass::Overloaded, Error);
    expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
        {"type":"system","subtype":"api_retry","content":"the API request failed (529 overloaded)","attempt":1,"error":"overloaded","error_status":529,"max_retries":1}
        {"type":"error","message":"API Error: 529 mock overloaded_error. This is a server-side issue, usually temporary — try again in a moment. If it pers…","code":"server_error","status":529}
        {"type":"tool_result","subtype":"success","error":"API Error: 529 mock overloaded_error. This is a server-side issue, usually temporary — try again in a moment. If it pers…","success":false,"api_error_status":529,"is_error":true,"num_turns":1,"stop_reason":"stop_sequence","terminal_reason":"api_error","total_cost_usd":0}
        {"type":"error","message":"overloaded: wait some minutes and trigger the job again","code":"overloaded","recoverable":true,"retry_after_ms":null,"resets_at":null,"cure":"wait some minutes and trigger the job again"}
    "#]].assert_eq(&rig.show(&end.rows));
}

#[test]
fn an_expired_login_is_tried_once_more() {
    let rig = Rig::new();
    let expired = ModelScriptStep {
        message: Some("OAuth token has expired.".into()),
        ..ModelScriptStep::error(401)
    };
    for (times, expected) in [(2, None), (9, Some(ErrorClass::TokenExpired))] {
        let script = ModelScript::new().step(expired.clone().times(times)).text("Here I am.");
        let mut plan = rig.script(Sdk, &script);
        plan.brief.env.shift_remove("ANTHROPIC_API_KEY");
        plan.brief.env.insert("CLAUDE_CODE_OAUTH_TOKEN".to_owned(), "mock-oauth-token".to_owned());
        let end = rig.run(plan);
        let class = end.result.error.as_ref().map(|error| error.class);
        assert_eq!(class, expected, "{:#?} {:#?}", end.result, end.rows);
        let again = "the login had expired, so the agent is started again";
        let told = end.rows.iter().filter(|row| row["content"] == again).count();
        assert_eq!(told, 1, "{:#?}", end.rows);
        // Claude itself tries twice each time.
        assert_eq!(end.sent.len(), if expected.is_some() { 4 } else { 3 });
    }
}

#[test]
fn an_api_that_nobody_serves_is_a_network_error() {
    let rig = Rig::new();
    let mut plan = rig.plan(Sdk, "Hello?");
    plan.brief.env.insert("ANTHROPIC_BASE_URL".to_owned(), "http://127.0.0.1:9".to_owned());
    let end = rig.run(plan);
    failed(&end, ErrorClass::Network, Error);
}

#[test]
fn a_run_without_a_key_says_so() {
    for runtime in BOTH {
        let rig = Rig::new();
        let mut plan = rig.plan(runtime, "Hello?");
        plan.brief.env.shift_remove("ANTHROPIC_API_KEY");
        let end = rig.run(plan);
        failed(&end, ErrorClass::Authentication, Error);
        assert_eq!(end.sent.len(), 0);
    }
}

#[test]
fn a_stream_that_breaks_is_said_again_and_recorded_once() {
    for runtime in BOTH {
        let rig = Rig::new();
        let script = ModelScript::new()
            .step(ModelScriptStep::dropped(3).times(1))
            .step(ModelScriptStep::tools([("Bash", json!({"command": "echo one"}))]))
            .step(ModelScriptStep::broken(2).times(1))
            .text("Whole.");
        let end = rig.run(rig.script(runtime, &script));
        succeeded(&end);
        assert_eq!(end.result.summary.as_deref(), Some("Whole."));
        let rows = rig.show(&end.rows) + rig.show(&end.session).as_str();
        assert!(!rows.contains("partial"), "{rows}");
        let said = end.rows.iter().filter(|row| row["type"] == "assistant").count();
        assert_eq!((tool_results(&end), said), (vec![("one".to_owned(), true)], 1), "{rows}");
        assert!(end.sent.len() >= 4, "{}", end.sent.len());
        assert!(told(&end).contains("result \"one\""), "{}", told(&end));
        assert!(!told(&end).contains("partial"), "{}", told(&end));
    }
}

#[test]
fn a_stalled_stream_is_cut_by_us() {
    for runtime in BOTH {
        let rig = Rig::new();
        let script = ModelScript::new()
            .step(ModelScriptStep::tools([("Bash", json!({"command": "echo one"}))]));
        let mut plan = rig.script(runtime, &script.step(ModelScriptStep::stalled(2)));
        plan.spec.limits.stall_timeout_ms = Some(6_000);
        plan.spec.limits.grace_ms = Some(300);
        let end = rig.run(plan);
        failed(&end, ErrorClass::Stalled, Timeout);
        assert_eq!(
            end.row("system", "interrupted")["content"],
            "interrupted: the agent said nothing for 6 s"
        );
        assert!(!rig.show(&end.rows).contains("by user"), "{:#?}", end.rows);
        assert_eq!(end.sent.len(), 2);
        assert!(told(&end).contains("result \"one\""), "{}", told(&end));
        assert_eq!(end.row("tool_result", "Bash")["result"], "one");
        assert!(end.result.error.as_ref().unwrap().recoverable);
    }
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let rig = Rig::new();
    let endless = ModelScript::new().step(ModelScriptStep::tools([rig.endless()]));
    let mut plan = rig.script(Sdk, &endless);
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    plan.spec.limits.timeout_ms = Some(10_000);
    plan.spec.limits.grace_ms = Some(300);
    let live = rig.start(plan);
    let [tool, claude] = rig.pids();
    let end = live.finish();
    failed(&end, ErrorClass::Timeout, Timeout);
    gone(tool);
    gone(claude);
    let why = "interrupted: not done after 10 s";
    assert_eq!(tool_results(&end), [(why.to_owned(), false)], "{:#?}", end.rows);
    assert_eq!(end.row("system", "interrupted")["content"], why);
    assert!(!rig.show(&end.rows).contains("user doesn't"), "{:#?}", end.rows);
    assert_eq!(end.sent.len(), 1);
}

#[test]
fn a_cancel_in_the_middle_of_a_text_keeps_what_was_said() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let mut live =
            rig.start(rig.script(runtime, &ModelScript::new().step(ModelScriptStep::stalled(3))));
        live.until_said("partial");
        live.cancel();
        let end = live.finish();
        failed(&end, ErrorClass::Cancelled, Cancelled);
        asked_once(&end);
        // The conversation goes on after it.
        let on = rig.run(rig.script(runtime, &ModelScript::new().text("Again.")).resume(&end));
        succeeded(&on);
        assert!(told(&on).contains("assistant: partial partial"), "{}", told(&on));
        rig.show(&end.rows)
    });
    alike(
        &shown,
        &expect![[r#"
            {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
            {"type":"system","subtype":"user_input","content":"Please. <script>"}
            {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
            {"type":"assistant","content":"partial partial partial "}
            {"type":"system","subtype":"interrupted","content":"interrupted: cancelled by the test"}
            {"type":"tool_result","subtype":"error_during_execution","error":"the turn was interrupted","success":false,"is_error":true,"num_turns":2,"terminal_reason":"aborted_streaming","total_cost_usd":0}
            {"type":"error","message":"cancelled by the test","code":"cancelled","recoverable":false,"retry_after_ms":null,"resets_at":null,"cure":"nothing went wrong; resume the session to continue"}
        "#]],
    );
}

#[test]
fn a_cancel_in_the_middle_of_a_tool_ends_the_tool() {
    for runtime in BOTH {
        let rig = Rig::new();
        let endless =
            ModelScript::new().step(ModelScriptStep::tools([rig.endless()])).text("Never said.");
        let mut plan = rig.script(runtime, &endless);
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        let mut live = rig.start(plan);
        let [tool, claude] = rig.pids();
        // The tool starts before claude has written down its call.
        live.until_row("tool_use");
        live.cancel();
        let end = live.finish();
        failed(&end, ErrorClass::Cancelled, Cancelled);
        gone(tool);
        gone(claude);
        let uses = end.rows.iter().filter(|row| row["type"] == "tool_use").count();
        assert_eq!(uses, 1, "{:#?}", end.rows);
        let why = "interrupted: cancelled by the test";
        assert_eq!(tool_results(&end), [(why.to_owned(), false)], "{:#?}", end.rows);
        assert_eq!(end.row("system", "interrupted")["content"], why);
        asked_once(&end);
    }
}

#[test]
fn an_agent_that_is_killed_takes_its_tools_with_it() {
    for (runtime, signal) in [(Sdk, Signal::TERM), (Cli, Signal::KILL), (Sdk, Signal::KILL)] {
        let rig = Rig::new();
        let mut plan =
            rig.script(runtime, &ModelScript::new().step(ModelScriptStep::tools([rig.endless()])));
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        let mut live = rig.start(plan);
        let [tool, claude] = rig.pids();
        live.until_row("tool_use");
        kill_process(claude, signal).unwrap();
        let end = live.finish();
        failed(&end, ErrorClass::AgentDied, Error);
        gone(tool);
        gone(claude);
        asked_once(&end);
        assert_eq!(end.row("tool_use", "Bash")["input"], rig.endless().1);
        let died = end.rows.last().unwrap();
        assert_eq!((&died["type"], &died["code"]), (&json!("error"), &json!("agent_died")));
    }
}
