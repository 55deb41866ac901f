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
