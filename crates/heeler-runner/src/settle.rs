//! Settles an interrupted run: completes the steps that its runner would have done.
//!
//! Settling may be interrupted too and is then repeated: each step leaves a state from which the
//! whole yields the same result. A live run is left alone. Start at [`settle_run`].

mod report;

use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::RunId;
use heeler_model::run::{
    PROTOCOL, RunRecovery, RunResult, RunSpec, RunStartRecord, SessionEnd, SessionStart,
    SettleInput, file, socket_name,
};
use heeler_transcript::{
    AppendError, DiskError, LockError, LockFile, LockHolder, LockState, SyncError,
    TranscriptOpenError, TranscriptWriter, TranscriptWriterOptions,
};
use jiff::Timestamp;
use serde_json::Value as Json;
use thiserror::Error;

use crate::files::{self, ReservedResultFile, RunFileError};
use crate::native_session;
#[cfg(target_os = "linux")]
use crate::process::settle_containers;
use crate::process::{
    LiveRunSet, RunCgroup, RunProcessScanner, TerminationReport, is_runner_alive,
};
use crate::run::remove_socket_folder;
use crate::session::{self, runner_command};
use crate::transcript_segment::hash_transcript;
use report::SettledRunReport;

/// Time to wait for a lock: a probe may hold it for an instant. The agent's lock is free once the
/// agent has ended.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Reason that a run was not settled. Nothing is lost: settling can be retried.
#[derive(Debug, Error)]
pub enum RunSettleError {
    /// The runner is alive, or another process is settling the run.
    #[error("{dir} is still running: {}", describe_holder(holder.as_ref()))]
    Running {
        dir: Utf8PathBuf,
        /// Current holder of the lock.
        holder: Option<LockHolder>,
    },
    /// Processes of the run cannot be ended and hold its session.
    #[error("processes of the run in {dir} hold its session: {}; end them, then settle again", left.join(", "))]
    Alive {
        dir: Utf8PathBuf,
        /// Remaining processes.
        left: Vec<String>,
    },
    /// The run used another home directory.
    #[error(
        "the run in {dir} has its session lock in {named}, and yours are in {home}; if that folder \
         is yours, settle it with HEELER_HOME={named}"
    )]
    OtherHome {
        dir: Utf8PathBuf,
        /// Directory that the run names.
        named: Utf8PathBuf,
        /// Home directory of the user.
        home: Utf8PathBuf,
    },
    #[error(transparent)]
    File(#[from] RunFileError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A transcript cannot be opened.
    #[error(transparent)]
    Open(#[from] TranscriptOpenError),
    /// A transcript accepts no rows.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A transcript cannot be synced.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

impl RunSettleError {
    /// Returns true if the next attempt would fail for the same reason: the content of the run
    /// directory is unusable, or the run used a home directory that is not on this machine.
    pub fn is_permanent(&self) -> bool {
        match self {
            RunSettleError::File(RunFileError::Disk(_)) => false,
            // A file of a newer release is read again after the next update of this program.
            RunSettleError::File(RunFileError::Form { source, .. }) => source.is_permanent(),
            RunSettleError::File(_) => true,
            RunSettleError::OtherHome { named, .. } => !named.exists(),
            _ => false,
        }
    }
}

fn describe_holder(holder: Option<&LockHolder>) -> String {
    holder.map_or("another process holds it".to_owned(), ToString::to_string)
}

/// Settles the run in `dir` and returns its result: the existing one, if any.
///
/// The run directory may come from an untrusted clone, so nothing that it names outside of its
/// state directory is written: the caller passes `home`, the user's directory with the session
/// locks.
pub fn settle_run(
    dir: &Utf8Path,
    home: &Utf8Path,
    now: fn() -> Timestamp,
) -> Result<RunResult, RunSettleError> {
    DeadRunClaim::acquire(dir, home, now, None)?.settle(now, None, None)
}

/// Settles a run like [`settle_run`] and signs its result. An existing result stays only if the
/// run's runner signed it.
pub fn settle_run_signed(
    dir: &Utf8Path,
    home: &Utf8Path,
    now: fn() -> Timestamp,
    keys: Option<&SettleInput>,
) -> Result<RunResult, RunSettleError> {
    DeadRunClaim::acquire(dir, home, now, keys)?.settle(now, None, keys)
}

/// Settles several runs like [`settle_run_signed`]. The scan of all processes is done once, after all of
/// the runs are claimed.
pub fn settle_runs(
    dirs: &[Utf8PathBuf],
    home: &Utf8Path,
    now: fn() -> Timestamp,
    keys: Option<&SettleInput>,
) -> Vec<Result<RunResult, RunSettleError>> {
    // The scan counts only for runs whose lock is held by then, so all are claimed first.
    let claims: Vec<_> =
        dirs.iter().map(|dir| DeadRunClaim::acquire(dir, home, now, keys)).collect();
    let census = LiveRunSet::scan();
    claims.into_iter().map(|claim| claim?.settle(now, Some(&census), keys)).collect()
}

/// Dead run that no other process works on.
struct DeadRunClaim<'d> {
    dir: &'d Utf8Path,
    spec: RunSpec,
    holder: LockHolder,
    _lock: LockFile,
}

impl<'d> DeadRunClaim<'d> {
    fn acquire(
        dir: &'d Utf8Path,
        home: &Utf8Path,
        now: fn() -> Timestamp,
        keys: Option<&SettleInput>,
    ) -> Result<DeadRunClaim<'d>, RunSettleError> {
        // The spec must name the same run as the directory.
        let run: Option<RunId> = dir.file_name().and_then(|name| name.parse().ok());
        let key = keys.zip(run).and_then(|(keys, run)| keys.runner_keys.get(&run));
        let spec = files::read_spec_of_dead_run(dir, key)?;
        // A directory from elsewhere must not decide where locks are created.
        if spec.home != home {
            let (dir, named, home) = (dir.to_owned(), spec.home, home.to_owned());
            return Err(RunSettleError::OtherHome { dir, named, home });
        }
        // A copied run directory has a lock of its own: the run may be alive in the original one.
        if let Some(first) = files::original_folder(dir, key)?
            && let Ok(Some(LockState { holder })) = LockFile::probe(&first.join(file::LOCK))
        {
            return Err(RunSettleError::Running { dir: first, holder });
        }
        let holder = LockHolder::this_process("runner --settle", now());
        match LockFile::acquire(&dir.join(file::LOCK), &holder, LOCK_WAIT) {
            Err(LockError::Held { holder, .. }) => {
                Err(RunSettleError::Running { dir: dir.to_owned(), holder })
            }
            result => Ok(DeadRunClaim { dir, spec, holder, _lock: result? }),
        }
    }

    fn settle(
        self,
        now: fn() -> Timestamp,
        census: Option<&LiveRunSet>,
        keys: Option<&SettleInput>,
    ) -> Result<RunResult, RunSettleError> {
        let DeadRunClaim { dir, spec, holder, _lock } = self;
        let existing = match keys.and_then(|keys| keys.runner_keys.get(&spec.run)) {
            Some(key) => files::read_signed_result(dir, key)?,
            // The runner of an earlier release signed nothing.
            None => files::read_result(dir)?,
        };
        // The result is read under the lock, because another process may have settled the run
        // meanwhile.
        if let Some(result) = existing {
            // Its runner may have died before it removed its socket.
            if let Ok(Some(started)) = files::read_started(dir, &spec) {
                remove_socket(&spec, &started);
            }
            return Ok(result);
        }
        let started = files::read_started(dir, &spec)?;
        // The processes end first: a live agent could still add to its session.
        let mut ended = end_processes(&spec, started.as_ref(), census);
        #[cfg(target_os = "linux")]
        settle_containers(dir, &spec);
        let result = match &started {
            None => never_started_result(&spec, &ended, now()),
            Some(started) => {
                // It is held until the rows are complete, so that no other run adds to the session
                // meanwhile.
                let _session = lock_session(dir, &spec, started, &mut ended, &holder)?;
                let account = complete_job_log(&spec, started)?;
                remove_socket(&spec, started);
                if !account.resumable {
                    discard_native_session(&spec, started);
                }
                let mut result = interrupted_result(&spec, started, account, &ended, now());
                result.transcript = Some(hash_transcript(&spec.job_log)?);
                result
            }
        };
        // The result comes last: without it, settling starts over after a crash.
        ReservedResultFile::create(dir, keys.map(|keys| &keys.result_key))?.write(&result)?;
        Ok(result)
    }
}

