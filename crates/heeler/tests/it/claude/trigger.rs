//! The whole way: `heeler trigger`, config, engine, runner, claude, record.

use std::process::Command;

use heeler_testkit::{MessagesApi, ModelScript, ModelScriptStep, claude};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::fleet::{Fleet, Ran};
use crate::rig::wait;

/// A fleet with one agent per claude runtime, both of which keep their session.
fn fleet() -> (Fleet, MessagesApi) {
    let fleet = Fleet::new();
    for runtime in ["sdk", "cli"] {
        let agent = json!({
            "name": runtime, "runtime": runtime, "claude_path": claude(),
            "session": {"mode": "persistent"}, "system_prompt": "You are a terse poet.",
            "working_directory": fleet.path(), "setting_sources": [],
        });
        fleet.write(&format!("agents/{runtime}.yaml"), &agent.to_string());
    }
    let agents = "agents: [{path: agents/sdk.yaml}, {path: agents/cli.yaml}]\n";
    fleet.write("heeler.yaml", agents);
    (fleet, MessagesApi::start())
}

fn trigger(fleet: &Fleet, api: &MessagesApi, agent: &str, script: &ModelScript) -> Command {
    let prompt = format!("Please. {script}");
    let mut command = fleet.command(&["trigger", agent, "--prompt", &prompt]);
    command.env("ANTHROPIC_BASE_URL", api.url()).env("ANTHROPIC_API_KEY", "mock-api-key");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    command.env("CLAUDE_CODE_MAX_RETRIES", "1");
    command
}

fn run(mut command: Command) -> Ran {
    Ran::from(command.output().unwrap())
}

#[test]
fn a_job_is_asked_shown_recorded_and_continued() {
    let (fleet, api) = fleet();
    for agent in ["sdk", "cli"] {
        let before = api.messages().len();
        let script = ModelScript::new().tool("Bash", json!({"command": "echo one"})).text("Two.");
        let said = run(trigger(&fleet, &api, agent, &script));
        assert!(said.stderr.contains("Bash"), "{}", said.stderr);
        assert!(said.ok().contains("Two."), "the agent's words are on stdout");
        let job = fleet.json(&["jobs", "--agent", agent, "--json"])["jobs"][0].clone();
        assert_eq!((&job["status"], &job["exitReason"]), (&json!("completed"), &json!("success")));
        assert_eq!(job["summary"], "Two.");
        let again = ModelScript::new().text("Three.");
        run(trigger(&fleet, &api, agent, &again)).ok();
        let sent = &api.messages()[before..];
        assert_eq!(sent.len(), 3);
        assert!(sent[0].system().contains("You are a terse poet."), "{}", sent[0].system());
        let told = sent[2].history().join("\n");
        assert!(told.contains("assistant: Two.\nuser: Please."), "{told}");
        let sessions = fleet.json(&["session", "list", "--agent", agent, "--json"]);
        assert_eq!(sessions["total"], 1, "{sessions:#}");
    }
}

#[test]
fn an_agent_with_a_list_writes_nothing_that_decides_what_it_may_do() {
    let (fleet, api) = fleet();
    std::os::unix::fs::symlink("heeler.yaml", fleet.path().join("link.yaml")).unwrap();
    let names = [
        "agents/sdk.yaml",
        "agents/cli.yaml",
        "heeler.yaml",
        "heeler.yml",
        ".env",
        ".heeler/runs/x/result.json",
        "link.yaml",
    ];
    for (agent, mode) in ["sdk", "cli"]
        .into_iter()
        .flat_map(|agent| ["acceptEdits", "bypassPermissions"].map(|mode| (agent, mode)))
    {
        let file = format!("agents/{agent}.yaml");
        let mut config: serde_json::Value = serde_json::from_str(&fleet.read(&file)).unwrap();
        config["allowed_tools"] = json!(["Read", "Write", "Edit"]);
        config["permission_mode"] = json!(mode);
        // Root may bypass permissions only where the config claims a sandbox.
        config["env"] = json!({"IS_SANDBOX": "1"});
        fleet.write(&file, &config.to_string());
        let before = names.map(|name| std::fs::read(fleet.path().join(name)).ok());
        let write = |path: String| ("Write", json!({"file_path": path, "content": "pwned"}));
        let read = |name: &&str| ("Read", json!({"file_path": fleet.path().join(name)}));
        let absolute = |name: &&str| write(fleet.path().join(name).display().to_string());
        let calls: Vec<_> = names.iter().map(absolute).collect();
        let relative = names.iter().map(|name| write((*name).to_owned()));
        let script = ModelScript::new()
            .step(ModelScriptStep::tools(names.iter().map(read)))
            .step(ModelScriptStep::tools(
                calls.into_iter().chain(relative).chain([absolute(&"notes.txt")]),
            ))
            .text("Done.");
        run(trigger(&fleet, &api, agent, &script)).ok();
        let after = names.map(|name| std::fs::read(fleet.path().join(name)).ok());
        assert_eq!(after, before, "{agent} in {mode}");
        assert_eq!(fleet.read("notes.txt"), "pwned", "{agent} in {mode}: the rest is its own");
        std::fs::remove_file(fleet.path().join("notes.txt")).unwrap();
    }
}

#[test]
fn a_job_that_fails_says_why_and_what_to_do() {
    let (fleet, api) = fleet();
    let script = ModelScript::new().step(ModelScriptStep::error(529));
    let said = run(trigger(&fleet, &api, "sdk", &script)).fails(1);
    assert!(said.contains("529"), "{said}");
    let id = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].clone();
    let job = fleet.json(&["jobs", "show", id.as_str().unwrap(), "--json"]);
    let error = &job["job"]["errorDetails"];
    assert_eq!((&error["class"], &error["recoverable"]), (&json!("overloaded"), &json!(true)));
}

#[test]
fn ctrl_c_cancels_the_job_and_its_tools() {
    let (fleet, api) = fleet();
    let (pid, temp) = (fleet.file("pid"), fleet.file("pid.tmp"));
    let (pid, temp) = (pid.display(), temp.display());
    let endless = format!("echo $$ > {temp}; mv {temp} {pid}; exec tail -f /dev/null");
    let script = ModelScript::new().tool("Bash", json!({"command": endless}));
    let agent = fleet.read("agents/sdk.yaml").replacen('{', r#"{"allowed_tools":["Bash"],"#, 1);
    fleet.write("agents/sdk.yaml", &agent);
    let mut command = trigger(&fleet, &api, "sdk", &script);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let tool = wait("the tool", || std::fs::read_to_string(fleet.file("pid")).ok());
    let tool = Pid::from_raw(tool.trim().parse().unwrap()).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let said = Ran::from(child.wait_with_output().unwrap());
    said.fails(130);
    super::gone(tool);
    let job = fleet.json(&["jobs", "--json"])["jobs"][0].clone();
    assert_eq!(job["status"], "cancelled", "{job:#}");
}
