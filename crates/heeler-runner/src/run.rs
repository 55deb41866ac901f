//! One run, from its locks to its result.
//!
//! Crash recovery relies on the order of steps here: run lock, space for the result, session lock,
//! `started.json`, agent, rows, end of the process tree, transcripts synced, `result.json`. Steps
//! that are missing after a crash are completed by [`crate::settle_run()`]. Start at [`run()`].

mod executor;
mod external_messages;
mod fork;
mod hand_over;
mod host;
mod host_servers;
mod kept_agent;
mod prepare;
mod result;
mod runner_error;
mod sandbox;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use std::os::unix::net::UnixStream;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::outcome::AgentProcessExit;
use heeler_model::run::{
    ControlEvent, ErrorClass, PROTOCOL, RunResult, RunSpec, RunStartRecord, RunnerInput,
    SessionStart, file, is_readable_protocol,
};
use heeler_model::{NativeSessionPosition, error_chain};
use heeler_transcript::{LockFile, LockHolder};
use rustix::process::Signal;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::event_loop::{ActiveRun, AgentConnection, AgentExit, RunEventLoop};
use crate::fault::{self, RunnerFaultPoint};
use crate::files::{self, ReservedResultFile};
use crate::line_reader::AgentLineReader;
use crate::native_session;
use crate::process::{AgentSpawnError, LaunchSpec, ProcessEnd, ProcessTree, SpawnContext};
use crate::runtime::{NextTurn, RuntimeEffect};
use crate::session::{self, SessionLockError};
use crate::stderr_log::AgentStderrLog;
use executor::{RunExecutor, RunnerDependencies};
pub use host::RunnerHost;
pub(crate) use kept_agent::DaemonLink;
use kept_agent::{AgentSurroundings, KeptAgent, ResumedAgent};
use prepare::{PreparedRun, RunSessionStart, prepare_run};
use result::RunAttemptOutcomes;
use runner_error::RunPrepareError;
pub use runner_error::RunnerError;
pub(crate) use sandbox::remove_socket_folder;

/// Time to wait for the run's lock: a probe may hold it for an instant.
const RUN_LOCK_WAIT: Duration = Duration::from_secs(2);

/// A run that this process is to execute.
#[derive(Debug)]
pub struct RunnerTask {
    /// Directory of the run.
    pub dir: Utf8PathBuf,
    pub spec: RunSpec,
    pub host: RunnerHost,
}

/// Executes a run in its directory and returns its result, which has been written to `result.json`
/// by then.
///
/// If the run already has a result, that is returned and nothing else happens.
pub fn run(dir: &Utf8Path, spec: RunSpec, host: &RunnerHost) -> Result<RunResult, RunnerError> {
    run_with(dir, spec, host, &RunnerDependencies::default())
}

/// Executes a run, and then those of later turns of its conversation in the same process of the
/// agent, as long as that may stay. The daemon sends them over `link`; `prepare` makes this process
/// ready for one of them.
pub fn run_conversation(
    first: RunnerTask,
    link: UnixStream,
    prepare: impl FnMut(RunnerInput) -> Result<RunnerTask, String>,
) -> Result<(), RunnerError> {
    run_conversation_with(first, link, prepare, &RunnerDependencies::default())
}

/// Reads the run of a directory, for a runner that was not told its run.
pub fn read_spec(dir: &Utf8Path) -> Result<RunSpec, RunnerError> {
    Ok(files::read_spec(dir)?)
}

pub(crate) fn run_with(
    dir: &Utf8Path,
    spec: RunSpec,
    host: &RunnerHost,
    dependencies: &RunnerDependencies,
) -> Result<RunResult, RunnerError> {
    let event_loop = build_event_loop()?;
    Ok(run_once(&event_loop, (dir, spec, host), dependencies, (None, None))?.0)
}