/// Ends the remaining processes of the run. If it has no cgroup and no process with its marker was
/// seen, there is no ancestor to search from either.
fn end_processes(
    spec: &RunSpec,
    started: Option<&RunStartRecord>,
    census: Option<&LiveRunSet>,
) -> TerminationReport {
    let run = agent_run(spec, started);
    let cgroup = RunCgroup::find(run, started.and_then(|started| started.cgroup.as_deref()));
    if cgroup.is_none() && census.is_some_and(|census| !census.contains(run)) {
        return TerminationReport::default();
    }
    let ended = RunProcessScanner::for_dead_run(run, cgroup).kill_all();
    // The run is settled all the same; only a session that they hold prevents that.
    for survivor in &ended.survivors {
        tracing::warn!(run = %spec.run, "{survivor}");
    }
    ended
}

/// Returns the run whose mark the processes of a run have: that which started its agent.
fn agent_run(spec: &RunSpec, started: Option<&RunStartRecord>) -> RunId {
    let recorded = started.and_then(|started| started.agent_run);
    // An agent can write the record, so it must not name a run that is alive.
    recorded.filter(|run| !is_runner_alive(*run)).unwrap_or(spec.run)
}

/// Ends the remaining processes of a dead run, and does nothing else. For a run with an unusable
/// directory, of which only the ID is known.
pub fn end_leftover_processes(
    dir: &Utf8Path,
    now: fn() -> Timestamp,
) -> Result<(), RunSettleError> {
    // The directory's content is unusable, so the run is known only by the directory's name.
    let Some(run) = dir.file_name().and_then(|name| name.parse().ok()) else { return Ok(()) };
    let holder = LockHolder::this_process("runner --end", now());
    let _lock = match LockFile::acquire(&dir.join(file::LOCK), &holder, LOCK_WAIT) {
        Err(LockError::Held { holder, .. }) => {
            return Err(RunSettleError::Running { dir: dir.to_owned(), holder });
        }
        result => result?,
    };
    // A copied run directory has a lock of its own: the run may be alive in the original one.
    if is_runner_alive(run) {
        return Err(RunSettleError::Running { dir: dir.to_owned(), holder: None });
    }
    let cgroup = RunCgroup::find(run, files::recorded_cgroup(dir).as_deref());
    for survivor in RunProcessScanner::for_dead_run(run, cgroup).kill_all().survivors {
        tracing::warn!(%run, "{survivor}");
    }
    Ok(())
}

