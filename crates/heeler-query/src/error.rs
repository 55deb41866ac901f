//! Why something cannot be read.

use heeler_store::history::HistoryError;
use heeler_store::{DbError, LayoutError, LookupError, OpenError};
use heeler_transcript::DiskError;
use thiserror::Error;

/// Why something cannot be read.
#[derive(Debug, Error)]
pub enum QueryError {
    /// There is no such thing.
    #[error("{message}")]
    NotFound {
        /// What is missing, and what there is instead.
        message: String,
    },
    /// The question makes no sense.
    #[error("{message}")]
    Usage {
        /// What is wrong with it.
        message: String,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database did not answer.
    #[error(transparent)]
    Db(#[from] DbError),
    /// A transcript cannot be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The messages of a session cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryErrorKind {
    /// There is no such thing.
    NotFound,
    /// Whoever asked.
    Usage,
    /// Ours, or the machine's.
    Trouble,
}

impl QueryError {
    /// Says whose fault it is.
    pub fn kind(&self) -> QueryErrorKind {
        match self {
            QueryError::NotFound { .. } => QueryErrorKind::NotFound,
            QueryError::Usage { .. } => QueryErrorKind::Usage,
            _ => QueryErrorKind::Trouble,
        }
    }
}

impl From<LookupError> for QueryError {
    fn from(error: LookupError) -> QueryError {
        let message = error.to_string();
        match error {
            LookupError::Unknown { .. } => QueryError::NotFound { message },
            LookupError::Ambiguous { .. } => QueryError::Usage { message },
            LookupError::Db(error) => QueryError::Db(error),
        }
    }
}
