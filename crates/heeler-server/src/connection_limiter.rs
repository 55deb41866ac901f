//! Limits on open TCP connections: in total, and per address.
//!
//! Clients connect before they are authenticated. So one address must not take all connections, and
//! all together must not use up the file descriptors that the daemon needs. At a limit, the
//! connection that has been idle for longest is closed in favour of the new one, so that idle
//! connections cannot lock out other clients. Start at [`ConnectionLimiter`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

/// Most connections, if the file descriptor limit allows.
pub(crate) const WEB_CONNECTIONS_MAX: usize = 4096;

/// Most connections per remote address.
pub(crate) const CONNECTIONS_PER_ADDRESS_MAX: usize = 256;

/// Most connections from this machine. It is larger, because all clients of a proxy on this machine
/// come from the loopback address.
pub(crate) const LOCAL_CONNECTIONS_MAX: usize = 2048;

/// Counts open connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimiter {
    total_max: usize,
    open: Arc<Mutex<OpenConnections>>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// Grows with each change, so it orders them in time.
    clock: u64,
    connections: HashMap<u64, OpenConnection>,
    counts_by_network: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct OpenConnection {
    network: IpAddr,
    /// Number of requests that are being answered.
    requests: usize,
    /// Time of the last change.
    changed: u64,
    close: Arc<Notify>,
}

impl OpenConnections {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn count(&self, network: IpAddr) -> usize {
        self.counts_by_network.get(&network).copied().unwrap_or_default()
    }

    /// Closes the connection that has been idle for longest; returns false if none is idle.
    fn evict_idle(&mut self, is_candidate: impl Fn(&OpenConnection) -> bool) -> bool {
        let idle = self.connections.iter().filter(|(_, it)| it.requests == 0 && is_candidate(it));
        let Some(id) = idle.min_by_key(|(_, it)| it.changed).map(|(id, _)| *id) else {
            return false;
        };
        if let Some(evicted) = self.remove(id) {
            evicted.close.notify_one();
        }
        true
    }

    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        let removed = self.connections.remove(&id)?;
        if let Some(count) = self.counts_by_network.get_mut(&removed.network) {
            *count -= 1;
            // Otherwise every address that ever connected would stay in the map.
            if *count == 0 {
                self.counts_by_network.remove(&removed.network);
            }
        }
        Some(removed)
    }
}

impl ConnectionLimiter {
    /// Creates a limiter that leaves half of the file descriptors for other uses.
    pub(crate) fn new() -> ConnectionLimiter {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // At least one, or nobody could ever connect.
        let most = usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(1, WEB_CONNECTIONS_MAX);
        ConnectionLimiter { total_max: most, open: Arc::default() }
    }

    /// Admits a connection from an address, if necessary in place of an idle one. Returns `None` if
    /// a limit is reached and no connection is idle.
    pub(crate) fn try_admit(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let network = client_network(address);
        let most = match network.is_loopback() {
            // This machine never gets all connections, or others could not connect.
            true => LOCAL_CONNECTIONS_MAX.min(self.total_max.div_ceil(2)),
            false => CONNECTIONS_PER_ADDRESS_MAX,
        };
        let mut open = self.lock();
        if open.count(network) >= most && !open.evict_idle(|it| it.network == network) {
            return None;
        }
        if open.connections.len() >= self.total_max && !open.evict_idle(|_| true) {
            return None;
        }
        let (id, close) = (open.tick(), Arc::new(Notify::new()));
        let connection =
            OpenConnection { network, requests: 0, changed: id, close: Arc::clone(&close) };
        open.connections.insert(id, connection);
        *open.counts_by_network.entry(network).or_default() += 1;
        drop(open);
        Some(ConnectionPermit(Arc::new(ConnectionShare { limiter: self.clone(), id, close })))
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Share of one connection, released when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionPermit(Arc<ConnectionShare>);

#[derive(Debug)]
struct ConnectionShare {
    limiter: ConnectionLimiter,
    id: u64,
    close: Arc<Notify>,
}

impl Drop for ConnectionShare {
    fn drop(&mut self) {
        self.limiter.lock().remove(self.id);
    }
}

impl ConnectionPermit {
    /// Waits until the connection must be closed.
    pub(crate) async fn evicted(&self) {
        self.0.close.notified().await;
    }

    /// Counts a request until the result is dropped. The connection is not idle meanwhile.
    pub(crate) fn begin_request(&self) -> ActiveRequest {
        self.change_requests(|requests| requests + 1);
        ActiveRequest(self.clone())
    }

    fn change_requests(&self, change: impl Fn(usize) -> usize) {
        let mut open = self.0.limiter.lock();
        let now = open.tick();
        if let Some(connection) = open.connections.get_mut(&self.0.id) {
            connection.requests = change(connection.requests);
            connection.changed = now;
        }
    }
}

/// Request that is being answered.
#[derive(Debug)]
pub(crate) struct ActiveRequest(ConnectionPermit);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.change_requests(|requests| requests.saturating_sub(1));
    }
}

