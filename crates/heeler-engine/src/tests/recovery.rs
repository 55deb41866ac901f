//! Recovery after the starting process was killed between any two steps.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use heeler_model::run::{RunEnd, RunnerInput};
use heeler_model::{AgentStatus, JobStatus, RunId, SessionStatus};
use heeler_store::SessionFilter;
use heeler_transcript::{LockFile, LockHolder};

use super::*;
use crate::recovery::{RecoveryReport, RunFolderCheck, recover_runs};
use crate::run_start::StartedRun;

impl EngineFixture {
    /// Records a run and stops there.
    fn begin(&self) -> StartedRun {
        run_without_daemon::begin(&self.fleet, &self.store(), &self.request(), None).unwrap()
    }

    /// The same, with its directory and spec.
    fn begin_with_spec(&self) -> StartedRun {
        let begun = self.begin();
        let folder = self.fleet.dir.run(begun.run);
        std::fs::create_dir(&folder).unwrap();
        let spec = serde_json::to_vec_pretty(&begun.spec).unwrap();
        std::fs::write(folder.join("spec.json"), spec).unwrap();
        begun
    }

    /// Changes the database behind the store's back.
    #[expect(clippy::disallowed_methods, reason = "no store would write this")]
    fn damage(&self, sql: &str, what: &str) {
        let database = rusqlite::Connection::open(self.fleet.dir.database()).unwrap();
        assert_eq!(database.execute(sql, [what]).unwrap(), 1);
    }

    fn in_folder(&self, run: RunId, name: &str, text: &str) {
        std::fs::write(self.fleet.dir.run(run).join(name), text).unwrap();
    }

    fn recover(&self) -> RecoveryReport {
        recover_runs(&self.fleet, &self.store(), RunFolderCheck::WhenDue).unwrap()
    }

    /// Recovers and checks that the run has this end, that nothing is left to do, and that the
    /// job can be requested again.
    #[track_caller]
    fn check(&self, begun: &StartedRun, end: RunEnd) {
        let recovered = self.recover();
        let [committed] = &recovered.committed[..] else { panic!("{recovered:?}") };
        assert_eq!((committed.end, &committed.job), (end, &begun.job));
        assert_eq!(self.reader().uncommitted_runs().unwrap(), []);
        assert_eq!(self.reader().running_jobs().unwrap(), []);
        let agent = self.reader().agent("coder").unwrap().unwrap();
        assert_eq!(agent.current_job, None);
        assert_ne!(agent.status, AgentStatus::Running);
        let own = SessionFilter { agent: Some("coder".to_owned()), ..SessionFilter::default() };
        let sessions = self.reader().sessions(&own, None, 9).unwrap();
        assert!(sessions.iter().all(|it| it.status != SessionStatus::Active), "{sessions:?}");
        assert_eq!(sessions.is_empty(), end == RunEnd::NeverStarted, "{sessions:?}");
        let again = self.recover();
        assert!(again.committed.is_empty() && again.unsettled.is_empty(), "{again:?}");
        self.behave("success");
        assert_eq!(self.conducted(&self.request()).status, JobStatus::Completed);
    }
}

#[test]
fn cut_off_after_the_record() {
    let place = EngineFixture::new("success");
    let begun = place.begin();
    place.check(&begun, RunEnd::NeverStarted);
    assert!(!place.job(&begun.job).interrupted, "nothing had begun");
}

#[test]
fn cut_off_after_the_folder() {
    let place = EngineFixture::new("success");
    let begun = place.begin();
    std::fs::create_dir(place.fleet.dir.run(begun.run)).unwrap();
    place.check(&begun, RunEnd::NeverStarted);
}

#[test]
fn cut_off_after_the_spec() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    place.check(&begun, RunEnd::NeverStarted);
}

#[test]
fn cut_off_with_the_runner_at_work_and_both_dead() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    place.in_folder(begun.run, "started.json", "{}");
    place.check(&begun, RunEnd::Interrupted);
    assert!(place.job(&begun.job).interrupted);
}

#[test]
fn cut_off_with_the_result_not_committed() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    let input = RunnerInput { brief: place.request().brief, spec: None, result_key: None };
    let folder = place.fleet.dir.run(begun.run);
    let status = crate::launch::start_runner(&place.fleet, &folder, &input).unwrap().0.wait();
    assert!(status.unwrap().success());
    place.check(&begun, RunEnd::Finished);
    assert_eq!(place.job(&begun.job).head.status, JobStatus::Completed);
}

