//! The injected servers over HTTP, for an agent that supports nothing else (`cli`), and servers of
//! the config that run outside of its sandbox.
//!
//! Other users of the machine can reach the loopback interface, so every request must carry the
//! run's token, which exists in memory only. Requests of web pages are also rejected by their
//! `Origin` and `Host` headers. Start at [`McpHttpBridge`].

use std::future::Future as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::serve::{IncomingStream, Listener};
use camino::Utf8Path;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::Value as Json;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Sleep;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::InjectedMcpServers;
use super::host_server::HostMcpServer;
use super::server::InjectedMcpServer;

/// Size limit of a request; a call names a file and does not contain it.
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Limit on concurrent connections; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// Time in which a connection must present the token; then it is closed, to make room.
const AUTH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that [`McpHttpBridge::close`] waits for calls in progress.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// Returns true for a connection of the agent.
pub(crate) type AgentConnectionCheck = dyn Fn(BorrowedFd<'_>) -> bool + Send + Sync;

/// Port of this machine, or a socket that only the agent may connect to.
type BridgeListener = Either<TcpListener, (UnixListener, Arc<AgentConnectionCheck>)>;

/// Token for the injected servers. A secret.
#[derive(Clone, PartialEq)]
pub(crate) struct McpBridgeToken(String);

impl McpBridgeToken {
    /// Generates an unguessable token.
    pub(crate) fn mint() -> McpBridgeToken {
        // Two UUIDs provide 244 random bits from the operating system.
        McpBridgeToken(format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// Returns the secret, which must never be written.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

/// Address of the injected servers, with the token.
#[derive(Clone, PartialEq)]
pub(crate) struct McpBridgeEndpoint {
    port: u16,
    token: McpBridgeToken,
}

impl McpBridgeEndpoint {
    /// Returns the URL of one server.
    pub(crate) fn url(&self, server: &str) -> String {
        format!("http://127.0.0.1:{}/{server}", self.port)
    }

    /// Returns the URL of a server that runs outside of the agent's sandbox. Names of servers can have
    /// any characters, so it is known by its number.
    pub(super) fn host_server_url(&self, index: usize) -> String {
        self.url(&host_server_path(index))
    }

    /// Returns the value of the `Authorization` header. A secret.
    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.token.secret())
    }
}

impl std::fmt::Debug for McpBridgeEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.port)
    }
}

fn host_server_path(index: usize) -> String {
    format!("on-host/{index}")
}

/// Reason that the injected servers cannot be reached.
#[derive(Debug, Error)]
#[error("cannot listen for the agent's tools")]
pub(crate) struct McpBridgeError {
    #[source]
    source: io::Error,
}

/// Injected servers on a port of the loopback interface, until it is closed or dropped.
#[derive(Debug)]
pub(crate) struct McpHttpBridge {
    endpoint: McpBridgeEndpoint,
    closing: CancellationToken,
    serving: JoinHandle<()>,
}

impl McpHttpBridge {
    /// Opens a free port. Must be called within the run's tokio runtime.
    pub(crate) async fn open(
        injected: &InjectedMcpServers,
        token: &McpBridgeToken,
    ) -> Result<McpHttpBridge, McpBridgeError> {
        McpHttpBridge::open_with_timeout(injected, token, AUTH_TIMEOUT).await
    }

    async fn open_with_timeout(
        injected: &InjectedMcpServers,
        token: &McpBridgeToken,
        stranger_wait: Duration,
    ) -> Result<McpHttpBridge, McpBridgeError> {
        let failed = |source| McpBridgeError { source };
        // Port 0 lets the system choose a free one, because runs do not know of each other.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let endpoint = McpBridgeEndpoint { port, token: token.clone() };
        Ok(McpHttpBridge::serve(injected, endpoint, Either::Left(listener), stranger_wait))
    }

    /// Listens on a unix socket, to which a sandbox forwards a loopback port of its own. Connections
    /// of other processes than `is_agent` accepts are closed. Must be called within the run's tokio
    /// runtime.
    pub(crate) fn open_socket(
        injected: &InjectedMcpServers,
        token: &McpBridgeToken,
        (socket, port): (&Utf8Path, u16),
        is_agent: Arc<AgentConnectionCheck>,
    ) -> Result<McpHttpBridge, McpBridgeError> {
        let listener = UnixListener::bind(socket).map_err(|source| McpBridgeError { source })?;
        let endpoint = McpBridgeEndpoint { port, token: token.clone() };
        let listener = Either::Right((listener, is_agent));
        Ok(McpHttpBridge::serve(injected, endpoint, listener, AUTH_TIMEOUT))
    }

