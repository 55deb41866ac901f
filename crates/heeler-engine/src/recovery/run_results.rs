//! Reads the result of a run, and refuses a file that its runner did not write.
//!
//! Agents of the same user can write into run directories. So the result of a run with a recorded
//! key counts only with a signature: of its runner, or of a settling process that this process
//! started. Start at [`read_result`].

use std::io;

use camino::Utf8Path;
use heeler_control::RunFileReadError;
use heeler_model::ExitReason;
use heeler_model::run::{ResultPublicKey, RunResult, check_run_result, file};
use heeler_store::RunRecord;
use heeler_transcript::{set_file_aside, untrusted_file};

use crate::fault::{self, FaultPoint};
use crate::watchdog::KILLED_NOTE;

/// Reads the result of a run; `None` if it has none that counts. A file that does not count is set
/// aside, so that the run can be settled.
pub(super) fn read_result(
    folder: &Utf8Path,
    run: &RunRecord,
    settled_with: Option<&ResultPublicKey>,
) -> Result<Option<RunResult>, RunFileReadError> {
    let Some(runner_key) = &run.result_key else { return read_unsigned_result(folder, run) };
    let path = folder.join(file::RESULT);
    let bytes = match untrusted_file::read(&path, file::BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // It is a link, a folder or too long, which no runner writes.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return refuse(folder, run, &error.to_string());
        }
        Err(source) => return Err(RunFileReadError::Read { path, source }),
        Ok(bytes) => bytes,
    };
    let is_signed =
        [Some(runner_key), settled_with].into_iter().flatten().any(|key| key.has_signed(&bytes));
    let result = file::parse_run_file::<RunResult>(&bytes);
    if !is_signed {
        return match result {
            // An earlier daemon died before it committed what it had settled. Settling again gives
            // the same result. No settled run is successful, so another process wrote one that is.
            Ok(result) if result.settled.is_some() && result.exit_reason != ExitReason::Success => {
                tracing::info!(run = %run.id, "a run is settled again");
                set_aside(folder, file::SUPERSEDED_SUFFIX).map(|()| None)
            }
            _ => refuse(folder, run, "its runner did not sign it"),
        };
    }
    let result = result.map_err(|source| RunFileReadError::Form { path, source })?;
    match check_run_result(&result, run.id, &run.job_id) {
        Ok(()) => Ok(Some(result)),
        Err(error) => refuse(folder, run, &error.to_string()),
    }
}

/// Reads the result of a run that has no key: its runner is of an earlier release, or the run was
/// adopted.
fn read_unsigned_result(
    folder: &Utf8Path,
    run: &RunRecord,
) -> Result<Option<RunResult>, RunFileReadError> {
    let path = folder.join(file::RESULT);
    let Some(result) = heeler_control::read_run_file::<RunResult>(&path)? else { return Ok(None) };
    // A copied folder must not give its result to another run.
    if result.run != run.id {
        return Err(RunFileReadError::OtherRun { path });
    }
    match check_run_result(&result, run.id, &run.job_id) {
        Ok(()) => Ok(Some(result)),
        Err(error) => refuse(folder, run, &error.to_string()),
    }
}

fn refuse(
    folder: &Utf8Path,
    run: &RunRecord,
    reason: &str,
) -> Result<Option<RunResult>, RunFileReadError> {
    tracing::warn!(
        run = %run.id, job = %run.job_id, reason,
        "a result was refused; the run is settled without it"
    );
    set_aside(folder, file::REFUSED_SUFFIX)?;
    fault::reach(FaultPoint::ResultRefused);
    Ok(None)
}

fn set_aside(folder: &Utf8Path, suffix: &str) -> Result<(), RunFileReadError> {
    let path = folder.join(file::RESULT);
    match set_file_aside(&path, suffix) {
        Ok(_) => Ok(()),
        // Another process has just set it aside.
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(RunFileReadError::Read { path, source: error.source }),
    }
}

/// Adds to the error of a settled run that a result was refused, so that its job shows it.
pub(super) fn mention_refused_result(folder: &Utf8Path, result: &mut RunResult) {
    let refused = folder.join(format!("{}.{}", file::RESULT, file::REFUSED_SUFFIX));
    if result.settled.is_none() || refused.symlink_metadata().is_err() {
        return;
    }
    if let Some(error) = &mut result.error {
        error.message.push_str("; a result that its runner had not signed was refused");
    }
}

/// Adds to the error of a settled run that the daemon killed its runner, so that its job shows it.
pub(super) fn mention_kill(folder: &Utf8Path, result: &mut RunResult) {
    if result.settled.is_none() || folder.join(KILLED_NOTE).symlink_metadata().is_err() {
        return;
    }
    if let Some(error) = &mut result.error {
        error
            .message
            .push_str("; the daemon had killed it, because it did not reply or end in time");
    }
}