#[test]
fn a_job_is_shown_as_dead_only_when_nobody_is_about_to_start_or_to_commit_it() {
    let place = EngineFixture::new("success");
    let store = place.store();
    let begun = run_without_daemon::begin(&place.fleet, &store, &place.request(), None).unwrap();
    let is_dead = || place.reader().is_job_orphaned(&place.fleet.dir, &begun.job).unwrap();
    assert!(!is_dead(), "its conductor is at it");
    std::fs::create_dir(place.fleet.dir.run(begun.run)).unwrap();
    place.in_folder(begun.run, "started.json", "{}");
    assert!(is_dead(), "no conductor starts it again");
    place.in_folder(begun.run, "result.json", "{}");
    assert!(!is_dead(), "its conductor may be at it");
    drop(store);
    assert!(is_dead());
    place.recover();
    assert!(!is_dead(), "it has ended");
}

#[test]
fn a_living_run_is_left_alone_and_settled_when_it_is_dead() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    place.in_folder(begun.run, "started.json", "{}");
    let lock = place.fleet.dir.run(begun.run).join("lock");
    let holder = LockHolder::this_process("runner", clock());
    let held = LockFile::acquire(&lock, &holder, Duration::ZERO).unwrap();
    let recovered = place.recover();
    assert_eq!((recovered.alive, recovered.committed), (vec![begun.job.clone()], vec![]));
    assert_eq!(place.job(&begun.job).head.status, JobStatus::Running);
    drop(held);
    place.check(&begun, RunEnd::Interrupted);
}

#[test]
fn a_living_run_is_left_alone_even_if_its_agent_removed_the_spec() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    let folder = place.fleet.dir.run(begun.run);
    let holder = LockHolder::this_process("runner", clock());
    let held = LockFile::acquire(&folder.join("lock"), &holder, Duration::ZERO).unwrap();
    std::fs::remove_file(folder.join("spec.json")).unwrap();
    let recovered = place.recover();
    assert_eq!((recovered.alive, recovered.committed), (vec![begun.job.clone()], vec![]));
    assert_eq!(place.job(&begun.job).head.status, JobStatus::Running);
    drop(held);
    place.check(&begun, RunEnd::NeverStarted);
}

#[test]
fn a_result_is_committed_once() {
    let place = EngineFixture::new("success");
    let done = place.conducted(&place.request());
    let before = place.job(&done.job);
    let run = place.reader().runs_of_job(&done.job).unwrap().remove(0);
    let result = place.reader().run_result(run.id).unwrap().unwrap();
    let redactor = heeler_model::redact::SecretRedactor::new(&[]);
    crate::commit::commit(&place.store(), result, &redactor).unwrap();
    assert_eq!(place.job(&done.job), before);
    assert_eq!(place.session_of(&done.job).job_count, 1);
}

#[test]
fn a_run_that_only_its_folder_knows_is_adopted() {
    let place = EngineFixture::new("success");
    let other = EngineFixture::new("success");
    let mut begun = place.begin_with_spec();
    begun.spec.job_log = other.fleet.dir.job_transcript(&begun.job);
    begun.spec.projects = other.fleet.dir.projects();
    place.in_folder(begun.run, "spec.json", &serde_json::to_string_pretty(&begun.spec).unwrap());
    place.in_folder(begun.run, "started.json", "{}");
    // As a restore of an earlier backup leaves it: the directory exists, the rows do not.
    let runs = other.fleet.dir.runs();
    std::fs::rename(place.fleet.dir.run(begun.run), runs.join(begun.run.to_string())).unwrap();
    std::fs::create_dir(runs.join("not-a-run")).unwrap();
    std::fs::create_dir(runs.as_std_path().join(OsStr::from_bytes(b"n\xf6"))).unwrap();
    let recovered = other.recover();
    assert_eq!(recovered.adopted, [begun.run]);
    assert_eq!(recovered.committed[0].end, RunEnd::Interrupted);
    let job = other.job(&begun.job);
    assert!(job.interrupted && job.head.agent == "coder");
    let session = other.session_of(&begun.job);
    assert_eq!((session.status, session.message_count), (SessionStatus::Paused, 4));
    assert_eq!(other.reader().agent_session("coder").unwrap(), None, "it may be a channel's");
    assert!(other.recover().adopted.is_empty());
}

