//! The dispatcher: the event loop that owns a fleet's state and makes every scheduling decision.
//!
//! Each turn of the loop takes all commands, run exits and due times that have arrived, applies
//! them in one transaction, and executes effects only after the commit. Events of a failed commit
//! have no effect; committed effects are executed again by the next daemon if this one dies. The
//! loop never waits for an agent, for a slow disk while settling a run, or for a client. Start at
//! [`Dispatcher::run`].

mod access;
mod approvals;
mod chat_commands;
mod chat_events;
mod chat_posts;
mod chat_questions;
mod child_jobs;
mod command_routing;
mod commands;
mod commit;
mod config_changes;
mod deferred_work;
mod disk_space;
mod dispatcher;
mod dispatcher_state;
mod event;
mod github_checklist;
mod github_fan_out;
mod github_tasks;
mod hook_authorization;
mod host_placement;
mod idempotency;
mod imported_runs;
mod job_costs;
mod lost_hosts;
mod notice_checks;
mod notifications;
mod push_browsers;
mod question_notices;
mod renaming;
mod review_parts;
mod run_cards;
mod run_exits;
mod said_messages;
mod schedules;
mod shutdown;
mod status;
mod transaction;
mod watch_registry;
mod webhook;
mod webhook_workflow;
mod work_source;
mod workflow_parts;
mod workflows;

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::fleet::{FleetEffect, FleetEvent};
use heeler_model::{RunId, error_chain};
use heeler_store::{DatabaseError, StoreReader, StoreWriteError};
use jiff::SignedDuration;

pub use commands::RESUME_PROMPT;
pub(crate) use deferred_work::DeferredWork;
pub(crate) use dispatcher::Dispatcher;
pub use dispatcher::{DaemonExit, SetupLoader};
pub(crate) use dispatcher_state::DispatcherState;
pub use idempotency::{REQUEST_RETENTION, recorded_reply};
pub use webhook::{WebhookEndpoint, WebhookSecret};

use crate::cancel;
use crate::command::{DaemonMode, DispatcherStoppedError, PendingReply};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::sessions;
use event::{DispatchEffect, DispatchEvent};

/// Longest sleep of the loop. A jump of the system clock is noticed within this time. In tests it is
/// longer than any test, so that a time for which the loop does not wake is a failure.
const SLEEP_MAX: Duration = Duration::from_secs(if cfg!(test) { 3_600 } else { 30 });

/// Maximum number of inputs per transaction.
const INPUTS_PER_TURN: usize = 256;

/// Interval at which a [`DaemonMode::UntilIdle`] daemon checks whether it can exit.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Interval between searches for expired sessions.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// Interval at which files of old jobs are moved to the trash.
const RETENTION_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Retention of the outcomes of due times. The newest one of each schedule is always kept.
const DUE_TIMES_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);

impl Dispatcher {
    /// Runs until the daemon is stopped, is idle, or loses its state directory.
    pub(crate) fn run(mut self) -> DaemonExit {
        let ended = self.run_loop();
        match ended {
            DaemonExit::Stopped | DaemonExit::Idle => {
                self.stop_hooks();
                self.note_orderly_end();
                // The next daemon could not tell a later change of a person from one of a run.
                self.check_config_exposure();
            }
            // Their outcomes cannot be recorded.
            DaemonExit::StateLost | DaemonExit::LeadLost => self.hooks.request_stop(),
        }
        ended
    }

