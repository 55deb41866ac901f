//! Cancellation requests, and killing of runners that do not respond.
//!
//! A reachable run is cancelled through [`heeler_control::ControlClient`]. A run that is still starting
//! cannot be reached: the request is stored, and found when the run's result is committed or the
//! run would be started again. Start at [`record_request`].

use std::io;

use camino::Utf8Path;
use heeler_model::fleet::CancelRequest;
use heeler_model::run::{RunEnd, RunResult, file};
use heeler_model::{ExitReason, RunId};
use heeler_store::{DatabaseError, EffectRecord, StateDatabase, StoreTransaction, is_run_alive};
use heeler_transcript::{LockError, LockFile};
use jiff::Timestamp;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use thiserror::Error;

/// Effect kind of stored cancellation requests.
const CANCEL_EFFECT_KIND: &str = "cancel";

/// Maximum number of pending effects to search for cancellation requests.
const EFFECTS_MAX: usize = 10_000;

/// Lists the requests that have not been applied.
pub(crate) fn pending_requests(
    db: &StateDatabase,
) -> Result<Vec<(RunId, CancelRequest)>, DatabaseError> {
    let undone =
        db.pending_effects(EFFECTS_MAX)?.into_iter().filter(|it| it.kind == CANCEL_EFFECT_KIND);
    let wish = |effect: EffectRecord| {
        // An unreadable request still cancels the run, gracefully.
        let wish = serde_json::from_str(&effect.payload).unwrap_or_default();
        Some((effect.key.parse().ok()?, wish))
    };
    Ok(undone.filter_map(wish).collect())
}

/// Stores the request to cancel a run. It is applied if the run does not finish on its own; to end
/// the run sooner, send it a cancel request.
pub(crate) fn record_request(
    tx: &mut StoreTransaction<'_>,
    run: RunId,
    wish: &CancelRequest,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    // A second request replaces the first, so an immediate one overrules a graceful one.
    tx.put_effect(&cancel_effect(run, wish, now)).map(drop)
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

/// Applies the stored request, if any, and returns true if there was one: a run that did not finish
/// on its own counts as cancelled.
pub(crate) fn apply_request(
    tx: &mut StoreTransaction<'_>,
    result: &mut RunResult,
) -> Result<bool, DatabaseError> {
    // The request is finished with the result, so it cannot affect a later run.
    let is_wished = tx.finish_effect(&cancel_effect_id(result.run), result.finished_at)?;
    // A run that finished on its own keeps its outcome: the request came too late.
    if is_wished && result.end != RunEnd::Finished {
        result.exit_reason = ExitReason::Cancelled;
        result.error = None;
    }
    Ok(is_wished)
}

/// Failure to kill a runner.
#[derive(Debug, Error)]
pub(crate) enum RunnerKillError {
    /// No process holds the run's lock.
    #[error("no process works on {0} any more")]
    Gone(camino::Utf8PathBuf),
    /// The lock holder is unknown.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The lock holder is not a runner of this run.
    #[error("{holder} holds {folder} but is not its runner; it was not killed")]
    NotARunner { folder: camino::Utf8PathBuf, holder: String },
    /// The operating system refused.
    #[error("cannot kill process {pid}")]
    Kill {
        pid: u32,
        #[source]
        source: io::Error,
    },
}

/// Returns true if a run has a result and no runner. The file alone proves nothing: an agent can
/// create it, so as not to be cancelled.
pub(crate) fn has_run_ended(folder: &Utf8Path) -> bool {
    folder.join(file::RESULT).exists() && !is_run_alive(folder)
}

/// Kills an unresponsive runner and returns its process ID. Recovery treats the run like any other
/// dead run.
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
    // A descriptor refers to this process, even if its id is reused later.
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    // Check after opening: if the process ID was reused in between, no signal is sent. Only runners
    // have the directory of a run among their arguments.
    if !is_runner(holder.pid, folder) {
        return Err(stranger(holder.to_string()));
    }
    pidfd_send_signal(process, Signal::KILL).map_err(failed)?;
    Ok(holder.pid)
}

/// Returns the process that holds the lock of a run, if it is the run's runner.
pub(crate) fn runner_pid(folder: &Utf8Path) -> Option<u32> {
    let holder = LockFile::probe(&folder.join(file::LOCK)).ok()??.holder?;
    is_runner(holder.pid, folder).then_some(holder.pid)
}

fn is_runner(pid: u32, folder: &Utf8Path) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    line.is_ok_and(|line| is_runner_command(&line, folder))
}

/// Returns true for the arguments of a run's runner. A process that settles runs names their
/// directories too, and must not be killed in the middle of that.
fn is_runner_command(line: &str, folder: &Utf8Path) -> bool {
    let arguments: Vec<&str> = line.split('\0').collect();
    let Some(rest) = arguments.get(2..).filter(|_| arguments[1] == "runner") else { return false };
    let names_run = |argument: &&str| Utf8Path::new(argument).file_name() == folder.file_name();
    rest.iter().any(names_run) && !rest.iter().any(|it| matches!(*it, "--settle" | "--end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_runner_of_a_run_is_its_runner() {
        let folder = Utf8Path::new("/state/runs/0198-a");
        let is = |arguments: &[&str]| is_runner_command(&arguments.join("\0"), folder);
        assert!(is(&["heeler", "runner", "/state/runs/0198-a", ""]));
        assert!(is(&["heeler", "runner", "runs/0198-a/"]));
        assert!(!is(&["heeler", "runner", "--settle", "/state/runs/0198-a"]));
        assert!(!is(&["heeler", "runner", "/state/runs/0198-a", "--settle"]));
        assert!(!is(&["heeler", "runner", "--end", "/state/runs/0198-a"]));
        assert!(!is(&["heeler", "runner", "/state/runs/0198-b"]));
        assert!(!is(&["heeler", "show", "/state/runs/0198-a"]));
        assert!(!is(&["heeler"]) && !is(&[""]));
    }
}