#[test]
fn a_run_that_could_not_be_adopted_is_tried_again_until_it_is() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    let other = EngineFixture::new("success");
    let folder = other.fleet.dir.run(begun.run);
    std::fs::rename(place.fleet.dir.run(begun.run), &folder).unwrap();
    std::fs::rename(folder.join("spec.json"), folder.join("aside")).unwrap();
    other.in_folder(begun.run, "spec.json", r#"{"protocol": 99}"#);
    for _ in 0..2 {
        let recovered = other.recover();
        assert_eq!((recovered.unsettled[0].0, recovered.adopted), (begun.run, vec![]));
    }
    std::fs::rename(folder.join("aside"), folder.join("spec.json")).unwrap();
    assert_eq!(other.recover().adopted, [begun.run]);

    let other = EngineFixture::new("success");
    std::fs::remove_dir(other.fleet.dir.runs()).unwrap();
    std::fs::write(other.fleet.dir.runs(), "no folder").unwrap();
    let error = recover_runs(&other.fleet, &other.store(), RunFolderCheck::WhenDue).unwrap_err();
    assert!(matches!(error, crate::RecoveryError::Read(_)), "{error}");
}

#[test]
fn a_run_that_can_never_be_adopted_is_looked_at_once_and_left_to_the_doctor() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    let other = EngineFixture::new("success");
    let folder = other.fleet.dir.run(begun.run);
    std::fs::rename(place.fleet.dir.run(begun.run), &folder).unwrap();
    std::fs::rename(folder.join("spec.json"), folder.join("aside")).unwrap();
    other.in_folder(begun.run, "spec.json", "{");
    let recovered = other.recover();
    assert!(recovered.unsettled.is_empty() && recovered.adopted.is_empty(), "{recovered:?}");
    std::fs::rename(folder.join("aside"), folder.join("spec.json")).unwrap();
    assert!(other.recover().adopted.is_empty(), "it is not compared any more");
    let recovered = recover_runs(&other.fleet, &other.store(), RunFolderCheck::Always).unwrap();
    assert_eq!(recovered.adopted, [begun.run]);
}

#[test]
fn a_finished_job_is_not_counted_again_when_its_run_is_adopted() {
    let place = EngineFixture::new("success");
    let done = place.conducted(&place.request());
    let before = place.job(&done.job);
    let run = place.reader().runs_of_job(&done.job).unwrap().remove(0).id;
    // As a rebuild from views leaves it: the job exists, its runs do not.
    let other = EngineFixture::new("success");
    let folder = other.fleet.dir.run(run);
    std::fs::rename(place.fleet.dir.run(run), &folder).unwrap();
    let job = before.clone();
    other.store().write(move |tx| tx.insert_job(&job)).unwrap();
    let recovered = other.recover();
    assert_eq!((recovered.adopted, recovered.committed), (vec![run], vec![]));
    assert_eq!(other.job(&done.job), before);
    assert_eq!(other.reader().run_result(run).unwrap().unwrap().end, RunEnd::Finished);
}

#[test]
fn a_run_that_is_adopted_into_its_running_job_is_counted_once() {
    let place = EngineFixture::new("success");
    let done = place.conducted(&place.request());
    let run = place.reader().runs_of_job(&done.job).unwrap().remove(0).id;
    // As a rebuild from views leaves a job that was resumed after this run.
    let other = EngineFixture::new("success");
    std::fs::rename(place.fleet.dir.run(run), other.fleet.dir.run(run)).unwrap();
    let mut job = place.job(&done.job);
    job.head.status = JobStatus::Running;
    job.head.finished_at = None;
    let session = place.session_of(&done.job);
    other
        .store()
        .write::<(), heeler_store::DatabaseError, _>(move |tx| {
            tx.insert_job(&job)?;
            tx.put_session(&session).map(|_| ())
        })
        .unwrap();
    assert_eq!(other.recover().committed[0].end, RunEnd::Finished);
    let before = place.job(&done.job);
    let after = other.job(&done.job);
    assert_eq!(after.head.cost_usd, before.head.cost_usd);
    assert_eq!(after.head.duration_ms, before.head.duration_ms);
    assert_eq!(after.usage, before.usage);
}