    fn run_loop(&mut self) -> DaemonExit {
        self.begin_turn();
        // Continue the work of an earlier daemon.
        let setup = Arc::clone(&self.state().setup);
        // The loaded state has an empty calendar. This event puts the schedules into it.
        let is_permanent = self.mode == DaemonMode::Permanent;
        self.commit(vec![
            (DispatchEvent::SetupReloaded { setup, changes: None, is_confirmed: false }, None),
            (DispatchEvent::DaemonStarted { is_permanent }, None),
        ]);
        let left: Vec<RunId> = self.state().fleet.runs().keys().copied().collect();
        self.executor.adopt_runs(left);
        self.executor.end_given_up_runs();
        // A run may have ended meanwhile. Its cancellation then finds the result and does nothing.
        self.resume_cancellations();
        // An earlier daemon may have died between the commit of a session change and the moves.
        self.executor.move_sessions();
        // Nor was it sure that its tasks on GitHub were executed.
        self.executor.run_github_tasks();
        if self.runs_schedules() {
            self.executor.fetch_missed_deliveries();
        }
        self.executor.run_chat_posts();
        self.send_said_messages();
        self.resume_run_cards();
        self.executor.run_notices();
        self.admit_jobs();
        self.update_watches();
        self.update_chat_links();
        loop {
            if let Some(ended) = self.exit_if_done() {
                return ended;
            }
            let inputs = self.receive_inputs();
            self.begin_turn();
            // Dropped inputs make their callers receive `DispatcherStoppedError`.
            if !self.store.is_directory_intact() {
                return DaemonExit::StateLost;
            }
            if inputs.iter().any(|input| matches!(input, DispatchInput::LeadLost))
                || self.fleet.lead.is_lost()
            {
                tracing::warn!(
                    "another host leads the fleet now, or the database has lost the last changes"
                );
                return DaemonExit::LeadLost;
            }
            // All inputs of a turn share one commit, because each commit is a sync.
            let tasks = inputs.into_iter().filter_map(|input| self.route_input(input)).collect();
            self.retry_deferred();
            self.commit(tasks);
            // Before the admission: it may queue the next jobs of a workflow.
            self.retry_config_check();
            self.admit_jobs();
            self.apply_retention();
            self.expire_sessions();
            self.executor.retry_github_tasks();
            self.executor.retry_chat_posts();
            self.executor.run_due_notices();
            self.check_chat_links();
            self.update_watches();
            self.update_chat_links();
        }
    }

    /// Notes the time before anything of a turn is decided. A time that passes during the turn may be
    /// too late for the turn's decisions, so the loop must still wake for it.
    fn begin_turn(&mut self) {
        self.deferred.turn_began_at = Some((self.fleet.now)());
    }

