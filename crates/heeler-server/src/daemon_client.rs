//! Blocking client of a daemon's socket. Start at [`DaemonClient::connect`].

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{CommandReply, DaemonCommand, DaemonCommandError, WRITER_LOCK_FILE};
use heeler_process::SocketPeerProcess;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::daemon_info::DaemonInfo;
use crate::extractors::IDEMPOTENCY_KEY_HEADER;
use crate::internal::{COMMAND_PATH, CommandErrorBody, HELLO_PATH, LINK_PATH, LoginLink};
use crate::socket::StateIdentity;
use crate::{PROTOCOL, PROTOCOL_HEADER};

/// Time limit for connecting and the first reply.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Size limit of a reply: ten times the status of ten thousand schedules.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Failure of a request to a daemon.
#[derive(Debug, Error)]
pub enum DaemonClientError {
    #[error("no daemon listens on {socket}")]
    NoDaemon {
        socket: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// The daemon is stopping and did not execute the command.
    #[error("the daemon is ending")]
    Ending,
    /// The daemon refused the command.
    #[error(transparent)]
    Refused(DaemonCommandError),
    /// The reply does not follow the protocol.
    #[error("no daemon with protocol {PROTOCOL} answers on {socket}: {reason}")]
    Protocol {
        socket: Utf8PathBuf,
        /// Description of the unexpected reply.
        reason: String,
    },
    /// The process at the other end does not prove that it serves the state directory.
    #[error("the process that listens on {socket} is not the daemon of {state_dir}: {reason}")]
    Unproven {
        socket: Utf8PathBuf,
        state_dir: Utf8PathBuf,
        /// The missing or wrong proof.
        reason: String,
    },
    /// A daemon of an old release, which cannot prove anything.
    #[error(
        "the running daemon (process {pid}, release {version}) is too old to prove that it serves \
         {state_dir}"
    )]
    Outdated { pid: u32, version: String, state_dir: Utf8PathBuf },
    /// The connection failed; the command may have been executed.
    #[error("cannot {attempt} the daemon at {socket}")]
    Io {
        /// Verb phrase for the message, such as "talk to".
        attempt: &'static str,
        socket: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Connection to a daemon. An idle daemon does not exit while it is open.
#[derive(Debug)]
pub struct DaemonClient {
    socket: Utf8PathBuf,
    hello: DaemonInfo,
    /// Header with the capability of the run or hook that this process belongs to.
    credential: Option<HeaderValue>,
    sender: SendRequest<Full<Bytes>>,
    // Fields are dropped in this order: the connection's task ends before the runtime that drives
    // it.
    _connection: JoinSet<()>,
    runtime: Runtime,
}

impl DaemonClient {
    /// Connects to the daemon of a state directory as the user of this process.
    pub fn connect(
        socket: &Utf8Path,
        state_dir: &Utf8Path,
    ) -> Result<DaemonClient, DaemonClientError> {
        DaemonClient::connect_as(socket, state_dir, None)
    }

    /// Connects to the daemon of a state directory, with the capability of a run or hook, or with a
    /// token. Nothing but a question for its identity is sent before the process at the other end
    /// has proved, by its user and by the directory's inode, that it serves this directory: a socket
    /// may have been planted.
    pub fn connect_as(
        socket: &Utf8Path,
        state_dir: &Utf8Path,
        secret: Option<&str>,
    ) -> Result<DaemonClient, DaemonClientError> {
        // A secret that is no header value is none of Heeler's.
        let credential =
            secret.and_then(|secret| HeaderValue::from_str(&format!("Bearer {secret}")).ok());
        let failed = |source| DaemonClientError::Io {
            attempt: "talk to",
            socket: socket.to_owned(),
            source,
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let mut connection = JoinSet::new();
        let connecting = async {
            let stream = UnixStream::connect(socket).await.map_err(|source| {
                DaemonClientError::NoDaemon { socket: socket.to_owned(), source }
            })?;
            check_process(&stream, socket, state_dir)?;
            let (mut sender, task) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
                .await
                .map_err(|error| failed(io::Error::other(error)))?;
            // The pending request reports a broken connection.
            connection.spawn(async move { drop(task.await) });
            let request = request(Method::GET, HELLO_PATH, Vec::new());
            let hello = send_request(socket, &mut sender, request).await?;
            check_state(&hello, socket, state_dir)?;
            Ok((sender, hello))
        };
        let (sender, hello) = runtime.block_on(async {
            let connected = tokio::time::timeout(CONNECT_WAIT, connecting).await;
            connected.unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))
        })?;
        Ok(DaemonClient {
            socket: socket.to_owned(),
            hello,
            credential,
            sender,
            _connection: connection,
            runtime,
        })
    }

    /// Returns the path of the daemon's socket.
    pub fn socket(&self) -> &Utf8Path {
        &self.socket
    }

    /// Returns the daemon's description of itself.
    pub fn daemon_info(&self) -> &DaemonInfo {
        &self.hello
    }

    /// Sends a command and waits for the reply, at most `patience` if given.
    pub fn send_command(
        &mut self,
        command: &DaemonCommand,
        patience: Option<Duration>,
    ) -> Result<CommandReply, DaemonClientError> {
        self.send_command_once(command, None, patience)
    }

    /// Like [`DaemonClient::send_command`], with an idempotency key: if a command was already
    /// executed under this key, it is not executed again and the first reply is returned.
    pub fn send_command_once(
        &mut self,
        command: &DaemonCommand,
        name: Option<&str>,
        patience: Option<Duration>,
    ) -> Result<CommandReply, DaemonClientError> {
        let mut request = self.request(COMMAND_PATH, json(command));
        if let Some(name) = name {
            // Without its key, a repeated command would be executed twice.
            let header = HeaderValue::from_str(name).map_err(|_| DaemonClientError::Io {
                attempt: "send an idempotency key with control characters to",
                socket: self.socket.clone(),
                source: io::ErrorKind::InvalidInput.into(),
            })?;
            request.headers_mut().insert(IDEMPOTENCY_KEY_HEADER, header);
        }
        let exchange = send_request(&self.socket, &mut self.sender, request);
        let Some(patience) = patience else { return self.runtime.block_on(exchange) };
        let late = || DaemonClientError::Io {
            attempt: "wait any longer for",
            socket: self.socket.clone(),
            source: io::ErrorKind::TimedOut.into(),
        };
        self.runtime
            .block_on(async { tokio::time::timeout(patience, exchange).await })
            .unwrap_or_else(|_| Err(late()))
    }
}