#[test]
fn adopted_runs_of_one_job_are_taken_by_attempt_whatever_the_clock_did() {
    let place = EngineFixture::new("success");
    let mut begun = place.begin();
    let other = EngineFixture::new("success");
    let second = |second| Timestamp::from_second(second).unwrap();
    // The clock was set back between the two.
    for (attempt, at, how) in [(1, 2_000_000_000, "failure"), (2, 1_000_000_000, "success")] {
        begun.spec.run = RunId::mint(second(at), [u8::try_from(attempt).unwrap(); 10]);
        begun.spec.attempt = attempt;
        let folder = other.fleet.dir.run(begun.spec.run);
        std::fs::create_dir(&folder).unwrap();
        let spec = serde_json::to_vec_pretty(&begun.spec).unwrap();
        std::fs::write(folder.join("spec.json"), spec).unwrap();
        other.behave(how);
        let input = RunnerInput { brief: other.request().brief, spec: None, result_key: None };
        crate::launch::start_runner(&other.fleet, &folder, &input).unwrap().0.wait().unwrap();
    }
    let ends = other.recover().committed.into_iter().map(|it| it.status).collect::<Vec<_>>();
    assert_eq!(ends, [JobStatus::Failed, JobStatus::Completed]);
    let job = other.job(&begun.job);
    assert_eq!((job.head.status, job.head.cost_usd), (JobStatus::Completed, Some(0.5)));
    assert_eq!(other.session_of(&begun.job).job_count, 1, "it is one job");
}

#[test]
fn a_run_that_came_after_what_the_record_tells_is_not_taken_as_counted() {
    let place = EngineFixture::new("success");
    let done = place.conducted(&place.request());
    let run = place.reader().runs_of_job(&done.job).unwrap().remove(0).id;
    // As after a restore: the first run never started, and the second was not started yet.
    let other = EngineFixture::new("success");
    std::fs::rename(place.fleet.dir.run(run), other.fleet.dir.run(run)).unwrap();
    let mut job = place.job(&done.job);
    job.head.status = JobStatus::Failed;
    job.head.finished_at = Some("2026-11-15T08:00:00Z".parse().unwrap());
    other.store().write(move |tx| tx.insert_job(&job)).unwrap();
    assert_eq!(other.recover().committed[0].end, RunEnd::Finished);
    assert_eq!(other.job(&done.job).head.status, JobStatus::Completed);
}

#[test]
fn a_folder_of_another_run_is_not_settled() {
    let place = EngineFixture::new("success");
    let mut begun = place.begin_with_spec();
    begun.spec.job = "job-2026-11-15-strange".parse().unwrap();
    place.in_folder(begun.run, "spec.json", &serde_json::to_string(&begun.spec).unwrap());
    place.in_folder(begun.run, "started.json", "{}");
    place.check(&begun, RunEnd::Interrupted);
    let folder = place.fleet.dir.run(begun.run);
    assert!(!folder.join("result.json").exists(), "nothing was settled");
    assert_eq!(place.read("ended"), format!("{folder}\n"), "what it left running is ended");
}

#[test]
fn the_result_of_another_run_is_not_taken() {
    let place = EngineFixture::new("success");
    let done = place.conducted(&place.request());
    let other = place.reader().runs_of_job(&done.job).unwrap().remove(0).id;
    let begun = place.begin_with_spec();
    let from = place.fleet.dir.run(other).join("result.json");
    std::fs::copy(from, place.fleet.dir.run(begun.run).join("result.json")).unwrap();
    place.check(&begun, RunEnd::Interrupted);
    let error = place.job(&begun.job).error.unwrap();
    assert!(error.contains("result.json belongs to another run"), "{error}");
}

#[test]
fn a_running_job_without_any_run_is_settled() {
    let place = EngineFixture::new("success");
    let done = place.conducted(&place.request());
    let mut job = place.job(&done.job);
    job.head.status = JobStatus::Running;
    place.store().write(move |tx| tx.update_job(&job)).unwrap();
    place.recover();
    let job = place.job(&done.job);
    assert!(job.interrupted && job.head.status == JobStatus::Failed);
}

