//! The dispatcher: one loop that owns time and every change of a fleet's state.
//!
//! Commands, what became of runs, and time come in; each turn decides about all that is there in one
//! transaction, and only then acts: what was not committed never happened, and what was committed is
//! acted on again by the next daemon if this one dies. Nothing here waits for an agent, a disk that
//! is slow to settle a run, or a client. Start at [`Dispatcher::run`].

mod access;
mod approvals;
mod child_jobs;
mod command_routing;
mod commands;
mod commit;
mod fleet_state;
mod idempotency;
mod run_exits;
mod schedules;
mod shutdown;
mod status;
mod transaction;
mod watch_registry;
mod webhook;
mod workflow_parts;
mod workflows;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::{ApprovalId, JobId, JobRequest, RunId, error_chain};
use heeler_store::{DatabaseError, Store, StoreReader, StoreWriteError};
use jiff::{SignedDuration, Timestamp};

pub(crate) use command_routing::job_not_running;
pub use commands::RESUME_PROMPT;
pub(crate) use fleet_state::{FleetState, JobStage};
pub use idempotency::{REQUEST_RETENTION, recorded_reply};
pub use schedules::{parse_rule, rule_text};
pub use webhook::{WebhookEndpoint, WebhookSecret};

use crate::cancel;
use crate::command::{
    DaemonCommand, DaemonCommandError, DaemonMode, DispatchInput, PendingReply, RunExit,
};
use crate::executor::EffectExecutor;
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::fleet_monitor::FleetMonitor;
use crate::hooks::{HookOutcome, HookWorker};
use crate::resolved_request::ResolvedJobRequest;
use crate::run_questions::RunQuestionFiles;
use crate::run_start::StartedRun;
use crate::sessions::{self, SessionChange};
use crate::setup::DaemonSetup;
use commit::FailedCommit;
use shutdown::StopProgress;
use watch_registry::WatchRegistry;

/// The longest sleep: a clock that jumps is noticed after this at the latest.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// How many inputs are taken into one transaction.
const INPUTS_PER_TURN: usize = 256;

/// How often a daemon that ends when it is idle looks whether it is.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long config files must be at rest before they are read again.
const CONFIG_DEBOUNCE: Duration = Duration::from_millis(500);

/// How often sessions are looked through for expired ones.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// How often files of old jobs are put away.
const RETENTION_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// How long it is kept what became of due times; the newest of each schedule stays.
const DUE_TIMES_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Reads the config.
pub type SetupLoader = Box<dyn FnMut() -> Result<DaemonSetup, String> + Send>;

/// Something that is decided about inside a transaction.
#[derive(Debug)]
pub(crate) enum DispatchEvent {
    /// What a person asked.
    Command(DaemonCommand),
    /// A run can be started.
    JobPrepared(Box<PreparedJob>),
    /// A run has ended.
    RunEnded(Box<RunExit>),
    /// What came of hooks.
    HookOutcome(HookOutcome),
    /// A run asks something, or was answered.
    QuestionsChanged { run: RunId, questions: Box<RunQuestionFiles>, delivered: Option<ApprovalId> },
    /// A schedule fires that time does not start.
    WatchFired { request: Box<JobRequest>, changed: Vec<Utf8PathBuf> },
    /// The config was read again, with these changes if somebody wants to hear of them.
    SetupReloaded { setup: Arc<DaemonSetup>, changes: Option<Vec<String>> },
    /// Sessions are changed.
    SessionChange { change: Box<SessionChange>, by: String },
    /// Sessions that were not used for too long are put aside.
    ExpireSessions,
}

/// A job whose run can be started, or cannot.
#[derive(Debug)]
pub(crate) struct PreparedJob {
    /// The job; a new one if there is none yet.
    pub(crate) job: Option<JobId>,
    pub(crate) job_request: JobRequest,
    pub(crate) resolved: Result<Box<ResolvedJobRequest>, DaemonCommandError>,
}

/// What is done after a commit.
pub(crate) enum DispatchEffect {
    /// Start the runner of a run that is on record.
    LaunchRunner { started: Box<StartedRun>, request: Box<ResolvedJobRequest> },
    /// Work by another config from now on.
    ReplaceSetup(Arc<DaemonSetup>),
    /// Do the hooks that are on record.
    WakeHooks,
    /// Ask a run to end.
    CancelRun { run: RunId, now: bool, by: String },
    /// Bring the files of sessions to where the record says.
    MoveSessions,
    /// Write a line to an agent's log.
    AppendLog { agent: String, text: String },
}

/// How a daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonExit {
    /// It was told to.
    Stopped,
    /// Nothing was left to do.
    Idle,
    /// Its state directory was removed, moved or replaced.
    StateLost,
}

