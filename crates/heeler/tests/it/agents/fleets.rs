//! Fleets of different agents, the whole way: config, `heeler trigger`, workflows, record.

use std::process::Command;

use heeler_config::CertifiedAgent;
use heeler_testkit::{
    MessagesApi, ModelScript, ModelScriptStep, claude, codex, gemini, node, qwen,
};
use serde_json::{Value as Json, json};

use super::{TestedAgent, shell};
use crate::fleet::{Fleet, Ran};

/// A fleet in which Claude plans, Codex builds and Gemini CLI reviews.
fn mixed_fleet() -> (Fleet, MessagesApi) {
    let (fleet, api) = (Fleet::new(), MessagesApi::start());
    let home = fleet.path().join("agent-home");
    let home = camino::Utf8Path::from_path(&home).unwrap();
    let with_env = |agent: TestedAgent, mut config: Json| {
        let mut env = agent.write_settings(home, api.url());
        // Root may bypass permissions only where the config claims a sandbox.
        env.insert("IS_SANDBOX".to_owned(), "1".to_owned());
        config["env"] = json!(env);
        config
    };
    let planner = json!({
        "name": "planner", "claude_path": claude(), "setting_sources": [], "permission_mode": "plan",
    });
    let builder = json!({
        "name": "builder", "runtime": "codex", "program": codex(),
        "permission_mode": "bypassPermissions", "session": { "mode": "persistent" },
        "system_prompt": "You build.",
    });
    let reviewer = json!({
        "name": "reviewer", "runtime": "acp", "program": { "agent": "gemini", "path": gemini() },
        "permission_mode": "plan",
    });
    let agents =
        [planner, with_env(TestedAgent::CODEX, builder), with_env(TestedAgent::GEMINI, reviewer)];
    fleet.write("heeler.yaml", &json!({ "agents": agents }).to_string());
    (fleet, api)
}

fn run(fleet: &Fleet, api: &MessagesApi, args: &[&str]) -> Ran {
    let mut command: Command = fleet.command(args);
    command.env("ANTHROPIC_BASE_URL", api.url()).env("ANTHROPIC_API_KEY", "mock-api-key");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    Ran::from(command.output().unwrap())
}

#[test]
fn a_job_of_codex_is_shown_recorded_and_continued() {
    let (fleet, api) = mixed_fleet();
    let prompt = |script: &ModelScript| format!("Please. {script}");
    let script = ModelScript::new().step(shell("echo one > built.txt")).text("Built.");
    let said = run(&fleet, &api, &["trigger", "builder", "--prompt", &prompt(&script)]);
    assert!(said.stderr.contains("shell"), "{}", said.stderr);
    assert!(said.ok().contains("Built."), "the agent's words are on stdout");
    assert_eq!(fleet.read("built.txt"), "one\n");
    let job = fleet.json(&["jobs", "--agent", "builder", "--json"])["jobs"][0].clone();
    assert_eq!((&job["status"], &job["summary"]), (&json!("completed"), &json!("Built.")));

    let again = prompt(&ModelScript::new().text("Again."));
    run(&fleet, &api, &["trigger", "builder", "--prompt", &again]).ok();
    let sent = api.messages();
    let told = sent.last().unwrap().history().join("\n");
    assert!(told.contains("Built."), "{told}");
    assert!(sent.last().unwrap().body.to_string().contains("You build."));
    let sessions = fleet.json(&["session", "list", "--agent", "builder", "--json"]);
    assert_eq!(sessions["total"], 1, "{sessions:#}");

    // Claude gets the conversation as text.
    let session = sessions["sessions"][0]["id"].as_str().unwrap().to_owned();
    let forked = fleet.run(&["session", "fork", &session, "--as", "planner"]);
    assert!(forked.stderr.contains("the conversation as text"), "{}", forked.stderr);
    let fork = forked.ok().trim().to_owned();
    let next = prompt(&ModelScript::new().text("I see."));
    run(&fleet, &api, &["session", "resume", &fork, "-p", &next]).ok();
    let sent = api.messages();
    let last = sent.last().unwrap();
    assert_eq!(last.path.split('?').next(), Some("/v1/messages"));
    let told = last.history().join("\n");
    assert!(told.contains("Built.") && told.contains("The record ends here."), "{told}");
}

