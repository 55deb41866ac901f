//! Detects runners that are alive but do not reply: stopped, hung, or past their limits.
//!
//! A thread polls each runner. A runner that is silent for too long is killed by its process
//! descriptor; recovery treats the run like any other dead run. Start at [`RunnerWatchdog::start`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::run::{ControlOperation, RunSpec, file};
use heeler_model::{RunId, error_chain};

use crate::cancel::{self, RunnerKillError};
use crate::fleet::EngineContext;
use heeler_control::{ControlClient, ControlError};

/// Time after which a runner that does not reply counts as hung.
pub const RUNNER_SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time beyond its own limit after which a run is killed. A run ends itself at its limit,
/// gracefully first.
const OVERTIME: Duration = Duration::from_secs(120);

/// Time limit for one reply.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Number of polls within the allowed silence.
const CHECKS_PER_SILENCE: u32 = 6;

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
    /// Time after which the run is overdue, if it has a time limit.
    deadline: Option<Instant>,
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
                let mut known = HashMap::new();
                // A dropped sender ends the thread at once, without waiting for the interval.
                while stopped.recv_timeout(unheard_max / CHECKS_PER_SILENCE)
                    == Err(RecvTimeoutError::Timeout)
                {
                    check_runners(&fleet, unheard_max, &live(), &mut known, &ending);
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
        let known = known.entry(run).or_insert_with(|| RunnerHealth {
            since: now,
            answered_at: now,
            misses: 0,
            deadline: time_limit(&folder).map(|limit| now + limit + OVERTIME),
        });
        let why = match ping_runner(&folder) {
            Ok(()) => {
                (known.answered_at, known.misses) = (Instant::now(), 0);
                None
            }
            Err(error) => {
                known.misses += 1;
                Some(error_chain(&error))
            }
        };
        let is_late = known.deadline.is_some_and(|late| late < now);
        if let Some(why) = &why
            && known.misses >= MISSES_MIN
            && known.answered_at.elapsed() >= unheard_max
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

fn time_limit(folder: &Utf8Path) -> Option<Duration> {
    let spec = heeler_control::read_run_file::<RunSpec>(&folder.join(file::SPEC)).ok().flatten()?;
    spec.limits.timeout_ms.map(Duration::from_millis)
}

fn kill_mute_runner(run: RunId, folder: &Utf8Path, why: &str) {
    match cancel::kill_runner(folder) {
        Ok(pid) => tracing::warn!(%run, pid, why, "a runner was killed"),
        Err(RunnerKillError::Gone(_)) => {}
        Err(error) => {
            tracing::error!(%run, why, reason = error_chain(&error), "a runner cannot be killed");
        }
    }
}
