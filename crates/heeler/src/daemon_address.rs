//! Finds and connects to the daemon of a state directory. Start at [`connect_to_daemon`].
//!
//! A state directory may come with a clone, and agents can write to theirs, so `daemon.json` is not
//! believed: the socket's name is computed from the directory's path, and the daemon must prove that
//! it serves the directory. Only the folder of sockets may be taken from the file, because a daemon
//! may have another environment than the command. It must then be one that no other user can enter.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::known_socket_folders;
use heeler_server::{DaemonClient, DaemonClientError, socket_path};
use heeler_store::{DaemonFile, StateDir};

/// Connects to the daemon of a state directory; returns `None` if none listens.
pub(crate) fn connect_to_daemon(
    dir: &StateDir,
    env: &BTreeMap<String, String>,
    file: &DaemonFile,
    capability: Option<&str>,
) -> Result<Option<DaemonClient>, DaemonClientError> {
    for folder in socket_folders(dir, env, file) {
        // Fails only if the directory has vanished, and its daemon ends then.
        let Ok(socket) = socket_path(&folder, dir.root()) else { return Ok(None) };
        match DaemonClient::connect_as(&socket, dir.root(), capability) {
            Ok(client) => return Ok(Some(client)),
            // It may listen in the next folder.
            Err(DaemonClientError::NoDaemon { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn socket_folders(
    dir: &StateDir,
    env: &BTreeMap<String, String>,
    file: &DaemonFile,
) -> Vec<Utf8PathBuf> {
    let folder = |name: &str| env.get(name).map(|path| Utf8Path::new(path.as_str()));
    let temp: Vec<&Utf8Path> = folder("TMPDIR").into_iter().collect();
    let user = rustix::process::geteuid();
    // Root controls the fleets of other users, whose daemons have folders of their own.
    let owner = match user.is_root() {
        true => dir.root().metadata().map_or(0, |found| found.uid()),
        false => user.as_raw(),
    };
    known_socket_folders(folder("XDG_RUNTIME_DIR"), &temp, owner, file.socket.parent())
}
