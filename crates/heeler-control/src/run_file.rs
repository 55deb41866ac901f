//! Reads the files of a run directory: with size limits, without following links, and only with a
//! known protocol version. The directory may have come from a clone.
//!
//! Start at [`read_run_file`].

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::file::{self, RunFileParseError};
use heeler_transcript::untrusted_file;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Failure to use a file of a run directory.
#[derive(Debug, Error)]
pub enum RunFileReadError {
    #[error("cannot read {path}")]
    Read {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Its content is invalid.
    #[error("cannot use {path}")]
    Form {
        path: Utf8PathBuf,
        #[source]
        source: RunFileParseError,
    },
    /// It belongs to another run.
    #[error("{path} belongs to another run than its directory")]
    OtherRun { path: Utf8PathBuf },
}

impl RunFileReadError {
    /// Returns true if a retry would fail the same way.
    pub fn is_permanent(&self) -> bool {
        match self {
            // It is a link, not a regular file, or too long.
            RunFileReadError::Read { source, .. } => source.kind() == io::ErrorKind::InvalidInput,
            RunFileReadError::Form { source, .. } => source.is_permanent(),
            RunFileReadError::OtherRun { .. } => true,
        }
    }
}

/// Reads a file of a run; `None` if it does not exist.
pub fn read_run_file<T: DeserializeOwned>(path: &Utf8Path) -> Result<Option<T>, RunFileReadError> {
    // The folder may have come from a clone, so links and huge files are refused.
    let bytes = match untrusted_file::read(path, file::BYTES_MAX) {
        Ok(bytes) => bytes,
        // A file that does not exist yet is a normal state of a run.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RunFileReadError::Read { path: path.to_owned(), source }),
    };
    let content = file::parse_run_file(&bytes).map(Some);
    content.map_err(|source| RunFileReadError::Form { path: path.to_owned(), source })
}
