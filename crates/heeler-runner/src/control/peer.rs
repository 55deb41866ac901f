//! Identity of a client of the control socket, according to the kernel.
//!
//! Only the run's daemon and people may control a run. The daemon is the process that holds the
//! fleet's lock. What a client says about itself counts for nothing. Start at
//! [`ControlPeerVerifier`].

use camino::Utf8PathBuf;
use heeler_process::SocketPeerProcess;
use tokio::net::UnixStream;

/// Identity of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlPeer {
    /// The daemon of this run's fleet. It names the caller on whose behalf it acts.
    Daemon,
    /// A person who uses Heeler directly.
    Person { name: String },
    /// An agent, another program, or a process that cannot be inspected.
    Stranger,
}

/// Identifies clients.
#[derive(Debug, Clone, Default)]
pub(crate) struct ControlPeerVerifier {
    /// Lock file that the fleet's daemon holds.
    pub(crate) daemon_lock: Option<Utf8PathBuf>,
}

impl ControlPeerVerifier {
    /// Identifies the process that connected. Reads a few files of `/proc`.
    pub(crate) fn identify(&self, stream: &UnixStream) -> ControlPeer {
        let Ok(peer) = SocketPeerProcess::of(stream) else { return ControlPeer::Stranger };
        let own_user = rustix::process::geteuid().as_raw();
        if peer.user != own_user && peer.user != 0 {
            return ControlPeer::Stranger;
        }
        // Unit tests run a runner in the process of its client.
        if cfg!(test) && peer.pid == std::process::id() {
            return ControlPeer::Daemon;
        }
        let Some(origin) = peer.inspect() else { return ControlPeer::Stranger };
        // Every child of a runner belongs to its agent, whatever marks it has.
        if origin.is_own_descendant || !origin.is_free_of_agents() {
            return ControlPeer::Stranger;
        }
        let lock = self.daemon_lock.as_deref();
        if lock.is_some_and(|lock| heeler_process::flock_holders(lock).contains(&peer.pid)) {
            return ControlPeer::Daemon;
        }
        match origin.is_person() {
            true => ControlPeer::Person { name: heeler_process::login_name(peer.user) },
            false => ControlPeer::Stranger,
        }
    }
}