/// The loop.
pub(crate) struct Dispatcher {
    pub(crate) fleet: EngineContext,
    pub(crate) store: Arc<Store>,
    pub(crate) inputs: Receiver<DispatchInput>,
    pub(crate) executor: EffectExecutor,
    pub(crate) hooks: HookWorker,
    pub(crate) state: Arc<Mutex<FleetState>>,
    pub(crate) load: SetupLoader,
    pub(crate) mode: DaemonMode,
    pub(crate) since: Timestamp,
    pub(crate) version: String,
    /// How many clients wait for an answer.
    pub(crate) clients: Arc<AtomicUsize>,
    pub(crate) snapshot: FleetMonitor,
    pub(crate) deferred: DeferredWork,
}

/// What a dispatcher has to come back to.
#[derive(Default)]
pub(crate) struct DeferredWork {
    stop: Option<StopProgress>,
    /// What could not be recorded, while that is so.
    failed_commit: Option<FailedCommit>,
    /// Runs that could not be settled, and when that is tried again.
    unsettled: Vec<(Instant, RunId)>,
    faults: HashMap<RunId, String>,
    /// When files of old jobs are put away next.
    retention_at: Option<Instant>,
    /// The schedule whose old due times were forgotten last.
    pruned_schedule: Option<(String, String)>,
    /// When sessions are looked through next for expired ones.
    expire_at: Option<Instant>,
    /// Dropped after the dispatcher's inputs: once those are gone, it waits for nobody.
    watches: WatchRegistry,
}

impl Dispatcher {
    /// Works until it is stopped, or until nothing is left to do.
    pub(crate) fn run(mut self) -> DaemonExit {
        let ended = self.run_loop();
        match ended {
            DaemonExit::Stopped | DaemonExit::Idle => self.stop_hooks(),
            // There is no record any more that would say what of them was done.
            DaemonExit::StateLost => self.hooks.request_stop(),
        }
        ended
    }

    fn run_loop(&mut self) -> DaemonExit {
        // Whatever an earlier daemon left goes on.
        let setup = Arc::clone(&self.state().setup);
        self.commit(vec![(DispatchEvent::SetupReloaded { setup, changes: None }, None)]);
        let left: Vec<RunId> = self.state().unfinished_runs.keys().copied().collect();
        self.executor.adopt_runs(left);
        self.resume_cancellations();
        self.executor.move_sessions();
        self.admit_jobs();
        self.update_watches();
        loop {
            if let Some(ended) = self.exit_if_done() {
                return ended;
            }
            let inputs = self.receive_inputs();
            // Whoever asked is told that nobody answers.
            if !self.store.is_directory_intact() {
                return DaemonExit::StateLost;
            }
            let tasks = inputs.into_iter().filter_map(|input| self.route_input(input)).collect();
            self.retry_deferred();
            self.commit(tasks);
            self.admit_jobs();
            self.apply_retention();
            self.expire_sessions();
            self.update_watches();
        }
    }

