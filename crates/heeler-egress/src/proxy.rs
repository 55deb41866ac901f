//! The proxy of one run, on a thread of its own.
//!
//! The runner's thread may wait for the disk; the agent's connections do not wait with it.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use heeler_config::EgressRules;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::api_route::ApiRoute;
use crate::decision::EgressEvent;
use crate::forwarded_address::ForwardedAddress;
use crate::gate::EgressGate;
use crate::git_route::GitRoute;
use crate::limits::EgressLimits;
use crate::network::EgressNetwork;
use crate::server::{AgentPeerCheck, ProxyContext, serve};

/// Name of the thread, for debuggers.
const THREAD_NAME: &str = "egress";

/// Settings of a proxy.
pub struct EgressOptions {
    pub is_agent: AgentPeerCheck,
    pub rules: EgressRules,
    /// Ask a person about hosts that are not listed.
    pub asks: bool,
    pub api: Option<ApiRoute>,
    pub git: Option<GitRoute>,
    /// Local addresses at ports of the agent.
    pub forwarded: Vec<ForwardedAddress>,
    /// Loopback port of the agent that leads to the socket.
    pub own_port: Option<u16>,
    pub limits: EgressLimits,
    pub network: Arc<dyn EgressNetwork>,
    /// Receives decisions and questions. Connections wait while it is full.
    pub events: mpsc::Sender<EgressEvent>,
}

/// Reason that a proxy could not be started.
#[derive(Debug, Error)]
#[error("cannot start the egress proxy")]
pub struct EgressStartError(#[from] io::Error);

/// A running proxy. It ends, with all its connections, when it is dropped.
#[derive(Debug)]
pub struct EgressProxy {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl EgressProxy {
    /// Starts to serve the connections of a listening socket.
    pub fn start(
        listener: UnixListener,
        options: EgressOptions,
    ) -> Result<EgressProxy, EgressStartError> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let EgressOptions { rules, asks, limits, network, events, forwarded, .. } = options;
        let gate = EgressGate::new(rules, asks, network, limits, events);
        let EgressOptions { is_agent, api, git, own_port, .. } = options;
        let context = Arc::new(ProxyContext { is_agent, gate, api, git, own_port });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
                let mut forwards = JoinSet::new();
                for address in forwarded {
                    forwards.spawn(address.serve(Arc::clone(&context)));
                }
                tokio::select! {
                    () = serve(listener, context) => {}
                    // A dropped sender stops it too.
                    _ = stopped => {}
                }
            });
            // A name that is still being resolved must not delay the end of the run.
            runtime.shutdown_background();
        })?;
        Ok(EgressProxy { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for EgressProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The figures of replies are complete after the thread's end. A panic was logged by then.
            drop(thread.join());
        }
    }
}
