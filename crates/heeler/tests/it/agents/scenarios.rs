//! Further scenarios of the conformance suite, and the ones that are refused or not offered.

use heeler_config::{AgentScenario, CertifiedAgent, ScenarioOutcome};
use heeler_model::run::{
    ControlOperation, ErrorClass, McpServerSpec, QuestionAnswer, RuntimeLaunchSpec, SessionPlan,
    SessionStart, TokenRates,
};
use heeler_testkit::{ApiRequest, ModelScript, ModelScriptStep};
use serde_json::json;

use super::{
    TestedAgent, calls_are_closed, failed, for_each_agent, is_tested, program, said, set_mode,
    shell, succeeded, tool_ids, work,
};
use crate::fleet::Fleet;
use crate::rig::{Rig, new_session, wait};

#[test]
fn tokens_of_a_text_are_counted() {
    for_each_agent(AgentScenario::Text, |agent| {
        let rig = Rig::new();
        let end = rig.run(agent.plan(&rig, &ModelScript::new().text("Hi.")));
        succeeded(&end);
        assert_eq!(said(&end), ["Hi."], "{agent:?} {:#?}", end.rows);
        let usage = &end.result.cost.usage;
        assert!(usage.input_tokens.is_some_and(|it| it > 0), "{agent:?} {usage:?}");
    });
}

#[test]
fn a_fork_begins_with_the_conversation_of_another_agent() {
    for_each_agent(AgentScenario::Fork, |agent| {
        let rig = Rig::new();
        let mut first = TestedAgent::GOOSE.plan(&rig, &ModelScript::new());
        // Without a script, the model repeats the prompt. The fork must not find a second script.
        first.brief.prompt = "Remember the kelpie.".to_owned();
        let first = rig.run(first);
        succeeded(&first);
        let reply = said(&first).join("");
        assert!(reply.contains("mock reply"), "{reply}");
        let mut plan = agent.plan(&rig, &ModelScript::new().text("I see."));
        let start = SessionStart::Fork { source: first.session_id(), id: new_session(), at: None };
        plan.spec.session = SessionPlan::new(start, "the test asks for a fork");
        let second = rig.run(plan);
        succeeded(&second);
        assert_ne!(second.session_id(), first.session_id(), "{agent:?}");
        // An agent may make further requests of its own, such as for a title.
        // Qwen Code puts the prompt and a note of its own into one text.
        let told = second.sent.iter().map(|request| request.body.to_string());
        let told: Vec<String> = told.collect();
        let has_record =
            |it: &String| it.contains("mock reply") && it.contains("The record ends here.");
        assert!(told.iter().any(has_record), "{agent:?} {told:#?}");
        let shown = rig.show(&second.rows);
        assert!(shown.contains("the agent gets the conversation as text"), "{agent:?} {shown}");
        assert_eq!(said(&second), ["I see."], "{agent:?} {:#?}", second.rows);
        // The fork has the rows of its source, once.
        let texts = second.session.iter().filter(|row| row["type"] == "assistant");
        let texts = texts.filter(|row| row.to_string().contains("mock reply")).count();
        assert_eq!(texts, 1, "{agent:?} {:#?}", second.session);
    });
}

#[test]
fn an_agent_forks_its_own_session_and_the_source_stays() {
    for_each_agent(AgentScenario::OwnFork, |agent| {
        let rig = Rig::new();
        let first = rig.run(agent.plan(&rig, &ModelScript::new().text("A kelpie.")));
        succeeded(&first);
        let mut plan = agent.plan(&rig, &ModelScript::new().text("I see."));
        let start = SessionStart::Fork { source: first.session_id(), id: new_session(), at: None };
        plan.spec.session = SessionPlan::new(start, "the test asks for a fork");
        let fork = rig.run(plan);
        succeeded(&fork);
        assert_eq!(said(&fork), ["I see."], "{agent:?} {:#?}", fork.rows);
        assert_ne!(fork.session_id(), first.session_id(), "{agent:?}");
        let told = |end: &crate::rig::End| {
            let told = end.sent.iter().map(|request| request.body.to_string());
            told.collect::<Vec<_>>().join("\n")
        };
        // The agent's own record, and not a text that Heeler made of it.
        assert!(told(&fork).contains("A kelpie."), "{agent:?} {}", told(&fork));
        assert!(!told(&fork).contains("The record ends here."), "{agent:?}");
        // The fork adds nothing to its source.
        let again = rig.run(agent.plan(&rig, &ModelScript::new().text("Again.")).resume(&first));
        succeeded(&again);
        assert_eq!(again.session_id(), first.session_id(), "{agent:?}");
        let told = told(&again);
        assert!(told.contains("A kelpie.") && !told.contains("I see."), "{agent:?} {told}");
    });
}

