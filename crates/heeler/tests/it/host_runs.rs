//! Runs on the host that their agent names: the leader decides, the host executes, and every host has the
//! rows.

use heeler_engine::DaemonCommand;
use heeler_model::{JobId, JobStatus, RunId};
use heeler_testkit::PostgresCluster;

use crate::daemon_kills::Herd;
use crate::daemon_lives::{ask, wanted};
use crate::hosts::{cluster, json_of, ran, send, status, stop, wait_for_leader};
use crate::trigger::wait_for;

/// An agent on the second host that waits at its gate, and a short one there.
const AGENTS: &str = "agents:
  - {name: there, host: beta, runtime: scripted,
     script: [{say: Before the gate.}, {run: 'echo $HEELER_RUN >> ran; read line < gate'},
       {say: Through the gate.}]}
  - {name: brief, host: beta, runtime: scripted,
     script: [{run: 'echo $HEELER_RUN >> ran'}, {say: Done there.}]}
";

fn herd(cluster: &PostgresCluster) -> Herd {
    Herd::of(&format!("store: {}\nweb: {{enabled: false}}\n{AGENTS}", cluster.url("fleet")))
}

/// Returns the transcript of a job, as a host has it.
fn rows(herd: &Herd, job: &JobId) -> String {
    std::fs::read_to_string(herd.dir().job_transcript(job)).unwrap_or_default()
}

fn cancel(job: &JobId) -> DaemonCommand {
    DaemonCommand::Cancel { job: job.clone(), now: false, by: "a test".to_owned() }
}

#[track_caller]
fn wait_for_runs(herd: &Herd, count: usize) {
    wait_for("the start of a run", || (ran(herd).len() >= count).then_some(()));
    assert_eq!(ran(herd).len(), count, "no run is started twice");
}

/// Waits until both hosts have the same rows of a job that has ended.
#[track_caller]
fn wait_for_copy(one: &Herd, other: &Herd, job: &JobId) {
    wait_for("the same rows on both hosts", || {
        let own = rows(one, job);
        (!own.is_empty() && own == rows(other, job)).then_some(())
    });
}

#[test]
fn an_agent_works_on_the_host_that_it_names() {
    let cluster = cluster();
    let (first, mut second) = (herd(&cluster), herd(&cluster));
    let (alpha, mut client) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");

    // While the host is not there, the job waits and says why.
    let job = ask(&mut client, wanted("there"));
    let queue = status(&mut client).queue;
    assert!(queue[0].reason.contains("host `beta`, which is not on record"), "{queue:?}");
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    wait_for_runs(&second, 1);
    assert_eq!(first.reader().runs_of_job(&job).unwrap()[0].host, "beta");
    assert!(first.runners().is_empty() && ran(&first).is_empty());
    // Its rows are on the leader while it runs.
    wait_for("the first row", || rows(&first, &job).contains("Before the gate.").then_some(()));
    second.let_through(1);
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    wait_for_copy(&second, &first, &job);
    assert!(rows(&first, &job).contains("Through the gate."));
    let session = first.job(&job).head.session_id.unwrap();
    let session = first.reader().session_by_agent_id(&session).unwrap().unwrap();
    let log = session.log_path.unwrap();
    wait_for("the session's transcript", || {
        let read = |herd: &Herd| std::fs::read(herd.dir().root().join(&log)).ok();
        let own = read(&second)?;
        (Some(own) == read(&first)).then_some(())
    });

    // A cancellation reaches the run by its record.
    let job = ask(&mut client, wanted("there"));
    wait_for_runs(&second, 2);
    client.send_command(&cancel(&job), None).unwrap();
    assert_eq!(first.ends(&job).head.status, JobStatus::Cancelled);

    // The host's daemon dies; the agent works on, and the next daemon reports its end.
    let job = ask(&mut client, wanted("there"));
    wait_for_runs(&second, 3);
    beta.kill();
    second.let_through(1);
    let (beta, mut standby) = second.begin(&[]);
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    wait_for_copy(&second, &first, &job);

    // Without its host a job waits; when the host returns it is executed.
    stop(&mut standby, beta);
    let job = ask(&mut client, wanted("brief"));
    let queue = status(&mut client).queue;
    assert!(queue[0].reason.contains("host `beta`, which is away"), "{queue:?}");
    let (beta, mut standby) = second.begin(&[]);
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    assert_eq!(ran(&second).len(), 4);
    stop(&mut standby, beta);
    stop(&mut client, alpha);
}

#[test]
fn a_run_of_a_lost_host_ends_and_its_late_result_is_refused_and_listed() {
    let cluster = cluster();
    let (first, mut second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, mut client) = first.begin(&["--host", "alpha"]);
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    wait_for_leader(&first, "alpha");
    let job = ask(&mut client, wanted("there"));
    wait_for_runs(&second, 1);
    beta.kill();
    wait_for("beta is away", || {
        let output = first.command("host").args(["lost", "beta", "--yes"]).output().unwrap();
        output.status.success().then_some(())
    });
    let ended = first.ends(&job);
    assert!(ended.error.as_deref().is_some_and(|error| error.contains("given up")), "{ended:?}");
    let run: RunId = first.reader().runs_of_job(&job).unwrap()[0].id;
    assert_eq!(first.reader().run_term(run).unwrap(), 1);

    // A report under the earlier term, as a host sends it that was paused.
    let link = heeler_store::HostLink::connect(&second.dir()).unwrap();
    link.send_report((run, 0), "exit", "{}").unwrap();
    let part = heeler_store::SharedPart {
        run,
        term: 0,
        path: &format!("jobs/{job}.jsonl"),
        start: 0,
        bytes: b"{}\n",
    };
    assert_eq!(link.send_part(&part).unwrap(), heeler_store::PartReceipt::Fenced);
    let refused = wait_for("the refusal", || {
        let shown = json_of(&first, &["host", "show", "beta"]);
        let refused = shown["refused"].as_array().unwrap().clone();
        (!refused.is_empty()).then_some(refused)
    });
    assert_eq!(refused[0]["run"], run.to_string(), "{refused:?}");
    drop(link);
    // The host returns, and ends what is left.
    let (beta, mut standby) = second.begin(&[]);
    wait_for("the end of the old run", || second.runners().is_empty().then_some(()));
    assert_eq!(first.job(&job).head.status, JobStatus::Failed);
    second.let_through(1);
    let next = send(&first, &mut alpha, "brief");
    assert_eq!(first.ends(&next).head.status, JobStatus::Completed);
    stop(&mut standby, beta);
    stop(&mut client, alpha);
}

#[test]
fn a_host_killed_at_any_point_starts_each_job_once_and_loses_no_row() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (alpha, mut client) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, mut standby) = second.begin(&["--host", "beta"]);
    stop(&mut standby, beta);
    for (count, point) in ["before-claim", "run-claimed", "part-shipped"].into_iter().enumerate() {
        let mut beta = second.start(&["--fault", point]);
        let job = ask(&mut client, wanted("brief"));
        wait_for(&format!("a death at {point}"), || beta.has_ended().then_some(()));
        let (beta, mut standby) = second.begin(&[]);
        assert_eq!(first.ends(&job).head.status, JobStatus::Completed, "{point}");
        assert_eq!(ran(&second).len(), count + 1, "{point}: {job} was started once");
        wait_for_copy(&second, &first, &job);
        stop(&mut standby, beta);
    }
    stop(&mut client, alpha);
}
