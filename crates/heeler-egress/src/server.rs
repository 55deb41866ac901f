//! Connections of the agent: acceptance, protocol and limits.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::api_route::ApiRoute;
use crate::forward::serve_http;
use crate::gate::EgressGate;
use crate::git_route::GitRoute;
use crate::meter::{ActivityMeter, AgentStream};
use crate::socks::{self, serve_socks};

/// Pause after a connection could not be accepted, for example because no file descriptor was free.
pub(crate) const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Returns true if a connection comes from the agent of the run. Other processes of the user can
/// open the socket too, and would spend the agent's money.
pub type AgentPeerCheck = Arc<dyn Fn(BorrowedFd<'_>) -> bool + Send + Sync>;

/// Parts that all connections of a run share.
pub(crate) struct ProxyContext {
    pub(crate) is_agent: AgentPeerCheck,
    pub(crate) gate: EgressGate,
    pub(crate) api: Option<ApiRoute>,
    pub(crate) git: Option<GitRoute>,
    /// Loopback port of the agent that leads here.
    pub(crate) own_port: Option<u16>,
}

/// Serves connections until it is cancelled.
pub(crate) async fn serve(listener: UnixListener, context: Arc<ProxyContext>) {
    let slots = Arc::new(Semaphore::new(context.gate.limits.connections_max));
    // The connections end with this function.
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) if !(context.is_agent)(stream.as_fd()) => {
                tracing::warn!("a process that is not of this run was refused");
            }
            Ok((stream, _)) => {
                connections.spawn(serve_connection(stream, Arc::clone(&context), slot));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of the agent could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(
    mut stream: UnixStream,
    context: Arc<ProxyContext>,
    _slot: OwnedSemaphorePermit,
) {
    let limits = &context.gate.limits;
    let meter = ActivityMeter::default();
    let work = async {
        let Ok(Ok(first)) = timeout(limits.head_time_max, stream.read_u8()).await else { return };
        match first {
            socks::VERSION => serve_socks(stream, &context.gate, &meter).await,
            _ => {
                let agent = AgentStream::new(first, stream, meter.clone());
                serve_http(agent, &context, &meter).await;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = meter.wait_idle(limits.idle_time_max) => {}
    }
}
