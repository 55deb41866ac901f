//! Limits on open TCP connections: in total, and per address.
//!
//! Clients connect before they are authenticated. So one address must not take all connections, and
//! all together must not use up the file descriptors that the daemon needs.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections, if the file descriptor limit allows.
pub(crate) const WEB_CONNECTIONS_MAX: usize = 4096;

/// Most connections per remote address; loopback is not limited.
pub(crate) const CONNECTIONS_PER_ADDRESS_MAX: usize = 256;

/// Counts open connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimiter {
    permits: Arc<Semaphore>,
    counts_by_network: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl ConnectionLimiter {
    /// Creates a limiter that leaves half of the file descriptors for other uses.
    pub(crate) fn new() -> ConnectionLimiter {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // At least one, or nobody could ever connect.
        let most = usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(1, WEB_CONNECTIONS_MAX);
        ConnectionLimiter {
            permits: Arc::new(Semaphore::new(most)),
            counts_by_network: Arc::default(),
        }
    }

    /// Waits until one more connection is allowed.
    pub(crate) async fn acquire_permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Admits a connection from an address; returns `None` if the address has reached its limit.
    pub(crate) fn try_admit(
        &self,
        address: IpAddr,
        permit: OwnedSemaphorePermit,
    ) -> Option<ConnectionPermit> {
        let network = client_network(address);
        let mut counts = self.counts_by_network.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(network).or_default();
        // All clients of a proxy on this machine come from the loopback address.
        if *count >= CONNECTIONS_PER_ADDRESS_MAX && !network.is_loopback() {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { limiter: self.clone(), network, _permit: permit })
    }
}

/// Share of one connection, released when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    network: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts =
            self.limiter.counts_by_network.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.network) {
            *count -= 1;
            // Otherwise every address that ever connected would stay in the map.
            if *count == 0 {
                counts.remove(&self.network);
            }
        }
    }
}

/// Returns the unit that is limited: for IPv6 the /64 network, since one customer has very many
/// addresses.
fn client_network(address: IpAddr) -> IpAddr {
    // Mapped IPv4 addresses would all be in one /64 network.
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_address_does_not_take_the_room_of_others_and_this_machine_has_all() {
        let rooms = ConnectionLimiter {
            permits: Arc::new(Semaphore::new(1000)),
            counts_by_network: Arc::default(),
        };
        let stranger: IpAddr = "203.0.113.7".parse().unwrap();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS_PER_ADDRESS_MAX {
            held.push(rooms.try_admit(stranger, rooms.acquire_permit().await).unwrap());
        }
        assert!(rooms.try_admit(stranger, rooms.acquire_permit().await).is_none());
        assert!(
            rooms.try_admit("203.0.113.8".parse().unwrap(), rooms.acquire_permit().await).is_some()
        );
        held.pop();
        assert!(rooms.try_admit(stranger, rooms.acquire_permit().await).is_some());
        drop(held);
        assert!(rooms.counts_by_network.lock().unwrap().is_empty());
        let home: IpAddr = "127.0.0.1".parse().unwrap();
        let mut held = Vec::new();
        for _ in 0..=CONNECTIONS_PER_ADDRESS_MAX {
            held.push(rooms.try_admit(home, rooms.acquire_permit().await).unwrap());
        }
        let [one, other] = ["2001:db8::1", "2001:db8::2:1"].map(|it| it.parse().unwrap());
        assert_eq!(client_network(one), client_network(other));
    }
}
