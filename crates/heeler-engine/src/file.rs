//! The files of a run's folder, as the engine reads them: bounded, without following links, and of a
//! protocol that it knows. They may have come with a clone.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::file::{self, FormError};
use heeler_transcript::plain;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Why a file of a run's folder cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
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
        source: FormError,
    },
    /// It is the file of another run.
    #[error("{path} is of another run than its folder")]
    OtherRun {
        /// The file.
        path: Utf8PathBuf,
    },
}

impl FileError {
    /// Says whether the next attempt would fail for the same reason.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            // It is a link, no file, or too long.
            FileError::Read { source, .. } => source.kind() == io::ErrorKind::InvalidInput,
            FileError::Form { source, .. } => source.is_lasting(),
            FileError::OtherRun { .. } => true,
        }
    }
}

/// Reads a file of a run; `None` when it is not there.
pub(crate) fn read<T: DeserializeOwned>(path: &Utf8Path) -> Result<Option<T>, FileError> {
    let bytes = match plain::read(path, file::BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FileError::Read { path: path.to_owned(), source }),
    };
    let content = file::read(&bytes).map(Some);
    content.map_err(|source| FileError::Form { path: path.to_owned(), source })
}
