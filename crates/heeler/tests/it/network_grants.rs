//! Hosts that a person allows a sandboxed agent to reach: once, for its session, always.

use heeler_model::TriggerType;
use serde_json::Value as Json;

use crate::fleet::Fleet;
use crate::trigger::wait_for;

/// Asks for a host through the proxy of the run. The name exists nowhere, so an allowed request fails
/// later.
const ASK: &str = "curl -s -o /dev/null -m 100 https://files.example.invalid/; true";

fn fleet() -> Fleet {
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        "agents:\n  - name: boxed\n    runtime: scripted\n    approvals: interactive\n    \
         sandbox: true\n    script: [{run: 'sh ask.sh'}, {say: done}]\n  \
         - name: other\n    runtime: scripted\n    approvals: interactive\n    sandbox: true\n    \
         working_directory: other\n    script: [{run: 'sh ask.sh'}, {say: done}]\n  \
         - name: boss\n    runtime: command\n    working_directory: boss\n    \
         command: 'PROGRAM trigger boxed -q -p x'\n    spawn: {agents: [boxed]}\n"
            .replace("PROGRAM", fleet.program().to_str().unwrap())
            .as_str(),
    );
    fleet.write("ask.sh", ASK);
    fleet.write("other/ask.sh", ASK);
    std::fs::create_dir_all(fleet.file("boss")).unwrap();
    std::fs::create_dir_all(fleet.file("home")).unwrap();
    fleet.run(&["start", "--detach"]).ok();
    fleet
}

/// Starts a job, and answers its question if it asks one. Returns its log, and whether it asked.
fn run(fleet: &Fleet, args: &[&str], answer: &str) -> (String, bool) {
    let before = fleet.json(&["jobs", "--json"])["total"].as_i64().unwrap();
    fleet.run(&[args, &["--detach", "-q", "-p", "x"]].concat()).ok();
    let mut has_asked = false;
    let job = wait_for("the end of the job", || {
        let open = fleet.json(&["approvals", "list", "--json"]);
        if let Some(question) = open["approvals"].get(0) {
            has_asked = true;
            let id = question["id"].as_str().unwrap();
            // It may have been closed by the answer of the last look.
            fleet.run(&["approvals", "reply", id, answer]);
        }
        let jobs = fleet.json(&["jobs", "--json"]);
        let job = &jobs["jobs"][0];
        let is_new = jobs["total"].as_i64().unwrap() > before;
        (is_new && job["status"] == "completed").then(|| job.clone())
    });
    (fleet.run(&["jobs", "logs", job["id"].as_str().unwrap()]).ok(), has_asked)
}

fn allowed_hosts(fleet: &Fleet, agent: &str) -> Vec<String> {
    let shown = fleet.json(&["agent", "show", agent, "--json"]);
    let hosts = shown["agent"]["allowedHosts"].as_array().unwrap().iter();
    hosts.map(|host| host.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_person_allows_a_host_once_for_a_session_and_always() {
    let fleet = fleet();
    let new = ["trigger", "boxed"];
    let is_allowed = |log: &str| log.contains("allowed files.example.invalid:443");
    let (log, has_asked) = run(&fleet, &new, "Deny");
    assert!(has_asked && !is_allowed(&log), "{log}");
    let (log, has_asked) = run(&fleet, &new, "Allow once");
    assert!(has_asked && is_allowed(&log), "{log}");
    assert_eq!(allowed_hosts(&fleet, "boxed"), [""; 0]);

    let (_, has_asked) = run(&fleet, &new, "Allow for this session");
    assert!(has_asked, "the last permission was for one connection");
    let sessions = fleet.json(&["session", "list", "--json"]);
    let session: &Json = &sessions["sessions"][0];
    let resume = ["session", "resume", session["id"].as_str().unwrap()];
    let (log, has_asked) = run(&fleet, &resume, "Deny");
    assert!(!has_asked && is_allowed(&log), "{log}");
    let native = session["agentSessionId"].as_str().unwrap();
    let expected = format!("files.example.invalid:443 (session {native})");
    assert_eq!(allowed_hosts(&fleet, "boxed"), [expected]);

    let (_, has_asked) = run(&fleet, &new, "Allow always");
    assert!(has_asked, "another session has no permission");
    let (log, has_asked) = run(&fleet, &new, "Deny");
    assert!(!has_asked && is_allowed(&log), "{log}");
    // Another agent has none.
    let (log, has_asked) = run(&fleet, &["trigger", "other"], "Deny");
    assert!(has_asked && !is_allowed(&log), "{log}");

    let shown = fleet.run(&["agent", "show", "boxed"]).ok();
    assert!(shown.contains("files.example.invalid:443"), "{shown}");
    let forgotten = fleet.run(&["agent", "forget-hosts", "boxed"]).ok();
    assert!(forgotten.contains("2 hosts"), "{forgotten}");
    assert_eq!(allowed_hosts(&fleet, "boxed"), [""; 0]);
    let (log, has_asked) = run(&fleet, &new, "Deny");
    assert!(has_asked && !is_allowed(&log), "{log}");
    fleet.run(&["stop", "-q"]);
}

#[test]
fn a_permission_does_not_count_in_a_job_that_another_agent_starts() {
    let fleet = fleet();
    let (_, has_asked) = run(&fleet, &["trigger", "boxed"], "Allow always");
    assert!(has_asked);
    assert_eq!(allowed_hosts(&fleet, "boxed"), ["files.example.invalid:443"]);
    let (log, has_asked) = run(&fleet, &["trigger", "boss"], "Deny");
    assert!(has_asked && log.contains("denied files.example.invalid:443"), "{log}");
    let jobs = fleet.jobs();
    let spawned = jobs.iter().find(|job| job.head.trigger_type == TriggerType::Spawned).unwrap();
    assert_eq!(spawned.head.agent, "boxed");
    // The permission is still there for the jobs of people.
    let (log, has_asked) = run(&fleet, &["trigger", "boxed"], "Deny");
    assert!(!has_asked && log.contains("allowed files.example.invalid:443"), "{log}");
    fleet.run(&["stop", "-q"]);
}
