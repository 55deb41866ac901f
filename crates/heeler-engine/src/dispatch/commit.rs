//! The transaction of one dispatcher turn, and the handling of failed commits.
//!
//! After a failed commit, nothing new starts until one succeeds. The in-memory state is reloaded,
//! and events that would not be sent again are kept. Start at [`Dispatcher::commit`].

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::fleet::{FleetEvent, WorkflowEvent};
use heeler_model::{RunId, error_chain};
use heeler_store::{DatabaseError, StateDir, StoreReader, StoreTransaction, StoreWriteError};
use jiff::Timestamp;

use super::deferred_work::FailedCommit;
use super::dispatcher::Dispatcher;
use super::dispatcher_state::DispatcherState;
use super::event::{DispatchEffect, DispatchEvent};
use super::transaction::DispatchTransaction;
use crate::access::AccessOperation;
use crate::command::{
    CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind, IdempotencyKey,
    PendingReply,
};
use crate::dispatch_failure::DispatchFailure;
use crate::fault::{self, FaultPoint};
use crate::fleet_monitor::CommitNotice;
use crate::recovery::{self, RunFolderCheck};

/// Delay after a failed commit. Nothing new starts in the meantime.
const COMMIT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Reply to an event, or its refusal.
type EventOutcome = Result<Option<CommandReply>, DaemonCommandError>;

/// Result of a committed turn.
struct TransactionResult {
    outcomes: Vec<EventOutcome>,
    effects: Vec<DispatchEffect>,
    is_stale: bool,
    /// Paths of the views that show the changes.
    views: Vec<String>,
}

impl DispatchEvent {
    /// Returns true if the event changes users, tokens or logins.
    fn changes_access(&self) -> bool {
        let DispatchEvent::Command(DaemonCommand::Access { order, .. }) = self else {
            return false;
        };
        !matches!(order, AccessOperation::TokensUsed { .. })
    }

    /// Returns true if a job may end by the event. Commands that watch the job return then, and its
    /// views must be in place.
    fn may_end_a_job(&self) -> bool {
        match self {
            DispatchEvent::RunEnded(_) | DispatchEvent::LeasesOver(_) => true,
            DispatchEvent::JobPrepared(prepared) => prepared.resolved.is_err(),
            _ => false,
        }
    }

    /// Returns a copy of an event that its sender will not repeat.
    fn clone_if_unrepeatable(&self) -> Option<DispatchEvent> {
        match self {
            DispatchEvent::HookOutcome(outcome) => {
                Some(DispatchEvent::HookOutcome(outcome.clone()))
            }
            DispatchEvent::QuestionsChanged { run, questions: asks, delivered } => {
                Some(DispatchEvent::QuestionsChanged {
                    run: *run,
                    questions: asks.clone(),
                    delivered: delivered.clone(),
                })
            }
            DispatchEvent::GithubTaskAttempted(result) => {
                Some(DispatchEvent::GithubTaskAttempted(result.clone()))
            }
            DispatchEvent::DeliveriesFetched { until } => {
                Some(DispatchEvent::DeliveriesFetched { until: *until })
            }
            DispatchEvent::ChatPostAttempted(result) => {
                Some(DispatchEvent::ChatPostAttempted(result.clone()))
            }
            DispatchEvent::RunCardChanged(change) => {
                Some(DispatchEvent::RunCardChanged(change.clone()))
            }
            DispatchEvent::SaidMessageAttempted(result) => {
                Some(DispatchEvent::SaidMessageAttempted(result.clone()))
            }
            DispatchEvent::NoticeAttempted(result) => {
                Some(DispatchEvent::NoticeAttempted(result.clone()))
            }
            DispatchEvent::LinkChanged(link) => Some(DispatchEvent::LinkChanged(link.clone())),
            DispatchEvent::WatchFired { request: wanted, changed } => {
                Some(DispatchEvent::WatchFired {
                    request: wanted.clone(),
                    changed: changed.clone(),
                })
            }
            _ => None,
        }
    }
}

