//! Facts by which a daemon identifies itself to commands.

use heeler_engine::DaemonMode;
use serde::{Deserialize, Serialize};

use crate::socket::StateIdentity;

/// Identification of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Process ID of the daemon.
    pub pid: u32,
    pub version: String,
    /// State directory that it serves. Daemons of release 0.1.0 do not tell it.
    #[serde(default)]
    pub state: Option<StateIdentity>,
    /// Lifetime of the daemon.
    #[serde(default)]
    pub mode: Option<DaemonMode>,
    /// Fingerprint of its config and environment.
    #[serde(default)]
    pub surroundings: Option<u64>,
    /// Address of its dashboard and API, if they are served.
    #[serde(default)]
    pub url: Option<String>,
}
