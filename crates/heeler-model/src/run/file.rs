//! The files of a run's folder: their names, and what their bytes say.
//!
//! Everybody who reads one reads it by [`parse_run_file`], so that all refuse the same.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{PROTOCOL, PROTOCOL_MIN, is_readable_protocol};

/// Held by whoever works on the run.
pub const LOCK: &str = "lock";
/// The [`super::RunSpec`].
pub const SPEC: &str = "spec.json";
/// The [`super::RunStartRecord`].
pub const STARTED: &str = "started.json";
/// The [`super::RunResult`].
pub const RESULT: &str = "result.json";

/// The largest file of a run that is read.
pub const BYTES_MAX: u64 = 1 << 20;

/// Why bytes are no file of a run that this program can use.
#[derive(Debug, Error)]
pub enum RunFileParseError {
    /// They are not what they should be.
    #[error("it cannot be understood")]
    Content(#[from] serde_json::Error),
    /// They were written by a program that speaks otherwise.
    #[error(
        "it has protocol version {found}, and this program reads {PROTOCOL_MIN} to {PROTOCOL}; \
         use the program that wrote it"
    )]
    Protocol {
        /// Their version.
        found: u32,
    },
}

impl RunFileParseError {
    /// Says whether no later release will read them either.
    pub fn is_permanent(&self) -> bool {
        !matches!(self, RunFileParseError::Protocol { found } if *found > PROTOCOL)
    }
}

/// Reads a file of a run from its bytes.
pub fn parse_run_file<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RunFileParseError> {
    /// What every one of them has. A later form of the rest may not be readable.
    #[derive(Deserialize)]
    struct ProtocolHeader {
        protocol: u32,
    }
    let ProtocolHeader { protocol: found } = serde_json::from_slice(bytes)?;
    if !is_readable_protocol(found) {
        return Err(RunFileParseError::Protocol { found });
    }
    Ok(serde_json::from_slice(bytes)?)
}
