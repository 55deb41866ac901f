//! The control socket: what people and the engine ask of a run while it runs.
//!
//! One JSON object a line, both ways, several clients. The run waits for no client: what a slow one
//! does not read is left out, and it is told so. Whatever a client sends, the worst that it gets is
//! a refusal and a closed connection. Processes of the run itself may only look: they would answer for
//! the people whom their agent asks. One that has others start a process for it (a service manager,
//! cron, another program of the user's) gets around that. Start at [`RunControlServer`].

mod client;

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

/// How many clients may be connected at once; one more is refused.
pub(crate) const CLIENTS_MAX: usize = 64;

/// How many requests wait for the run; a client that has one more waits too.
const REQUESTS_MAX: usize = 16;

/// How long subscribers have at the end of a run to read what was told to them.
const SHUTDOWN_DRAIN_TIME: Duration = Duration::from_secs(1);

/// How long to wait after a connection could not be accepted (no file descriptor is free).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no control socket.
#[derive(Debug, Error)]
pub(crate) enum ControlServerBindError {
    /// Its folder is missing and cannot be made.
    #[error("cannot make the folder of control sockets {folder}")]
    Folder {
        /// The folder.
        folder: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process answers there.
    #[error("control socket {path} belongs to another process")]
    Taken {
        /// The socket.
        path: Utf8PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot bind the control socket {path}")]
    Bind {
        /// The socket.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The control socket of a run.
#[derive(Debug)]
pub(crate) struct RunControlServer {
    path: Utf8PathBuf,
    requests: mpsc::Receiver<PendingControlRequest>,
    subscribers: Vec<Arc<ControlClientOutbox>>,
    /// Accepts clients and owns their tasks.
    accept_tasks: JoinSet<()>,
}

/// What a client asks. It waits for its reply.
#[derive(Debug)]
pub(crate) struct PendingControlRequest {
    /// What.
    pub(crate) op: ControlOperation,
    /// The process that connected; unknown if it is none of ours to see.
    pub(crate) peer: Option<Pid>,
    id: u64,
    client: Arc<ControlClientOutbox>,
}

impl PendingControlRequest {
    /// Replies.
    pub(crate) fn reply(&self, body: ControlReplyBody) {
        self.client.reply(&encode_line(&ControlReply { protocol: PROTOCOL, id: self.id, body }));
    }

    /// Replies that it cannot be done.
    pub(crate) fn refuse(&self, reason: impl Into<String>) {
        self.reply(ControlReplyBody::Refused { reason: reason.into() });
    }
}

impl RunControlServer {
    /// Binds the socket of a run in a folder that only this user can enter.
    ///
    /// What a killed runner of the same run left there is replaced; the caller holds the run's
    /// lock, so nobody else serves it.
    pub(crate) async fn bind(
        folder: &Utf8Path,
        run: RunId,
    ) -> Result<RunControlServer, ControlServerBindError> {
        // A socket need not survive a power loss: there is nothing to wait for where the folder is.
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
        accepting.spawn(accept(listener, requests));
        Ok(RunControlServer {
            path,
            requests: asked,
            subscribers: Vec::new(),
            accept_tasks: accepting,
        })
    }

    /// Returns where it is.
    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Returns what is asked next. Loses nothing when it is dropped before it is ready.
    pub(crate) async fn next_request(&mut self) -> PendingControlRequest {
        match self.requests.recv().await {
            Some(asked) => asked,
            // The accepting task has ended, which it does with this object only.
            None => std::future::pending().await,
        }
    }

    /// Tells the client everything that happens from now on.
    pub(crate) fn subscribe(&mut self, asked: &PendingControlRequest) {
        let known = |client: &Arc<ControlClientOutbox>| Arc::ptr_eq(client, &asked.client);
        if !self.subscribers.iter().any(known) {
            self.subscribers.push(Arc::clone(&asked.client));
        }
        asked.reply(ControlReplyBody::Done);
    }

    /// Says whether anybody wants to be told.
    pub(crate) fn has_subscribers(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// Tells what happens.
    pub(crate) fn publish(&mut self, happening: &ControlEvent) {
        if self.has_subscribers() {
            self.publish_line(&encode_event(happening));
        }
    }

    /// Tells a row of the job log, given as it was written there.
    pub(crate) fn publish_row(&mut self, at: u64, row: &[u8]) {
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
        self.subscribers.retain(|client| client.send_event(line));
    }

    /// Tells the last thing, gives clients a moment to read it, and takes the socket away.
    pub(crate) async fn finish(mut self, last: &ControlEvent) {
        // Whoever connects from now on should look for the result instead.
        drop(std::fs::remove_file(&self.path));
        let last = encode_event(last);
        for client in &self.subscribers {
            client.send_last_event(&last);
        }
        let mut clients = std::mem::take(&mut self.subscribers);
        while let Ok(asked) = self.requests.try_recv() {
            asked.refuse("the run has ended; its result says how");
            asked.client.close();
            clients.push(asked.client);
        }
        let farewell = async {
            for client in &clients {
                client.wait_closed().await;
            }
        };
        // Whoever does not read it finds it in `result.json`.
        drop(tokio::time::timeout(SHUTDOWN_DRAIN_TIME, farewell).await);
        self.accept_tasks.shutdown().await;
    }
}

impl Drop for RunControlServer {
    fn drop(&mut self) {
        // What stays answers nobody, and the next runner of this run replaces it.
        drop(std::fs::remove_file(&self.path));
    }
}

/// A row as it is told, without reading it again.
#[derive(Serialize)]
struct RowEvent<'a> {
    protocol: u32,
    event: &'static str,
    at: u64,
    row: &'a RawValue,
}

/// A happening with the protocol's version.
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
        Ok(_) => Err(ControlServerBindError::Taken { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Nobody listens; a file that is no socket says the same, and is not ours to remove.
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

async fn accept(listener: UnixListener, requests: mpsc::Sender<PendingControlRequest>) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if clients.len() < CLIENTS_MAX => {
                    clients.spawn(serve_client(stream, requests.clone()));
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
