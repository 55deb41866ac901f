//! Workflow runs that work in a clone of their own (`workspace: per-run`).

use std::process::Command;

use heeler_engine::{CommandReply, DaemonCommand, WorkflowOperation, WorkflowRunRequest};
use heeler_model::WorkflowRunId;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_server::DaemonClient;

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

const CONFIG: &str = "agents:
  - name: coder
    runtime: scripted
    repo: ./origin.git
    working_directory: work
    script: [{run: 'cat file; ls; echo agent > by-agent'}, {say: '{output}'}]
";

/// Phases that look at the files and leave some behind.
const PHASES: &str = "phases:
  - {name: first, type: bash, command: 'pwd; cat file; ls; echo made > made'}
  - {name: second, type: bash, command: 'pwd; cat made'}
  - {name: third, prompt: look}
  - {name: fourth, type: bash, command: 'cat by-agent; test {{ how }} = good'}
";

fn git(herd: &Herd, args: &[&str]) {
    let mut git = Command::new("git");
    git.current_dir(herd.fleet.path())
        .args(["-c", "user.name=t", "-c", "user.email=t@x"])
        .args(args);
    let output = git.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn herd(policy: &str) -> Herd {
    let herd = Herd::of(CONFIG);
    herd.fleet.write("workflows/flow.yaml", &format!("name: flow\nworkspace: {policy}\n{PHASES}"));
    herd.fleet.write("origin/file", "content\n");
    git(&herd, &["init", "-q", "-b", "main", "origin"]);
    git(&herd, &["-C", "origin", "add", "."]);
    git(&herd, &["-C", "origin", "commit", "-q", "-m", "one"]);
    git(&herd, &["clone", "-q", "--bare", "origin", "origin.git"]);
    herd
}

fn start(client: &mut DaemonClient, how: &str) -> WorkflowRunId {
    let mut wanted = WorkflowRunRequest::manual_run("flow");
    wanted.inputs.insert("how".to_owned(), how.into());
    wanted.trigger_id = Some("acme/web#7".to_owned());
    let order = WorkflowOperation::Run(wanted);
    let command = DaemonCommand::Workflow { order, by: "the test".to_owned() };
    match client.send_command(&command, None).unwrap() {
        CommandReply::WorkflowRun { run, is_new: true, .. } => run,
        other => panic!("{other:?}"),
    }
}

/// Waits for the end of a run. Returns the outputs of its phases.
#[track_caller]
fn ends(herd: &Herd, run: &WorkflowRunId, status: WorkflowRunStatus) -> Vec<String> {
    wait_for("the end of the run", || {
        let status = herd.reader().workflow_run(run).unwrap().unwrap().head.status;
        status.is_final().then_some(())
    });
    let row = herd.reader().workflow_run(run).unwrap().unwrap();
    assert_eq!(row.head.status, status, "{:?}", row.head.error);
    let journal = herd.reader().journal(run).unwrap();
    journal.into_iter().map(|entry| entry.output.unwrap_or_default()).collect()
}

/// Returns the clones in the state directory, by the run in their name.
fn clones(herd: &Herd) -> Vec<String> {
    let entries = herd.dir().worktrees().read_dir_utf8().into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_owned());
    names.filter(|name| name.starts_with("per-")).collect()
}

#[test]
fn each_run_has_a_clone_and_sees_the_files_of_no_other() {
    let herd = herd("per-run");
    let (_life, mut client) = herd.begin(&[]);
    let mut places = Vec::new();
    for _ in 0..2 {
        let run = start(&mut client, "good");
        let said = ends(&herd, &run, WorkflowRunStatus::Succeeded);
        let lines: Vec<&str> = said[0].lines().collect();
        assert_eq!(lines[1..], ["content", "file"], "nothing of another run is there");
        // All phases, commands and agents, work in the same clone.
        assert_eq!(said[1].lines().collect::<Vec<_>>(), [lines[0], "made"]);
        assert_eq!(said[2].lines().collect::<Vec<_>>(), ["content", "file", "made"]);
        assert_eq!(said[3].trim(), "agent");
        assert!(lines[0].contains(&format!("/worktrees/per-run.{run}.")), "{lines:?}");
        places.push(lines[0].to_owned());
    }
    assert_ne!(places[0], places[1]);
    assert!(!herd.fleet.file("work").exists(), "the agent's own directory is not needed");
}

#[test]
fn a_failed_run_is_retried_in_its_clone_and_the_next_one_removes_it() {
    let herd = herd("per-target-recreate");
    let (mut life, mut client) = herd.begin(&[]);
    let first = start(&mut client, "bad");
    ends(&herd, &first, WorkflowRunStatus::Failed);
    // The clone survives the daemon.
    life.kill();
    let (_life, mut client) = herd.begin(&[]);
    let retry = WorkflowOperation::Retry { run: first.clone(), from: Some("second".to_owned()) };
    client
        .send_command(&DaemonCommand::Workflow { order: retry, by: "the test".to_owned() }, None)
        .unwrap();
    let said = ends(&herd, &first, WorkflowRunStatus::Failed);
    // The second phase was executed twice, in the same clone.
    let second = |text: &&String| text.contains("/worktrees/") && text.ends_with("\nmade");
    assert_eq!(said.iter().filter(second).count(), 2, "{said:?}");
    assert!(matches!(&clones(&herd)[..], [one] if one.contains(first.as_str())));

    let second = start(&mut client, "good");
    let said = ends(&herd, &second, WorkflowRunStatus::Succeeded);
    assert_eq!(said[0].lines().skip(1).collect::<Vec<_>>(), ["content", "file"]);
    assert!(matches!(&clones(&herd)[..], [one] if one.contains(second.as_str())));
}

#[test]
fn a_run_whose_repository_cannot_be_cloned_fails_with_the_reason() {
    let herd = herd("per-run");
    std::fs::remove_dir_all(herd.fleet.file("origin.git")).unwrap();
    let (_life, mut client) = herd.begin(&[]);
    let run = start(&mut client, "good");
    ends(&herd, &run, WorkflowRunStatus::Failed);
    let row = herd.reader().workflow_run(&run).unwrap().unwrap();
    let error = row.head.error.unwrap();
    assert!(error.contains("git cannot clone") && error.contains("origin.git"), "{error}");
    assert_eq!(clones(&herd), Vec::<String>::new());
}
