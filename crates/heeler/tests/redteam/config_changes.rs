//! Attacks by a change of files that decide what runs, from the shell of an agent: nothing of it is
//! loaded before a person has confirmed it.

use std::os::unix::fs::PermissionsExt as _;

use heeler_engine::DaemonCommand;
use heeler_model::JobRequest;
use heeler_server::DaemonClient;
use heeler_store::{DaemonFile, StateDir};
use rustix::process::Signal;
use serde_json::{Value as Json, json};

use crate::fleet::{Fleet, Ran};
use crate::terminal::Terminal;
use crate::trigger::wait_for;
use crate::web::{bearer, send};

/// Exit code of a command that a person has not agreed to.
const UNTRUSTED: i32 = 6;

/// Files that the attacks change. The agent appends a line that is harmless where it is parsed.
const CONTROL_FILES: [&str; 6] = [
    "heeler.yaml",
    "agents/other.yaml",
    "workflows/build.yaml",
    "workflows/new.yaml",
    ".env",
    "hooks/tell.sh",
];

/// An agent that an attack adds to the config.
const EVIL: &str = "  - {name: evil, runtime: command, command: touch evil-ran}";

/// A fleet with an agent that executes a script of the test.
struct AttackedFleet<'f>(&'f Fleet);

impl std::ops::Deref for AttackedFleet<'_> {
    type Target = Fleet;
    fn deref(&self) -> &Fleet {
        self.0
    }
}

impl Drop for AttackedFleet<'_> {
    fn drop(&mut self) {
        // Processes that an attack left wait for this file, and then end.
        self.0.write("over", "");
        // There may be no daemon.
        self.0.run(&["stop", "--force", "-q"]);
    }
}

