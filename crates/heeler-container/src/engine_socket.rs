//! The socket of the container engine. Start at [`find_engine_socket`].

use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

/// Scheme of an engine on this machine.
const UNIX_SCHEME: &str = "unix://";

/// Sockets of engines that serve the whole machine.
const SYSTEM_SOCKETS: [&str; 3] =
    ["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"];

/// Sockets of engines that serve one user, below the user's runtime directory.
const USER_SOCKETS: [&str; 2] = ["docker.sock", "podman/podman.sock"];

/// Reason that no engine can be used.
#[derive(Debug, Error)]
pub enum EngineSocketError {
    /// The engine is on another machine, which has neither the files nor the sockets of a run.
    #[error(
        "DOCKER_HOST is `{address}`, and a run needs an engine on this machine: set it to \
         `unix://` and the path of a socket, or unset it"
    )]
    Remote { address: String },
    #[error(
        "no container engine runs here: install Docker (`apt install docker.io`) or start Podman's \
         service (`systemctl --user start podman.socket`), or set DOCKER_HOST"
    )]
    Missing,
}

/// Returns the socket of the engine: the one that `DOCKER_HOST` names, else the first that exists.
pub fn find_engine_socket(
    docker_host: Option<&str>,
    runtime_dir: Option<&str>,
    exists: impl Fn(&Utf8Path) -> bool,
) -> Result<Utf8PathBuf, EngineSocketError> {
    if let Some(address) = docker_host.filter(|address| !address.is_empty()) {
        let path = address.strip_prefix(UNIX_SCHEME).filter(|path| path.starts_with('/'));
        let remote = || EngineSocketError::Remote { address: address.to_owned() };
        return path.map(Utf8PathBuf::from).ok_or_else(remote);
    }
    let system = SYSTEM_SOCKETS.map(Utf8PathBuf::from).into_iter();
    let folder = runtime_dir.filter(|folder| folder.starts_with('/')).map(Utf8Path::new);
    let user = folder.into_iter().flat_map(|folder| USER_SOCKETS.map(|name| folder.join(name)));
    // An engine of the user needs no rights over the machine, so it comes first.
    user.chain(system).find(|path| exists(path)).ok_or(EngineSocketError::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(host: Option<&str>, existing: &[&str]) -> Result<String, String> {
        let exists = |path: &Utf8Path| existing.contains(&path.as_str());
        find_engine_socket(host, Some("/run/user/7"), exists)
            .map(Utf8PathBuf::into_string)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_engine_is_the_named_one_or_the_first_that_exists() {
        let both = ["/var/run/docker.sock", "/run/user/7/podman/podman.sock"];
        assert_eq!(found(None, &both).unwrap(), "/run/user/7/podman/podman.sock");
        assert_eq!(found(None, &both[..1]).unwrap(), "/var/run/docker.sock");
        assert_eq!(found(Some(""), &both[..1]).unwrap(), "/var/run/docker.sock");
        assert_eq!(found(Some("unix:///x.sock"), &both).unwrap(), "/x.sock");
        assert!(found(None, &[]).unwrap_err().contains("no container engine runs here"));
        for remote in ["tcp://10.0.0.1:2375", "ssh://host", "unix://relative", "/x.sock"] {
            assert!(found(Some(remote), &both).unwrap_err().contains(remote));
        }
    }
}
