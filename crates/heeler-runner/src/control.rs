//! The control socket: requests that people and the engine send to a run in progress.
//!
//! The protocol is one JSON object per line in both directions; several clients may connect. The
//! run waits for no client: events that a slow client does not read are dropped for it, and it is
//! notified of the gap. The worst that bad input causes is a refusal and a closed connection.
//! Only the fleet's daemon and people may control the run (`peer`). Processes of the run itself may
//! only watch it; those of other runs get nothing. Start at [`RunControlServer`].

mod client;
mod peer;

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::RunId;
use heeler_model::run::{
    ControlEvent, ControlOperation, ControlReply, ControlReplyBody, PROTOCOL, socket_name,
};
use heeler_transcript::{OsDisk, create_folder};
use rustix::process::Pid;
use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use client::{ControlClientOutbox, serve_client};
pub(crate) use peer::{ControlPeer, ControlPeerVerifier};

/// Limit on concurrent clients; further connections are refused.
pub(crate) const CLIENTS_MAX: usize = 64;

/// Limit on requests that wait for the run; a client with a further request waits.
const REQUESTS_MAX: usize = 16;

/// Time that subscribers have at the end of a run to read the remaining events.
const SHUTDOWN_DRAIN_TIME: Duration = Duration::from_secs(1);

/// Pause after a connection could not be accepted because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Refusal of a process that may not control the run.
const NOT_ALLOWED: &str = "only the fleet's daemon and people may control a run, and this request comes \
                           from a process of an agent or from another program; use heeler outside of agents";

/// Reason that the control socket could not be created.
#[derive(Debug, Error)]
pub(crate) enum ControlServerBindError {
    /// The socket's directory is missing and cannot be created.
    #[error("cannot create the directory of control sockets {folder}")]
    Folder {
        folder: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another process answers on the socket.
    #[error("control socket {path} belongs to another process")]
    Taken { path: Utf8PathBuf },
    /// The socket cannot be created.
    #[error("cannot bind the control socket {path}")]
    Bind {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Control socket of a run.
#[derive(Debug)]
pub(crate) struct RunControlServer {
    path: Utf8PathBuf,
    requests: mpsc::Receiver<PendingControlRequest>,
    subscribers: Vec<Arc<ControlClientOutbox>>,
    /// Accepts clients and owns their tasks.
    accept_tasks: JoinSet<()>,
}

/// Request of a client that waits for its reply.
#[derive(Debug)]
pub(crate) struct PendingControlRequest {
    pub(crate) op: ControlOperation,
    /// Process that connected; `None` if it is not visible to this process.
    pub(crate) pid: Option<Pid>,
    pub(crate) peer: ControlPeer,
    id: u64,
    client: Arc<ControlClientOutbox>,
}

impl PendingControlRequest {
    pub(crate) fn reply(&self, body: ControlReplyBody) {
        self.client.reply(&encode_line(&ControlReply { protocol: PROTOCOL, id: self.id, body }));
    }

    /// Returns the caller to record for a request that controls the run, or replies with a refusal.
    /// Only the daemon may name another caller than itself.
    pub(crate) fn authorize(&self, named: &str) -> Option<String> {
        match &self.peer {
            ControlPeer::Daemon => Some(named.to_owned()),
            ControlPeer::Person { name } => Some(name.clone()),
            ControlPeer::Stranger => {
                self.refuse(NOT_ALLOWED);
                None
            }
        }
    }

    /// Replies with a refusal.
    pub(crate) fn refuse(&self, reason: impl Into<String>) {
        self.reply(ControlReplyBody::Refused { reason: reason.into() });
    }
}

impl RunControlServer {
    /// Binds the socket of a run in a directory that only this user can enter.
    ///
    /// A socket left by a killed runner of the same run is replaced. The caller holds the run's
    /// lock, so no other process serves it.
    pub(crate) async fn bind(
        folder: &Utf8Path,
        run: RunId,
        verifier: ControlPeerVerifier,
    ) -> Result<RunControlServer, ControlServerBindError> {
        // A socket need not survive a power loss, so an existing directory is not synced.
        if !folder.is_dir() {
            create_folder(&OsDisk, folder).map_err(|error| ControlServerBindError::Folder {
                folder: folder.to_owned(),
                source: error.source,
            })?;
        }
        let path = folder.join(socket_name(run));
        remove_stale_socket(&path).await?;
        let failed = |source| ControlServerBindError::Bind { path: path.clone(), source };
        let listener = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed)?;
        let (requests, asked) = mpsc::channel(REQUESTS_MAX);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, verifier, requests));
        Ok(RunControlServer {
            path,
            requests: asked,
            subscribers: Vec::new(),
            accept_tasks: accepting,
        })
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Waits for the next request. Cancel-safe.
    pub(crate) async fn next_request(&mut self) -> PendingControlRequest {
        match self.requests.recv().await {
            Some(request) => request,
            // The accepting task ends only together with this object.
            None => std::future::pending().await,
        }
    }

    /// Sends the client every event from now on. `first` tells it of the message that the agent is
    /// producing.
    pub(crate) fn subscribe(
        &mut self,
        request: &PendingControlRequest,
        first: Option<&ControlEvent>,
    ) {
        let known = |client: &Arc<ControlClientOutbox>| Arc::ptr_eq(client, &request.client);
        // A second subscription on the same connection must not duplicate events.
        let is_new = !self.subscribers.iter().any(known);
        request.reply(ControlReplyBody::Done);
        if is_new {
            self.subscribers.push(Arc::clone(&request.client));
            // A client that is gone is forgotten with the next event.
            let _is_open =
                first.is_none_or(|first| request.client.send_event(&encode_event(first)));
        }
    }

    /// Returns true if at least one client is subscribed.
    pub(crate) fn has_subscribers(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// Sends an event to all subscribers.
    pub(crate) fn publish(&mut self, happening: &ControlEvent) {
        if self.has_subscribers() {
            self.publish_line(&encode_event(happening));
        }
    }

    /// Sends a row of the job transcript, in its written form, to all subscribers.
    pub(crate) fn publish_row(&mut self, at: u64, row: &[u8]) {
        // Every row passes here, so nothing is encoded without a reader.
        if self.has_subscribers()
            && let Ok(row) = serde_json::from_slice::<&RawValue>(row)
        {
            self.publish_line(&encode_line(&RowEvent {
                protocol: PROTOCOL,
                event: "row",
                at,
                row,
            }));
        }
    }

    fn publish_line(&mut self, line: &Arc<[u8]>) {
        // A client that is gone is forgotten with the first event that it cannot receive.
        self.subscribers.retain(|client| client.send_event(line));
    }

    /// Sends the last event, gives clients a moment to read it, and removes the socket.
    pub(crate) async fn finish(mut self, last: &ControlEvent) {
        // Clients that connect from now on should read the result instead.
        drop(std::fs::remove_file(&self.path));
        let last = encode_event(last);
        for client in &self.subscribers {
            client.send_last_event(&last);
        }
        let mut clients = std::mem::take(&mut self.subscribers);
        // Requests that the run has not read yet still get a reply.
        while let Ok(request) = self.requests.try_recv() {
            request.refuse("the run has ended; see its result");
            request.client.close();
            clients.push(request.client);
        }
        let farewell = async {
            for client in &clients {
                client.wait_closed().await;
            }
        };
        // A client that does not read the event finds the outcome in `result.json`.
        drop(tokio::time::timeout(SHUTDOWN_DRAIN_TIME, farewell).await);
        // The remaining tasks own the listener and the connections, which end with the run.
        self.accept_tasks.shutdown().await;
    }
}

impl Drop for RunControlServer {
    fn drop(&mut self) {
        // A leftover socket has no listener, and the next runner of this run replaces it.
        drop(std::fs::remove_file(&self.path));
    }
}

/// Row event that embeds the written bytes without parsing them again.
#[derive(Serialize)]
struct RowEvent<'a> {
    protocol: u32,
    event: &'static str,
    at: u64,
    row: &'a RawValue,
}

/// Event together with the protocol version.
#[derive(Serialize)]
struct ControlEventLine<'a> {
    protocol: u32,
    #[serde(flatten)]
    happening: &'a ControlEvent,
}

