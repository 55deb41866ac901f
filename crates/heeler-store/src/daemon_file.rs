//! `daemon.json`: the address of a state directory's daemon.
//!
//! The daemon writes the file once it listens and removes it when it ends; a killed daemon leaves
//! it. The state directory's lock, not this file, proves that a daemon is running. Start at
//! [`DaemonFile`].

use std::io;

use camino::Utf8PathBuf;
use heeler_model::daemon_status::DaemonMode;
use heeler_transcript::{DiskError, OsDisk, replace_file, untrusted_file};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::layout::StateDir;

/// Format version of the file that this release writes and reads.
const PROTOCOL: u32 = 1;

/// Maximum size of the file.
const BYTES_MAX: u64 = 64 << 10;

/// Address and properties of a running daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonFile {
    /// Format version of this file.
    protocol: u32,
    pub pid: u32,
    pub socket: Utf8PathBuf,
    pub since: Timestamp,
    pub version: String,
    /// Lifetime of the daemon.
    pub mode: DaemonMode,
    /// Fingerprint of its config and environment.
    #[serde(default)]
    pub surroundings: Option<u64>,
    /// Address of its dashboard and API, if they are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Failure to use a `daemon.json`.
#[derive(Debug, Error)]
pub enum DaemonFileError {
    #[error("cannot read {path}")]
    Read {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// A newer release wrote the file.
    #[error("{path} is of protocol {found}, this heeler knows {PROTOCOL}; use the newer heeler")]
    Newer { path: Utf8PathBuf, found: u32 },
    #[error(transparent)]
    Write(#[from] DiskError),
}

impl DaemonFile {
    /// Describes the daemon that runs in this process.
    pub fn this_process(
        socket: Utf8PathBuf,
        since: Timestamp,
        version: &str,
        mode: DaemonMode,
    ) -> DaemonFile {
        let (pid, version) = (std::process::id(), version.to_owned());
        let (surroundings, url) = (None, None);
        DaemonFile { protocol: PROTOCOL, pid, socket, since, version, mode, surroundings, url }
    }

    /// Reads the file of a state directory. Returns `None` if it is missing or incomplete: a state
    /// directory may come from anywhere, and every daemon writes its own file.
    pub fn read(dir: &StateDir) -> Result<Option<DaemonFile>, DaemonFileError> {
        #[derive(Deserialize)]
        struct DaemonFileVersion {
            protocol: u32,
        }
        let path = dir.daemon_file();
        let bytes = match untrusted_file::read(&path, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(DaemonFileError::Read { path, source }),
        };
        // The version is read first, because a newer format may have other fields.
        match serde_json::from_slice::<DaemonFileVersion>(&bytes) {
            Ok(DaemonFileVersion { protocol: found }) if found > PROTOCOL => {
                Err(DaemonFileError::Newer { path, found })
            }
            // A damaged file is like a missing one: the lock tells whether a daemon lives.
            _ => Ok(serde_json::from_slice(&bytes).ok()),
        }
    }

    /// Writes the file. Only the holder of the state directory's lock may call this.
    pub fn write(&self, dir: &StateDir) -> Result<(), DaemonFileError> {
        let mut text = serde_json::to_vec_pretty(self).expect("it is JSON");
        text.push(b'\n');
        Ok(replace_file(&OsDisk, &dir.daemon_file(), &text)?)
    }
}

/// Removes the file of a daemon that was killed. Only the holder of the state directory's lock may
/// call this.
pub(crate) fn remove_stale_file(dir: &StateDir) {
    match std::fs::remove_file(dir.daemon_file()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "cannot remove {}", dir.daemon_file());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use camino::Utf8Path;

    use super::*;

    fn file() -> DaemonFile {
        let since = Timestamp::UNIX_EPOCH;
        DaemonFile::this_process("/run/x/d.sock".into(), since, "1.2.3", DaemonMode::UntilIdle)
    }

    #[test]
    fn a_daemon_says_where_it_listens_to_its_user_alone() {
        let temp = tempfile::tempdir().unwrap();
        let dir = &StateDir::open(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        assert_eq!(DaemonFile::read(dir).unwrap(), None);
        file().write(dir).unwrap();
        assert_eq!(DaemonFile::read(dir).unwrap(), Some(file()));
        let mode = dir.daemon_file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_is_no_such_file_is_nobodys_and_a_newer_one_is_told() {
        let temp = tempfile::tempdir().unwrap();
        let dir = &StateDir::open(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        std::fs::write(dir.daemon_file(), "{\"protocol\":1,\"pi").unwrap();
        assert_eq!(DaemonFile::read(dir).unwrap(), None);
        std::fs::write(dir.daemon_file(), "{\"protocol\":2}").unwrap();
        let error = DaemonFile::read(dir).unwrap_err().to_string();
        assert!(error.contains("protocol 2"), "{error}");
        std::fs::remove_file(dir.daemon_file()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.daemon_file()).unwrap();
        assert!(matches!(DaemonFile::read(dir), Err(DaemonFileError::Read { .. })));
    }
}
