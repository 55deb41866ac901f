//! Who decides what claude may do: people, nobody, and the list of allowed tools.

use expect_test::expect;
use heeler_config::PermissionMode;
use heeler_model::ExitReason;
use heeler_model::run::{ErrorClass, QuestionAnswer};
use heeler_testkit::{ModelScript, ModelScriptStep};
use serde_json::json;

use super::{BOTH, Cli, Rig, RuntimeType, Sdk, failed, succeeded, told, tool_results};

#[test]
fn a_person_allows_changes_and_denies() {
    let rig = Rig::new();
    let script = ModelScript::new()
        .step(ModelScriptStep::tools([rig.write("allowed.txt", "as it was")]))
        .step(ModelScriptStep::tools([rig.write("changed.txt", "as it was")]))
        .step(ModelScriptStep::tools([rig.write("denied.txt", "as it was")]))
        .text("Done.");
    let mut plan = rig.script(Sdk, &script).attended();
    plan.claude().permission_mode = "default".to_owned();
    let mut live = rig.start(plan);
    let ask = live.until_asked();
    assert_eq!((ask.kind.as_str(), ask.tool.as_str()), ("permission", "Write"));
    assert_eq!(ask.input["file_path"], rig.work("allowed.txt").as_str());
    live.answer(&ask, QuestionAnswer::Allow { input: None });
    let ask = live.until_asked();
    let mut input = ask.input.clone();
    input["content"] = json!("as the person wants it");
    live.answer(&ask, QuestionAnswer::Allow { input: Some(input) });
    let ask = live.until_asked();
    live.answer(
        &ask,
        QuestionAnswer::Deny { message: "not this one".to_owned(), interrupt: false },
    );
    let end = live.finish();
    succeeded(&end);
    expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode default, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"default"}
        {"type":"tool_use","tool_name":"Write","tool_use_id":"<tool0>","input":{"file_path":"<rig>/work/allowed.txt","content":"as it was"}}
        {"type":"system","subtype":"asked","content":"the agent wants to use Write (question <id1>)"}
        {"type":"system","subtype":"answered","content":"the test allowed Write (question <id1>)"}
        {"type":"tool_result","tool_use_id":"<tool0>","result":"File created successfully at: <rig>/work/allowed.txt (file state is current in your context — no need to Read …","success":true,"tool_name":"Write"}
        {"type":"tool_use","tool_name":"Write","tool_use_id":"<tool2>","input":{"file_path":"<rig>/work/changed.txt","content":"as it was"}}
        {"type":"system","subtype":"asked","content":"the agent wants to use Write (question <id3>)"}
        {"type":"system","subtype":"answered","content":"the test allowed Write with a changed input: {\"file_path\":\"<rig>/work/changed.txt\",\"content\":\"as the person wa…"}
        {"type":"tool_result","tool_use_id":"<tool2>","result":"File created successfully at: <rig>/work/changed.txt (file state is current in your context — no need to Read …","success":true,"tool_name":"Write"}
        {"type":"tool_use","tool_name":"Write","tool_use_id":"<tool4>","input":{"file_path":"<rig>/work/denied.txt","content":"as it was"}}
        {"type":"system","subtype":"asked","content":"the agent wants to use Write (question <id5>)"}
        {"type":"system","subtype":"answered","content":"the test denied Write: not this one (question <id5>)"}
        {"type":"tool_result","tool_use_id":"<tool4>","error":"not this one","success":false,"tool_name":"Write"}
        {"type":"assistant","content":"Done."}
        {"type":"tool_result","subtype":"success","result":"Done.","success":true,"is_error":false,"num_turns":4,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00056}
    "#]].assert_eq(&rig.show(&end.rows));
    let content = |name: &str| std::fs::read_to_string(rig.work(name)).ok();
    assert_eq!(content("allowed.txt").as_deref(), Some("as it was"));
    assert_eq!(content("changed.txt").as_deref(), Some("as the person wants it"));
    assert_eq!(content("denied.txt"), None);
    assert!(told(&end).contains("failed result \"not this one\""), "{}", told(&end));
    let created = |name: &str| format!("result \"File created successfully at: {}", rig.work(name));
    for name in ["allowed.txt", "changed.txt"] {
        assert!(told(&end).contains(&created(name)), "{}", told(&end));
    }
}