#[test]
fn a_dropped_stream_is_a_failure_or_repeated() {
    for_each_agent(AgentScenario::DroppedStream, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(ModelScriptStep::dropped(3));
        let end = rig.run(agent.plan(&rig, &script));
        let class = end.result.error.as_ref().map(|error| error.class);
        let texts = said(&end);
        match agent.0 {
            // Claude asks again without a stream, and gets the whole text.
            CertifiedAgent::Claude => {
                assert_eq!(class, None, "{:#?}", end.result);
                assert_eq!(texts, ["partial ".repeat(40)], "{:#?}", end.rows);
                assert!(end.sent.len() > 1, "{:#?}", end.rows);
                return;
            }
            // Its adapter shows the part that arrived, and then the whole text.
            CertifiedAgent::ClaudeAcp => {
                assert_eq!(class, None, "{:#?}", end.result);
                let last = texts.last().unwrap().trim_end();
                assert!(last.ends_with("partial ".repeat(40).trim_end()), "{:#?}", end.rows);
                assert!(end.sent.len() > 1, "{:#?}", end.rows);
                return;
            }
            // Qwen Code lets the model continue the part.
            CertifiedAgent::Qwen | CertifiedAgent::QwenSdk => {
                assert_eq!(class, None, "{:#?}", end.result);
                assert_eq!(texts, ["partial partial partial end of script"], "{:#?}", end.rows);
                return;
            }
            // OpenCode repeats the request for a minute, and then says nothing of the parts.
            CertifiedAgent::Opencode => {
                assert_eq!(class, Some(ErrorClass::Network), "{:#?}", end.result);
                return;
            }
            CertifiedAgent::Codex
            | CertifiedAgent::CodexAcp
            | CertifiedAgent::Goose
            | CertifiedAgent::Grok
            | CertifiedAgent::Vibe => {
                assert_eq!(class, Some(ErrorClass::Network), "{agent:?} {:#?}", end.result);
            }
            _ => assert_eq!(class, Some(ErrorClass::ServerError), "{agent:?} {:#?}", end.result),
        }
        // The part that arrived is recorded once.
        let parts = texts.iter().filter(|it| it.starts_with("partial partial partial "));
        assert_eq!(parts.count(), 1, "{agent:?} {:#?}", end.rows);
    });
}

#[test]
fn a_message_reaches_the_agent_while_it_works() {
    for_each_agent(AgentScenario::Message, |agent| {
        let rig = Rig::new();
        let (started, go_on) = (work(&rig, "started"), work(&rig, "go"));
        let held = shell(&format!("touch {started}; until [ -e {go_on} ]; do sleep 0.1; done"));
        let script = ModelScript::new().step(held).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let mut live = rig.start(plan);
        wait("the tool", || started.exists().then_some(()));
        let next = ModelScript::new().text("Cats.");
        live.send(ControlOperation::message(format!("mention cats {next}")));
        // Its row is written before the agent receives it.
        live.until("the message", |event| match event {
            heeler_model::run::ControlEvent::Row { row, .. } => {
                row.as_json().to_string().contains("mention cats").then_some(())
            }
            _ => None,
        });
        std::fs::write(&go_on, "").unwrap();
        let end = live.finish();
        succeeded(&end);
        // Requests of an agent's own, such as for a title, have no tools.
        let has_tools =
            |it: &&ApiRequest| it.body["tools"].as_array().is_some_and(|it| !it.is_empty());
        let last = end.sent.iter().rfind(has_tools).unwrap();
        assert!(last.body.to_string().contains("mention cats"), "{agent:?} {:#?}", end.rows);
        let texts = said(&end);
        // The message can come after the last step of the turn, and then gets the next one.
        let next_turn = ["Done.", "Cats."];
        match agent.0 {
            CertifiedAgent::Claude => {
                assert!(texts == ["Done."] || texts == next_turn, "{texts:?}");
            }
            CertifiedAgent::Codex => assert!(texts == ["Cats."] || texts == next_turn, "{texts:?}"),
            _ => assert_eq!(texts, next_turn, "{agent:?} {:#?}", end.rows),
        }
    });
}

