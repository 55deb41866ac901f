//! The first minutes of a person with Heeler: a new fleet has a sandbox and works at once, and
//! where there is none, the output says how to get one.

use std::ffi::OsStr;
use std::process::Command;

use heeler_testkit::{MessagesApi, ModelScript, claude};
use serde_json::json;

use crate::fleet::{Fleet, Ran};
use crate::trigger::wait_for;

/// Adds an agent that tells which process is the first one that it sees.
fn add_observer(fleet: &Fleet) {
    let agent = "  - {name: observer, runtime: command, command: cat /proc/1/comm}\n";
    fleet.write("heeler.yaml", &(fleet.read("heeler.yaml") + agent));
}

/// Runs a command of a person, who has agreed to nothing yet.
#[track_caller]
fn run_as_newcomer(fleet: &Fleet, args: &[&str]) -> Ran {
    Ran::from(fleet.command(args).env_remove("HEELER_TRUST").output().unwrap())
}

/// Returns what `doctor` says of a fleet without problems.
#[track_caller]
fn examine(fleet: &Fleet) -> String {
    // Views of the last job may not be published yet.
    wait_for("an examination without problems", || {
        let ran = fleet.run(&["doctor"]);
        (ran.code == Some(0)).then_some(ran.stdout)
    })
}

fn a_new_fleet_works_at_once_in_a_sandbox(like: &Fleet) {
    let fleet = like.another();
    let made = run_as_newcomer(&fleet, &["init"]);
    assert_eq!(made.stderr, "", "there is nothing to say about the sandbox");
    made.ok();
    assert!(fleet.read("heeler.yaml").contains("\n  sandbox: true\n"));
    // Before the first run: a change while a run is alive would be held back.
    add_observer(&fleet);
    let said = run_as_newcomer(&fleet, &["trigger", "greeter"]).ok();
    assert!(said.starts_with("Hello! I am a scripted agent of this fleet.\n"), "{said}");
    // The static program, or `heeler inside`.
    let first = fleet.run(&["trigger", "observer", "-q"]).ok();
    assert!(first.starts_with("heeler"), "{first}");
    let told = examine(&fleet);
    assert!(!told.contains("sandbox"), "nothing is recommended: {told}");
}

#[test]
fn a_new_fleet_of_this_user_works_at_once_in_a_sandbox() {
    a_new_fleet_works_at_once_in_a_sandbox(&Fleet::new());
}

#[test]
fn a_new_fleet_of_an_unprivileged_user_works_at_once_in_a_sandbox() {
    a_new_fleet_works_at_once_in_a_sandbox(&Fleet::unprivileged());
}

#[test]
fn a_new_fleet_in_a_worktree_works_at_once_in_a_sandbox() {
    let place = Fleet::empty();
    let script = "git init -q main && cd main \
                  && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first \
                  && git worktree add -q ../work";
    let mut git = Command::new("sh");
    git.args(["-c", script]).current_dir(place.path()).env("HOME", place.file("home"));
    assert!(git.status().unwrap().success());
    let run = |args: &[&str]| {
        Ran::from(place.command(args).current_dir(place.file("work")).output().unwrap())
    };
    run(&["init"]).ok();
    let said = run(&["trigger", "greeter"]).ok();
    assert!(said.starts_with("Hello!"), "{said}");
    assert!(place.read("work/heeler.yaml").contains("\n  sandbox: true\n"));
}

