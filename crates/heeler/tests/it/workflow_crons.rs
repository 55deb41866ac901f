//! Cron files: workflows that the clock starts, as schedules of the agent that does them.

use heeler_engine::{CommandReply, DaemonCommand, ScheduleChange, WorkflowOperation};
use heeler_model::ApprovalAnswer;
use heeler_server::DaemonClient;
use heeler_store::{WorkflowRunFilter, WorkflowRunHead};

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

fn herd(phase: &str) -> Herd {
    let herd = Herd::of(
        "agents:\n  - {name: coder, runtime: scripted, script: [{say: hi}], \
         schedules: {hourly: {interval: 1h, prompt: x}}}\n",
    );
    herd.fleet.write(
        "workflows/rounds.yaml",
        &format!("name: rounds\ninputs: {{who: {{default: nobody}}}}\nphases:\n  - {phase}\n"),
    );
    for name in ["nightly", "hourly"] {
        herd.fleet.write(
            &format!("workflows/{name}.yaml"),
            &format!(
                "kind: cron\nname: {name}\nschedule: '0 3 * * *'\nworkflow: rounds\n\
                 context: {{who: {name}}}\n"
            ),
        );
    }
    herd
}

fn change(client: &mut DaemonClient, schedule: &str, change: ScheduleChange) -> CommandReply {
    let (agent, schedule) = ("coder".to_owned(), schedule.to_owned());
    client
        .send_command(
            &DaemonCommand::Schedule { agent, schedule, change, by: "ada".to_owned() },
            None,
        )
        .unwrap()
}

fn runs(herd: &Herd) -> Vec<WorkflowRunHead> {
    herd.reader().workflow_runs(&WorkflowRunFilter::default(), None, 100).unwrap()
}

#[test]
fn a_cron_file_starts_its_workflow_at_its_times_and_by_hand() {
    let herd = herd("{name: note, type: bash, command: 'echo {{ inputs.who }} >> ran'}");
    let (mut life, mut client) = herd.begin(&[]);
    change(&mut client, "nightly", ScheduleChange::Set { text: "1s".to_owned() });
    wait_for("two runs by the clock", || (runs(&herd).len() >= 2).then_some(()));
    change(&mut client, "nightly", ScheduleChange::Disable);
    let reader = herd.reader();
    let rows = reader.cron_overrides().unwrap();
    let known = rows.iter().map(|row| (row.name.as_str(), row.enabled, row.schedule.as_deref()));
    assert_eq!(known.collect::<Vec<_>>(), [("nightly", false, Some("1s"))], "as Last Light has it");
    let by_clock = runs(&herd);
    for run in &by_clock {
        assert_eq!((run.workflow.as_str(), run.trigger_type.as_deref()), ("rounds", Some("cron")));
        let id = run.id.as_str().parse().unwrap();
        let due = reader.occurrence_of_job(&id).unwrap();
        assert_eq!(due.unwrap().schedule, "nightly", "its due time is on record");
    }

    // What was changed holds for the next daemon too.
    life.kill();
    let (_life, mut client) = herd.begin(&[]);
    // The agent has a schedule of this name.
    let begun = change(&mut client, "hourly-workflow", ScheduleChange::Trigger);
    let CommandReply::WorkflowRun { run, is_new: true, .. } = begun else { panic!("{begun:?}") };
    wait_for("its end", || {
        herd.reader().workflow_run(&run).unwrap().filter(|row| row.head.status.is_final())
    });
    assert_eq!(runs(&herd).len(), by_clock.len() + 1, "the other is switched off");
    let ran = std::fs::read_to_string(herd.fleet.file("ran")).unwrap();
    assert_eq!(ran.lines().last(), Some("hourly"), "{ran}");
    change(&mut client, "nightly", ScheduleChange::Reset);
    assert_eq!(herd.reader().cron_overrides().unwrap(), []);
}

#[test]
fn a_due_time_of_a_workflow_that_is_still_at_it_is_skipped_on_record() {
    let herd = herd("{name: ask, type: context, approval_gate: go}");
    let (_life, mut client) = herd.begin(&[]);
    change(&mut client, "nightly", ScheduleChange::Set { text: "1s".to_owned() });
    let skips = || herd.reader().skips("coder", "nightly", None, 10).unwrap();
    wait_for("a skip", || skips().iter().any(|skip| skip.skip.count >= 2).then_some(()));
    let one = runs(&herd);
    assert_eq!(one.len(), 1);
    assert_eq!(skips()[0].skip.reason.as_str(), "overlap");
    let pending = herd.reader().pending_approvals_of(one[0].id.as_str()).unwrap();
    let answer = ApprovalAnswer { approve: true, ..ApprovalAnswer::default() };
    let (approval, by) = (pending[0].id.clone(), "ada".to_owned());
    client.send_command(&DaemonCommand::Approval { approval, answer, by }, None).unwrap();
    wait_for("the next run", || (runs(&herd).len() >= 2).then_some(()));

    // One that is switched off is skipped too.
    let order = WorkflowOperation::Disable { workflow: "rounds".to_owned() };
    client.send_command(&DaemonCommand::Workflow { order, by: "ada".to_owned() }, None).unwrap();
    for run in runs(&herd).iter().filter(|run| !run.status.is_final()) {
        let order = WorkflowOperation::Cancel { run: run.id.clone(), now: false };
        client
            .send_command(&DaemonCommand::Workflow { order, by: "ada".to_owned() }, None)
            .unwrap();
    }
    let is_off = || skips().iter().any(|skip| skip.skip.reason.as_str() == "disabled");
    wait_for("a skip because it is off", || is_off().then_some(()));
}