#[test]
fn a_tool_of_a_configured_server_is_called() {
    for_each_agent(AgentScenario::McpServer, |agent| {
        let rig = Rig::new();
        let server = McpServerSpec::Http {
            url: rig.api.mcp_url(),
            headers: indexmap::IndexMap::new(),
            timeout_ms: None,
            always_load: None,
        };
        let tool = agent.server_tool("calc", "add");
        let script = ModelScript::new().tool(&tool, json!({ "a": 20, "b": 22 })).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let servers = indexmap::IndexMap::from([("calc".to_owned(), server)]);
        match &mut plan.brief.work {
            RuntimeLaunchSpec::Claude(spec) => spec.mcp_servers = servers,
            _ => program(&mut plan).mcp_servers = servers,
        }
        let end = rig.run(plan);
        succeeded(&end);
        calls_are_closed(&end);
        let told = end.sent.last().unwrap().history().join("\n");
        assert!(told.contains("the sum is 42"), "{agent:?} {told} {:#?}", end.rows);
        let is_call = |body: &serde_json::Value| body["method"] == "tools/call";
        let calls = rig.api.requests();
        let calls = calls.iter().filter(|it| it.path == "/mcp" && is_call(&it.body)).count();
        assert_eq!(calls, 1, "{agent:?}");
    });
}

#[test]
fn the_words_of_a_sub_agent_are_not_those_of_the_agent() {
    for_each_agent(AgentScenario::SubAgent, |agent| {
        let rig = Rig::new();
        let task = format!("Look around. {}", ModelScript::new().text("Looked around."));
        let script = ModelScript::new().step(agent.sub_agent(&task)).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let end = rig.run(plan);
        succeeded(&end);
        calls_are_closed(&end);
        assert_eq!(said(&end).last(), Some(&"Done."), "{agent:?} {:#?}", end.rows);
        assert_eq!(end.result.summary.as_deref(), Some("Done."), "{agent:?}");
        // The sub-agent asked the model, and the agent got its words.
        let told = end.sent.last().unwrap().history().join("\n");
        assert!(told.contains("Looked around."), "{agent:?} {told}");
        let calls = tool_ids(&end, "tool_use").len();
        assert_eq!(calls, 1, "{agent:?} {:#?}", end.rows);
    });
}

/// Text of a result that a job's row shows, in bytes.
const ROW_TEXT_BYTES: usize = 64 << 10;

#[test]
fn huge_and_binary_output_is_survived() {
    for_each_agent(AgentScenario::HugeOutput, |agent| {
        let rig = Rig::new();
        let command = "head -c 3000000 /dev/zero | tr '\\0' x; printf '\\377\\376\\000\\033'";
        let script = ModelScript::new().step(shell(command)).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let end = rig.run(plan);
        succeeded(&end);
        calls_are_closed(&end);
        assert_eq!(said(&end).last(), Some(&"Done."), "{agent:?}");
        let result = end.rows.iter().find(|row| row["type"] == "tool_result").unwrap();
        let text = result["result"].as_str().unwrap();
        match agent.0 {
            // Heeler cuts the output of these agents.
            CertifiedAgent::Codex | CertifiedAgent::CodexAcp | CertifiedAgent::Gemini => {
                let (shown, rest) = text.split_once("…[truncated ").unwrap();
                assert_eq!(shown, "x".repeat(ROW_TEXT_BYTES), "{agent:?}");
                assert!(rest.ends_with(" chars]"), "{agent:?} {rest}");
            }
            // Heeler runs their commands, and keeps as much of the end as they ask for.
            CertifiedAgent::Goose | CertifiedAgent::Grok | CertifiedAgent::Kimi => {
                let shown = text.split_once("…[truncated ").map_or(text, |(shown, _)| shown);
                // Where it was cut, a secret may have been cut.
                let mark = "[the beginning of the output is left out]\n";
                let shown = shown.strip_prefix(mark).unwrap_or(shown);
                let is_whole = shown.starts_with("xxxxxxxxxx") && shown.len() <= ROW_TEXT_BYTES;
                assert!(is_whole && shown.len() > 10_000, "{agent:?} {text}");
            }
            // The others shorten it themselves, and say so.
            _ => {
                let note = agent.shortened_output_note();
                assert!(text.contains(note), "{agent:?} {note} {text}");
                assert!(text.contains("xxxxxxxxxx") && text.len() < ROW_TEXT_BYTES, "{agent:?}");
            }
        }
    });
}

#[test]
fn turns_run_out() {
    let script = ModelScript::new().step(shell("true")).step(shell("true")).text("Never said.");
    for_each_agent(AgentScenario::MaxTurns, |agent| {
        let rig = Rig::new();
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        plan.spec.limits.max_turns = Some(1);
        failed(&rig.run(plan), ErrorClass::MaxTurns);
    });
}

