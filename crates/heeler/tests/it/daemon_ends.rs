//! kill -9 of a daemon where its rounds under live runs do not come by: at its end, while a log is set
//! aside, when watched files have changed, over what an agent asks. The next daemon starts clean.

use std::time::Duration;

use heeler_engine::fault::FaultPoint;
use heeler_engine::{AgentChange, DaemonCommand, StopMode};
use heeler_model::{Approval, ApprovalAnswer, ApprovalStatus, JobHead, JobStatus};
use heeler_server::DaemonClient;
use heeler_store::ApprovalFilter;
use heeler_store::DaemonFile;

use crate::api;
use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::{ask, wanted};
use crate::trigger::wait_for;

/// Where a daemon dies that is stopped.
const ENDING: [FaultPoint; 5] = [
    FaultPoint::BeforeStopped,
    FaultPoint::AfterStopped,
    FaultPoint::BeforeFileRemoved,
    FaultPoint::AfterFileRemoved,
    FaultPoint::AfterSocketRemoved,
];

/// Where it dies while a log is set aside.
const LOGS: [FaultPoint; 2] = [FaultPoint::LogsMoved, FaultPoint::LogSetAside];

/// Where it dies over what an agent asks.
const ASKED: [FaultPoint; 3] =
    [FaultPoint::QuestionSeen, FaultPoint::BeforeDelivery, FaultPoint::Delivered];

pub(crate) fn dying_at(herd: &Herd, point: FaultPoint) -> (Life, DaemonClient) {
    herd.begin(&["--fault", point.name()])
}

/// Waits until the daemon has died of its fault.
#[track_caller]
pub(crate) fn dies(life: &mut Life, point: FaultPoint) {
    wait_for(point.name(), || life.has_ended().then_some(()));
    assert!(life.ended(), "{point:?}: it ended by itself");
}

/// Waits until all jobs have completed; returns them, the newest first.
#[track_caller]
fn complete(herd: &Herd) -> Vec<JobHead> {
    wait_for("the end of all jobs", || {
        let jobs = herd.jobs();
        jobs.iter().all(|job| job.status == JobStatus::Completed).then_some(jobs)
    })
}

#[track_caller]
fn stop(mut client: DaemonClient, mut life: Life) {
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    assert!(!life.ended(), "it ended by itself");
}

#[test]
fn every_point_apart_has_a_test_here() {
    let here = [
        &ENDING[..],
        // In `web`.
        &[FaultPoint::BeforeApiToken],
        &ASKED,
        // In `redteam::results`.
        &[FaultPoint::RunSettled, FaultPoint::ResultRefused],
        &[FaultPoint::Fired],
        // In `github_actions` and `github_work`.
        &[FaultPoint::GithubActed],
        // In `github_deliveries`.
        &[FaultPoint::DeliveriesHandled],
        // In `telegram_kills` and `slack_kills`.
        &[FaultPoint::ChatReceived, FaultPoint::ChatRecorded],
        // In `chat_files`.
        &[FaultPoint::FilesReceived],
        // In `chat_gaps`.
        &[FaultPoint::GapRecorded, FaultPoint::GapRead],
        // In `telegram_kills` and `slack_kills`.
        &[FaultPoint::ChatPosted],
        // In `live_output`.
        &[FaultPoint::CardPosted],
        // In `said_kills`.
        &[FaultPoint::MessageSaid],
        // In `host_messages`.
        &[FaultPoint::MessageFetched],
        // In `notify`.
        &[FaultPoint::NoticeSent],
        &LOGS,
        &[FaultPoint::RequestDone],
        // In `claude::kept`.
        &[FaultPoint::RunHandedOver],
        // In `web_kills`.
        &[FaultPoint::AccessDone],
        // In `workflow_skills`.
        &[FaultPoint::SkillsPlaced],
        // In `host_runs` and `host_files`.
        &[FaultPoint::BeforeClaim, FaultPoint::RunClaimed],
        &[FaultPoint::PartShipped, FaultPoint::PartCopied],
        // In `host_moves`.
        &[FaultPoint::MovePartShipped, FaultPoint::MovePacked, FaultPoint::MoveFetched],
        &[FaultPoint::MovePlaced, FaultPoint::MoveReported],
        &[FaultPoint::BeforeShipping, FaultPoint::FilesShipped],
        // In `host_archive`.
        &[FaultPoint::ArchiveChunkStored, FaultPoint::ArchiveStored, FaultPoint::ArchiveRecorded],
        &[FaultPoint::ArchiveFetched, FaultPoint::ArchiveCopied],
    ]
    .concat();
    assert_eq!(here, FaultPoint::APART);
}

