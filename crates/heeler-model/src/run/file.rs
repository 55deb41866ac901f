//! The files of a run's folder: their names, and what their bytes say.
//!
//! Everybody who reads one reads it by [`read`], so that all refuse the same.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{PROTOCOL, PROTOCOL_MIN, reads};

/// Held by whoever works on the run.
pub const LOCK: &str = "lock";
/// The [`super::RunSpec`].
pub const SPEC: &str = "spec.json";
/// The [`super::Started`].
pub const STARTED: &str = "started.json";
/// The [`super::RunResult`].
pub const RESULT: &str = "result.json";

/// The largest file of a run that is read.
pub const BYTES_MAX: u64 = 1 << 20;

/// Why bytes are no file of a run that this program can use.
#[derive(Debug, Error)]
pub enum FormError {
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

impl FormError {
    /// Says whether no later release will read them either.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, FormError::Protocol { found } if *found > PROTOCOL)
    }
}

/// Reads a file of a run from its bytes.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FormError> {
    /// What every one of them has. A later form of the rest may not be readable.
    #[derive(Deserialize)]
    struct Versioned {
        protocol: u32,
    }
    let Versioned { protocol: found } = serde_json::from_slice(bytes)?;
    if !reads(found) {
        return Err(FormError::Protocol { found });
    }
    Ok(serde_json::from_slice(bytes)?)
}
