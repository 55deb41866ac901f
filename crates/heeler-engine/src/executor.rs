//! Executes the dispatcher's effects on other threads: prepares and starts runners, collects run
//! results, cancels runs, delivers answers.
//!
//! Every operation may be interrupted at any point and repeated by the next daemon. Results return
//! to the dispatcher as [`DispatchInput`]. Start at [`EffectExecutor`].

mod answers;

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{
    ControlOperation, ControlReplyBody, QuestionPolicy, RunEnd, RunResult, RunSpec, file,
};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{
    AgentName, ApprovalAnswer, ApprovalId, JobId, JobRequest, RunId, Session, SessionId,
    error_chain,
};
use heeler_store::{RunRecord, StoreReader, is_run_alive};

use crate::cancel::{self, RunnerKillError};
use crate::checkout::{ensure_checkout, needs_clone};
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DaemonHandle, DispatchInput,
    PendingReply, ReplyCallback, RunExit,
};
use crate::control_client::{ControlClient, ControlError};
use crate::dispatch::{PreparedJob, job_not_running};
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::hooks;
use crate::launch;
use crate::logs::AgentLogs;
use crate::prepare::{PrepareError, environment};
use crate::recovery;
use crate::resolved_request::ResolvedJobRequest;
use crate::retention;
use crate::run_questions::RunQuestionFiles;
use crate::run_start::{self, StartedRun};
use crate::runner_watcher::RunnerWatcher;
use crate::sessions::{self, SessionMoveLocks, SessionOperation};
use crate::setup::DaemonSetup;
use crate::thread_pool::ThreadPool;

/// Number of runners that are prepared and started concurrently.
const STARTERS: usize = 4;

/// Number of dead runs that one process settles.
const SETTLE_BATCH_SIZE: usize = 64;

/// Number of threads that collect results and settle dead runs.
const COLLECTORS: usize = 4;

/// Delay before checking a run again that is alive but cannot be watched: its runner is just taking
/// its lock, or another process is settling it.
const RECHECK_DELAY: Duration = Duration::from_millis(200);

/// Delay before trying again to settle a run.
const SETTLE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// First delay between attempts to reach a run that must end.
const CANCEL_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Longest delay between attempts to reach a run that must end.
const CANCEL_RETRY_DELAY_MAX: Duration = Duration::from_secs(2);

/// Time limit for a runner's reply to an immediate cancellation. After it the runner is killed.
const FORCED_CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Threads that execute the dispatcher's effects.
#[derive(Debug)]
pub(crate) struct EffectExecutor {
    shared: Arc<ExecutorContext>,
    starters: ThreadPool,
    logger: ThreadPool,
    mover: ThreadPool,
}

#[derive(Debug)]
struct ExecutorContext {
    fleet: EngineContext,
    dispatcher: DaemonHandle,
    collectors: ThreadPool,
    /// The current config.
    setup: Mutex<Arc<DaemonSetup>>,
    watcher: OnceLock<RunnerWatcher>,
    /// Sessions with files that are being moved to the trash or back.
    move_locks: SessionMoveLocks,
}

impl EffectExecutor {
    /// Starts the threads.
    pub(crate) fn new(
        fleet: EngineContext,
        inbox: DaemonHandle,
        setup: Arc<DaemonSetup>,
    ) -> io::Result<EffectExecutor> {
        let starters = ThreadPool::new("heeler-start", STARTERS)?;
        // One thread, so that lines keep their order and rotation does not race with writing.
        let logger = ThreadPool::new("heeler-log", 1)?;
        // One thread, so that files are moved in the order of the requests.
        let mover = ThreadPool::new("heeler-move", 1)?;
        let collectors = ThreadPool::new("heeler-collect", COLLECTORS)?;
        let setup = Mutex::new(setup);
        let watcher = OnceLock::new();
        let shared = Arc::new(ExecutorContext {
            fleet,
            dispatcher: inbox,
            collectors,
            setup,
            watcher,
            move_locks: SessionMoveLocks::default(),
        });
        let weak = Arc::downgrade(&shared);
        let asking = Weak::clone(&weak);
        let ended = move |run| {
            if let Some(shared) = weak.upgrade() {
                collect_run_exit(&shared, run);
            }
        };
        let asked = move |run| {
            if let Some(shared) = asking.upgrade() {
                shared.read_questions(run);
            }
        };
        let watcher = RunnerWatcher::start(ended, asked)?;
        shared.watcher.get_or_init(|| watcher);
        Ok(EffectExecutor { shared, starters, logger, mover })
    }

    pub(crate) fn dispatcher(&self) -> &DaemonHandle {
        &self.shared.dispatcher
    }

