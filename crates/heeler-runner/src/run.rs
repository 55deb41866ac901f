//! One run, from its locks to its result.
//!
//! The order of what is done here is what a crash relies on: lock, space for the result, the
//! session's lock, `started.json`, agent, rows, end of the tree, logs synced, `result.json`. Whatever
//! is missing after a crash is done by [`crate::settle()`]. Start at [`run()`].

mod fork;
mod hand_over;
mod host;
mod outside;
mod prepare;
mod result;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::chain;
use heeler_model::outcome::Ending;
use heeler_model::run::{
    ErrorClass, Happening, PROTOCOL, PROTOCOL_MIN, RunResult, RunSpec, SessionStart, Started, file,
    reads,
};
use heeler_transcript::{Disk, DiskError, Holder, LockError, LockFile, OsDisk};
use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

use crate::complaints::Complaints;
use crate::fault::{self, Point};
use crate::files::{self, FileError, Reserved};
use crate::lines::LineLimits;
use crate::own;
use crate::process::{Launch, Place, Tree};
use crate::pump::{AgentEnd, Pump, Run, SNAPSHOT_TIME_MAX};
use crate::runtime::{self, Runtime, Surroundings};
use crate::session::{self, SessionLockError};
pub use host::Host;
use prepare::{First, Prepared, Unprepared, prepare};
use result::Judged;

