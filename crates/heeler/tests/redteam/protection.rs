//! Attacks on files that decide what runs: config, hooks, workflows, instructions.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use heeler_config::RuntimeType;
use heeler_model::run::QuestionAnswer;
use heeler_testkit::{MessagesApi, ModelScript, ModelScriptStep, claude};
use serde_json::{Value as Json, json};

use crate::fleet::{Fleet, Ran};
use crate::rig::{Rig, wait};

/// Text that an attack writes.
const FORGED: &str = "forged by the agent";

/// Secret in the `.env` that the config reads.
const SECRET: &str = "dotenv-secret-4711";

/// Files that decide what runs, or record it.
const CONTROL_FILES: [&str; 19] = [
    "other/sub/CLAUDE.md",
    "other/sub/.claude/skills/x/SKILL.md",
    "home/.claude/settings.json",
    "home/.claude/CLAUDE.md",
    "heeler.yaml",
    "heeler.yml",
    "agents/victim.yaml",
    ".env",
    ".heeler/runs/x/result.json",
    ".heeler/new-file",
    "workflows/release.yaml",
    "notify.sh",
    "build/build.sh",
    "build/check.py",
    "CLAUDE.md",
    ".claude/settings.json",
    ".git/hooks/pre-commit",
    ".git/config",
    "link.yaml",
];

/// A fleet with one agent of claude, which has these keys, and one more that works elsewhere.
fn claude_fleet(runtime: &str, keys: &Json) -> Fleet {
    let fleet = Fleet::new();
    let mut agent = json!({
        "name": "victim", "runtime": runtime, "claude_path": claude(),
        "working_directory": fleet.path(), "setting_sources": [],
        "hooks": {"after_run": [{"type": "shell", "command": "./notify.sh"}]},
    });
    // Root may bypass permissions only where the config claims a sandbox.
    agent["env"] = json!({"IS_SANDBOX": "1"});
    for (key, value) in keys.as_object().unwrap() {
        agent[key] = value.clone();
    }
    fleet.write("agents/victim.yaml", &agent.to_string());
    fleet.write("agents/other.yaml", "{name: other, working_directory: ../other}");
    let builder = "{name: builder, runtime: command, working_directory: build, \
                   command: './build.sh && python3 check.py'}";
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents: [{{path: agents/victim.yaml}}, {{path: agents/other.yaml}}, {builder}]\n"
        ),
    );
    fleet.write("build/build.sh", "#!/bin/sh\n");
    fleet.write("notify.sh", "#!/bin/sh\n");
    set_executable(&fleet, "notify.sh");
    fleet.write(".env", &format!("DEPLOY_KEY={SECRET}\n"));
    fleet.write(".git/config", "[core]\n");
    fleet.write("other/CLAUDE.md", "be kind\n");
    std::os::unix::fs::symlink("heeler.yaml", fleet.file("link.yaml")).unwrap();
    fleet
}

fn set_executable(fleet: &Fleet, name: &str) {
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fleet.file(name), mode).unwrap();
}

fn trigger(fleet: &Fleet, api: &MessagesApi, script: &ModelScript) -> Ran {
    let prompt = format!("Please. {script}");
    let mut command: Command = fleet.command(&["trigger", "victim", "--prompt", &prompt]);
    command.env("ANTHROPIC_BASE_URL", api.url()).env("ANTHROPIC_API_KEY", "mock-api-key");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    command.env("CLAUDE_CODE_MAX_RETRIES", "1");
    Ran::from(command.output().unwrap())
}

fn write_call(path: impl Into<std::path::PathBuf>) -> (&'static str, Json) {
    ("Write", json!({"file_path": path.into(), "content": FORGED}))
}

/// Reads and then writes each control file, by its absolute and its relative path, and one file of
/// its own.
fn attack_by_writing(fleet: &Fleet, api: &MessagesApi) {
    let before = CONTROL_FILES.map(|name| std::fs::read(fleet.file(name)).ok());
    let read = |name: &&str| ("Read", json!({"file_path": fleet.file(name)}));
    let absolute = CONTROL_FILES.iter().map(|name| write_call(fleet.file(name)));
    let relative = CONTROL_FILES.iter().map(|name| write_call(*name));
    let own = [write_call(fleet.file("notes.txt"))];
    let script = ModelScript::new()
        .step(ModelScriptStep::tools(CONTROL_FILES.iter().map(read)))
        .step(ModelScriptStep::tools(absolute.chain(relative).chain(own)))
        .text("Done.");
    trigger(fleet, api, &script).ok();
    for (name, before) in CONTROL_FILES.iter().zip(before) {
        assert_eq!(std::fs::read(fleet.file(name)).ok(), before, "{name}");
    }
    assert_eq!(fleet.read("notes.txt"), FORGED, "the rest is its own");
}

