//! What claude says and does: text, thoughts, tools, sub-agents, background tasks, further messages.

use expect_test::expect;
use heeler_model::run::Op;
use heeler_testkit::{Script, Step};
use serde_json::json;

use super::{BOTH, Rig, Sdk, alike, succeeded, told, tool_results, wait};

#[test]
fn text_and_thoughts() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let thoughtful = Step { thinking: Some("hm".into()), ..Step::text("The answer is 42.") };
        let plan = rig.script(runtime, &Script::new().step(thoughtful));
        let prompt = plan.brief.prompt.clone();
        let end = rig.run(plan);
        succeeded(&end);
        let result = &end.result;
        assert_eq!(result.summary.as_deref(), Some("The answer is 42."));
        assert_eq!(result.stop_reason.as_deref(), Some("end_turn"));
        assert_eq!(result.cost.usage.input_tokens, Some(10));
        assert_eq!(result.exit_code, Some(0));
        assert!(result.cost.usd.is_some_and(|usd| usd > 0.0), "{result:#?}");
        assert!(result.session.as_ref().is_some_and(|session| session.resumable), "{result:#?}");
        let [sent] = &end.sent[..] else { panic!("{:#?}", end.sent) };
        assert_eq!(sent.history(), [format!("user: {prompt}")]);
        assert_eq!(sent.header("x-api-key"), Some("mock-api-key"));
        assert_eq!(sent.header("x-claude-code-session-id"), Some(end.session_id().as_str()));
        // Thoughts are in the session alone.
        let session = serde_json::to_string(&end.session).unwrap();
        assert!(session.contains("\"thinking\":\"hm\""), "{session}");
        rig.show(&end.rows)
    });
    alike(&shown, &expect![[r#""#]]);
}

#[test]
fn tools_side_by_side_with_their_results() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let fails = ("Bash", json!({"command": "echo oh no; exit 3"}));
        let echoes = ("Bash", json!({"command": "echo one"}));
        let script = Script::new()
            .step(Step { text: Some("I try.".into()), ..Step::tools([echoes, fails]) })
            .step(Step::tools([rig.write("new.txt", "written")]))
            .text("Done.");
        let mut plan = rig.script(runtime, &script);
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        let end = rig.run(plan);
        succeeded(&end);
        assert_eq!(std::fs::read_to_string(rig.work("new.txt")).unwrap(), "written");
        assert_eq!(end.sent.len(), 3);
        let told = told(&end);
        for part in
            ["result \"one\"", "failed result \"Exit code 3\\noh no\"", "result \"File created"]
        {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        rig.show(&end.rows)
    });
    alike(&shown, &expect![[r#""#]]);
}

#[test]
fn a_sub_agent_works_under_the_call_that_began_it() {
    let rig = Rig::new();
    let inner = Script::new().tool("Bash", json!({"command": "echo inner"})).text("Inner done.");
    let task = json!({
        "description": "inner", "prompt": format!("inner {inner}"),
        "subagent_type": "general-purpose", "run_in_background": false,
    });
    let end = rig.run(rig.script(Sdk, &Script::new().tool("Agent", task).text("Outer done.")));
    succeeded(&end);
    expect![[r#""#]].assert_eq(&rig.show(&end.rows));
    assert_eq!(end.result.summary.as_deref(), Some("Outer done."));
    let call = end.row("tool_use", "Agent")["tool_use_id"].clone();
    assert_eq!(end.row("tool_use", "Bash")["parent_tool_use_id"], call);
    assert_eq!(end.sent.len(), 4);
}

#[test]
fn a_run_ends_when_its_background_task_has_ended() {
    for runtime in BOTH {
        let rig = Rig::new();
        let go = rig.work("go");
        let command = format!("until [ -e {go} ]; do sleep 0.02; done; echo finished");
        let start = json!({"command": command, "run_in_background": true});
        let script = Script::new().tool("Bash", start).text("Started.").text("It has finished.");
        let mut plan = rig.script(runtime, &script);
        plan.claude().permission_mode = "bypassPermissions".to_owned();
        let mut live = rig.start(plan);
        live.until_row("assistant");
        std::fs::write(&go, "").unwrap();
        let end = live.finish();
        succeeded(&end);
        assert_eq!(end.result.summary.as_deref(), Some("It has finished."), "{:#?}", end.rows);
        assert_eq!(end.sent.len(), 3);
        let sent = end.sent[2].body.to_string();
        assert!(sent.contains("completed (exit code 0)"), "{sent}");
    }
}

#[test]
fn a_message_to_a_working_agent_reaches_it() {
    let rig = Rig::new();
    let go = rig.work("go");
    let begun = rig.work("begun");
    let command = format!("touch {begun}; until [ -e {go} ]; do sleep 0.02; done; echo went");
    let script = Script::new().tool("Bash", json!({"command": command})).text("Heard.");
    let mut plan = rig.script(Sdk, &script);
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    let mut live = rig.start(plan);
    wait("the tool", || begun.exists().then_some(()));
    live.send(Op::Message { text: "Hurry up, please.".to_owned() });
    live.until("the row of the message", |happening| match happening {
        heeler_model::run::Happening::Row { row, .. } => {
            (row["content"] == "Hurry up, please.").then_some(())
        }
        _ => None,
    });
    std::fs::write(&go, "").unwrap();
    let end = live.finish();
    succeeded(&end);
    assert_eq!(tool_results(&end), [("went".to_owned(), true)]);
    let sent: String = end.sent.iter().map(|request| request.body.to_string()).collect();
    assert!(sent.contains("Hurry up, please."), "{sent}");
}

#[test]
fn instructions_and_model_are_the_agents_own() {
    for runtime in BOTH {
        let rig = Rig::new();
        std::fs::write(rig.work("CLAUDE.md"), "The mascot is a blue dog.").unwrap();
        let mut plan = rig.script(runtime, &Script::new().text("Yes."));
        plan.claude().system_prompt = Some("You are a terse poet.".to_owned());
        plan.claude().model = Some("sonnet".to_owned());
        plan.claude().setting_sources = vec!["project".to_owned()];
        plan.claude().tools = Some(vec!["Read".to_owned()]);
        let end = rig.run(plan);
        succeeded(&end);
        let sent = &end.sent[0];
        assert!(sent.system().contains("You are a terse poet."), "{}", sent.system());
        assert!(sent.body["model"].as_str().unwrap().contains("sonnet"), "{}", sent.body["model"]);
        assert!(sent.body.to_string().contains("The mascot is a blue dog."));
        assert!(sent.tools().contains(&"Read".to_owned()), "{:?}", sent.tools());
        assert!(!sent.tools().contains(&"Bash".to_owned()), "{:?}", sent.tools());
        // Without sources nothing is picked up.
        let end = rig.run(rig.script(runtime, &Script::new().text("Yes.")));
        succeeded(&end);
        assert!(!end.sent[0].body.to_string().contains("The mascot is a blue dog."));
    }
}