    fn serve(
        injected: &InjectedMcpServers,
        endpoint: McpBridgeEndpoint,
        listener: BridgeListener,
        stranger_wait: Duration,
    ) -> McpHttpBridge {
        let closing = CancellationToken::new();
        let services = router(injected, &endpoint, &closing)
            .into_make_service_with_connect_info::<BridgeConnection>();
        let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let listener = BoundedListener { listener, free, auth_timeout: stranger_wait };
        let closed = closing.clone().cancelled_owned();
        let serving = tokio::spawn(async move {
            // The server ends only when it is closed: a failing connection ends only itself.
            let ended = axum::serve(listener, services).with_graceful_shutdown(closed).await;
            if let Err(error) = ended {
                tracing::warn!(%error, "the agent's tools are gone");
            }
        });
        McpHttpBridge { endpoint, closing, serving }
    }

    pub(crate) fn endpoint(&self) -> &McpBridgeEndpoint {
        &self.endpoint
    }

    /// Accepts no more connections and waits a moment for calls in progress.
    pub(crate) async fn close(mut self) {
        self.closing.cancel();
        // Remaining calls end with the runtime; nothing more can be done.
        drop(tokio::time::timeout(CLOSE_GRACE, &mut self.serving).await);
    }
}

impl Drop for McpHttpBridge {
    fn drop(&mut self) {
        self.closing.cancel();
        self.serving.abort();
    }
}

fn router(
    injected: &InjectedMcpServers,
    endpoint: &McpBridgeEndpoint,
    closing: &CancellationToken,
) -> Router {
    let host = format!("127.0.0.1:{}", endpoint.port);
    let config = StreamableHttpServerConfig::default()
        // No state is kept between requests, so clients need no session.
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(BODY_BYTES_MAX)
        .with_allowed_hosts([host.clone()])
        .enforce_origin_validation()
        .with_cancellation_token(closing.clone());
    let mut router = Router::new();
    for server in injected.servers() {
        let handler: InjectedMcpServer = server.clone();
        let service = StreamableHttpService::new(
            move || Ok(handler.clone()),
            Arc::new(NeverSessionManager::default()),
            config.clone(),
        );
        router = router.route_service(&format!("/{}", server.name()), service);
    }
    for (index, server) in injected.host_servers().iter().enumerate() {
        let target = HostServerRoute { server: server.clone(), host: host.clone() };
        // There is no stream of events (GET) and no session (DELETE).
        let route = post(answer_for_host_server).with_state(target);
        router = router.route(&format!("/{}", host_server_path(index)), route);
    }
    router = router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    // The layer is added last, so it runs before every route, also for unknown paths.
    router.layer(from_fn_with_state(Arc::<str>::from(endpoint.authorization()), authorize))
}

/// Server outside of the agent's sandbox, and the `Host` of requests to it.
#[derive(Clone)]
struct HostServerRoute {
    server: HostMcpServer,
    host: String,
}

/// Answers a request of MCP over HTTP without keeping state.
async fn answer_for_host_server(
    State(HostServerRoute { server, host }): State<HostServerRoute>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    // Requests of web pages, as for the other servers.
    if headers.contains_key(ORIGIN) || headers.get(HOST).is_none_or(|it| it != host.as_str()) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let Ok(message @ Json::Object(_)) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    match server.handle(&message).await {
        Some(reply) => ([(CONTENT_TYPE, "application/json")], reply.to_string()).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    }
}