impl<'f> AttackedFleet<'f> {
    fn new(fleet: &'f Fleet, keys: &str) -> AttackedFleet<'f> {
        fleet.write(
            "heeler.yaml",
            &format!(
                "{keys}agents:\n  - path: agents/other.yaml\n  - name: hostile\n    \
                 runtime: command\n    command: 'exec sh attack.sh'\n    \
                 hooks: {{after_run: [{{type: shell, command: ./hooks/tell.sh}}]}}\n"
            ),
        );
        fleet.write("agents/other.yaml", "name: other\nruntime: command\ncommand: echo other\n");
        fleet.write(
            "workflows/build.yaml",
            "name: build\nagent: other\nphases:\n  - {name: a, type: bash, command: 'true'}\n",
        );
        fleet.write(".env", "DEPLOY_KEY=dotenv-secret-4711\n");
        fleet.write("hooks/tell.sh", "#!/bin/sh\necho told >> told\n");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(fleet.file("hooks/tell.sh"), mode).unwrap();
        AttackedFleet(fleet)
    }

    /// Runs a script in the agent to its end.
    #[track_caller]
    fn attack(&self, script: &str) -> String {
        self.write("attack.sh", script);
        self.run(&["trigger", "hostile", "-q"]).stdout
    }

    /// Starts a script in the agent, and waits until it has written the file `done`.
    #[track_caller]
    fn begin_attack(&self, script: &str) {
        let end = "touch done\nwhile [ -e attack.sh ] && [ ! -e over ]; do sleep 0.05; done";
        self.write("attack.sh", &format!("{script}\n{end}\n"));
        self.run(&["trigger", "hostile", "--detach", "-q"]).ok();
        wait_for("the attack", || self.file("done").exists().then_some(()));
    }

    /// Appends the agent `evil` to the config, as a shell command.
    fn add_evil() -> String {
        format!("printf '%s\\n' '{EVIL}' >> heeler.yaml")
    }

    fn held_change(&self) -> Json {
        self.json(&["status", "--json"])["configChange"].clone()
    }

    /// Asserts that a command does not load the change, and names the cure.
    #[track_caller]
    fn assert_held(&self, args: &[&str]) {
        let ran: Ran = self.run(args);
        assert_eq!(ran.code, Some(UNTRUSTED), "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("heeler reload --accept"), "{args:?}: {}", ran.stderr);
        self.assert_nothing_evil();
    }

    #[track_caller]
    fn assert_nothing_evil(&self) {
        assert!(!self.file("evil-ran").exists(), "the agent's command ran");
    }
}

fn a_reload_does_not_load_what_an_agent_changed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    for name in CONTROL_FILES {
        let before = std::fs::read(fleet.file(name)).ok();
        fleet.attack(&format!("echo '# forged' >> {name}"));
        fleet.assert_held(&["reload"]);
        let change = fleet.held_change();
        let files = change["files"].as_array().unwrap_or_else(|| panic!("{name}: {change}"));
        let path = files[0]["path"].as_str().unwrap();
        assert!(path.ends_with(name) || path.ends_with("workflows"), "{name}: {change}");
        assert!(!change.to_string().contains("dotenv-secret"), "{change}");
        let job = fleet.jobs()[0].head.id.to_string();
        assert!(change["jobs"].as_array().unwrap().contains(&job.into()), "{change}");
        match before {
            Some(before) => std::fs::write(fleet.file(name), before).unwrap(),
            None => std::fs::remove_file(fleet.file(name)).unwrap(),
        }
        // The change is undone, so nothing is left to confirm.
        fleet.run(&["reload"]).ok();
        assert_eq!(fleet.held_change(), Json::Null, "{name}");
    }
}

fn a_new_daemon_does_not_start_with_what_an_agent_changed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.attack(&AttackedFleet::add_evil());
    // The daemon that runs is not stopped for a config that could not be loaded.
    fleet.assert_held(&["restart"]);
    fleet.run(&["trigger", "other", "-q"]).ok();
    fleet.run(&["trigger", "evil", "-q"]).fails(4);
    fleet.run(&["stop", "-q"]).ok();
    let commands: [&[&str]; 5] = [
        &["start", "-d"],
        &["start"],
        &["trigger", "evil", "-q"],
        &["trigger", "other", "-q"],
        &["workflow", "run", "build"],
    ];
    commands.iter().for_each(|args| fleet.assert_held(args));
    let ran = fleet.run(&["start", "--in-background"]);
    assert_eq!(ran.code, Some(UNTRUSTED), "{}{}", ran.stdout, ran.stderr);
    let shown = fleet.run(&["status"]).ok();
    assert!(shown.contains("+   - {name: evil,"), "the change is shown: {shown}");
    fleet.run(&["reload", "--accept", "--yes"]).ok();
    fleet.run(&["trigger", "evil", "-q"]).ok();
    assert!(fleet.file("evil-ran").exists(), "a person has confirmed it");
}

fn a_temporary_daemon_does_not_load_what_an_agent_changed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.attack(&AttackedFleet::add_evil());
    wait_for("the daemon's end", || fleet.processes("start").is_empty().then_some(()));
    fleet.assert_held(&["trigger", "evil", "-q"]);
    // Nor while the run that did it is alive.
    fleet.write("heeler.yaml", &fleet.read("heeler.yaml").replace(&format!("{EVIL}\n"), ""));
    fleet.begin_attack(&AttackedFleet::add_evil());
    fleet.assert_held(&["trigger", "evil", "-q"]);
    assert_eq!(fleet.processes("start").len(), 1, "the daemon looks after its job");
}

fn the_watcher_does_not_load_what_an_agent_changed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "watch_config: true\n");
    fleet.run(&["start", "-d"]).ok();
    fleet.begin_attack(&AttackedFleet::add_evil());
    wait_for("the watcher", || {
        fleet.read(".heeler/logs/heeler.log").contains("not loaded").then_some(())
    });
    fleet.run(&["trigger", "evil", "-q"]).fails(4);
    fleet.assert_nothing_evil();
}

fn a_signal_does_not_load_what_an_agent_changed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.attack(&AttackedFleet::add_evil());
    let pid = fleet.processes("start")[0];
    assert!(fleet.signal(pid, "start", Signal::HUP));
    wait_for("the reload", || {
        fleet.read(".heeler/logs/heeler.log").contains("not loaded").then_some(())
    });
    fleet.run(&["trigger", "evil", "-q"]).fails(4);
}