/// The next job would only be refused by the API.
#[test]
fn a_limit_that_a_successful_job_used_up_parks_the_login_until_it_resets() {
    let (fleet, api) = mixed_fleet();
    let reset = jiff::Timestamp::now().as_second() + 3600;
    let header = |name: &str, value: &str| (format!("x-codex-primary-{name}"), value.to_owned());
    let last = ModelScriptStep {
        headers: vec![
            header("used-percent", "100"),
            header("window-minutes", "300"),
            header("reset-at", &reset.to_string()),
        ],
        ..ModelScriptStep::text("Built.")
    };
    let prompt = format!("Please. {}", ModelScript::new().step(last));
    let said = run(&fleet, &api, &["trigger", "builder", "--prompt", &prompt]);
    assert!(said.ok().contains("Built."));
    let job = fleet.json(&["jobs", "--agent", "builder", "--json"])["jobs"][0].clone();
    assert_eq!(job["status"], "completed", "{job:#}");
    let status = fleet.json(&["status", "--json"]);
    let parked = &status["parked"][0];
    let until: jiff::Timestamp = parked["until"].as_str().unwrap().parse().unwrap();
    assert_eq!((until.as_second(), &parked["job"]), (reset, &job["id"]), "{status:#}");

    // Another job of the login waits, and one of another login does not.
    let asked = api.messages().len();
    let next = format!("Please. {}", ModelScript::new().text("Never said."));
    run(&fleet, &api, &["trigger", "builder", "--prompt", &next, "--detach"]).ok();
    let other = format!("Please. {}", ModelScript::new().text("Fine."));
    let said = run(&fleet, &api, &["trigger", "reviewer", "--prompt", &other]);
    assert!(said.ok().contains("Fine."));
    let status = fleet.json(&["status", "--json"]);
    assert_eq!(status["waiting"].as_array().map(Vec::len), Some(1), "{status:#}");
    let sent = api.messages();
    let is_next = |it: &heeler_testkit::ApiRequest| it.body.to_string().contains("Never said.");
    assert!(sent.len() > asked && !sent.iter().any(is_next));
    drop(fleet.run(&["stop"]));
}

#[test]
fn a_session_of_codex_made_in_a_terminal_is_listed_adopted_and_continued() {
    let (fleet, api) = mixed_fleet();
    let home = fleet.file("agent-home");
    let env =
        TestedAgent::CODEX.write_settings(camino::Utf8Path::from_path(&home).unwrap(), api.url());
    let elsewhere = fleet.file("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let prompt = |script: &ModelScript| format!("Please. {script}");
    let listed = || {
        let mut list = fleet.command(&["session", "list", "--native", "--json"]);
        let listed = Ran::from(list.envs(&env).output().unwrap()).ok();
        serde_json::from_str::<Json>(&listed).unwrap()
    };
    let qualified = |it: &Json| format!("codex:{}", it["agentSessionId"].as_str().unwrap());

    // A thread that Heeler began belongs to a session already.
    let hi = prompt(&ModelScript::new().text("Hi."));
    run(&fleet, &api, &["trigger", "builder", "--prompt", &hi]).ok();
    let natives = listed();
    assert_eq!(natives["total"], 1, "{natives:#}");
    let own = qualified(&natives["sessions"][0]);
    let refused = run(&fleet, &api, &["session", "adopt", &own, "--as", "builder"]);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains("Heeler began the session"), "{}", refused.stderr);

    let by_hand = Command::new(codex())
        .args(["exec", "--skip-git-repo-check", "-s", "danger-full-access"])
        .arg(prompt(&ModelScript::new().text("By hand.")))
        .envs(&env)
        .current_dir(&elsewhere)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(by_hand.status.success(), "{}", String::from_utf8_lossy(&by_hand.stderr));

    let natives = listed();
    let is_new = |it: &&Json| qualified(it) != own;
    let native = natives["sessions"].as_array().unwrap().iter().find(is_new).unwrap();
    assert_eq!((&natives["total"], &native["program"]), (&json!(2), &json!("codex")));
    assert_eq!(native["messageCount"], 2, "{natives:#}");
    let id = qualified(native);
    let mut show = fleet.command(&["session", "show", &id]);
    let shown = Ran::from(show.envs(&env).output().unwrap()).ok();
    assert!(shown.contains("codex, in a terminal"), "{shown}");
    let mut show = fleet.command(&["session", "show", &id, "--history"]);
    let shown = Ran::from(show.envs(&env).output().unwrap()).ok();
    assert!(shown.contains("By hand."), "{shown}");

    // Claude cannot continue it.
    let refused = run(&fleet, &api, &["session", "adopt", &id, "--as", "planner"]);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains("the session is codex's"), "{}", refused.stderr);
    let adopted = run(&fleet, &api, &["session", "adopt", &id, "--as", "builder", "--json"]).ok();
    let adopted: Json = serde_json::from_str(&adopted).unwrap();
    let session = adopted["id"].as_str().unwrap();
    assert_eq!(adopted["messageCount"], 2, "{adopted}");
    let past = fleet.run(&["session", "show", session, "--history"]).ok();
    assert!(past.contains("By hand."), "{past}");
    let again = run(&fleet, &api, &["session", "adopt", &id, "--as", "builder"]);
    assert_eq!(again.code, Some(5), "{}", again.stderr);

    let next = prompt(&ModelScript::new().step(shell("echo two > built.txt")).text("Built."));
    run(&fleet, &api, &["session", "resume", session, "-p", &next]).ok();
    let told = api.messages().last().unwrap().history().join("\n");
    assert!(told.contains("By hand."), "Codex remembers the turn: {told}");
    assert!(elsewhere.join("built.txt").exists(), "it continues where it was made");
    let natives = listed();
    let native = natives["sessions"].as_array().unwrap().iter().find(is_new).unwrap();
    assert_eq!((&natives["total"], &native["id"]), (&json!(2), &json!(session)));
}

