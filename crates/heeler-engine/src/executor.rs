//! Executes the dispatcher's effects on other threads: prepares and starts runners, collects run
//! results, cancels runs, delivers answers.
//!
//! Every operation may be interrupted at any point and repeated by the next daemon. Results return
//! to the dispatcher as [`DispatchInput`]. Start at [`EffectExecutor`].

mod answers;
mod assigned_runs;
mod cancels;
mod card_stream;
mod changed_settings;
mod chat_lane;
mod control_loop;
mod delivery_fetch;
mod github_lane;
mod host_messages;
mod job_files;
mod lead_wait;
mod limits;
mod live_lane;
mod live_thread;
mod messages;
mod missed_deliveries;
mod notice_lane;
mod preparation;
mod run_launch;
mod run_lease;
mod said_messages;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{
    ErrorClass, QuestionPolicy, ResultPublicKey, RunEnd, RunResult, RunSpec, file,
};
use heeler_model::{AgentName, ApprovalAnswer, ApprovalId, RunId, error_chain};
use heeler_store::{ReaderPool, RunRecord, StoreReader, is_run_alive};
use jiff::Timestamp;

use self::chat_lane::ChatLanes;
use self::control_loop::{ControlLoop, ControlQueue};
use self::github_lane::GithubLanes;
use self::live_lane::LiveLane;
pub(crate) use self::messages::SaidText;
use self::notice_lane::NoticeLane;
pub(crate) use self::said_messages::SaidMessageDelivery;
use crate::command::ReplyCallback;
use crate::daemon_handle::DaemonHandle;
use crate::dispatch_input::{DispatchInput, RunExit};
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::github::add_agent_token;
use crate::hooks;
use crate::launch;
use crate::logs::AgentLogs;
use crate::prepare::environment;
use crate::recovery;
use crate::resolved_request::ResolvedJobRequest;
use crate::retention;
use crate::run_questions::RunQuestionFiles;
use crate::run_start::StartedRun;
use crate::runner_watcher::RunnerWatcher;
use crate::sessions::{self, SessionMoveLocks};
use crate::setup::DaemonSetup;
use crate::thread_pool::{PoolQueue, PoolShutdown, ThreadPool};
use crate::work_limits::{WorkKeys, WorkSlots};

/// Number of dead runs that one process settles.
const SETTLE_BATCH_SIZE: usize = 64;

/// Delay before checking a run again that is alive but cannot be watched: its runner is just taking
/// its lock, or another process is settling it.
const RECHECK_DELAY: Duration = Duration::from_millis(200);

/// Delay before trying again to settle a run.
const SETTLE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Threads that execute the dispatcher's effects.
///
/// The fields are dropped in this order: first no request is sent to runs any more, then the pools
/// finish their work, which may use the pools below them.
#[derive(Debug)]
pub(crate) struct EffectExecutor {
    shared: Arc<ExecutorContext>,
    _control: ControlLoop,
    _deliverers: ThreadPool,
    starters: ThreadPool,
    session_preparers: ThreadPool,
    _cloners: ThreadPool,
    _collectors: ThreadPool,
    logger: ThreadPool,
    mover: ThreadPool,
    github: GithubLanes,
    chat: ChatLanes,
    live: LiveLane,
    notices: NoticeLane,
}

#[derive(Debug)]
struct ExecutorContext {
    fleet: EngineContext,
    dispatcher: DaemonHandle,
    control: ControlQueue,
    deliverers: PoolQueue,
    collectors: PoolQueue,
    cloners: PoolQueue,
    limits: WorkLimits,
    /// The current config.
    setup: Mutex<Arc<DaemonSetup>>,
    watcher: OnceLock<RunnerWatcher>,
    /// Readers for work that each run needs.
    readers: ReaderPool,
    /// Sessions with files that are being moved to the trash or back.
    move_locks: SessionMoveLocks,
}

