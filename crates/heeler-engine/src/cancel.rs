//! The wish that a job be cancelled, and the end of a runner that does not hear it.
//!
//! A run that can be reached is asked through [`crate::ControlClient`]. One that is just starting cannot:
//! the wish is then put on record, where whoever commits the run or would
//! start it again finds it. Start at [`record_request`].

use std::io;

use camino::Utf8Path;
use heeler_model::run::{RunEnd, RunResult, file};
use heeler_model::{ExitReason, Job, JobId, JobStatus, RunId};
use heeler_store::{DatabaseError, EffectRecord, StateDatabase, StoreTransaction};
use heeler_transcript::{LockError, LockFile};
use jiff::Timestamp;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The kind of effects that are wishes to cancel.
const CANCEL_EFFECT_KIND: &str = "cancel";

/// How many effects are looked at for wishes.
const EFFECTS_MAX: usize = 10_000;

/// How a job is to be cancelled.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CancelRequest {
    /// At once.
    pub(crate) now: bool,
    /// By whom.
    pub(crate) by: String,
}

/// Lists the wishes that are not fulfilled.
pub(crate) fn pending_requests(
    db: &StateDatabase,
) -> Result<Vec<(RunId, CancelRequest)>, DatabaseError> {
    let undone =
        db.pending_effects(EFFECTS_MAX)?.into_iter().filter(|it| it.kind == CANCEL_EFFECT_KIND);
    let wish = |effect: EffectRecord| {
        let wish = serde_json::from_str(&effect.payload).unwrap_or_default();
        Some((effect.key.parse().ok()?, wish))
    };
    Ok(undone.filter_map(wish).collect())
}

/// Wants a job cancelled and returns its record.
///
/// A job that nobody works on is cancelled by this. A run that is under way is cancelled if it comes
/// to nothing; whoever wants it to end sooner asks it.
pub(crate) fn record_request(
    tx: &mut StoreTransaction<'_>,
    id: &JobId,
    wish: &CancelRequest,
    now: Timestamp,
) -> Result<Job, DatabaseError> {
    let missing = || DatabaseError::Missing { what: "job", id: id.to_string() };
    let mut job = tx.job(id)?.ok_or_else(missing)?;
    let last = tx.runs_of_job(id)?.pop();
    match (job.head.status, last) {
        (JobStatus::Running, Some(run)) => {
            tx.put_effect(&cancel_effect(run.id, wish, now))?;
        }
        (JobStatus::Pending, _) => cancel_queued_job(tx, &mut job, now)?,
        _ => {}
    }
    Ok(job)
}

fn cancel_queued_job(
    tx: &mut StoreTransaction<'_>,
    job: &mut Job,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    job.head.status = JobStatus::Cancelled;
    job.head.exit_reason = Some(ExitReason::Cancelled);
    job.head.finished_at.get_or_insert(now);
    job.version = tx.update_job(job)?;
    Ok(())
}

fn cancel_effect(run: RunId, wish: &CancelRequest, now: Timestamp) -> EffectRecord {
    EffectRecord {
        id: cancel_effect_id(run),
        kind: CANCEL_EFFECT_KIND.to_owned(),
        key: run.to_string(),
        payload: serde_json::to_string(wish).expect("a wish is JSON"),
        created_at: now,
        attempts: 0,
        last_error: None,
    }
}

fn cancel_effect_id(run: RunId) -> String {
    format!("cancel {run}")
}

/// Fulfils the wish, if there is one, and says whether there was: a run that did not come to an end
/// of its own is cancelled.
pub(crate) fn apply_request(
    tx: &mut StoreTransaction<'_>,
    result: &mut RunResult,
) -> Result<bool, DatabaseError> {
    let is_wished = tx.finish_effect(&cancel_effect_id(result.run), result.finished_at)?;
    if is_wished && result.end != RunEnd::Finished {
        result.exit_reason = ExitReason::Cancelled;
        result.error = None;
    }
    Ok(is_wished)
}

/// Why a runner was not killed.
#[derive(Debug, Error)]
pub(crate) enum RunnerKillError {
    /// Nobody holds the run's lock: there is nothing to kill.
    #[error("nobody works on {0} any more")]
    Gone(camino::Utf8PathBuf),
    /// It cannot be told who holds it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Whoever holds it is not a runner of this run.
    #[error("{holder} has {folder}, and is not its runner; it was left alone")]
    NotARunner {
        /// The run's folder.
        folder: camino::Utf8PathBuf,
        /// Who.
        holder: String,
    },
    /// The system refused.
    #[error("cannot kill process {pid}")]
    Kill {
        /// The runner.
        pid: u32,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Kills the runner of a run, which does not answer; returns its process. What it leaves is settled
/// like any dead run.
pub(crate) fn kill_runner(folder: &Utf8Path) -> Result<u32, RunnerKillError> {
    let lock = folder.join(file::LOCK);
    let held = LockFile::probe(&lock)?.ok_or_else(|| RunnerKillError::Gone(folder.to_owned()))?;
    let stranger =
        |holder: String| RunnerKillError::NotARunner { folder: folder.to_owned(), holder };
    let holder = held.holder.ok_or_else(|| stranger("an unknown process".to_owned()))?;
    let failed = |source: rustix::io::Errno| RunnerKillError::Kill {
        pid: holder.pid,
        source: source.into(),
    };
    let pid =
        Pid::from_raw(holder.pid.cast_signed()).ok_or_else(|| failed(rustix::io::Errno::SRCH))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    // Looked at after it was opened: if the number is another process's by now, the signal reaches
    // nobody. No other process than its runner is started with the folder of a run.
    if !is_runner(holder.pid, folder) {
        return Err(stranger(holder.to_string()));
    }
    pidfd_send_signal(process, Signal::KILL).map_err(failed)?;
    Ok(holder.pid)
}

fn is_runner(pid: u32, folder: &Utf8Path) -> bool {
    let Ok(line) = std::fs::read_to_string(format!("/proc/{pid}/cmdline")) else { return false };
    let arguments: Vec<&str> = line.split('\0').collect();
    let names_run = |argument: &&str| Utf8Path::new(argument).file_name() == folder.file_name();
    arguments.get(1) == Some(&"runner") && arguments[2..].iter().any(names_run)
}
