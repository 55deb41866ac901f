//! Installed agent programs: `heeler init` makes a fleet of them, and `heeler doctor` compares their
//! versions.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use heeler_testkit::{MessagesApi, ModelScript, codex};
use serde_json::json;

use crate::fleet::{Fleet, Ran};

/// A command on a machine with the programs in `bin`.
fn command_with_programs(fleet: &Fleet, args: &[&str]) -> Command {
    let mut command = fleet.command(args);
    let bin = fleet.file("bin");
    std::fs::create_dir_all(&bin).unwrap();
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command
}

fn add_program(fleet: &Fleet, name: &str, script: &str) {
    let file = format!("bin/{name}");
    fleet.write(&file, &format!("#!/bin/sh\n{script}\n"));
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fleet.file(&file), mode).unwrap();
}

#[test]
fn a_new_fleet_works_with_the_installed_codex_and_its_key() {
    let (fleet, api) = (Fleet::empty(), MessagesApi::start());
    std::fs::create_dir_all(fleet.file("bin")).unwrap();
    std::os::unix::fs::symlink(codex(), fleet.file("bin/codex")).unwrap();
    add_program(&fleet, "gemini", "echo 0.61.0");
    add_program(&fleet, "claude", "exit 1");
    let run = |args: &[&str]| {
        let mut command = command_with_programs(&fleet, args);
        command.env("CODEX_API_KEY", "mock-api-key");
        Ran::from(command.output().unwrap())
    };
    let made = run(&["init", "--no-sandbox"]).ok();
    for part in [
        "found codex 0.166.0 (login: CODEX_API_KEY): heeler trigger codex",
        "found claude without a login: run `claude` and `/login`, or set ANTHROPIC_API_KEY",
        "found gemini: `heeler init agent gemini --runtime acp --program gemini` adds it",
    ] {
        assert!(made.contains(part), "{made}");
    }
    let agent = fleet.read("agents/codex.yaml");
    assert!(agent.contains("runtime: codex\nsecrets: [CODEX_API_KEY]\n"), "{agent}");
    assert!(fleet.read("heeler.yaml").contains("- path: agents/codex.yaml"));
    assert!(
        !fleet.file("agents/claude.yaml").exists() && !fleet.file("agents/gemini.yaml").exists()
    );

    let found = fleet_json(run(&["doctor", "agents", "--json"]));
    let of = |name: &str| {
        let agents = found["agents"].as_array().unwrap();
        agents.iter().find(|it| it["program"] == name).unwrap().clone()
    };
    let codex = of("codex");
    assert_eq!((&codex["version"], &codex["range"]), (&json!("0.166.0"), &json!("tested")));
    assert_eq!(codex["loginSign"], json!({ "variable": "CODEX_API_KEY" }), "{codex:#}");
    assert_eq!(of("claude")["login"], "none");
    assert_eq!(of("gemini")["login"], "unknown");

    // The key is in no argument, and reaches the API.
    let url = format!("env: {{OPENAI_BASE_URL: '{}/v1'}}\n", api.url());
    fleet.write("agents/codex.yaml", &(agent + url.as_str()));
    let script = ModelScript::new().text("Hi there.");
    let said = run(&["trigger", "codex", "-p", &format!("Please. {script}")]);
    assert!(said.ok().contains("Hi there."));
    let sent = api.messages();
    assert_eq!(sent[0].header("authorization"), Some("Bearer mock-api-key"));
}

fn fleet_json(ran: Ran) -> serde_json::Value {
    serde_json::from_str(&ran.ok()).unwrap()
}

#[test]
fn a_fleet_of_a_sandbox_names_the_directories_and_hosts_of_its_agents() {
    let fleet = Fleet::empty();
    add_program(&fleet, "gemini", "echo 0.61.0");
    let run = |args: &[&str]| {
        let mut command = command_with_programs(&fleet, args);
        command.env("GEMINI_API_KEY", "mock-api-key");
        Ran::from(command.output().unwrap())
    };
    run(&["init"]).ok();
    let agent = fleet.read("agents/gemini.yaml");
    assert!(agent.contains("program: gemini\nsecrets: [GEMINI_API_KEY]\n"), "{agent}");
    assert!(agent.contains("  write: [~/.gemini]\n  network: {presets: [google]}\n"), "{agent}");
    assert!(fleet.file("home/.gemini").is_dir(), "the sandbox shows only what exists");
    let validated = run(&["config", "validate"]);
    assert_eq!(validated.stderr, "");
    validated.ok();
}

