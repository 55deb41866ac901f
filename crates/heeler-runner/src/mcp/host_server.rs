//! MCP servers of the config that run outside of the agent's sandbox (`host: true`).
//!
//! The runner is the only client of such a server: it opens the protocol once, and passes requests of
//! the agent on with IDs of its own. Any process in the sandbox can send a request, with or without
//! Claude's knowledge. Therefore only known methods are passed on, and the agent's lists of tools are
//! applied here, too. The server sees no capability of the agent, so it asks the agent nothing. This
//! module starts no process. Start at [`HostMcpServer::handle`].

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::ToolNote;

/// Limit on a message of a server.
const MESSAGE_BYTES_MAX: u64 = 32 << 20;

/// Limit on requests that a server has not read.
const UNREAD_REQUESTS_MAX: usize = 64;

/// Time that a server has to start. Package runners download it first.
const START_TIME_MAX: Duration = Duration::from_secs(120);

/// Length that is recorded of a server's standard error.
const ERRORS_BYTES_MAX: usize = 2 << 10;

/// Text in place of a line of which not even the end is recorded. A part of it could have a part of a
/// secret, which would not be recognized.
const LONG_LINE: &[u8] = b"[a long line is left out]\n";

/// Time for which the standard error of a server that has ended is read.
const ERRORS_TIME_MAX: Duration = Duration::from_millis(500);

/// Version of the protocol that the runner asks for. A server may choose another one.
const PROTOCOL_VERSION: &str = "2025-06-18";

/// Requests that are passed on. All others concern the connection itself, or replies to the server.
const METHODS: [&str; 8] = [
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
];

/// Reason for which a request (server, method, parameters) is refused.
pub(crate) type HostRequestFilter = dyn Fn(&str, &str, &Json) -> Option<String> + Send + Sync;

/// MCP server outside of the agent's sandbox.
#[derive(Clone)]
pub(crate) struct HostMcpServer {
    name: String,
    filter: Arc<HostRequestFilter>,
    connection: Arc<Mutex<HostServerState>>,
}

/// Standard streams of a server's process.
pub(crate) struct HostServerStreams<I, O, E> {
    pub(crate) input: I,
    pub(crate) output: O,
    pub(crate) errors: E,
}

#[derive(Default)]
enum HostServerState {
    #[default]
    NotStarted,
    Failed {
        reason: String,
    },
    Connected(Arc<HostConnection>),
}

