//! A relay between a client and a PostgreSQL server, for tests of a network that fails. It has a unix
//! socket of its own. Start at [`PostgresRelay::start`].

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use tempfile::TempDir;

use crate::postgres::{PostgresCluster, SOCKET_NAME, url_of};

/// Bytes that are passed on at once.
const BLOCK_BYTES: usize = 16 << 10;

/// Treatment of the bytes of a host by the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkState {
    Connected,
    /// Connections stay open, and nothing arrives.
    Stalled,
    /// Connections end at once.
    Cut,
}

#[derive(Debug)]
struct RelayState {
    network: NetworkState,
    /// Socket of the server, if there is one.
    target: Option<Utf8PathBuf>,
    /// Both ends of each open connection, by its number.
    open: BTreeMap<u64, [UnixStream; 2]>,
    connections: u64,
    is_over: bool,
}

#[derive(Debug)]
struct SharedState {
    state: Mutex<RelayState>,
    changed: Condvar,
}

impl SharedState {
    /// Waits while the network is stalled. Returns false if the connection has no use any more.
    fn pass(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.network == NetworkState::Stalled && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.network == NetworkState::Connected && !state.is_over
    }
}

/// A relay that ends with this value.
#[derive(Debug)]
pub struct PostgresRelay {
    folder: TempDir,
    shared: Arc<SharedState>,
}

impl PostgresRelay {
    /// Starts a relay to a cluster's socket, which passes everything on.
    pub fn start(cluster: &PostgresCluster) -> PostgresRelay {
        let folder = tempfile::Builder::new().prefix("heeler-relay-").tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET_NAME)).unwrap();
        let state = RelayState {
            network: NetworkState::Connected,
            target: Some(cluster.socket()),
            open: BTreeMap::new(),
            connections: 0,
            is_over: false,
        };
        let shared =
            Arc::new(SharedState { state: Mutex::new(state), changed: Condvar::default() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &accepting));
        PostgresRelay { folder, shared }
    }

    /// Returns the URL of a database behind the relay.
    pub fn url(&self, database: &str) -> String {
        url_of(Utf8Path::from_path(self.folder.path()).unwrap(), database)
    }

    /// Changes the network from now on.
    pub fn set(&self, network: NetworkState) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.network = network;
        if network == NetworkState::Cut {
            close(&mut state);
        }
        self.shared.changed.notify_all();
    }

    /// Passes later connections on to another server, or to none. Ends those that are open.
    pub fn retarget(&self, cluster: Option<&PostgresCluster>) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.target = cluster.map(PostgresCluster::socket);
        close(&mut state);
    }
}

impl Drop for PostgresRelay {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_over = true;
        close(&mut state);
        self.shared.changed.notify_all();
        drop(state);
        // Ends the thread that accepts.
        drop(UnixStream::connect(self.folder.path().join(SOCKET_NAME)));
    }
}

fn close(state: &mut RelayState) {
    for end in std::mem::take(&mut state.open).into_values().flatten() {
        drop(end.shutdown(Shutdown::Both));
    }
}

fn accept(listener: &UnixListener, shared: &Arc<SharedState>) {
    for client in listener.incoming() {
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_over {
            return;
        }
        // Without a server the client's connection ends.
        if state.network != NetworkState::Cut
            && let Ok(client) = client
            && let Some(server) = state.target.as_ref().and_then(|it| UnixStream::connect(it).ok())
        {
            state.connections += 1;
            let number = state.connections;
            let copy = |stream: &UnixStream| stream.try_clone().unwrap();
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (from, to, shared) = (copy(from), copy(to), Arc::clone(shared));
                std::thread::spawn(move || forward(from, to, &shared, number));
            }
            state.open.insert(number, [client, server]);
        }
    }
}

fn forward(mut from: UnixStream, mut to: UnixStream, shared: &SharedState, number: u64) {
    let mut block = vec![0; BLOCK_BYTES];
    while let Ok(read) = from.read(&mut block)
        && read > 0
        && shared.pass()
        && to.write_all(&block[..read]).is_ok()
    {}
    // The other direction ends too: its peer is gone.
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
    shared.state.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&number);
}
