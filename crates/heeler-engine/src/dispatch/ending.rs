//! How a daemon ends: told to, with its jobs or without them, or because nothing is left to do.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use heeler_model::{JobId, chain, iso_millis};
use heeler_store::{DbError, Reader, STOPPED_AT, WriteError};

use super::{Dispatcher, Ended, Task};
use crate::command::{Answer, Command, DaemonMode, Input, Reply, Stopping};
use crate::fault::{self, FaultPoint};

/// How often it is looked whether the worker of hooks has ended.
const HOOKS_LOOK: Duration = Duration::from_millis(10);

/// How a stop goes on.
pub(super) struct Stop {
    pub(super) how: Stopping,
    pub(super) deadline: Option<Instant>,
    has_cancelled: bool,
    /// How many jobs were.
    cancelled: usize,
    replies: Vec<Reply>,
}

impl Dispatcher {
    /// Ends the worker of hooks and records what it still tells: what is not on record is done again.
    pub(super) fn end_hooks(&mut self) {
        self.hooks.ask_to_end();
        let mut told = Vec::new();
        loop {
            let has_ended = self.hooks.has_ended();
            match self.inputs.recv_timeout(HOOKS_LOOK) {
                Ok(Input::Hook(outcome)) => told.push((Task::Hook(outcome), None)),
                // Whoever asked for something else is told that nobody answers.
                Ok(_) => {}
                Err(_) if has_ended => break,
                Err(_) => {}
            }
        }
        self.commit(told);
    }

    pub(super) fn begin_stop(&mut self, how: Stopping, reply: Reply) {
        tracing::info!(ends = %how, "stopping");
        let deadline = match how {
            Stopping::Wait { timeout } => timeout.map(|timeout| Instant::now() + timeout),
            Stopping::Force => Some(Instant::now()),
            Stopping::KeepJobs => None,
        };
        let replies = self.pending.stop.take().map(|stop| stop.replies).unwrap_or_default();
        let mut stop = Stop { how, deadline, has_cancelled: false, cancelled: 0, replies };
        stop.replies.push(reply);
        self.pending.stop = Some(stop);
    }

    /// Ends, if it is time to.
    pub(super) fn end(&mut self) -> Option<Ended> {
        let Some(stop) = &mut self.pending.stop else {
            return self.is_idle().then_some(Ended::Idle);
        };
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let is_done = stop.how == Stopping::KeepJobs || board.live.is_empty();
        if is_done {
            let (left, stopped) = (board.live.len(), stop.cancelled);
            drop(board);
            let mut message = "stopped".to_owned();
            let waiting = self.board().queue_len();
            let counts = [
                ("were cancelled", stopped),
                ("go on", left),
                ("wait for the next start", waiting),
            ];
            for (what, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                message.push_str(&format!("; jobs that {what}: {count}"));
            }
            self.note_stopped();
            // It stays stopping: nothing is started while the last is written down.
            let replies = self.pending.stop.as_mut().map(|stop| std::mem::take(&mut stop.replies));
            for reply in replies.unwrap_or_default() {
                reply(Ok(Answer::Done { message: message.clone() }));
            }
            return Some(Ended::Stopped);
        }
        let is_late = stop.deadline.is_some_and(|at| at <= Instant::now());
        if is_late && !stop.has_cancelled {
            let now = stop.how == Stopping::Force;
            let jobs: Vec<JobId> = board.live.values().map(|live| live.job.clone()).collect();
            drop(board);
            let cancel = |job: JobId| {
                (Task::Order(Command::Cancel { job, now, by: "heeler stop".to_owned() }), None)
            };
            let count = jobs.len();
            let is_on_record = self.commit(jobs.into_iter().map(cancel).collect());
            if let Some(stop) = self.pending.stop.as_mut().filter(|_| is_on_record) {
                stop.has_cancelled = true;
                stop.cancelled = count;
                stop.deadline = None;
            }
        }
        None
    }

    /// Notes that a person stopped the fleet, so that no command's daemon goes on with what waits.
    fn note_stopped(&self) {
        let is_by_hand =
            self.pending.stop.as_ref().is_some_and(|stop| stop.how != Stopping::KeepJobs);
        if self.mode == DaemonMode::Permanent && is_by_hand {
            let now = iso_millis((self.fleet.now)());
            fault::reach(FaultPoint::BeforeStopped);
            let noted: Result<(), WriteError<DbError>> =
                self.store.write(move |tx| tx.set_meta(STOPPED_AT, &now));
            if let Err(error) = noted {
                tracing::warn!(reason = chain(&error), "cannot note that the fleet was stopped");
            }
            fault::reach(FaultPoint::AfterStopped);
        }
    }

    fn is_idle(&self) -> bool {
        let is_quiet = {
            let board = self.board();
            self.mode == DaemonMode::UntilIdle
                && board.live.is_empty()
                && board.asked.keys().all(|job| board.held.contains(job))
                && !board.has_more_of_workflows()
                && board.gate_expires_at.is_none()
                && self.clients.load(Ordering::SeqCst) == 0
        };
        is_quiet && !self.has_undone()
    }

    /// Says whether something on record is still to be done.
    fn has_undone(&self) -> bool {
        let undone = Reader::open(&self.fleet.dir).map(|reader| reader.undone_effects(1));
        matches!(undone, Ok(Ok(undone)) if !undone.is_empty())
    }
}