impl std::fmt::Debug for HostMcpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMcpServer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl HostMcpServer {
    pub(crate) fn new(name: &str, filter: Arc<HostRequestFilter>) -> HostMcpServer {
        HostMcpServer { name: name.to_owned(), filter, connection: Arc::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes over the streams of the server's process, and opens the protocol. Must be called in the
    /// event loop. Problems become notes.
    pub(crate) fn connect<I, O, E>(
        &self,
        streams: HostServerStreams<I, O, E>,
        notes: mpsc::Sender<ToolNote>,
    ) where
        I: AsyncWrite + Unpin + Send + 'static,
        O: AsyncRead + Unpin + Send + 'static,
        E: AsyncRead + Unpin + Send + 'static,
    {
        let connection = HostConnection::open(&self.name, streams, notes);
        self.set_state(HostServerState::Connected(connection));
    }

    /// Keeps the reason for which the server was not started.
    pub(crate) fn fail(&self, reason: String) {
        self.set_state(HostServerState::Failed { reason });
    }

    /// Closes the input of the server, at which it should end, and fails all pending requests.
    pub(crate) fn close(&self) {
        self.set_state(HostServerState::NotStarted);
    }

    fn set_state(&self, state: HostServerState) {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let HostServerState::Connected(old) = std::mem::replace(&mut *connection, state) {
            old.close();
        }
    }

    fn connection(&self) -> Result<Arc<HostConnection>, String> {
        match &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            HostServerState::NotStarted => Err("the server is not running".to_owned()),
            HostServerState::Failed { reason } => Err(reason.clone()),
            HostServerState::Connected(connection) => Ok(Arc::clone(connection)),
        }
    }

    /// Answers one JSON-RPC message of the agent; `None` if it needs no answer. Dropping the future
    /// cancels the request.
    pub(crate) async fn handle(&self, message: &Json) -> Option<Json> {
        let id = message.get("id")?.clone();
        let method = message["method"].as_str()?;
        let reply = match self.answer(method, &message["params"]).await {
            Ok(reply) => reply,
            Err(HostRequestError { code, message }) => {
                json!({ "error": { "code": code, "message": message } })
            }
        };
        let mut whole = json!({ "jsonrpc": "2.0", "id": id });
        for key in ["result", "error"] {
            if let Some(value) = reply.get(key) {
                whole[key] = value.clone();
            }
        }
        Some(whole)
    }

    /// Returns an object with `result` or `error`.
    async fn answer(&self, method: &str, params: &Json) -> Result<Json, HostRequestError> {
        let failed = HostRequestError::failed;
        match method {
            "ping" => return Ok(json!({ "result": {} })),
            "initialize" => {
                let opened = self.connection().map_err(failed)?.opened().await;
                return Ok(json!({ "result": opened.map_err(failed)? }));
            }
            _ if METHODS.contains(&method) => {}
            _ => {
                let message = format!("Heeler does not pass on {method}");
                return Err(HostRequestError { code: -32601, message });
            }
        }
        if let Some(reason) = (self.filter)(&self.name, method, params) {
            return Err(failed(reason));
        }
        let connection = self.connection().map_err(failed)?;
        connection.opened().await.map_err(failed)?;
        connection.request(method, params).await.map_err(failed)
    }
}

/// Error of JSON-RPC.
struct HostRequestError {
    code: i32,
    message: String,
}

impl HostRequestError {
    fn failed(message: String) -> HostRequestError {
        // JSON-RPC reserves this code for errors of the server itself.
        HostRequestError { code: -32000, message }
    }
}

/// Reply of a server to a request.
type ReplySender = oneshot::Sender<Json>;

/// Requests that a server has not answered.
#[derive(Default)]
struct PendingRequests {
    replies: HashMap<u64, ReplySender>,
    is_closed: bool,
}

impl PendingRequests {
    /// Fails all requests, also later ones.
    fn close(&mut self) {
        self.is_closed = true;
        self.replies.clear();
    }