fn writing_achieves_nothing(keys: &Json) {
    for runtime in ["sdk", "cli"] {
        let (fleet, api) = (claude_fleet(runtime, keys), MessagesApi::start());
        attack_by_writing(&fleet, &api);
    }
}

#[test]
fn an_agent_without_lists_cannot_rewrite_what_decides_its_rights() {
    writing_achieves_nothing(&json!({}));
}

#[test]
fn an_agent_that_may_bypass_permissions_cannot_rewrite_what_decides_its_rights() {
    writing_achieves_nothing(&json!({"permission_mode": "bypassPermissions"}));
}

#[test]
fn an_agent_with_bash_on_its_list_cannot_write_control_files_with_its_tools() {
    writing_achieves_nothing(&json!({"allowed_tools": ["Bash", "Read", "Write", "Edit"]}));
}

#[test]
fn an_agent_cannot_edit_instructions_that_another_agent_loads() {
    for (allowed, expected) in [(false, "be kind\n"), (true, FORGED)] {
        let keys = json!({"edit_instructions": allowed, "permission_mode": "bypassPermissions"});
        let (fleet, api) = (claude_fleet("sdk", &keys), MessagesApi::start());
        let file = fleet.file("other/CLAUDE.md");
        let script = ModelScript::new()
            .tool("Read", json!({"file_path": file}))
            .step(ModelScriptStep::tools([write_call(file)]))
            .text("Done.");
        trigger(&fleet, &api, &script).ok();
        assert_eq!(fleet.read("other/CLAUDE.md"), expected, "allowed by the config: {allowed}");
    }
}

#[test]
fn an_agent_cannot_read_the_secrets_of_its_fleet_with_its_tools() {
    for runtime in ["sdk", "cli"] {
        let keys = json!({"permission_mode": "bypassPermissions"});
        let (fleet, api) = (claude_fleet(runtime, &keys), MessagesApi::start());
        let token = "heeler_0123456789-token";
        fleet.write(".heeler/api-token", token);
        fleet.write("open.txt", "open-text");
        let read = |name: &str| ("Read", json!({"file_path": fleet.file(name)}));
        let grep = |pattern: &str, path: &std::path::Path| {
            ("Grep", json!({"pattern": pattern, "path": path, "output_mode": "content"}))
        };
        let script = ModelScript::new()
            .step(ModelScriptStep::tools([
                read(".env"),
                read(".heeler/api-token"),
                read("open.txt"),
                grep("DEPLOY", &fleet.file(".env")),
                grep("0123456789-", &fleet.file(".heeler/api-token")),
            ]))
            .text("Done.");
        trigger(&fleet, &api, &script).ok();
        let sent = api.messages();
        let told = sent.last().unwrap().history().join("\n");
        assert!(told.contains("open-text"), "{runtime}: {told}");
        for secret in [SECRET, token] {
            assert!(!told.contains(secret), "{runtime}: {told}");
        }
    }
}

/// A fleet with an agent that runs a command in `work`, and this hook after it.
fn hooked_fleet(like: &Fleet, hook: &str, command: &str) -> Fleet {
    let fleet = like.another();
    let agent = json!({
        "name": "victim", "runtime": "command", "command": command, "working_directory": "work",
        "hooks": {"after_run": [{"type": "shell", "command": hook}]},
    });
    fleet.write("heeler.yaml", &json!({"agents": [agent]}).to_string());
    fleet.write("work/readme", "");
    fleet
}

