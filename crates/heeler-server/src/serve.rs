//! Accepts and serves connections: permissions, limits and shutdown. Start at [`serve`].

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::middleware::from_fn_with_state;
use heeler_engine::PeerIdentity;
use heeler_process::SocketPeerProcess;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::agent_connections::{AgentConnectionLimiter, AgentConnectionPermit};
use crate::caller::TcpPeer;
use crate::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use crate::live_streams::WriteTimeoutStream;
use crate::peer_identification::PeerIdentification;
use crate::reply_redaction::redact_reply;
use crate::server_state::SharedServerState;
use crate::{access, api, dashboard, internal, metrics, webhooks};

/// Most connections of people on the unix socket; further ones wait.
pub(crate) const CONNECTIONS_MAX: usize = 256;

/// Size limit of a request head, approximately, and of the buffered part of a body.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Longest silence between two requests of a connection.
const IDLE_WAIT: Duration = Duration::from_secs(30);

/// Time that pending requests get when the server stops.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// Time that connections stay open when the server stops. A command that arrives then is answered
/// with "not executed", which a closed connection would not tell.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Pause after a failed accept, for example when file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Time to wait for the first connection of a daemon that was started for a client.
const EXPECTED_CONNECTION_WAIT: Duration = Duration::from_secs(5);

/// Counter of open connections. A daemon that exits when idle is not idle while one is open.
#[derive(Debug, Clone)]
pub struct ConnectionCounter {
    open: Arc<AtomicUsize>,
    /// A connection that has not arrived yet is already counted.
    is_expected: Arc<AtomicBool>,
    permits: Arc<Semaphore>,
    agents: AgentConnectionLimiter,
}

impl Default for ConnectionCounter {
    fn default() -> ConnectionCounter {
        let permit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        ConnectionCounter {
            open: Arc::default(),
            is_expected: Arc::default(),
            permits: permit,
            agents: AgentConnectionLimiter::default(),
        }
    }
}

