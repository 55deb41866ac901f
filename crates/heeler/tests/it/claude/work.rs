//! What claude says and does: text, thoughts, tools, sub-agents, background tasks, further messages.

use expect_test::expect;
use heeler_model::run::ControlOperation;
use heeler_testkit::{ModelScript, ModelScriptStep};
use serde_json::{Value as Json, json};

use super::{BOTH, Rig, Sdk, alike, succeeded, told, tool_results, wait};

#[test]
fn text_and_thoughts() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let thoughtful = ModelScriptStep {
            thinking: Some("hm".into()),
            ..ModelScriptStep::text("The answer is 42.")
        };
        let plan = rig.script(runtime, &ModelScript::new().step(thoughtful));
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
    alike(
        &shown,
        &expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
        {"type":"assistant","content":"The answer is 42."}
        {"type":"tool_result","subtype":"success","result":"The answer is 42.","success":true,"is_error":false,"num_turns":1,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00014}
    "#]],
    );
}

#[test]
fn tools_side_by_side_with_their_results() {
    let shown = BOTH.map(|runtime| {
        let rig = Rig::new();
        let fails = ("Bash", json!({"command": "echo oh no; exit 3"}));
        let echoes = ("Bash", json!({"command": "echo one"}));
        let script = ModelScript::new()
            .step(ModelScriptStep {
                text: Some("I try.".into()),
                ..ModelScriptStep::tools([echoes, fails])
            })
            .step(ModelScriptStep::tools([rig.write("new.txt", "written")]))
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
    alike(
        &shown,
        &expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode bypassPermissions, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"bypassPermissions"}
        {"type":"assistant","content":"I try."}
        {"type":"tool_use","tool_name":"Bash","tool_use_id":"<tool0>","input":{"command":"echo one"}}
        {"type":"tool_use","tool_name":"Bash","tool_use_id":"<tool1>","input":{"command":"echo oh no; exit 3"}}
        {"type":"tool_result","tool_use_id":"<tool0>","result":"one","success":true,"tool_name":"Bash"}
        {"type":"tool_result","tool_use_id":"<tool1>","error":"Exit code 3\noh no","success":false,"tool_name":"Bash"}
        {"type":"tool_use","tool_name":"Write","tool_use_id":"<tool2>","input":{"file_path":"<rig>/work/new.txt","content":"written"}}
        {"type":"tool_result","tool_use_id":"<tool2>","result":"File created successfully at: <rig>/work/new.txt (file state is current in your context — no need to Read it b…","success":true,"tool_name":"Write"}
        {"type":"assistant","content":"Done."}
        {"type":"tool_result","subtype":"success","result":"Done.","success":true,"is_error":false,"num_turns":4,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00042}
    "#]],
    );
}

#[test]
fn a_sub_agent_works_under_the_call_that_began_it() {
    let rig = Rig::new();
    let inner =
        ModelScript::new().tool("Bash", json!({"command": "echo inner"})).text("Inner done.");
    let task = json!({
        "description": "inner", "prompt": format!("inner {inner}"),
        "subagent_type": "general-purpose", "run_in_background": false,
    });
    let end = rig.run(rig.script(Sdk, &ModelScript::new().tool("Agent", task).text("Outer done.")));
    succeeded(&end);
    expect![[r#"
        {"type":"system","subtype":"session","content":"the test asks for a fresh session"}
        {"type":"system","subtype":"user_input","content":"Please. <script>"}
        {"type":"system","subtype":"init","content":"turn started, model claude-opus-5-5, permission mode acceptEdits, claude 2.1.325","claude_code_version":"2.1.325","model":"claude-opus-5-5","permissionMode":"acceptEdits"}
        {"type":"tool_use","tool_name":"Agent","tool_use_id":"<tool0>","input":{"description":"inner","prompt":"inner <script>","subagent_type":"general-purpose","run_in_background":false}}
        {"type":"system","subtype":"task_started","content":"sub-agent started: inner","description":"inner","subagent_type":"general-purpose","task_id":"<task1>","tool_use_id":"<tool0>"}
        {"type":"system","subtype":"user_input","content":"inner <script>","parent_tool_use_id":"<tool0>"}
        {"type":"system","subtype":"task_progress","content":"sub-agent at work: Running echo inner","description":"Running echo inner","last_tool_name":"Bash","subagent_type":"general-purpose","task_id":"<task1>","tool_use_id":"<tool0>"}
        {"type":"tool_use","tool_name":"Bash","tool_use_id":"<tool2>","input":{"command":"echo inner"},"parent_tool_use_id":"<tool0>"}
        {"type":"tool_result","tool_use_id":"<tool2>","result":"inner","success":true,"tool_name":"Bash","parent_tool_use_id":"<tool0>"}
        {"type":"system","subtype":"task_updated","content":"task completed","task_id":"<task1>"}
        {"type":"system","subtype":"task_notification","content":"task completed: Inner done.","status":"completed","task_id":"<task1>","tool_use_id":"<tool0>"}
        {"type":"tool_result","tool_use_id":"<tool0>","result":"  <tools-used-before-summary>Bash</tools-used-before-summary>\n  \n[Subagent hand-back] The text below is the final report…","success":true,"tool_name":"Agent"}
        {"type":"assistant","content":"Outer done."}
        {"type":"tool_result","subtype":"success","result":"Outer done.","success":true,"is_error":false,"num_turns":2,"stop_reason":"end_turn","terminal_reason":"completed","total_cost_usd":0.00056}
    "#]].assert_eq(&rig.show(&end.rows));
    assert_eq!(end.result.summary.as_deref(), Some("Outer done."));
    let call = end.row("tool_use", "Agent")["tool_use_id"].clone();
    assert_eq!(end.row("tool_use", "Bash")["parent_tool_use_id"], call);
    // Two requests of each; the sub-agent has a conversation of its own.
    let asked: Vec<String> = end.sent.iter().map(|sent| sent.history().join("\n")).collect();
    let inner: Vec<&String> = asked.iter().filter(|it| it.starts_with("user: inner ")).collect();
    assert_eq!((asked.len(), inner.len()), (4, 2), "{asked:#?}");
    assert!(inner[1].contains("result \"inner\""), "{}", inner[1]);
    assert!(told(&end).contains("Inner done."), "{}", told(&end));
}

#[test]
fn a_run_ends_when_its_background_task_has_ended() {
    for runtime in BOTH {
        let rig = Rig::new();
        let go = rig.work("go");
        let command = format!("until [ -e {go} ]; do sleep 0.02; done; echo finished");
        let start = json!({"command": command, "run_in_background": true});
        let script =
            ModelScript::new().tool("Bash", start).text("Started.").text("It has finished.");
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
        let said = |row: &Json| row["content"].as_str().unwrap_or_default().to_owned();
        let is_said = |row: &&Json| row["type"] == "assistant";
        let said: Vec<String> = end.rows.iter().filter(is_said).map(said).collect();
        assert_eq!(said, ["Started.", "It has finished."], "{:#?}", end.rows);
        assert!(tool_results(&end)[0].1, "{:#?}", end.rows);
        let started = end.row("system", "task_started");
        let ended = end.row("system", "task_notification");
        assert_eq!(ended["task_id"], started["task_id"]);
        assert_eq!(ended["status"], "completed");
        let turns = end.rows.iter().filter(|row| row["subtype"] == "success").count();
        assert_eq!(turns, 2, "{:#?}", end.rows);
    }
}

#[test]
fn a_message_to_a_working_agent_reaches_it() {
    let rig = Rig::new();
    let go = rig.work("go");
    let begun = rig.work("begun");
    let command = format!("touch {begun}; until [ -e {go} ]; do sleep 0.02; done; echo went");
    let script = ModelScript::new().tool("Bash", json!({"command": command})).text("Heard.");
    let mut plan = rig.script(Sdk, &script);
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    let mut live = rig.start(plan);
    wait("the tool", || begun.exists().then_some(()));
    live.send(ControlOperation::message("Hurry up, please.".to_owned()));
    live.until("the row of the message", |happening| match happening {
        heeler_model::run::ControlEvent::Row { row, .. } => {
            (row.text("content") == Some("Hurry up, please.")).then_some(())
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
fn a_message_to_a_speaking_agent_is_its_next_turn() {
    let rig = Rig::new();
    let long = ModelScriptStep {
        delay_ms: Some(20),
        piece: Some(2),
        ..ModelScriptStep::text(&"word ".repeat(20))
    };
    let mut live = rig.start(rig.script(Sdk, &ModelScript::new().step(long)));
    live.until_said("wo");
    let next = ModelScript::new().text("And on.");
    live.send(ControlOperation::message(format!("Go on. {next}")));
    let end = live.finish();
    succeeded(&end);
    assert_eq!(end.result.summary.as_deref(), Some("And on."), "{:#?}", end.rows);
    assert_eq!(end.sent.len(), 2);
    assert!(told(&end).contains("user: Go on."), "{}", told(&end));
}

#[test]
fn instructions_and_model_are_the_agents_own() {
    for runtime in BOTH {
        let rig = Rig::new();
        std::fs::write(rig.work("CLAUDE.md"), "The mascot is a blue dog.").unwrap();
        let mut plan = rig.script(runtime, &ModelScript::new().text("Yes."));
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
        let end = rig.run(rig.script(runtime, &ModelScript::new().text("Yes.")));
        succeeded(&end);
        assert!(!end.sent[0].body.to_string().contains("The mascot is a blue dog."));
    }
}
