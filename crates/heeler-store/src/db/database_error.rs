//! Failures of queries and changes, on either engine. Start at [`DatabaseError`].

use camino::Utf8PathBuf;
use rusqlite::ErrorCode;
use thiserror::Error;

use super::postgres_error::PostgresError;

/// A failed query or change.
#[derive(Debug, Error)]
pub enum DatabaseError {
    #[error("cannot {attempt}: {source}")]
    Sqlite {
        attempt: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot {attempt}: {source}")]
    Postgres {
        attempt: &'static str,
        #[source]
        source: Box<PostgresError>,
    },
    /// A row holds a value that no version of Heeler writes.
    #[error("row `{row}` of table {table} is damaged: {reason}; run `heeler doctor`")]
    BadRow {
        table: &'static str,
        /// The row's first column.
        row: String,
        reason: String,
    },
    /// The record changed since it was read.
    #[error("{what} {id} has changed since version {version}; read it again")]
    Stale {
        what: &'static str,
        id: String,
        /// The version that the change was based on.
        version: i64,
    },
    /// Files of the open database were deleted or replaced.
    #[error(
        "{path} was deleted or replaced while it was in use, and cannot be written back: {reason}; \
         remove the cause and leave the process running: it tries again, and only it has the content"
    )]
    FilesLost { path: Utf8PathBuf, reason: String },
    #[error("there is no {what} {id}")]
    Missing { what: &'static str, id: String },
    #[error("there already is a {what} {id}")]
    Exists { what: &'static str, id: String },
}

impl DatabaseError {
    fn postgres(&self) -> Option<&PostgresError> {
        match self {
            DatabaseError::Postgres { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Returns true if the reply to a commit was lost.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        matches!(self.postgres(), Some(PostgresError::OutcomeUnknown))
    }

    /// Returns true if this process can commit no more.
    pub(crate) fn is_fence(&self) -> bool {
        matches!(self.postgres(), Some(PostgresError::Fenced(_))) || self.has_lost_commits()
    }

    /// Returns true if the database has fewer commits than this process knows of.
    pub(crate) fn has_lost_commits(&self) -> bool {
        matches!(self.postgres(), Some(PostgresError::CommitsLost))
    }

    /// Returns true if the disk or the database file is full.
    pub fn is_full(&self) -> bool {
        match self {
            DatabaseError::Sqlite { source, .. } => is_full(source),
            DatabaseError::Postgres { source, .. } => source.is_full(),
            _ => false,
        }
    }

    /// Returns true if the disk, the file or another process caused the failure, not the request
    /// itself.
    pub fn is_storage_failure(&self) -> bool {
        if matches!(self, DatabaseError::FilesLost { .. }) {
            return true;
        }
        if let DatabaseError::Postgres { source, .. } = self {
            return !source.is_refusal();
        }
        let DatabaseError::Sqlite { source, .. } = self else { return false };
        // These codes mean that the same statement would fail again on a healthy disk.
        match source.sqlite_error_code() {
            Some(code) => !matches!(
                code,
                ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig
            ),
            // The error comes from a value that does not fit its column or parameter.
            None => false,
        }
    }
}

pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Adds the attempted action to an SQLite error.
pub(crate) trait SqliteResultExt<T> {
    fn attempt(self, attempt: &'static str) -> Result<T, DatabaseError>;
}

impl<T> SqliteResultExt<T> for rusqlite::Result<T> {
    fn attempt(self, attempt: &'static str) -> Result<T, DatabaseError> {
        self.map_err(|source| DatabaseError::Sqlite { attempt, source })
    }
}

/// Names the attempted action of a failure.
pub(crate) fn failed(attempt: &'static str, source: PostgresError) -> DatabaseError {
    DatabaseError::Postgres { attempt, source: Box::new(source) }
}
