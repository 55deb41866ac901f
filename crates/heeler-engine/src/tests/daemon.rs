//! A daemon from start to exit, with a shell script as runner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::{JobId, JobRequest, JobStatus};
use heeler_store::ScheduledWorkId;
use heeler_testkit::WAIT_MAX;
use jiff::tz::TimeZone;

use super::EngineFixture;
use crate::command::{CommandReply, DaemonCommand, DaemonCommandErrorKind, DaemonMode, StopMode};
use crate::daemon_handle::DaemonHandle;
use crate::{Daemon, DaemonExit, DaemonOptions, DaemonSetup};

/// A running daemon.
pub(crate) struct RunningDaemon {
    pub(crate) handle: DaemonHandle,
    thread: JoinHandle<DaemonExit>,
}

impl RunningDaemon {
    /// Stops it and leaves its jobs running.
    pub(crate) fn stop(self, how: StopMode) -> DaemonExit {
        self.handle.send_and_wait(DaemonCommand::Stop(how)).unwrap();
        self.thread.join().unwrap()
    }
}

impl EngineFixture {
    /// Starts a daemon with a config given as text.
    pub(crate) fn daemon(&self, mode: DaemonMode, config: &str) -> RunningDaemon {
        std::fs::write(self.root.join("heeler.yaml"), config).unwrap();
        let root = self.root.clone();
        let load = Box::new(move || load(&root));
        let daemon = Daemon::open(DaemonOptions {
            host: None,
            fleet: self.fleet.clone(),
            load,
            mode,
            clients: Arc::new(AtomicUsize::new(0)),
            version: "test".to_owned(),
            lock_timeout: WAIT_MAX,
            silence_max: Duration::from_millis(300),
        });
        let daemon = daemon.unwrap_or_else(|error| panic!("{}", heeler_model::error_chain(&error)));
        let handle = daemon.handle();
        RunningDaemon { handle, thread: std::thread::spawn(move || daemon.run(|| {})) }
    }

