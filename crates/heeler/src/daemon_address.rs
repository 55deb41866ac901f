//! Finds and connects to the daemon of a state directory. Start at [`connect_to_daemon`].
//!
//! A state directory may come with a clone, and agents can write to theirs, so `daemon.json` is
//! neither believed nor needed: the socket's name is computed from the directory's path, and the
//! daemon must prove that it serves the directory. A daemon may have another environment than the
//! command, and so another folder of sockets. That is found in the file and in the kernel's list of
//! sockets, and must be one that no other user can enter.

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
    capability: Option<&str>,
) -> Result<Option<DaemonClient>, DaemonClientError> {
    // A missing or unreadable file is no hint, and no hint is needed.
    let file = DaemonFile::read(dir).ok().flatten();
    let hint = file.as_ref().and_then(|file| file.socket.parent());
    match connect_in(dir, &socket_folders(dir, env, hint), capability)? {
        Some(client) => Ok(Some(client)),
        // Only now: the kernel lists every socket of the machine.
        None => connect_in(dir, &listening_folders(dir, env), capability),
    }
}

fn connect_in(
    dir: &StateDir,
    folders: &[Utf8PathBuf],
    capability: Option<&str>,
) -> Result<Option<DaemonClient>, DaemonClientError> {
    for folder in folders {
        // Fails only if the directory has vanished, and its daemon ends then.
        let Ok(socket) = socket_path(folder, dir.root()) else { return Ok(None) };
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
    hint: Option<&Utf8Path>,
) -> Vec<Utf8PathBuf> {
    let folder = |name: &str| env.get(name).map(|path| Utf8Path::new(path.as_str()));
    let temp: Vec<&Utf8Path> = folder("TMPDIR").into_iter().collect();
    let user = rustix::process::geteuid();
    // Root controls the fleets of other users, whose daemons have folders of their own.
    let owner = match user.is_root() {
        true => dir.root().metadata().map_or(0, |found| found.uid()),
        false => user.as_raw(),
    };
    known_socket_folders(folder("XDG_RUNTIME_DIR"), &temp, owner, hint)
}

/// Returns the private folders in which the kernel knows a socket of this state directory.
fn listening_folders(dir: &StateDir, env: &BTreeMap<String, String>) -> Vec<Utf8PathBuf> {
    let Ok(name) = socket_path(Utf8Path::new(""), dir.root()) else { return Vec::new() };
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    // The path is the last column; one with a space in it is cut off and then does not exist.
    let paths = table.lines().filter_map(|line| line.split_whitespace().last()).map(Utf8Path::new);
    let of_fleet = paths.filter(|path| path.file_name() == Some(name.as_str()));
    let folders = of_fleet.filter_map(Utf8Path::parent);
    folders.flat_map(|folder| socket_folders(dir, env, Some(folder)).pop()).collect()
}
