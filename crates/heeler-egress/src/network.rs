//! Access to the network outside of the sandbox: names and connections. Tests replace it, to change
//! the answers of DNS.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use heeler_config::HostName;
use tokio::net::TcpStream;

/// Result of a network operation.
pub type NetworkFuture<'n, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'n>>;

/// Resolves names and opens connections.
pub trait EgressNetwork: Send + Sync {
    fn resolve<'n>(&'n self, host: &'n HostName) -> NetworkFuture<'n, Vec<IpAddr>>;
    /// Connects to exactly this address.
    fn connect(&self, address: SocketAddr) -> NetworkFuture<'_, TcpStream>;
}

/// The network of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemNetwork;

impl EgressNetwork for SystemNetwork {
    fn resolve<'n>(&'n self, host: &'n HostName) -> NetworkFuture<'n, Vec<IpAddr>> {
        Box::pin(async move {
            // The final dot keeps the resolver from trying the search domains of this machine.
            let name = match host.as_str().contains('.') {
                true => format!("{host}."),
                false => host.to_string(),
            };
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    fn connect(&self, address: SocketAddr) -> NetworkFuture<'_, TcpStream> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            // Small messages of TLS must not wait for each other.
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }
}
