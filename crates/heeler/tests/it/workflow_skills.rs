//! Skills of workflows: what the agent is told, and the files that it may read.

use heeler_engine::fault::FaultPoint;
use heeler_engine::{CommandReply, DaemonCommand, WorkflowOperation, WorkflowRunRequest};
use heeler_model::WorkflowRunId;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_server::DaemonClient;
use heeler_store::WorkflowRunFilter;

use crate::daemon_ends::{dies, dying_at};
use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

/// Reads the folder of the skill from the prompt, then a reference, and runs a script.
const AGENT: &str = r#"agents:
  - name: coder
    runtime: scripted
    script:
      - run: |
          dir=$(printf '%s\n' "$SCRIPT_PROMPT" | sed -n 's/^The files of the skill `triage` are in \(.*\) (read-only): .*/\1/p')
          printf '%s\n' "$SCRIPT_PROMPT" > prompt.txt
          cat "$dir/references/format.md"
          "$dir/scripts/hello.sh"
          stat -c '%a' "$dir/references/format.md" "$dir/scripts/hello.sh"
      - say: "{output}"
"#;

const WORKFLOW: &str = "name: flow\nphases:\n  - {name: triage, skill: triage}\n";

fn herd() -> Herd {
    let herd = Herd::of(AGENT);
    herd.fleet.write("workflows/flow.yaml", WORKFLOW);
    let skill = |name: &str, text: &str| {
        herd.fleet.write(&format!("skills/triage/{name}"), text);
    };
    skill("SKILL.md", "---\nname: triage\n---\nTriage it. See references/format.md.\n");
    skill("references/format.md", "Use three lines.\n");
    skill("scripts/hello.sh", "#!/bin/sh\necho hello\n");
    skill(".hidden", "not told");
    herd
}

fn start_command() -> DaemonCommand {
    let mut wanted = WorkflowRunRequest::manual_run("flow");
    wanted.inputs.insert("issueNumber".to_owned(), 7.into());
    wanted.inputs.insert("title".to_owned(), "It fails".into());
    let order = WorkflowOperation::Run(wanted);
    DaemonCommand::Workflow { order, by: "the test".to_owned() }
}

fn start(client: &mut DaemonClient) -> WorkflowRunId {
    match client.send_command(&start_command(), None).unwrap() {
        CommandReply::WorkflowRun { run, .. } => run,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn succeeds(herd: &Herd, run: &WorkflowRunId) {
    wait_for("the end of the run", || {
        let status = herd.reader().workflow_run(run).unwrap().unwrap().head.status;
        status.is_final().then_some(())
    });
    let reader = herd.reader();
    let row = reader.workflow_run(run).unwrap().unwrap();
    assert_eq!(row.head.status, WorkflowRunStatus::Succeeded, "{:?}", row.head.error);
    let said = reader.journal(run).unwrap().pop().unwrap().output.unwrap();
    assert_eq!(said.trim(), "Use three lines.\nhello\n400\n500");
}

#[test]
fn a_skill_gives_the_agent_the_inputs_and_the_files_beside_it() {
    let herd = herd();
    let (_life, mut client) = herd.begin(&[]);
    let run = start(&mut client);
    succeeds(&herd, &run);
    let prompt = herd.fleet.read("prompt.txt");
    let context = "Triage it. See references/format.md.\n\nContext:\n";
    assert!(prompt.starts_with(context), "{prompt}");
    for line in ["issueNumber: 7", "title: It fails"] {
        assert!(prompt.lines().any(|it| it == line), "{prompt}");
    }
    assert!(prompt.contains("(read-only): references/format.md, scripts/hello.sh\n"), "{prompt}");
    assert!(!prompt.contains("hidden"), "{prompt}");
    // The run has the files with which it began.
    herd.fleet.write("skills/triage/references/format.md", "Changed.\n");
    let retry = WorkflowOperation::Retry { run: run.clone(), from: Some("triage".to_owned()) };
    let command = DaemonCommand::Workflow { order: retry, by: "the test".to_owned() };
    client.send_command(&command, None).unwrap();
    succeeds(&herd, &run);
}

#[test]
fn a_daemon_killed_after_it_placed_the_files_of_a_skill_places_them_again() {
    let herd = herd();
    let (mut life, mut client) = dying_at(&herd, FaultPoint::SkillsPlaced);
    // The daemon may die before its reply.
    let _reply = client.send_command(&start_command(), None);
    dies(&mut life, FaultPoint::SkillsPlaced);
    let (_life, _client) = herd.begin(&[]);
    let runs = herd.reader().workflow_runs(&WorkflowRunFilter::default(), None, 2).unwrap();
    assert_eq!(runs.len(), 1);
    succeeds(&herd, &runs[0].id);
}

#[test]
fn a_skill_with_a_file_that_is_no_text_is_refused_with_the_reason() {
    let herd = herd();
    std::fs::write(herd.fleet.file("skills/triage/references/logo.png"), [0xff, 0xfe]).unwrap();
    let told = herd.fleet.run(&["workflow", "validate", "flow"]).fails(2);
    assert!(told.contains("logo.png") && told.contains("not UTF-8"), "{told}");
}
