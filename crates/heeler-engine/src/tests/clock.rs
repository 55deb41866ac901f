//! Schedules of a living daemon while the wall clock jumps.

use std::sync::atomic::{AtomicI64, Ordering};

use heeler_model::{JobRequest, JobStatus};
use heeler_store::JobFilter;
use jiff::{SignedDuration, Timestamp};

use super::EngineFixture;
use super::daemon::RunningDaemon;
use crate::command::{DaemonCommand, DaemonMode, StopMode};

/// A fleet with a clock that its test sets.
struct ClockFixture {
    place: EngineFixture,
    offset: &'static AtomicI64,
}

impl ClockFixture {
    fn new(now: fn() -> Timestamp, offset: &'static AtomicI64) -> ClockFixture {
        let mut place = EngineFixture::new("success");
        place.fleet.now = now;
        ClockFixture { place, offset }
    }

    /// Sets the clock, and has the daemon look at it.
    fn turn_clock(&self, seconds: i64, daemon: &RunningDaemon) {
        self.offset.fetch_add(seconds, Ordering::SeqCst);
        daemon.handle.send_and_wait(DaemonCommand::Status).unwrap();
    }

    fn jobs(&self, agent: &str) -> usize {
        let filter = JobFilter { agent: Some(agent.to_owned()), ..JobFilter::default() };
        self.place.reader().jobs(&filter, None, 99).unwrap().len()
    }
}

fn shifted(offset: &AtomicI64) -> Timestamp {
    super::clock() + SignedDuration::from_secs(offset.load(Ordering::SeqCst))
}

/// As if the machine had been suspended, or the daemon stopped.
#[test]
fn due_times_of_a_minute_in_which_the_daemon_could_not_act_are_missed() {
    static OFFSET: AtomicI64 = AtomicI64::new(0);
    let clock = ClockFixture::new(|| shifted(&OFFSET), &OFFSET);
    let agent = |name: &str, missed: &str| {
        format!(
            "  - {{name: {name}, runtime: scripted, script: [{{say: hi}}], \
             schedules: {{s: {{interval: 10s, missed: {missed}, overlap: queue}}}}}}\n"
        )
    };
    let config = [agent("a", "skip"), agent("b", "run_once"), agent("c", "run_all")].concat();
    let daemon = clock.place.daemon(DaemonMode::Permanent, &format!("agents:\n{config}"));
    let all = || ["a", "b", "c"].map(|agent| clock.jobs(agent));
    clock.place.wait_until(|| all() == [1, 1, 1]);
    // Within the interval, so that exactly seven due times pass.
    clock.turn_clock(70, &daemon);
    clock.place.wait_until(|| all().iter().all(|jobs| *jobs > 1));
    assert_eq!(all(), [2, 2, 8]);
    daemon.stop(StopMode::KeepJobs);
}

#[test]
fn an_interval_goes_on_when_the_clock_is_set_back() {
    static OFFSET: AtomicI64 = AtomicI64::new(0);
    let clock = ClockFixture::new(|| shifted(&OFFSET), &OFFSET);
    let config = "agents: [{name: a, runtime: scripted, script: [{say: hi}], \
                  schedules: {s: {interval: 1s, overlap: queue}}}]";
    let daemon = clock.place.daemon(DaemonMode::Permanent, config);
    clock.place.wait_until(|| clock.jobs("a") >= 2);
    clock.turn_clock(-600, &daemon);
    let before = clock.jobs("a");
    clock.place.wait_until(|| clock.jobs("a") >= before + 2);
    daemon.stop(StopMode::KeepJobs);
}

/// A turn reads the clock several times. A time that passes between two of these is not forgotten.
#[test]
fn a_delay_that_is_over_during_a_turn_ends() {
    static OFFSET_MS: AtomicI64 = AtomicI64::new(0);
    static STEP_MS: AtomicI64 = AtomicI64::new(0);
    let now = || {
        let offset = OFFSET_MS.fetch_add(STEP_MS.load(Ordering::SeqCst), Ordering::SeqCst);
        super::clock() + SignedDuration::from_millis(offset)
    };
    let mut place = EngineFixture::new("success");
    place.fleet.now = now;
    let config = "agents: [{name: a, runtime: scripted, script: [{say: hi}]}]";
    let daemon = place.daemon(DaemonMode::Permanent, config);
    // The first attempt to start the runner fails, and the next one follows a second later.
    for (number, step) in (100..1_000).step_by(60).enumerate() {
        place.behave("die-once");
        STEP_MS.store(step, Ordering::SeqCst);
        let request = JobRequest::new("a".parse().unwrap());
        daemon.handle.send_and_wait(DaemonCommand::Trigger(Box::new(request))).unwrap();
        let completed = || {
            let status = Some(JobStatus::Completed);
            let filter = JobFilter { status, ..JobFilter::default() };
            place.reader().jobs(&filter, None, 99).unwrap().len()
        };
        place.wait_until(|| completed() > number);
    }
    STEP_MS.store(0, Ordering::SeqCst);
    daemon.stop(StopMode::KeepJobs);
}