/// The outputs are those of the real programs.
#[test]
fn every_certified_program_is_found_with_its_version() {
    let fleet = Fleet::new();
    let programs = [
        ("claude", "2.1.325 (Claude Code)"),
        ("codex", "codex-cli 0.166.0"),
        ("gemini", "0.61.0"),
        ("opencode", "1.18.33"),
        ("copilot", "GitHub Copilot CLI 1.0.102."),
        ("goose", " 1.34.0"),
        ("kimi", "2.1.0"),
        ("grok", "grok 1.0.41 (4220f3b224a6)"),
        ("vibe-acp", "vibe-acp 3.0.2"),
        ("qwen", "0.24.4"),
        ("claude-agent-acp", "0.99.1"),
        ("codex-acp", "@agentclientprotocol/codex-acp 2.6.0"),
    ];
    for (name, output) in programs {
        add_program(&fleet, name, &format!("echo '{output}'"));
    }
    let doctor = command_with_programs(&fleet, &["doctor", "agents", "--json"]).output();
    let found = fleet_json(Ran::from(doctor.unwrap()));
    let agents = found["agents"].as_array().unwrap();
    assert_eq!(agents.len(), programs.len(), "{found:#}");
    for (name, _) in programs {
        let agent = agents.iter().find(|it| it["program"] == name).unwrap();
        assert_eq!(agent["range"], "tested", "{agent:#}");
        assert_eq!(agent["version"], agent["testedVersion"], "{agent:#}");
    }
}

#[test]
fn a_new_fleet_has_an_agent_for_each_program_with_a_login_that_can_be_limited() {
    let programs = [
        ("copilot", "GitHub Copilot CLI 1.0.102.", None),
        ("grok", "grok 1.0.41 (4220f3b224a6)", Some(".grok/auth.json")),
        ("kimi", "2.1.0", Some(".kimi-code/credentials/kimi-code.json")),
        ("opencode", "1.18.33", Some(".local/share/opencode/auth.json")),
        ("goose", " 1.34.0", Some(".config/goose/config.yaml")),
    ];
    for (option, unlisted) in [("", &["goose"][..]), ("--no-sandbox", &["goose", "opencode"])] {
        let fleet = Fleet::empty();
        for (name, output, login) in programs {
            add_program(&fleet, name, &format!("echo '{output}'"));
            if let Some(file) = login {
                fleet.write(&format!("home/{file}"), "never read");
            }
        }
        let run = |args: &[&str]| {
            let mut command = command_with_programs(&fleet, args);
            command.env("COPILOT_GITHUB_TOKEN", "mock-token");
            Ran::from(command.output().unwrap())
        };
        let args = ["init", option];
        let made = run(&args[..if option.is_empty() { 1 } else { 2 }]).ok();
        for (name, ..) in programs {
            let is_listed = !unlisted.contains(&name);
            assert_eq!(fleet.file(&format!("agents/{name}.yaml")).exists(), is_listed, "{made}");
            assert!(made.contains(&format!("found {name}")), "{made}");
        }
        let copilot = fleet.read("agents/copilot.yaml");
        assert!(
            copilot.contains("program: copilot\nsecrets: [COPILOT_GITHUB_TOKEN]\n"),
            "{copilot}"
        );
        // Inside of a sandbox grok does not ask; outside of one, Heeler does.
        let is_unasked = fleet.read("agents/grok.yaml").contains("bypassPermissions");
        assert_eq!(is_unasked, option.is_empty());
        run(&["config", "validate"]).ok();
    }
}

#[test]
fn a_version_outside_the_tested_range_is_a_warning_and_no_problem() {
    let fleet = Fleet::new();
    add_program(&fleet, "codex", "echo codex-cli 99.1.0");
    add_program(&fleet, "gemini", "echo 0.60.0");
    let agents = json!({ "agents": [
        { "name": "builder", "runtime": "codex" },
        { "name": "other", "runtime": "acp", "program": { "agent": "gemini", "path": "/opt/gemini" } },
    ] });
    fleet.write("heeler.yaml", &agents.to_string());
    let run = |args: &[&str]| Ran::from(command_with_programs(&fleet, args).output().unwrap());
    let told = run(&["doctor"]).stdout;
    assert!(told.contains("codex 99.1.0 is newer than 0.166.0"), "{told}");
    assert!(!told.contains("gemini"), "a program at a path is not asked: {told}");
    let all = run(&["doctor", "agents"]).ok();
    assert!(all.contains("gemini 0.60.0 is older than 0.61.0"), "{all}");
}

#[test]
fn an_agent_with_a_program_is_added_to_a_fleet() {
    let fleet = Fleet::new();
    fleet.run(&["init", "agent", "reviewer", "--runtime", "acp", "--program", "gemini"]).ok();
    let agent = fleet.read("agents/reviewer.yaml");
    assert!(
        agent.contains("runtime: acp\nprogram: gemini\n") && !agent.contains("budget"),
        "{agent}"
    );
    let validated = fleet.run(&["config", "validate"]);
    assert_eq!((validated.code, validated.stderr.as_str()), (Some(0), ""));
    for args in [
        &["--runtime", "acp"][..],
        &["--runtime", "acp", "--program", "gemni"],
        &["--program", "gemini"],
    ] {
        let refused = fleet.run(&[&["init", "agent", "other"], args].concat());
        assert_eq!(refused.code, Some(2), "{args:?}: {}", refused.stderr);
    }
}