    fn lock(pending: &Mutex<PendingRequests>) -> std::sync::MutexGuard<'_, PendingRequests> {
        pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connection to the process of a server. It ends when it is dropped.
struct HostConnection {
    lines: mpsc::Sender<Vec<u8>>,
    pending: Arc<Mutex<PendingRequests>>,
    next_id: AtomicU64,
    /// Reply to `initialize`, or the reason that there is none.
    opened: watch::Receiver<Option<Result<Json, String>>>,
    /// Empty once the connection is closed.
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl HostConnection {
    fn open<I, O, E>(
        name: &str,
        streams: HostServerStreams<I, O, E>,
        notes: mpsc::Sender<ToolNote>,
    ) -> Arc<HostConnection>
    where
        I: AsyncWrite + Unpin + Send + 'static,
        O: AsyncRead + Unpin + Send + 'static,
        E: AsyncRead + Unpin + Send + 'static,
    {
        let (lines, to_write) = mpsc::channel(UNREAD_REQUESTS_MAX);
        let (opening, opened) = watch::channel(None);
        let connection = Arc::new(HostConnection {
            lines,
            pending: Arc::default(),
            next_id: AtomicU64::new(0),
            opened,
            tasks: Mutex::default(),
        });
        let errors = Arc::<Mutex<Vec<u8>>>::default();
        let (errors_open, errors_closed) = oneshot::channel();
        let reader = ServerReader {
            name: name.to_owned(),
            pending: Arc::clone(&connection.pending),
            replies: connection.lines.downgrade(),
            errors: Arc::clone(&errors),
            errors_closed,
            notes,
        };
        let spawn = |task| AbortOnDropHandle::new(task);
        let tasks = vec![
            spawn(tokio::spawn(write_lines(streams.input, to_write))),
            spawn(tokio::spawn(reader.read(BufReader::new(streams.output)))),
            spawn(tokio::spawn(keep_end(streams.errors, errors, errors_open))),
            // It holds no strong reference, so that dropping the connection ends it.
            spawn(tokio::spawn(open_protocol(Arc::downgrade(&connection), opening))),
        ];
        *connection.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        connection
    }

    /// Ends the connection, also while requests of the agent hold it.
    fn close(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        PendingRequests::lock(&self.pending).close();
    }

    /// Waits until the server is open; returns its reply to `initialize`.
    async fn opened(&self) -> Result<Json, String> {
        let mut opened = self.opened.clone();
        let ended = || "the server has ended".to_owned();
        let result = opened.wait_for(Option::is_some).await.map_err(|_| ended())?.clone();
        result.unwrap_or_else(|| Err(ended()))
    }

    /// Sends a request and waits for its reply.
    async fn request(&self, method: &str, params: &Json) -> Result<Json, String> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (reply, replied) = oneshot::channel();
        {
            let mut pending = PendingRequests::lock(&self.pending);
            if pending.is_closed {
                return Err("the server has ended".to_owned());
            }
            pending.replies.insert(id, reply);
        }
        let mut guard = RequestGuard { connection: self, id, is_answered: false };
        let mut request = json!({ "jsonrpc": "2.0", "id": id, "method": method });
        if !params.is_null() {
            request["params"] = params.clone();
        }
        self.send(&request)?;
        let reply = replied.await.map_err(|_| "the server has ended".to_owned());
        guard.is_answered = true;
        reply
    }

    fn send(&self, message: &Json) -> Result<(), String> {
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        self.lines.try_send(line).map_err(|_| "the server does not read its input".to_owned())
    }
}

/// Tells the server that a request is cancelled, if it is dropped without a reply.
struct RequestGuard<'c> {
    connection: &'c HostConnection,
    id: u64,
    is_answered: bool,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        PendingRequests::lock(&self.connection.pending).replies.remove(&self.id);
        if !self.is_answered {
            let params = json!({ "requestId": self.id, "reason": "cancelled" });
            let message =
                json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
            // A server that does not read its input learns of it by the end of its process.
            let _sent = self.connection.send(&message);
        }
    }
}

/// Opens the protocol with the server, as a client without capabilities.
async fn open_protocol(
    connection: std::sync::Weak<HostConnection>,
    opening: watch::Sender<Option<Result<Json, String>>>,
) {
    let Some(connection) = connection.upgrade() else { return };
    let params = json!({
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": { "name": "heeler", "version": env!("CARGO_PKG_VERSION") },
    });
    let reply = tokio::time::timeout(START_TIME_MAX, connection.request("initialize", &params));
    let opened = match reply.await {
        Ok(Ok(mut reply)) => match reply.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(format!("the server refused to start: {}", reply["error"])),
        },
        Ok(Err(reason)) => Err(reason),
        Err(_) => Err(format!("the server has not started in {} s", START_TIME_MAX.as_secs())),
    };
    if opened.is_ok() {
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let _sent = connection.send(&message);
    }
    opening.send_replace(Some(opened));
}