/// Acquires the session's lock, so that its transcript does not grow meanwhile. If no process of
/// the run is left and another run holds the session, the lock is not needed: rows name their run.
/// An agent of this run that still holds the lock is ended first.
fn lock_session(
    dir: &Utf8Path,
    spec: &RunSpec,
    started: &RunStartRecord,
    ended: &mut TerminationReport,
    holder: &LockHolder,
) -> Result<Option<LockFile>, RunSettleError> {
    let path = session::locks_folder(&spec.home)?.join(started.session.as_str());
    // Without the file no process has ever locked this session.
    if !path.exists() {
        return Ok(None);
    }
    let held_by = match LockFile::acquire(&path, holder, LOCK_WAIT) {
        Err(LockError::Held { holder, .. }) => holder,
        result => return Ok(Some(result?)),
    };
    let is_own = |by: &LockHolder| by.pid == started.pid && by.command == runner_command(spec);
    if !held_by.is_some_and(|by| is_own(&by)) {
        return match ended.survivors.is_empty() {
            true => Ok(None),
            false => {
                Err(RunSettleError::Alive { dir: dir.to_owned(), left: ended.survivors.clone() })
            }
        };
    }
    // The runner took the lock, so only its agent can have it: a process without the marker that may
    // still add to the native session.
    end_lock_holders(spec, started, path.clone(), ended);
    match LockFile::acquire(&path, holder, LOCK_WAIT) {
        Err(LockError::Held { .. }) => {
            let mut left = ended.survivors.clone();
            left.push(format!("the agent of job {} has the lock {path}", spec.job));
            Err(RunSettleError::Alive { dir: dir.to_owned(), left })
        }
        result => Ok(Some(result?)),
    }
}

/// Ends the processes that inherited the lock of the run's session, and adds them to the report.
fn end_lock_holders(
    spec: &RunSpec,
    started: &RunStartRecord,
    lock: Utf8PathBuf,
    ended: &mut TerminationReport,
) {
    let run = agent_run(spec, Some(started));
    let cgroup = RunCgroup::find(run, started.cgroup.as_deref());
    let scanner = RunProcessScanner::for_dead_run(run, cgroup).with_lock_holders(lock);
    let TerminationReport { processes, survivors } = scanner.kill_all();
    ended.processes += processes;
    ended.survivors = survivors;
}

