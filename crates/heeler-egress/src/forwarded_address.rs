//! Local addresses that the agent reaches at a port of its own loopback interface.
//!
//! Each has a socket of its own, so that programs need to know nothing of the proxy. Start at
//! [`ForwardedAddress`].

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;

use heeler_config::LocalAddress;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::meter::ActivityMeter;
use crate::relay::pump;
use crate::server::{ACCEPT_PAUSE, ProxyContext};

/// Socket of a run that leads to one local address, which the rules must allow.
#[derive(Debug)]
pub struct ForwardedAddress {
    pub listener: StdUnixListener,
    pub address: LocalAddress,
}

impl ForwardedAddress {
    /// Serves connections until it is cancelled.
    pub(crate) async fn serve(self, context: Arc<ProxyContext>) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(self.listener)?;
        let (address, slots) =
            (Arc::new(self.address), Arc::new(Semaphore::new(context.gate.limits.connections_max)));
        // The connections end with this function.
        let mut connections = JoinSet::new();
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return Ok(()) };
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) if !(context.is_agent)(stream.as_fd()) => {
                    tracing::warn!("a process that is not of this run was refused");
                }
                Ok((stream, _)) => {
                    let (context, address) = (Arc::clone(&context), Arc::clone(&address));
                    connections.spawn(relay(stream, address, context, slot));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of the agent could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Connects the agent to the address. A connection that is not made is closed, which the agent sees.
async fn relay(
    agent: UnixStream,
    address: Arc<LocalAddress>,
    context: Arc<ProxyContext>,
    _slot: OwnedSemaphorePermit,
) {
    let (gate, meter) = (&context.gate, ActivityMeter::default());
    let Ok(server) = gate.connect(&address.host, address.port.get(), &meter).await else { return };
    let transfer = async {
        drop(tokio::try_join!(pump(&agent, &server, &meter), pump(&server, &agent, &meter)));
    };
    tokio::select! {
        () = transfer => {}
        () = meter.wait_idle(gate.limits.idle_time_max) => {}
    }
}