#[test]
fn a_daemon_killed_while_it_stops_leaves_what_the_next_one_starts_by() {
    for point in ENDING {
        let mut herd = Herd::of(
            "agents: [{name: worker, runtime: scripted, \
             script: [{run: 'read line < gate'}, {run: 'echo $HEELER_RUN >> ran'}]}]",
        );
        let (mut life, mut client) = dying_at(&herd, point);
        let jobs = [ask(&mut client, wanted("worker")), ask(&mut client, wanted("worker"))];
        let stopping = std::thread::spawn(move || {
            // Whoever is not answered does not know.
            drop(client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None));
        });
        wait_for("a daemon that stops", || {
            let mut other = DaemonClient::connect(
                &DaemonFile::read(&herd.dir()).ok()??.socket,
                herd.dir().root(),
            )
            .ok()?;
            let status = other.send_command(&DaemonCommand::Status, None).ok()?;
            matches!(status, heeler_engine::CommandReply::Status(status) if status.stopping)
                .then_some(())
        });
        herd.let_through(1);
        dies(&mut life, point);
        stopping.join().unwrap();
        let status = |number: usize| herd.reader().job(&jobs[number]).unwrap().unwrap().head.status;
        assert_eq!((status(0), status(1)), (JobStatus::Completed, JobStatus::Pending), "{point:?}");

        let (life, client) = herd.begin(&[]);
        let file = DaemonFile::read(&herd.dir()).unwrap().unwrap();
        assert_eq!(file.pid, life.child.id(), "{point:?}");
        herd.let_through(1);
        assert_eq!(complete(&herd).len(), 2, "{point:?}");
        assert_eq!(herd.fleet.read("ran").lines().count(), 2, "{point:?}: each ran once");
        stop(client, life);
        assert!(DaemonFile::read(&herd.dir()).unwrap().is_none(), "{point:?}");
        herd.wait_for_the_end_of_all();
    }
}

#[test]
fn a_daemon_killed_while_it_sets_a_log_aside_leaves_whole_lines() {
    for point in LOGS {
        let herd = Herd::of(
            "logs: {max_size: 1kb, keep: 2}\n\
             agents: [{name: worker, runtime: scripted, script: [{say: Done.}]}]",
        );
        let (mut life, mut client) = dying_at(&herd, point);
        let (agent, change, by) = ("worker".to_owned(), AgentChange::Enable, "me".to_owned());
        let logged = DaemonCommand::Agent { agent, change, by };
        // It dies of what it logs.
        while client.send_command(&logged, None).is_ok() {}
        dies(&mut life, point);
        let (life, mut client) = herd.begin(&[]);
        for _ in 0..50 {
            client.send_command(&logged, None).unwrap();
        }
        ask(&mut client, wanted("worker"));
        complete(&herd);
        stop(client, life);
        let logs = herd.dir().logs();
        for name in ["heeler.log", "heeler.log.1", "heeler.log.2", "worker.log"] {
            let text = std::fs::read_to_string(logs.join(name)).unwrap();
            assert!(text.ends_with('\n'), "{point:?} {name}: {text}");
            for line in text.lines() {
                assert!(line.starts_with("20") && line.len() > 24, "{point:?} {name}: {line}");
            }
        }
        assert!(!herd.fleet.run(&["logs", "--daemon"]).ok().is_empty());
        herd.wait_for_the_end_of_all();
    }
}

/// Waits for a question and returns it.
#[track_caller]
fn asked(herd: &Herd) -> Approval {
    wait_for("a question", || {
        let filter = ApprovalFilter { status: Some(ApprovalStatus::Pending), run: None };
        herd.reader().approvals(&filter, None, 1).unwrap().pop()
    })
}