/// Appends the rows that the job transcript lacks compared to the session transcript, and returns
/// the state derived from the session transcript.
fn complete_job_log(
    spec: &RunSpec,
    started: &RunStartRecord,
) -> Result<SettledRunReport, RunSettleError> {
    // Opening a transcript repairs it; another run that holds the session has done so already.
    let session = match started.session_log.is_file() {
        true => {
            match TranscriptWriter::open(&started.session_log, TranscriptWriterOptions::default()) {
                Err(TranscriptOpenError::Busy { .. }) => None,
                result => Some(result?.writer),
            }
        }
        false => None,
    };
    let mut job = TranscriptWriter::open(&spec.job_log, TranscriptWriterOptions::default())?.writer;
    let mut append = |row: &Json| Ok(job.append(row.to_string().as_bytes())?);
    let account = SettledRunReport::read(spec, started, &mut append)?;
    // Closing syncs, so the rows are durable before the result that counts them.
    job.close()?;
    session.map(TranscriptWriter::close).transpose()?;
    Ok(account)
}

/// Removes the socket that the runner left. Only a socket of this run is touched.
fn remove_socket(spec: &RunSpec, started: &RunStartRecord) {
    remove_socket_folder(spec);
    let is_ours = started.socket.file_name() == Some(socket_name(spec.run).as_str());
    // The directory may come from an untrusted clone, so the recorded path alone is not enough.
    let is_socket = started.socket.symlink_metadata().is_ok_and(|it| it.file_type().is_socket());
    if is_ours && is_socket {
        // A leftover socket has no listener.
        drop(std::fs::remove_file(&started.socket));
    }
}

/// Removes the native session of a fork that was never used and never will be. It stays if it holds
/// any entry that Heeler's transcript lacks.
fn discard_native_session(spec: &RunSpec, started: &RunStartRecord) {
    let SessionStart::Continue { id, .. } = &spec.session.start else { return };
    let Some(folder) = started.own_sessions.as_deref().filter(|_| *id == started.session) else {
        return;
    };
    let path = native_session::session_path(folder, &spec.working_directory, id);
    let discarded = session::row_ids(&started.session_log)
        .and_then(|known| native_session::discard_if_known(&path, &known));
    if let Err(error) = discarded {
        tracing::warn!(%path, %error, "an unused native session could not be removed");
    }
}

fn never_started_result(spec: &RunSpec, ended: &TerminationReport, now: Timestamp) -> RunResult {
    let why = "the run was interrupted before its agent was started";
    let settled = Some(RunRecovery { processes_ended: ended.processes, ..RunRecovery::default() });
    RunResult { settled, ..RunResult::never_started(spec.run, spec.job.clone(), why, now) }
}

fn interrupted_result(
    spec: &RunSpec,
    started: &RunStartRecord,
    account: SettledRunReport,
    ended: &TerminationReport,
    now: Timestamp,
) -> RunResult {
    let SettledRunReport { end, conclusion, last_at, last, messages, tokens, resumable, .. } =
        account;
    let own_sessions = started.own_sessions.as_deref();
    RunResult {
        protocol: PROTOCOL,
        run: spec.run,
        job: spec.job.clone(),
        end,
        exit_reason: conclusion.exit_reason,
        stop_reason: conclusion.stop_reason,
        summary: conclusion.summary,
        error: conclusion.error,
        cost: conclusion.cost,
        session: (!spec.session.is_unrecorded).then(|| SessionEnd {
            id: started.session.clone(),
            log: started.session_log.clone(),
            messages,
            tokens,
            resumable,
            own: native_session::mark_at_run_end(
                own_sessions,
                &spec.working_directory,
                &started.session,
                last,
            ),
        }),
        // The times come from files that an agent can write; none is in the future.
        started_at: started.at.min(now),
        // The time of its last row: the time until settling is not part of the run.
        finished_at: last_at.unwrap_or(started.at).max(started.at).min(now),
        // Only the runner that died could have received it.
        exit_code: None,
        settled: Some(RunRecovery {
            processes_ended: ended.processes,
            rows_completed: account.completed,
            spent_usd_min: account.spent_usd_min,
        }),
        output: conclusion.output.filter(|_| spec.keep_output),
        transcript: None,
        session_transcript: None,
        denied: conclusion.denied,
        // The rows are files that an agent can write, and other agents would wait for the reset.
        usage_limit: None,
    }
}

#[cfg(test)]
mod tests;