impl Dispatcher {
    /// Applies events and due work in one transaction, then executes the effects and sends the
    /// replies. Returns true if the transaction was committed.
    pub(super) fn commit(&mut self, tasks: Vec<(DispatchEvent, Option<PendingReply>)>) -> bool {
        let now = (self.fleet.now)();
        // Without this check an idle daemon would commit, and so sync, at every wake-up.
        if tasks.is_empty() && !self.has_due_work(now) {
            return true;
        }
        let (tasks, owed): (Vec<DispatchEvent>, Vec<Option<PendingReply>>) =
            tasks.into_iter().unzip();
        // The transaction needs only the keys; the replies stay on this thread.
        let keys: Vec<Option<IdempotencyKey>> =
            owed.iter().map(|owed| owed.as_ref()?.key.clone()).collect();
        let ended = |task: &DispatchEvent| match task {
            DispatchEvent::RunEnded(gone) => Some(gone.result.run),
            _ => None,
        };
        // The events are moved into the transaction, but a failure must name the runs to settle
        // again.
        let runs: Vec<Option<RunId>> = tasks.iter().map(ended).collect();
        // Keep events that their senders will not repeat.
        let once: Vec<DispatchEvent> =
            tasks.iter().filter_map(DispatchEvent::clone_if_unrepeatable).collect();
        // The transaction may replace the config in the shared state, which a failure must undo.
        let setup = Arc::clone(&self.state().setup);
        fault::reach(FaultPoint::BeforeCommit);
        let has_watchers = tasks.iter().any(DispatchEvent::may_end_a_job);
        let has_names = keys.iter().any(Option::is_some);
        let has_access = tasks.iter().any(DispatchEvent::changes_access);
        let began = Instant::now();
        let done = self.write_transaction(tasks.into_iter().zip(keys).collect(), now);
        let took = began.elapsed();
        // A kill here leaves committed effects that were not executed; the next daemon repeats
        // them.
        fault::reach(FaultPoint::AfterCommit);
        if has_names {
            fault::reach(FaultPoint::RequestDone);
        }
        if has_access {
            fault::reach(FaultPoint::AccessDone);
        }
        match done {
            Ok(written) => {
                self.finish_commit(written, owed, &runs, has_watchers);
                let ended = runs.into_iter().flatten().collect();
                self.snapshot.notify_listeners(&CommitNotice { duration: took, ended_runs: ended });
                true
            }
            Err(error) => {
                let why = error_chain(&error);
                tracing::error!(why, "the state cannot be saved: nothing new starts");
                let message = format!("the state cannot be saved: {why}");
                let refused = DaemonCommandError::new(DaemonCommandErrorKind::Trouble, message)
                    .with_hint("heeler doctor");
                owed.into_iter().flatten().for_each(|owed| owed.send(Err(refused.clone())));
                self.defer_after_failure(runs.into_iter().flatten().collect(), once);
                if let Some(failed) = &mut self.deferred.failed_commit {
                    failed.why = Some(format!("{}; nothing new starts", refused.message));
                }
                // A config that was not committed is not used.
                self.state().setup = setup;
                if matches!(error, StoreWriteError::Restored) {
                    self.accept_restore();
                }
                self.reload_state();
                false
            }
        }
    }