pub(crate) fn run_conversation_with(
    first: RunnerTask,
    link: UnixStream,
    mut prepare: impl FnMut(RunnerInput) -> Result<RunnerTask, String>,
    dependencies: &RunnerDependencies,
) -> Result<(), RunnerError> {
    let event_loop = build_event_loop()?;
    let link = event_loop.block_on(async { DaemonLink::new(link) });
    let mut link = link.map_err(|source| RunnerError::EventLoop { source })?;
    let (mut task, mut next) = (first, None);
    loop {
        let run = (task.dir.as_path(), task.spec.clone(), &task.host);
        let (_, kept) = run_once(&event_loop, run, dependencies, (Some(&link), next.take()))?;
        let (Some(mut kept), Some(limits)) = (kept, &task.spec.keep_agent) else { return Ok(()) };
        let input = event_loop.block_on(kept.wait_for_turn(&mut link, limits));
        fault::point(RunnerFaultPoint::NextRunReceived);
        let prepared = input.map(|mut input| {
            let turn = input.spec.as_ref().and_then(|spec| kept.plan_turn(spec, &input.brief));
            kept.add_known_secrets(&mut input.brief.secrets);
            (prepare(input), turn)
        });
        let Some((Ok(following), turn)) = prepared else {
            if let Some((Err(reason), _)) = prepared {
                tracing::warn!(reason, "the next run of the conversation is not executed here");
            }
            drop(link);
            event_loop.block_on(kept.end());
            return Ok(());
        };
        // Without the confirmation the daemon starts another runner for the run.
        if event_loop.block_on(link.confirm()).is_err() {
            event_loop.block_on(kept.end());
            return Ok(());
        }
        fault::point(RunnerFaultPoint::NextRunConfirmed);
        task = following;
        match turn {
            Some(turn) => next = Some((kept, turn)),
            None => event_loop.block_on(kept.end()),
        }
    }
}

/// Builds the event loop. One thread does everything: the agent gets SIGTERM when the thread that
/// started it ends.
fn build_event_loop() -> Result<Runtime, RunnerError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(|source| RunnerError::EventLoop { source })
}

/// Executes a run, in the process of a kept agent if there is one. Returns the process if it stays.
fn run_once(
    event_loop: &Runtime,
    (dir, spec, host): (&Utf8Path, RunSpec, &RunnerHost),
    dependencies: &RunnerDependencies,
    (link, kept): (Option<&DaemonLink>, Option<(KeptAgent, NextTurn)>),
) -> Result<(RunResult, Option<KeptAgent>), RunnerError> {
    let spec = files::check_spec(dir, spec)?;
    if !is_readable_protocol(host.brief.protocol) {
        return Err(RunnerError::Brief { found: host.brief.protocol });
    }
    let started_at = (host.now)();
    let holder = LockHolder::this_process(&session::runner_command(&spec), started_at);
    let _lock = LockFile::acquire(&dir.join(file::LOCK), &holder, RUN_LOCK_WAIT)
        .map_err(|source| RunnerError::Locked { dir: dir.to_owned(), source })?;
    fault::point(RunnerFaultPoint::RunLocked);
    // Another runner may have finished while this one waited for the lock.
    if let Some(result) = files::read_result(dir)? {
        return Ok((result, None));
    }
    // The agent may have acted already, so the run is never executed a second time.
    if files::read_started(dir, &spec)?.is_some() {
        return Err(RunnerError::CutOff { dir: dir.to_owned() });
    }
    // Space is reserved before the agent costs anything, so that a full disk cannot lose the
    // result.
    let reserved = ReservedResultFile::create(dir, host.result_key.as_ref())?;
    let executor = RunExecutor { dir, spec: &spec, host, dependencies, started_at, link };
    event_loop.block_on(executor.execute(reserved, kept))
}

