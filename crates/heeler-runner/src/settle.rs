//! Gives a run that was cut off its end: what its runner would have done, had it lived.
//!
//! Everything here may be cut off too, and is then done again by the next settling: each step leaves
//! a state from which the whole gives the same result. A run that still runs is left alone. Start at
//! [`settle`].

mod account;

use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::{
    PROTOCOL, Recovery, RunResult, RunSpec, SessionEnd, SessionStart, Started, file, socket_name,
};
use heeler_transcript::{
    AppendError, DiskError, Holder, LockError, LockFile, LockState, Log, LogOptions, OpenError,
    SyncError,
};
use jiff::Timestamp;
use serde_json::Value as Json;
use thiserror::Error;

use crate::files::{self, FileError, Reserved};
use crate::own;
use crate::process::{Census, Cgroup, Ended, Hunt, has_runner};
use crate::session;
use account::Account;

/// How long a lock is waited for: a probe may hold it for an instant. The agent's is free when the
/// agent has ended.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Why a run was not settled. Nothing is lost: it can be tried again.
#[derive(Debug, Error)]
pub enum SettleError {
    /// Its runner lives, or another settling is at it.
    #[error("{dir} is still running: {}", name(holder.as_ref()))]
    Running {
        /// The run's folder.
        dir: Utf8PathBuf,
        /// Who has it.
        holder: Option<Holder>,
    },
    /// What the run has started cannot be ended, and holds its session.
    #[error("the run in {dir} still has its session: {}; end it, then settle again", left.join(", "))]
    Alive {
        /// The run's folder.
        dir: Utf8PathBuf,
        /// What is left of it.
        left: Vec<String>,
    },
    /// It ran with another folder of the user's.
    #[error(
        "the run in {dir} has its session lock in {named}, and yours are in {home}; if that folder \
         is yours, settle it with HEELER_HOME={named}"
    )]
    OtherHome {
        /// The run's folder.
        dir: Utf8PathBuf,
        /// The folder that the run names.
        named: Utf8PathBuf,
        /// The user's.
        home: Utf8PathBuf,
    },
    /// A file of the run's folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A log takes no rows.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A log cannot be synced.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

impl SettleError {
    /// Says whether the next attempt would fail for the same reason: what is in the folder cannot
    /// be used, or it ran with a folder of a user that is not on this machine.
    pub fn is_lasting(&self) -> bool {
        match self {
            SettleError::File(FileError::Disk(_)) => false,
            SettleError::File(FileError::Form { source, .. }) => source.is_lasting(),
            SettleError::File(_) => true,
            SettleError::OtherHome { named, .. } => !named.exists(),
            _ => false,
        }
    }
}

fn name(holder: Option<&Holder>) -> String {
    holder.map_or("another process has it".to_owned(), ToString::to_string)
}

/// Settles the run in `dir` and returns its result: the one that is there, if there is one.
///
/// The folder may have come with a clone, so nothing that it names outside of its state directory is
/// written: `home`, the user's folder with the session locks, is told by the caller.
pub fn settle(
    dir: &Utf8Path,
    home: &Utf8Path,
    now: fn() -> Timestamp,
) -> Result<RunResult, SettleError> {
    Claim::take(dir, home, now)?.settle(now, None)
}

/// Settles several runs as [`settle`] does each: what is looked for among all processes is looked for
/// once, after all of the runs are claimed.
pub fn settle_all(
    dirs: &[Utf8PathBuf],
    home: &Utf8Path,
    now: fn() -> Timestamp,
) -> Vec<Result<RunResult, SettleError>> {
    let claims: Vec<_> = dirs.iter().map(|dir| Claim::take(dir, home, now)).collect();
    let census = Census::take();
    claims.into_iter().map(|claim| claim?.settle(now, Some(&census))).collect()
}

/// A dead run that nobody else works on.
struct Claim<'d> {
    dir: &'d Utf8Path,
    spec: RunSpec,
    holder: Holder,
    _lock: LockFile,
}

