//! Scenarios of questions: a person answers, answers too late, or does not attend.

use heeler_config::{AgentScenario, CertifiedAgent};
use heeler_model::question::fill_answers;
use heeler_model::run::{QuestionAnswer, QuestionPolicy};
use heeler_testkit::ModelScript;
use serde_json::json;

use super::{calls_are_closed, for_each_agent, said, set_mode, succeeded, work};
use crate::rig::Rig;

#[test]
fn a_person_allows_and_denies_commands() {
    for_each_agent(AgentScenario::Permission, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new()
            .step(agent.asked_shell("touch allowed.txt && echo made"))
            .step(agent.asked_shell("touch denied.txt"))
            .text("Done.");
        let mut live = rig.start(agent.plan(&rig, &script).attended());
        let ask = live.until_asked();
        assert!(ask.input.to_string().contains("allowed.txt"), "{agent:?} {ask:?}");
        live.answer(&ask, QuestionAnswer::Allow { input: None });
        let ask = live.until_asked();
        assert!(ask.input.to_string().contains("denied.txt"), "{agent:?} {ask:?}");
        let denial = QuestionAnswer::Deny { message: "not this".to_owned(), interrupt: false };
        live.answer(&ask, denial);
        let end = live.finish();
        succeeded(&end);
        calls_are_closed(&end);
        assert!(work(&rig, "allowed.txt").is_file(), "{agent:?} {:#?}", end.rows);
        assert!(!work(&rig, "denied.txt").exists(), "{agent:?} {:#?}", end.rows);
        // The turn of these agents ends with the denial.
        let expected = match agent.0 {
            CertifiedAgent::Qwen | CertifiedAgent::CodexAcp => &[][..],
            CertifiedAgent::Copilot => &["Info: Operation cancelled by user"],
            _ => &["Done."],
        };
        assert_eq!(said(&end), expected, "{agent:?}");
    });
}

#[test]
fn what_needs_a_person_is_denied_when_no_person_attends() {
    for_each_agent(AgentScenario::Unattended, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(agent.asked_shell("touch denied.txt")).text("Done.");
        let end = rig.run(agent.plan(&rig, &script));
        succeeded(&end);
        calls_are_closed(&end);
        assert!(!work(&rig, "denied.txt").exists(), "{agent:?} {:#?}", end.rows);
        let shown = rig.show(&end.rows);
        assert!(shown.contains("this run is unattended"), "{agent:?} {shown}");
    });
}

/// Time for an answer that does not come.
const ANSWER_TIME_MS: u64 = 1_000;

#[test]
fn a_question_without_an_answer_in_time_is_denied() {
    for_each_agent(AgentScenario::PermissionTimeout, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(agent.asked_shell("touch late.txt")).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        plan.spec.attendance = QuestionPolicy::Person { timeout_ms: ANSWER_TIME_MS };
        let mut live = rig.start(plan);
        let ask = live.until_asked();
        assert!(ask.input.to_string().contains("late.txt"), "{agent:?} {ask:?}");
        let end = live.finish();
        succeeded(&end);
        calls_are_closed(&end);
        assert!(!work(&rig, "late.txt").exists(), "{agent:?} {:#?}", end.rows);
        let shown = rig.show(&end.rows);
        assert!(shown.contains("nobody answered in time"), "{agent:?} {shown}");
    });
}

#[test]
fn a_person_answers_a_question_of_the_agent() {
    for_each_agent(AgentScenario::Question, |agent| {
        let rig = Rig::new();
        let tool = agent.server_tool("heeler", "ask_human");
        let script =
            ModelScript::new().tool(&tool, json!({ "question": "Which colour?" })).text("Done.");
        let mut plan = agent.plan(&rig, &script).attended();
        set_mode(&mut plan, "bypassPermissions");
        let mut live = rig.start(plan);
        let ask = live.until_asked();
        assert!(ask.input.to_string().contains("Which colour?"), "{agent:?} {ask:?}");
        let input = fill_answers(&ask.input, "a dark blue").unwrap();
        live.answer(&ask, QuestionAnswer::Allow { input: Some(input) });
        let end = live.finish();
        succeeded(&end);
        calls_are_closed(&end);
        assert_eq!(said(&end).last(), Some(&"Done."), "{agent:?} {:#?}", end.rows);
        let told = end.sent.last().unwrap().history().join("\n");
        assert!(told.contains("a dark blue"), "{agent:?} {told}");
    });
}
