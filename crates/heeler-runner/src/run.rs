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
mod prepare;
mod result;
mod runner_error;
mod sandbox;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_model::outcome::AgentProcessExit;
use heeler_model::run::{
    ControlEvent, ErrorClass, PROTOCOL, RunResult, RunSpec, RunStartRecord, SessionStart, file,
    is_readable_protocol,
};
use heeler_transcript::{LockFile, LockHolder};
use rustix::process::Signal;
use uuid::Uuid;

use crate::event_loop::{ActiveRun, AgentExit, RunEventLoop};
use crate::fault::{self, RunnerFaultPoint};
use crate::files::{self, ReservedResultFile};
use crate::process::{AgentSpawnError, LaunchSpec, ProcessTree, SpawnContext};
use crate::session::{self, SessionLockError};
use crate::stderr_log::AgentStderrLog;
use executor::{RunExecutor, RunnerDependencies};
pub use host::RunnerHost;
use prepare::{PreparedRun, RunSessionStart, prepare_run};
use result::RunAttemptOutcomes;
use runner_error::RunPrepareError;
pub use runner_error::RunnerError;
pub(crate) use sandbox::remove_socket_folder;

/// Time to wait for the run's lock: a probe may hold it for an instant.
const RUN_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Executes a run in its directory and returns its result, which has been written to `result.json`
/// by then.
///
/// If the run already has a result, that is returned and nothing else happens.
pub fn run(dir: &Utf8Path, spec: RunSpec, host: &RunnerHost) -> Result<RunResult, RunnerError> {
    run_with(dir, spec, host, &RunnerDependencies::default())
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
        return Ok(result);
    }
    // The agent may have acted already, so the run is never executed a second time.
    if files::read_started(dir, &spec)?.is_some() {
        return Err(RunnerError::CutOff { dir: dir.to_owned() });
    }
    // Space is reserved before the agent costs anything, so that a full disk cannot lose the
    // result.
    let reserved = ReservedResultFile::create(dir, host.result_key.as_ref())?;
    // One thread does everything: the agent gets SIGTERM when the thread that started it ends.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let event_loop =
        builder.enable_all().build().map_err(|source| RunnerError::EventLoop { source })?;
    let executor = RunExecutor { dir, spec: &spec, host, dependencies, started_at };
    event_loop.block_on(executor.execute(reserved))
}

impl RunExecutor<'_> {
    async fn execute(&self, reserved: ReservedResultFile) -> Result<RunResult, RunnerError> {
        // Declared before the run, so the lock is released after its transcripts are closed, on
        // every return path.
        let mut lock =
            match session::lock_session(self.spec, self.spec.session.start.id(), self.started_at) {
                Ok(lock) => lock,
                Err(error) => {
                    let result = self.not_locked_result(&error);
                    reserved.write(&result)?;
                    return Ok(result);
                }
            };
        // Locked so that no other run continues the source session meanwhile.
        let _source = match self.lock_source() {
            Ok(source) => source,
            Err(error) => {
                let result = self.not_locked_result(&error);
                reserved.write(&result)?;
                return Ok(result);
            }
        };
        fault::point(RunnerFaultPoint::SessionLocked);
        let external_messages = match self.check_external_messages() {
            Ok(external_messages) => external_messages,
            Err(result) => {
                reserved.write(&result)?;
                return Ok(*result);
            }
        };
        let prepared = match prepare_run(self, external_messages).await {
            Ok(prepared) => prepared,
            // No result is written, so that the run can be started again when there is space.
            Err(RunPrepareError::DiskFull(error)) => return Err(error),
            Err(RunPrepareError::Refused(reason)) => {
                let result = self.not_started_result(reason);
                reserved.write(&result)?;
                return Ok(result);
            }
        };
        let PreparedRun { mut run, tree, bridge, mut network, sockets: _sockets, first } = prepared;
        // Settling needs the record to find what the agent leaves, so it is durable before the
        // start.
        let started = self.started_record(&run, &tree)?;
        files::write_started(self.dir, &started)?;
        fault::point(RunnerFaultPoint::Started);
        let mut outcomes = self.run_attempts(&mut run, &tree, &mut lock, started, first).await;
        if let Some(bridge) = bridge {
            bridge.close().await;
        }
        if let Some(network) = &mut network {
            outcomes.set_counted_usage(network.finish().clone());
        }
        // The transcripts are durable before the result that vouches for them.
        let result = self.finish(&mut run, outcomes);
        fault::point(RunnerFaultPoint::LogsSynced);
        reserved.write(&result)?;
        fault::point(RunnerFaultPoint::ResultWritten);
        let ActiveRun { journal, control, .. } = run;
        // A client that receives the end may continue the session, so the transcripts are closed
        // first.
        drop(journal);
        drop(lock);
        control.finish(&ControlEvent::Ended { result: Box::new(result.clone()) }).await;
        Ok(result)
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
        })
    }

    /// Starts the agent, and starts it again where a retry may help.
    async fn run_attempts(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
        lock: &mut LockFile,
        mut started: RunStartRecord,
        RunSessionStart { mut start, reason, external_note }: RunSessionStart,
    ) -> RunAttemptOutcomes {
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
        loop {
            if std::mem::take(&mut is_new) {
                run.snapshot_initial_state(tree).await;
                // The silence during the snapshot is no stall either.
                run.deadlines.restart(Instant::now());
            }
            let ending = self.run_attempt(run, tree, lock, &start).await;
            outcomes.record_attempt(run, ending);
            // Without room for rows a further attempt could not be recorded.
            if run.ending.is_some() || !run.journal.is_flushed() {
                return outcomes;
            }
            // Each remedy is tried once, so the loop ends.
            let reason = match outcomes.error_class() {
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
    ) -> AgentProcessExit {
        // Ended before the agent was started.
        if let Some(ending) = &run.ending {
            return ending.clone();
        }
        let uuid = Uuid::new_v4();
        run.record_prompt(uuid, &self.host.brief.prompt);
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
        if let Some(ending) = self.prepare_image(run, tree).await {
            return ending;
        }
        let spawned = tree.spawn_agent(launch, &spawn_context).await;
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
        fault::point(RunnerFaultPoint::Spawned);
        let begin = run.runtime.begin(uuid);
        let complaints = AgentStderrLog::open(self.dir, &run.redactor);
        let AgentExit { exit, stderr } =
            RunEventLoop::new(run, tree, agent, complaints).run(begin).await;
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
