//! Runs on the host that their agent names: the leader decides, the host executes, and every host has the
//! rows.

use std::sync::atomic::{AtomicUsize, Ordering};

use heeler_engine::{CommandReply, DaemonCommand, DaemonStatus, StopMode};
use heeler_model::{JobId, JobStatus, RunId};
use heeler_store::{HostLink, PartReceipt, SharedPart};
use heeler_testkit::PostgresCluster;

use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::wanted;
use crate::hosts::{cluster, json_of, leader, ran, wait_for_leader};
use crate::trigger::wait_for;

/// An agent on the second host that waits at its gate, and a short one there.
const AGENTS: &str = "agents:
  - {name: there, host: beta, runtime: scripted,
     script: [{say: Before the gate.}, {run: 'echo $HEELER_RUN >> ran; read line < gate'},
       {say: Through the gate.}]}
  - {name: brief, host: beta, runtime: scripted,
     script: [{run: 'echo $HEELER_RUN >> ran'}, {say: Done there.}]}
  - {name: asker, host: beta, runtime: scripted, approvals: interactive,
     script: [{run: 'echo $HEELER_RUN >> ran', ask_permission: true},
       {question: 'Which?', header: C, options: [red, blue]}, {say: 'Took {answer}.'}]}
";

fn herd(cluster: &PostgresCluster) -> Herd {
    Herd::of(&format!("store: {}\nweb: {{enabled: false}}\n{AGENTS}", cluster.url("fleet")))
}

/// Returns the transcript of a job, as a host has it.
pub(crate) fn rows(herd: &Herd, job: &JobId) -> String {
    std::fs::read_to_string(herd.dir().job_transcript(job)).unwrap_or_default()
}

/// Sends a command, again if the host changes its role just then.
#[track_caller]
pub(crate) fn send(
    herd: &Herd,
    life: &mut Life,
    command: &DaemonCommand,
    key: Option<&str>,
) -> CommandReply {
    wait_for("an answer", || {
        let mut client = herd.connect(life)?;
        client.send_command_once(command, key, None).ok()
    })
}

