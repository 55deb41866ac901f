//! Failures of writing files, rows and databases of imported records.

use std::error::Error as StdError;
use std::io;

use camino::Utf8PathBuf;
use heeler_transcript::NameError;
use thiserror::Error;

use crate::db::DatabaseError;

/// Failure to write into a state directory. Rows that were committed before are complete.
#[derive(Debug, Error)]
pub enum StagingError {
    /// The database on which a draft is based cannot be opened.
    #[error("cannot open {path}")]
    Open {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// SQLite cannot use a draft.
    #[error("cannot read the database {path}")]
    Database {
        path: Utf8PathBuf,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    #[error("cannot write {path}")]
    Write {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// A symbolic link is in the way of a file.
    #[error("cannot write a file through a symbolic link; remove the link and try again")]
    Blocked {
        /// Names the link.
        #[source]
        source: NameError,
    },
    /// The marker of an interrupted rebuild cannot be trusted.
    #[error("{path} is not a valid marker of an interrupted rebuild ({reason}); remove it")]
    BadRebuildMarker { path: Utf8PathBuf, reason: String },
    /// The database failed to save or answer.
    #[error("the records were not saved")]
    Save {
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl From<DatabaseError> for StagingError {
    fn from(error: DatabaseError) -> StagingError {
        StagingError::Save { source: Box::new(error) }
    }
}