fn encode_event(happening: &ControlEvent) -> Arc<[u8]> {
    encode_line(&ControlEventLine { protocol: PROTOCOL, happening })
}

fn encode_line(value: &impl Serialize) -> Arc<[u8]> {
    let mut line =
        serde_json::to_vec(value).expect("protocol types have string keys and no failing parts");
    line.push(b'\n');
    line.into()
}

async fn remove_stale_socket(path: &Utf8Path) -> Result<(), ControlServerBindError> {
    match UnixStream::connect(path).await {
        // The run's lock is held, so only a stranger can answer here.
        Ok(_) => Err(ControlServerBindError::Taken { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // The socket has no listener. Connecting to a plain file fails the same way, but such a
        // file must not be removed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
            std::fs::remove_file(path)
                .map_err(|source| ControlServerBindError::Bind { path: path.to_owned(), source })
        }
        Err(source) => Err(ControlServerBindError::Bind { path: path.to_owned(), source }),
    }
}

fn is_socket(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket())
}

async fn accept(
    listener: UnixListener,
    verifier: ControlPeerVerifier,
    requests: mpsc::Sender<PendingControlRequest>,
) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if clients.len() < CLIENTS_MAX => {
                    // At once, because the PID of a process that has ended may be reused.
                    let peer = verifier.identify(&stream);
                    clients.spawn(serve_client(stream, peer, requests.clone()));
                }
                Ok((stream, _)) => client::reject_client(stream),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = clients.join_next(), if !clients.is_empty() => {}
        }
    }
}

#[cfg(test)]
use client::REQUEST_BYTES_MAX;
#[cfg(test)]
mod tests;