impl<'d> Claim<'d> {
    fn take(
        dir: &'d Utf8Path,
        home: &Utf8Path,
        now: fn() -> Timestamp,
    ) -> Result<Claim<'d>, SettleError> {
        let spec = files::read_spec_of_dead(dir)?;
        if spec.home != home {
            let (dir, named, home) = (dir.to_owned(), spec.home, home.to_owned());
            return Err(SettleError::OtherHome { dir, named, home });
        }
        // A copy has its lock to itself: the run may live where it was copied from.
        if let Some(first) = files::first_folder(dir)?
            && let Ok(Some(LockState { holder })) = LockFile::probe(&first.join(file::LOCK))
        {
            return Err(SettleError::Running { dir: first, holder });
        }
        let holder = Holder::this_process("runner --settle", now());
        match LockFile::acquire(&dir.join(file::LOCK), &holder, LOCK_WAIT) {
            Err(LockError::Held { holder, .. }) => {
                Err(SettleError::Running { dir: dir.to_owned(), holder })
            }
            result => Ok(Claim { dir, spec, holder, _lock: result? }),
        }
    }

    fn settle(
        self,
        now: fn() -> Timestamp,
        census: Option<&Census>,
    ) -> Result<RunResult, SettleError> {
        let Claim { dir, spec, holder, _lock } = self;
        if let Some(result) = files::read_result(dir)? {
            // Its runner may have died before it took its socket away.
            if let Ok(Some(started)) = files::read_started(dir, &spec) {
                remove_socket(&spec, &started);
            }
            return Ok(result);
        }
        let started = files::read_started(dir, &spec)?;
        let ended = end_processes(&spec, started.as_ref(), census);
        let result = match &started {
            None => never_started(&spec, &ended, now()),
            Some(started) => {
                let _session = hold_session(dir, &spec, started, &ended, &holder)?;
                let account = complete(&spec, started)?;
                remove_socket(&spec, started);
                if !account.resumable {
                    discard_own(&spec, started);
                }
                cut_off(&spec, started, account, &ended)
            }
        };
        Reserved::make(dir)?.write(&result)?;
        Ok(result)
    }
}

/// Ends what the run has left. Where it has no control group, and no process was seen that carries its
/// marker, there is nothing to descend from either.
fn end_processes(spec: &RunSpec, started: Option<&Started>, census: Option<&Census>) -> Ended {
    let cgroup = Cgroup::find(spec.run, started.and_then(|told| told.cgroup.as_deref()));
    if cgroup.is_none() && census.is_some_and(|census| !census.has(spec.run)) {
        return Ended::default();
    }
    let ended = Hunt::of_dead(spec.run, cgroup).end();
    for left in &ended.left {
        tracing::warn!(run = %spec.run, "{left}");
    }
    ended
}

/// Ends what a dead run has left running, and nothing else: for one whose folder cannot be used, so
/// that all that is known of it is its name.
pub fn end_left(dir: &Utf8Path, now: fn() -> Timestamp) -> Result<(), SettleError> {
    let Some(run) = dir.file_name().and_then(|name| name.parse().ok()) else { return Ok(()) };
    let holder = Holder::this_process("runner --end", now());
    let _lock = match LockFile::acquire(&dir.join(file::LOCK), &holder, LOCK_WAIT) {
        Err(LockError::Held { holder, .. }) => {
            return Err(SettleError::Running { dir: dir.to_owned(), holder });
        }
        result => result?,
    };
    // A copy has its lock to itself: the run may live where it was copied from.
    if has_runner(run) {
        return Err(SettleError::Running { dir: dir.to_owned(), holder: None });
    }
    let cgroup = Cgroup::find(run, files::recorded_cgroup(dir).as_deref());
    for left in Hunt::of_dead(run, cgroup).end().left {
        tracing::warn!(%run, "{left}");
    }
    Ok(())
}