/// Uses an agent's program as a person would in a terminal.
fn ask_by_hand(mut command: Command, prompt: &str) {
    let asked = command
        .args(["-p", prompt])
        .env("GEMINI_CLI_TRUST_WORKSPACE", "true")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
}

/// Qwen Code and Gemini CLI do not record that Heeler began a session; the fleet's transcripts do.
#[test]
fn sessions_of_qwen_and_gemini_made_in_a_terminal_are_adopted_and_continued() {
    let (fleet, api) = (Fleet::new(), MessagesApi::start());
    let home = fleet.path().join("agent-home");
    let home = camino::Utf8Path::from_path(&home).unwrap();
    let qwen_env = TestedAgent(CertifiedAgent::QwenSdk).write_settings(home, api.url());
    let gemini_env = TestedAgent::GEMINI.write_settings(home, api.url());
    let agents = json!({ "agents": [
        { "name": "tester", "runtime": "sdk", "env": qwen_env,
            "program": { "agent": "qwen", "path": node(), "args": [qwen()] } },
        { "name": "reviewer", "runtime": "acp", "env": gemini_env,
            "program": { "agent": "gemini", "path": gemini() } },
    ] });
    fleet.write("heeler.yaml", &agents.to_string());
    let elsewhere = fleet.file("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let prompt = |script: &ModelScript| format!("Please. {script}");
    let natives = || {
        let mut list = fleet.command(&["session", "list", "--native", "--json"]);
        let listed = Ran::from(list.env("HOME", home).output().unwrap()).ok();
        serde_json::from_str::<Json>(&listed).unwrap()["sessions"].as_array().unwrap().clone()
    };
    let name = |it: &Json| {
        let text = |key: &str| it[key].as_str().unwrap().to_owned();
        format!("{}:{}", text("program"), text("agentSessionId"))
    };
    let programs = [
        ("qwen", "tester", &qwen_env, vec![node(), qwen()], &[][..]),
        ("gemini", "reviewer", &gemini_env, vec![gemini()], &["-m", "gemini-2.5-pro"]),
    ];
    for (program, agent, env, command, options) in programs {
        // A session that Heeler began belongs to a session already.
        let hi = prompt(&ModelScript::new().text("Hi."));
        run(&fleet, &api, &["trigger", agent, "--prompt", &hi]).ok();
        let before: Vec<String> = natives().iter().map(name).collect();
        let own = before.iter().find(|it| it.starts_with(program)).unwrap();
        let refused = run(&fleet, &api, &["session", "adopt", own, "--as", agent]);
        assert_eq!(refused.code, Some(5), "{program}: {}", refused.stderr);
        assert!(refused.stderr.contains("a run of this fleet opened"), "{}", refused.stderr);

        let mut by_hand = Command::new(&command[0]);
        by_hand.args(&command[1..]).args(options).envs(env).current_dir(&elsewhere);
        ask_by_hand(by_hand, &prompt(&ModelScript::new().text("By hand.")));
        let after = natives();
        let made = after.iter().find(|it| !before.contains(&name(it))).unwrap();
        assert_eq!(made["messageCount"], 2, "{made:#}");
        let elsewhere = elsewhere.canonicalize().unwrap();
        assert_eq!(made["workingDirectory"].as_str(), elsewhere.to_str(), "{made:#}");
        if program == "gemini" {
            super::age_gemini_chats(&home.join(".gemini/tmp"));
        }

        let id = name(made);
        let mut show = fleet.command(&["session", "show", &id, "--history"]);
        let shown = Ran::from(show.env("HOME", home).output().unwrap()).ok();
        assert!(shown.contains("By hand."), "{shown}");
        let other = if agent == "tester" { "reviewer" } else { "tester" };
        let refused = run(&fleet, &api, &["session", "adopt", &id, "--as", other]);
        assert_eq!(refused.code, Some(5), "{}", refused.stderr);
        assert!(refused.stderr.contains(&format!("the session is {program}'s")));
        let adopted = run(&fleet, &api, &["session", "adopt", &id, "--as", agent, "--json"]).ok();
        let adopted: Json = serde_json::from_str(&adopted).unwrap();
        let session = adopted["id"].as_str().unwrap();
        let past = fleet.run(&["session", "show", session, "--history"]).ok();
        assert!(past.contains("By hand."), "{past}");
        let next = prompt(&ModelScript::new().text("Continued."));
        run(&fleet, &api, &["session", "resume", session, "-p", &next]).ok();
        let sent = api.messages();
        // An agent may make further requests of its own.
        let sent = sent.iter().find(|it| it.body.to_string().contains("Continued.")).unwrap();
        let remembers = sent.history().iter().any(|line| line.ends_with(": By hand."));
        assert!(remembers, "{program} remembers the turn: {:#?}", sent.history());
    }
    let refused = run(&fleet, &api, &["session", "adopt", "opencode:ses_1", "--as", "tester"]);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains("in a database beside its keys"), "{}", refused.stderr);
}

