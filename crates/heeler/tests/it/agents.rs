//! The conformance suite: real agent programs, run by `heeler runner` against fakes of their APIs.
//!
//! One list of scenarios for all of them: what a person relies on must hold for every agent. The table
//! of `heeler_config` names the agents of each scenario, and docs/agents.md shows it. Programs take
//! seconds to start, so one run shows several things.

mod detection;
mod fleets;
mod scenarios;
mod tested_agent;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentScenario, CertifiedAgent};
use heeler_model::ExitReason;
use heeler_model::run::{
    ControlOperation, ErrorClass, ProgramLaunchSpec, QuestionAnswer, RuntimeLaunchSpec,
};
use heeler_testkit::{ModelScript, ModelScriptStep};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::rig::{End, Live, Plan, Rig, wait};
use tested_agent::TestedAgent;

/// Agents with which a scenario works, as far as this run of the tests includes them.
fn certified(scenario: AgentScenario) -> Vec<TestedAgent> {
    assert!(CertifiedAgent::all_with(scenario).next().is_some(), "{scenario} works with no agent");
    let agents = CertifiedAgent::all_with(scenario).filter(|agent| is_tested(*agent, scenario));
    agents.map(TestedAgent).collect()
}

/// Returns true if this run of the tests includes a scenario of an agent. `HEELER_TESTED_AGENTS` is
/// `all`, or names agents; without it, CI's choice counts.
fn is_tested(agent: CertifiedAgent, scenario: AgentScenario) -> bool {
    match std::env::var("HEELER_TESTED_AGENTS") {
        Ok(names) => names == "all" || names.split(',').any(|name| name == agent.as_str()),
        Err(_) => agent.runs_in_ci(scenario),
    }
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

/// Waits until the process is gone.
#[track_caller]
fn until_gone(pid: Pid) {
    wait("the end of a process", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

/// A command that tells its process ID and never ends by itself.
fn endless(rig: &Rig) -> ModelScriptStep {
    let (pid, temp) = (work(rig, "pid"), work(rig, "pid.tmp"));
    shell(&format!("echo $$ > {temp}; mv {temp} {pid}; exec tail -f /dev/null"))
}

#[track_caller]
fn endless_pid(rig: &Rig) -> Pid {
    let text = wait("the tool", || std::fs::read_to_string(work(rig, "pid")).ok());
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// The agent's process: the child of the runner.
#[track_caller]
fn agent_pid(live: &Live<'_>) -> Pid {
    let runner = live.child.id();
    let file = format!("/proc/{runner}/task/{runner}/children");
    wait("the agent", || {
        let children = std::fs::read_to_string(&file).ok()?;
        Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
    })
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
    for agent in certified(AgentScenario::Resume) {
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
    }
}

#[test]
fn a_session_that_the_agent_has_lost_begins_anew() {
    for agent in certified(AgentScenario::LostSession) {
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
    }
}

#[test]
fn a_person_allows_and_denies_commands() {
    for agent in certified(AgentScenario::Permission) {
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
    }
}

#[test]
fn what_needs_a_person_is_denied_when_no_person_attends() {
    for agent in certified(AgentScenario::Unattended) {
        let rig = Rig::new();
        let script = ModelScript::new().step(agent.asked_shell("touch denied.txt")).text("Done.");
        let end = rig.run(agent.plan(&rig, &script));
        succeeded(&end);
        calls_are_closed(&end);
        assert!(!work(&rig, "denied.txt").exists(), "{agent:?} {:#?}", end.rows);
        let shown = rig.show(&end.rows);
        assert!(shown.contains("this run is unattended"), "{agent:?} {shown}");
    }
}

#[test]
fn edits_are_accepted_by_mode_except_of_protected_files() {
    for agent in certified(AgentScenario::AcceptEdits) {
        let rig = Rig::new();
        let write = |name: &str| {
            let input = json!({ "path": work(&rig, name), "content": "new\n" });
            ModelScriptStep::tools([("write", input)])
        };
        let script =
            ModelScript::new().step(write("free.txt")).step(write("kept.txt")).text("Done.");
        let mut plan = agent.plan(&rig, &script);
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
    }
}

#[test]
fn without_permissions_nothing_is_asked() {
    for agent in certified(AgentScenario::Bypass) {
        let rig = Rig::new();
        let script = ModelScript::new().step(shell("echo made > made.txt")).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let end = rig.run(plan);
        succeeded(&end);
        calls_are_closed(&end);
        assert!(work(&rig, "made.txt").is_file(), "{agent:?} {:#?}", end.rows);
    }
}

#[test]
fn a_cancel_ends_a_text() {
    for agent in certified(AgentScenario::CancelText) {
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
    }
}

#[test]
fn a_cancel_ends_a_tool_with_all_its_processes() {
    for agent in certified(AgentScenario::CancelTool) {
        let rig = Rig::new();
        let script = ModelScript::new().step(endless(&rig)).text("Never said.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let mut live = rig.start(plan);
        let tool = endless_pid(&rig);
        live.cancel();
        let end = live.finish();
        assert_eq!(end.result.exit_reason, ExitReason::Cancelled, "{agent:?} {:#?}", end.rows);
        until_gone(tool);
        calls_are_closed(&end);
    }
}

#[test]
fn an_agent_that_is_killed_fails_and_leaves_no_process() {
    for agent in certified(AgentScenario::Killed) {
        let rig = Rig::new();
        let script = ModelScript::new().step(endless(&rig)).text("Never said.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let live = rig.start(plan);
        let tool = endless_pid(&rig);
        kill_process(agent_pid(&live), Signal::KILL).unwrap();
        let end = live.finish();
        failed(&end, ErrorClass::AgentDied);
        until_gone(tool);
        // The rows of Claude are its own: they show that the call has no result.
        if agent.0 == CertifiedAgent::Claude {
            assert_eq!(tool_ids(&end, "tool_use").len(), 1, "{:#?}", end.rows);
            assert_eq!(tool_ids(&end, "tool_result"), Vec::<&str>::new(), "{:#?}", end.rows);
        } else {
            calls_are_closed(&end);
        }
    }
}

#[test]
fn errors_of_the_api_are_told_by_class() {
    let server = [ErrorClass::ServerError, ErrorClass::Overloaded];
    for (scenario, status, classes) in [
        (AgentScenario::Status401, 401, &[ErrorClass::Authentication][..]),
        (AgentScenario::Status429, 429, &[ErrorClass::RateLimited]),
        (AgentScenario::Status500, 500, &[ErrorClass::ServerError]),
        (AgentScenario::Status529, 529, &server),
    ] {
        for agent in certified(scenario) {
            let rig = Rig::new();
            let script = ModelScript::new().step(ModelScriptStep::error(status));
            let end = rig.run(agent.plan(&rig, &script));
            let error = end.result.error.as_ref().map(|error| error.class);
            let is_known = error.is_some_and(|class| classes.contains(&class));
            assert!(is_known, "{agent:?} {status}: {:#?} {:#?}", end.result, end.rows);
        }
    }
}

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
fn a_system_prompt_reaches_the_model() {
    for agent in certified(AgentScenario::SystemPrompt) {
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
    }
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
