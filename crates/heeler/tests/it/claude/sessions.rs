//! Conversations: resumed, forked, forked at a message, and gone.

use expect_test::expect;
use heeler_model::run::{ErrorClass, RunEnd as Ended, SessionStart};
use heeler_testkit::{ModelScript, ModelScriptStep};
use rustix::process::{Signal, kill_process};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::{BOTH, Cli, Rig, RuntimeType, Sdk, alike, gone, succeeded, told};
use crate::rig::{End, new_session};

/// The id of the last thing that the agent said.
#[track_caller]
fn last_said(end: &End) -> Uuid {
    let said = end.session.iter().rfind(|row| row["type"] == "assistant").expect("it spoke");
    said["uuid"].as_str().unwrap().parse().unwrap()
}

/// The job's rows are one turn, in which this was said: what was said before is of other jobs.
#[track_caller]
fn turn_of(end: &End, said: &str) {
    let kinds = |row: &Json| (row["type"].clone(), row["subtype"].clone());
    let kinds: Vec<_> = end.rows.iter().map(kinds).collect();
    let expected = [
        (json!("system"), json!("session")),
        (json!("system"), json!("user_input")),
        (json!("system"), json!("init")),
        (json!("assistant"), Json::Null),
        (json!("tool_result"), json!("success")),
    ];
    assert_eq!(kinds, expected, "{:#?}", end.rows);
    assert_eq!((&end.rows[3]["content"], &end.rows[4]["result"]), (&json!(said), &json!(said)));
}

fn a_conversation_goes_on_and_branches(runtime: RuntimeType) {
    let rig = Rig::new();
    let first = rig.run(rig.plan(runtime, &format!("one {}", ModelScript::new().text("First."))));
    succeeded(&first);
    let second = rig.plan(runtime, &format!("two {}", ModelScript::new().text("Second.")));
    let second = rig.run(second.resume(&first));
    succeeded(&second);
    assert_eq!(second.session_id(), first.session_id());
    assert!(told(&second).starts_with("user: one"), "{}", told(&second));
    assert!(told(&second).contains("assistant: First.\nuser: two"), "{}", told(&second));
    assert!(second.session.len() > first.session.len());
    assert_eq!(second.session[..first.session.len()], first.session, "a log only grows");
    turn_of(&second, "Second.");

    // What the run cost is its own, not the session's.
    let (one, two) = (first.result.cost.usd.unwrap(), second.result.cost.usd.unwrap());
    assert!((one - two).abs() < one / 2.0, "{one} and {two}");

    let fork = |prompt: &str, at: Option<Uuid>| {
        let mut plan =
            rig.plan(runtime, &format!("{prompt} {}", ModelScript::new().text("Forked.")));
        let (source, id) = (first.session_id(), new_session());
        plan.spec.session.start = SessionStart::Fork { source, id: id.clone(), at };
        let end = rig.run(plan);
        succeeded(&end);
        assert_eq!(end.session_id(), id);
        turn_of(&end, "Forked.");
        end
    };
    let whole = fork("three", None);
    assert!(told(&whole).contains("Second."), "{}", told(&whole));
    let early = fork("four", Some(last_said(&first)));
    assert!(told(&early).contains("assistant: First.\nuser: four"), "{}", told(&early));
    assert!(!told(&early).contains("Second."), "{}", told(&early));

    let on = rig.plan(runtime, &format!("five {}", ModelScript::new().text("On."))).resume(&early);
    let on = rig.run(on);
    succeeded(&on);
    assert!(told(&on).contains("assistant: Forked.\nuser: five"), "{}", told(&on));
    // The source knows nothing of its branches.
    let source = rig.run(rig.plan(runtime, "six").resume(&first));
    succeeded(&source);
    assert!(!told(&source).contains("Forked."), "{}", told(&source));
}

#[test]
fn a_conversation_goes_on_and_branches_by_the_sdk_runtime() {
    a_conversation_goes_on_and_branches(Sdk);
}

#[test]
fn a_conversation_goes_on_and_branches_by_the_cli_runtime() {
    a_conversation_goes_on_and_branches(Cli);
}

#[test]
fn a_conversation_that_is_gone_begins_afresh_once() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let gone = new_session();
        let mut plan = rig.script(runtime, &ModelScript::new().text("Here I am."));
        plan.spec.session.start = SessionStart::Resume { id: gone.clone() };
        let end = rig.run(plan);
        succeeded(&end);
        assert_ne!(end.session_id(), gone);
        let [sent] = &end.sent[..] else { panic!("{:#?}", end.sent) };
        assert_eq!(sent.history().len(), 1, "{:#?}", sent.history());
        rig.show(&end.rows)
    });
    alike(
        &shown,
        &expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"tool_result","subtype":"error_during_execution","error":"No conversation found with session ID: <id0>","success":false,"is_error":true,"num_turns":0,"total_cost_usd":0}
        {"type":"system","subtype":"session","content":"the agent no longer has the session, so a new one is started"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
        {"type":"assistant","content":"Here I am."}
        {"type":"tool_result","subtype":"success","result":"Here I am.","success":true,"is_error":false,"num_turns":1,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00014}
    "#]],
    );
}

#[test]
fn an_orphaned_claude_still_holds_its_session() {
    for runtime in BOTH {
        let rig = Rig::new();
        let mut plan =
            rig.script(runtime, &ModelScript::new().step(ModelScriptStep::tools([rig.endless()])));
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        let first = plan.spec.clone();
        let mut live = rig.start(plan);
        let [tool, claude] = rig.pids();
        // Stopped, it cannot heed that its runner is gone.
        kill_process(claude, Signal::STOP).unwrap();
        let runner = live.child.id();
        live.child.kill().unwrap();
        live.child.wait().unwrap();
        let resume = || {
            let mut plan = rig.script(runtime, &ModelScript::new().text("Here I am."));
            plan.spec.session.start = SessionStart::Resume { id: first.session.start.id().clone() };
            rig.run(plan)
        };
        let busy = resume();
        assert_eq!(busy.result.end, Ended::SessionBusy, "{:#?}", busy.result);
        let told = &busy.result.error.as_ref().unwrap().message;
        assert!(told.contains(&format!("process {runner}")), "{told}");
        assert!(told.contains(first.job.as_str()), "{told}");
        assert_eq!(busy.sent.len(), 0);
        rig.settle(&first);
        gone(claude);
        gone(tool);
        succeeded(&resume());
    }
}

#[test]
fn a_fork_of_nothing_fails_and_says_so() {
    for runtime in BOTH {
        let rig = Rig::new();
        let first = rig.run(rig.script(runtime, &ModelScript::new().text("First.")));
        let mut plan = rig.script(runtime, &ModelScript::new().text("Never said."));
        let at = Some(Uuid::new_v4());
        let (source, id) = (first.session_id(), new_session());
        plan.spec.session.start = SessionStart::Fork { source, id, at };
        let end = rig.run(plan);
        let error = end.result.error.as_ref().expect("it failed");
        assert!(error.message.contains("No message found"), "{error:#?}");
        assert_ne!(error.class, ErrorClass::Internal);
        assert!(rig.show(&end.rows).contains("No message found"), "{:#?}", end.rows);
        assert_eq!(end.sent.len(), 0, "a fork never loses its history silently");
    }
}