fn a_change_that_the_agent_undid_needs_no_person(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.attack(&format!(
        "cp heeler.yaml kept\n{}\ncp kept heeler.yaml",
        AttackedFleet::add_evil()
    ));
    fleet.run(&["reload"]).ok();
    assert_eq!(fleet.held_change(), Json::Null);
    // Nothing runs, so the next change is a person's.
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &format!("{config}{EVIL}\n"));
    assert!(fleet.run(&["reload"]).ok().contains("evil"));
}

/// Leaves a process in a session of its own and with an empty environment.
const SURVIVOR: &str = "env -i setsid python3 close.py -c 'while [ ! -e go ]; do sleep 0.05; [ -e over ] && exit; \
     done; printf \"%s\\n\" \"  - {name: evil, runtime: command, command: touch evil-ran}\" >> heeler.yaml; \
     touch written; while [ -e attack.sh ] && [ ! -e over ]; do sleep 0.05; done' > /dev/null 2>&1 &\n";

fn a_process_that_outlives_its_run_cannot_change_the_config(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.write("close.py", super::authority::CLOSE_FILES);
    // The runner ends every process that it finds. One whose runner is killed outlives it.
    fleet.begin_attack(SURVIVOR);
    fleet.kill("runner");
    fleet.wait_until_ended();
    fleet.write("go", "");
    let doctor: Json = serde_json::from_str(&fleet.run(&["doctor", "--json"]).stdout).unwrap();
    // Only a control group finds every process.
    if !doctor["noControlGroup"].is_null() {
        wait_for("the write", || fleet.file("written").exists().then_some(()));
        fleet.assert_held(&["reload"]);
    }
    fleet.run(&["trigger", "evil", "-q"]).fails(4);
}

fn an_orphan_of_another_fleet_does_not_hold_back_a_persons_change(fleet: &Fleet) {
    let other = fleet.another();
    let (fleet, other) = (AttackedFleet::new(fleet, ""), AttackedFleet::new(&other, ""));
    for fleet in [&fleet, &other] {
        fleet.run(&["start", "-d"]).ok();
    }
    // A run of this fleet is older than the orphan, so the orphan could be a process of it.
    fleet.begin_attack("true");
    other.write("close.py", super::authority::CLOSE_FILES);
    other.begin_attack(SURVIVOR);
    other.kill("runner");
    other.wait_until_ended();
    std::fs::remove_file(fleet.file("attack.sh")).unwrap();
    fleet.wait_until_ended();
    // The end of the exposure is recorded a little later than the end of the run.
    let config = fleet.read("heeler.yaml");
    wait_for("a config that nobody can have changed", || {
        fleet.write("heeler.yaml", &config);
        fleet.run(&["reload"]).ok();
        fleet.write("heeler.yaml", &format!("{config}{EVIL}\n"));
        let ran = fleet.run(&["reload"]);
        (ran.code == Some(0)).then_some(())
    });
    other.write("go", "");
}

fn an_agent_cannot_confirm_its_own_change(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    let program = fleet.program();
    let program = program.display();
    let accept = format!(
        "{}\n{program} reload --accept --yes\n\
         env -i PATH=$PATH HOME=$HOME {program} reload --accept --yes\n\
         F=$({program} status --json | sed -n 's/.*\"fingerprint\": \"\\([0-9a-f]*\\)\".*/\\1/p')\n\
         echo print=$F\n{program} reload --accept --fingerprint $F\n{program} reload\n",
        AttackedFleet::add_evil()
    );
    let said = fleet.attack(&accept);
    assert!(!said.contains("print=\n"), "the attack knows the fingerprint: {said}");
    fleet.assert_held(&["reload"]);
    fleet.run(&["trigger", "evil", "-q"]).fails(4);
    // Nor without a daemon.
    fleet.write(
        "attack.sh",
        &format!(
            "touch begun\nwhile [ ! -e go ]; do sleep 0.05; done\n\
             {program} reload --accept --yes > told 2>&1\ntouch done\n"
        ),
    );
    fleet.run(&["trigger", "hostile", "--detach", "-q"]).ok();
    // A daemon that dies earlier leaves the job in the queue.
    wait_for("the start of the attack", || fleet.file("begun").exists().then_some(()));
    fleet.kill("start");
    fleet.write("go", "");
    wait_for("the attack", || fleet.file("done").exists().then_some(()));
    assert!(fleet.read("told").contains("a process of a run cannot"), "{}", fleet.read("told"));
    fleet.assert_held(&["start", "-d"]);
}

