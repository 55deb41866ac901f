//! Who decides what claude may do: people, nobody, and the list of allowed tools.

use expect_test::expect;
use heeler_model::run::Answer;
use heeler_testkit::{Script, Step};
use serde_json::json;

use super::{BOTH, Cli, Rig, RuntimeType, Sdk, succeeded, told, tool_results};

const MODES: [&str; 6] = ["default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions"];

#[test]
fn a_person_allows_changes_and_denies() {
    let rig = Rig::new();
    let script = Script::new()
        .step(Step::tools([rig.write("allowed.txt", "as it was")]))
        .step(Step::tools([rig.write("changed.txt", "as it was")]))
        .step(Step::tools([rig.write("denied.txt", "as it was")]))
        .text("Done.");
    let mut plan = rig.script(Sdk, &script).attended();
    plan.claude().permission_mode = "default".to_owned();
    let mut live = rig.start(plan);
    let ask = live.until_asked();
    assert_eq!((ask.kind.as_str(), ask.tool.as_str()), ("permission", "Write"));
    assert_eq!(ask.input["file_path"], rig.work("allowed.txt").as_str());
    live.answer(&ask, Answer::Allow { input: None });
    let ask = live.until_asked();
    let mut input = ask.input.clone();
    input["content"] = json!("as the person wants it");
    live.answer(&ask, Answer::Allow { input: Some(input) });
    let ask = live.until_asked();
    live.answer(&ask, Answer::Deny { message: "not this one".to_owned(), interrupt: false });
    let end = live.finish();
    succeeded(&end);
    expect![[r#""#]].assert_eq(&rig.show(&end.rows));
    let content = |name: &str| std::fs::read_to_string(rig.work(name)).ok();
    assert_eq!(content("allowed.txt").as_deref(), Some("as it was"));
    assert_eq!(content("changed.txt").as_deref(), Some("as the person wants it"));
    assert_eq!(content("denied.txt"), None);
    assert!(told(&end).contains("failed result \"not this one\""), "{}", told(&end));
}

#[test]
fn a_person_answers_a_question() {
    let rig = Rig::new();
    let option = |label: &str| json!({"label": label, "description": label});
    let question = json!({"questions": [{
        "question": "Which one?", "header": "Choice", "multiSelect": false,
        "options": [option("left"), option("right")],
    }]});
    let script = Script::new().tool("AskUserQuestion", question).text("I see.");
    let mut live = rig.start(rig.script(Sdk, &script).attended());
    let ask = live.until_asked();
    assert_eq!((ask.kind.as_str(), ask.tool.as_str()), ("question", "AskUserQuestion"));
    let mut input = ask.input.clone();
    input["answers"] = json!({"Which one?": "right"});
    live.answer(&ask, Answer::Allow { input: Some(input) });
    let end = live.finish();
    succeeded(&end);
    expect![[r#""#]].assert_eq(&rig.show(&end.rows));
    assert!(told(&end).contains("right"), "{}", told(&end));
}

#[test]
fn what_needs_a_person_is_denied_at_once_when_nobody_attends() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let script = Script::new().step(Step::tools([rig.write("never.txt", "x")])).text("Well.");
        let mut plan = rig.script(runtime, &script);
        plan.claude().permission_mode = "default".to_owned();
        let end = rig.run(plan);
        succeeded(&end);
        assert!(!rig.work("never.txt").exists());
        assert!(told(&end).contains("failed result"), "{}", told(&end));
        rig.show(&end.rows)
    });
    // Claude itself denies where nobody can be asked.
    expect![[r#""#]].assert_eq(&shown[0]);
    expect![[r#""#]].assert_eq(&shown[1]);
}

/// Calls tools that are not listed, by itself and through a sub-agent.
fn break_out(rig: &Rig) -> Script {
    let touch = ("Bash", json!({"command": format!("touch {}", rig.work("by-bash"))}));
    let inner = Script::new().step(Step::tools([touch.clone()])).text("inner");
    let task = json!({
        "description": "d", "prompt": format!("inner {inner}"),
        "subagent_type": "general-purpose", "run_in_background": false,
    });
    let steps = [touch, rig.write("by-write", "x"), ("Agent", task)];
    Script::new().step(Step::tools(steps)).text("Done.")
}

fn an_unlisted_tool_never_runs(runtime: RuntimeType) {
    let rig = Rig::new();
    std::fs::write(rig.work("note.txt"), "read me").unwrap();
    for mode in MODES {
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
        Script::new().tool("Read", json!({"file_path": rig.work("note.txt")})).text("Read.");
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
    let script = Script::new().step(Step::tools([bash("echo fine"), bash(&touch)])).text("Done.");
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
        let script = Script::new().step(Step::tools([rig.write("no.txt", "x")])).text("Done.");
        let mut plan = rig.script(runtime, &script);
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        plan.claude().denied_tools = vec!["Write".to_owned()];
        let end = rig.run(plan);
        succeeded(&end);
        assert!(!rig.work("no.txt").exists());
        assert!(!tool_results(&end)[0].1, "{:#?}", end.rows);
    }
}