    /// Sends the stored cancellation requests to their runs. An earlier daemon may have died before
    /// it did.
    fn resume_cancellations(&self) {
        let wishes = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error));
        let wishes = wishes
            .and_then(|reader| cancel::pending_requests(&reader).map_err(|it| error_chain(&it)));
        match wishes {
            Ok(wishes) => {
                for (run, wish) in wishes {
                    self.executor.cancel_run(run, wish.now, wish.by);
                }
            }
            Err(why) => tracing::error!(why, "cannot read the pending cancellations"),
        }
    }

    /// Updates the file watches of schedules and config.
    fn update_watches(&mut self) {
        if self.runs_schedules() {
            // The guard must borrow the clone, because `self.deferred` is borrowed mutably below.
            let board = Arc::clone(&self.state);
            let board = board.lock().unwrap_or_else(PoisonError::into_inner);
            self.deferred.watches.update(&board, self.fleet.dir.root(), self.executor.dispatcher());
        }
    }

    /// Connects to the chat platforms that the config names. A daemon for one command connects to none.
    fn update_chat_links(&mut self) {
        if self.runs_schedules() {
            let setup = Arc::clone(&self.state().setup);
            let dispatcher = self.executor.dispatcher();
            self.deferred.chat_links.update(&setup, dispatcher, &self.fleet);
        } else {
            self.deferred.chat_links.stop();
        }
    }

    /// Periodically moves files of old jobs to the trash and prunes old due times.
    fn apply_retention(&mut self) {
        let due = self.deferred.retention_at.is_none_or(|at| Instant::now() >= at);
        if due && self.runs_schedules() {
            self.deferred.retention_at = Some(Instant::now() + RETENTION_INTERVAL);
            self.executor.apply_retention();
            self.prune_due_times();
            self.prune_notices();
        }
    }

    /// Deletes old due times of a few schedules at a time.
    fn prune_due_times(&mut self) {
        // If the limit is before all timestamps, nothing is old enough.
        let Ok(before) = (self.fleet.now)().checked_sub(DUE_TIMES_KEPT) else { return };
        let after = self.deferred.pruned_schedule.take();
        let pruned: Result<_, StoreWriteError<DatabaseError>> =
            self.store.write(move |tx| tx.prune_due_times(after, before));
        match pruned {
            Ok(last) => self.deferred.pruned_schedule = last,
            // Harmless, and the next commit reports a persistent problem.
            Err(error) => tracing::debug!(reason = error_chain(&error), "old due times are kept"),
        }
    }

    /// Periodically marks unused sessions as expired. This is for display only: a session's age
    /// decides at each start whether it is resumed.
    fn expire_sessions(&mut self) {
        if self.deferred.expire_at.is_some_and(|at| Instant::now() < at)
            || self.deferred.stop.is_some()
        {
            return;
        }
        self.deferred.expire_at = Some(Instant::now() + EXPIRE_EVERY);
        let (setup, now) = (Arc::clone(&self.state().setup), (self.fleet.now)());
        // A failure only delays a mark that is for display.
        let reader = StoreReader::open(&self.fleet.dir).ok();
        let (loaded, most) = (&setup.loaded, sessions::EXPIRED_MAX);
        let expired =
            reader.and_then(|it| heeler_store::expired_sessions(&it, loaded, now, most).ok());
        if expired.is_some_and(|expired| !expired.is_empty()) {
            self.commit(vec![(DispatchEvent::ExpireSessions, None)]);
        }
    }

    /// Waits until an input arrives or something is due, and takes all inputs that have arrived.
    fn receive_inputs(&mut self) -> Vec<DispatchInput> {
        let mut inputs = match self.inputs.recv_timeout(self.receive_timeout()) {
            Ok(input) => vec![input],
            // The executor holds a sender, so the channel is not disconnected while this loop runs.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Vec::new(),
        };
        // The limit keeps a transaction short even if inputs arrive faster than they are applied.
        while inputs.len() < INPUTS_PER_TURN
            && let Ok(input) = self.inputs.try_recv()
        {
            inputs.push(input);
        }
        inputs
    }

    fn receive_timeout(&self) -> Duration {
        let now = (self.fleet.now)();
        let decided_at = self.deferred.turn_began_at.map_or(now, |began| began.min(now));
        let board = self.state();
        let due = board
            .wake_at(decided_at, self.runs_schedules())
            // While commits fail, nothing due is decided. Waking up for it would spin until the
            // retry.
            .filter(|_| self.deferred.failed_commit.is_none());
        let until_due =
            due.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let again = self.deferred.failed_commit.as_ref().map(|failed| until(failed.retry_at));
        let stop = self.deferred.stop.as_ref().and_then(|stop| stop.deadline).map(until);
        let idle = (self.mode == DaemonMode::UntilIdle && board.fleet.runs().is_empty())
            .then_some(IDLE_CHECK_INTERVAL);
        let unsettled = self.deferred.unsettled.iter().map(|(at, _)| until(*at)).min();
        let space = self.deferred.full_disk.as_ref().map(|full| until(full.check_at));
        let exposed = self.deferred.config_check.as_ref().map(|check| until(check.at));
        let github = self.executor.github_retry_at().map(until);
        let chat = self.executor.chat_retry_at().map(until);
        let notices = self.executor.notices_due_at();
        let notices =
            notices.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        let all = [until_due, again, stop, idle, unsettled, space, exposed, github, chat, notices];
        all.into_iter().flatten().fold(SLEEP_MAX, Duration::min)
    }

    /// Handles inputs that need no transaction; returns the event of those that do.
    fn route_input(
        &mut self,
        input: DispatchInput,
    ) -> Option<(DispatchEvent, Option<PendingReply>)> {
        match input {
            DispatchInput::Command { command, caller, pending } => {
                self.route_authorized_command(command, caller, pending)
            }
            DispatchInput::JobPrepared { prepared, pending: owed } => {
                Some((DispatchEvent::JobPrepared(prepared), owed))
            }
            DispatchInput::RunEnded(gone) => {
                // The run has a result now, so its earlier fault is over.
                self.deferred.faults.remove(&gone.result.run);
                self.hold_starts_on_full_disk(&gone.result);
                Some((DispatchEvent::RunEnded(gone), None))
            }
            DispatchInput::MovesDue => Some((DispatchEvent::MovesDue, None)),
            DispatchInput::LeasesOver(runs) => Some((DispatchEvent::LeasesOver(runs), None)),
            DispatchInput::HookOutcome(outcome) => {
                Some((DispatchEvent::HookOutcome(outcome), None))
            }
            DispatchInput::SessionChange { change, by, pending: owed } => {
                Some((DispatchEvent::SessionChange { change, by }, Some(owed)))
            }
            DispatchInput::QuestionsChanged { run, questions: asks, delivered } => {
                fault::reach(FaultPoint::QuestionSeen);
                Some((DispatchEvent::QuestionsChanged { run, questions: asks, delivered }, None))
            }
            DispatchInput::RunUnsettled { run, why, retry_after: again } => {
                self.defer_settlement(run, why, again);
                None
            }
            DispatchInput::DeliveriesFetched { until } => {
                Some((DispatchEvent::DeliveriesFetched { until }, None))
            }
            DispatchInput::GithubTaskAttempted(result) => {
                Some((DispatchEvent::GithubTaskAttempted(result), None))
            }
            DispatchInput::ChatEvent { event, pending } => {
                if !self.runs_schedules() {
                    pending.send(Err(DispatcherStoppedError.into()));
                    return None;
                }
                Some((DispatchEvent::ChatEvent(event), Some(pending)))
            }
            input @ (DispatchInput::SlackCall(_) | DispatchInput::GithubChanged) => {
                self.deferred.chat_links.take_input(input);
                None
            }
            DispatchInput::ChatGap { change, pending } => {
                Some((DispatchEvent::ChatGap(change), Some(pending)))
            }
            DispatchInput::ChatPostAttempted(result) => {
                Some((DispatchEvent::ChatPostAttempted(result), None))
            }
            DispatchInput::RunCardChanged(change) => {
                Some((DispatchEvent::RunCardChanged(change), None))
            }
            DispatchInput::SaidMessageAttempted(result) => {
                Some((DispatchEvent::SaidMessageAttempted(result), None))
            }
            DispatchInput::NoticePlanned | DispatchInput::LeadLost | DispatchInput::HostHint => {
                None
            }
            DispatchInput::NoticeAttempted(result) => {
                Some((DispatchEvent::NoticeAttempted(result), None))
            }
            DispatchInput::WatchFired { request: wanted, changed } => {
                fault::reach(FaultPoint::Fired);
                // A daemon that is stopping must not create a job for a late event.
                self.runs_schedules()
                    .then_some((DispatchEvent::WatchFired { request: wanted, changed }, None))
            }
        }
    }

    /// Schedules another attempt to settle a run, because its end cannot be determined or recorded
    /// now.
    fn defer_settlement(&mut self, run: RunId, why: Option<String>, again: Duration) {
        if let Some(why) = why {
            tracing::warn!(%run, why, "a run cannot be settled yet");
            self.deferred.faults.insert(run, format!("run {run} cannot be settled yet: {why}"));
        }
        self.deferred.unsettled.push((Instant::now() + again, run));
    }

    /// Starts to prepare the queued jobs that may start now.
    fn admit_jobs(&mut self) {
        // Nothing starts while its start could not be recorded.
        if self.deferred.stop.is_some()
            || self.deferred.failed_commit.is_some()
            || !self.has_space_for_runs()
        {
            return;
        }
        let now = (self.fleet.now)();
        // The others are admitted in a later turn: each prepared job begins one.
        let preparations_max = self.executor.free_preparations();
        let event = FleetEvent::StartsAllowed { preparations_max };
        // A preparation is not recorded: for the next daemon the job just waits in the queue.
        let step = self.state().fleet.step(event, now);
        for effect in step.effects {
            if let FleetEffect::PrepareJob { job, request } = effect {
                self.executor.prepare_job(Some(job), *request, None);
            }
        }
    }

    fn execute_effect(&mut self, deed: DispatchEffect) {
        match deed {
            DispatchEffect::LaunchRunner { started: begun, request } => {
                self.executor.launch_runner(*begun, request);
            }
            DispatchEffect::StartAssignedRun { run } => self.executor.adopt_run(run),
            DispatchEffect::CancelRun { run, request } => {
                self.executor.cancel_run(run, request.now, request.by);
            }
            DispatchEffect::ReplaceSetup(setup) => {
                self.hooks.reload(setup.hook_config());
                self.snapshot.replace_setup(Arc::clone(&setup));
                self.executor.replace_setup(setup);
            }
            DispatchEffect::WakeHooks => {
                fault::reach(FaultPoint::BeforeHooks);
                self.hooks.wake();
            }
            DispatchEffect::MoveSessions => self.executor.move_sessions(),
            DispatchEffect::AppendLog { agent, text } => self.executor.append_log(agent, text),
            DispatchEffect::RunGithubTasks => self.executor.run_github_tasks(),
            DispatchEffect::RunChatPosts => self.executor.run_chat_posts(),
            DispatchEffect::ShowChatJob { job } => self.executor.show_chat_job(job),
            DispatchEffect::SendSaidMessages => self.send_said_messages(),
            DispatchEffect::RunNotices => self.executor.run_notices(),
            DispatchEffect::DeliverAnswer { approval, answer } => {
                self.executor.deliver_answer(approval, answer);
            }
        }
    }
}