fn a_change_after_the_one_that_was_shown_is_not_confirmed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.begin_attack("echo '# harmless' >> heeler.yaml");
    let print = fleet.held_change()["fingerprint"].as_str().unwrap().to_owned();
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &format!("{config}{EVIL}\n"));
    let said = fleet.run(&["reload", "--accept", "--fingerprint", &print]).fails(UNTRUSTED);
    assert!(said.contains("changed again"), "{said}");
    fleet.run(&["trigger", "evil", "-q"]).fails(4);
    let print = fleet.held_change()["fingerprint"].as_str().unwrap().to_owned();
    fleet.run(&["reload", "--accept", "--fingerprint", &print]).ok();
    fleet.run(&["trigger", "evil", "-q"]).ok();
}

fn a_killed_daemon_forgets_no_run(like: &Fleet) {
    // The daemon dies once the run is recorded, before its runner starts.
    for point in ["runner-untold", "runner-started"] {
        let fleet = like.another();
        let fleet = AttackedFleet::new(&fleet, "");
        let config = fleet.read("heeler.yaml");
        let end = "touch done\nwhile [ -e attack.sh ] && [ ! -e over ]; do sleep 0.05; done";
        fleet.write("attack.sh", &format!("{}\n{end}\n", AttackedFleet::add_evil()));
        let mut daemon = fleet.start(&["start", "--fault", point]);
        wait_for("the daemon", || fleet.file(".heeler/daemon.json").exists().then_some(()));
        // Not by the command, which would start another daemon after this one died.
        let dir = StateDir::open(&fleet.state_dir()).unwrap();
        let socket = DaemonFile::read(&dir).unwrap().unwrap().socket;
        let wanted = JobRequest::new("hostile".parse().unwrap());
        // The daemon may start the job of the first round again, and then dies before this.
        let _died = DaemonClient::connect(&socket, dir.root())
            .map(|mut client| client.send_command(&DaemonCommand::Trigger(Box::new(wanted)), None));
        daemon.wait().unwrap();
        // A run that no runner executes is settled by the next daemon.
        if point == "runner-started" {
            wait_for("the attack", || fleet.file("done").exists().then_some(()));
            fleet.assert_held(&["start", "-d"]);
            fleet.assert_held(&["trigger", "evil", "-q"]);
        } else {
            fleet.write("heeler.yaml", &format!("{config}{EVIL}\n"));
            fleet.assert_held(&["start", "-d"]);
        }
        fleet.write("heeler.yaml", &config);
        fleet.write("over", "");
        fleet.run(&["start", "-d"]).ok();
    }
}

fn a_hook_that_an_agent_changed_is_not_executed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.attack("true");
    wait_for("the hook", || fleet.file("told").exists().then_some(()));
    // A person changes it while nothing runs. No reload is needed for a script.
    fleet.write("hooks/tell.sh", "#!/bin/sh\necho again >> told\n");
    fleet.attack("true");
    wait_for("the new hook", || fleet.read("told").contains("again").then_some(()));
    fleet.attack("echo 'touch evil-ran' >> hooks/tell.sh");
    wait_for("the refusal", || {
        fleet.read(".heeler/logs/heeler.log").contains("hooks/tell.sh was changed").then_some(())
    });
    fleet.assert_nothing_evil();
}

