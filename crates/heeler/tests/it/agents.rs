//! The conformance suite: real agent programs, run by `heeler runner` against fakes of their APIs.
//!
//! One list of scenarios for all of them: what a person relies on must hold for every agent. The table
//! of `heeler_config` names the agents of each scenario, and docs/agents.md shows it. Programs take
//! seconds to start, so one run shows several things.

mod credentials;
mod detection;
mod deviations;
mod exports;
mod fleets;
mod processes;
mod questions;
mod scenarios;
mod tested_agent;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentScenario, CertifiedAgent};
use heeler_model::ExitReason;
use heeler_model::run::{ErrorClass, ProgramLaunchSpec, RuntimeLaunchSpec};
use heeler_testkit::{ModelScript, ModelScriptStep};
use serde_json::json;

use crate::rig::{End, Plan, Rig};
use tested_agent::TestedAgent;

/// Agents with which a scenario works, as far as this run of the tests includes them.
fn certified(scenario: AgentScenario) -> Vec<TestedAgent> {
    assert!(CertifiedAgent::all_with(scenario).next().is_some(), "{scenario} works with no agent");
    let agents = CertifiedAgent::all_with(scenario).filter(|agent| is_tested(*agent));
    agents.map(TestedAgent).collect()
}

/// Returns true if this run of the tests includes an agent. `HEELER_TESTED_AGENTS` is `all`, or names
/// agents; without it, CI's choice counts.
fn is_tested(agent: CertifiedAgent) -> bool {
    match std::env::var("HEELER_TESTED_AGENTS") {
        Ok(names) => names == "all" || names.split(',').any(|name| name == agent.as_str()),
        Err(_) => agent.runs_in_ci(),
    }
}

/// Plays a scenario with each agent with which it works. One that fails does not keep the others from
/// being tried. The agents that pass are lines of the file `HEELER_AGENTS_REPORT`, if it is named.
#[track_caller]
fn for_each_agent(scenario: AgentScenario, play: impl Fn(TestedAgent)) {
    let mut failed = Vec::new();
    for agent in certified(scenario) {
        match catch_unwind(AssertUnwindSafe(|| play(agent))) {
            Ok(()) => report_pass(agent.0, scenario),
            Err(_) => failed.push(agent.0.as_str()),
        }
    }
    assert!(failed.is_empty(), "{scenario} failed with {failed:?}; the reasons are above");
}

/// `cargo xtask prove agents` compares the report with the table.
fn report_pass(agent: CertifiedAgent, scenario: AgentScenario) {
    let Some(report) = std::env::var_os("HEELER_AGENTS_REPORT") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(report).unwrap();
    file.write_all(format!("{agent}\t{scenario}\n").as_bytes()).unwrap();
}

fn set_mode(plan: &mut Plan, mode: &str) {
    match &mut plan.brief.work {
        RuntimeLaunchSpec::Claude(spec) => spec.permission_mode = mode.to_owned(),
        _ => program(plan).permission_mode = mode.to_owned(),
    }
}

fn set_protected(plan: &mut Plan, file: Utf8PathBuf) {
    match &mut plan.brief.work {
        RuntimeLaunchSpec::Claude(spec) => spec.protected = vec![file],
        _ => program(plan).protected = vec![file],
    }
}

/// A call of the agent's shell.
fn shell(command: &str) -> ModelScriptStep {
    ModelScriptStep::tools([("sh", json!({ "command": command }))])
}

fn work(rig: &Rig, name: &str) -> Utf8PathBuf {
    rig.path("work").join(name)
}

fn program(plan: &mut Plan) -> &mut ProgramLaunchSpec {
    match &mut plan.brief.work {
        RuntimeLaunchSpec::Codex(spec)
        | RuntimeLaunchSpec::Acp(spec)
        | RuntimeLaunchSpec::Qwen(spec) => spec,
        _ => panic!("the plan is for another runtime"),
    }
}

#[track_caller]
fn succeeded(end: &End) {
    assert_eq!(end.result.exit_reason, ExitReason::Success, "{:#?} {:#?}", end.result, end.rows);
}

#[track_caller]
fn failed(end: &End, class: ErrorClass) {
    let error = end.result.error.as_ref().map(|error| error.class);
    assert_eq!(error, Some(class), "{:#?} {:#?}", end.result, end.rows);
}

