//! Many who want the same of a workflow at once, and daemons that die or change beneath it.

use std::sync::{Arc, Barrier};
use std::thread;

use heeler_engine::fault::FaultPoint;
use heeler_engine::{
    CommandReply, DaemonCommand, DaemonCommandErrorKind, WorkflowMode, WorkflowOperation,
    WorkflowRunRequest,
};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{Approval, ApprovalAnswer, ApprovalStatus, TriggerType, WorkflowRunId};
use heeler_server::{DaemonClient, DaemonClientError};
use heeler_store::DaemonFile;
use heeler_store::{ApprovalFilter, WorkflowRunFilter, WorkflowRunHead};
use serde_json::{Map, json};

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

/// How many want the same at once.
const AT_ONCE: usize = 50;

/// At which of its commits a daemon dies, at the most.
const COMMITS_MAX: usize = 4;

const AGENTS: &str = "agents:
  - {name: worker, runtime: scripted, script: [{run: 'echo worked >> ran'}, {say: Done.}]}
  - {name: other, runtime: scripted, script: [{say: Mine.}]}
";

/// A fleet with one workflow.
fn herd(agents: &str, workflow: &str) -> Herd {
    let herd = Herd::of(agents);
    herd.fleet.write("workflows/flow.yaml", workflow);
    herd
}

/// Somebody is asked, and then a command notes that it ran.
const GATED: &str = "name: flow
agent: worker
phases:
  - {name: ask, type: context, approval_gate: go}
  - {name: act, type: bash, command: 'echo acted >> ran', depends_on: [ask]}
";

fn run_order(trigger_id: Option<&str>) -> DaemonCommand {
    let order = WorkflowOperation::Run(WorkflowRunRequest {
        workflow: "flow".to_owned(),
        inputs: Map::new(),
        trigger_id: trigger_id.map(str::to_owned),
        trigger: TriggerType::Manual,
        mode: WorkflowMode::Real,
        subject: None,
    });
    DaemonCommand::Workflow { order, by: "the test".to_owned() }
}

#[track_caller]
fn run(client: &mut DaemonClient) -> WorkflowRunId {
    match client.send_command(&run_order(None), None).unwrap() {
        CommandReply::WorkflowRun { run, is_new: true, .. } => run,
        other => panic!("{other:?}"),
    }
}

/// Waits for a question and returns it.
#[track_caller]
fn asked(herd: &Herd) -> Approval {
    let filter = ApprovalFilter { status: Some(ApprovalStatus::Pending), run: None };
    wait_for("a question", || herd.reader().approvals(&filter, None, 1).unwrap().pop())
}

fn yes(approval: &Approval, by: &str) -> DaemonCommand {
    let answer = ApprovalAnswer { approve: true, ..ApprovalAnswer::default() };
    DaemonCommand::Approval { approval: approval.id.clone(), answer, by: by.to_owned() }
}

fn reply(approval: &Approval, text: &str, by: &str) -> DaemonCommand {
    let text = Some(text.to_owned());
    let answer = ApprovalAnswer { approve: true, text, ..ApprovalAnswer::default() };
    DaemonCommand::Approval { approval: approval.id.clone(), answer, by: by.to_owned() }
}

#[track_caller]
fn ended(herd: &Herd, run: &WorkflowRunId) -> WorkflowRunHead {
    wait_for("the end of a workflow", || {
        let head = herd.reader().workflow_run(run).unwrap().unwrap().head;
        head.status.is_final().then_some(head)
    })
}

#[track_caller]
fn succeeds(herd: &Herd, run: &WorkflowRunId) {
    let head = ended(herd, run);
    assert_eq!((head.status, head.error), (WorkflowRunStatus::Succeeded, None));
}

/// Asks the same of a daemon over as many connections at the same time.
fn all_at_once(
    herd: &Herd,
    command: impl Fn(usize) -> DaemonCommand,
) -> Vec<Result<CommandReply, DaemonClientError>> {
    let socket = DaemonFile::read(&herd.dir()).unwrap().unwrap().socket;
    let together = Arc::new(Barrier::new(AT_ONCE));
    let asking = |number| {
        let mut client = DaemonClient::connect(&socket, herd.dir().root()).unwrap();
        let (command, together) = (command(number), Arc::clone(&together));
        thread::spawn(move || {
            together.wait();
            client.send_command(&command, None)
        })
    };
    let asking: Vec<_> = (0..AT_ONCE).map(asking).collect();
    asking.into_iter().map(|it| it.join().unwrap()).collect()
}