    /// Parses a config given as text.
    pub(crate) fn setup(&self, config: &str) -> DaemonSetup {
        std::fs::write(self.root.join("heeler.yaml"), config).unwrap();
        load(&self.root).unwrap()
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub(crate) fn wait_until(&self, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + WAIT_MAX;
        while !is_so() {
            assert!(Instant::now() < deadline, "it took too long");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a job has the status.
    #[track_caller]
    pub(crate) fn wait_for(&self, job: &JobId, status: JobStatus) {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let found = self.job(job);
            if found.head.status == status {
                return;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn load(root: &Utf8Path) -> Result<DaemonSetup, String> {
    let file = root.join("heeler.yaml");
    let read = |path: &Utf8Path| std::fs::read_to_string(path);
    let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
    let loaded = heeler_config::load(&file, &read, &env).map_err(|faults| faults.summary())?;
    Ok(DaemonSetup {
        config: file,
        loaded: Arc::new(loaded),
        content: Default::default(),
        env,
        home: root.join("home"),
        sockets: root.to_owned(),
        protected: Default::default(),
        zone: TimeZone::UTC,
        services: crate::hooks::ChatServiceUrls::default(),
    })
}

fn fleet(agent: &str) -> String {
    format!("agents:\n  - name: coder\n    runtime: scripted\n    script: [{{say: hi}}]\n{agent}")
}

#[track_caller]
fn asked(running: &RunningDaemon, wanted: JobRequest) -> (JobId, JobStatus) {
    match running.handle.send_and_wait(DaemonCommand::Trigger(Box::new(wanted))).unwrap() {
        CommandReply::Job { job, status, .. } => (job, status),
        other => panic!("{other:?}"),
    }
}

fn coder() -> JobRequest {
    JobRequest::new("coder".parse().unwrap())
}

#[test]
fn a_daemon_does_a_job_and_ends_when_told() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &fleet(""));
    let (job, status) = asked(&running, coder());
    assert_eq!(status, JobStatus::Running);
    place.wait_for(&job, JobStatus::Completed);
    assert_eq!(running.stop(StopMode::Wait { timeout: None }), DaemonExit::Stopped);
    assert!(place.reader().queue().unwrap().is_empty());
    assert!(place.read(".heeler/state.yaml").contains("coder:"));
}

#[test]
fn what_is_beyond_the_limit_waits_and_then_runs() {
    let place = EngineFixture::new("die-when-told");
    let running = place.daemon(DaemonMode::Permanent, &fleet(""));
    let (first, _) = asked(&running, coder());
    let (second, status) = asked(&running, coder());
    assert_eq!(status, JobStatus::Pending);
    place.wait_for(&first, JobStatus::Running);
    place.behave("success");
    std::fs::write(place.root.join("go"), "").unwrap();
    place.wait_for(&second, JobStatus::Completed);
    place.wait_for(&first, JobStatus::Completed);
    running.stop(StopMode::KeepJobs);
}

#[test]
fn an_interval_starts_at_once_and_is_on_record() {
    let place = EngineFixture::new("success");
    let config = fleet("    schedules: {often: {interval: 1h}}\n");
    let running = place.daemon(DaemonMode::Permanent, &config);
    let deadline = Instant::now() + WAIT_MAX;
    let occurrence = loop {
        let found = place.reader().occurrences("coder", "often", None, 10).unwrap();
        if let Some(found) = found.first() {
            break found.clone();
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    };
    let ScheduledWorkId::Job(job) = &occurrence.work else { panic!("{occurrence:?}") };
    place.wait_for(job, JobStatus::Completed);
    running.stop(StopMode::KeepJobs);
    let state = place.reader().schedule("coder", "often").unwrap().unwrap();
    let hour = jiff::SignedDuration::from_hours(1);
    assert_eq!(state.next_run_at, Some(occurrence.due + hour));
    assert!(state.last_run_at.is_some());
    let running = place.daemon(DaemonMode::Permanent, &config);
    running.stop(StopMode::KeepJobs);
    assert_eq!(place.reader().occurrences("coder", "often", None, 10).unwrap().len(), 1);
}

#[test]
fn a_daemon_that_ends_when_idle_does() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::UntilIdle, &fleet(""));
    assert_eq!(running.thread.join().unwrap(), DaemonExit::Idle);
}

#[test]
fn each_start_and_end_of_a_job_is_a_line_of_its_agents_log() {
    let place = EngineFixture::new("success");
    let running = place.daemon(
        DaemonMode::Permanent,
        "agents: [{name: a, runtime: command, command: x, working_directory: .}]",
    );
    let wanted = Box::new(JobRequest::new("a".parse().unwrap()));
    let Ok(CommandReply::Job { job, .. }) =
        running.handle.send_and_wait(DaemonCommand::Trigger(wanted))
    else {
        panic!()
    };
    place.wait_for(&job, JobStatus::Completed);
    running.stop(StopMode::Wait { timeout: None });
    let log = std::fs::read_to_string(place.fleet.dir.logs().join("a.log")).unwrap();
    let told: Vec<&str> = log.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    assert_eq!(told.len(), 2, "{log}");
    assert_eq!(told[0], format!("{job} started: manual"));
    assert!(told[1].starts_with(&format!("{job} completed")), "{log}");
}

#[test]
fn files_that_change_start_a_schedule_that_watches_them() {
    let place = EngineFixture::new("success");
    let work = place.root.join("work");
    std::fs::create_dir(&work).unwrap();
    let running = place.daemon(
        DaemonMode::Permanent,
        "agents: [{name: a, runtime: command, command: x, working_directory: work, \
         schedules: {s: {paths: ['*.rs'], debounce: 20ms}}}]",
    );
    let deadline = Instant::now() + WAIT_MAX;
    // Written again until it is seen: the daemon may not watch yet.
    let job = loop {
        std::fs::write(work.join("a.rs"), "x").unwrap();
        if let Some(job) = place.reader().newest_job("a").unwrap() {
            break job;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(job.schedule.as_deref(), Some("s"));
    assert_eq!(job.trigger_type.as_str(), "watch");
    place.wait_for(&job.id, JobStatus::Completed);
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn a_config_that_changes_is_read_again_where_that_is_wanted() {
    let place = EngineFixture::new("success");
    let fleet = |agents: &str| format!("watch_config: true\nagents: [{agents}]\n");
    let one = "{name: a, runtime: command, command: x, working_directory: .}";
    let running = place.daemon(DaemonMode::Permanent, &fleet(one));
    let both = fleet(&format!("{one}, {}", one.replace("name: a", "name: b")));
    let deadline = Instant::now() + WAIT_MAX;
    // The name of an agent is known once the config was read again.
    loop {
        std::fs::write(place.root.join("heeler.yaml"), &both).unwrap();
        let wanted = Box::new(JobRequest::new("b".parse().unwrap()));
        if running.handle.send_and_wait(DaemonCommand::Trigger(wanted)).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(700));
    }
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn what_nobody_means_is_refused_whoever_asks() {
    let place = EngineFixture::new("success");
    let running = place.daemon(DaemonMode::Permanent, &fleet(""));
    let ask = |wanted: JobRequest| {
        let refused =
            running.handle.send_and_wait(DaemonCommand::Trigger(Box::new(wanted))).unwrap_err();
        assert_eq!(refused.kind, DaemonCommandErrorKind::Usage);
        refused.message
    };
    assert_eq!(
        ask(JobRequest { prompt: Some(" \n".to_owned()), ..coder() }),
        "the prompt is empty"
    );
    let told = ask(JobRequest { channel: Some("general".to_owned()), ..coder() });
    assert!(told.contains("PLATFORM/CHANNEL"), "{told}");
    assert!(place.reader().newest_job("coder").unwrap().is_none());
    let (job, _) = asked(&running, JobRequest { channel: Some("slack/C1".to_owned()), ..coder() });
    place.wait_for(&job, JobStatus::Completed);
    let (prompt, by) = (Some(String::new()), "me".to_owned());
    let refused =
        running.handle.send_and_wait(DaemonCommand::Resume { job, prompt, by }).unwrap_err();
    assert_eq!(refused.message, "the prompt is empty");
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn a_repository_that_cannot_be_cloned_refuses_the_job() {
    let place = EngineFixture::new("success");
    let running = place.daemon(
        DaemonMode::Permanent,
        "agents: [{name: a, runtime: command, command: x, repo: ./none, working_directory: work}]",
    );
    let wanted = Box::new(JobRequest::new("a".parse().unwrap()));
    let refused = running.handle.send_and_wait(DaemonCommand::Trigger(wanted)).unwrap_err();
    assert!(refused.message.contains("git cannot clone"), "{refused:?}");
    assert!(place.reader().newest_job("a").unwrap().is_none());
    running.stop(StopMode::Wait { timeout: None });
}

#[test]
fn a_daemon_whose_state_is_moved_away_ends_and_leaves_its_jobs_alone() {
    let place = EngineFixture::new("die-when-told");
    let running = place.daemon(DaemonMode::Permanent, &fleet(""));
    let (job, _) = asked(&running, coder());
    place.wait_for(&job, JobStatus::Running);
    let (there, away) = (place.root.join(".heeler"), place.root.join("away"));
    let run = place.reader().runs_of_job(&job).unwrap()[0].id;
    place.wait_until(|| {
        let view = std::fs::read_to_string(there.join(format!("jobs/{job}.yaml")));
        let is_shown = view.is_ok_and(|view| view.contains("status: running"));
        is_shown && place.fleet.dir.run(run).join("started.json").exists()
    });
    std::fs::rename(&there, &away).unwrap();
    assert!(running.handle.send_and_wait(DaemonCommand::Status).is_err());
    assert_eq!(running.thread.join().unwrap(), DaemonExit::StateLost);
    assert!(!there.exists(), "nothing is made where the state was");
    std::fs::rename(&away, &there).unwrap();
    // Its runner continues and can still be reached.
    assert_eq!(place.job(&job).head.status, JobStatus::Running);
    std::fs::write(place.root.join("go"), "").unwrap();
    place.wait_until(|| !place.fleet.dir.run(run).join("started.json").exists());
}

#[test]
fn a_daemon_whose_state_is_replaced_leaves_that_of_another_alone() {
    let place = EngineFixture::new("success");
    let old = place.daemon(DaemonMode::Permanent, &fleet(""));
    let (first, _) = asked(&old, coder());
    place.wait_for(&first, JobStatus::Completed);
    let there = place.root.join(".heeler");
    std::fs::rename(&there, place.root.join("away")).unwrap();
    heeler_store::StateDir::create(&there).unwrap();
    let new = place.daemon(DaemonMode::Permanent, &fleet(""));
    let (second, _) = asked(&new, coder());
    place.wait_for(&second, JobStatus::Completed);
    assert!(old.handle.send_and_wait(DaemonCommand::Trigger(Box::new(coder()))).is_err());
    assert_eq!(old.thread.join().unwrap(), DaemonExit::StateLost);
    // Changes that the other process committed but did not checkpoint yet are still present.
    assert_eq!(place.job(&second).head.status, JobStatus::Completed);
    assert!(there.join("heeler.db-wal").exists());
    new.stop(StopMode::KeepJobs);
    assert_eq!(place.job(&second).head.status, JobStatus::Completed);
    let view = place.read(".heeler/state.yaml");
    assert!(view.contains(second.as_str()) && !view.contains(first.as_str()), "{view}");
}
