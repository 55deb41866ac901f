//! The injected servers over HTTP, for an agent that can only be reached so (`cli`).
//!
//! Other users of the machine can reach the loopback interface: every request must carry the run's
//! token, which is made here and lives in memory only. A page in a browser is kept out besides by its
//! `Origin` and by the `Host` that it names. Start at [`Bridge`].

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::serve::{IncomingStream, Listener};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Injected;
use super::server::Server;

/// The longest request; a call names a file, it does not hold it.
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// How many connections there are at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// How long [`Bridge::close`] waits for calls that are being answered.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// The address of the injected servers, with the right to use them.
#[derive(Clone, PartialEq)]
pub(crate) struct Endpoint {
    port: u16,
    token: String,
}

impl Endpoint {
    /// Returns the address of one server.
    pub(crate) fn url(&self, server: &str) -> String {
        format!("http://127.0.0.1:{}/{server}", self.port)
    }

    /// Returns the header `Authorization` that opens the servers. A secret.
    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// Returns what must never be written.
    pub(crate) fn secret(&self) -> &str {
        &self.token
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.port)
    }
}

/// Why the injected servers cannot be reached.
#[derive(Debug, Error)]
#[error("cannot listen on the loopback interface for the agent's tools")]
pub(crate) struct BridgeError {
    #[source]
    source: io::Error,
}

/// The injected servers on a port of the loopback interface, until it is closed or dropped.
#[derive(Debug)]
pub(crate) struct Bridge {
    endpoint: Endpoint,
    closing: CancellationToken,
    serving: JoinHandle<()>,
}

impl Bridge {
    /// Opens a free port; needs the runtime of the run.
    pub(crate) async fn open(injected: &Injected) -> Result<Bridge, BridgeError> {
        let failed = |source| BridgeError { source };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        // Two of them, for 244 random bits of the operating system.
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let endpoint = Endpoint { port, token };
        let closing = CancellationToken::new();
        let services = router(injected, &endpoint, &closing)
            .into_make_service_with_connect_info::<Connection>();
        let listener = Bounded { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
        let closed = closing.clone().cancelled_owned();
        let serving = tokio::spawn(async move {
            // It ends only when it is closed: what goes wrong with a connection ends that connection.
            let ended = axum::serve(listener, services).with_graceful_shutdown(closed).await;
            if let Err(error) = ended {
                tracing::warn!(%error, "the agent's tools are gone");
            }
        });
        Ok(Bridge { endpoint, closing, serving })
    }

    /// Returns the address.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Takes no more connections and waits a moment for the calls that are being answered.
    pub(crate) async fn close(mut self) {
        self.closing.cancel();
        // Whatever is left ends with the runtime; there is nothing to do about it.
        drop(tokio::time::timeout(CLOSE_GRACE, &mut self.serving).await);
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.closing.cancel();
        self.serving.abort();
    }
}

fn router(injected: &Injected, endpoint: &Endpoint, closing: &CancellationToken) -> Router {
    let host = format!("127.0.0.1:{}", endpoint.port);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(BODY_BYTES_MAX)
        .with_allowed_hosts([host])
        .enforce_origin_validation()
        .with_cancellation_token(closing.clone());
    let mut router = Router::new();
    for server in injected.servers() {
        let handler: Server = server.clone();
        let service = StreamableHttpService::new(
            move || Ok(handler.clone()),
            Arc::new(NeverSessionManager::default()),
            config.clone(),
        );
        router = router.route_service(&format!("/{}", server.name()), service);
    }
    router.layer(from_fn_with_state(Arc::<str>::from(endpoint.authorization()), authorize))
}

async fn authorize(State(expected): State<Arc<str>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
    if !same(given, expected.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    next.run(request).await
}

/// Compares in a time that does not tell where the first difference is.
fn same(given: &[u8], expected: &[u8]) -> bool {
    let differences = given.iter().zip(expected).fold(0, |seen, (a, b)| seen | (a ^ b));
    std::hint::black_box(differences) == 0 && given.len() == expected.len()
}

/// A listener that has at most [`CONNECTIONS_MAX`] connections: a stranger cannot use up our files.
struct Bounded {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

/// One of the connections; it lives as long as the connection does.
#[derive(Debug, Clone)]
struct Connection(#[expect(dead_code, reason = "held, not read")] Arc<OwnedSemaphorePermit>);

impl Listener for Bounded {
    type Io = TcpStream;
    type Addr = Connection;

    async fn accept(&mut self) -> (TcpStream, Connection) {
        let permit = Arc::clone(&self.free).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let (stream, _) = Listener::accept(&mut self.listener).await;
        (stream, Connection(Arc::new(permit)))
    }

    fn local_addr(&self) -> io::Result<Connection> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Connection {
        stream.remote_addr().clone()
    }
}