/// How long to wait for the run's lock: a probe may hold it for an instant.
const RUN_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Why a run has no result. Nothing was paid for: settling says how far it came.
#[derive(Debug, Error)]
pub enum RunnerError {
    /// A file of the run's folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// The brief was written by a program that speaks otherwise.
    #[error(
        "the brief has protocol version {found}, and this program reads {PROTOCOL_MIN} to {PROTOCOL}; use the program that wrote it"
    )]
    Brief {
        /// Its version.
        found: u32,
    },
    /// Another runner is at it.
    #[error("the run {dir} is under way already")]
    Locked {
        /// The run's folder.
        dir: Utf8PathBuf,
        /// Who has it.
        #[source]
        source: LockError,
    },
    /// An earlier runner was cut off; its agent may have done something already.
    #[error("the run {dir} was cut off before; settle it and start another run")]
    CutOff {
        /// The run's folder.
        dir: Utf8PathBuf,
    },
    /// The disk takes not even what a run starts with, or not its result.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The event loop of this process cannot be made.
    #[error("cannot start the runner's event loop")]
    EventLoop {
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What a test may replace.
pub(crate) struct Means {
    /// Where logs are written.
    pub(crate) disk: Arc<dyn Disk>,
    /// How long lines may be.
    pub(crate) lines: LineLimits,
    /// How long a snapshot of the work tree may take.
    pub(crate) snapshot_time_max: Duration,
    /// How the agent is run.
    pub(crate) runtime: fn(&Surroundings<'_>) -> Result<Box<dyn Runtime>, String>,
}

impl Default for Means {
    fn default() -> Means {
        Means {
            disk: Arc::new(OsDisk),
            lines: LineLimits::default(),
            snapshot_time_max: SNAPSHOT_TIME_MAX,
            runtime: runtime::of,
        }
    }
}

/// Runs the run in `dir` to its end and returns its result, which is in its folder by then.
///
/// A run that has a result already gets it back, and nothing happens.
pub fn run(dir: &Utf8Path, host: &Host) -> Result<RunResult, RunnerError> {
    run_by(dir, host, &Means::default())
}

pub(crate) fn run_by(dir: &Utf8Path, host: &Host, means: &Means) -> Result<RunResult, RunnerError> {
    let spec = files::read_spec(dir)?;
    if !reads(host.brief.protocol) {
        return Err(RunnerError::Brief { found: host.brief.protocol });
    }
    let started_at = (host.now)();
    let holder = Holder::this_process(&format!("runner {}", spec.job), started_at);
    let _lock = LockFile::acquire(&dir.join(file::LOCK), &holder, RUN_LOCK_WAIT)
        .map_err(|source| RunnerError::Locked { dir: dir.to_owned(), source })?;
    fault::point(Point::RunLocked);
    if let Some(result) = files::read_result(dir)? {
        return Ok(result);
    }
    if files::read_started(dir, &spec)?.is_some() {
        return Err(RunnerError::CutOff { dir: dir.to_owned() });
    }
    let reserved = Reserved::make(dir)?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let event_loop =
        builder.enable_all().build().map_err(|source| RunnerError::EventLoop { source })?;
    let order = Order { dir, spec: &spec, host, means, started_at };
    event_loop.block_on(order.carry_out(reserved))
}

/// What is to be done, and with what.
pub(crate) struct Order<'o> {
    pub(crate) dir: &'o Utf8Path,
    pub(crate) spec: &'o RunSpec,
    pub(crate) host: &'o Host,
    pub(crate) means: &'o Means,
    pub(crate) started_at: Timestamp,
}

impl Order<'_> {
    async fn carry_out(&self, reserved: Reserved) -> Result<RunResult, RunnerError> {
        // Declared before the run, and so given back after its logs are closed, however this returns.
        let mut lock = match session::lock(self.spec, self.spec.session.start.id(), self.started_at)
        {
            Ok(lock) => lock,
            Err(error) => {
                let result = self.not_locked(&error);
                reserved.write(&result)?;
                return Ok(result);
            }
        };
        // Nobody goes on with what this one goes on from.
        let _source = match self.lock_source() {
            Ok(source) => source,
            Err(error) => {
                let result = self.not_locked(&error);
                reserved.write(&result)?;
                return Ok(result);
            }
        };
        fault::point(Point::SessionLocked);
        let outside = match self.outside() {
            Ok(outside) => outside,
            Err(result) => {
                reserved.write(&result)?;
                return Ok(*result);
            }
        };
        let prepared = match prepare(self, outside).await {
            Ok(prepared) => prepared,
            Err(Unprepared::Full(error)) => return Err(error),
            Err(Unprepared::Refused(reason)) => {
                let result = self.not_started(reason);
                reserved.write(&result)?;
                return Ok(result);
            }
        };
        let Prepared { mut run, tree, bridge, first } = prepared;
        let started = self.started(&run, &tree)?;
        files::write_started(self.dir, &started)?;
        fault::point(Point::Started);
        let judged = self.attempts(&mut run, &tree, &mut lock, started, first).await;
        if let Some(bridge) = bridge {
            bridge.close().await;
        }
        let result = self.finish(&mut run, judged);
        fault::point(Point::LogsSynced);
        reserved.write(&result)?;
        fault::point(Point::ResultWritten);
        let Run { journal, control, .. } = run;
        // Whoever hears of the end may go on with the session.
        drop(journal);
        drop(lock);
        control.finish(&Happening::Ended { result: Box::new(result.clone()) }).await;
        Ok(result)
    }

    /// Returns the folder in which the agent keeps its own sessions.
    pub(crate) fn own_sessions(&self) -> Option<Utf8PathBuf> {
        own::folder(self.spec, &self.host.brief.env)
    }

    fn lock_source(&self) -> Result<Option<LockFile>, SessionLockError> {
        match &self.spec.session.start {
            SessionStart::Continue { source, .. } => {
                session::lock(self.spec, source, self.started_at).map(Some)
            }
            SessionStart::Fresh { .. }
            | SessionStart::Resume { .. }
            | SessionStart::Fork { .. } => Ok(None),
        }
    }

    fn started(&self, run: &Run, tree: &Tree) -> Result<Started, RunnerError> {
        Ok(Started {
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
            own_sessions: self.own_sessions(),
        })
    }

    /// Starts the agent, and once more where that may help.
    async fn attempts(
        &self,
        run: &mut Run,
        tree: &Tree,
        lock: &mut LockFile,
        mut started: Started,
        First { mut start, reason, outside }: First,
    ) -> Judged {
        run.begin_in(&start, &reason);
        if let Some(outside) = outside {
            run.note("taken_in", &outside);
        }
        let mut judged = Judged::default();
        let mut is_new = !matches!(start, SessionStart::Resume { .. });
        let goes_on_from_another = matches!(start, SessionStart::Continue { .. });
        if let SessionStart::Continue { source, id, keep } = &start {
            if self.hand_over(run, tree, lock, (source, *keep), &mut judged).await.is_none() {
                return judged;
            }
            start = SessionStart::Resume { id: id.clone() };
            run.watch.restart(Instant::now());
        }
        // What was carried over would be lost in a fresh session.
        let (mut may_begin_anew, mut may_try_again) = (!goes_on_from_another, true);
        loop {
            if std::mem::take(&mut is_new) {
                run.record_beginning(tree).await;
                run.watch.restart(Instant::now());
            }
            let ending = self.attempt(run, tree, lock, &start).await;
            judged.add(run, ending);
            if run.ending.is_some() || !run.journal.is_clear() {
                return judged;
            }
            let reason = match judged.class() {
                Some(ErrorClass::SessionExpired)
                    if may_begin_anew && !matches!(start, SessionStart::Fresh { .. }) =>
                {
                    may_begin_anew = false;
                    let fresh = match self.begin_anew(run, &mut started) {
                        Ok(fresh) => fresh,
                        Err(reason) => {
                            run.note("warning", &format!("no fresh session can begin: {reason}"));
                            return judged;
                        }
                    };
                    *lock = fresh;
                    is_new = true;
                    start = SessionStart::Fresh { id: run.session.clone() };
                    "the agent does not know the session any more, so a fresh one begins"
                }
                Some(ErrorClass::TokenExpired) if may_try_again => {
                    may_try_again = false;
                    // What the agent has done so far is in its session: it is not paid for twice.
                    start = SessionStart::Resume { id: run.session.clone() };
                    "the login had expired, so the agent is started once more"
                }
                _ => return judged,
            };
            run.begin_in(&start, reason);
            run.watch.restart(Instant::now());
        }
    }

    async fn attempt(
        &self,
        run: &mut Run,
        tree: &Tree,
        lock: &LockFile,
        start: &SessionStart,
    ) -> Ending {
        // Before it began.
        if let Some(ending) = &run.ending {
            return ending.clone();
        }
        let uuid = Uuid::new_v4();
        run.prompt(uuid, &self.host.brief.prompt);
        let launch = run.runtime.launch(start);
        self.perform(run, tree, lock, &launch, uuid).await
    }

    /// Starts an agent for the prompt with this id, and runs it to its end.
    async fn perform(
        &self,
        run: &mut Run,
        tree: &Tree,
        lock: &LockFile,
        launch: &Launch,
        uuid: Uuid,
    ) -> Ending {
        let inherit = [lock.fd()];
        let place = Place {
            cwd: &self.spec.working_directory,
            env: &self.host.brief.env,
            inherit: &inherit,
            secrets: &run.redactor,
        };
        let agent = match tree.spawn(launch, &place) {
            Ok(agent) => agent,
            Err(error) => {
                return Ending::NotStarted { reason: chain(&error) };
            }
        };
        fault::point(Point::Spawned);
        let begin = run.runtime.begin(uuid);
        let complaints = Complaints::open(self.dir, &run.redactor);
        let AgentEnd { exit, stderr } = Pump::new(run, tree, agent, complaints).run(begin).await;
        match run.ending.clone() {
            Some(ending) => ending,
            None => result::exited(exit, stderr),
        }
    }
}