    /// Applies events and due work in one transaction.
    fn write_transaction(
        &self,
        tasks: Vec<(DispatchEvent, Option<IdempotencyKey>)>,
        now: Timestamp,
    ) -> Result<TransactionResult, StoreWriteError<DatabaseError>> {
        let (board, dir) = (Arc::clone(&self.state), self.fleet.dir.clone());
        let keeps_schedules = self.runs_schedules();
        // Like everything that starts jobs, due times wait until a commit has succeeded.
        let fires = keeps_schedules && self.deferred.failed_commit.is_none();
        let is_stopping = self.deferred.stop.is_some();
        self.store.write(move |tx| {
            // After a panic in an earlier turn the state was reloaded, so the poison means nothing
            // here.
            let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
            board.fleet.set_stopping(is_stopping);
            // The day changes first, because the reservations of this turn count for it.
            let day = board.fleet.rules().day_of(now);
            if day != board.fleet.ledger().day() {
                let spent = tx.daily_spend_by_agent(day)?;
                board.fleet.step(FleetEvent::DayChanged { day, spent }, now);
            }
            let mut work = TransactionContext {
                state: &mut board,
                dir: &dir,
                now,
                runs_schedules: keeps_schedules,
                is_stopping,
            };
            let mut outcomes = Vec::new();
            let mut deeds = Vec::new();
            for (task, key) in tasks {
                // Each event has its own savepoint, so that a failed one does not undo the others.
                let (outcome, more) =
                    work.run_in_savepoint(tx, |turn| turn.apply_once(task, key.as_ref()))?;
                outcomes.push(outcome);
                deeds.extend(more);
            }
            // Due times come after the events, so a schedule that is disabled in this turn does not
            // fire.
            let due = if fires { work.state.fleet.due_schedules(now) } else { Vec::new() };
            for (key, verdict) in due {
                // A refused schedule must not block the others.
                let (_, more) = work.run_in_savepoint(tx, |turn| {
                    turn.fire_due_schedule(&key, &verdict)?;
                    Ok(None)
                })?;
                deeds.extend(more);
            }
            let (_, more) = work.run_in_savepoint(tx, |turn| {
                turn.expire_gates()?;
                turn.step(FleetEvent::WorkflowStartsAllowed)?;
                Ok(None)
            })?;
            deeds.extend(more);
            // The list is taken once, so that a run with endless steps cannot hold the turn.
            for id in work.state.fleet.runnable_workflow_runs() {
                // A refused workflow run must not block the others, and is failed so that it is not
                // tried again.
                let (done, more) = work.run_in_savepoint(tx, |turn| {
                    turn.step_workflow(&id, WorkflowEvent::Continue)?;
                    Ok(None)
                })?;
                deeds.extend(more);
                if let Err(refused) = done {
                    let why = format!("it cannot continue: {}", refused.message);
                    let (_, more) = work.run_in_savepoint(tx, |turn| {
                        turn.fail_workflow_run(&id, &why)?;
                        Ok(None)
                    })?;
                    deeds.extend(more);
                }
            }
            let (_, more) = work.run_in_savepoint(tx, |turn| {
                turn.close_chat_questions()?;
                Ok(turn.close_notices().map(|()| None)?)
            })?;
            deeds.extend(more);
            let (_, more) = work.run_in_savepoint(tx, |turn| {
                turn.step(FleetEvent::TimePassed)?;
                Ok(None)
            })?;
            deeds.extend(more);
            let (views, is_stale) = (tx.marked_views(), board.is_stale);
            Ok(TransactionResult { outcomes, effects: deeds, is_stale, views })
        })
    }