fn an_agent_cannot_run_its_own_script_as_a_hook(like: &Fleet) {
    let plant = "echo 'touch planted' > notify.sh; chmod +x notify.sh";
    for hook in ["./notify.sh", "true && sh ./notify.sh", "sh notify.sh"] {
        let fleet = hooked_fleet(like, hook, plant);
        fleet.write("notify.sh", "#!/bin/sh\ntouch genuine\n");
        set_executable(&fleet, "notify.sh");
        fleet.run(&["trigger", "victim"]).ok();
        wait("the hook", || fleet.file("work/genuine").exists().then_some(()));
        assert!(!fleet.file("work/planted").exists(), "{hook}");
    }
}

fn an_agent_cannot_supply_a_hook_program_that_the_config_lacks(like: &Fleet) {
    let plant = "printf '#!/bin/sh\\ntouch planted\\n' > notify.sh; chmod +x notify.sh";
    let fleet = hooked_fleet(like, "./notify.sh", plant);
    fleet.run(&["trigger", "victim"]).ok();
    let log = || std::fs::read_to_string(fleet.file(".heeler/logs/heeler.log")).ok();
    wait("the refusal", || log().filter(|log| log.contains("is not beside the config")));
    assert!(!fleet.file("work/planted").exists());
}

#[test]
fn root_cannot_bypass_permissions_outside_a_sandbox() {
    let keys = json!({"permission_mode": "bypassPermissions", "env": {}});
    let (fleet, api) = (claude_fleet("sdk", &keys), MessagesApi::start());
    let done = trigger(&fleet, &api, &ModelScript::new().text("Done."));
    // Anyone else may: Claude's own guard is about root only.
    if !rustix::process::geteuid().is_root() {
        done.ok();
        return;
    }
    assert_ne!(done.code, Some(0));
    assert!(done.stderr.contains("run the fleet as another user"), "{}", done.stderr);
    assert_eq!(api.messages().len(), 0, "claude was not started");
    let said = fleet.run(&["config", "validate"]);
    assert!(said.stderr.contains("is refused as root"), "{}", said.stderr);
}

#[test]
fn a_reviewed_agent_cannot_act_before_a_person_agrees() {
    for (mode, listed) in [("default", true), ("acceptEdits", false), ("bypassPermissions", false)]
    {
        let rig = Rig::new();
        let work = |name: &str| rig.path("work").join(name);
        std::fs::write(work("note.txt"), "read me").unwrap();
        let bash = |name: &str| ("Bash", json!({"command": format!("touch {}", work(name))}));
        let write = write_call(work("denied.txt").into_std_path_buf());
        let script = ModelScript::new()
            .tool("Read", json!({"file_path": work("note.txt")}))
            .step(ModelScriptStep::tools([write]))
            .step(ModelScriptStep::tools([bash("denied")]))
            .step(ModelScriptStep::tools([bash("agreed")]))
            .text("Done.");
        let mut plan = rig.plan(RuntimeType::Sdk, &format!("Please. {script}")).attended();
        plan.claude().permission_mode = mode.to_owned();
        plan.claude().review = true;
        if listed {
            let list = ["Read", "Write", "Bash"].map(str::to_owned);
            plan.claude().allowed_tools = Some(list.to_vec());
        }
        let mut live = rig.start(plan);
        for tool in ["Write", "Bash"] {
            // The read before it was not asked about.
            let ask = live.until_asked();
            assert_eq!(ask.tool, tool, "{mode}");
            let denied = QuestionAnswer::Deny { message: "no".to_owned(), interrupt: false };
            live.answer(&ask, denied);
        }
        let ask = live.until_asked();
        assert!(!work("agreed").exists(), "{mode}: it ran before the answer");
        live.answer(&ask, QuestionAnswer::Allow { input: None });
        let end = live.finish();
        assert!(work("agreed").exists(), "{mode}: {:#?}", end.rows);
        assert!(!work("denied").exists() && !work("denied.txt").exists(), "{mode}");
    }
}

#[test]
fn a_review_without_a_person_is_a_denial() {
    let rig = Rig::new();
    let file = rig.path("work").join("denied.txt");
    let write = write_call(file.clone().into_std_path_buf());
    let script = ModelScript::new().step(ModelScriptStep::tools([write])).text("Done.");
    let mut plan = rig.plan(RuntimeType::Sdk, &format!("Please. {script}"));
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    plan.claude().review = true;
    rig.run(plan);
    assert!(!file.exists());
}

attacks![
    an_agent_cannot_run_its_own_script_as_a_hook,
    an_agent_cannot_supply_a_hook_program_that_the_config_lacks,
];
