//! Runs of workflows across the ends of daemons: stopped, idle, killed; and what may not be written.

use std::fs;
use std::time::Duration;

use heeler_engine::{CommandReply, DaemonCommand, StopMode, WorkflowOperation, WorkflowRunRequest};
use heeler_model::WorkflowRunId;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_server::{DaemonClient, DaemonClientError};
use serde_json::{Value as Json, json};

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

fn herd(config: &str, workflow: &Json) -> Herd {
    let herd = Herd::of(&format!(
        "{config}agents:\n  - {{name: coder, runtime: scripted, script: [{{say: hi}}]}}\n"
    ));
    herd.fleet.write("workflows/flow.yaml", &workflow.to_string());
    herd
}

fn bash(name: &str, command: &str) -> Json {
    json!({ "name": name, "type": "bash", "command": command })
}

fn run(client: &mut DaemonClient, wanted: WorkflowRunRequest) -> WorkflowRunId {
    let command = DaemonCommand::Workflow {
        order: WorkflowOperation::Run(wanted),
        by: "the test".to_owned(),
    };
    match client.send_command(&command, None).unwrap() {
        CommandReply::WorkflowRun { run, .. } => run,
        other => panic!("{other:?}"),
    }
}

fn status(herd: &Herd, run: &WorkflowRunId) -> WorkflowRunStatus {
    herd.reader().workflow_run(run).unwrap().unwrap().head.status
}

fn wait_until(herd: &Herd, run: &WorkflowRunId, wanted: WorkflowRunStatus) {
    wait_for(wanted.as_str(), || (status(herd, run) == wanted).then_some(()));
}

#[test]
fn a_daemon_that_ends_when_idle_stays_for_a_run_that_can_go_on() {
    let phases: Vec<Json> =
        (0..600).map(|it| json!({ "name": format!("p{it}"), "type": "context" })).collect();
    let herd = herd("", &json!({ "name": "flow", "phases": phases }));
    let said = herd.command("workflow").args(["run", "flow", "--detach", "--json"]).output();
    let said: Json = serde_json::from_slice(&said.unwrap().stdout).unwrap();
    let id = said["run"]["id"].as_str().unwrap().parse().unwrap();
    wait_until(&herd, &id, WorkflowRunStatus::Succeeded);
}

#[test]
fn runs_that_wait_for_room_still_do_after_a_restart_and_in_a_stopped_fleet() {
    let wait = bash("wait", "while ! test -e go; do sleep 0.05; done");
    let herd = herd("workflows: {max_concurrent: 1}\n", &json!({"name": "flow", "phases": [wait]}));
    let (mut life, mut client) = herd.begin(&[]);
    let runs: Vec<WorkflowRunId> =
        (0..3).map(|_| run(&mut client, WorkflowRunRequest::manual_run("flow"))).collect();
    let waiting = |herd: &Herd| {
        runs.iter().filter(|run| status(herd, run) == WorkflowRunStatus::Queued).count()
    };
    assert_eq!(waiting(&herd), 2);
    life.kill();
    let (mut life, mut client) = herd.begin(&[]);
    // It has taken everything over once it answers.
    client.send_command(&DaemonCommand::Status, None).unwrap();
    assert_eq!(waiting(&herd), 2);
    let wait = StopMode::Wait { timeout: Some(Duration::ZERO) };
    client.send_command(&DaemonCommand::Stop(wait), None).unwrap();
    assert!(!life.ended());
    fs::write(herd.fleet.file("go"), "").unwrap();

    // A part that ended with the fleet is none that failed.
    assert_eq!(status(&herd, &runs[0]), WorkflowRunStatus::Running);
    assert!(herd.command("trigger").arg("coder").output().unwrap().status.success());
    assert_eq!(waiting(&herd), 2, "nobody has started the fleet");
    let (_life, _client) = herd.begin(&[]);
    runs.iter().for_each(|run| wait_until(&herd, run, WorkflowRunStatus::Succeeded));
}

#[test]
fn a_part_that_ends_after_its_run_was_cancelled_is_looked_at_when_it_goes_on() {
    let mut work =
        bash("work", "trap 'echo I am BLOCKED; exit 0' INT TERM; touch up; sleep 60 & wait");
    work["on_output"] = json!({ "contains_BLOCKED": { "action": "fail" } });
    let ship = bash("ship", "touch shipped");
    let herd = herd("", &json!({ "name": "flow", "phases": [work, ship] }));
    let (_life, mut client) = herd.begin(&[]);
    let id = run(&mut client, WorkflowRunRequest::manual_run("flow"));
    wait_for("its work", || herd.fleet.file("up").exists().then_some(()));
    let by = || "ada".to_owned();
    let order = WorkflowOperation::Cancel { run: id.clone(), now: false };
    client.send_command(&DaemonCommand::Workflow { order, by: by() }, None).unwrap();
    let retry = DaemonCommand::Workflow {
        order: WorkflowOperation::Retry { run: id.clone(), from: None },
        by: by(),
    };
    fs::remove_file(herd.fleet.file("up")).unwrap();
    wait_for("the end of its job", || client.send_command(&retry, None).ok());
    wait_for("its work, again", || herd.fleet.file("up").exists().then_some(()));
    assert!(!herd.fleet.file("shipped").exists());
}

#[test]
fn a_secret_that_a_run_is_given_is_used_and_not_written() {
    const SECRET: &str = "correct-horse-battery";
    let mut keep = bash("keep", "printf %s {{ inputs.token }} > used");
    keep["messages"] = json!({ "on_start": "with {{ inputs.token }}" });
    keep["approval_gate"] = json!({ "name": "go", "message": "may {{ inputs.token }} go on?" });
    let mut herd = herd("", &json!({ "name": "flow", "phases": [keep] }));
    herd.env.push(("MY_API_TOKEN", SECRET.to_owned()));
    let (_life, mut client) = herd.begin(&[]);
    let mut wanted = WorkflowRunRequest::manual_run("flow");
    wanted.inputs.insert("token".to_owned(), SECRET.into());
    let id = run(&mut client, wanted);
    wait_until(&herd, &id, WorkflowRunStatus::Paused);
    assert_eq!(fs::read_to_string(herd.fleet.file("used")).unwrap(), SECRET);
    let reader = herd.reader();
    let row = reader.workflow_run(&id).unwrap().unwrap();
    let events = reader.workflow_events(&id, 0, 100).unwrap();
    let asked = reader.pending_approvals_of(id.as_str()).unwrap();
    let known = format!("{row:?} {events:?} {asked:?} {:?}", reader.journal(&id).unwrap());
    assert!(!known.contains(SECRET), "{known}");
    assert!(known.contains("with "), "{known}");
}

#[test]
fn a_part_is_tried_again_by_its_run_only() {
    let herd = herd("", &json!({ "name": "flow", "phases": [bash("bad", "exit 1")] }));
    let (_life, mut client) = herd.begin(&[]);
    let id = run(&mut client, WorkflowRunRequest::manual_run("flow"));
    wait_until(&herd, &id, WorkflowRunStatus::Failed);
    let job = herd.reader().journal(&id).unwrap()[0].job.clone().unwrap();
    let by = || "ada".to_owned();
    for command in [
        DaemonCommand::Retry { job: job.clone(), by: by() },
        DaemonCommand::Resume { job, prompt: None, by: by() },
    ] {
        match client.send_command(&command, None) {
            Err(DaemonClientError::Refused(refused)) => {
                assert_eq!(refused.hint, Some(format!("heeler workflow retry {id}")));
            }
            other => panic!("{other:?}"),
        }
    }
}