impl DaemonClient {
    fn request(&self, path: &'static str, body: Vec<u8>) -> Request<Full<Bytes>> {
        let mut request = request(Method::POST, path, body);
        if let Some(credential) = &self.credential {
            request.headers_mut().insert(AUTHORIZATION, credential.clone());
        }
        request
    }

    /// Creates a link with which one browser can log in.
    pub fn create_login_link(&mut self) -> Result<LoginLink, DaemonClientError> {
        let request = self.request(LINK_PATH, Vec::new());
        let exchange = send_request(&self.socket, &mut self.sender, request);
        self.runtime.block_on(exchange)
    }
}

/// Fails unless the kernel says that the process belongs to this user, to root, or, for root, to the
/// owner of the state directory; that it holds the lock of the state directory; and that no agent
/// started it. An agent can replace the socket and the lock file by its own.
fn check_process(
    stream: &UnixStream,
    socket: &Utf8Path,
    state_dir: &Utf8Path,
) -> Result<(), DaemonClientError> {
    let unproven = |reason: String| DaemonClientError::Unproven {
        socket: socket.to_owned(),
        state_dir: state_dir.to_owned(),
        reason,
    };
    let own = rustix::process::geteuid();
    let mut users = vec![own.as_raw(), 0];
    if own.is_root() {
        users.extend(state_dir.metadata().map(|found| found.uid()));
    }
    // The socket of a daemon that was killed lives on for a moment, in a process that it was starting.
    let ended =
        |source: io::Error| DaemonClientError::NoDaemon { socket: socket.to_owned(), source };
    let peer = SocketPeerProcess::of(stream).map_err(ended)?;
    if !users.contains(&peer.user) {
        return Err(unproven(format!("it belongs to user {}", peer.user)));
    }
    // Tests serve from their own process, and this process does not deceive itself.
    if peer.pid == std::process::id() {
        return Ok(());
    }
    let origin = peer.inspect();
    if peer.has_ended() {
        return Err(ended(io::ErrorKind::ConnectionRefused.into()));
    }
    if !origin.is_some_and(|origin| origin.is_free_of_agents()) {
        return Err(unproven(format!("process {} may be an agent's", peer.pid)));
    }
    let holders = heeler_process::flock_holders(&state_dir.join(WRITER_LOCK_FILE));
    match holders.first() {
        Some(holder) if !holders.contains(&peer.pid) => Err(unproven(format!(
            "process {holder} is the daemon, and process {} is not",
            peer.pid
        ))),
        // The kernel does not name a holder in another container.
        _ => Ok(()),
    }
}