#[test]
fn an_answer_is_brought_to_its_run_whenever_a_daemon_dies_over_it() {
    for point in ASKED {
        let herd = Herd::of(
            "agents: [{name: worker, runtime: scripted, approvals: interactive, \
             script: [{run: 'echo allowed >> ran', ask_permission: true}]}]",
        );
        let (mut life, mut client) = dying_at(&herd, point);
        ask(&mut client, wanted("worker"));
        let answer = |client: &mut DaemonClient, approval: &Approval| {
            let answer = ApprovalAnswer { approve: true, ..ApprovalAnswer::default() };
            let (approval, by) = (approval.id.clone(), "ada".to_owned());
            client.send_command(&DaemonCommand::Approval { approval, answer, by }, None)
        };
        let mut first = None;
        if point != FaultPoint::QuestionSeen {
            let approval = asked(&herd);
            // Whoever is not answered does not know.
            drop(answer(&mut client, &approval));
            first = Some(approval);
        }
        dies(&mut life, point);
        let (life, mut client) = herd.begin(&[]);
        let approval = match first {
            Some(approval) => {
                let told = answer(&mut client, &approval).unwrap_err().to_string();
                let expected = format!(
                    "answered already: approved by {}",
                    heeler_process::login_name(rustix::process::geteuid().as_raw())
                );
                assert!(told.contains(&expected), "{point:?}: {told}");
                approval
            }
            None => {
                let approval = asked(&herd);
                answer(&mut client, &approval).unwrap();
                approval
            }
        };
        complete(&herd);
        let row = wait_for("the record of the delivery", || {
            let row = herd.reader().approval(&approval.id).unwrap().unwrap();
            row.delivered_at.is_some().then_some(row)
        });
        assert_eq!(row.status, ApprovalStatus::Approved, "{point:?}");
        let named = heeler_process::login_name(rustix::process::geteuid().as_raw());
        assert_eq!(row.responded_by, Some(named), "{point:?}");
        assert_eq!(herd.fleet.read("ran"), "allowed\n", "{point:?}: it went on once");
        let all = herd.reader().count_approvals(&ApprovalFilter::default()).unwrap();
        assert_eq!(all, 1, "{point:?}: it was asked once");
        stop(client, life);
        herd.wait_for_the_end_of_all();
    }
}

#[test]
fn a_change_of_files_that_a_daemon_dies_over_starts_nothing() {
    let herd = Herd::of(
        "agents: [{name: worker, runtime: scripted, script: [{say: Done.}], \
         schedules: {s: {paths: ['*.in'], debounce: 20ms}}}]",
    );
    let (mut life, _client) = dying_at(&herd, FaultPoint::Fired);
    // Written again until it is seen: the daemon may not watch yet.
    wait_for("the daemon's death", || {
        herd.fleet.write("a.in", "x");
        std::thread::sleep(Duration::from_millis(50));
        life.has_ended().then_some(())
    });
    assert!(life.ended());
    assert!(herd.jobs().is_empty(), "it is not on record");
    let (life, client) = herd.begin(&[]);
    let job = wait_for("a job", || {
        // What changed while nobody watched is not made up for.
        herd.fleet.write("b.in", "x");
        std::thread::sleep(Duration::from_millis(50));
        herd.jobs().pop()
    });
    let prompt = herd.reader().job(&job.id).unwrap().unwrap().prompt.unwrap();
    assert!(prompt.contains("b.in") && !prompt.contains("a.in"), "{prompt}");
    complete(&herd);
    stop(client, life);
}

#[test]
fn a_request_that_was_not_answered_is_done_once_and_the_next_daemon_gives_the_first_answer() {
    let herd = Herd::of("agents: [{name: worker, runtime: scripted, script: [{say: Done.}]}]");
    let (mut life, client) = dying_at(&herd, FaultPoint::RequestDone);
    drop(client);
    let body = r#"{"agent": "worker", "prompt": "Once."}"#;
    let key = [("idempotency-key", "a-1")];
    let lost = api::try_send(&herd.dir(), "POST", "/api/v1/jobs", &key, body);
    assert!(lost.is_none(), "it died before it answered: {lost:?}");
    dies(&mut life, FaultPoint::RequestDone);
    let (life, client) = herd.begin(&[]);
    let first = api::send(&herd.dir(), "POST", "/api/v1/jobs", &key, body);
    assert_eq!(first.code, 200, "{first:?}");
    assert_eq!(first.header("idempotency-replayed"), Some("true"));
    let again = api::send(&herd.dir(), "POST", "/api/v1/jobs", &key, body);
    assert_eq!(again.json, first.json);
    let jobs = complete(&herd);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!(first.json["id"], jobs[0].id.as_str());
    // The name is this request's: neither another body nor another route may have it.
    for (path, body) in [("/api/v1/jobs", r#"{"agent": "worker"}"#), ("/api/v1/daemon/reload", "")]
    {
        let other = api::send(&herd.dir(), "POST", path, &key, body);
        assert_eq!((other.code, &other.json["type"]), (409, &"key-reused".into()), "{other:?}");
    }
    // What was refused was not done, so its name is free.
    let key = [("idempotency-key", "a-2")];
    let refused = api::send(&herd.dir(), "POST", "/api/v1/jobs", &key, r#"{"agent": "nobody"}"#);
    assert_eq!(refused.code, 404, "{refused:?}");
    let done = api::send(&herd.dir(), "POST", "/api/v1/jobs", &key, body);
    assert_eq!((done.code, done.header("idempotency-replayed")), (200, None), "{done:?}");
    complete(&herd);
    stop(client, life);
}