fn a_hook_script_that_another_program_starts_is_not_executed(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    let config = fleet.read("heeler.yaml");
    let find = "find . -maxdepth 0 -exec ./hooks/tell.sh \\;";
    fleet.write("heeler.yaml", &config.replace("./hooks/tell.sh", &format!("'{find}'")));
    fleet.run(&["start", "-d"]).ok();
    fleet.attack("true");
    wait_for("the hook", || fleet.file("told").exists().then_some(()));
    fleet.attack("echo 'touch evil-ran' >> hooks/tell.sh");
    wait_for("the refusal", || {
        fleet.read(".heeler/logs/heeler.log").contains("hooks/tell.sh was changed").then_some(())
    });
    fleet.assert_nothing_evil();
}

fn no_recovery_of_the_database_forgets_a_change(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["trigger", "other", "-q"]).ok();
    let wait_for_end =
        || wait_for("the daemon's end", || fleet.processes("start").is_empty().then_some(()));
    wait_for_end();
    fleet.run(&["backup", "kept.tgz", "-q"]).ok();
    fleet.attack(&AttackedFleet::add_evil());
    wait_for_end();
    fleet.assert_held(&["trigger", "other", "-q"]);
    fleet.run(&["restore", "kept.tgz", "--yes"]).ok();
    fleet.assert_held(&["trigger", "evil", "-q"]);
    fleet.run(&["doctor", "--rebuild", "--yes"]).ok();
    fleet.assert_held(&["trigger", "evil", "-q"]);
    // A record that cannot be read says nothing, so a person looks at everything.
    for command in [&["restore", "kept.tgz", "--yes"][..], &["doctor", "--rebuild", "--yes"]] {
        fleet.write(".heeler/heeler.db", "damaged");
        fleet.run(command).ok();
        fleet.assert_held(&["trigger", "evil", "-q"]);
    }
    fleet.run(&["reload", "--accept", "--yes"]).ok();
    fleet.run(&["trigger", "evil", "-q"]).ok();
    assert!(fleet.file("evil-ran").exists(), "a person has confirmed it");
    wait_for_end();
}

