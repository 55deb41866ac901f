//! `daemon.json`: where the daemon of a state directory listens.
//!
//! It is written once the daemon listens and removed when it ends; a daemon that was killed leaves
//! it. Whether one runs is told by the state's lock, not by this file.

use std::io;

use camino::Utf8PathBuf;
use heeler_store::StateDir;
use heeler_transcript::{DiskError, OsDisk, replace_file, untrusted_file};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::command::DaemonMode;
use crate::fault::{self, FaultPoint};

/// The form of the file that this version writes and reads.
const PROTOCOL: u32 = 1;

/// The most that is read of it.
const BYTES_MAX: u64 = 64 << 10;

/// Where a daemon listens, and what it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonFile {
    /// The form of this file.
    protocol: u32,
    /// The daemon's process.
    pub pid: u32,
    /// Its socket.
    pub socket: Utf8PathBuf,
    /// When it started.
    pub since: Timestamp,
    /// Its version.
    pub version: String,
    /// How long it stays.
    pub mode: DaemonMode,
    /// Tells its config and environment from others.
    #[serde(default)]
    pub surroundings: Option<u64>,
    /// The address of its dashboard and its API, if they are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Why a `daemon.json` cannot be used.
#[derive(Debug, Error)]
pub enum DaemonFileError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A newer heeler wrote it.
    #[error("{path} is of protocol {found}, this heeler knows {PROTOCOL}; use the newer heeler")]
    Newer {
        /// The file.
        path: Utf8PathBuf,
        /// Its protocol.
        found: u32,
    },
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] DiskError),
}

impl DaemonFile {
    /// Describes a daemon that runs in this process.
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

    /// Reads the file of a state directory. `None` when there is none, or when it is not whole: a
    /// state directory may come from anywhere, and a daemon writes its own.
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
        match serde_json::from_slice::<DaemonFileVersion>(&bytes) {
            Ok(DaemonFileVersion { protocol: found }) if found > PROTOCOL => {
                Err(DaemonFileError::Newer { path, found })
            }
            _ => Ok(serde_json::from_slice(&bytes).ok()),
        }
    }

    /// Writes it. Only the holder of the state's lock may.
    pub fn write(&self, dir: &StateDir) -> Result<(), DaemonFileError> {
        let mut text = serde_json::to_vec_pretty(self).expect("it is JSON");
        text.push(b'\n');
        fault::reach(FaultPoint::BeforeDaemonFile);
        replace_file(&OsDisk, &dir.daemon_file(), &text)?;
        fault::reach(FaultPoint::AfterDaemonFile);
        Ok(())
    }

    /// Removes it with the socket, before the state's lock is given up.
    pub fn remove(&self, dir: &StateDir) {
        fault::reach(FaultPoint::BeforeFileRemoved);
        let files = [
            (dir.daemon_file(), FaultPoint::AfterFileRemoved),
            (self.socket.clone(), FaultPoint::AfterSocketRemoved),
        ];
        for (path, removed) in files {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, "cannot remove {path}");
                }
                _ => {}
            }
            fault::reach(removed);
        }
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
    fn a_daemon_says_where_it_listens_to_its_user_alone_until_it_ends() {
        let temp = tempfile::tempdir().unwrap();
        let dir = &StateDir::open(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        assert_eq!(DaemonFile::read(dir).unwrap(), None);
        file().write(dir).unwrap();
        assert_eq!(DaemonFile::read(dir).unwrap(), Some(file()));
        let mode = dir.daemon_file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        file().remove(dir);
        assert_eq!(DaemonFile::read(dir).unwrap(), None);
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
