//! Unix socket of a daemon.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes of the state directory's hash in the socket name. The name is as long as that of a run's
/// socket, for which the directory has room.
const HASH_BYTES: usize = 5;

const SOCKET_MODE: u32 = 0o600;

/// Identity of a state directory on this machine, by which a daemon proves which one it serves. A
/// path would not do: a link, or a directory that was replaced, has the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateIdentity {
    device: u64,
    inode: u64,
}

impl StateIdentity {
    pub fn of(state_dir: &Utf8Path) -> io::Result<StateIdentity> {
        let found = state_dir.metadata()?;
        Ok(StateIdentity { device: found.dev(), inode: found.ino() })
    }
}

/// Returns the path of a state directory's socket in a directory of sockets.
pub fn socket_path(sockets: &Utf8Path, state_dir: &Utf8Path) -> io::Result<Utf8PathBuf> {
    // Different paths of one directory must give the same socket.
    Ok(sockets.join(socket_name(&state_dir.canonicalize_utf8()?)))
}

/// Returns the socket name for a state directory, given as a canonical path.
pub fn socket_name(state_dir: &Utf8Path) -> String {
    // The path of a socket has a short limit, so a hash stands for the directory.
    let hash = Sha256::digest(state_dir.as_str());
    let digits: String = hash[..HASH_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("d-{digits}.sock")
}

/// Binds the socket of a state directory, in a directory that only the user can enter.
///
/// Only the holder of the state directory's lock may call this: the socket file of a dead daemon is
/// removed.
pub fn bind(sockets: &Utf8Path, state_dir: &Utf8Path) -> io::Result<(UnixListener, Utf8PathBuf)> {
    let path = socket_path(sockets, state_dir)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    // Until this call only the mode of the directory protects the socket.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok((listener, path))
}

#[cfg(test)]
mod tests {
    use heeler_model::run::SOCKET_NAME_LEN;

    use super::*;

    #[test]
    fn the_name_of_a_daemons_socket_fits_where_a_runs_does() {
        let one = socket_name(Utf8Path::new("/a/.heeler"));
        assert_eq!(one.len(), SOCKET_NAME_LEN);
        assert_ne!(one, socket_name(Utf8Path::new("/b/.heeler")));
    }

    #[test]
    fn a_socket_that_a_dead_daemon_left_is_replaced_and_is_the_users_alone() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let (dead, path) = bind(folder, folder).unwrap();
        drop(dead);
        assert!(path.exists());
        let (_alive, again) = bind(folder, folder).unwrap();
        assert_eq!(path, again);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    }
}
