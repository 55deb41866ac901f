//! The files that scripts read are in place when a command or a call returns.

use heeler_engine::DaemonCommand;
use heeler_testkit::ProofSettings;
use serde_json::Value as Json;

use crate::daemon_kills::Herd;
use crate::daemon_lives::{ask, wanted};
use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted};

/// How many calls a daemon answers without `prove`.
const CALLS_IN_CI: u64 = 60;
/// How many times a command starts and ends without `prove`.
const COMMANDS_IN_CI: u64 = 6;

/// Reads a view at once, without waiting for it.
#[track_caller]
fn view(fleet: &Fleet, path: &str) -> String {
    let path = fleet.file(&format!(".heeler/{path}"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks what a finished job implies, right after its command.
#[track_caller]
fn check_finished(fleet: &Fleet, told: &Json, status: &str, count: usize) {
    let id = told["job"]["id"].as_str().unwrap();
    let job = view(fleet, &format!("jobs/{id}.yaml"));
    assert!(job.contains(&format!("status: {status}")), "{job}");
    let state = view(fleet, "state.yaml");
    assert!(state.contains(&format!("last_job: {id}")), "{state}");
    assert!(state.contains("current_job: null"), "{state}");
    let session: Json = serde_json::from_str(&view(fleet, "sessions/coder.json")).unwrap();
    assert_eq!(session["job_count"], count, "{session}");
}

/// Triggers again and again, and reads the views of each job at once.
#[track_caller]
fn check_commands(fleet: &Fleet) {
    for round in 1..=ProofSettings::new(COMMANDS_IN_CI).rounds {
        let told = fleet.json(&["trigger", "coder", "-p", "Look.", "--json"]);
        check_finished(fleet, &told, "completed", usize::try_from(round).unwrap());
        let examined = fleet.run(&["doctor"]);
        let is_view = |line: &str| line.contains("/.heeler/") && line.contains(".yaml");
        assert!(!examined.stdout.lines().any(is_view), "{}", examined.stdout);
        let detached = fleet.json(&["trigger", "other", "-p", "Look.", "--detach", "--json"]);
        let id = detached["job"]["id"].as_str().unwrap();
        assert!(view(fleet, &format!("jobs/{id}.yaml")).contains("agent: other"));
        // Its end would be published while `doctor` looks.
        fleet.run(&["jobs", "logs", id, "-f"]).ok();
    }
}

fn agents() -> Fleet {
    let coder = format!("{}\nsession: {{mode: persistent}}", scripted("{say: Done.}"));
    fleet(&[("coder", &coder), ("other", &scripted("{say: Done.}"))])
}

#[test]
fn proof_the_views_of_a_job_are_in_place_when_its_command_returns() {
    check_commands(&agents());
}

#[test]
fn proof_the_views_of_a_job_are_in_place_when_its_command_returns_from_a_daemon() {
    let fleet = agents();
    fleet.run(&["start", "-d", "--no-web"]).ok();
    check_commands(&fleet);
    fleet.run(&["stop", "--force"]).ok();
}

#[test]
fn proof_a_daemon_answers_when_the_views_of_the_answer_are_in_place() {
    let herd = Herd::of(
        "agents: [{name: coder, runtime: scripted, script: [{hang: true}], \
         instances: {max_concurrent: 2}}]",
    );
    let (_life, mut client) = herd.begin(&["--no-web"]);
    for round in 0..ProofSettings::new(CALLS_IN_CI).rounds {
        let job = ask(&mut client, wanted("coder"));
        let shown = view(&herd.fleet, &format!("jobs/{job}.yaml"));
        let status = if round < 2 { "status: running" } else { "status: pending" };
        assert!(shown.contains(status), "{round}: {shown}");
        if round < 2 {
            assert!(view(&herd.fleet, "state.yaml").contains("status: running"));
            continue;
        }
        let cancel = DaemonCommand::Cancel { job: job.clone(), now: true, by: "me".to_owned() };
        client.send_command(&cancel, None).unwrap();
        let shown = view(&herd.fleet, &format!("jobs/{job}.yaml"));
        assert!(shown.contains("status: cancelled"), "{round}: {shown}");
    }
    let running = herd.jobs().into_iter().rev().take(1).map(|job| job.id);
    for job in running {
        herd.fleet.run(&["cancel", "--now", job.as_str()]).ok();
        let shown = view(&herd.fleet, &format!("jobs/{job}.yaml"));
        assert!(shown.contains("status: cancelled"), "{shown}");
    }
}
