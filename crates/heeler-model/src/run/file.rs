//! Files of a run's directory: names and parsing.
//!
//! Every reader uses [`parse_run_file`], so that all reject the same files.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{PROTOCOL, PROTOCOL_MIN, is_readable_protocol};

/// Lock of the process that works on the run.
pub const LOCK: &str = "lock";
/// File of the [`super::RunSpec`].
pub const SPEC: &str = "spec.json";
/// File of the [`super::RunStartRecord`].
pub const STARTED: &str = "started.json";
/// File of the [`super::RunResult`].
pub const RESULT: &str = "result.json";
/// File of the [`super::ContainerRecord`].
pub const CONTAINER: &str = "container.json";
/// Transcript of a session without a record. It is no `.jsonl` file, because those belong to jobs and
/// sessions.
pub const SESSION_LOG: &str = "session.log";
/// Empty file that exists while the image of the run's container is pulled.
pub const PULLING: &str = "pulling";
/// Added to the name of a result that was not believed.
pub const REFUSED_SUFFIX: &str = "refused";
/// Added to the name of a result that an earlier process settled.
pub const SUPERSEDED_SUFFIX: &str = "superseded";

/// Largest file of a run that is read, in bytes.
pub const BYTES_MAX: u64 = 1 << 20;

/// Error for bytes that are not a readable file of a run.
#[derive(Debug, Error)]
pub enum RunFileParseError {
    /// The content is invalid.
    #[error("it cannot be parsed")]
    Content(#[from] serde_json::Error),
    /// The file has an unsupported protocol version.
    #[error(
        "it has protocol version {found}, and this program reads {PROTOCOL_MIN} to {PROTOCOL}; \
         use the program that wrote it"
    )]
    Protocol {
        /// Version in the file.
        found: u32,
    },
}

impl RunFileParseError {
    /// Returns true if no later release can read the file either.
    pub fn is_permanent(&self) -> bool {
        // A newer protocol may be readable after an upgrade, so its file must not be given up.
        !matches!(self, RunFileParseError::Protocol { found } if *found > PROTOCOL)
    }
}

/// Parses a file of a run.
pub fn parse_run_file<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RunFileParseError> {
    /// Field that every file has. The rest may have a newer form that cannot be parsed.
    #[derive(Deserialize)]
    struct ProtocolHeader {
        protocol: u32,
    }
    // The version is read alone first, since the rest may have a form that does not parse.
    let ProtocolHeader { protocol: found } = serde_json::from_slice(bytes)?;
    if !is_readable_protocol(found) {
        return Err(RunFileParseError::Protocol { found });
    }
    Ok(serde_json::from_slice(bytes)?)
}