/// Texts that the agent said.
fn said(end: &End) -> Vec<&str> {
    let rows = end.rows.iter().filter(|row| row["type"] == "assistant");
    rows.filter_map(|row| row["content"].as_str()).collect()
}

/// Every call has a result.
#[track_caller]
fn calls_are_closed(end: &End) {
    assert_eq!(tool_ids(end, "tool_use"), tool_ids(end, "tool_result"), "{:#?}", end.rows);
}

/// IDs of the calls or of their results.
fn tool_ids<'e>(end: &'e End, kind: &str) -> Vec<&'e str> {
    let rows = end.rows.iter().filter(|row| row["type"] == kind);
    rows.filter_map(|row| row["tool_use_id"].as_str()).collect()
}

/// Makes a session of Gemini CLI look older. It names the file of a session after the minute, and a
/// session that is loaded in the minute in which it began overwrites its own file.
fn age_gemini_session(rig: &Rig) {
    age_gemini_chats(&rig.path("agent-home/.gemini/tmp"));
}

/// Makes all sessions of Gemini CLI look older.
fn age_gemini_chats(projects: &Utf8Path) {
    for project in projects.read_dir_utf8().unwrap() {
        let chats = project.unwrap().path().join("chats");
        for file in chats.read_dir_utf8().into_iter().flatten() {
            let file = file.unwrap();
            let old = file.file_name().replacen("session-20", "session-19", 1);
            std::fs::rename(file.path(), chats.join(old)).unwrap();
        }
    }
}

#[test]
fn an_agent_answers_and_a_later_job_continues_its_session() {
    for_each_agent(AgentScenario::Resume, |agent| {
        let rig = Rig::new();
        let first = ModelScriptStep {
            thinking: Some("let me think".to_owned()),
            usage: Some(json!({ "input": 1000, "cached": 400, "output": 50 })),
            ..ModelScriptStep::text("Hi there.")
        };
        let end = rig.run(agent.plan(&rig, &ModelScript::new().step(first)));
        succeeded(&end);
        assert_eq!(said(&end), ["Hi there."], "{agent:?} {:#?}", end.rows);
        assert_eq!(end.result.summary.as_deref(), Some("Hi there."));
        assert!(end.result.session.as_ref().unwrap().resumable);
        let usage = &end.result.cost.usage;
        match agent.0 {
            CertifiedAgent::Codex => {
                assert_eq!((usage.input_tokens, usage.output_tokens), (Some(600), Some(50)));
                assert_eq!(usage.cache_read_input_tokens, Some(400));
            }
            // It reports no tokens.
            CertifiedAgent::Kimi => assert_eq!(usage.output_tokens, None),
            _ => assert!(usage.output_tokens.is_some_and(|it| it > 0), "{agent:?} {usage:?}"),
        }

        if agent == TestedAgent::GEMINI {
            age_gemini_session(&rig);
        }
        let again = agent.plan(&rig, &ModelScript::new().echo()).resume(&end);
        let second = rig.run(again);
        succeeded(&second);
        assert_eq!(second.session_id(), end.session_id(), "{agent:?} {:#?}", second.rows);
        // The model was sent the first turn too: the agent remembers it.
        let told = second.sent.last().unwrap().history().join("\n");
        assert!(told.contains("Hi there."), "{agent:?}: {told}");
        // The history is not recorded a second time.
        let texts = second.session.iter().filter(|row| row["type"] == "assistant");
        let first = texts.filter(|row| row.to_string().contains("\"Hi there.\"")).count();
        assert_eq!(first, 1, "{agent:?} {:#?}", second.session);
    });
}

#[test]
fn a_session_that_the_agent_has_lost_begins_anew() {
    for_each_agent(AgentScenario::LostSession, |agent| {
        let rig = Rig::new();
        let end = rig.run(agent.plan(&rig, &ModelScript::new().text("Hi.")));
        succeeded(&end);
        let home = match agent.0 {
            CertifiedAgent::Claude => "claude",
            _ => "agent-home",
        };
        std::fs::remove_dir_all(rig.path(home)).unwrap();
        let again = agent.plan(&rig, &ModelScript::new().text("Again.")).resume(&end);
        let second = rig.run(again);
        succeeded(&second);
        assert_ne!(second.session_id(), end.session_id(), "{agent:?}");
        let shown = rig.show(&second.rows);
        assert!(shown.contains("no longer has the session"), "{shown}");
    });
}