/// Takes the session's lock, so that nothing is added to its log meanwhile. If nothing of the run is
/// left, another run has the session: its rows are its own, and the lock is not needed to tell.
fn hold_session(
    dir: &Utf8Path,
    spec: &RunSpec,
    started: &Started,
    ended: &Ended,
    holder: &Holder,
) -> Result<Option<LockFile>, SettleError> {
    let path = session::locks(&spec.home)?.join(started.session.as_str());
    if !path.exists() {
        return Ok(None);
    }
    match LockFile::acquire(&path, holder, LOCK_WAIT) {
        Err(LockError::Held { .. }) if ended.left.is_empty() => Ok(None),
        Err(LockError::Held { .. }) => {
            Err(SettleError::Alive { dir: dir.to_owned(), left: ended.left.clone() })
        }
        result => Ok(Some(result?)),
    }
}

/// Adds what the job's log lacks of the session's log, and returns what the session's log tells.
fn complete(spec: &RunSpec, started: &Started) -> Result<Account, SettleError> {
    // To open a log is to repair it; another run that has the session has done so.
    let session = match started.session_log.is_file() {
        true => match Log::open(&started.session_log, LogOptions::default()) {
            Err(OpenError::Busy { .. }) => None,
            result => Some(result?.log),
        },
        false => None,
    };
    let mut job = Log::open(&spec.job_log, LogOptions::default())?.log;
    let mut append = |row: &Json| Ok(job.append(row.to_string().as_bytes())?);
    let account = Account::read(spec, started, &mut append)?;
    job.close()?;
    session.map(Log::close).transpose()?;
    Ok(account)
}

/// Takes away the socket that the runner could not. Only a socket of this run is touched.
fn remove_socket(spec: &RunSpec, started: &Started) {
    let is_ours = started.socket.file_name() == Some(socket_name(spec.run).as_str());
    let is_socket = started.socket.symlink_metadata().is_ok_and(|it| it.file_type().is_socket());
    if is_ours && is_socket {
        // One that stays answers nobody.
        drop(std::fs::remove_file(&started.socket));
    }
}

/// Takes away the agent's own record of a session that was to go on from another, and was not used:
/// nobody will. It stays if it holds anything that our log does not.
fn discard_own(spec: &RunSpec, started: &Started) {
    let SessionStart::Continue { id, .. } = &spec.session.start else { return };
    let Some(folder) = started.own_sessions.as_deref().filter(|_| *id == started.session) else {
        return;
    };
    let path = own::path(folder, &spec.working_directory, id);
    let discarded = session::row_ids(&started.session_log)
        .and_then(|known| own::discard_if_known(&path, &known));
    if let Err(error) = discarded {
        tracing::warn!(%path, %error, "the agent's record of a session that nobody used stays");
    }
}

fn never_started(spec: &RunSpec, ended: &Ended, now: Timestamp) -> RunResult {
    let why = "the run was cut off before its agent was started";
    let settled = Some(Recovery { processes_ended: ended.processes, rows_completed: 0 });
    RunResult { settled, ..RunResult::never_started(spec.run, spec.job.clone(), why, now) }
}

fn cut_off(spec: &RunSpec, started: &Started, account: Account, ended: &Ended) -> RunResult {
    let Account { end, conclusion, last_at, last, messages, tokens, resumable, completed } =
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
        session: Some(SessionEnd {
            id: started.session.clone(),
            log: started.session_log.clone(),
            messages,
            tokens,
            resumable,
            own: own::mark_of(own_sessions, &spec.working_directory, &started.session, last),
        }),
        started_at: started.at,
        // Its last sign of life: that nobody looked for it since is no part of it.
        finished_at: last_at.unwrap_or(started.at).max(started.at),
        exit_code: None,
        settled: Some(Recovery { processes_ended: ended.processes, rows_completed: completed }),
        output: conclusion.output.filter(|_| spec.keep_output),
    }
}

#[cfg(test)]
mod tests;
