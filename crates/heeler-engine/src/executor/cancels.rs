//! Asks runs to end, again and again until they have received the request or have ended.
//!
//! The request is stored, so the next daemon repeats it. Start at [`EffectExecutor::cancel_run`].

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::run::{ControlOperation, ControlReplyBody, file};
use heeler_model::{RunId, error_chain};
use heeler_store::{StoreReader, is_run_alive};

use super::control_loop::{ControlExchange, ControlLane};
use super::{EffectExecutor, ExecutorContext};
use crate::cancel::{self, RunnerKillError};
use crate::recovery::adopt::list_run_folders;
use crate::work_limits::KeyClaim;
use heeler_control::{ControlError, REPLY_WAIT, read_started_file};

/// First delay between attempts to reach a run that must end.
const CANCEL_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Longest delay between attempts to reach a run that must end.
const CANCEL_RETRY_DELAY_MAX: Duration = Duration::from_secs(2);

/// Time limit for a runner's reply to an immediate cancellation. After it the runner is killed.
const FORCED_CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// A request that has not been received.
struct CancelAttempt {
    run: RunId,
    folder: Utf8PathBuf,
    now: bool,
    by: String,
    /// Delay before the next attempt.
    wait: Duration,
    _claim: KeyClaim<(RunId, bool)>,
}

/// Result of an attempt to cancel a run.
#[derive(Debug, PartialEq, Eq)]
enum CancelProgress {
    Finished,
    Unreached,
}

impl EffectExecutor {
    /// Asks a run to end, repeatedly until it has received the request or has ended. A request that
    /// is already on its way is not sent twice.
    pub(crate) fn cancel_run(&self, run: RunId, now: bool, by: String) {
        self.shared.cancel_run(run, now, by);
    }
}

impl ExecutorContext {
    pub(super) fn cancel_run(self: &Arc<Self>, run: RunId, now: bool, by: String) {
        let shared = Arc::clone(self);
        // Both kinds may be on their way at once: an immediate cancel must not wait for a graceful
        // one.
        let Some(claim) = shared.limits.cancels.claim((run, now)) else { return };
        let (folder, wait) = (shared.fleet.dir.run(run), CANCEL_RETRY_DELAY);
        let attempt = CancelAttempt { run, folder, now, by, wait, _claim: claim };
        self.deliverers.submit(move || shared.attempt_cancel(attempt));
    }
}

/// Requester of cancellations of runs that were given up.
const GIVEN_UP_BY: &str = "the fleet, which has given this run up";

impl EffectExecutor {
    /// Ends runs of this host that have a result on record: the fleet has given the host up while they
    /// ran ([`DaemonCommand::GiveUpHost`](crate::DaemonCommand::GiveUpHost)). Ends also those without a
    /// row: the database has lost it in a fail-over, and the job may be executed again.
    pub(crate) fn end_given_up_runs(&self) {
        let dir = &self.shared.fleet.dir;
        if dir.postgres().is_none_or(|location| location.host.is_none()) {
            return;
        }
        let found = list_run_folders(dir).map_err(|error| error.to_string()).and_then(|runs| {
            let reader = StoreReader::open(dir).map_err(|error| error_chain(&error))?;
            let alive = runs.into_iter().filter(|run| is_run_alive(&dir.run(*run)));
            // A runner that has written its result ends by itself.
            let busy = alive.filter(|run| !dir.run(*run).join(file::RESULT).exists());
            let is_ended = |run: &RunId| {
                reader.run(*run).is_ok_and(|record| record.is_none_or(|it| it.committed))
            };
            Ok(busy.filter(is_ended).collect::<Vec<RunId>>())
        });
        match found {
            Ok(runs) => runs.into_iter().for_each(|run| {
                tracing::warn!(%run, "the fleet has given this run up; it is cancelled");
                self.cancel_run(run, true, GIVEN_UP_BY.to_owned());
            }),
            Err(why) => tracing::warn!(why, "cannot look for runs that were given up"),
        }
    }
}

impl ExecutorContext {
    fn attempt_cancel(self: &Arc<Self>, attempt: CancelAttempt) {
        // Its own host finds the request on record.
        if self.is_elsewhere(attempt.run) {
            return;
        }
        // The run has ended on its own, and there may be nothing left to connect to.
        if cancel::has_run_ended(&attempt.folder) {
            return;
        }
        let started = match read_started_file(&attempt.folder) {
            Ok(started) => started,
            Err(error) => return self.conclude_cancel(attempt, Err(error)),
        };
        let shared = Arc::clone(self);
        self.control.send(ControlExchange {
            lane: ControlLane::Cancel,
            socket: started.socket,
            folder: attempt.folder.clone(),
            protocol: started.protocol,
            op: ControlOperation::Cancel { now: attempt.now, by: attempt.by.clone() },
            // A forced cancel has a short limit, because the runner is killed after it.
            timeout: if attempt.now { FORCED_CANCEL_TIMEOUT } else { REPLY_WAIT },
            done: Box::new(move |outcome| shared.conclude_cancel(attempt, outcome)),
        });
    }

    fn conclude_cancel(
        self: &Arc<Self>,
        mut attempt: CancelAttempt,
        outcome: Result<ControlReplyBody, ControlError>,
    ) {
        if attempt.judge(outcome) == CancelProgress::Finished {
            return;
        }
        let (shared, wait) = (Arc::clone(self), attempt.wait);
        attempt.wait = (wait * 2).min(CANCEL_RETRY_DELAY_MAX);
        self.control.submit_after(wait, move || shared.attempt_cancel(attempt));
    }
}

impl CancelAttempt {
    /// Returns true if a runner must be killed instead of asked again: it does not reply to an
    /// immediate cancellation, or it cannot be reached. An agent can replace or remove its runner's
    /// start file and socket.
    fn requires_kill(&self, error: &ControlError) -> bool {
        match error {
            ControlError::Imposter { .. } => true,
            // The run is starting, or is ending on its own; neither takes long.
            ControlError::NotStarted { .. } | ControlError::Gone { .. } => {
                self.wait >= CANCEL_RETRY_DELAY_MAX
            }
            _ => self.now,
        }
    }

    /// Decides what follows from an attempt, and kills a runner that must be killed.
    fn judge(&self, outcome: Result<ControlReplyBody, ControlError>) -> CancelProgress {
        let run = self.run;
        match outcome {
            Ok(ControlReplyBody::Refused { reason }) => {
                tracing::warn!(%run, reason, "a run refused to end");
                // A runner that refuses has received the request, so repeating it would not help.
                return CancelProgress::Finished;
            }
            Ok(_) => return CancelProgress::Finished,
            Err(error) if self.requires_kill(&error) => {
                tracing::warn!(%run, reason = error_chain(&error), "a runner cannot be asked to end and is killed");
                match cancel::kill_runner(&self.folder) {
                    Ok(_) => return CancelProgress::Finished,
                    // The end of a runner is noticed by the watcher. One that lives was not found,
                    // because it or an ancestor was just executing a program.
                    Err(RunnerKillError::Gone(_)) => {}
                    Err(error) => {
                        tracing::warn!(%run, reason = error_chain(&error), "cannot kill it");
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%run, reason = error_chain(&error), "a runner does not reply");
            }
        }
        // Without a start file the runner may still be starting, and must then get the request.
        let was_started = self.folder.join(file::STARTED).exists() || !self.folder.exists();
        match !is_run_alive(&self.folder) && was_started {
            true => CancelProgress::Finished,
            false => CancelProgress::Unreached,
        }
    }
}
