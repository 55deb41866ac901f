//! Identification of the processes that connect to the unix socket.
//!
//! It reads `/proc` for every ancestor of the process. An agent can make that slow by a deep chain of
//! processes, and can connect often. So it runs on threads of its own, and processes with the mark of
//! agents share few of them: people do not wait for agents. Start at [`PeerIdentification`].

use std::sync::Arc;

use heeler_engine::PeerIdentity;
use heeler_process::{SocketPeerProcess, login_name};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::SocketPeer;

/// Most identifications of unmarked processes at the same time; further ones wait.
const UNMARKED_MAX: usize = 8;

/// Most identifications of marked processes at the same time; further ones wait.
const MARKED_MAX: usize = 2;

/// Most connections of marked processes that are identified or wait for it; further ones are closed.
pub(crate) const MARKED_WAITING_MAX: usize = 64;

/// Limits on concurrent identifications.
#[derive(Debug, Clone)]
pub(crate) struct PeerIdentification {
    own_name: Arc<str>,
    unmarked: Arc<Semaphore>,
    marked: Arc<Semaphore>,
    marked_waiting: Arc<Semaphore>,
}

/// Connection whose process is not identified yet.
#[derive(Debug)]
pub(crate) struct UnidentifiedPeer {
    process: SocketPeerProcess,
    /// `None` for an unmarked process.
    waiting: Option<OwnedSemaphorePermit>,
}

impl PeerIdentification {
    pub(crate) fn new() -> PeerIdentification {
        PeerIdentification {
            own_name: login_name(rustix::process::geteuid().as_raw()).into(),
            unmarked: Arc::new(Semaphore::new(UNMARKED_MAX)),
            marked: Arc::new(Semaphore::new(MARKED_MAX)),
            marked_waiting: Arc::new(Semaphore::new(MARKED_WAITING_MAX)),
        }
    }

    /// Admits a process to the identification; returns `None` if too many marked processes wait.
    pub(crate) fn admit(&self, process: SocketPeerProcess) -> Option<UnidentifiedPeer> {
        let waiting = match process.is_marked() {
            true => Some(Arc::clone(&self.marked_waiting).try_acquire_owned().ok()?),
            false => None,
        };
        Some(UnidentifiedPeer { process, waiting })
    }

    /// Identifies an admitted process. It can be identified only while it lives.
    pub(crate) async fn identify(&self, peer: UnidentifiedPeer) -> SocketPeer {
        let UnidentifiedPeer { process, waiting } = peer;
        let limit = if waiting.is_some() { &self.marked } else { &self.unmarked };
        let _permit = limit.acquire().await.expect("the semaphore is never closed");
        // `accept_socket` admits only the same user and root.
        let user_name = match process.user == 0 {
            true => login_name(0),
            false => self.own_name.to_string(),
        };
        let inspect = move || PeerIdentity::of_socket_peer(&process);
        // If the inspection panics, the process counts as unknown and may change nothing.
        let identity =
            tokio::task::spawn_blocking(inspect).await.unwrap_or(PeerIdentity::UNTRUSTED);
        SocketPeer { user_name, identity }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn own_process() -> SocketPeerProcess {
        SocketPeerProcess::of(UnixStream::pair().unwrap().0).unwrap()
    }

    #[tokio::test]
    async fn people_do_not_wait_for_the_identification_of_agents() {
        let identification = PeerIdentification::new();
        // Agents have taken all threads that they may use, and all places to wait.
        let _threads = identification.marked.try_acquire_many(MARKED_MAX as u32).unwrap();
        let places = || Arc::clone(&identification.marked_waiting).try_acquire_owned().ok();
        let mut waiting: Vec<_> = std::iter::from_fn(places).collect();
        assert_eq!(waiting.len(), MARKED_WAITING_MAX);
        let person = UnidentifiedPeer { process: own_process(), waiting: None };
        identification.identify(person).await;
        // An agent beyond the limit is refused, until another one is identified or gone.
        assert!(places().is_none());
        waiting.pop();
        assert!(places().is_some());
    }

    #[tokio::test]
    async fn a_place_is_free_again_after_the_identification() {
        let identification = PeerIdentification::new();
        let waiting = Arc::clone(&identification.marked_waiting).try_acquire_owned().ok();
        let agent = UnidentifiedPeer { process: own_process(), waiting };
        identification.identify(agent).await;
        assert_eq!(identification.marked_waiting.available_permits(), MARKED_WAITING_MAX);
    }
}