    /// Executes the effects of a committed turn, and sends the replies. A reply whose receiver may read
    /// views is sent once they are published. The dispatcher does not wait for that.
    fn finish_commit(
        &mut self,
        written: TransactionResult,
        owed: Vec<Option<PendingReply>>,
        runs: &[Option<RunId>],
        has_watchers: bool,
    ) {
        let TransactionResult { outcomes, effects: deeds, is_stale, views } = written;
        let mut replies = Vec::new();
        // The rows of the parts that succeeded are committed, so only the memory must be replaced.
        if is_stale {
            self.reload_state();
        }
        for ((owed, outcome), run) in owed.into_iter().zip(outcomes).zip(runs) {
            // The run's folder still has the result. The next settlement reads it from there.
            if let (Err(refused), Some(run)) = (&outcome, run) {
                self.defer_settlement(*run, Some(refused.message.clone()), COMMIT_RETRY_DELAY);
            }
            let Some(owed) = owed else { continue };
            let nothing = || CommandReply::Done { message: String::new() };
            match outcome {
                Ok(answer) if owed.waits_for_views => {
                    replies.push((owed, answer.unwrap_or_else(nothing)));
                }
                Ok(answer) => owed.send(Ok(answer.unwrap_or_else(nothing))),
                // A refusal implies no file.
                Err(refused) => owed.send(Err(refused)),
            }
        }
        // A caller that has its reply finds the new config.
        let is_setup = |deed: &DispatchEffect| matches!(deed, DispatchEffect::ReplaceSetup(_));
        let (setups, deeds): (Vec<_>, Vec<_>) = deeds.into_iter().partition(is_setup);
        setups.into_iter().for_each(|deed| self.execute_effect(deed));
        if !replies.is_empty() || has_watchers {
            let send_replies = move || {
                replies.into_iter().for_each(|(owed, answer)| owed.send(Ok(answer)));
            };
            self.store.publish_then(views, Box::new(send_replies));
        }
        deeds.into_iter().for_each(|deed| self.execute_effect(deed));
    }

    /// Returns true if the time requires a transaction although there is no event.
    fn has_due_work(&self, now: Timestamp) -> bool {
        let board = self.state();
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        let schedules = self.runs_schedules() && board.fleet.calendar().is_due(now);
        // A new day may free budget for queued jobs.
        let is_new_day = board.fleet.rules().day_of(now) != board.fleet.ledger().day();
        schedules
            || is_new_day
            || board.fleet.has_runnable_workflow_runs()
            || is_due(board.gate_expires_at)
            || board.fleet.is_time_due(now)
    }

    /// Reloads the in-memory state, which may differ from the database.
    fn reload_state(&mut self) {
        let (setup, now) = (Arc::clone(&self.state().setup), (self.fleet.now)());
        let read = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error));
        let read = read.and_then(|reader| {
            DispatcherState::load(&reader, Arc::clone(&setup), now)
                .map_err(|error| error_chain(&error))
        });
        match read {
            // The config in use stays in use: its files may have changed without a reload.
            Ok(mut board) => {
                let mut old = self.state();
                board.restore_unredacted(&old);
                // A commit that returned an error may still have succeeded. Its new runs are not
                // watched yet.
                let new =
                    board.fleet.runs().keys().filter(|run| !old.fleet.runs().contains_key(run));
                let new: Vec<RunId> = new.copied().collect();
                *old = board;
                drop(old);
                self.defer_after_failure(new, Vec::new());
            }
            Err(why) => {
                tracing::error!(why, "the state cannot be read");
                // The old state may differ from the database, so nothing may be decided with it.
                self.state().is_stale = true;
                self.defer_after_failure(Vec::new(), Vec::new());
            }
        }
    }

    /// Continues with a state directory that was restored from an archive.
    fn accept_restore(&mut self) {
        let accepted = self.store.accept_restore().map(|_| ()).map_err(|error| error_chain(&error));
        let accepted = accepted.and_then(|()| {
            // The archive may lack the rows of runs whose folders exist, and some may be alive.
            recovery::complete_records(&self.fleet, &self.store, RunFolderCheck::WhenDue)
                .map_err(|it| error_chain(&it))
        });
        match accepted {
            Ok(()) => {
                tracing::warn!("the state was restored from an archive and is used from now on");
            }
            Err(why) => tracing::error!(why, "a restored state cannot be used yet"),
        }
    }

    /// Lets nothing new start until the retry, and keeps the work to repeat.
    pub(super) fn defer_after_failure(&mut self, runs: Vec<RunId>, tasks: Vec<DispatchEvent>) {
        let failed = self.deferred.failed_commit.get_or_insert_with(|| FailedCommit {
            retry_at: Instant::now() + COMMIT_RETRY_DELAY,
            why: None,
            runs: Vec::new(),
            events: Vec::new(),
        });
        // An earlier failure keeps its retry time, so repeated failures do not postpone it.
        failed.runs.extend(runs);
        failed.events.extend(tasks);
    }

    pub(super) fn retry_deferred(&mut self) {
        let now = Instant::now();
        let (due, later) =
            std::mem::take(&mut self.deferred.unsettled).into_iter().partition(|it| it.0 <= now);
        self.deferred.unsettled = later;
        let due: Vec<(Instant, RunId)> = due;
        due.into_iter().for_each(|(_, run)| self.executor.adopt_run(run));
        if self
            .deferred
            .failed_commit
            .as_ref()
            .is_none_or(|failed| failed.retry_at > Instant::now())
        {
            return;
        }
        let Some(FailedCommit { runs, events: tasks, .. }) = self.deferred.failed_commit.take()
        else {
            return;
        };
        // Nothing is committed on a stale state: only the read is retried.
        if self.state().is_stale {
            self.reload_state();
            self.defer_after_failure(runs, tasks);
            return;
        }
        let setup = Arc::clone(&self.state().setup);
        // The calendar of a reloaded state is empty. This event fills it.
        let setup = DispatchEvent::SetupReloaded { setup, changes: None, is_confirmed: false };
        let tasks = std::iter::once(setup).chain(tasks);
        self.commit(tasks.map(|task| (task, None)).collect());
        // A run whose commit failed is settled again, which finds the result in its folder.
        runs.into_iter().for_each(|run| self.executor.adopt_run(run));
    }
}

