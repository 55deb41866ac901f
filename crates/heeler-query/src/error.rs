//! Errors of queries.

use heeler_store::history::HistoryError;
use heeler_store::native::NativeSessionError;
use heeler_store::{DatabaseError, DatabaseOpenError, IdLookupError, StateDirError};
use heeler_transcript::{DiskError, LockError};
use heeler_workspace::SnapshotError;
use thiserror::Error;

/// Failed query.
#[derive(Debug, Error)]
pub enum QueryError {
    /// The requested item does not exist.
    #[error("{message}")]
    NotFound {
        /// Text that names the missing item and existing alternatives.
        message: String,
        /// Suggested action.
        hint: Option<String>,
    },
    /// The query is invalid.
    #[error("{message}")]
    Usage { message: String },
    /// The query cannot be answered at present.
    #[error("{message}")]
    Refused {
        message: String,
        /// Suggested action.
        hint: Option<String>,
    },
    /// No record, or more than one, matches the ID.
    #[error(transparent)]
    Lookup(#[from] IdLookupError),
    /// The state directory cannot be used.
    #[error(transparent)]
    Layout(#[from] StateDirError),
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    /// A database query failed.
    #[error(transparent)]
    Db(#[from] DatabaseError),
    /// The result cannot be encoded.
    #[error("cannot encode the reply: {0}")]
    Encode(#[from] serde_json::Error),
    /// A transcript cannot be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The messages of a session cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// Files of a session cannot be compared.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Claude's own sessions cannot be read.
    #[error(transparent)]
    Native(#[from] NativeSessionError),
    /// The owner of the state lock cannot be determined.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Category of a [`QueryError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryErrorKind {
    /// The requested item does not exist.
    NotFound,
    /// The caller made a mistake.
    Usage,
    /// The query cannot be answered at present.
    Refused,
    /// Failure of Heeler or the machine.
    Internal,
}

impl QueryError {
    pub(crate) fn not_found(message: impl Into<String>, hint: &str) -> QueryError {
        QueryError::NotFound { message: message.into(), hint: Some(hint.to_owned()) }
    }

    pub(crate) fn usage(message: impl Into<String>) -> QueryError {
        QueryError::Usage { message: message.into() }
    }

    pub fn kind(&self) -> QueryErrorKind {
        match self {
            QueryError::NotFound { .. }
            | QueryError::Lookup(IdLookupError::Unknown { .. })
            | QueryError::Native(NativeSessionError::Unknown { .. }) => QueryErrorKind::NotFound,
            QueryError::Usage { .. }
            | QueryError::Lookup(IdLookupError::Ambiguous { .. })
            | QueryError::Native(NativeSessionError::Ambiguous { .. }) => QueryErrorKind::Usage,
            QueryError::Refused { .. } => QueryErrorKind::Refused,
            // Anything else is a failure of Heeler or of the machine and not of the request.
            _ => QueryErrorKind::Internal,
        }
    }

    /// Returns the suggested action.
    pub fn hint(&self) -> Option<&str> {
        match self {
            QueryError::NotFound { hint, .. } | QueryError::Refused { hint, .. } => hint.as_deref(),
            _ => None,
        }
    }
}
