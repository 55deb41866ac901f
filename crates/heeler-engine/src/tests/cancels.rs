//! Cancellation of a job at every stage of its start.

use heeler_model::fleet::CancelRequest;
use heeler_model::run::RunEnd;
use heeler_model::{AgentStatus, ExitReason, JobStatus, RunId};
use heeler_transcript::{LockFile, LockHolder};

use super::*;
use crate::cancel::{RunnerKillError, kill_runner, record_request};
use crate::recovery::{RunFolderCheck, recover_runs};
use crate::run_start::{self, StartedRun};

impl EngineFixture {
    fn wish(&self, store: &Store, run: RunId) {
        let wish = CancelRequest::default();
        store.write(move |tx| record_request(tx, run, &wish, clock())).unwrap();
    }

    fn begin_and_wish(&self) -> (Store, StartedRun) {
        let store = self.store();
        let begun = run_without_daemon::begin(&self.fleet, &store, &self.request(), None).unwrap();
        self.wish(&store, begun.run);
        (store, begun)
    }

    #[track_caller]
    fn is_cancelled(&self, job: &JobId) {
        let job = self.job(job);
        assert_eq!(job.head.status, JobStatus::Cancelled);
        assert_eq!(job.head.exit_reason, Some(ExitReason::Cancelled));
        assert!(!job.interrupted && job.error.is_none() && job.head.finished_at.is_some());
        let agent = self.reader().agent("coder").unwrap().unwrap();
        assert_eq!((agent.status, agent.current_job), (AgentStatus::Idle, None));
    }
}

#[test]
fn a_job_whose_start_was_cut_off_is_cancelled() {
    let place = EngineFixture::new("success");
    let (store, begun) = place.begin_and_wish();
    let recovered = recover_runs(&place.fleet, &store, RunFolderCheck::WhenDue).unwrap();
    assert_eq!(recovered.committed[0].end, RunEnd::NeverStarted);
    place.is_cancelled(&begun.job);
}

#[test]
fn a_job_whose_runner_died_at_work_is_cancelled() {
    let place = EngineFixture::new("success");
    let (store, begun) = place.begin_and_wish();
    let folder = place.fleet.dir.run(begun.run);
    std::fs::create_dir(&folder).unwrap();
    let spec = serde_json::to_vec_pretty(&begun.spec).unwrap();
    std::fs::write(folder.join("spec.json"), spec).unwrap();
    std::fs::write(folder.join("started.json"), "{}").unwrap();
    let recovered = recover_runs(&place.fleet, &store, RunFolderCheck::WhenDue).unwrap();
    assert_eq!(recovered.committed[0].end, RunEnd::Interrupted);
    place.is_cancelled(&begun.job);
}

#[test]
fn a_job_that_succeeded_all_the_same_did() {
    let place = EngineFixture::new("success");
    let (store, begun) = place.begin_and_wish();
    let mut runner =
        run_start::launch_run(&place.fleet, &place.request(), &begun, |_| false).unwrap();
    runner.wait().unwrap();
    recover_runs(&place.fleet, &store, RunFolderCheck::WhenDue).unwrap();
    assert_eq!(place.job(&begun.job).head.status, JobStatus::Completed);
    let wishes = crate::cancel::pending_requests(&place.reader()).unwrap();
    assert!(wishes.is_empty(), "the wish is not kept");
}

#[test]
fn a_job_that_is_to_be_cancelled_is_not_started_once_more() {
    let place = EngineFixture::new("die-when-told");
    let (mut told, place) = (Vec::new(), &place);
    let done = std::thread::scope(|scope| {
        run_without_daemon::conduct(&place.fleet, &place.request(), &mut |notice| {
            if let JobNotice::Started { job, .. } = notice {
                let run = place.reader().runs_of_job(job).unwrap().pop().unwrap().id;
                scope.spawn(move || {
                    place.wish(&place.store(), run);
                    std::fs::write(place.root.join("go"), "").unwrap();
                });
            }
            told.push(notice.clone());
        })
    });
    let done = done.unwrap();
    assert_eq!((done.status, done.end), (JobStatus::Cancelled, RunEnd::NeverStarted));
    assert_eq!(told.len(), 2, "{told:?}");
    place.is_cancelled(&done.job);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test needs a process that looks like a runner")]
fn only_the_runner_of_the_run_is_killed() {
    let place = EngineFixture::new("success");
    let folder = place.root.join("runs/run-of-this-test");
    std::fs::create_dir_all(&folder).unwrap();
    // The holder of the lock is not the runner: an agent can hold it, or write into it.
    let holder = LockHolder::this_process("runner job-2026-11-15-aaaaaa", clock());
    let _held = LockFile::acquire(&folder.join("lock"), &holder, Duration::ZERO).unwrap();
    assert!(matches!(kill_runner(&folder), Err(RunnerKillError::Gone(_))));
    std::fs::create_dir(place.root.join("bin")).unwrap();
    std::fs::write(place.root.join("bin/runner"), "read line").unwrap();
    let start = |args: &[&str]| {
        let mut command = std::process::Command::new("sh");
        command.arg("runner").args(args).current_dir(place.root.join("bin"));
        command.stdin(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut settling = start(&["--settle", folder.as_str()]);
    let mut other = start(&[place.root.join("runs/another-run").as_str()]);
    assert!(matches!(kill_runner(&folder), Err(RunnerKillError::Gone(_))));
    let mut runner = start(&[folder.as_str()]);
    // The kernel shows the arguments of a process a moment after its start.
    let deadline = std::time::Instant::now() + heeler_testkit::WAIT_MAX;
    let killed = loop {
        match kill_runner(&folder) {
            Ok(pid) => break pid,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
    };
    assert_eq!(killed, runner.id());
    assert!(!runner.wait().unwrap().success());
    for process in [&mut settling, &mut other] {
        assert_eq!(process.try_wait().unwrap(), None, "it was not killed");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
