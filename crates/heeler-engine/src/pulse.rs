//! Runners that are there and yet do not answer: stopped, hung, or past their limits.
//!
//! A thread asks each now and then. One that is mute for too long is killed by its process
//! descriptor; what it leaves is settled like any dead run. Start at [`Pulse::start`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::run::{Op, RunSpec, file};
use heeler_model::{RunId, chain};

use crate::cancel::{self, KillError};
use crate::control::{Control, ControlError};
use crate::fleet::Fleet;

/// How long a runner may not answer.
pub const UNHEARD_MAX: Duration = Duration::from_secs(30);

/// How much longer than its own time limit a run may take: it ends itself, gracefully first.
const OVERTIME: Duration = Duration::from_secs(120);

/// How long one answer is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// How often runners are asked, in parts of how long they may be mute.
const ROUNDS: u32 = 6;

/// How often in a row a runner must not have answered: one that is slow once is not hung.
const MISSES_MIN: u32 = 3;

/// The thread.
#[derive(Debug)]
pub(crate) struct Pulse {
    stop: Option<SyncSender<()>>,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of a runner.
struct Known {
    since: Instant,
    heard: Instant,
    misses: u32,
    /// When it has taken too long, if it has a time limit.
    late: Option<Instant>,
}

impl Pulse {
    /// Starts the thread. `live` lists the runs that have not ended.
    pub(crate) fn start(
        fleet: Fleet,
        unheard_max: Duration,
        live: impl Fn() -> Vec<RunId> + Send + 'static,
    ) -> io::Result<Pulse> {
        let (stop, stopped) = sync_channel(1);
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        let thread =
            std::thread::Builder::new().name("heeler-pulse".to_owned()).spawn(move || {
                let mut known = HashMap::new();
                while stopped.recv_timeout(unheard_max / ROUNDS) == Err(RecvTimeoutError::Timeout) {
                    round(&fleet, unheard_max, &live(), &mut known, &ending);
                }
            })?;
        Ok(Pulse { stop: Some(stop), is_ending, thread: Some(thread) })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that asks runners had panicked");
        }
    }
}

fn round(
    fleet: &Fleet,
    unheard_max: Duration,
    live: &[RunId],
    known: &mut HashMap<RunId, Known>,
    is_ending: &AtomicBool,
) {
    known.retain(|run, _| live.contains(run));
    for &run in live {
        if is_ending.load(Ordering::Relaxed) {
            return;
        }
        let folder = fleet.dir.run(run);
        if folder.join(file::RESULT).exists() {
            continue;
        }
        let now = Instant::now();
        let known = known.entry(run).or_insert_with(|| Known {
            since: now,
            heard: now,
            misses: 0,
            late: time_limit(&folder).map(|limit| now + limit + OVERTIME),
        });
        let why = match answers(&folder) {
            Ok(()) => {
                (known.heard, known.misses) = (Instant::now(), 0);
                None
            }
            Err(error) => {
                known.misses += 1;
                Some(chain(&error))
            }
        };
        let is_late = known.late.is_some_and(|late| late < now);
        if let Some(why) = &why
            && known.misses >= MISSES_MIN
            && known.heard.elapsed() >= unheard_max
        {
            let seconds = known.heard.elapsed().as_secs();
            kill(run, &folder, &format!("it has not answered for {seconds} s: {why}"));
        } else if is_late {
            let seconds = known.since.elapsed().as_secs();
            kill(run, &folder, &format!("after {seconds} s it is past its time limit"));
        }
    }
}

fn answers(folder: &Utf8Path) -> Result<(), ControlError> {
    let asked = Control::of_run(folder).and_then(|mut control| {
        control.reply_within(ANSWER_WAIT)?;
        control.ask(Op::Status)
    });
    match asked {
        // It speaks, if not so that we understand it.
        Ok(_) | Err(ControlError::Protocol { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn time_limit(folder: &Utf8Path) -> Option<Duration> {
    let spec = crate::file::read::<RunSpec>(&folder.join(file::SPEC)).ok().flatten()?;
    spec.limits.timeout_ms.map(Duration::from_millis)
}

fn kill(run: RunId, folder: &Utf8Path, why: &str) {
    match cancel::kill_runner(folder) {
        Ok(pid) => tracing::warn!(%run, pid, why, "a runner was killed"),
        Err(KillError::Gone(_)) => {}
        Err(error) => {
            tracing::error!(%run, why, reason = chain(&error), "a runner cannot be killed");
        }
    }
}