#[test]
fn edits_are_accepted_by_mode_except_of_protected_files() {
    for_each_agent(AgentScenario::AcceptEdits, |agent| {
        let rig = Rig::new();
        let write = |name: &str| {
            let input = json!({ "path": work(&rig, name), "content": "new\n" });
            ModelScriptStep::tools([("write", input)])
        };
        let script =
            ModelScript::new().step(write("free.txt")).step(write("kept.txt")).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        // With models of OpenAI it edits by patches, which the fake model does not write.
        if agent.0 == CertifiedAgent::Copilot {
            plan.brief.env.insert("COPILOT_MODEL".to_owned(), "claude-sonnet-4.5".to_owned());
        }
        set_mode(&mut plan, "acceptEdits");
        set_protected(&mut plan, work(&rig, "kept.txt"));
        let end = rig.run(plan);
        succeeded(&end);
        calls_are_closed(&end);
        assert!(work(&rig, "free.txt").is_file(), "{agent:?} {:#?}", end.rows);
        assert!(!work(&rig, "kept.txt").exists(), "{agent:?} {:#?}", end.rows);
        if agent.0 != CertifiedAgent::Claude {
            assert!(rig.show(&end.rows).contains("is protected"), "{agent:?}");
        }
    });
}

#[test]
fn without_permissions_nothing_is_asked() {
    for_each_agent(AgentScenario::Bypass, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(shell("echo made > made.txt")).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let end = rig.run(plan);
        succeeded(&end);
        calls_are_closed(&end);
        assert!(work(&rig, "made.txt").is_file(), "{agent:?} {:#?}", end.rows);
    });
}

#[test]
fn a_cancel_ends_a_text() {
    for_each_agent(AgentScenario::CancelText, |agent| {
        let rig = Rig::new();
        let slow = ModelScriptStep {
            stall_after: Some(3),
            piece: Some(8),
            ..ModelScriptStep::text("many words that are never said to their end, as it seems")
        };
        let mut live = rig.start(agent.plan(&rig, &ModelScript::new().step(slow)));
        live.until_said("many wor");
        live.cancel();
        let end = live.finish();
        assert_eq!(end.result.exit_reason, ExitReason::Cancelled, "{agent:?} {:#?}", end.rows);
        // What was shown is recorded.
        assert!(said(&end).iter().any(|it| it.starts_with("many wor")), "{:#?}", end.rows);
    });
}

#[track_caller]
fn check_api_error(scenario: AgentScenario, status: u16, classes: &[ErrorClass]) {
    for_each_agent(scenario, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(ModelScriptStep::error(status));
        let end = rig.run(agent.plan(&rig, &script));
        let error = end.result.error.as_ref().map(|error| error.class);
        let is_known = error.is_some_and(|class| classes.contains(&class));
        assert!(is_known, "{agent:?} {status}: {:#?} {:#?}", end.result, end.rows);
    });
}

#[test]
fn a_refused_key_is_told() {
    check_api_error(AgentScenario::Status401, 401, &[ErrorClass::Authentication]);
}

#[test]
fn a_limit_of_the_api_is_told() {
    check_api_error(AgentScenario::Status429, 429, &[ErrorClass::RateLimited]);
}

#[test]
fn a_failure_of_the_api_is_told() {
    check_api_error(AgentScenario::Status500, 500, &[ErrorClass::ServerError]);
}

#[test]
fn an_overload_of_the_api_is_told() {
    let classes = [ErrorClass::ServerError, ErrorClass::Overloaded];
    check_api_error(AgentScenario::Status529, 529, &classes);
}

#[test]
fn a_system_prompt_reaches_the_model() {
    for_each_agent(AgentScenario::SystemPrompt, |agent| {
        let rig = Rig::new();
        let mut plan = agent.plan(&rig, &ModelScript::new().text("Yes."));
        let system = Some("Speak like a heeler.".to_owned());
        match &mut plan.brief.work {
            RuntimeLaunchSpec::Claude(spec) => spec.system_prompt = system,
            _ => program(&mut plan).system_prompt = system,
        }
        let end = rig.run(plan);
        succeeded(&end);
        let sent = end.sent.last().unwrap();
        assert!(sent.body.to_string().contains("Speak like a heeler."), "{agent:?}");
    });
}
