//! Attacks by a new config file at a place where a command finds it before the fleet's own one.

use std::path::Path;

use crate::fleet::{Fleet, Ran};
use crate::trigger::wait_for;

/// Exit code of a command that a person has not agreed to.
const UNTRUSTED: i32 = 6;

/// Writes a config file in which the agent `other` is another one.
fn forge(path: &str) -> String {
    format!(
        "cat > {path} <<'END'\nagents:\n  \
         - {{name: other, runtime: command, command: 'touch evil-ran'}}\nEND\n"
    )
}

/// A fleet with a config of this name, and a hostile agent that executes `attack.sh`.
fn attacked_fleet(like: &Fleet, name: &str, keys: &str) -> Fleet {
    let fleet = like.another();
    fleet.write(
        name,
        &format!(
            "agents:\n  - {{name: hostile, runtime: command, command: 'sh attack.sh'{keys}}}\n  \
             - {{name: other, runtime: command, command: 'echo other'}}\n"
        ),
    );
    fleet
}

/// Runs the hostile agent, and waits until the daemon of the command has ended.
fn attack(fleet: &Fleet, script: &str) {
    fleet.write("attack.sh", script);
    fleet.run(&["trigger", "hostile", "-q"]).ok();
    wait_for("the daemon's end", || fleet.processes("start").is_empty().then_some(()));
}

#[track_caller]
fn assert_held(fleet: &Fleet, ran: &Ran) {
    assert_eq!(ran.code, Some(UNTRUSTED), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("reload --accept"), "{}", ran.stderr);
    assert!(!fleet.file("evil-ran").exists(), "the agent's command ran");
}

fn held_until_a_person_agrees(like: &Fleet, name: &str, keys: &str) {
    let fleet = attacked_fleet(like, name, keys);
    attack(&fleet, &forge("heeler.yaml"));
    assert!(fleet.file("heeler.yaml").exists(), "the attack was made");
    for args in [&["trigger", "other", "-q"][..], &["start", "-d"]] {
        assert_held(&fleet, &fleet.run(args));
    }
    // A person undoes it, and nothing is asked.
    std::fs::remove_file(fleet.file("heeler.yaml")).unwrap();
    fleet.run(&["trigger", "other", "-q"]).ok();
    assert!(!fleet.file("evil-ran").exists());
    wait_for("the daemon's end", || fleet.processes("start").is_empty().then_some(()));
    // Or a person confirms it.
    attack(&fleet, &forge("heeler.yaml"));
    assert_held(&fleet, &fleet.run(&["trigger", "other", "-q"]));
    fleet.run(&["--config", name, "reload", "--accept", "--yes"]).ok();
    fleet.run(&["trigger", "other", "-q"]).ok();
    assert!(fleet.file("evil-ran").exists(), "a person has confirmed it");
    wait_for("the daemon's end", || fleet.processes("start").is_empty().then_some(()));
}

fn a_config_of_another_name_with_the_same_state_is_not_loaded(like: &Fleet) {
    held_until_a_person_agrees(like, "heeler.yml", "");
}

fn a_config_of_another_name_with_another_state_is_not_loaded(like: &Fleet) {
    held_until_a_person_agrees(like, "herdctl.yaml", "");
}

fn an_agent_in_a_sandbox_leaves_it_by_no_new_config(like: &Fleet) {
    held_until_a_person_agrees(like, "herdctl.yaml", ", sandbox: true");
}

/// Runs a command in a folder of the fleet, without the trust that the tests' fleets are given.
fn run_in(fleet: &Fleet, folder: &Path, args: &[&str]) -> Ran {
    let mut command = fleet.command(args);
    Ran::from(command.env_remove("HEELER_TRUST").current_dir(folder).output().unwrap())
}

fn a_config_below_a_fleet_is_not_covered_by_trust_in_the_folder(like: &Fleet) {
    let fleet = attacked_fleet(like, "heeler.yaml", "");
    let (root, sub) = (fleet.path().to_owned(), fleet.file("sub"));
    fleet.write("sub/readme", "");
    fleet.write("attack.sh", &forge("sub/heeler.yaml"));
    run_in(&fleet, &root, &["trust", "--folder", "--yes", "."]).ok();
    run_in(&fleet, &root, &["trigger", "hostile", "-q"]).ok();
    assert!(fleet.file("sub/heeler.yaml").exists(), "the attack was made");
    for trusted in [None, Some(root.as_path())] {
        let mut command = fleet.command(&["trigger", "other", "-q"]);
        command.env_remove("HEELER_TRUST").current_dir(&sub);
        let ran = Ran::from(command.envs(trusted.map(|it| ("HEELER_TRUST", it))).output().unwrap());
        assert_eq!(ran.code, Some(UNTRUSTED), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("heeler trust"), "{}", ran.stderr);
        assert!(!fleet.file("sub/evil-ran").exists());
    }
    // A person who has read it, or who names the folder itself.
    run_in(&fleet, &sub, &["trust", "--yes", "."]).ok();
    run_in(&fleet, &sub, &["trigger", "other", "-q"]).ok();
    assert!(fleet.file("sub/evil-ran").exists());
}

attacks![
    a_config_of_another_name_with_the_same_state_is_not_loaded,
    a_config_of_another_name_with_another_state_is_not_loaded,
    an_agent_in_a_sandbox_leaves_it_by_no_new_config,
    a_config_below_a_fleet_is_not_covered_by_trust_in_the_folder,
];