/// Inputs for applying events one after another.
struct TransactionContext<'w> {
    state: &'w mut DispatcherState,
    dir: &'w StateDir,
    now: Timestamp,
    runs_schedules: bool,
    is_stopping: bool,
}

impl TransactionContext<'_> {
    /// Runs a part that may fail on its own, under a savepoint. On failure the in-memory state
    /// counts as stale.
    fn run_in_savepoint(
        &mut self,
        tx: &mut StoreTransaction<'_>,
        part: impl FnOnce(
            &mut DispatchTransaction<'_, '_>,
        ) -> Result<Option<CommandReply>, DispatchFailure>,
    ) -> Result<(EventOutcome, Vec<DispatchEffect>), DatabaseError> {
        let TransactionContext { dir, now, runs_schedules: keeps_schedules, is_stopping, .. } =
            *self;
        // The part may replace the config before it fails, and a refused config is not used.
        let setup = Arc::clone(&self.state.setup);
        let board = &mut *self.state;
        let done = tx.with_savepoint(|tx| {
            let deeds = Vec::new();
            let mut turn = DispatchTransaction {
                tx,
                state: board,
                dir,
                now,
                runs_schedules: keeps_schedules,
                is_stopping,
                effects: deeds,
                pending_events: Vec::new(),
            };
            match part(&mut turn) {
                Ok(reply) => Ok((Ok(reply), turn.effects)),
                // A refusal is a reply. What was stored before it stays.
                Err(DispatchFailure::Refused(refused)) => Ok((Err(refused), turn.effects)),
                Err(DispatchFailure::Database(error)) => Err(error),
            }
        });
        match done {
            // A storage failure concerns the whole transaction, so it is no refusal of this part.
            Err(error) if !error.is_storage_failure() => {
                let why = error_chain(&error);
                tracing::error!(why, "a change was refused by the database");
                // The savepoint undoes only rows. The state machine has already changed.
                self.state.is_stale = true;
                self.state.setup = setup;
                Ok((
                    Err(DaemonCommandError::new(DaemonCommandErrorKind::Trouble, why)
                        .with_hint("heeler doctor")),
                    Vec::new(),
                ))
            }
            done => done,
        }
    }
}