/// Limits of the work that is queued or active.
#[derive(Debug)]
struct WorkLimits {
    preparations: WorkSlots,
    clones: WorkSlots,
    session_changes: WorkSlots,
    messages: WorkSlots,
    messages_of_run: WorkKeys<RunId>,
    /// A run has one cancellation of each kind: graceful and immediate.
    cancels: WorkKeys<(RunId, bool)>,
    answers: WorkKeys<ApprovalId>,
    /// Runs that the leader gave to this host, and that are being started.
    assigned_runs: WorkKeys<RunId>,
    question_reads: WorkKeys<RunId>,
    retention: WorkSlots,
    move_requests: WorkSlots,
    log_lines: WorkSlots,
    /// Log lines that were lost at the limit and are not reported yet.
    lost_log_lines: AtomicUsize,
}

impl WorkLimits {
    fn new() -> WorkLimits {
        WorkLimits {
            preparations: WorkSlots::new(limits::PREPARATIONS_MAX),
            clones: WorkSlots::new(limits::CLONES_MAX),
            session_changes: WorkSlots::new(limits::SESSION_CHANGES_MAX),
            messages: WorkSlots::new(limits::MESSAGES_MAX),
            messages_of_run: WorkKeys::new(limits::MESSAGES_PER_RUN_MAX),
            cancels: WorkKeys::new(1),
            answers: WorkKeys::new(1),
            assigned_runs: WorkKeys::new(1),
            question_reads: WorkKeys::new(1),
            retention: WorkSlots::new(1),
            move_requests: WorkSlots::new(1),
            log_lines: WorkSlots::new(limits::LOG_LINES_MAX),
            lost_log_lines: AtomicUsize::new(0),
        }
    }
}

impl EffectExecutor {
    /// Starts the threads.
    pub(crate) fn new(
        fleet: EngineContext,
        inbox: DaemonHandle,
        setup: Arc<DaemonSetup>,
    ) -> io::Result<EffectExecutor> {
        let finish = PoolShutdown::Finish;
        let starters = ThreadPool::new("heeler-start", limits::STARTERS, finish)?;
        // One thread, so that lines keep their order and rotation does not race with writing.
        let logger = ThreadPool::new("heeler-log", 1, finish)?;
        // One thread, so that files are moved in the order of the requests.
        let mover = ThreadPool::new("heeler-move", 1, finish)?;
        let collectors = ThreadPool::new("heeler-collect", limits::COLLECTORS, finish)?;
        let deliverers = ThreadPool::new("heeler-deliver", limits::DELIVERERS, finish)?;
        // A clone or a worktree may take minutes. The daemon's exit does not wait for it.
        let abandon = PoolShutdown::Abandon;
        let cloners = ThreadPool::new("heeler-clone", limits::CLONERS, abandon)?;
        let session_preparers =
            ThreadPool::new("heeler-session", limits::SESSION_PREPARERS, abandon)?;
        let github = GithubLanes::new()?;
        let chat = ChatLanes::new()?;
        let live = LiveLane::new()?;
        let notices = NoticeLane::new(fleet.clone(), inbox.clone())?;
        let control = ControlLoop::start(deliverers.queue())?;
        let shared = Arc::new(ExecutorContext {
            readers: ReaderPool::new(fleet.dir.clone(), limits::IDLE_READERS_MAX),
            fleet,
            dispatcher: inbox,
            control: control.queue(),
            deliverers: deliverers.queue(),
            collectors: collectors.queue(),
            cloners: cloners.queue(),
            limits: WorkLimits::new(),
            setup: Mutex::new(setup),
            watcher: OnceLock::new(),
            move_locks: SessionMoveLocks::default(),
        });
        shared.start_watcher()?;
        Ok(EffectExecutor {
            shared,
            _control: control,
            _deliverers: deliverers,
            starters,
            session_preparers,
            _cloners: cloners,
            _collectors: collectors,
            logger,
            mover,
            github,
            chat,
            live,
            notices,
        })
    }

    pub(crate) fn dispatcher(&self) -> &DaemonHandle {
        &self.shared.dispatcher
    }

    /// Returns true if a runner waits with its agent for the next run of a conversation.
    pub(crate) fn has_kept_agents(&self) -> bool {
        self.shared.watcher().has_kept()
    }

    /// Sends the recorded notices that are due.
    pub(crate) fn run_notices(&self) {
        self.notices.run(self.shared.setup());
    }

    /// Sends the notices that have become due.
    pub(crate) fn run_due_notices(&self) {
        if self.notices.take_due() {
            self.run_notices();
        }
    }

    /// Returns the time at which the next notice is due.
    pub(crate) fn notices_due_at(&self) -> Option<Timestamp> {
        self.notices.due_at()
    }