impl RunExecutor<'_> {
    #[expect(
        clippy::too_many_lines,
        reason = "the steps of a run, in the order in which they become durable"
    )]
    async fn execute(
        &self,
        reserved: ReservedResultFile,
        kept: Option<(KeptAgent, NextTurn)>,
    ) -> Result<(RunResult, Option<KeptAgent>), RunnerError> {
        let (resumed_lock, kept) = match kept {
            Some((kept, turn)) => self.resume_agent(kept, turn).await.unzip(),
            None => (None, None),
        };
        // Declared before the run, so the lock is released after its transcripts are closed, on
        // every return path.
        let locked = resumed_lock.map_or_else(
            || session::lock_session(self.spec, self.spec.session.start.id(), self.started_at),
            Ok,
        );
        let mut lock = match locked {
            Ok(lock) => lock,
            Err(error) => {
                let result = self.not_locked_result(&error);
                reserved.write(&result)?;
                return Ok((result, None));
            }
        };
        // Locked so that no other run continues the source session meanwhile.
        let _source = match self.lock_source() {
            Ok(source) => source,
            Err(error) => {
                let result = self.not_locked_result(&error);
                reserved.write(&result)?;
                return Ok((result, None));
            }
        };
        fault::point(RunnerFaultPoint::SessionLocked);
        let external_messages = match self.check_external_messages() {
            Ok(external_messages) => external_messages,
            Err(result) => {
                if let Some((_, AgentSurroundings { tree, .. })) = kept {
                    tree.terminate().await;
                }
                reserved.write(&result)?;
                return Ok((*result, None));
            }
        };
        let conversation = self.open_conversation();
        let (resumed, surroundings) = kept.unzip();
        let prepared = match prepare_run(self, external_messages, surroundings).await {
            Ok(prepared) => prepared,
            // No result is written, so that the run can be started again when there is space.
            Err(RunPrepareError::DiskFull(error)) => return Err(error),
            Err(RunPrepareError::Refused(reason)) => {
                // The pipes of a resumed agent are closed and this process ends, which ends the agent.
                let result = self.not_started_result(reason);
                reserved.write(&result)?;
                return Ok((result, None));
            }
        };
        let PreparedRun { mut run, tree, bridge, mut network, sockets, first } = prepared;
        run.may_keep_agent = conversation.is_some();
        // Settling needs the record to find what the agent leaves, so it is durable before the
        // start.
        let started = self.started_record(&run, &tree)?;
        files::write_started(self.dir, &started)?;
        fault::point(RunnerFaultPoint::Started);
        let mut outcomes =
            self.run_attempts(&mut run, &tree, &mut lock, started, (first, resumed)).await;
        if let Some(bridge) = bridge {
            bridge.close().await;
        }
        if let Some(network) = &mut network {
            outcomes.set_counted_usage(network.finish().clone());
        }
        // The transcripts are durable before the result that vouches for them.
        let result = self.finish(&mut run, outcomes);
        let connection = run.kept_agent.take();
        let position = connection.as_ref().and_then(|_| self.kept_position(&run, &result));
        let is_alive = connection.is_some();
        let stays = connection.zip(position).zip(conversation);
        if is_alive && stays.is_none() {
            // No process outlives the result, except an agent that stays.
            tree.terminate().await;
        }
        fault::point(RunnerFaultPoint::LogsSynced);
        reserved.write(&result)?;
        fault::point(RunnerFaultPoint::ResultWritten);
        let ActiveRun { journal, control, runtime, signals, .. } = run;
        // A client that receives the end may continue the session, so the transcripts are closed
        // first.
        drop(journal);
        drop(network);
        let mut lock = Some(lock);
        let suspended = stays.as_ref().and_then(|_| lock.take()?.suspend().ok());
        drop(lock);
        let ended = ControlEvent::Ended { result: Box::new(result.clone()) };
        control.finish(&ended).await;
        let Some((((connection, position), conversation), lock)) = stays.zip(suspended) else {
            // A lock that could not be suspended is the agent's as long as it lives.
            if is_alive {
                tree.terminate().await;
            }
            return Ok((result, None));
        };
        fault::point(RunnerFaultPoint::AgentKept);
        let kept = KeptAgent {
            connection,
            runtime,
            signals,
            tree,
            sockets,
            lock,
            lines: AgentLineReader::new(self.dir, self.host.redactor(), self.dependencies.lines),
            spec: self.spec.clone(),
            brief: self.host.brief.clone(),
            position,
            conversation,
            redactor: self.host.redactor().clone(),
            available_memory: self.dependencies.available_memory,
        };
        Ok((result, Some(kept)))
    }

    /// Takes up the agent of the last turn: locks the session for it. An agent that cannot have the
    /// lock is ended.
    async fn resume_agent(
        &self,
        kept: KeptAgent,
        turn: NextTurn,
    ) -> Option<(LockFile, (ResumedAgent, AgentSurroundings))> {
        let KeptAgent { connection, runtime, tree, sockets, lock, .. } = kept;
        let holder = LockHolder::this_process(&session::runner_command(self.spec), self.started_at);
        match lock.resume(&holder, session::SESSION_LOCK_WAIT) {
            Ok(lock) => {
                let resumed = ResumedAgent { connection, runtime, turn };
                Some((lock, (resumed, AgentSurroundings { tree, sockets })))
            }
            Err(error) => {
                tracing::info!(reason = error_chain(&error), "a kept agent is ended");
                tree.terminate().await;
                None
            }
        }
    }

    /// Opens the process of the conversation if the agent may stay for its next turn.
    fn open_conversation(&self) -> Option<ProcessEnd> {
        let limits = self.spec.keep_agent.as_ref()?;
        let link = self.link?;
        // The conversation may have ended already, and then nothing is kept.
        ProcessEnd::open(limits.conversation_pid).ok().filter(|_| !link.is_closed())
    }

    /// Returns the position at which the turn left the native session, if the agent may stay.
    fn kept_position(&self, run: &ActiveRun, result: &RunResult) -> Option<NativeSessionPosition> {
        let is_success = result.error.is_none() && run.ending.is_none();
        let has_daemon = self.link.is_some_and(|link| !link.is_closed());
        let is_same_session = run.session == *self.spec.session.start.id();
        if !(is_success && has_daemon && is_same_session)
            || kept_agent::is_memory_short(self.dependencies.available_memory)
        {
            return None;
        }
        // Without a position, the next run could not tell whether another writer was there.
        result.session.as_ref()?.own
    }

    /// Returns the present end of the native session.
    fn native_position(&self, run: &ActiveRun) -> Option<NativeSessionPosition> {
        let folder = self.native_sessions_folder()?;
        let path = self.find_native_session(&folder, &run.session)?;
        native_session::read_mark(&path).ok().flatten()
    }

    fn lock_source(&self) -> Result<Option<LockFile>, SessionLockError> {
        match &self.spec.session.start {
            SessionStart::Continue { source, .. } => {
                session::lock_session(self.spec, source, self.started_at).map(Some)
            }
            // A fork only reads its source, so others may go on writing there.
            SessionStart::Fresh { .. }
            | SessionStart::Resume { .. }
            | SessionStart::Fork { .. } => Ok(None),
        }
    }

    fn started_record(
        &self,
        run: &ActiveRun,
        tree: &ProcessTree,
    ) -> Result<RunStartRecord, RunnerError> {
        Ok(RunStartRecord {
            protocol: PROTOCOL,
            run: self.spec.run,
            pid: std::process::id(),
            at: self.started_at,
            session: run.session.clone(),
            session_log: session::log_path(self.spec, &run.session),
            socket: run.control.path().to_owned(),
            cgroup: tree.cgroup().map(Utf8Path::to_owned),
            job_rows_before: run.journal.job_rows(),
            session_rows_before: run.journal.count_session_rows()?,
            own_sessions: self.native_sessions_folder(),
            agent_run: Some(tree.run()).filter(|run| *run != self.spec.run),
        })
    }

    /// Starts the agent, and starts it again where a retry may help.
    async fn run_attempts(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        lock: &mut LockFile,
        mut started: RunStartRecord,
        (first, mut resumed): (RunSessionStart, Option<ResumedAgent>),
    ) -> RunAttemptOutcomes {
        let RunSessionStart { mut start, reason, external_note } = first;
        run.record_session_start(&start, &reason);
        if let Some(external_note) = external_note {
            run.add_note("taken_in", &external_note);
        }
        let mut outcomes = RunAttemptOutcomes::default();
        // Only a session without earlier turns needs a snapshot of its initial files.
        let mut is_new = !matches!(start, SessionStart::Resume { .. });
        let goes_on_from_another = matches!(start, SessionStart::Continue { .. });
        if let SessionStart::Continue { source, id, keep } = &start {
            if self.hand_over(run, tree, lock, (source, *keep), &mut outcomes).await.is_none() {
                return outcomes;
            }
            start = SessionStart::Resume { id: id.clone() };
            // The silence during the summary is no stall of the agent that follows.
            run.deadlines.restart(Instant::now());
        }
        // The carried-over content would be lost in a fresh session.
        let (mut may_begin_anew, mut may_try_again) = (!goes_on_from_another, true);
        // Prompt on record that a kept agent has not begun to work on.
        let mut prompt_without_turn = None;
        loop {
            if std::mem::take(&mut is_new) {
                run.snapshot_initial_state(tree).await;
                // The silence during the snapshot is no stall either.
                run.deadlines.restart(Instant::now());
            }
            let ending;
            (prompt_without_turn, ending) = match resumed.take() {
                Some(resumed) => self.run_resumed_agent(run, tree, resumed).await,
                None => {
                    (None, self.run_attempt(run, tree, lock, &start, prompt_without_turn).await)
                }
            };
            outcomes.record_attempt(run, ending);
            // Without room for rows a further attempt could not be recorded.
            if run.ending.is_some() || !run.journal.is_flushed() {
                return outcomes;
            }
            // Each remedy is tried once, so the loop ends.
            let reason = match outcomes.error_class() {
                Some(_) if prompt_without_turn.is_some() => {
                    "the kept agent ended before this turn began, so another process is started"
                }
                Some(ErrorClass::SessionExpired)
                    if may_begin_anew && !matches!(start, SessionStart::Fresh { .. }) =>
                {
                    may_begin_anew = false;
                    let fresh = match self.start_new_session(run, &mut started) {
                        Ok(fresh) => fresh,
                        Err(reason) => {
                            run.add_note(
                                "warning",
                                &format!("cannot start a new session: {reason}"),
                            );
                            return outcomes;
                        }
                    };
                    // This releases the old session, to which the run writes nothing more.
                    *lock = fresh;
                    is_new = true;
                    start = SessionStart::Fresh { id: run.session.clone() };
                    "the agent no longer has the session, so a new one is started"
                }
                Some(ErrorClass::TokenExpired) if may_try_again => {
                    may_try_again = false;
                    // The agent's work until now is in its session: resuming avoids paying for it
                    // twice.
                    start = SessionStart::Resume { id: run.session.clone() };
                    "the login had expired, so the agent is started again"
                }
                _ => return outcomes,
            };
            run.record_session_start(&start, reason);
            run.deadlines.restart(Instant::now());
        }
    }

    async fn run_attempt(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        lock: &LockFile,
        start: &SessionStart,
        recorded_prompt: Option<Uuid>,
    ) -> AgentProcessExit {
        // Ended before the agent was started.
        if let Some(ending) = &run.ending {
            return ending.clone();
        }
        let uuid = recorded_prompt.unwrap_or_else(|| self.record_prompt(run));
        let launch = run.runtime.launch_spec(start);
        self.run_agent(run, tree, lock, &launch, uuid).await
    }

    /// Starts an agent for the prompt with this ID and runs it to its end.
    async fn run_agent(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        lock: &LockFile,
        launch: &LaunchSpec,
        uuid: Uuid,
    ) -> AgentProcessExit {
        // The agent inherits the lock, so the session stays locked if only the runner dies.
        let inherit = [lock.fd()];
        let spawn_context = SpawnContext {
            cwd: &self.spec.working_directory,
            env: &self.host.brief.env,
            inherit: &inherit,
            secrets: self.host.argument_redactor(),
        };
        let container = match self.prepare_container(run, tree).await {
            Ok(container) => container,
            Err(ending) => return ending,
        };
        // The fleet may have given the run up meanwhile.
        if let Some(ending) = run.lease_end() {
            return ending;
        }
        let spawned = tree.spawn_agent(launch, &spawn_context, container).await;
        #[cfg(target_os = "linux")]
        for note in tree.take_container_notes() {
            run.add_note("container", note);
        }
        let agent = match spawned {
            Ok(agent) => agent,
            // A kill is no fault of the program: a hook is repeated, as after any other kill.
            Err(AgentSpawnError::Killed { .. }) => {
                let signal = Some(Signal::KILL.as_raw());
                return AgentProcessExit::Exited { code: None, signal, stderr: String::new() };
            }
            Err(error) => {
                return AgentProcessExit::NotStarted { reason: error_chain(&error) };
            }
        };
        // Nothing of the agent is read before, and without an agent nothing would end them.
        self.start_host_servers(run, tree);
        fault::point(RunnerFaultPoint::Spawned);
        let begin = run.runtime.begin(uuid);
        let connection = AgentConnection::new(agent, &launch.program);
        self.run_connection(run, tree, connection, begin).await
    }

    fn record_prompt(&self, run: &mut ActiveRun) -> Uuid {
        let uuid = Uuid::new_v4();
        run.record_prompt(uuid, &self.host.brief.prompt);
        uuid
    }

    /// Executes the turn of this run in the agent's process of an earlier one. Returns the ID of the
    /// recorded prompt, if the process ended before it began the turn.
    async fn run_resumed_agent(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        resumed: ResumedAgent,
    ) -> (Option<Uuid>, AgentProcessExit) {
        let ResumedAgent { connection, runtime, turn } = resumed;
        // Ended before the turn has begun.
        if let Some(ending) = run.ending.clone() {
            tree.terminate().await;
            return (None, ending);
        }
        let uuid = self.record_prompt(run);
        let messages = run.recorder.messages();
        let for_another_attempt = std::mem::replace(&mut run.runtime, runtime);
        self.start_host_servers(run, tree);
        let begin = run.runtime.begin_next_turn(uuid, &turn);
        let ending = self.run_connection(run, tree, connection, begin).await;
        if run.kept_agent.is_none() {
            run.runtime = for_another_attempt;
        }
        // Claude prints a line before it acts on a prompt, so an agent without output has had no
        // effect. It must not find the prompt in its session either. A message that a person has sent
        // meanwhile would not be repeated.
        let is_untouched = run.last_line_at.is_none()
            && run.recorder.messages() == messages
            && self.native_position(run) == self.spec.session.own;
        (is_untouched.then_some(uuid), ending)
    }

    /// Runs an agent to the end of its turn or of its process.
    async fn run_connection(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        connection: AgentConnection,
        begin: Vec<RuntimeEffect>,
    ) -> AgentProcessExit {
        let complaints = AgentStderrLog::open(self.dir, &run.redactor);
        let AgentExit { exit, stderr, kept } =
            RunEventLoop::new(run, tree, connection, complaints).run(begin).await;
        if kept.is_some() {
            run.kept_agent = kept;
            return AgentProcessExit::Exited { code: Some(0), signal: None, stderr };
        }
        let container_end = sandbox::end_container(tree).await;
        // The runner's own reason explains the end better than the status of an agent that it
        // ended.
        match run.ending.clone() {
            Some(ending) => ending,
            None => match container_end {
                Some(reason) => AgentProcessExit::ContainerEnded { reason },
                None => result::exit_ending(exit, stderr),
            },
        }
    }
}
