//! Reasons for which a run does not start, or has no result.

use std::io;

use camino::Utf8PathBuf;
use heeler_model::error_chain;
use heeler_model::run::{PROTOCOL, PROTOCOL_MIN};
use heeler_transcript::{DiskError, LockError, TranscriptCopyError, TranscriptOpenError};
use thiserror::Error;

use crate::files::RunFileError;

/// Reason that a run has no result. No cost was incurred: settling determines the progress of the
/// run.
#[derive(Debug, Error)]
pub enum RunnerError {
    #[error(transparent)]
    File(#[from] RunFileError),
    /// The brief uses an unsupported protocol version.
    #[error(
        "the brief has protocol version {found}, and this program reads {PROTOCOL_MIN} to {PROTOCOL}; use the program that wrote it"
    )]
    Brief {
        /// Protocol version of the brief.
        found: u32,
    },
    /// Another runner executes this run.
    #[error("the run {dir} is already in progress")]
    Locked {
        dir: Utf8PathBuf,
        /// Current holder of the lock.
        #[source]
        source: LockError,
    },
    /// An earlier runner was interrupted; its agent may have had effects already.
    #[error("the run {dir} was interrupted earlier; settle it and start another run")]
    CutOff { dir: Utf8PathBuf },
    /// The disk does not accept the files a run starts with, or its result.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The event loop of this process cannot be created.
    #[error("cannot start the runner's event loop")]
    EventLoop {
        #[source]
        source: io::Error,
    },
}

/// Reason that a run is not ready.
pub(super) enum RunPrepareError {
    /// There is no space; a retry may succeed later.
    DiskFull(RunnerError),
    /// A retry would fail again.
    Refused(String),
}

impl From<DiskError> for RunPrepareError {
    fn from(error: DiskError) -> RunPrepareError {
        match error.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                RunPrepareError::DiskFull(error.into())
            }
            _ => RunPrepareError::Refused(error_chain(&error)),
        }
    }
}

impl From<TranscriptOpenError> for RunPrepareError {
    fn from(error: TranscriptOpenError) -> RunPrepareError {
        match error {
            TranscriptOpenError::Disk(error) => error.into(),
            error => RunPrepareError::Refused(error_chain(&error)),
        }
    }
}

impl From<TranscriptCopyError> for RunPrepareError {
    fn from(error: TranscriptCopyError) -> RunPrepareError {
        match error {
            TranscriptCopyError::Disk(error) => error.into(),
            error => RunPrepareError::Refused(error_chain(&error)),
        }
    }
}
