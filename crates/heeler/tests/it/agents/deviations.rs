//! Behaviour of single agents that no scenario of the table covers.

use heeler_config::{AgentScenario, CertifiedAgent, ScenarioOutcome};
use heeler_model::run::{ControlOperation, ErrorClass, QuestionAnswer};
use heeler_testkit::{ModelScript, ModelScriptStep};
use serde_json::json;

use super::{
    TestedAgent, calls_are_closed, failed, program, said, set_mode, shell, succeeded, work,
};
use crate::rig::Rig;

#[test]
fn a_usage_limit_of_codex_tells_when_it_resets() {
    let rig = Rig::new();
    let resets_at = 4_000_000_000_u64;
    let header = |name: &str, value: &str| (format!("x-codex-primary-{name}"), value.to_owned());
    let limited = ModelScriptStep {
        error_type: Some("usage_limit_reached".to_owned()),
        resets_at: Some(resets_at),
        headers: vec![
            header("used-percent", "100"),
            header("window-minutes", "300"),
            header("reset-at", &resets_at.to_string()),
        ],
        ..ModelScriptStep::error(429)
    };
    let end = rig.run(TestedAgent::CODEX.plan(&rig, &ModelScript::new().step(limited)));
    failed(&end, ErrorClass::RateLimited);
    let error = end.result.error.as_ref().unwrap();
    assert_eq!(error.resets_at.map(|at| at.as_second()), Some(4_000_000_000), "{error:?}");
}

#[test]
fn a_message_steers_the_running_turn_of_codex() {
    let rig = Rig::new();
    let go_on = work(&rig, "go");
    let wait_for_it = shell(&format!("until [ -e {go_on} ]; do sleep 0.1; done"));
    let script = ModelScript::new().step(wait_for_it).text("Done.");
    let mut plan = TestedAgent::CODEX.plan(&rig, &script);
    set_mode(&mut plan, "bypassPermissions");
    let mut live = rig.start(plan);
    live.until_row("tool_use");
    live.send(ControlOperation::message("mention cats".to_owned()));
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
    let told = end.sent.last().unwrap().history().join("\n");
    assert!(told.contains("mention cats"), "{told}");
    let turns = end.rows.iter().filter(|row| row["subtype"] == "init").count();
    assert_eq!(turns, 1, "the message did not need a turn of its own: {:#?}", end.rows);
}

#[test]
fn a_message_gets_the_next_turn_of_gemini() {
    let rig = Rig::new();
    let script = ModelScript::new().step(shell("touch held.txt")).text("Done.");
    let mut live = rig.start(TestedAgent::GEMINI.plan(&rig, &script).attended());
    let ask = live.until_asked();
    let next = ModelScript::new().text("Cats.");
    live.send(ControlOperation::message(format!("mention cats {next}")));
    live.answer(&ask, QuestionAnswer::Allow { input: None });
    let end = live.finish();
    succeeded(&end);
    assert_eq!(said(&end), ["Done.", "Cats."], "{:#?}", end.rows);
}

#[test]
fn a_changed_input_is_refused_and_the_question_stays_open() {
    let rig = Rig::new();
    let script = ModelScript::new().step(shell("touch a.txt")).text("Done.");
    let mut live = rig.start(TestedAgent::CODEX.plan(&rig, &script).attended());
    let ask = live.until_asked();
    let changed = json!({ "command": "touch b.txt" });
    live.answer(&ask, QuestionAnswer::Allow { input: Some(changed) });
    let refusal = live.next_refusal();
    assert!(refusal.contains("cannot take a changed input"), "{refusal}");
    live.answer(&ask, QuestionAnswer::Allow { input: None });
    let end = live.finish();
    succeeded(&end);
    assert!(work(&rig, "a.txt").is_file() && !work(&rig, "b.txt").exists());
}

#[test]
fn a_program_that_is_no_agent_fails_with_its_reason() {
    let rig = Rig::new();
    for (text, class) in [
        ("#!/bin/sh\necho hello\n", ErrorClass::Malformed),
        (
            "#!/bin/sh\nread line\necho '{\"id\":1,\"result\":{\"protocolVersion\":2}}'\ncat\n",
            ErrorClass::AgentFailed,
        ),
        (
            "#!/bin/sh\nread line\necho '{\"id\":1,\"error\":{\"code\":-32000,\"message\":\"log in\"}}'\ncat\n",
            ErrorClass::Authentication,
        ),
    ] {
        let file = work(&rig, "agent.sh");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let mut plan = TestedAgent::GEMINI.plan(&rig, &ModelScript::new().text("Hi."));
        (program(&mut plan).program, program(&mut plan).args) = (file, Vec::new());
        program(&mut plan).agent = "agent.sh".to_owned();
        let end = rig.run(plan);
        failed(&end, class);
    }
}

/// goose asks about edits without saying that they are edits, so they are denied like commands.
#[test]
fn an_edit_that_is_not_marked_as_one_is_denied() {
    let outcome = CertifiedAgent::Goose.outcome(AgentScenario::AcceptEdits);
    assert!(matches!(outcome, ScenarioOutcome::NotOffered(_)));
    let rig = Rig::new();
    let input = json!({ "path": work(&rig, "free.txt"), "content": "new\n" });
    let script = ModelScript::new().step(ModelScriptStep::tools([("write", input)])).text("Done.");
    let mut plan = TestedAgent::GOOSE.plan(&rig, &script);
    set_mode(&mut plan, "acceptEdits");
    let end = rig.run(plan);
    succeeded(&end);
    calls_are_closed(&end);
    assert!(!work(&rig, "free.txt").exists(), "{:#?}", end.rows);
}