    /// Replaces the config.
    pub(crate) fn replace_setup(&self, setup: Arc<DaemonSetup>) {
        *self.shared.setup.lock().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    /// Resolves everything that a run of the job needs, and reports it as
    /// [`DispatchInput::JobPrepared`].
    pub(crate) fn prepare_job(
        &self,
        job: Option<JobId>,
        wanted: JobRequest,
        owed: Option<PendingReply>,
    ) {
        let shared = Arc::clone(&self.shared);
        self.starters.submit(move || {
            let setup = shared.setup();
            let missing = setup.find_agent(wanted.agent.as_str()).is_ok_and(needs_clone)
                || session_with_own_directory(&shared.fleet, &wanted).is_ok_and(|session| {
                    session.is_some_and(|it| sessions::is_worktree_missing(&it))
                });
            let prepare = move || {
                let request = resolve_request(&shared.fleet, &setup, &wanted);
                let prepared =
                    Box::new(PreparedJob { job, job_request: wanted, resolved: request });
                shared.send_input(DispatchInput::JobPrepared { prepared, pending: owed });
            };
            if !missing {
                return prepare();
            }
            // A clone or a worktree may take minutes. Neither other starts nor the daemon's exit
            // wait for it.
            let thread = std::thread::Builder::new().name("heeler-clone".to_owned());
            if let Err(error) = thread.spawn(prepare) {
                tracing::error!(%error, "cannot start a clone");
            }
        });
    }

    /// Starts the runner of a recorded run.
    pub(crate) fn launch_runner(&self, begun: StartedRun, request: Box<ResolvedJobRequest>) {
        let shared = Arc::clone(&self.shared);
        self.starters.submit(move || {
            let run = begun.run;
            let is_attended = request.attendance != QuestionPolicy::Nobody;
            fault::reach(FaultPoint::BeforeLaunch);
            match run_start::launch_run(&shared.fleet, &request, &begun) {
                Ok(child) => {
                    fault::reach(FaultPoint::RunnerStarted);
                    if let Err(error) = shared.watcher().add(run, child) {
                        tracing::error!(%run, %error, "cannot watch a runner");
                        collect_run_exit(&shared, run);
                    }
                    if is_attended {
                        shared.watch_questions(run);
                    }
                }
                Err(error) => {
                    tracing::warn!(%run, reason = error_chain(&error), "a runner was not started");
                    let why = error_chain(&error);
                    shared.report_run_exit(run, Some(&why));
                }
            }
        });
    }

    /// Watches a run of an earlier daemon, or determines its result.
    pub(crate) fn adopt_run(&self, run: RunId) {
        let shared = Arc::clone(&self.shared);
        self.shared.collectors.submit(move || {
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

    /// Appends a line to an agent's log.
    pub(crate) fn append_log(&self, agent: String, text: String) {
        let shared = Arc::clone(&self.shared);
        self.logger.submit(move || {
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

    /// Moves files of old jobs to the trash, if the config asks for it.
    pub(crate) fn apply_retention(&self) {
        let shared = Arc::clone(&self.shared);
        self.shared.collectors.submit(move || {
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

    /// Prepares the files for a session operation, on a separate thread because creating a worktree
    /// may take long.
    pub(crate) fn prepare_session_change(
        &self,
        order: SessionOperation,
        by: String,
        owed: PendingReply,
    ) {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let owed = match &order {
                SessionOperation::Restore { session } => {
                    owed.map_callback(|reply| shared.lock_session_files(session, reply))
                }
                _ => owed,
            };
            match sessions::prepare_change(&shared.fleet, &shared.setup(), order) {
                Ok(change) => shared.send_input(DispatchInput::SessionChange {
                    change: Box::new(change),
                    by,
                    pending: owed,
                }),
                Err(refused) => owed.send(Err(refused)),
            }
        };
        if let Err(error) =
            std::thread::Builder::new().name("heeler-session".to_owned()).spawn(work)
        {
            // Dropping the closure drops the reply, which then reports that the command was not
            // executed.
            tracing::error!(%error, "cannot start a thread");
        }
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

    /// Moves session files to the places that the database specifies.
    pub(crate) fn move_sessions(&self) {
        let shared = Arc::clone(&self.shared);
        self.mover.submit(move || {
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

    /// Asks a run to end, repeatedly until it has received the request or has ended.
    pub(crate) fn cancel_run(&self, run: RunId, now: bool, by: String) {
        let shared = Arc::clone(&self.shared);
        let work = move || request_cancel(&shared.fleet, run, now, &by);
        if let Err(error) = std::thread::Builder::new().name("heeler-cancel".to_owned()).spawn(work)
        {
            tracing::error!(%run, %error, "cannot ask a run to end");
        }
    }

    /// Sends a message to the agent of a run, on a separate thread because the runner may be slow.
    pub(crate) fn send_message(
        &self,
        run: RunId,
        job: JobId,
        text: String,
        by: String,
        reply: ReplyCallback,
    ) {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let folder = shared.fleet.dir.run(run);
            let said = ControlClient::connect_to_run(&folder)
                .and_then(|mut control| control.request(ControlOperation::Message { text }));
            reply(match said {
                Ok(ControlReplyBody::Refused { reason }) => Err(DaemonCommandError::new(
                    DaemonCommandErrorKind::Busy,
                    format!("{job}: {reason}"),
                )),
                Ok(_) => {
                    tracing::info!(%job, by, "message sent");
                    Ok(CommandReply::Done { message: format!("the message was sent to {job}") })
                }
                Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => {
                    Err(job_not_running(&job))
                }
                Err(error) => Err(DaemonCommandError::new(
                    DaemonCommandErrorKind::Trouble,
                    error_chain(&error),
                )),
            });
        };
        if let Err(error) = std::thread::Builder::new().name("heeler-say".to_owned()).spawn(work) {
            // Dropping the closure drops the reply, which then reports that the command was not
            // executed.
            tracing::error!(%run, %error, "cannot start a thread");
        }
    }
}

impl ExecutorContext {
    fn setup(&self) -> Arc<DaemonSetup> {
        Arc::clone(&self.setup.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until no other thread moves the session's files, and locks them until the operation's
    /// reply is sent.
    fn lock_session_files(
        self: &Arc<Self>,
        session: &SessionId,
        reply: ReplyCallback,
    ) -> ReplyCallback {
        let (shared, session) = (Arc::clone(self), session.clone());
        while !shared.lock_moving_sessions().insert(session.clone()) {
            std::thread::sleep(CANCEL_RETRY_DELAY);
        }
        Box::new(move |answer| {
            shared.lock_moving_sessions().remove(&session);
            reply(answer);
        })
    }

    fn lock_moving_sessions(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.move_locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an input to the dispatcher. If the dispatcher has ended, the next daemon finds out on
    /// its own.
    fn send_input(&self, input: DispatchInput) {
        let _stopped = self.dispatcher.send_input(input);
    }

    fn watcher(&self) -> &RunnerWatcher {
        self.watcher.get().expect("it is set before anything is handed over")
    }

    /// Starts to watch a run; returns true if it is alive.
    fn try_watch_run(self: &Arc<Self>, run: RunId) -> bool {
        let folder = self.fleet.dir.run(run);
        let is_watched = self.watcher().attach(run, &folder).unwrap_or_else(|error| {
            tracing::error!(%run, %error, "cannot watch a runner");
            false
        });
        if is_watched && is_attended(&folder) {
            self.watch_questions(run);
            self.redeliver_answers(run);
        }
        is_watched
    }

    fn adopt_run_batch(self: &Arc<Self>, mut runs: Vec<RunId>) {
        runs.retain(|&run| {
            let is_watched = self.try_watch_run(run);
            fault::reach(FaultPoint::TakenOver);
            if is_watched {
                tracing::info!(%run, "taken over");
            }
            !is_watched
        });
        let is_to_be_settled = |folder: &Utf8PathBuf| {
            folder.join(file::SPEC).exists()
                && !folder.join(file::RESULT).exists()
                && !is_run_alive(folder)
        };
        let folders = runs.iter().map(|&run| self.fleet.dir.run(run));
        let folders: Vec<Utf8PathBuf> = folders.filter(is_to_be_settled).collect();
        if folders.len() > 1 {
            launch::settle_runs(&self.fleet, &folders);
        }
        runs.into_iter().for_each(|run| self.report_run_exit(run, None));
    }

    /// Determines the result of a run and sends it to the dispatcher. `not_started` is the reason
    /// for which the runner could not be started, if known.
    fn report_run_exit(self: &Arc<Self>, run: RunId, not_started: Option<&str>) {
        let outcome = self.load_run_exit(run, not_started);
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
        not_started: Option<&str>,
    ) -> Result<Option<RunExit>, String> {
        let reader = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error))?;
        let run = reader.run(id).map_err(|error| error_chain(&error))?;
        let run: RunRecord = run.ok_or("its record is gone")?;
        let agent = reader.job(&run.job_id).map_err(|error| error_chain(&error))?;
        drop(reader);
        let mut result = match not_started {
            Some(why) => self.unstarted_result(&run, why),
            None => match recovery::load_run_outcome(&self.fleet, &run)
                .map_err(|error| error_chain(&error))?
            {
                Some(result) => result,
                None => return Ok(None),
            },
        };
        let setup = self.setup();
        let agent = agent.and_then(|job| setup.agent(&job.head.agent));
        if let Some(given) =
            agent.and_then(|agent| environment::select_environment(agent, &setup.env).ok())
        {
            result.redact(&SecretRedactor::new(&given.secrets));
        }
        let metadata =
            agent.and_then(|agent| hooks::read_metadata(agent, &setup.env, result.started_at));
        let closed = RunQuestionFiles::read(&self.fleet.dir.run(id)).closed;
        Ok(Some(RunExit { result, metadata, closed_questions: closed }))
    }

    /// Returns the result of a run with a runner that could not be started or received no brief.
    /// The runner may still have left a result of its own.
    fn unstarted_result(&self, run: &RunRecord, why: &str) -> RunResult {
        match recovery::load_run_outcome(&self.fleet, run) {
            Ok(Some(result)) if result.end != RunEnd::NeverStarted => result,
            _ => recovery::unstarted_result(run, (self.fleet.now)(), why),
        }
    }
}

/// Returns true if a person can answer the questions of the run.
fn is_attended(folder: &Utf8Path) -> bool {
    let spec = crate::run_file::read::<RunSpec>(&folder.join(file::SPEC)).ok().flatten();
    spec.is_some_and(|spec| spec.attendance != QuestionPolicy::Nobody)
}

fn collect_run_exit(shared: &Arc<ExecutorContext>, run: RunId) {
    let own = Arc::clone(shared);
    shared.collectors.submit(move || own.report_run_exit(run, None));
}

fn resolve_request(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    wanted: &JobRequest,
) -> Result<Box<ResolvedJobRequest>, DaemonCommandError> {
    let agent = &*setup.agent_for(wanted)?;
    ensure_checkout(agent, &setup.env, (fleet.now)()).map_err(|error| {
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(&error))
    })?;
    let session = session_with_own_directory(fleet, wanted)?;
    let note = match session.as_ref().filter(|session| sessions::is_worktree_missing(session)) {
        Some(session) => Some(sessions::recreate_worktree(fleet, &setup.home, session)?),
        None => None,
    };
    let directory = session.and_then(|session| session.working_directory);
    let mut request =
        setup.prepare_request(agent, wanted, directory.as_deref()).map_err(|error| {
            let kind = match &error {
                PrepareError::Schedule { .. } => DaemonCommandErrorKind::NotFound,
                PrepareError::Isolation { .. } => DaemonCommandErrorKind::NotAllowed,
                _ => DaemonCommandErrorKind::Usage,
            };
            DaemonCommandError::new(kind, error_chain(&error))
        })?;
    request.note = note;
    Ok(Box::new(request))
}

/// Returns the requested session if it has its own working directory: a worktree, or the directory
/// in which it was used before Heeler adopted it.
fn session_with_own_directory(
    fleet: &EngineContext,
    wanted: &JobRequest,
) -> Result<Option<Session>, DaemonCommandError> {
    let (SessionChoice::Given { id } | SessionChoice::Fork { source: id, .. }) = &wanted.session
    else {
        return Ok(None);
    };
    let trouble = |error: &dyn std::error::Error| {
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(error))
    };
    let reader = StoreReader::open(&fleet.dir).map_err(|error| trouble(&error))?;
    let session = reader.session_by_agent_id(id).map_err(|error| trouble(&error))?;
    Ok(session.filter(sessions::has_own_directory))
}

fn request_cancel(fleet: &EngineContext, run: RunId, now: bool, by: &str) {
    let folder = fleet.dir.run(run);
    let mut wait = CANCEL_RETRY_DELAY;
    while !folder.join(file::RESULT).exists() {
        let asked = ControlClient::connect_to_run(&folder).and_then(|mut control| {
            if now {
                control.set_reply_timeout(FORCED_CANCEL_TIMEOUT)?;
            }
            control.request(ControlOperation::Cancel { now, by: by.to_owned() })
        });
        match asked {
            Ok(ControlReplyBody::Refused { reason }) => {
                tracing::warn!(%run, reason, "a run refused to end");
                return;
            }
            Ok(_) => return,
            // The run is starting, or is ending on its own.
            Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => {}
            Err(error) if now => {
                tracing::warn!(%run, reason = error_chain(&error), "a runner does not reply and is killed");
                match cancel::kill_runner(&folder) {
                    Ok(_) | Err(RunnerKillError::Gone(_)) => return,
                    Err(error) => {
                        tracing::warn!(%run, reason = error_chain(&error), "cannot kill it");
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%run, reason = error_chain(&error), "a runner does not reply");
            }
        }
        if !is_run_alive(&folder) && folder.join(file::STARTED).exists() {
            return;
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(CANCEL_RETRY_DELAY_MAX);
    }
}
