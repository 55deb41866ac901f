//! Shutdown of the daemon: by command, with or without its jobs, or because it is idle.
//!
//! Start at [`Dispatcher::exit_if_done`].

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use heeler_model::{JobId, error_chain, iso_millis};
use heeler_store::{DatabaseError, STOPPED_AT, StoreReader, StoreWriteError};

use super::deferred_work::StopProgress;
use super::dispatcher::{DaemonExit, Dispatcher};
use super::event::DispatchEvent;
use crate::command::{CommandReply, DaemonCommand, DaemonMode, ReplyCallback, StopMode};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};

/// Poll interval while waiting for the hook worker to end.
const HOOKS_POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Dispatcher {
    /// Stops the hook worker and records its last outcomes. A hook without a recorded outcome is
    /// executed again.
    pub(super) fn stop_hooks(&mut self) {
        self.hooks.request_stop();
        let mut told = Vec::new();
        // The worker blocks until its outcomes are received, so joining it here could deadlock.
        loop {
            // This is read before the channel: what was sent before the end is then still received.
            let has_ended = self.hooks.has_ended();
            match self.inputs.recv_timeout(HOOKS_POLL_INTERVAL) {
                Ok(DispatchInput::HookOutcome(outcome)) => {
                    told.push((DispatchEvent::HookOutcome(outcome), None));
                }
                // Dropped inputs make their callers receive `DispatcherStoppedError`.
                Ok(_) => {}
                Err(_) if has_ended => break,
                Err(_) => {}
            }
        }
        self.commit(told);
    }

    pub(super) fn begin_stop(&mut self, how: StopMode, reply: ReplyCallback) {
        tracing::info!(ends = %how, "stopping");
        let deadline = match how {
            StopMode::Wait { timeout } => timeout.map(|timeout| Instant::now() + timeout),
            StopMode::Force => Some(Instant::now()),
            StopMode::KeepJobs => None,
        };
        // A second stop replaces the mode of the first one, whose callers still wait.
        let replies = self.deferred.stop.take().map(|stop| stop.replies).unwrap_or_default();
        let mut stop = StopProgress {
            mode: how,
            deadline,
            has_cancelled_jobs: false,
            cancelled_count: 0,
            replies,
        };
        stop.replies.push(reply);
        self.deferred.stop = Some(stop);
    }

    /// Returns the exit reason if the daemon can exit now.
    pub(super) fn exit_if_done(&mut self) -> Option<DaemonExit> {
        let Some(stop) = &mut self.deferred.stop else {
            return self.is_idle().then_some(DaemonExit::Idle);
        };
        let board = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // With `KeepJobs` the runs continue without a daemon, and the next one adopts them.
        let is_done = stop.mode == StopMode::KeepJobs || board.fleet.runs().is_empty();
        if is_done {
            let (left, stopped) = (board.fleet.runs().len(), stop.cancelled_count);
            // `self.state()` locks the same mutex again.
            drop(board);
            let mut message = "stopped".to_owned();
            let waiting = self.state().fleet.queue_len();
            let counts = [
                ("were cancelled", stopped),
                ("continue", left),
                ("wait for the next start", waiting),
            ];
            for (what, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                message.push_str(&format!("; jobs that {what}: {count}"));
            }
            // The note precedes the reply: a command after the reply must not start the queue
            // again.
            self.record_stopped();
            // `stop` stays set, so that nothing new starts while the last outcomes are recorded.
            let replies = self.deferred.stop.as_mut().map(|stop| std::mem::take(&mut stop.replies));
            for reply in replies.unwrap_or_default() {
                reply(Ok(CommandReply::Done { message: message.clone() }));
            }
            return Some(DaemonExit::Stopped);
        }
        let is_late = stop.deadline.is_some_and(|at| at <= Instant::now());
        if is_late && !stop.has_cancelled_jobs {
            let now = stop.mode == StopMode::Force;
            let jobs: Vec<JobId> =
                board.fleet.runs().values().map(|live| live.job.clone()).collect();
            // The commit locks the state on the writer's thread.
            drop(board);
            let cancel = |job: JobId| {
                (
                    DispatchEvent::Command(DaemonCommand::Cancel {
                        job,
                        now,
                        by: "heeler stop".to_owned(),
                    }),
                    None,
                )
            };
            let count = jobs.len();
            let is_on_record = self.commit(jobs.into_iter().map(cancel).collect());
            // If the commit failed, the deadline stays in the past and the next turn tries again.
            if let Some(stop) = self.deferred.stop.as_mut().filter(|_| is_on_record) {
                stop.has_cancelled_jobs = true;
                stop.cancelled_count = count;
                stop.deadline = None;
            }
        }
        None
    }

    /// Records that a person stopped the fleet, so that a daemon started by a later command does
    /// not continue the queue.
    fn record_stopped(&self) {
        let is_by_hand =
            // `KeepJobs` belongs to a restart, and its next daemon continues the queue.
            self.deferred.stop.as_ref().is_some_and(|stop| stop.mode != StopMode::KeepJobs);
        if self.mode == DaemonMode::Permanent && is_by_hand {
            let now = iso_millis((self.fleet.now)());
            fault::reach(FaultPoint::BeforeStopped);
            let noted: Result<(), StoreWriteError<DatabaseError>> =
                self.store.write(move |tx| tx.set_meta(STOPPED_AT, &now));
            // The stop succeeds all the same. At worst a later command continues the queue.
            if let Err(error) = noted {
                tracing::warn!(
                    reason = error_chain(&error),
                    "cannot note that the fleet was stopped"
                );
            }
            fault::reach(FaultPoint::AfterStopped);
        }
    }

    fn is_idle(&self) -> bool {
        let is_quiet = {
            let board = self.state();
            self.mode == DaemonMode::UntilIdle
                && board.fleet.runs().is_empty()
                // Held jobs wait until a person starts the fleet again.
                && board.fleet.jobs().all(|job| board.fleet.is_job_held(&job.entry.job))
                && !board.fleet.has_runnable_workflow_runs()
                && board.gate_expires_at.is_none()
                && self.clients.load(Ordering::SeqCst) == 0
        };
        // A kept agent ends with its conversation, or by its idle limit.
        is_quiet && !self.executor.has_kept_agents() && !self.has_pending_effects()
    }

    /// Returns true if recorded effects are still pending.
    fn has_pending_effects(&self) -> bool {
        // A database that cannot be read does not keep the daemon alive.
        let Ok(reader) = StoreReader::open(&self.fleet.dir) else { return false };
        let has_effects = reader.pending_effects(1).is_ok_and(|undone| !undone.is_empty());
        has_effects || self.has_new_notices(&reader)
    }
}
