//! Failures that stop an import.

use std::error::Error as StdError;
use std::io;

use camino::Utf8PathBuf;
use heeler_store::DatabaseError;
use heeler_store::staging::StagingError;
use heeler_transcript::NameError;
use thiserror::Error;

/// Failure that stops an import. Completed parts stay; importing again continues from there.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("cannot open {path} to import from it")]
    Open {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a folder")]
    NotAFolder { path: Utf8PathBuf },
    /// The source holds no state of that system.
    #[error("there is no {what} at {path}")]
    NotFound {
        path: Utf8PathBuf,
        /// The kind of state that was expected.
        what: &'static str,
    },
    /// The source is the state directory itself.
    #[error("{path} is this fleet's own state directory: it needs no import")]
    SourceIsTarget { path: Utf8PathBuf },
    /// Another process is writing the source.
    #[error("{path} keeps changing while it is copied; stop the server that uses it and try again")]
    InUse { path: Utf8PathBuf },
    /// The source is a database that SQLite cannot read.
    #[error("cannot read the database {path}")]
    Database {
        path: Utf8PathBuf,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A file of the state directory could not be written.
    #[error("cannot write {path}; items imported before are complete, import again to continue")]
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
    #[error(
        "the import was not saved; items imported before are complete, import again to continue"
    )]
    Save {
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl From<DatabaseError> for ImportError {
    fn from(error: DatabaseError) -> ImportError {
        ImportError::Save { source: Box::new(error) }
    }
}

impl From<StagingError> for ImportError {
    fn from(error: StagingError) -> ImportError {
        match error {
            StagingError::Open { path, source } => ImportError::Open { path, source },
            StagingError::Database { path, source } => ImportError::Database { path, source },
            StagingError::Write { path, source } => ImportError::Write { path, source },
            StagingError::Blocked { source } => ImportError::Blocked { source },
            StagingError::BadRebuildMarker { path, reason } => {
                ImportError::BadRebuildMarker { path, reason }
            }
            StagingError::Save { source } => ImportError::Save { source },
        }
    }
}
