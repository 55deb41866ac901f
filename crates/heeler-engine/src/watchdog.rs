//! Detects runners that are alive but do not reply: stopped, hung, or past their limits.
//!
//! A thread polls each runner. A runner that is silent for too long is killed by its process
//! descriptor; recovery treats the run like any other dead run. A runner that is only slow, because
//! the machine is busy, is left alone. Start at [`RunnerWatchdog::start`].

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::run::ControlOperation;
use heeler_model::{RunId, error_chain};
use heeler_process::process_activity;
use heeler_store::ReaderPool;
use heeler_transcript::untrusted_file;

use crate::cancel::{self, RunnerKillError};
use crate::fleet::EngineContext;
use heeler_control::{ControlClient, ControlError};

/// Time after which a runner that does not reply counts as hung.
pub const RUNNER_SILENCE_MAX: Duration = Duration::from_secs(30);

/// File in the directory of a run whose runner the daemon killed.
pub(crate) const KILLED_NOTE: &str = "killed-by-daemon";

/// A run is killed this many times the allowed silence after its own limit: two minutes. A run ends
/// itself at its limit, gracefully first.
const OVERTIME_FACTOR: u32 = 4;

/// Number of readers of the database that are kept open.
const IDLE_READERS_MAX: usize = 1;

/// Time limit for one reply.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Number of polls within the allowed silence.
const CHECKS_PER_SILENCE: u32 = 6;

/// A runner that executes but does not reply is killed after this many times the allowed silence: it
/// may be slow, but it may also be in an endless loop.
const ACTIVE_SILENCE_FACTOR: u32 = 20;

/// Minimum number of consecutive missed replies: one slow reply does not mean that a runner hangs.
const MISSES_MIN: u32 = 3;

/// Handle to the watchdog thread.
#[derive(Debug)]
pub(crate) struct RunnerWatchdog {
    stop: Option<SyncSender<()>>,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Observed state of a runner.
struct RunnerHealth {
    since: Instant,
    answered_at: Instant,
    misses: u32,
    /// Progress of its process at the last missed reply.
    activity: Option<u64>,
    /// Time at which progress was last seen.
    active_at: Instant,
    /// Time after which the run is overdue, if it has a time limit.
    deadline: Option<Instant>,
}

impl RunnerHealth {
    fn new(now: Instant, deadline: Option<Instant>) -> RunnerHealth {
        RunnerHealth {
            since: now,
            answered_at: now,
            misses: 0,
            activity: None,
            active_at: now,
            deadline,
        }
    }

    fn record_reply(&mut self, now: Instant) {
        (self.answered_at, self.misses, self.activity) = (now, 0, None);
    }

    /// Records a missed reply, and the progress of the process.
    fn record_miss(&mut self, activity: Option<u64>, now: Instant) {
        self.misses += 1;
        // The first observation is no progress yet.
        if self.activity.is_some() && activity.is_some() && activity != self.activity {
            self.active_at = now;
        }
        self.activity = activity;
    }

    /// Returns true if the runner neither replies nor makes progress, or makes progress without a
    /// reply for far too long.
    fn is_hung(&self, silence_max: Duration, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.answered_at);
        let idle = now.saturating_duration_since(self.answered_at.max(self.active_at));
        self.misses >= MISSES_MIN
            && (idle >= silence_max || silence >= silence_max * ACTIVE_SILENCE_FACTOR)
    }
}

impl RunnerWatchdog {
    /// Starts the thread. `live` lists the runs that have not ended.
    pub(crate) fn start(
        fleet: EngineContext,
        unheard_max: Duration,
        live: impl Fn() -> Vec<RunId> + Send + 'static,
    ) -> io::Result<RunnerWatchdog> {
        let (stop, stopped) = sync_channel(1);
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        let thread =
            std::thread::Builder::new().name("heeler-pulse".to_owned()).spawn(move || {
                let readers = ReaderPool::new(fleet.dir.clone(), IDLE_READERS_MAX);
                let mut known = HashMap::new();
                // A dropped sender ends the thread at once, without waiting for the interval.
                while stopped.recv_timeout(unheard_max / CHECKS_PER_SILENCE)
                    == Err(RecvTimeoutError::Timeout)
                {
                    check_runners(&fleet, &readers, unheard_max, &live(), &mut known, &ending);
                }
            })?;
        Ok(RunnerWatchdog { stop: Some(stop), is_ending, thread: Some(thread) })
    }
}

impl Drop for RunnerWatchdog {
    fn drop(&mut self) {
        // A pass over many silent runners may take long, so it is cut short.
        self.is_ending.store(true, Ordering::Relaxed);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the watchdog thread had panicked");
        }
    }
}