#[test]
fn codex_works_in_a_sandbox_and_calls_tools_of_servers() {
    let (fleet, api) = (Fleet::empty(), MessagesApi::start());
    let home = fleet.file("agent-home");
    let env =
        TestedAgent::CODEX.write_settings(camino::Utf8Path::from_path(&home).unwrap(), api.url());
    let address = api.url().strip_prefix("http://").unwrap();
    let agents = json!({ "agents": [{
        "name": "builder", "runtime": "codex", "program": codex(), "working_directory": "work",
        "permission_mode": "bypassPermissions", "env": env,
        "sandbox": { "write": ["agent-home"], "forward": [address] },
        "mcp_servers": { "calc": { "type": "http", "url": api.mcp_url() } },
    }] });
    fleet.write("heeler.yaml", &agents.to_string());
    fleet.write("work/README.md", "work\n");
    let script = ModelScript::new()
        .step(shell("echo one > built.txt; touch ../outside.txt || echo held"))
        .tool("mcp__calc::add", json!({ "a": 20, "b": 22 }))
        .tool("mcp__heeler::report_progress", json!({ "message": "half way", "percent": 50 }))
        .text("Built.");
    let said = run(&fleet, &api, &["trigger", "builder", "--prompt", &format!("Please. {script}")]);
    let stderr = said.stderr.clone();
    assert!(said.ok().contains("Built."), "{stderr}");
    assert_eq!(fleet.read("work/built.txt"), "one\n");
    assert!(!fleet.file("outside.txt").exists(), "the sandbox holds");
    let sent = api.messages();
    let told = sent.last().unwrap().history().join("\n");
    assert!(told.contains("held") && told.contains("the sum is 42"), "{told}");
    let job = fleet.json(&["jobs", "--agent", "builder", "--json"])["jobs"][0].clone();
    let id = job["id"].as_str().unwrap();
    let log = fleet.run(&["jobs", "logs", id]).ok();
    assert!(log.contains("half way"), "{log}");
}