/// Writes lines to the server until the connection is dropped, which closes its input.
async fn write_lines(mut input: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        let written = async {
            input.write_all(&line).await?;
            input.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
}

/// Reader of a server's output.
struct ServerReader {
    name: String,
    pending: Arc<Mutex<PendingRequests>>,
    replies: mpsc::WeakSender<Vec<u8>>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Fails when the standard error is closed.
    errors_closed: oneshot::Receiver<()>,
    notes: mpsc::Sender<ToolNote>,
}

impl ServerReader {
    /// Passes replies on until the output ends; then fails all pending requests.
    async fn read(mut self, mut output: impl AsyncBufRead + Unpin) {
        let end = loop {
            match read_message(&mut output).await {
                Ok(Some(message)) => self.handle(message),
                Ok(None) => break "it closed its output".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        PendingRequests::lock(&self.pending).close();
        // A server that dies may have said why. Other processes may keep its standard error open.
        drop(tokio::time::timeout(ERRORS_TIME_MAX, &mut self.errors_closed).await);
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let errors = String::from_utf8_lossy(&errors).trim().to_owned();
        // A run that is ending records nothing more.
        drop(self.notes.send(ToolNote::HostServerEnded { name: self.name, end, errors }).await);
    }

    fn handle(&self, mut message: Json) {
        let id = message.get("id").cloned();
        match (message.get("method").and_then(Json::as_str), id) {
            (None, Some(id)) => {
                let reply = id
                    .as_u64()
                    .and_then(|id| PendingRequests::lock(&self.pending).replies.remove(&id));
                if let Some(reply) = reply {
                    // The request may have been cancelled.
                    let _delivered = reply.send(message.take());
                }
            }
            // The agent is asked nothing.
            (Some(method), Some(id)) => {
                let mut reply = json!({ "jsonrpc": "2.0", "id": id });
                match method {
                    "ping" => reply["result"] = json!({}),
                    _ => {
                        reply["error"] = json!({ "code": -32601, "message": "not supported" });
                    }
                }
                if let Some(lines) = self.replies.upgrade() {
                    let mut line = reply.to_string().into_bytes();
                    line.push(b'\n');
                    // A server that does not read its input gets no reply.
                    let _sent = lines.try_send(line);
                }
            }
            // Notifications: progress, logs, and changes of lists.
            (_, None) => {}
        }
    }
}

/// Returns the next message of a server; `None` at the end of its output. Lines that are not JSON are
/// skipped: some servers print greetings.
async fn read_message(output: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Json>> {
    loop {
        let mut line = Vec::new();
        let count = (&mut *output).take(MESSAGE_BYTES_MAX + 1).read_until(b'\n', &mut line).await?;
        if count == 0 {
            return Ok(None);
        }
        if count as u64 > MESSAGE_BYTES_MAX {
            let limit = MESSAGE_BYTES_MAX >> 20;
            return Err(io::Error::other(format!("it sent a message of more than {limit} MiB")));
        }
        if let Ok(message @ Json::Object(_)) = serde_json::from_slice(&line) {
            return Ok(Some(message));
        }
    }
}

/// Reads a server's standard error and keeps its last lines.
async fn keep_end(
    mut errors: impl AsyncRead + Unpin,
    end: Arc<Mutex<Vec<u8>>>,
    _open: oneshot::Sender<()>,
) {
    let mut buffer = [0; ERRORS_BYTES_MAX];
    let mut is_in_long_line = false;
    while let Ok(count @ 1..) = errors.read(&mut buffer).await {
        let mut read = &buffer[..count];
        if is_in_long_line {
            let Some(line_end) = read.iter().position(|byte| *byte == b'\n') else { continue };
            read = &read[line_end + 1..];
            is_in_long_line = false;
        }
        let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
        end.extend(read);
        let Some(last_cut) = end.len().checked_sub(ERRORS_BYTES_MAX + 1) else { continue };
        // The line at the cut is left out as a whole.
        match end[last_cut..].iter().position(|byte| *byte == b'\n') {
            Some(line_end) => drop(end.drain(..=last_cut + line_end)),
            None => {
                end.clear();
                end.extend(LONG_LINE);
                is_in_long_line = true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
