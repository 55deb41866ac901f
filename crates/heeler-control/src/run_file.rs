//! Reads the files of a run directory: with size limits, without following links, and only with a
//! known protocol version. The directory may have come from a clone.
//!
//! Start at [`read_run_file`] and [`read_run_spec`].

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::file::{self, RunFileParseError};
use heeler_model::run::{ResultPublicKey, RunSpec};
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
    /// Another process than the daemon wrote the spec.
    #[error("{path} is not the file that the daemon wrote")]
    ForeignSpec { path: Utf8PathBuf },
}

impl RunFileReadError {
    /// Returns true if a retry would fail the same way.
    pub fn is_permanent(&self) -> bool {
        match self {
            // It is a link, not a regular file, or too long.
            RunFileReadError::Read { source, .. } => source.kind() == io::ErrorKind::InvalidInput,
            RunFileReadError::Form { source, .. } => source.is_permanent(),
            RunFileReadError::OtherRun { .. } | RunFileReadError::ForeignSpec { .. } => true,
        }
    }
}

/// Reads a file of a run; `None` if it does not exist.
pub fn read_run_file<T: DeserializeOwned>(path: &Utf8Path) -> Result<Option<T>, RunFileReadError> {
    read_bytes(path)?.map(|bytes| parse(path, &bytes)).transpose()
}

/// Reads `spec.json` of a run; `None` if it does not exist. Agents can write the file, so it counts
/// only if the key that is on record for the run accepts it. A run without a key is of an early
/// release, or was adopted.
pub fn read_run_spec(
    folder: &Utf8Path,
    key: Option<&ResultPublicKey>,
) -> Result<Option<RunSpec>, RunFileReadError> {
    let path = folder.join(file::SPEC);
    let Some(bytes) = read_bytes(&path)? else { return Ok(None) };
    if key.is_some_and(|key| !key.accepts_spec(&bytes)) {
        return Err(RunFileReadError::ForeignSpec { path });
    }
    parse(&path, &bytes).map(Some)
}

fn read_bytes(path: &Utf8Path) -> Result<Option<Vec<u8>>, RunFileReadError> {
    // The folder may have come from a clone, so links and huge files are refused.
    match untrusted_file::read(path, file::BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        // A file that does not exist yet is a normal state of a run.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RunFileReadError::Read { path: path.to_owned(), source }),
    }
}

fn parse<T: DeserializeOwned>(path: &Utf8Path, bytes: &[u8]) -> Result<T, RunFileReadError> {
    file::parse_run_file(bytes)
        .map_err(|source| RunFileReadError::Form { path: path.to_owned(), source })
}