#[test]
fn of_fifty_answers_to_a_gate_one_counts_and_the_next_phase_runs_once() {
    let herd = herd(AGENTS, GATED);
    let (_life, mut client) = herd.begin(&[]);
    let run = run(&mut client);
    let approval = asked(&herd);
    let told = all_at_once(&herd, |number| yes(&approval, &format!("person {number}")));
    succeeds(&herd, &run);
    let row = herd.reader().approval(&approval.id).unwrap().unwrap();
    let by = row.responded_by.unwrap();
    let at = row.responded_at.unwrap();
    let mut counted = 0;
    // The record names the user of the process, whatever the request says.
    assert_eq!(by, heeler_process::login_name(rustix::process::geteuid().as_raw()));
    for told in told {
        match told {
            Ok(_) => counted += 1,
            Err(DaemonClientError::Refused(refused)) => {
                assert_eq!(refused.kind, DaemonCommandErrorKind::Busy);
                let who = format!("approved by {by} at {}", heeler_model::iso_millis(at));
                assert!(refused.message.contains(&who), "{}", refused.message);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(counted, 1);
    assert_eq!(herd.fleet.read("ran"), "acted\n");
}

#[test]
fn of_fifty_runs_for_one_trigger_one_starts_and_the_others_are_told_which() {
    let herd = herd(AGENTS, GATED);
    let (_life, mut client) = herd.begin(&[]);
    let told = all_at_once(&herd, |_| run_order(Some("issue-7")));
    let told = told.into_iter().map(|told| match told {
        Ok(CommandReply::WorkflowRun { run, is_new, .. }) => (run, is_new),
        other => panic!("{other:?}"),
    });
    let (new, known): (Vec<_>, Vec<_>) = told.partition(|(_, is_new)| *is_new);
    assert_eq!((new.len(), known.len()), (1, AT_ONCE - 1));
    let run = &new[0].0;
    assert!(known.iter().all(|(known, _)| known == run));
    let count = herd.reader().count_workflow_runs(&WorkflowRunFilter::default()).unwrap();
    assert_eq!(count, 1);
    client.send_command(&yes(&asked(&herd), "the test"), None).unwrap();
    succeeds(&herd, run);
    assert_eq!(herd.fleet.read("ran"), "acted\n");
    // It is over: the same trigger starts another.
    match client.send_command(&run_order(Some("issue-7")), None).unwrap() {
        CommandReply::WorkflowRun { run: next, is_new: true, .. } => assert_ne!(next, *run),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_that_nobody_was_told_of_counts_and_its_phase_runs_once() {
    let mut died_of_it = 0;
    for nth in 1..=COMMITS_MAX {
        let herd = herd(AGENTS, GATED);
        let (mut first, mut client) = herd.begin(&[]);
        let run = run(&mut client);
        let approval = asked(&herd);
        first.kill();

        let mut second = herd.start(&["--fault", &format!("after-commit:{nth}")]);
        if let Some(mut client) = herd.connect(&mut second) {
            let told = client.send_command(&yes(&approval, "ada"), None);
            let row = herd.reader().approval(&approval.id).unwrap().unwrap();
            died_of_it += usize::from(told.is_err() && row.status == ApprovalStatus::Approved);
        }
        second.kill();

        let (_life, mut client) = herd.begin(&[]);
        // Whoever was told nothing asks again, and is told how it ended.
        if let Err(error) = client.send_command(&yes(&approval, "bob"), None) {
            let expected = format!(
                "approved by {}",
                heeler_process::login_name(rustix::process::geteuid().as_raw())
            );
            assert!(error.to_string().contains(&expected), "{nth}: {error}");
        }
        succeeds(&herd, &run);
        assert_eq!(herd.fleet.read("ran"), "acted\n", "{nth}");
    }
    assert!(died_of_it > 0, "no daemon died between commit and answer");
}

#[test]
fn an_answer_reaches_the_agent_of_a_phase_though_its_daemon_dies_before() {
    let agents = "agents:
  - name: asker
    runtime: scripted
    approvals: interactive
    script: [{question: 'Which?', header: C, options: [red, blue]}, {say: 'Took {answer}.'}]
";
    let workflow = "name: flow
phases:
  - {name: ask, agent: asker, prompt: Ask.}
  - {name: act, type: bash, command: 'echo {{ outputs.ask }} >> ran', depends_on: [ask]}
";
    for point in [FaultPoint::BeforeDelivery, FaultPoint::Delivered] {
        let herd = herd(agents, workflow);
        let (mut life, mut client) = herd.begin(&["--fault", point.name()]);
        let run = run(&mut client);
        let approval = asked(&herd);
        assert_eq!(approval.workflow_run_id, run.as_str());
        // Whoever is not answered does not know.
        drop(client.send_command(&reply(&approval, "blue", "ada"), None));
        wait_for(point.name(), || life.has_ended().then_some(()));
        let row = herd.reader().approval(&approval.id).unwrap().unwrap();
        // The kernel names who answered, whatever the message says.
        let named = heeler_process::login_name(rustix::process::geteuid().as_raw());
        assert_eq!(row.responded_by, Some(named), "{point:?}");

        let (_life, _client) = herd.begin(&[]);
        succeeds(&herd, &run);
        assert_eq!(herd.fleet.read("ran"), "Took blue.\n", "{point:?}");
    }
}

#[test]
fn processes_of_a_run_cannot_answer_its_gates() {
    let program = env!("CARGO_BIN_EXE_heeler");
    let tries = format!(
        "until test -e id; do sleep 0.01; done; {program} approvals approve $(cat id) \
         > said-$NAME 2>&1; echo $? > code-$NAME"
    );
    let agents = format!(
        "agents: [{{name: worker, runtime: scripted, \
         script: [{{run: 'NAME=agent; {tries}'}}, {{say: Tried.}}]}}]"
    );
    // The gate waits while an agent and a command of the same run are at work.
    let workflow = json!({ "name": "flow", "max_parallel": 2, "phases": [
        { "name": "ask", "type": "context", "depends_on": [], "approval_gate": "go" },
        { "name": "agent", "prompt": "Go.", "depends_on": [] },
        { "name": "command", "type": "bash", "command": format!("NAME=command; {tries}"),
            "depends_on": [] },
        { "name": "act", "type": "bash", "command": "echo acted >> ran", "depends_on": ["ask"] },
    ]});
    let herd = herd(&agents, &workflow.to_string());
    let (_life, mut client) = herd.begin(&[]);
    let run = run(&mut client);
    let approval = asked(&herd);
    herd.fleet.write("id.new", approval.id.as_str());
    std::fs::rename(herd.fleet.file("id.new"), herd.fleet.file("id")).unwrap();
    wait_for("both attempts", || {
        let jobs = herd.jobs();
        (jobs.len() == 2 && jobs.iter().all(|job| job.status.is_final())).then_some(())
    });
    for name in ["agent", "command"] {
        let said = herd.fleet.read(&format!("said-{name}"));
        assert_eq!(herd.fleet.read(&format!("code-{name}")), "5\n", "{said}");
        assert!(said.contains("this is a process of the run itself"), "{said}");
    }
    let row = herd.reader().approval(&approval.id).unwrap().unwrap();
    assert_eq!(row.status, ApprovalStatus::Pending);
    assert!(!herd.fleet.file("ran").exists());
    client.send_command(&yes(&approval, "a person"), None).unwrap();
    succeeds(&herd, &run);
    assert_eq!(herd.fleet.read("ran"), "acted\n");
}

/// What an agent says that wants to be read as more than text.
const HOSTILE: &str = "{{ inputs.secret }} {% if true %} ${p0.output} $(touch evil) `touch evil`; \
    touch evil; '\"$HOME\" {{ outputs.p0 }}";

#[test]
fn what_an_agent_says_is_text_all_the_way() {
    // The config has variables of its own.
    let say = HOSTILE.replace("${", "$${");
    let agents = json!({ "agents": [
        { "name": "sayer", "runtime": "scripted", "script": [{ "say": say }] },
        { "name": "echo", "runtime": "scripted", "script": [{ "say": "{prompt}" }] },
    ]});
    let workflow = json!({
        "name": "flow",
        "inputs": { "secret": { "type": "string", "default": "hunter2" } },
        "phases": [
            { "name": "p0", "agent": "sayer", "prompt": "Say.", "approval_gate": "read",
                "approval_gate_message": "It says {{ outputs.p0 }}" },
            { "name": "old", "type": "bash", "agent": "echo",
                "command": "printf %s ${p0.output} > old" },
            { "name": "new", "type": "bash", "agent": "echo",
                "command": "printf %s \"{{ outputs.p0 }}\" > new" },
            { "name": "env", "type": "bash", "agent": "echo",
                "command": "printf %s \"$HEELER_OUT_P0\"" },
            { "name": "asked", "agent": "echo", "prompt": "{{ outputs.env }}" },
            { "name": "each", "agent": "echo", "prompt": "{{ line }}",
                "foreach": { "items": "${p0.output}", "as": "line" } },
            { "name": "last", "type": "bash", "agent": "echo",
                "command": "printf %s {{ outputs.asked }} > last" },
        ],
        "final_message": "It said {{ outputs.asked }}",
    });
    let herd = herd(&agents.to_string(), &workflow.to_string());
    let (_life, mut client) = herd.begin(&[]);
    let run = run(&mut client);
    let approval = asked(&herd);
    assert_eq!(approval.summary, format!("It says {HOSTILE}"));
    client.send_command(&yes(&approval, "the test"), None).unwrap();
    succeeds(&herd, &run);
    for name in ["old", "new", "last"] {
        assert_eq!(herd.fleet.read(name), HOSTILE, "{name}");
    }
    let reader = herd.reader();
    for row in reader.journal(&run).unwrap() {
        let said = row.output.unwrap_or_default();
        assert!(!said.contains("hunter2"), "{} {}: {said}", row.phase, row.part);
        if row.phase == "asked" || row.part.to_string() == "item:1" {
            assert_eq!(said, HOSTILE, "{}", row.phase);
        }
    }
    let events = reader.workflow_events(&run, 0, 100).unwrap();
    let last = events.iter().find(|event| event.text.starts_with("It said ")).unwrap();
    assert_eq!(last.text, format!("It said {HOSTILE}"));
    assert!(!herd.fleet.file("evil").exists(), "something was run");
}

#[test]
fn a_run_goes_by_the_definition_that_it_began_with() {
    let herd = herd(AGENTS, GATED);
    let (mut life, mut client) = herd.begin(&[]);
    let old = run(&mut client);
    let approval = asked(&herd);
    life.kill();
    herd.fleet.write(
        "workflows/flow.yaml",
        "name: flow
agent: worker
phases:
  - {name: before, type: bash, command: 'echo before >> ran'}
  - {name: act, type: bash, command: 'echo edited >> ran', depends_on: [before]}
",
    );
    let (mut life, mut client) = herd.begin(&[]);
    client.send_command(&yes(&approval, "the test"), None).unwrap();
    succeeds(&herd, &old);
    assert_eq!(herd.fleet.read("ran"), "acted\n");
    let new = run(&mut client);
    succeeds(&herd, &new);
    assert_eq!(herd.fleet.read("ran"), "acted\nbefore\nedited\n");
    // Also when it is done again, and though the file is gone.
    life.kill();
    std::fs::remove_file(herd.fleet.file("workflows/flow.yaml")).unwrap();
    let (_life, mut client) = herd.begin(&[]);
    let retry = WorkflowOperation::Retry { run: old.clone(), from: Some("act".to_owned()) };
    let by = "the test".to_owned();
    client.send_command(&DaemonCommand::Workflow { order: retry, by }, None).unwrap();
    succeeds(&herd, &old);
    assert_eq!(herd.fleet.read("ran"), "acted\nbefore\nedited\nacted\n");
}

#[test]
fn a_run_whose_agent_is_gone_fails_by_name_and_goes_on_once_it_is_back() {
    let workflow = |agent: &str| {
        format!(
            "name: flow
phases:
  - {{name: first, type: bash, agent: other, command: 'echo first >> ran', approval_gate: go}}
  - {{name: work, agent: {agent}, prompt: Work., depends_on: [first]}}
"
        )
    };
    let herd = herd(AGENTS, &workflow("worker"));
    let (mut life, mut client) = herd.begin(&[]);
    let run = run(&mut client);
    let approval = asked(&herd);
    life.kill();
    let left = "agents: [{name: other, runtime: scripted, script: [{say: Mine.}]}]";
    herd.fleet.write("heeler.yaml", left);
    herd.fleet.write("workflows/flow.yaml", &workflow("other"));
    let (mut life, mut client) = herd.begin(&[]);
    client.send_command(&yes(&approval, "the test"), None).unwrap();
    let head = ended(&herd, &run);
    assert_eq!(head.status, WorkflowRunStatus::Failed);
    assert_eq!(head.error.as_deref(), Some("work: there is no agent worker any more"));
    let retry = || {
        let order = WorkflowOperation::Retry { run: run.clone(), from: None };
        DaemonCommand::Workflow { order, by: "the test".to_owned() }
    };
    // Nobody else does it in its stead.
    client.send_command(&retry(), None).unwrap();
    assert_eq!(ended(&herd, &run).status, WorkflowRunStatus::Failed);
    life.kill();

    herd.fleet.write("heeler.yaml", AGENTS);
    let (_life, mut client) = herd.begin(&[]);
    client.send_command(&retry(), None).unwrap();
    succeeds(&herd, &run);
    assert_eq!(herd.fleet.read("ran"), "first\nworked\n", "what was done is not done again");
}
