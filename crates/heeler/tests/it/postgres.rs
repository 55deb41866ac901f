//! A fleet with its records on PostgreSQL: a real server that is killed, daemons that are killed, and
//! moves between the engines.

use heeler_engine::{CommandReply, DaemonCommand, DaemonStatus, StopMode};
use heeler_model::JobStatus;
use heeler_server::DaemonClient;
use heeler_testkit::PostgresCluster;
use serde_json::{Value as Json, json};

use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::{ask, wanted};
use crate::trigger::wait_for;

/// An agent that waits at a gate, and a short one.
const AGENTS: &str = "agents:
  - {name: worker, runtime: scripted, script: [{run: 'read line < gate'}, {say: Through the gate.}]}
  - {name: short, runtime: scripted, script: [{say: A needle in the record.}]}
";

fn herd(store: &str) -> Herd {
    let herd = Herd::of(&format!("store: {store}\n{AGENTS}"));
    let gate = json!({"name": "flow", "agent": "short", "phases": [
        {"name": "first", "type": "bash", "command": "true", "approval_gate": "go_on"},
        {"name": "second", "type": "bash", "command": "echo done >> flowed"},
    ]});
    herd.fleet.write("workflows/flow.yaml", &gate.to_string());
    herd
}

#[track_caller]
fn status(client: &mut DaemonClient) -> DaemonStatus {
    match client.send_command(&DaemonCommand::Status, None).unwrap() {
        CommandReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Runs a command that must succeed; returns its JSON.
#[track_caller]
fn json_of(herd: &Herd, args: &[&str]) -> Json {
    let output = herd.command(args[0]).args(&args[1..]).arg("--json").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stdout)))
}

/// Runs a command that must be refused; returns its message.
#[track_caller]
fn refusal_of(herd: &Herd, args: &[&str]) -> String {
    let output = herd.command(args[0]).args(&args[1..]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[track_caller]
fn stop(client: &mut DaemonClient, mut life: Life) {
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    assert!(life.child.wait().unwrap().success());
}

#[test]
fn a_fleet_on_postgresql_outlives_its_daemon_and_its_server() {
    let mut cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    let mut herd = herd(&cluster.url("fleet"));
    let (mut life, mut client) = herd.begin(&[]);
    assert!(!herd.dir().database().exists(), "no file holds records");
    let short = ask(&mut client, wanted("short"));
    assert_eq!(herd.ends(&short).head.status, JobStatus::Completed);
    let job = ask(&mut client, wanted("worker"));
    wait_for("the run", || (herd.job(&job).head.status == JobStatus::Running).then_some(()));

    // The daemon is killed; its successor takes the run over.
    life.kill();
    let (life, mut client) = herd.begin(&[]);
    assert_eq!(status(&mut client).running.len(), 1);

    // The server is killed: the run continues, and nothing starts.
    cluster.kill();
    wait_for("the fault", || {
        let faults = status(&mut client).faults;
        faults.iter().any(|fault| fault.contains("PostgreSQL")).then_some(())
    });
    let refused = client.send_command(&DaemonCommand::Trigger(Box::new(wanted("short"))), None);
    assert!(refused.is_err(), "{refused:?}");
    let shown = herd.command("status").output().unwrap();
    let shown = String::from_utf8(shown.stderr).unwrap();
    assert!(shown.contains("running agents continue"), "{shown}");
    assert_eq!(status(&mut client).running.len(), 1);

    cluster.start_server();
    wait_for("the recovery", || status(&mut client).faults.is_empty().then_some(()));
    herd.let_through(1);
    assert_eq!(herd.ends(&job).head.status, JobStatus::Completed);
    assert_eq!(herd.run_ids(&job).len(), 1, "it was started once");
    assert_eq!(herd.reader().runs_of_job(&short).unwrap().len(), 1);

    // A workflow with a gate.
    let run = json_of(&herd, &["workflow", "run", "flow", "--detach"]);
    let run = run["run"]["id"].as_str().unwrap().to_owned();
    let gate = wait_for("the gate", || {
        let asked = json_of(&herd, &["approvals", "list"]);
        asked["approvals"][0]["id"].as_str().map(str::to_owned)
    });
    json_of(&herd, &["approvals", "approve", &gate]);
    wait_for("the end of the workflow", || {
        let shown = json_of(&herd, &["workflow", "show", &run]);
        (shown["run"]["status"] == "succeeded").then_some(())
    });
    assert_eq!(herd.fleet.read("flowed"), "done\n");
    let found = herd.command("search").arg("needle").output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.contains(short.as_str()), "{found}");
    let listed = json_of(&herd, &["jobs"]);
    assert!(listed.to_string().contains(job.as_str()), "{listed}");
    json_of(&herd, &["doctor"]);
    json_of(&herd, &["backup", "fleet.tar.gz"]);
    stop(&mut client, life);
}

#[test]
fn records_are_moved_to_postgresql_and_back_and_the_source_is_not_used_any_more() {
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    let url = cluster.url("fleet");
    let herd = Herd::of(AGENTS);
    let (life, mut client) = herd.begin(&[]);
    let job = ask(&mut client, wanted("short"));
    assert_eq!(herd.ends(&job).head.status, JobStatus::Completed);
    let refused = refusal_of(&herd, &["migrate", "store", "--to", &url]);
    assert!(refused.contains("is held by") && refused.contains("heeler stop"), "{refused}");
    stop(&mut client, life);

    let moved = json_of(&herd, &["migrate", "store", "--to", &url]);
    assert_eq!(moved["tables"]["executions"], 1);
    assert_eq!(herd.job(&job).head.status, JobStatus::Completed, "it is read from the server");
    // The config still says nothing of a server.
    let refused = refusal_of(&herd, &["start"]);
    assert!(refused.contains("has no `store:`"), "{refused}");
    herd.fleet.write("heeler.yaml", &format!("store: {url}\n{AGENTS}"));
    // Without its record of the server, the directory has only the file that was moved.
    let location = herd.fleet.read(".heeler/store.json");
    std::fs::remove_file(herd.fleet.file(".heeler/store.json")).unwrap();
    let refused = herd.command("jobs").arg("--state-dir").arg(".heeler").output().unwrap();
    assert!(refused.status.success(), "reading is harmless");
    herd.fleet.write("heeler.yaml", AGENTS);
    let refused = herd.command("start").output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("were moved to"));
    herd.fleet.write(".heeler/store.json", &location);
    herd.fleet.write("heeler.yaml", &format!("store: {url}\n{AGENTS}"));

    let (life, mut client) = herd.begin(&[]);
    let second = ask(&mut client, wanted("short"));
    assert_eq!(herd.ends(&second).head.status, JobStatus::Completed);
    stop(&mut client, life);
    let moved = json_of(&herd, &["migrate", "store", "--to", "sqlite"]);
    assert_eq!(moved["tables"]["executions"], 2);
    herd.fleet.write("heeler.yaml", AGENTS);
    let (life, mut client) = herd.begin(&[]);
    assert_eq!(herd.job(&second).head.status, JobStatus::Completed);
    assert_eq!(herd.job(&job).head.status, JobStatus::Completed);
    stop(&mut client, life);
    // A daemon that finds the server again is refused, and a new move replaces its records.
    let moved = json_of(&herd, &["migrate", "store", "--to", &url]);
    assert_eq!(moved["tables"]["executions"], 2);
}