#[track_caller]
pub(crate) fn trigger(herd: &Herd, life: &mut Life, agent: &str) -> JobId {
    // The key lets a repeated command create no second job.
    static KEYS: AtomicUsize = AtomicUsize::new(0);
    let key = format!("host-runs-{}", KEYS.fetch_add(1, Ordering::Relaxed));
    let command = DaemonCommand::Trigger(Box::new(wanted(agent)));
    match send(herd, life, &command, Some(&key)) {
        CommandReply::Job { job, .. } => job,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn status(herd: &Herd, life: &mut Life) -> DaemonStatus {
    match send(herd, life, &DaemonCommand::Status, None) {
        CommandReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn stop(herd: &Herd, mut life: Life) {
    let command = DaemonCommand::Stop(StopMode::Wait { timeout: None });
    wait_for("the end of a host", || {
        if let Some(mut client) = herd.connect(&mut life) {
            // It may change its role just then.
            let _refused = client.send_command(&command, None);
        }
        life.has_ended().then_some(())
    });
    assert!(life.child.wait().unwrap().success());
}

/// Waits until the other hosts know that a host is not there.
#[track_caller]
fn wait_for_absence(herd: &Herd, name: &str) {
    wait_for(&format!("{name} is away"), || {
        let hosts = herd.reader().hosts().unwrap();
        hosts.iter().any(|host| host.name == name && !host.is_alive).then_some(())
    });
}

/// Returns the reason for which the only queued job waits.
#[track_caller]
fn reason(herd: &Herd, life: &mut Life) -> String {
    wait_for("a queued job", || status(herd, life).queue.pop().map(|queued| queued.reason))
}

#[track_caller]
pub(crate) fn wait_for_runs(herd: &Herd, count: usize) {
    wait_for("the start of a run", || (ran(herd).len() >= count).then_some(()));
    assert_eq!(ran(herd).len(), count, "no run is started twice");
}

/// Waits until both hosts have the same rows of a job that has ended.
#[track_caller]
pub(crate) fn wait_for_copy(one: &Herd, other: &Herd, job: &JobId) {
    wait_for("the same rows on both hosts", || {
        let own = rows(one, job);
        (!own.is_empty() && own == rows(other, job)).then_some(())
    });
}

#[test]
fn an_agent_works_on_the_host_that_it_names() {
    let cluster = cluster();
    let (first, mut second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");

    // While the host is not there, the job waits and says why.
    let job = trigger(&first, &mut alpha, "there");
    let why = reason(&first, &mut alpha);
    assert!(why.contains("host `beta`, which is not on record"), "{why}");
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
    let job = trigger(&first, &mut alpha, "there");
    wait_for_runs(&second, 2);
    let cancel = DaemonCommand::Cancel { job: job.clone(), now: false, by: "a test".to_owned() };
    send(&first, &mut alpha, &cancel, None);
    assert_eq!(first.ends(&job).head.status, JobStatus::Cancelled);

    // The host's daemon dies; the agent works on, and the next daemon reports its end.
    let job = trigger(&first, &mut alpha, "there");
    wait_for_runs(&second, 3);
    beta.kill();
    second.let_through(1);
    let (beta, _) = second.begin(&[]);
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    wait_for_copy(&second, &first, &job);

    // Without its host a job waits; when the host returns it is executed.
    stop(&second, beta);
    wait_for_absence(&first, "beta");
    let job = trigger(&first, &mut alpha, "brief");
    let why = reason(&first, &mut alpha);
    assert!(why.contains("host `beta`, which is away"), "{why}");
    let (beta, _) = second.begin(&[]);
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    assert_eq!(ran(&second).len(), 4);
    stop(&second, beta);
    stop(&first, alpha);
}

/// Runs a command on a host until it succeeds: the host may change its role just then.
#[track_caller]
fn succeed(herd: &Herd, args: &[&str]) {
    wait_for(&format!("{args:?}"), || {
        let output = herd.command(args[0]).args(&args[1..]).output().unwrap();
        output.status.success().then_some(())
    });
}

/// Waits for an open question of a job; returns its ID.
#[track_caller]
fn wait_for_question(herd: &Herd, job: &JobId) -> String {
    wait_for("a question", || {
        let reader = herd.reader();
        let run = reader.runs_of_job(job).unwrap().pop()?.id;
        let asked = reader.undelivered_approvals(run).unwrap();
        let open = asked.into_iter().find(|approval| !approval.status.is_answered());
        open.map(|approval| approval.id.to_string())
    })
}

#[test]
fn questions_of_a_run_are_answered_on_another_host() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    let job = trigger(&first, &mut alpha, "asker");
    // A permission, given on the other host.
    let permission = wait_for_question(&first, &job);
    assert!(ran(&second).is_empty(), "the step waits for its permission");
    succeed(&first, &["approvals", "approve", &permission]);
    wait_for_runs(&second, 1);

    // A choice, made while the daemon of the run's host is dead.
    let choice = wait_for_question(&first, &job);
    beta.kill();
    wait_for_leader(&first, "alpha");
    succeed(&first, &["approvals", "reply", &choice, "blue"]);
    let (beta, _) = second.begin(&[]);
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    wait_for_copy(&second, &first, &job);
    assert!(rows(&first, &job).contains("Took blue."), "{}", rows(&first, &job));
    assert_eq!(ran(&second).len(), 1, "the step was executed once");
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_run_of_a_lost_host_ends_and_its_late_result_is_refused_and_listed() {
    let cluster = cluster();
    let (first, mut second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let (mut beta, _) = second.begin(&["--host", "beta"]);
    let job = trigger(&first, &mut alpha, "there");
    wait_for_runs(&second, 1);
    beta.kill();
    wait_for("beta is given up", || {
        let output = first.command("host").args(["lost", "beta", "--yes"]).output().unwrap();
        output.status.success().then_some(())
    });
    let ended = first.ends(&job);
    assert!(ended.error.as_deref().is_some_and(|error| error.contains("given up")), "{ended:?}");
    let run: RunId = first.reader().runs_of_job(&job).unwrap()[0].id;
    assert_eq!(first.reader().run_term(run).unwrap(), 1);

    // A report and rows under the earlier term, as a host sends them that was paused.
    let link = HostLink::connect(&second.dir()).unwrap();
    link.send_report((run, 0), "exit", "{}").unwrap();
    let path = format!("jobs/{job}.jsonl");
    let part = SharedPart { run, term: 0, path: &path, start: 0, bytes: b"{}\n", is_last: false };
    assert_eq!(link.send_part(&part).unwrap(), PartReceipt::Fenced);
    let refused = wait_for("the refusal", || {
        let shown = json_of(&first, &["host", "show", "beta"]);
        let refused = shown["refused"].as_array().unwrap().clone();
        (!refused.is_empty()).then_some(refused)
    });
    assert_eq!(refused[0]["run"], run.to_string(), "{refused:?}");
    drop(link);
    // The host returns, and ends what is left.
    let (beta, _) = second.begin(&[]);
    wait_for("the end of the old run", || second.runners().is_empty().then_some(()));
    assert_eq!(first.job(&job).head.status, JobStatus::Failed);
    second.let_through(1);
    let next = trigger(&first, &mut alpha, "brief");
    assert_eq!(first.ends(&next).head.status, JobStatus::Completed);
    stop(&second, beta);
    stop(&first, alpha);
}

/// Lets the server execute the first claim of a run, and refuse it: as if an earlier claim, to which there was no
/// reply, came late.
const LATE_CLAIM: &str = "CREATE SEQUENCE late_claims; \
    CREATE FUNCTION claim_late() RETURNS trigger AS $$ BEGIN \
    IF pg_trigger_depth() > 1 OR nextval('late_claims') > 1 THEN RETURN NEW; END IF; \
    UPDATE runs SET status = NEW.status WHERE id = NEW.id; RETURN NULL; END $$ LANGUAGE plpgsql; \
    CREATE TRIGGER late_claim BEFORE UPDATE ON runs FOR EACH ROW \
    WHEN (OLD.status = 'assigned' AND NEW.status = 'created') EXECUTE FUNCTION claim_late()";

#[test]
fn a_run_whose_claim_was_executed_late_gives_way_to_another_run() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    cluster.query("fleet", LATE_CLAIM);
    let job = trigger(&first, &mut alpha, "brief");
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    assert_eq!(ran(&second).len(), 1, "the agent was started once");
    assert_eq!(first.reader().runs_of_job(&job).unwrap().len(), 2);
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn a_host_killed_at_any_point_starts_each_job_once_and_loses_no_row() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let (beta, _) = second.begin(&["--host", "beta"]);
    stop(&second, beta);
    let mut started = 0;
    for point in ["before-claim", "run-claimed", "part-shipped"] {
        wait_for_leader(&first, "alpha");
        let mut beta = second.start(&["--fault", point]);
        let job = trigger(&first, &mut alpha, "brief");
        wait_for(&format!("a death at {point}"), || {
            // A host that leads starts its run without a claim.
            let has_led = leader(&first).as_deref() == Some("beta");
            let is_over = first.job(&job).head.status.is_final() && has_led;
            (beta.has_ended() || is_over).then_some(())
        });
        beta.kill();
        let (beta, _) = second.begin(&[]);
        assert_eq!(first.ends(&job).head.status, JobStatus::Completed, "{point}");
        started += 1;
        assert_eq!(ran(&second).len(), started, "{point}: {job} was started once");
        wait_for_copy(&second, &first, &job);
        stop(&second, beta);
    }

    // A host dies while it copies the rows of the one that leads.
    stop(&first, alpha);
    let (mut beta, _) = second.begin(&[]);
    wait_for_leader(&second, "beta");
    let mut alpha = first.start(&["--fault", "part-copied"]);
    let job = trigger(&second, &mut beta, "brief");
    wait_for("a death at part-copied", || alpha.has_ended().then_some(()));
    let (alpha, _) = first.begin(&[]);
    assert_eq!(second.ends(&job).head.status, JobStatus::Completed);
    wait_for_copy(&second, &first, &job);
    stop(&first, alpha);
    stop(&second, beta);
}
