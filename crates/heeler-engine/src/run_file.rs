//! The files of a run's folder, as the engine reads them: bounded, without following links, and of a
//! protocol that it knows. They may have come with a clone.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::file::{self, RunFileParseError};
use heeler_transcript::untrusted_file;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Why a file of a run's folder cannot be used.
#[derive(Debug, Error)]
pub enum RunFileReadError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Its content cannot be used.
    #[error("cannot use {path}")]
    Form {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: RunFileParseError,
    },
    /// It is the file of another run.
    #[error("{path} is of another run than its folder")]
    OtherRun {
        /// The file.
        path: Utf8PathBuf,
    },
}

impl RunFileReadError {
    /// Says whether the next attempt would fail for the same reason.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            // It is a link, no file, or too long.
            RunFileReadError::Read { source, .. } => source.kind() == io::ErrorKind::InvalidInput,
            RunFileReadError::Form { source, .. } => source.is_permanent(),
            RunFileReadError::OtherRun { .. } => true,
        }
    }
}

/// Reads a file of a run; `None` when it is not there.
pub(crate) fn read<T: DeserializeOwned>(path: &Utf8Path) -> Result<Option<T>, RunFileReadError> {
    let bytes = match untrusted_file::read(path, file::BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RunFileReadError::Read { path: path.to_owned(), source }),
    };
    let content = file::parse_run_file(&bytes).map(Some);
    content.map_err(|source| RunFileReadError::Form { path: path.to_owned(), source })
}