async fn authorize(
    State(expected): State<Arc<str>>,
    ConnectInfo(connection): ConnectInfo<BridgeConnection>,
    request: Request,
    next: Next,
) -> Response {
    // A missing header is compared like a wrong one.
    let given = request.headers().get(AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
    if !constant_time_eq(given, expected.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    connection.is_authenticated.store(true, Ordering::Relaxed);
    next.run(request).await
}

/// Compares in constant time, so that the duration does not reveal the first difference.
fn constant_time_eq(given: &[u8], expected: &[u8]) -> bool {
    let differences = given.iter().zip(expected).fold(0, |seen, (a, b)| seen | (a ^ b));
    // The compiler must not turn the fold into a comparison that stops early.
    std::hint::black_box(differences) == 0 && given.len() == expected.len()
}

/// Listener with at most [`CONNECTIONS_MAX`] connections, so that strangers cannot exhaust the file
/// descriptors.
struct BoundedListener {
    listener: BridgeListener,
    free: Arc<Semaphore>,
    /// Time in which a connection must present the token.
    auth_timeout: Duration,
}

/// State of one connection, with the same lifetime.
#[derive(Debug, Clone)]
struct BridgeConnection {
    _permit: Arc<OwnedSemaphorePermit>,
    /// The connection has presented the token.
    is_authenticated: Arc<AtomicBool>,
}

impl Listener for BoundedListener {
    type Io = AuthDeadlineStream;
    type Addr = BridgeConnection;

    async fn accept(&mut self) -> (AuthDeadlineStream, BridgeConnection) {
        // The permit is taken first, so that a connection above the limit stays in the system's
        // queue.
        let permit = Arc::clone(&self.free).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let stream = match &mut self.listener {
            Either::Left(listener) => Either::Left(Listener::accept(listener).await.0),
            Either::Right((listener, is_agent)) => loop {
                let stream = Listener::accept(listener).await.0;
                if is_agent(stream.as_fd()) {
                    break Either::Right(stream);
                }
                tracing::warn!("a process outside of the run connected to the agent's tools");
            },
        };
        let is_known = Arc::<AtomicBool>::default();
        let patience = Box::pin(tokio::time::sleep(self.auth_timeout));
        let guarded = AuthDeadlineStream {
            stream,
            is_authenticated: Arc::clone(&is_known),
            auth_deadline: patience,
        };
        // The permit lives as long as the connection's state, which the server drops at its end.
        (guarded, BridgeConnection { _permit: Arc::new(permit), is_authenticated: is_known })
    }

    fn local_addr(&self) -> io::Result<BridgeConnection> {
        // The server never asks for the address of its listener.
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Stream that stops reading if the connection has not authenticated in time.
struct AuthDeadlineStream {
    stream: Either<TcpStream, UnixStream>,
    is_authenticated: Arc<AtomicBool>,
    auth_deadline: Pin<Box<Sleep>>,
}

impl AsyncRead for AuthDeadlineStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_stranger = !self.is_authenticated.load(Ordering::Relaxed);
        // The deadline also wakes a read that waits, because it is polled here.
        if is_stranger && self.auth_deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for AuthDeadlineStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected<IncomingStream<'_, BoundedListener>> for BridgeConnection {
    fn connect_info(stream: IncomingStream<'_, BoundedListener>) -> BridgeConnection {
        stream.remote_addr().clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::ToolNote;
    use super::super::tests::{McpFixture, call, discover, initialize, said};
    use super::*;

    /// Builds a request as text; `headers` follow those that every request has.
    fn post(server: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut text = format!(
            "POST /{server} HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        format!("{text}\r\n{body}")
    }

    /// Sends the text unchanged; returns status and body.
    async fn exchange(endpoint: &McpBridgeEndpoint, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", endpoint.port)).await.unwrap();
        // The server replies to an oversized request before it has read all of it.
        drop(stream.write_all(request.as_bytes()).await);
        let mut reply = Vec::new();
        drop(stream.read_to_end(&mut reply).await);
        let reply = String::from_utf8(reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{reply:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Sends a request as claude does.
    async fn ask(
        endpoint: &McpBridgeEndpoint,
        server: &str,
        version: &str,
        body: &Json,
    ) -> (u16, Json) {
        let headers = [
            ("host", &*format!("127.0.0.1:{}", endpoint.port)),
            ("authorization", &endpoint.authorization()),
            ("mcp-protocol-version", version),
            ("mcp-method", body["method"].as_str().unwrap()),
        ];
        let request = post(server, &headers, &body.to_string());
        let (status, body) = exchange(endpoint, &request).await;
        let parsed =
            if body.is_empty() { Json::Null } else { serde_json::from_str(&body).unwrap() };
        (status, parsed)
    }

    #[tokio::test]
    async fn claude_talks_over_http_as_it_does_in_process() {
        let place = McpFixture::new();
        let (injected, mut notes) = place.injected();
        let bridge = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let endpoint = bridge.endpoint();
        let version = "2025-11-25";
        let (status, welcome) = ask(endpoint, "heeler", version, &initialize()).await;
        assert_eq!((status, &welcome), (200, &injected.handle("heeler", initialize()).await));
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(ask(endpoint, "heeler", version, &ready).await, (202, Json::Null));
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let (status, tools) = ask(endpoint, "heeler-files", version, &list).await;
        assert_eq!((status, &tools), (200, &injected.handle("heeler-files", list).await));
        let progress = call(2, "report_progress", json!({ "message": "half way" }));
        let (status, reply) = ask(endpoint, "heeler", version, &progress).await;
        assert_eq!((status, said(&reply)), (200, ("recorded".to_owned(), false)));
        let note = ToolNote::Progress { message: "half way".to_owned(), percent: None };
        assert_eq!(notes.try_recv().unwrap(), note);
        let (status, found) = ask(endpoint, "heeler", "2026-07-28", &discover()).await;
        assert_eq!((status, &found), (200, &injected.handle("heeler", discover()).await));
        let unknown = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/steal" });
        let (status, refusal) = ask(endpoint, "heeler", version, &unknown).await;
        assert_eq!((status, refusal["error"]["code"].as_i64()), (200, Some(-32601)));
    }

    #[tokio::test]
    async fn a_request_without_the_token_is_refused_before_anything_else() {
        let place = McpFixture::new();
        let (injected, mut notes) = place.injected();
        let bridge = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let endpoint = bridge.endpoint();
        let host = format!("127.0.0.1:{}", endpoint.port);
        let right = endpoint.authorization();
        let other = McpHttpBridge::open(&injected, &McpBridgeToken::mint())
            .await
            .unwrap()
            .endpoint()
            .authorization();
        assert_ne!(right, other);
        let body = call(1, "report_progress", json!({ "message": "stolen" })).to_string();
        let longer = format!("{right}0");
        let without_scheme = endpoint.token.secret();
        for wrong in ["", "Bearer ", &other, &longer, &right[..right.len() - 1], without_scheme] {
            let headers = [("host", &*host), ("authorization", wrong)];
            let answer = exchange(endpoint, &post("heeler", &headers, &body)).await;
            assert_eq!(answer, (401, String::new()), "{wrong}");
        }
        let without = post("heeler", &[("host", &host)], &body);
        assert_eq!(exchange(endpoint, &without).await.0, 401);
        let nowhere = post("no-such-server", &[("host", &host)], &body);
        assert_eq!(exchange(endpoint, &nowhere).await.0, 401);
        assert!(notes.try_recv().is_err());
    }

    #[tokio::test]
    async fn strangers_who_say_nothing_are_shown_out_and_friends_may_stay() {
        let place = McpFixture::new();
        let (injected, _notes) = place.injected();
        let wait = Duration::from_millis(200);
        let bridge = McpHttpBridge::open_with_timeout(&injected, &McpBridgeToken::mint(), wait)
            .await
            .unwrap();
        let endpoint = bridge.endpoint();
        let host = format!("127.0.0.1:{}", endpoint.port);
        let headers = [("host", &*host), ("authorization", &endpoint.authorization())];
        let request = post("heeler", &headers, &initialize().to_string());
        let request = request.replace("connection: close", "connection: keep-alive");
        let connect = || TcpStream::connect(("127.0.0.1", endpoint.port));
        let mut friend = connect().await.unwrap();
        let mut speak = async || {
            friend.write_all(request.as_bytes()).await.unwrap();
            let mut reply = [0; 12];
            friend.read_exact(&mut reply).await.unwrap();
            assert_eq!(&reply, b"HTTP/1.1 200");
            friend.readable().await.unwrap();
            while friend.try_read(&mut [0; 4096]).is_ok() {}
        };
        speak().await;
        let mut strangers = Vec::new();
        let refused = format!("GET /heeler HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let words = ["", "POST /heeler HTTP/1.1\r\n", &refused];
        for said in words.into_iter().cycle().take(CONNECTIONS_MAX - 1) {
            let mut stranger = connect().await.unwrap();
            stranger.write_all(said.as_bytes()).await.unwrap();
            strangers.push(stranger);
        }
        // The request is served after all of them.
        let body = initialize();
        let asked = ask(endpoint, "heeler", "2025-11-25", &body);
        let (status, _) = tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap();
        assert_eq!(status, 200);
        speak().await;
        for mut stranger in strangers {
            drop(stranger.read_to_end(&mut Vec::new()).await);
        }
    }

    #[tokio::test]
    async fn a_browser_that_was_led_here_is_refused() {
        let place = McpFixture::new();
        let (injected, mut notes) = place.injected();
        let bridge = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let endpoint = bridge.endpoint();
        let (token, here) = (endpoint.authorization(), format!("127.0.0.1:{}", endpoint.port));
        let body = call(1, "report_progress", json!({ "message": "stolen" })).to_string();
        let port = endpoint.port;
        for host in
            [format!("evil.example:{port}"), "127.0.0.1:1".to_owned(), "localhost".to_owned()]
        {
            let headers = [("host", &*host), ("authorization", &token)];
            assert_eq!(exchange(endpoint, &post("heeler", &headers, &body)).await.0, 403, "{host}");
        }
        for origin in ["https://evil.example", "null", &format!("http://{here}")] {
            let headers = [("host", &*here), ("authorization", &token), ("origin", origin)];
            assert_eq!(
                exchange(endpoint, &post("heeler", &headers, &body)).await.0,
                403,
                "{origin}"
            );
        }
        assert!(notes.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_request_that_is_too_long_or_no_message_is_refused() {
        let place = McpFixture::new();
        let (injected, mut notes) = place.injected();
        let bridge = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let endpoint = bridge.endpoint();
        let (token, host) = (endpoint.authorization(), format!("127.0.0.1:{}", endpoint.port));
        let headers = [("host", &*host), ("authorization", &token)];
        let long = "x".repeat(BODY_BYTES_MAX);
        let body = call(1, "report_progress", json!({ "message": long })).to_string();
        assert_eq!(exchange(endpoint, &post("heeler", &headers, &body)).await.0, 413);
        assert_eq!(exchange(endpoint, &post("heeler", &headers, "nonsense")).await.0, 415);
        let elsewhere = post("no-such-server", &headers, &initialize().to_string());
        assert_eq!(exchange(endpoint, &elsewhere).await.0, 404);
        let get = post("heeler", &headers, "").replace("POST", "GET");
        assert_eq!(exchange(endpoint, &get).await.0, 405);
        assert!(notes.try_recv().is_err());
    }

    #[tokio::test]
    async fn many_calls_at_once_are_all_answered() {
        let place = McpFixture::new();
        let (injected, mut notes) = place.injected();
        let bridge = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let mut calls = tokio::task::JoinSet::new();
        for id in 0..(4 * CONNECTIONS_MAX as u64) {
            let endpoint = bridge.endpoint().clone();
            let body = call(id, "report_progress", json!({ "message": id.to_string() }));
            calls.spawn(async move { (id, ask(&endpoint, "heeler", "2025-11-25", &body).await) });
        }
        for _ in 0..calls.len() {
            notes.recv().await.unwrap();
        }
        while let Some(answered) = calls.join_next().await {
            let (id, (status, reply)) = answered.unwrap();
            assert_eq!((status, reply["id"].as_u64(), said(&reply).1), (200, Some(id), false));
        }
    }

    #[tokio::test]
    async fn idle_strangers_do_not_use_up_our_files() {
        let place = McpFixture::new();
        let (injected, _notes) = place.injected();
        let wait = Duration::from_secs(3600);
        let bridge = McpHttpBridge::open_with_timeout(&injected, &McpBridgeToken::mint(), wait)
            .await
            .unwrap();
        let endpoint = bridge.endpoint().clone();
        let mut strangers = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            strangers.push(TcpStream::connect(("127.0.0.1", endpoint.port)).await.unwrap());
        }
        let question = initialize();
        let mut waiting = std::pin::pin!(ask(&endpoint, "heeler", "2025-11-25", &question));
        // All other connections are accepted before this one; it waits as long as they stay open.
        for _ in 0..1_000 {
            assert!(poll_once(waiting.as_mut()).await.is_none());
            tokio::task::yield_now().await;
        }
        drop(strangers.pop());
        assert_eq!(waiting.await.0, 200);
    }

    async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match future.as_mut().poll(context) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    #[tokio::test]
    async fn a_server_on_the_host_is_behind_the_same_wall() {
        let place = McpFixture::new();
        let server = HostMcpServer::new("my shop", Arc::new(|_: &str, _: &str, _: &Json| None));
        server.fail("it is closed".to_owned());
        let injected = place.injected().0.with_host_servers([server]);
        let bridge = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let endpoint = bridge.endpoint();
        let path = host_server_path(0);
        let (status, reply) = ask(endpoint, &path, "2025-06-18", &initialize()).await;
        assert_eq!((status, &reply["error"]["message"]), (200, &json!("it is closed")));
        let notice = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(ask(endpoint, &path, "2025-06-18", &notice).await, (202, Json::Null));
        let (host, token) = (format!("127.0.0.1:{}", endpoint.port), endpoint.authorization());
        let (good, body) = (("host", &*host), initialize().to_string());
        let status = |headers: Vec<(&'static str, String)>, body: String| {
            let path = path.clone();
            async move {
                let headers: Vec<(&str, &str)> =
                    headers.iter().map(|(name, value)| (*name, &**value)).collect();
                exchange(endpoint, &post(&path, &headers, &body)).await.0
            }
        };
        let with = |name: &'static str, value: &str| (name, value.to_owned());
        let (good, token) = (with(good.0, good.1), with("authorization", &token));
        assert_eq!(status(vec![good.clone()], body.clone()).await, 401);
        let page = with("origin", "http://evil.example");
        assert_eq!(status(vec![good.clone(), token.clone(), page], body.clone()).await, 403);
        let rebound = with("host", "evil.example");
        assert_eq!(status(vec![rebound, token.clone()], body.clone()).await, 403);
        for bad in ["[]", "{", "1", ""] {
            assert_eq!(status(vec![good.clone(), token.clone()], bad.to_owned()).await, 400);
        }
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(BODY_BYTES_MAX));
        assert_eq!(status(vec![good.clone(), token.clone()], long).await, 413);
        let elsewhere = host_server_path(1);
        assert_eq!(ask(endpoint, &elsewhere, "2025-06-18", &initialize()).await.0, 404);
    }

    #[tokio::test]
    async fn a_socket_serves_the_agent_only() {
        let place = McpFixture::new();
        let (injected, _notes) = place.injected();
        for (is_agent, served) in [(true, true), (false, false)] {
            let socket = place.root().join(format!("m{served}"));
            let token = McpBridgeToken::mint();
            let check = Arc::new(move |_: BorrowedFd<'_>| is_agent);
            let bridge =
                McpHttpBridge::open_socket(&injected, &token, (&socket, 3129), check).unwrap();
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            let token = bridge.endpoint().authorization();
            let headers = [("host", "127.0.0.1:3129"), ("authorization", &token)];
            let request = post("heeler", &headers, &initialize().to_string());
            drop(stream.write_all(request.as_bytes()).await);
            let mut reply = Vec::new();
            drop(stream.read_to_end(&mut reply).await);
            assert_eq!(reply.starts_with(b"HTTP/1.1 200"), served, "{reply:?}");
        }
    }

    #[tokio::test]
    async fn a_closed_bridge_takes_no_connection() {
        let place = McpFixture::new();
        let (injected, _notes) = place.injected();
        let bridge = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let port = bridge.endpoint().port;
        let _idle = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        bridge.close().await;
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
        let dropped = McpHttpBridge::open(&injected, &McpBridgeToken::mint()).await.unwrap();
        let port = dropped.endpoint().port;
        drop(dropped);
        while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn only_the_same_bytes_are_the_same() {
        assert!(constant_time_eq(b"Bearer abc", b"Bearer abc"));
        for given in [&b""[..], b"Bearer abd", b"Bearer ab", b"Bearer abcd", b"bearer abc"] {
            assert!(!constant_time_eq(given, b"Bearer abc"));
        }
    }
}
