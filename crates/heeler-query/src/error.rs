//! Why something cannot be read.

use heeler_engine::{DaemonCommandError, DaemonCommandErrorKind};
use heeler_store::history::HistoryError;
use heeler_store::native::NativeSessionError;
use heeler_store::{DatabaseError, DatabaseOpenError, IdLookupError, StateDirError};
use heeler_transcript::{DiskError, LockError};
use heeler_workspace::SnapshotError;
use thiserror::Error;

/// Why something cannot be read.
#[derive(Debug, Error)]
pub enum QueryError {
    /// There is no such thing.
    #[error("{message}")]
    NotFound {
        /// What is missing, and what there is instead.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// The question makes no sense.
    #[error("{message}")]
    Usage {
        /// What is wrong with it.
        message: String,
    },
    /// There is nothing to answer with, for now.
    #[error("{message}")]
    Refused {
        /// Why.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// No record, or more than one, has such an id.
    #[error(transparent)]
    Lookup(#[from] IdLookupError),
    /// The state directory cannot be used.
    #[error(transparent)]
    Layout(#[from] StateDirError),
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    /// The database did not answer.
    #[error(transparent)]
    Db(#[from] DatabaseError),
    /// A transcript cannot be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The messages of a session cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// Files of a session cannot be compared.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Sessions of claude's own cannot be read.
    #[error(transparent)]
    Native(#[from] NativeSessionError),
    /// The daemon refused it, or would.
    #[error(transparent)]
    Daemon(#[from] DaemonCommandError),
    /// Who writes the state cannot be told.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryErrorKind {
    /// There is no such thing.
    NotFound,
    /// Whoever asked.
    Usage,
    /// Nobody's: there is nothing to answer with, for now.
    Refused,
    /// Ours, or the machine's.
    Internal,
}

impl QueryError {
    /// Says that there is no such thing.
    pub(crate) fn not_found(message: impl Into<String>, hint: &str) -> QueryError {
        QueryError::NotFound { message: message.into(), hint: Some(hint.to_owned()) }
    }

    /// Says that a question makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> QueryError {
        QueryError::Usage { message: message.into() }
    }

    /// Says whose fault it is.
    pub fn kind(&self) -> QueryErrorKind {
        match self {
            QueryError::NotFound { .. }
            | QueryError::Lookup(IdLookupError::Unknown { .. })
            | QueryError::Native(NativeSessionError::Unknown { .. }) => QueryErrorKind::NotFound,
            QueryError::Usage { .. }
            | QueryError::Lookup(IdLookupError::Ambiguous { .. })
            | QueryError::Native(NativeSessionError::Ambiguous { .. }) => QueryErrorKind::Usage,
            QueryError::Refused { .. } => QueryErrorKind::Refused,
            QueryError::Daemon(refused) => match refused.kind {
                DaemonCommandErrorKind::NotFound => QueryErrorKind::NotFound,
                DaemonCommandErrorKind::Usage => QueryErrorKind::Usage,
                DaemonCommandErrorKind::Trouble => QueryErrorKind::Internal,
                _ => QueryErrorKind::Refused,
            },
            _ => QueryErrorKind::Internal,
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            QueryError::NotFound { hint, .. } | QueryError::Refused { hint, .. } => hint.as_deref(),
            _ => None,
        }
    }
}