impl ConnectionCounter {
    /// Returns the live number of open connections.
    pub fn open(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    /// Counts an accepted connection.
    fn count(&self) -> CountedConnection {
        // An expected connection is counted already.
        if !self.is_expected.swap(false, Ordering::SeqCst) {
            self.open.fetch_add(1, Ordering::SeqCst);
        }
        CountedConnection(self.open())
    }

    /// Waits until one more connection of a person is allowed; returns `None` if an agent has too
    /// many.
    async fn admit(&self, peer: PeerIdentity) -> Option<SocketPermit> {
        if peer.is_untrusted() {
            return self.agents.try_admit(peer.runner()).map(SocketPermit::Agent);
        }
        let permits = Arc::clone(&self.permits);
        let permit = permits.acquire_owned().await.expect("the semaphore is never closed");
        Some(SocketPermit::Person(permit))
    }

    /// Creates a counter that already counts one expected connection, so that a daemon started for
    /// a client does not exit before the client connects. It is expected for a few seconds.
    pub fn with_expected_connection() -> ConnectionCounter {
        let connections = ConnectionCounter::default();
        connections.open.fetch_add(1, Ordering::SeqCst);
        connections.is_expected.store(true, Ordering::SeqCst);
        connections
    }

    /// Stops to count an expected connection that did not arrive.
    async fn expire_expected(&self) {
        tokio::time::sleep(EXPECTED_CONNECTION_WAIT).await;
        if self.is_expected.swap(false, Ordering::SeqCst) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Open connection, counted until it is dropped.
struct CountedConnection(Arc<AtomicUsize>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Share of a connection in the limits of the unix socket, held while the connection is open.
#[expect(dead_code, reason = "permits act when they are dropped")]
enum SocketPermit {
    Agent(AgentConnectionPermit),
    Person(OwnedSemaphorePermit),
}

/// Listeners of a daemon.
#[derive(Debug)]
pub struct DaemonListeners {
    /// Unix socket for Heeler's own command line.
    pub socket: UnixListener,
    /// TCP listener of the API and the dashboard, if they are served.
    pub web: Option<TcpListener>,
}

/// Serves until `stop`; pending requests then get a few seconds.
pub async fn serve(
    listeners: DaemonListeners,
    app: SharedServerState,
    connections: &ConnectionCounter,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let DaemonListeners { socket, web } = listeners;
    let (ending, ended) = watch::channel(false);
    let mut open = JoinSet::new();
    // A set of its own: the shutdown does not wait for this timer, and its drop ends the timer.
    let mut expecting = JoinSet::new();
    let expected = connections.clone();
    expecting.spawn(async move { expected.expire_expected().await });
    let commands = command_router(&app).with_state(Arc::clone(&app));
    let on_socket = Arc::new(LazyRouter::new(&app, socket_router));
    let on_web = Arc::new(LazyRouter::new(&app, web_router));
    let identification = PeerIdentification::new();
    let rooms = ConnectionLimiter::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        // Finished tasks are removed here, or the set would grow with every connection.
        while open.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = accept_socket(&socket) => accepted.map(AcceptedConnection::Socket),
            accepted = accept_web(web.as_ref()) => accepted.map(AcceptedConnection::Web),
        };
        let ended = ended.clone();
        match accepted {
            Ok(AcceptedConnection::Socket((stream, process))) => {
                // Agents that have reached a limit are disconnected.
                let Some(peer) = identification.admit(process) else { continue };
                let counted = connections.count();
                let (commands, others) = (commands.clone(), Arc::clone(&on_socket));
                let router = move |path: &str| match path.starts_with(internal::PREFIX) {
                    true => commands.clone(),
                    false => others.router(),
                };
                let (identification, connections) = (identification.clone(), connections.clone());
                open.spawn(async move {
                    let _counted = counted;
                    let peer = identification.identify(peer).await;
                    let Some(_permit) = connections.admit(peer.identity).await else { return };
                    serve_connection(stream, router, peer, None, ended).await;
                });
            }
            Ok(AcceptedConnection::Web(stream)) => {
                let routes = Arc::clone(&on_web);
                let (Ok(address), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
                    // The client is gone already.
                    continue;
                };
                // An address that has reached its limit is disconnected.
                let Some(permit) = rooms.try_admit(address.ip()) else { continue };
                open.spawn(async move {
                    let peer = TcpPeer { address, local };
                    let router = move |_: &str| routes.router();
                    serve_connection(stream, router, peer, Some(permit), ended).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // A client must not be accepted by a daemon that will not serve it.
    drop((socket, web));
    // Streams do not end by themselves, and would use up the time for pending requests.
    app.live_streams.end_all();
    let all = async |open: &mut JoinSet<()>| while open.join_next().await.is_some() {};
    if tokio::time::timeout(CLOSE_GRACE, all(&mut open)).await.is_ok() {
        return Ok(());
    }
    ending.send_replace(true);
    if tokio::time::timeout(DRAIN_WAIT, all(&mut open)).await.is_err() {
        tracing::warn!("{} connections were cut off", open.len());
    }
    Ok(())
}

/// Accepted connection of an allowed client.
enum AcceptedConnection {
    Socket((UnixStream, SocketPeerProcess)),
    Web(TcpStream),
}

/// Accepts the next connection of the same user or root.
async fn accept_socket(listener: &UnixListener) -> io::Result<(UnixStream, SocketPeerProcess)> {
    loop {
        let (stream, _) = listener.accept().await?;
        // A process that has ended since cannot be asked who it was.
        let Ok(peer) = SocketPeerProcess::of(&stream) else { continue };
        if is_allowed_user(peer.user, rustix::process::geteuid().as_raw()) {
            return Ok((stream, peer));
        }
        tracing::warn!("user {} may not connect to this daemon", peer.user);
    }
}

/// Accepts the next TCP connection; each request is authenticated later.
async fn accept_web(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    // Without a listener this never completes, and the other branches of the caller decide.
    let Some(listener) = listener else { return std::future::pending().await };
    let (stream, _) = listener.accept().await?;
    // Events are small and must be sent at once.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Routes that are built for the first request. Most daemons that a command starts get commands only, and
/// the API with its description takes longer to build than the rest of the daemon.
struct LazyRouter {
    app: SharedServerState,
    build: fn(&SharedServerState) -> Router<SharedServerState>,
    built: OnceLock<Router>,
}

impl LazyRouter {
    fn new(
        app: &SharedServerState,
        build: fn(&SharedServerState) -> Router<SharedServerState>,
    ) -> LazyRouter {
        LazyRouter { app: Arc::clone(app), build, built: OnceLock::new() }
    }

    fn router(&self) -> Router {
        let build = || (self.build)(&self.app).with_state(Arc::clone(&self.app));
        self.built.get_or_init(build).clone()
    }
}

/// Returns the routes of the unix socket for commands.
fn command_router(app: &SharedServerState) -> Router<SharedServerState> {
    for_socket_callers(internal::router(), app)
}

/// Returns the other routes of the unix socket.
fn socket_router(app: &SharedServerState) -> Router<SharedServerState> {
    for_socket_callers(common_routes(app), app)
}

/// Identifies and counts the callers of the unix socket.
fn for_socket_callers(
    router: Router<SharedServerState>,
    app: &SharedServerState,
) -> Router<SharedServerState> {
    let identify = from_fn_with_state(Arc::clone(app), access::identify_socket_caller);
    let router = router.fallback(dashboard::not_found).layer(identify);
    router.layer(from_fn_with_state(Arc::clone(&app.metrics), metrics::count_request))
}

/// Returns the routes of TCP.
pub(crate) fn web_router(app: &SharedServerState) -> Router<SharedServerState> {
    access::with_access_control(common_routes(app).fallback(dashboard::not_found), app)
}

fn common_routes(app: &SharedServerState) -> Router<SharedServerState> {
    let routes =
        api::router().merge(webhooks::router()).merge(metrics::router()).merge(dashboard::router());
    routes.layer(from_fn_with_state(Arc::clone(app), redact_reply))
}

/// Returns true if a user may control the daemon: only its own user and root.
fn is_allowed_user(peer: u32, own_user: u32) -> bool {
    peer == own_user || peer == 0
}

/// Serves one connection with the router of each request's path; `who` is attached to each request. A
/// connection with a permit is closed if another one needs its room.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: impl Fn(&str) -> Router,
    who: impl Clone + Send + Sync + 'static,
    permit: Option<ConnectionPermit>,
    mut ended: watch::Receiver<bool>,
) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(IDLE_WAIT).max_buf_size(HEAD_BYTES_MAX);
    let requests = permit.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(who.clone());
        let active = requests.as_ref().map(ConnectionPermit::begin_request);
        let router = TowerToHyperService::new(router(request.uri().path()));
        let reply = router.call(request);
        async move {
            let reply = reply.await?;
            Ok::<_, Infallible>(match active {
                Some(active) => active.until_sent(reply),
                None => reply,
            })
        }
    });
    let evicted = async move {
        match permit {
            Some(permit) => permit.evicted().await,
            None => std::future::pending().await,
        }
    };
    let mut connection = std::pin::pin!(
        server.serve_connection(TokioIo::new(WriteTimeoutStream::new(stream)), service)
    );
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = evicted => return,
        () = async { drop(ended.wait_for(|ended| *ended).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection was cut off");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_one_that_a_daemon_was_started_for_counts_until_it_comes_or_for_a_while() {
        let (come, late) = (
            ConnectionCounter::with_expected_connection(),
            ConnectionCounter::with_expected_connection(),
        );
        let open = |connections: &ConnectionCounter| connections.open().load(Ordering::SeqCst);
        let counted = come.count();
        assert_eq!(open(&come), 1, "it is the one that was expected");
        let second = come.count();
        assert_eq!(open(&come), 2);
        drop((counted, second));
        assert_eq!((open(&come), open(&late)), (0, 1));
        tokio::join!(come.expire_expected(), late.expire_expected());
        assert_eq!((open(&come), open(&late)), (0, 0));
    }

    /// Returns the time until a connection ends on which only `sent` arrives, one byte at a time.
    async fn ends_after(sent: &'static [u8]) -> Duration {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (_ending, ended) = watch::channel(false);
        let begun = tokio::time::Instant::now();
        let sending = async {
            for byte in sent {
                tokio::time::sleep(Duration::from_secs(5)).await;
                // The connection may be closed already.
                drop(client.write_all(&[*byte]).await);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = serve_connection(server, |_: &str| Router::new(), (), None, ended) => {}
            () = sending => {}
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_says_nothing_or_says_it_slowly_is_hung_up_on() {
        // The paused clock advances only through waits, so this is exact.
        assert_eq!(ends_after(b"").await, IDLE_WAIT);
        let drip = b"GET / HTTP/1.1\r\nhost: x\r\nx: y\r\nx: y\r\nx: y\r\nx: y\r\n";
        assert!(ends_after(drip).await <= IDLE_WAIT + Duration::from_secs(5));
    }

    #[test]
    fn only_the_same_user_and_root_may_steer_a_daemon() {
        assert!(is_allowed_user(1000, 1000));
        assert!(is_allowed_user(0, 1000));
        assert!(!is_allowed_user(1001, 1000));
        assert!(!is_allowed_user(1000, 0));
    }
}