fn people_change_the_config_as_before_while_nothing_runs(fleet: &Fleet) {
    let fleet = AttackedFleet::new(fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.attack("true");
    for number in 0..3 {
        let config = fleet.read("heeler.yaml");
        let agent = format!("  - {{name: new{number}, runtime: command, command: 'true'}}\n");
        fleet.write("heeler.yaml", &format!("{config}{agent}"));
        let said = fleet.run(&["reload"]).ok();
        assert!(said.contains(&format!("new{number}")), "{said}");
        fleet.run(&["trigger", &format!("new{number}"), "-q"]).ok();
    }
    fleet.run(&["stop", "-q"]).ok();
    fleet.write("heeler.yaml", &format!("{}{EVIL}\n", fleet.read("heeler.yaml")));
    fleet.run(&["trigger", "evil", "-q"]).ok();
}

attacks![
    a_reload_does_not_load_what_an_agent_changed,
    a_new_daemon_does_not_start_with_what_an_agent_changed,
    a_temporary_daemon_does_not_load_what_an_agent_changed,
    the_watcher_does_not_load_what_an_agent_changed,
    a_signal_does_not_load_what_an_agent_changed,
    a_change_that_the_agent_undid_needs_no_person,
    a_process_that_outlives_its_run_cannot_change_the_config,
    an_orphan_of_another_fleet_does_not_hold_back_a_persons_change,
    an_agent_cannot_confirm_its_own_change,
    a_change_after_the_one_that_was_shown_is_not_confirmed,
    a_killed_daemon_forgets_no_run,
    a_hook_that_an_agent_changed_is_not_executed,
    a_hook_script_that_another_program_starts_is_not_executed,
    no_recovery_of_the_database_forgets_a_change,
    people_change_the_config_as_before_while_nothing_runs,
];

#[test]
fn only_an_administrator_confirms_a_change_over_the_web() {
    let fleet = Fleet::new();
    let fleet = AttackedFleet::new(&fleet, "web: {port: auto}\n");
    let started = fleet.command(&["start", "-d", "--json"]).env_remove("HEELER_NO_WEB").output();
    let started: Json = serde_json::from_str(&Ran::from(started.unwrap()).ok()).unwrap();
    let address = started["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    fleet.begin_attack(&AttackedFleet::add_evil());
    let token = |scope: &str| {
        let made = fleet.json(&["token", "create", scope, "--scope", scope, "--json"]);
        bearer(made["token"].as_str().unwrap())
    };
    let (operate, admin) = (token("operate"), token("admin"));
    let (_, _, status) = send(&address, "GET /api/v1/fleet", &[&operate], "");
    let change = serde_json::from_str::<Json>(&status).unwrap()["configChange"].clone();
    let lines = change["files"][0]["lines"].to_string();
    assert!(lines.contains("+   - {name: evil,"), "{change}");
    let accept = "POST /api/v1/daemon/accept-config";
    let shown = json!({"fingerprint": change["fingerprint"]}).to_string();
    let other = json!({"fingerprint": "0".repeat(64)}).to_string();
    let code = |token: &str, body: &str| {
        send(&address, accept, &[token, "content-type: application/json"], body).0
    };
    assert_eq!(send(&address, "POST /api/v1/daemon/reload", &[&admin], "").0, 409);
    assert_eq!(code(&operate, &shown), 403);
    assert_eq!(code(&admin, &other), 409);
    fleet.run(&["trigger", "evil", "-q"]).fails(4);
    let (_, _, page) = send(&address, "GET /", &[&admin, "accept: text/html"], "");
    assert!(page.contains("A change of the config waits for you"), "{page}");
    assert_eq!(code(&admin, &shown), 200);
    fleet.run(&["trigger", "evil", "-q"]).ok();
}

#[test]
fn people_who_edit_by_a_command_are_not_asked_again() {
    let fleet = Fleet::new();
    let fleet = AttackedFleet::new(&fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.begin_attack("true");
    fleet.run(&["init", "agent", "mine"]).ok();
    assert_eq!(fleet.held_change(), Json::Null);
    fleet.write("edit.sh", &format!("printf '%s\\n' '{}' >> \"$1\"", EVIL.replace("evil", "my")));
    let edited = fleet.command(&["config", "edit"]).env("EDITOR", "sh edit.sh").output().unwrap();
    Ran::from(edited).ok();
    assert_eq!(fleet.held_change(), Json::Null);
    let said = fleet.run(&["reload"]).ok();
    assert!(said.contains("mine") && said.contains("my"), "{said}");
    // What an agent has changed meanwhile is not confirmed with it.
    fleet.write("agents/other.yaml", "name: other\nruntime: command\ncommand: touch evil-ran\n");
    fleet.run(&["init", "agent", "more"]).ok();
    fleet.assert_held(&["reload"]);
    let shown = fleet.run(&["doctor"]);
    assert!(shown.stdout.contains("heeler reload --accept"), "{}", shown.stdout);
}

#[test]
fn a_person_who_reloads_during_a_run_sees_the_change_and_is_asked() {
    let fleet = Fleet::new();
    let fleet = AttackedFleet::new(&fleet, "");
    fleet.run(&["start", "-d"]).ok();
    fleet.begin_attack("true");
    fleet.write("heeler.yaml", &format!("{}{EVIL}\n", fleet.read("heeler.yaml")));
    for (answer, is_loaded) in [("n\n", false), ("y\n", true)] {
        let mut terminal = Terminal::start(&fleet, "reload");
        terminal.wait_for("+   - {name: evil,");
        terminal.wait_for("[y/N]");
        terminal.type_in(answer);
        let (code, said) = terminal.end();
        assert_eq!(code, Some(if is_loaded { 0 } else { UNTRUSTED }), "{said}");
        assert_eq!(fleet.held_change() == Json::Null, is_loaded);
    }
    fleet.run(&["trigger", "evil", "-q"]).ok();
}