#[test]
fn a_person_answers_a_question() {
    let rig = Rig::new();
    let option = |label: &str| json!({"label": label, "description": label});
    let question = json!({"questions": [{
        "question": "Which one?", "header": "Choice", "multiSelect": false,
        "options": [option("left"), option("right")],
    }]});
    let script = ModelScript::new().tool("AskUserQuestion", question).text("I see.");
    let mut live = rig.start(rig.script(Sdk, &script).attended());
    let ask = live.until_asked();
    assert_eq!((ask.kind.as_str(), ask.tool.as_str()), ("question", "AskUserQuestion"));
    let mut input = ask.input.clone();
    input["answers"] = json!({"Which one?": "right"});
    live.answer(&ask, QuestionAnswer::Allow { input: Some(input) });
    let end = live.finish();
    succeeded(&end);
    expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
        {"type":"tool_use","tool_name":"AskUserQuestion","tool_use_id":"<tool0>","input":{"questions":[{"question":"Which one?","header":"Choice","multiSelect":false,"options":[{"label":"left","description":"left"},{"label":"right","description":"right"}]}]}}
        {"type":"system","subtype":"asked","content":"the agent asks a question with AskUserQuestion (question <id1>)"}
        {"type":"system","subtype":"answered","content":"the test allowed AskUserQuestion with a changed input (question <id1>)"}
        {"type":"tool_result","tool_use_id":"<tool0>","result":"Your questions have been answered: \"Which one?\"=\"right\". You can now continue with these answers in mind.","success":true,"tool_name":"AskUserQuestion"}
        {"type":"assistant","content":"I see."}
        {"type":"tool_result","subtype":"success","result":"I see.","success":true,"is_error":false,"num_turns":2,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00028}
    "#]].assert_eq(&rig.show(&end.rows));
    assert!(told(&end).contains("right"), "{}", told(&end));
}

#[test]
fn a_person_who_denies_can_end_the_turn_too() {
    let rig = Rig::new();
    let script = ModelScript::new()
        .step(ModelScriptStep::tools([rig.write("no.txt", "x")]))
        .text("Never said.");
    let mut plan = rig.script(Sdk, &script).attended();
    plan.claude().permission_mode = "default".to_owned();
    let mut live = rig.start(plan);
    let ask = live.until_asked();
    live.answer(&ask, QuestionAnswer::Deny { message: "stop".to_owned(), interrupt: true });
    let end = live.finish();
    failed(&end, ErrorClass::Cancelled, ExitReason::Cancelled);
    assert_eq!(end.sent.len(), 1);
    assert!(!rig.work("no.txt").exists());
}

#[test]
fn what_needs_a_person_is_denied_at_once_when_nobody_attends() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let script = ModelScript::new()
            .step(ModelScriptStep::tools([rig.write("never.txt", "x")]))
            .text("Well.");
        let mut plan = rig.script(runtime, &script);
        plan.claude().permission_mode = "default".to_owned();
        let end = rig.run(plan);
        succeeded(&end);
        assert!(!rig.work("never.txt").exists());
        assert!(told(&end).contains("failed result"), "{}", told(&end));
        rig.show(&end.rows)
    });
    // Claude itself denies where nobody can be asked.
    expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode default, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"default"}
        {"type":"tool_use","tool_name":"Write","tool_use_id":"<tool0>","input":{"file_path":"<rig>/work/never.txt","content":"x"}}
        {"type":"system","subtype":"denied","content":"Write was denied: this run is unattended, so the request cannot be allowed or answered"}
        {"type":"tool_result","tool_use_id":"<tool0>","error":"this run is unattended, so the request cannot be allowed or answered","success":false,"tool_name":"Write"}
        {"type":"assistant","content":"Well."}
        {"type":"tool_result","subtype":"success","result":"Well.","success":true,"is_error":false,"num_turns":2,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00028}
    "#]].assert_eq(&shown[0]);
    expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode default, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"default"}
        {"type":"tool_use","tool_name":"Write","tool_use_id":"<tool0>","input":{"file_path":"<rig>/work/never.txt","content":"x"}}
        {"type":"system","subtype":"permission_denied","content":"Write was not allowed: Claude requested permissions to write to <rig>/work/never.txt, but you haven't granted …","tool_name":"Write","tool_use_id":"<tool0>"}
        {"type":"tool_result","tool_use_id":"<tool0>","error":"Claude requested permissions to write to <rig>/work/never.txt, but you haven't granted it yet.","success":false,"tool_name":"Write"}
        {"type":"assistant","content":"Well."}
        {"type":"tool_result","subtype":"success","result":"Well.","success":true,"is_error":false,"num_turns":2,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00028}
    "#]].assert_eq(&shown[1]);
}