#[test]
fn money_runs_out() {
    for_each_agent(AgentScenario::Budget, |agent| {
        let rig = Rig::new();
        let dear = ModelScriptStep {
            usage: Some(json!({
                "input_tokens": 1_000_000, "output_tokens": 1_000_000,
                // Qwen Code refuses to continue with more than its context holds.
                "input": 10_000, "output": 1_000,
            })),
            ..shell("true")
        };
        let mut plan = agent.plan(&rig, &ModelScript::new().step(dear).text("Never said."));
        set_mode(&mut plan, "bypassPermissions");
        if agent.0 != CertifiedAgent::Claude {
            let rates =
                TokenRates { input: 100.0, output: 100.0, cache_read: 100.0, cache_write: 100.0 };
            program(&mut plan).rates = Some(rates);
        }
        plan.spec.limits.budget_usd = Some(0.5);
        failed(&rig.run(plan), ErrorClass::Budget);
    });
}

#[test]
fn a_tool_that_is_not_listed_does_not_run() {
    for_each_agent(AgentScenario::ToolList, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(shell("touch made.txt")).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        plan.claude().allowed_tools = Some(vec!["Read".to_owned()]);
        let end = rig.run(plan);
        succeeded(&end);
        assert!(!work(&rig, "made.txt").exists(), "{agent:?} {:#?}", end.rows);
    });
}

#[test]
fn a_person_changes_the_input_of_an_action() {
    for_each_agent(AgentScenario::ChangedInput, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(shell("touch a.txt")).text("Done.");
        let mut live = rig.start(agent.plan(&rig, &script).attended());
        let ask = live.until_asked();
        let mut changed = ask.input.clone();
        changed["command"] = json!("touch b.txt");
        live.answer(&ask, QuestionAnswer::Allow { input: Some(changed) });
        let end = live.finish();
        succeeded(&end);
        assert!(work(&rig, "b.txt").is_file() && !work(&rig, "a.txt").exists(), "{agent:?}");
    });
}

/// Each cell that says `refused` is one: the config, or for a changed input the answer.
#[test]
fn a_config_that_needs_what_an_agent_cannot_do_is_refused() {
    let fleet = Fleet::new();
    for agent in CertifiedAgent::ALL {
        for scenario in AgentScenario::ALL {
            let is_refused = agent.outcome(*scenario) == ScenarioOutcome::Refused;
            if !is_refused || !is_tested(*agent) {
                continue;
            }
            let (key, value) = match scenario {
                AgentScenario::MaxTurns => ("max_turns", json!(3)),
                AgentScenario::Budget => ("budget", json!({ "job": 1.0 })),
                AgentScenario::ToolList => ("allowed_tools", json!(["Read"])),
                AgentScenario::ChangedInput => {
                    answer_is_refused(TestedAgent(*agent));
                    continue;
                }
                other => panic!("{other} has no key"),
            };
            let mut config = json!({ "name": "a", "runtime": "codex" });
            if *agent != CertifiedAgent::Codex {
                let runtime = if *agent == CertifiedAgent::QwenSdk { "sdk" } else { "acp" };
                config["runtime"] = runtime.into();
                config["program"] = TestedAgent(*agent).program_name().into();
            }
            config[key] = value;
            fleet.write("heeler.yaml", &json!({ "agents": [config] }).to_string());
            let refused = fleet.run(&["config", "validate"]);
            assert_ne!(refused.code, Some(0), "{agent} {scenario}");
            let text = refused.stdout + refused.stderr.as_str();
            assert!(text.contains("cannot be honoured"), "{agent} {scenario}: {text}");
        }
    }
}

fn answer_is_refused(agent: TestedAgent) {
    let rig = Rig::new();
    let script = ModelScript::new().step(agent.asked_shell("touch a.txt")).text("Done.");
    let mut live = rig.start(agent.plan(&rig, &script).attended());
    let ask = live.until_asked();
    let changed = json!({ "command": "touch b.txt" });
    live.answer(&ask, QuestionAnswer::Allow { input: Some(changed) });
    let refusal = live.next_refusal();
    assert!(refusal.contains("cannot take a changed input"), "{agent:?} {refusal}");
    live.answer(&ask, QuestionAnswer::Allow { input: None });
    let end = live.finish();
    succeeded(&end);
    assert!(work(&rig, "a.txt").is_file() && !work(&rig, "b.txt").exists(), "{agent:?}");
}

/// No scenario of the table lacks its test.
#[test]
fn every_scenario_has_a_test() {
    let source = concat!(
        include_str!("../agents.rs"),
        include_str!("processes.rs"),
        include_str!("questions.rs"),
        include_str!("scenarios.rs")
    );
    for scenario in AgentScenario::ALL {
        let calls = ["for_each_agent(", "check_api_error("]
            .map(|it| format!("{it}AgentScenario::{scenario:?},"));
        assert!(calls.iter().any(|call| source.contains(call)), "{scenario} has no test");
    }
}