/// Fails unless the daemon serves the state directory that is at this path now.
fn check_state(
    hello: &DaemonInfo,
    socket: &Utf8Path,
    state_dir: &Utf8Path,
) -> Result<(), DaemonClientError> {
    let state_dir = state_dir.to_owned();
    let Some(served) = hello.state else {
        let (pid, version) = (hello.pid, hello.version.clone());
        return Err(DaemonClientError::Outdated { pid, version, state_dir });
    };
    let reason = match StateIdentity::of(&state_dir) {
        Ok(own) if own == served => return Ok(()),
        Ok(_) => "it serves another state directory".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(DaemonClientError::Unproven { socket: socket.to_owned(), state_dir, reason })
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("bodies are JSON")
}

fn request(method: Method, path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    // HTTP/1.1 demands a host, although the socket has none.
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "heeler")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .expect("the paths are ours")
}

async fn send_request<T: DeserializeOwned>(
    socket: &Utf8Path,
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<T, DaemonClientError> {
    let broken = |source: Box<dyn std::error::Error + Send + Sync>| DaemonClientError::Io {
        attempt: "read from",
        socket: socket.to_owned(),
        source: io::Error::other(source),
    };
    let reply = sender.send_request(request).await.map_err(|error| broken(error.into()))?;
    let (head, body) = reply.into_parts();
    let strange =
        |reason: String| DaemonClientError::Protocol { socket: socket.to_owned(), reason };
    // Checked before the body is parsed, because its format depends on the version.
    check_protocol(&head.headers).map_err(strange)?;
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(broken)?.to_bytes();
    match head.status {
        StatusCode::OK => serde_json::from_slice(&body)
            .map_err(|error| strange(format!("its reply is invalid: {error}"))),
        // On these routes only a dispatcher that has stopped gives this status.
        StatusCode::SERVICE_UNAVAILABLE => Err(DaemonClientError::Ending),
        code => match serde_json::from_slice::<CommandErrorBody>(&body) {
            Ok(CommandErrorBody { error }) => Err(DaemonClientError::Refused(error)),
            Err(_) => Err(strange(format!("it replied {code}"))),
        },
    }
}

fn check_protocol(headers: &HeaderMap) -> Result<(), String> {
    let found = headers.get(PROTOCOL_HEADER).and_then(|value| value.to_str().ok());
    match found {
        Some(found) if found == PROTOCOL.to_string() => Ok(()),
        Some(found) => Err(format!("it speaks protocol {found}")),
        None => Err("it sends no protocol version".to_owned()),
    }
}