#[test]
fn a_budget_of_codex_holds_by_the_price_of_its_model() {
    let (fleet, api) = (Fleet::new(), MessagesApi::start());
    let home = fleet.path().join("agent-home");
    let home = camino::Utf8Path::from_path(&home).unwrap();
    let mut env = TestedAgent::CODEX.write_settings(home, api.url());
    // Root may bypass permissions only where the config claims a sandbox.
    env.insert("IS_SANDBOX".to_owned(), "1".to_owned());
    let agents = json!({ "agents": [{
        "name": "builder", "runtime": "codex", "program": codex(), "model": "gpt-5.5",
        "permission_mode": "bypassPermissions", "budget": { "job": 0.5 },
        "prices": { "gpt-5.5": { "input": 2, "output": 10, "cache_read": 0.2 } },
        "env": env,
    }] });
    fleet.write("heeler.yaml", &agents.to_string());
    let prompt = |tokens: u64| {
        let usage = json!({ "input": tokens, "cached": 100_000, "output": 1_000 });
        let step = ModelScriptStep { usage: Some(usage), ..ModelScriptStep::text("Hi.") };
        format!("Please. {}", ModelScript::new().step(step))
    };
    run(&fleet, &api, &["trigger", "builder", "--prompt", &prompt(200_000)]).ok();
    let job =
        |fleet: &Fleet| fleet.json(&["jobs", "--agent", "builder", "--json"])["jobs"][0].clone();
    // 100,000 tokens at 2 dollars for a million, 100,000 at 0.2, and 1,000 at 10.
    let cost = job(&fleet)["costUsd"].as_f64().unwrap();
    assert!((cost - 0.23).abs() < 1e-9, "{cost}");

    let spent = run(&fleet, &api, &["trigger", "builder", "--prompt", &prompt(400_000)]);
    assert_ne!(spent.code, Some(0), "{}", spent.stderr);
    assert!(spent.stderr.contains("reached its budget of $0.5"), "{}", spent.stderr);
    assert_eq!(job(&fleet)["status"], "failed");
}

#[test]
fn agents_of_three_kinds_work_in_one_workflow() {
    let (fleet, api) = mixed_fleet();
    let plan = ModelScript::new().text("Write built.txt.");
    let build = ModelScript::new().step(shell("echo two > built.txt")).text("Built.");
    let review = ModelScript::new().step(ModelScriptStep::text("Looks good."));
    let phase = |name: &str, agent: &str, script: &ModelScript| json!({ "name": name, "agent": agent, "prompt": format!("Please. {script}") });
    let workflow = json!({
        "name": "mixed", "agent": "planner",
        "phases": [
            phase("plan", "planner", &plan),
            phase("build", "builder", &build),
            phase("review", "reviewer", &review),
        ],
        "final_message": "review: {{ review }}",
    });
    fleet.write("workflows/mixed.yaml", &workflow.to_string());
    let ran = run(&fleet, &api, &["workflow", "run", "mixed"]);
    let text = ran.stderr.clone() + ran.ok().as_str();
    assert!(text.contains("Looks good."), "{text}");
    assert_eq!(fleet.read("built.txt"), "two\n");
    let paths: Vec<String> = api.messages().into_iter().map(|request| request.path).collect();
    let first = |part: &str| paths.iter().position(|path| path.contains(part));
    let order = [first("/v1/messages"), first("/v1/responses"), first("streamGenerateContent")];
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{paths:?}");
}

#[test]
fn capabilities_and_missing_programs_are_told() {
    let fleet = Fleet::new();
    let shown = fleet.run(&["agent", "capabilities"]).ok();
    for part in ["CAPABILITY", "tool lists", "gemini", "0.61.0"] {
        assert!(shown.contains(part), "{shown}");
    }
    let tables = fleet.json(&["agent", "capabilities", "--json"]);
    assert_eq!(tables["capabilities"]["max turns"]["acp"]["offer"], "no", "{tables:#}");
    assert_eq!(tables["agents"][0]["program"], "codex");

    let agents = json!({ "agents": [
        { "name": "absent", "runtime": "acp", "program": { "agent": "goose", "path": "/none/goose" } },
    ] });
    fleet.write("heeler.yaml", &agents.to_string());
    let refused = fleet.run(&["trigger", "absent", "--prompt", "hi"]);
    assert!(refused.stderr.contains("install goose (npm @aaif/goose)"), "{}", refused.stderr);
}