#[test]
fn a_run_that_can_never_be_settled_is_given_up_with_the_reason() {
    for (file, text) in [("result.json", "not json"), ("spec.json", "{"), ("result.json", "{}")] {
        let place = EngineFixture::new("success");
        let begun = place.begin_with_spec();
        place.in_folder(begun.run, file, text);
        place.check(&begun, RunEnd::Interrupted);
        let error = place.job(&begun.job).error.unwrap();
        assert!(error.contains("result cannot be determined") && error.contains(file), "{error}");
        let folder = place.fleet.dir.run(begun.run);
        assert_eq!(place.read("ended"), format!("{folder}\n"), "what it left running is ended");
    }
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    place.in_folder(begun.run, "settle-with", "65");
    place.check(&begun, RunEnd::Interrupted);
    let error = place.job(&begun.job).error.unwrap();
    assert!(error.contains("runner.log says why"), "{error}");
}

#[test]
fn what_a_later_release_wrote_is_left_for_it() {
    let later = r#"{"protocol": 99, "of": "the future"}"#;
    for file in ["spec.json", "result.json"] {
        let place = EngineFixture::new("success");
        let begun = place.begin_with_spec();
        let spec = std::fs::read_to_string(place.fleet.dir.run(begun.run).join("spec.json"));
        place.in_folder(begun.run, file, later);
        let recovered = place.recover();
        assert!(recovered.committed.is_empty(), "{recovered:?}");
        assert!(recovered.unsettled[0].1.contains("protocol version 99"), "{recovered:?}");
        place.in_folder(begun.run, "spec.json", &spec.unwrap());
        // No later release reads this version.
        place.in_folder(begun.run, "result.json", r#"{"protocol": 0}"#);
        place.check(&begun, RunEnd::Interrupted);
    }
}

#[test]
fn what_can_never_be_settled_is_left_alone_while_somebody_is_at_it() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    place.in_folder(begun.run, "spec.json", "{");
    let lock = place.fleet.dir.run(begun.run).join("lock");
    let holder = LockHolder::this_process("runner", clock());
    let held = LockFile::acquire(&lock, &holder, Duration::ZERO).unwrap();
    let recovered = place.recover();
    assert!(recovered.committed.is_empty() && recovered.alive.len() == 1, "{recovered:?}");
    drop(held);
    place.check(&begun, RunEnd::Interrupted);
}

#[test]
fn a_run_that_another_process_is_at_counts_as_one_that_goes_on() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    place.in_folder(begun.run, "settle-with", "5");
    let recovered = place.recover();
    assert_eq!(recovered.alive, std::slice::from_ref(&begun.job));
    assert!(recovered.committed.is_empty() && recovered.unsettled.is_empty(), "{recovered:?}");
    std::fs::remove_file(place.fleet.dir.run(begun.run).join("settle-with")).unwrap();
    place.check(&begun, RunEnd::NeverStarted);
}

#[test]
fn another_process_that_settles_a_run_is_waited_for() {
    let place = EngineFixture::new("die-late");
    std::fs::write(place.root.join("settle-once-with"), "5").unwrap();
    assert_eq!(place.conducted(&place.request()).end, RunEnd::Interrupted);
}

#[test]
fn a_run_that_cannot_be_settled_yet_stands_in_nobodys_way() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    // The second is the exit status for an invalid command line.
    for code in ["1", "2"] {
        place.in_folder(begun.run, "settle-with", code);
        assert_eq!(place.recover().unsettled[0].0, begun.run);
    }
    let recovered = place.recover();
    assert!(recovered.unsettled[0].1.contains("runner.log"), "{recovered:?}");
    let mut other = place.request();
    other.agent = "writer".parse().unwrap();
    place.conducted(&other);
    std::fs::remove_file(place.fleet.dir.run(begun.run).join("settle-with")).unwrap();
    place.check(&begun, RunEnd::NeverStarted);
}

#[test]
fn a_result_that_the_database_refuses_stands_in_nobodys_way() {
    let place = EngineFixture::new("success");
    let begun = place.begin_with_spec();
    place.in_folder(begun.run, "started.json", "{}");
    let session = begun.spec.session.start.id().to_string();
    place.damage("UPDATE sessions SET status = 'nonsense' WHERE agent_session_id = ?1", &session);
    let recovered = place.recover();
    assert!(recovered.committed.is_empty());
    assert_eq!(recovered.unsettled[0].0, begun.run);
    assert!(recovered.unsettled[0].1.contains("nonsense"), "{recovered:?}");
    let mut other = place.request();
    other.agent = "writer".parse().unwrap();
    assert_eq!(place.conducted(&other).status, JobStatus::Completed);
    place.damage("UPDATE sessions SET status = 'active' WHERE agent_session_id = ?1", &session);
    place.check(&begun, RunEnd::Interrupted);
}