/// Calls tools that are not listed, by itself and through a sub-agent.
fn break_out(rig: &Rig) -> ModelScript {
    let touch = ("Bash", json!({"command": format!("touch {}", rig.work("by-bash"))}));
    let inner = ModelScript::new().step(ModelScriptStep::tools([touch.clone()])).text("inner");
    let task = json!({
        "description": "d", "prompt": format!("inner {inner}"),
        "subagent_type": "general-purpose", "run_in_background": false,
    });
    let steps = [touch, rig.write("by-write", "x"), ("Agent", task)];
    ModelScript::new().step(ModelScriptStep::tools(steps)).text("Done.")
}

fn an_unlisted_tool_never_runs(runtime: RuntimeType) {
    let rig = Rig::new();
    std::fs::write(rig.work("note.txt"), "read me").unwrap();
    // Claude no longer has `delegate`, and no run starts with it.
    for mode in PermissionMode::ALL.iter().filter(|mode| **mode != PermissionMode::Delegate) {
        let mode = mode.as_str();
        let mut plan = rig.script(runtime, &break_out(&rig));
        plan.claude().permission_mode = mode.to_owned();
        plan.claude().allowed_tools = Some(vec!["Read".to_owned(), "Agent".to_owned()]);
        let end = rig.run(plan);
        for name in ["by-bash", "by-write"] {
            assert!(!rig.work(name).exists(), "{name} in mode {mode}: {:#?}", end.rows);
        }
        assert!(end.sent.len() >= 2, "{mode}: {:#?}", end.rows);
        assert!(end.sent[0].tools().iter().all(|tool| tool != "Bash" && tool != "Write"));
    }
    // A listed one does, also where the mode would ask.
    let script =
        ModelScript::new().tool("Read", json!({"file_path": rig.work("note.txt")})).text("Read.");
    let mut plan = rig.script(runtime, &script);
    plan.claude().permission_mode = "default".to_owned();
    plan.claude().allowed_tools = Some(vec!["Read".to_owned()]);
    let end = rig.run(plan);
    succeeded(&end);
    let [(said, true)] = &tool_results(&end)[..] else { panic!("{:#?}", end.rows) };
    assert!(said.contains("read me"), "{said}");
}

#[test]
fn a_tool_that_is_not_listed_runs_in_no_mode_of_the_sdk_runtime() {
    an_unlisted_tool_never_runs(Sdk);
}

#[test]
fn a_tool_that_is_not_listed_runs_in_no_mode_of_the_cli_runtime() {
    an_unlisted_tool_never_runs(Cli);
}

#[test]
fn a_listed_command_allows_no_other_command() {
    let rig = Rig::new();
    let bash = |command: &str| ("Bash", json!({"command": command}));
    let touch = format!("touch {}", rig.work("by-bash"));
    let script = ModelScript::new()
        .step(ModelScriptStep::tools([bash("echo fine"), bash(&touch)]))
        .text("Done.");
    let mut plan = rig.script(Sdk, &script);
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    plan.claude().allowed_tools = Some(vec!["Bash(echo:*)".to_owned()]);
    let end = rig.run(plan);
    succeeded(&end);
    let results = tool_results(&end);
    assert_eq!(results[0], ("fine".to_owned(), true));
    assert!(!results[1].1, "{results:?}");
    assert!(!rig.work("by-bash").exists());
}

#[test]
fn a_denied_tool_does_not_run_even_where_everything_is_allowed() {
    for runtime in BOTH {
        let rig = Rig::new();
        let script = ModelScript::new()
            .step(ModelScriptStep::tools([rig.write("no.txt", "x")]))
            .text("Done.");
        let mut plan = rig.script(runtime, &script);
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        plan.claude().denied_tools = vec!["Write".to_owned()];
        let end = rig.run(plan);
        succeeded(&end);
        assert!(!rig.work("no.txt").exists());
        assert!(!tool_results(&end)[0].1, "{:#?}", end.rows);
    }
}

#[test]
fn a_mode_that_claude_does_not_know_is_told_with_those_that_it_knows() {
    for runtime in BOTH {
        let rig = Rig::new();
        let mut plan = rig.script(runtime, &ModelScript::new().text("Never said."));
        plan.claude().permission_mode = "delegate".to_owned();
        let end = rig.run(plan);
        failed(&end, ErrorClass::NotStarted, ExitReason::Error);
        let message = &end.result.error.as_ref().unwrap().message;
        assert!(message.contains("'delegate' is invalid. Allowed choices are"), "{message}");
        assert!(rig.show(&end.rows).contains("'delegate' is invalid"), "{:#?}", end.rows);
        assert_eq!(end.sent.len(), 0);
    }
}