    /// Replaces the config.
    pub(crate) fn replace_setup(&self, setup: Arc<DaemonSetup>) {
        *self.shared.setup.lock().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    /// Starts the runner of a recorded run.
    pub(crate) fn launch_runner(&self, begun: StartedRun, mut request: Box<ResolvedJobRequest>) {
        let shared = Arc::clone(&self.shared);
        if request.github_token.is_empty() {
            return self.starters.submit(move || shared.launch_recorded_run(begun, &request));
        }
        let connections = self.github.connections();
        // GitHub may be slow. The next daemon starts a run whose runner was not started.
        self.shared.cloners.submit(move || {
            let setup = shared.setup();
            match add_agent_token(&connections, &setup, &mut request, shared.fleet.now) {
                Ok(()) => shared.launch_recorded_run(begun, &request),
                Err(why) => {
                    tracing::warn!(run = %begun.run, why, "a runner was not started");
                    let failed = FailedLaunch { why, class: ErrorClass::NotStarted };
                    shared.report_run_exit(begun.run, Some(&failed));
                }
            }
        });
    }

    /// Watches a run of an earlier daemon, or determines its result.
    pub(crate) fn adopt_run(&self, run: RunId) {
        let shared = Arc::clone(&self.shared);
        // Inspecting a run may take as long as settling it, so it is not done by the dispatcher.
        self.shared.collectors.submit(move || {
            if shared.is_elsewhere(run) || shared.start_if_assigned(run) {
                return;
            }
            let is_watched = shared.try_watch_run(run);
            fault::reach(FaultPoint::TakenOver);
            if is_watched {
                tracing::info!(%run, "taken over");
            } else {
                shared.report_run_exit(run, None);
            }
        });
    }

    /// Adopts all runs of an earlier daemon. Dead runs are settled in batches.
    pub(crate) fn adopt_runs(&self, mut runs: Vec<RunId>) {
        runs.sort_unstable();
        for some in runs.chunks(SETTLE_BATCH_SIZE) {
            let (shared, some) = (Arc::clone(&self.shared), some.to_vec());
            self.shared.collectors.submit(move || shared.adopt_run_batch(some));
        }
    }

    /// Delivers the recorded answers to a run again, and reports its questions.
    pub(crate) fn resume_questions(&self, run: RunId) {
        self.shared.read_questions(run);
        self.shared.redeliver_answers(run);
    }

    /// Appends a line to an agent's log. A line beyond the limit is lost and counted.
    pub(crate) fn append_log(&self, agent: String, text: String) {
        let shared = Arc::clone(&self.shared);
        let Some(claim) = shared.limits.log_lines.claim() else {
            // The logger reports the loss with the next line that finds room.
            shared.limits.lost_log_lines.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.logger.submit(move || {
            let _claim = claim;
            let lines = shared.limits.lost_log_lines.swap(0, Ordering::Relaxed);
            if lines > 0 {
                tracing::warn!(
                    lines,
                    "lines of agent logs were lost, because the disk is too slow"
                );
            }
            let Ok(agent) = agent.parse::<AgentName>() else { return };
            if let Some(fleet) = shared.setup().root() {
                AgentLogs::new(&shared.fleet.dir.logs(), fleet.logs).append_line(
                    &agent,
                    (shared.fleet.now)(),
                    &text,
                );
            }
        });
    }

    /// Moves files of old jobs to the trash, if the config asks for it. Does nothing while that is
    /// being done.
    pub(crate) fn apply_retention(&self) {
        let shared = Arc::clone(&self.shared);
        let Some(claim) = shared.limits.retention.claim() else { return };
        self.shared.collectors.submit(move || {
            let _claim = claim;
            let setup = shared.setup();
            let Some(retention) = setup.root().and_then(|fleet| fleet.retention.as_ref()) else {
                return;
            };
            let (dir, now) = (&shared.fleet.dir, (shared.fleet.now)());
            let mut more = true;
            while more {
                let done = StoreReader::open(dir).map_err(|error| error_chain(&error)).and_then(
                    |reader| {
                        retention::apply_retention(dir, &reader, retention, now)
                            .map_err(|error| error_chain(&error))
                    },
                );
                // A failed pass is not repeated at once; the next interval tries again.
                more = done.as_ref().is_ok_and(|done| done.has_more);
                match done {
                    Ok(done) if done.jobs.is_empty() => {}
                    Ok(done) => {
                        tracing::info!(
                            jobs = done.jobs.len(),
                            "moved files of old jobs to the trash"
                        );
                    }
                    Err(reason) => {
                        tracing::warn!(reason, "cannot move files of old jobs to the trash");
                    }
                }
            }
        });
    }

    /// Wraps a reply so that a stored answer is first delivered to its run.
    pub(crate) fn reply_after_delivery(
        &self,
        approval: ApprovalId,
        spoken: &ApprovalAnswer,
        reply: ReplyCallback,
    ) -> ReplyCallback {
        let (shared, spoken) = (Arc::clone(&self.shared), spoken.clone());
        Box::new(move |outcome| match outcome {
            Ok(answer) => shared.deliver_answer(approval, Some(spoken), Some((reply, answer))),
            Err(refused) => reply(Err(refused)),
        })
    }

    /// Delivers a stored answer to its run. No caller waits for the outcome.
    pub(crate) fn deliver_answer(&self, approval: ApprovalId, spoken: ApprovalAnswer) {
        self.shared.deliver_answer(approval, Some(spoken), None);
    }

    /// Moves session files to the places that the database specifies. One queued request is enough,
    /// because it reads the database when it starts.
    pub(crate) fn move_sessions(&self) {
        let shared = Arc::clone(&self.shared);
        let Some(claim) = shared.limits.move_requests.claim() else { return };
        self.mover.submit(move || {
            // A change that is committed from here on needs a request of its own.
            drop(claim);
            let (dir, home) = (&shared.fleet.dir, shared.setup().home.clone());
            let reader = StoreReader::open(dir).map_err(|error| error_chain(&error));
            let now = (shared.fleet.now)();
            let done = reader.and_then(|reader| {
                sessions::sync_session_files(dir, &home, &reader, &shared.move_locks, now)
            });
            if let Err(reason) = done {
                tracing::warn!(reason, "cannot move files of deleted sessions yet");
            }
        });
    }
}

impl ExecutorContext {
    fn setup(&self) -> Arc<DaemonSetup> {
        Arc::clone(&self.setup.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts to watch runners. The watcher does not keep this alive.
    fn start_watcher(self: &Arc<Self>) -> io::Result<()> {
        // The watcher's thread does not end, so a strong reference would never be dropped.
        let weak = Arc::downgrade(self);
        let asking = Weak::clone(&weak);
        let ended = move |run| {
            if let Some(shared) = weak.upgrade() {
                shared.fleet.hook_grants.forget_hand_over(run);
                collect_run_exit(&shared, run);
            }
        };
        let asked = move |run| {
            if let Some(shared) = asking.upgrade() {
                shared.read_questions(run);
            }
        };
        let leaving = Arc::downgrade(self);
        let abandoned = move |run| {
            if let Some(shared) = leaving.upgrade() {
                let own = Arc::clone(&shared);
                shared.collectors.submit(move || launch::end_abandoned_agent(&own.fleet, run));
            }
        };
        let watcher = RunnerWatcher::start(ended, asked, abandoned)?;
        // The cell is set once, before any other thread has this context.
        self.watcher.get_or_init(|| watcher);
        Ok(())
    }

    /// Sends an input to the dispatcher. If the dispatcher has ended, the next daemon finds out on
    /// its own.
    fn send_input(&self, input: DispatchInput) {
        let _stopped = self.dispatcher.send_input(input);
    }

    fn watcher(&self) -> &RunnerWatcher {
        self.watcher.get().expect("it is set before anything is handed over")
    }

    /// Returns the spec of a live run; `None` if it cannot be read, or a daemon has not signed it.
    fn trusted_spec(&self, run: RunId) -> Option<RunSpec> {
        let record = self.readers.reader().ok().and_then(|reader| reader.run(run).ok().flatten());
        let key = record?.result_key;
        heeler_control::read_run_spec(&self.fleet.dir.run(run), key.as_ref()).unwrap_or_else(
            |error| {
                tracing::warn!(%run, reason = error_chain(&error), "the spec of a run is not used");
                None
            },
        )
    }

    /// Starts to watch a run; returns true if it is alive.
    fn try_watch_run(self: &Arc<Self>, run: RunId) -> bool {
        let folder = self.fleet.dir.run(run);
        let is_watched = self.watcher().attach(run, &folder).unwrap_or_else(|error| {
            // The run is then settled or checked again, which never disturbs a live runner.
            tracing::error!(%run, %error, "cannot watch a runner");
            false
        });
        if !is_watched {
            return false;
        }
        let spec = self.trusted_spec(run);
        self.renew_lease_of(run, spec.as_ref());
        // Questions have signatures of their own, so in doubt they are looked for.
        if spec.is_none_or(|spec| spec.attendance != QuestionPolicy::Nobody) {
            self.watch_questions(run);
            // An earlier daemon may have died between recording an answer and delivering it.
            self.redeliver_answers(run);
        }
        true
    }

    /// Returns true if another host executes the run, which reports its end. One that cannot be read
    /// counts as such: it is looked at again later.
    fn is_elsewhere(&self, run: RunId) -> bool {
        if self.fleet.dir.host().is_none() {
            return false;
        }
        let record = self.readers.reader().map_err(|error| error_chain(&error));
        let record = record.and_then(|it| it.run(run).map_err(|error| error_chain(&error)));
        match record {
            Ok(record) => record.is_some_and(|record| record.is_elsewhere(&self.fleet.dir)),
            Err(why) => {
                tracing::warn!(%run, why, "cannot read the host of a run");
                let retry_after = SETTLE_RETRY_DELAY;
                self.send_input(DispatchInput::RunUnsettled { run, why: None, retry_after });
                true
            }
        }
    }

    fn adopt_run_batch(self: &Arc<Self>, mut runs: Vec<RunId>) {
        runs.retain(|&run| !self.is_elsewhere(run) && !self.start_if_assigned(run));
        runs.retain(|&run| {
            let is_watched = self.try_watch_run(run);
            fault::reach(FaultPoint::TakenOver);
            if is_watched {
                tracing::info!(%run, "taken over");
            }
            !is_watched
        });
        // Runs with a result, or without a spec, need no settling process.
        let is_to_be_settled = |folder: &Utf8PathBuf| {
            folder.join(file::SPEC).exists()
                && !folder.join(file::RESULT).exists()
                && !is_run_alive(folder)
        };
        let folders = runs.iter().map(|&run| self.fleet.dir.run(run));
        let folders: Vec<Utf8PathBuf> = folders.filter(is_to_be_settled).collect();
        // A single run is settled by the call below, which also reports its errors.
        let settled_with = (folders.len() > 1).then(|| self.settle_batch(&runs, &folders));
        // The outcome of the batch is not trusted: each run is looked at again.
        for run in runs {
            let settled_with = settled_with.as_ref();
            let seen = RunExitEvidence { settled_with, ..RunExitEvidence::default() };
            self.report_settled_run_exit(run, &seen);
        }
    }

    /// Determines the result of a run and sends it to the dispatcher. `not_started` is the reason
    /// for which the runner could not be started, if known.
    fn report_run_exit(self: &Arc<Self>, run: RunId, not_started: Option<&FailedLaunch>) {
        let seen = RunExitEvidence { not_started, ..RunExitEvidence::default() };
        self.report_settled_run_exit(run, &seen);
    }

    /// Settles several dead runs with one process, and returns the key of their results.
    fn settle_batch(&self, runs: &[RunId], folders: &[Utf8PathBuf]) -> ResultPublicKey {
        let reader = self.readers.reader().ok();
        // A run that cannot be read now is settled alone, which reports the error.
        let record = |run: &RunId| reader.as_ref()?.run(*run).ok().flatten();
        let records: Vec<RunRecord> = runs.iter().filter_map(record).collect();
        let input = recovery::settle_input(&records);
        launch::settle_runs(&self.fleet, folders, &input);
        input.result_key.public_key()
    }

    fn report_settled_run_exit(self: &Arc<Self>, run: RunId, seen: &RunExitEvidence<'_>) {
        let outcome = self.load_run_exit(run, seen);
        fault::reach(FaultPoint::RunEnded);
        match outcome {
            Ok(Some(gone)) => self.send_input(DispatchInput::RunEnded(Box::new(gone))),
            // The run is alive after all. Do not wait here: it may run for hours.
            Ok(None) if self.try_watch_run(run) => {}
            Ok(None) => self.send_input(DispatchInput::RunUnsettled {
                run,
                why: None,
                retry_after: RECHECK_DELAY,
            }),
            Err(why) => self.send_input(DispatchInput::RunUnsettled {
                run,
                why: Some(why),
                retry_after: SETTLE_RETRY_DELAY,
            }),
        }
    }

    fn load_run_exit(
        &self,
        id: RunId,
        seen: &RunExitEvidence<'_>,
    ) -> Result<Option<RunExit>, String> {
        let reader = self.readers.reader().map_err(|error| error_chain(&error))?;
        let run = reader.run(id).map_err(|error| error_chain(&error))?;
        // A restore may have removed the row while the run was being collected.
        let run: RunRecord = run.ok_or("its record is gone")?;
        let agent = reader.job(&run.job_id).map_err(|error| error_chain(&error))?;
        drop(reader);
        let mut result = match seen.not_started {
            Some(failed) => self.unstarted_result(&run, failed),
            None => match recovery::load_run_outcome(&self.fleet, &run, seen.settled_with)
                .map_err(|error| error_chain(&error))?
            {
                Some(result) => result,
                None => return Ok(None),
            },
        };
        // A settling process knows only the time of the last row; the agent may have worked longer.
        if let (RunEnd::Interrupted, Some(alive_until)) = (result.end, seen.alive_until) {
            result.finished_at = result.finished_at.max(alive_until);
        }
        let setup = self.setup();
        let agent = agent.and_then(|job| setup.agent(&job.head.agent));
        if let Some(given) =
            agent.and_then(|agent| environment::select_environment(agent, &setup.env).ok())
        {
            // A settling process does not know the secrets, so its result is redacted here.
            result.redact(&SecretRedactor::new(&given.secrets));
        }
        let metadata =
            // The file is read here, because the transaction must not wait for a slow disk.
            agent.and_then(|agent| hooks::read_metadata(agent, &setup.env, result.started_at));
        let folder = self.fleet.dir.run(id);
        let asks = RunQuestionFiles::read(&folder).accept(run.result_key.as_ref());
        asks.report_refused(id);
        asks.set_refused_aside(&folder);
        Ok(Some(RunExit { result, metadata, closed_questions: asks.closed }))
    }

    /// Returns the result of a run with a runner that could not be started or received no brief.
    /// The runner may still have left a result of its own.
    fn unstarted_result(&self, run: &RunRecord, failed: &FailedLaunch) -> RunResult {
        match recovery::load_run_outcome(&self.fleet, run, None) {
            Ok(Some(result)) if result.end != RunEnd::NeverStarted => result,
            _ => {
                let mut result = recovery::unstarted_result(run, (self.fleet.now)(), &failed.why);
                result.error.iter_mut().for_each(|error| error.class = failed.class);
                result
            }
        }
    }
}

/// Facts about the end of a run that this daemon has seen.
#[derive(Default)]
struct RunExitEvidence<'s> {
    /// Reason for which the runner could not be started.
    not_started: Option<&'s FailedLaunch>,
    /// Key of the settling process that wrote the result.
    settled_with: Option<&'s ResultPublicKey>,
    /// The runner was alive until then.
    alive_until: Option<Timestamp>,
}

/// Failure to start a runner.
struct FailedLaunch {
    why: String,
    class: ErrorClass,
}

fn collect_run_exit(shared: &Arc<ExecutorContext>, run: RunId) {
    let own = Arc::clone(shared);
    let alive_until = Some((shared.fleet.now)());
    shared.collectors.submit(move || {
        let seen = RunExitEvidence { alive_until, ..RunExitEvidence::default() };
        own.report_settled_run_exit(run, &seen);
    });
}

#[cfg(test)]
impl EffectExecutor {
    /// Keeps all starters busy until the returned guard is dropped.
    pub(crate) fn hold_starters(&self) -> std::sync::mpsc::SyncSender<()> {
        self.starters.hold()
    }

    /// Keeps the logger busy until the returned guard is dropped.
    pub(crate) fn hold_logger(&self) -> std::sync::mpsc::SyncSender<()> {
        self.logger.hold()
    }
}