impl ActiveRequest {
    /// Counts the request until the body of its reply is sent.
    pub(crate) fn until_sent(self, response: Response) -> Response {
        response.map(|body| Body::new(TrackedBody { body, _request: self }))
    }
}

/// Body of a reply that keeps its connection from being idle.
struct TrackedBody {
    body: Body,
    _request: ActiveRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the unit that is limited: for IPv6 the /64 network, since one customer has very many
/// addresses.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
    // Mapped IPv4 addresses would all be in one /64 network.
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        // All of 127.0.0.0/8 is this machine.
        address if address.is_loopback() => IpAddr::from([127, 0, 0, 1]),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn limiter(total_max: usize) -> ConnectionLimiter {
        ConnectionLimiter { total_max, open: Arc::default() }
    }

    fn is_closed(permit: &ConnectionPermit) -> bool {
        permit.evicted().now_or_never().is_some()
    }

    #[test]
    fn one_address_does_not_take_the_room_of_others() {
        let rooms = limiter(1000);
        let [stranger, other]: [IpAddr; 2] =
            ["203.0.113.7", "203.0.113.8"].map(|it| it.parse().unwrap());
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS_PER_ADDRESS_MAX {
            let permit = rooms.try_admit(stranger).unwrap();
            held.push((permit.begin_request(), permit));
        }
        assert!(rooms.try_admit(stranger).is_none(), "none of its connections is idle");
        assert!(rooms.try_admit(other).is_some());
        held.pop();
        assert!(rooms.try_admit(stranger).is_some());
        drop(held);
        assert!(rooms.lock().counts_by_network.is_empty());
        let [one, other] = ["2001:db8::1", "2001:db8::2:1"].map(|it| it.parse().unwrap());
        assert_eq!(client_network(one), client_network(other));
        let local = ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.9"];
        assert!(local.iter().all(|it| client_network(it.parse().unwrap()).is_loopback()));
    }

    #[test]
    fn the_connection_that_was_idle_for_longest_makes_room() {
        let rooms = limiter(6);
        let home: IpAddr = "127.0.0.1".parse().unwrap();
        let [first, second, third] = [(); 3].map(|()| rooms.try_admit(home).unwrap());
        drop(first.begin_request());
        let stream = second.begin_request();
        let fourth = rooms.try_admit(home).unwrap();
        assert_eq!([&first, &second, &third, &fourth].map(is_closed), [false, false, true, false]);
        drop(stream);
        let fifth = rooms.try_admit(home).unwrap();
        assert_eq!([&first, &second, &fifth].map(is_closed), [true, false, false]);
        let far = [7, 8, 9].map(|last| IpAddr::from([203, 0, 113, last]));
        let far = far.map(|address| rooms.try_admit(address).unwrap());
        let busy: Vec<_> = far.iter().map(ConnectionPermit::begin_request).collect();
        let last = rooms.try_admit([203, 0, 113, 10].into()).unwrap();
        assert_eq!([&fourth, &fifth, &last].map(is_closed), [true, false, false]);
        drop(busy);
    }
}