/// A person with a key in the environment and Claude in `PATH` adds an agent to a new fleet.
#[test]
fn claude_works_at_once_in_the_sandbox_of_a_new_fleet() {
    let fleet = Fleet::empty();
    fleet.run(&["init"]).ok();
    fleet.run(&["init", "agent", "coder", "--permission-mode", "bypassPermissions"]).ok();
    std::fs::create_dir(fleet.file("programs")).unwrap();
    std::os::unix::fs::symlink(claude(), fleet.file("programs/claude")).unwrap();
    let api = MessagesApi::start();
    let look =
        "cat /proc/1/comm > seen; ls .heeler >> seen; touch /etc/heeler || echo denied >> seen";
    let script = ModelScript::new().tool("Bash", json!({"command": look})).text("Looked.");
    let mut command = fleet.command(&["trigger", "coder", "-p", &format!("Look. {script}")]);
    let path = format!("{}:{}", fleet.file("programs").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("ANTHROPIC_BASE_URL", api.url());
    command.env("ANTHROPIC_API_KEY", "mock-api-key");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    let said = Ran::from(command.output().unwrap()).ok();
    assert!(said.contains("Looked."), "{said}");
    let seen = fleet.read("seen");
    assert!(seen.starts_with("heeler") && seen.ends_with("\ndenied\n"), "{seen}");
    assert_eq!(seen.lines().count(), 2, "the state directory is hidden: {seen}");
}

#[test]
fn a_new_fleet_works_at_once_where_no_sandbox_can_be_made() {
    let fleet = Fleet::empty();
    let run = |args: &str| {
        let mut command = Command::new("unshare");
        // The limit holds for namespaces below the new one only.
        let script = format!("echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" {args}");
        command.args(["-Ur", "sh", "-c", &script]).arg(fleet.program());
        let wanted = fleet.command(&[]);
        command.env_clear().envs(variables(&wanted)).current_dir(fleet.path());
        Ran::from(command.output().unwrap())
    };
    let made = run("init");
    let cure = "sudo sysctl -w user.max_user_namespaces=15000";
    let told = made.stderr.replace('\n', " ");
    assert!(told.contains(cure) && told.contains("heeler doctor sandbox"), "{told}");
    made.ok();
    let config = fleet.read("heeler.yaml");
    assert!(config.contains(cure) && config.contains("\n  sandbox: off\n"), "{config}");
    let validated = fleet.run(&["config", "validate"]);
    assert_eq!(validated.stderr, "");
    validated.ok();
    let said = run("trigger greeter").ok();
    assert!(said.starts_with("Hello!"), "{said}");
}

/// Returns the environment that a command sets.
fn variables(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    command.get_envs().filter_map(|(name, value)| Some((name, value?)))
}

#[test]
fn a_person_can_decide_against_a_sandbox() {
    let fleet = Fleet::empty();
    fleet.run(&["init", "--no-sandbox"]).ok();
    assert!(fleet.read("heeler.yaml").contains("\n  sandbox: off\n"));
    add_observer(&fleet);
    let first = std::fs::read_to_string("/proc/1/comm").unwrap();
    assert_eq!(fleet.run(&["trigger", "observer", "-q"]).ok().trim(), first.trim());
    let told = examine(&fleet);
    assert!(!told.contains("sandbox"), "the person has decided: {told}");
}

#[test]
fn doctor_recommends_a_sandbox_for_a_fleet_that_has_none() {
    let fleet = Fleet::empty();
    let agents = |fleet: &Fleet| {
        let found = fleet.json(&["doctor", "--json"]);
        found["noSandbox"].as_array().unwrap().clone()
    };
    // A config of herdctl, with its state.
    fleet.write("herdctl.yaml", "version: 1\nagents:\n  - path: coder.yaml\n");
    fleet.write("coder.yaml", "name: coder\nruntime: cli\n");
    fleet.write(".herdctl/state.yaml", "fleet: {}\nagents: {}\n");
    let told = examine(&fleet);
    let line = "no sandbox: coder has your rights on this machine; recommended: `sandbox: true` in \
                `defaults` of herdctl.yaml (docs/isolation.md)";
    assert!(told.lines().any(|it| it == line), "{told}");
    assert_eq!(agents(&fleet), ["coder"]);
    // The recommended line is valid there, and ends the recommendation.
    let config = fleet.read("herdctl.yaml") + "defaults:\n  sandbox: true\n";
    fleet.write("herdctl.yaml", &config);
    fleet.run(&["config", "validate"]).ok();
    assert_eq!(agents(&fleet), [(); 0].map(|()| ""));
    assert!(!examine(&fleet).contains("sandbox"));
}