fn check_runners(
    fleet: &EngineContext,
    readers: &ReaderPool,
    unheard_max: Duration,
    live: &[RunId],
    known: &mut HashMap<RunId, RunnerHealth>,
    is_ending: &AtomicBool,
) {
    known.retain(|run, _| live.contains(run));
    for &run in live {
        if is_ending.load(Ordering::Relaxed) {
            return;
        }
        let folder = fleet.dir.run(run);
        // Its end is about to be recorded.
        if cancel::has_run_ended(&folder) {
            continue;
        }
        let now = Instant::now();
        // The time is counted from here, because a runner of an earlier daemon was not observed.
        let known = known.entry(run).or_insert_with(|| {
            let limit = time_limit(readers, run, &folder);
            RunnerHealth::new(now, limit.map(|limit| now + limit + unheard_max * OVERTIME_FACTOR))
        });
        let why = match ping_runner(&folder) {
            Ok(()) => {
                known.record_reply(Instant::now());
                None
            }
            Err(error) => {
                let activity = heeler_process::find_runner(&folder).and_then(process_activity);
                known.record_miss(activity, Instant::now());
                Some(error_chain(&error))
            }
        };
        let is_late = known.deadline.is_some_and(|late| late < now);
        if let Some(why) = &why
            && known.is_hung(unheard_max, Instant::now())
        {
            let seconds = known.answered_at.elapsed().as_secs();
            kill_mute_runner(run, &folder, &format!("it has not answered for {seconds} s: {why}"));
        } else if is_late {
            let seconds = known.since.elapsed().as_secs();
            kill_mute_runner(run, &folder, &format!("after {seconds} s it is past its time limit"));
        }
    }
}

fn ping_runner(folder: &Utf8Path) -> Result<(), ControlError> {
    let asked = ControlClient::connect_to_run(folder).and_then(|mut control| {
        control.set_reply_timeout(ANSWER_WAIT)?;
        control.request(ControlOperation::Status)
    });
    match asked {
        // A reply in an unknown protocol is also a sign of life.
        Ok(_) | Err(ControlError::Protocol { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the time limit of a run. Without one that its daemon wrote, only the runner ends the run
/// at its limit.
fn time_limit(readers: &ReaderPool, run: RunId, folder: &Utf8Path) -> Option<Duration> {
    let record = readers.reader().ok()?.run(run).ok().flatten()?;
    match heeler_control::read_run_spec(folder, record.result_key.as_ref()) {
        Ok(spec) => spec?.limits.timeout_ms.map(Duration::from_millis),
        Err(error) => {
            tracing::warn!(%run, reason = error_chain(&error), "the spec of a run is not used");
            None
        }
    }
}

fn kill_mute_runner(run: RunId, folder: &Utf8Path, why: &str) {
    // Without the note the job would only say that its runner died. A missing note costs nothing
    // else.
    let _noted = untrusted_file::open_with(
        OpenOptions::new().write(true).create(true).mode(0o600),
        &folder.join(KILLED_NOTE),
    );
    match cancel::kill_runner(folder) {
        Ok(pid) => tracing::warn!(%run, pid, why, "a runner was killed"),
        Err(RunnerKillError::Gone(_)) => {}
        Err(error) => {
            tracing::error!(%run, why, reason = error_chain(&error), "a runner cannot be killed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(30);

    /// Observes a runner that does not reply, every five seconds; returns the time of its death.
    fn killed_after(activity: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let start = Instant::now();
        let mut health = RunnerHealth::new(start, None);
        (1..300).map(|check| check * 5).find(|&seconds| {
            let now = start + Duration::from_secs(seconds);
            health.record_miss(activity(seconds), now);
            health.is_hung(SILENCE, now)
        })
    }

    #[test]
    fn a_runner_that_is_stopped_or_gone_is_killed_and_a_slow_one_is_not() {
        assert_eq!(killed_after(|_| Some(7)), Some(30));
        assert_eq!(killed_after(|_| None), Some(30));
        // It gets a little time on a busy machine, and then none.
        assert_eq!(killed_after(|seconds| Some(seconds.min(60))), Some(90));
        // It executes for ten minutes without a reply.
        assert_eq!(killed_after(Some), Some(600));
    }

    #[test]
    fn a_reply_begins_the_silence_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = RunnerHealth::new(start, None);
        (1..=4).for_each(|check| health.record_miss(Some(1), at(check * 5)));
        health.record_reply(at(25));
        (6..=10).for_each(|check| health.record_miss(Some(2), at(check * 5)));
        assert!(!health.is_hung(SILENCE, at(50)));
        health.record_miss(Some(2), at(55));
        assert!(health.is_hung(SILENCE, at(55)));
    }
}
