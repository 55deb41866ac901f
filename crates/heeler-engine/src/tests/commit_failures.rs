//! A daemon survives failing commits and a restore of its state, and loses nothing.

use camino::Utf8Path;
use heeler_model::{JobId, JobRequest, JobStatus};
use heeler_store::{backup_to_file, restore_from_file};

use super::daemon::RunningDaemon;
use super::{EngineFixture, clock};
use crate::command::{
    CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind, DaemonMode,
    DaemonStatus, StopMode,
};

/// A fleet of agents that are commands.
fn config(agents: &[&str]) -> String {
    let agent = |name: &&str| {
        format!("  - {{name: {name}, runtime: command, command: x, working_directory: .}}\n")
    };
    format!("agents:\n{}", agents.iter().map(agent).collect::<String>())
}

fn trigger(running: &RunningDaemon, agent: &str) -> Result<(JobId, JobStatus), DaemonCommandError> {
    let wanted = Box::new(JobRequest::new(agent.parse().unwrap()));
    match running.handle.send_and_wait(DaemonCommand::Trigger(wanted))? {
        CommandReply::Job { job, status, .. } => Ok((job, status)),
        other => panic!("{other:?}"),
    }
}

fn status(running: &RunningDaemon) -> DaemonStatus {
    match running.handle.send_and_wait(DaemonCommand::Status).unwrap() {
        CommandReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

impl EngineFixture {
    /// Changes the database behind the store's back.
    #[expect(clippy::disallowed_methods, reason = "no store would write this")]
    fn alter(&self, sql: &str) {
        let database = rusqlite::Connection::open(self.fleet.dir.database()).unwrap();
        database.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
        database.execute_batch(sql).unwrap();
    }

    /// Makes every commit with this statement on a table fail, as a full disk would: only at its end.
    fn break_commits(&self, what: &str) {
        self.alter(&format!(
            "CREATE TABLE nobody (id PRIMARY KEY);
             CREATE TABLE broken (id REFERENCES nobody(id) DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER break AFTER {what} BEGIN INSERT INTO broken VALUES (1); END;"
        ));
    }

    fn mend_commits(&self) {
        self.alter("DROP TRIGGER break; DROP TABLE broken; DROP TABLE nobody;");
    }

    fn tell_runner_to_end(&self) {
        self.behave("success");
        std::fs::write(self.root.join("go"), "").unwrap();
    }
}

#[test]
fn while_commits_fail_nothing_starts_and_nothing_is_lost_and_then_all_goes_on() {
    let place = EngineFixture::new("die-when-told");
    let running = place.daemon(DaemonMode::Permanent, &config(&["a", "b"]));
    let (first, _) = trigger(&running, "a").unwrap();
    let (waiting, status_then) = trigger(&running, "a").unwrap();
    assert_eq!(status_then, JobStatus::Pending);
    place.wait_for(&first, JobStatus::Running);

    place.break_commits("UPDATE ON runs");
    place.tell_runner_to_end();
    place.wait_until(|| !status(&running).faults.is_empty());
    let told = status(&running).faults;
    assert!(told[0].contains("cannot be saved"), "{told:?}");
    assert!(told[0].ends_with("nothing new starts"), "{told:?}");
    assert_eq!(place.job(&first).head.status, JobStatus::Running, "it is not on record");
    assert!(place.reader().runs_of_job(&waiting).unwrap().is_empty());

    place.mend_commits();
    for job in [&first, &waiting] {
        place.wait_for(job, JobStatus::Completed);
    }
    place.wait_until(|| status(&running).faults.is_empty());
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn a_job_that_cannot_be_saved_is_refused_and_not_done() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &config(&["a"]));
    place.break_commits("INSERT ON executions");
    let refused = trigger(&running, "a").unwrap_err();
    assert_eq!(refused.kind, DaemonCommandErrorKind::Trouble);
    assert!(refused.message.starts_with("the state cannot be saved"), "{refused:?}");
    place.mend_commits();
    assert!(place.reader().newest_job("a").unwrap().is_none());
    assert!(!place.root.join("argv").exists(), "no runner was started");
    let (job, _) = trigger(&running, "a").unwrap();
    place.wait_for(&job, JobStatus::Completed);
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn files_that_change_while_commits_fail_get_their_job_afterwards() {
    let place = EngineFixture::new("success");
    let work = place.root.join("work");
    std::fs::create_dir(&work).unwrap();
    let running = place.daemon(
        DaemonMode::Permanent,
        "agents: [{name: a, runtime: command, command: x, working_directory: work, \
         schedules: {s: {paths: ['*.rs'], debounce: 20ms}}}]",
    );
    place.break_commits("INSERT ON executions");
    // Written again until it is seen: the daemon may not watch yet.
    place.wait_until(|| {
        std::fs::write(work.join("a.rs"), "x").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        !status(&running).faults.is_empty()
    });
    assert!(place.reader().newest_job("a").unwrap().is_none());
    place.mend_commits();
    place.wait_until(|| place.reader().newest_job("a").unwrap().is_some());
    let job = place.reader().newest_job("a").unwrap().unwrap().id;
    place.wait_for(&job, JobStatus::Completed);
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn a_config_that_cannot_be_put_on_record_does_not_count() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &config(&["a"]));
    place.break_commits("INSERT ON agents");
    std::fs::write(place.root.join("heeler.yaml"), config(&["a", "b"])).unwrap();
    let refused = running.handle.send_and_wait(DaemonCommand::Reload).unwrap_err();
    assert!(refused.message.starts_with("the state cannot be saved"), "{refused:?}");
    assert_eq!(trigger(&running, "b").unwrap_err().kind, DaemonCommandErrorKind::NotFound);
    place.mend_commits();
    // The failed work is retried, with the config in use.
    place.wait_until(|| status(&running).faults.is_empty());
    assert_eq!(trigger(&running, "b").unwrap_err().kind, DaemonCommandErrorKind::NotFound);
    let (job, _) = trigger(&running, "a").unwrap();
    place.wait_for(&job, JobStatus::Completed);
    running.handle.send_and_wait(DaemonCommand::Reload).unwrap();
    let (job, _) = trigger(&running, "b").unwrap();
    place.wait_for(&job, JobStatus::Completed);
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn a_restore_under_a_living_daemon_counts_and_what_runs_is_recorded_in_it() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &config(&["a", "b"]));
    let (before, _) = trigger(&running, "a").unwrap();
    place.wait_for(&before, JobStatus::Completed);
    place.behave("die-when-told");
    let (live, _) = trigger(&running, "b").unwrap();
    place.wait_for(&live, JobStatus::Running);
    let file = place.root.join("backup.tar");
    back_up(&place, &file);
    let disable = || {
        let (agent, by) = ("a".to_owned(), "me".to_owned());
        running.handle.send_and_wait(DaemonCommand::Agent {
            agent,
            change: crate::AgentChange::Disable,
            by,
        })
    };
    disable().unwrap();
    restore_from_file(&place.fleet.dir, &file, clock(), &mut |_, _| {}).unwrap();

    // The first change detects the restored state; the daemon continues with it.
    place.wait_until(|| trigger(&running, "a").is_ok());
    place.tell_runner_to_end();
    place.wait_for(&live, JobStatus::Completed);
    assert_eq!(place.job(&before).head.status, JobStatus::Completed);
    running.stop(StopMode::Wait { timeout: None });
    assert!(place.reader().integrity_faults().unwrap().is_empty());
    assert!(place.reader().queue().unwrap().is_empty());
}

fn back_up(place: &EngineFixture, file: &Utf8Path) {
    backup_to_file(&place.fleet.dir, file, clock(), &mut |_, _| {}).unwrap();
}