    /// Asks runs to end whose wish is on record: an earlier daemon may have died before it did.
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
            Err(why) => tracing::error!(why, "cannot read which jobs are to be cancelled"),
        }
    }

    /// Has files watched that schedules wait for.
    fn update_watches(&mut self) {
        if self.runs_schedules() {
            let board = Arc::clone(&self.state);
            let board = board.lock().unwrap_or_else(PoisonError::into_inner);
            self.deferred.watches.update(&board, self.fleet.dir.root(), self.executor.dispatcher());
        }
    }

    /// Has files of old jobs put away and old due times forgotten, now and then.
    fn apply_retention(&mut self) {
        let due = self.deferred.retention_at.is_none_or(|at| Instant::now() >= at);
        if due && self.runs_schedules() {
            self.deferred.retention_at = Some(Instant::now() + RETENTION_INTERVAL);
            self.executor.apply_retention();
            self.prune_due_times();
        }
    }

    /// Forgets what became of due times long ago, of some schedules at a time.
    fn prune_due_times(&mut self) {
        let Ok(before) = (self.fleet.now)().checked_sub(DUE_TIMES_KEPT) else { return };
        let after = self.deferred.pruned_schedule.take();
        let pruned: Result<_, StoreWriteError<DatabaseError>> =
            self.store.write(move |tx| tx.prune_due_times(after, before));
        match pruned {
            Ok(last) => self.deferred.pruned_schedule = last,
            // It is no loss, and the next commit tells of it.
            Err(error) => tracing::debug!(reason = error_chain(&error), "old due times are kept"),
        }
    }

    /// Puts sessions aside that were not used for too long, now and then. Whether one is resumed is
    /// decided by its age in any case; this is for those who look.
    fn expire_sessions(&mut self) {
        if self.deferred.expire_at.is_some_and(|at| Instant::now() < at)
            || self.deferred.stop.is_some()
        {
            return;
        }
        self.deferred.expire_at = Some(Instant::now() + EXPIRE_EVERY);
        let (setup, now) = (Arc::clone(&self.state().setup), (self.fleet.now)());
        let reader = StoreReader::open(&self.fleet.dir).ok();
        let (loaded, most) = (&setup.loaded, sessions::EXPIRED_MAX);
        let expired = reader.and_then(|it| sessions::expired_sessions(&it, loaded, now, most).ok());
        if expired.is_some_and(|expired| !expired.is_empty()) {
            self.commit(vec![(DispatchEvent::ExpireSessions, None)]);
        }
    }

    fn state(&self) -> MutexGuard<'_, FleetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runs_schedules(&self) -> bool {
        self.mode == DaemonMode::Permanent && self.deferred.stop.is_none()
    }

    /// Waits until something comes in or is due, and takes all that is there.
    fn receive_inputs(&mut self) -> Vec<DispatchInput> {
        let mut inputs = match self.inputs.recv_timeout(self.receive_timeout()) {
            Ok(input) => vec![input],
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Vec::new(),
        };
        while inputs.len() < INPUTS_PER_TURN
            && let Ok(input) = self.inputs.try_recv()
        {
            inputs.push(input);
        }
        inputs
    }

    fn receive_timeout(&self) -> Duration {
        let now = (self.fleet.now)();
        let board = self.state();
        let due = board
            .wake_at(now, self.runs_schedules())
            .filter(|_| self.deferred.failed_commit.is_none());
        let until_due =
            due.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let again = self.deferred.failed_commit.as_ref().map(|failed| until(failed.retry_at));
        let stop = self.deferred.stop.as_ref().and_then(|stop| stop.deadline).map(until);
        let idle = (self.mode == DaemonMode::UntilIdle && board.unfinished_runs.is_empty())
            .then_some(IDLE_CHECK_INTERVAL);
        let unsettled = self.deferred.unsettled.iter().map(|(at, _)| until(*at)).min();
        let all = [until_due, again, stop, idle, unsettled];
        all.into_iter().flatten().fold(SLEEP_MAX, Duration::min)
    }

    /// Deals with what needs no transaction; returns what does.
    fn route_input(
        &mut self,
        input: DispatchInput,
    ) -> Option<(DispatchEvent, Option<PendingReply>)> {
        match input {
            DispatchInput::Command { command, caller: by, pending: owed } => {
                match self.authorize_command(command, by) {
                    Ok(command) => self.route_command(command, owed),
                    Err(refused) => {
                        owed.send(Err(refused));
                        None
                    }
                }
            }
            DispatchInput::JobPrepared { prepared, pending: owed } => {
                Some((DispatchEvent::JobPrepared(prepared), owed))
            }
            DispatchInput::RunEnded(gone) => {
                self.deferred.faults.remove(&gone.result.run);
                Some((DispatchEvent::RunEnded(gone), None))
            }
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
            DispatchInput::WatchFired { request: wanted, changed } => {
                fault::reach(FaultPoint::Fired);
                self.runs_schedules()
                    .then_some((DispatchEvent::WatchFired { request: wanted, changed }, None))
            }
        }
    }

    /// Notes that it cannot be found out or recorded now how a run ended. It is tried again.
    fn defer_settlement(&mut self, run: RunId, why: Option<String>, again: Duration) {
        if let Some(why) = why {
            tracing::warn!(%run, why, "a run cannot be settled yet");
            self.deferred.faults.insert(run, format!("run {run} cannot be settled yet: {why}"));
        }
        self.deferred.unsettled.push((Instant::now() + again, run));
    }

    /// Lets the jobs start whose turn it is.
    fn admit_jobs(&mut self) {
        if self.deferred.stop.is_some() || self.deferred.failed_commit.is_some() {
            return;
        }
        let now = (self.fleet.now)();
        let mut board = self.state();
        let waiting: Vec<JobId> = board
            .queue()
            .filter(|asked| asked.row.not_before.is_none_or(|at| at <= now))
            .filter(|asked| !board.held_jobs.contains(&asked.row.job))
            .map(|asked| asked.row.job.clone())
            .collect();
        let mut admitted = Vec::new();
        for job in waiting {
            let Some(asked) = board.unfinished_jobs.get(&job) else { continue };
            let setup = Arc::clone(&board.setup);
            let Ok(agent) = setup.agent_for(&asked.request) else { continue };
            if board.blocking_reason(&agent, now).is_none() && !board.is_behind_earlier_job(asked) {
                admitted.push((job.clone(), asked.request.clone()));
                board.set_stage(&job, JobStage::Preparing);
            }
        }
        drop(board);
        for (job, wanted) in admitted {
            self.executor.prepare_job(Some(job), wanted, None);
        }
    }

    fn execute_effect(&mut self, deed: DispatchEffect) {
        match deed {
            DispatchEffect::LaunchRunner { started: begun, request } => {
                self.executor.launch_runner(*begun, request)
            }
            DispatchEffect::CancelRun { run, now, by } => self.executor.cancel_run(run, now, by),
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
        }
    }
}
