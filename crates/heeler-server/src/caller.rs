//! Who asks, and what they may.

use std::net::SocketAddr;

use heeler_engine::Origin;

/// What somebody may do; each includes what comes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Look at everything but secrets.
    Read,
    /// Also start, steer and answer.
    Operate,
    /// Also change who may do what, and end the daemon.
    Admin,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Caller {
    /// Their name, for the record.
    pub(crate) by: String,
    /// What they may.
    pub(crate) scope: Scope,
    /// Whether a process of a run asks.
    pub(crate) origin: Origin,
}

/// The other end of a connection over TCP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Peer {
    /// Its address.
    pub(crate) address: SocketAddr,
    /// Ours.
    pub(crate) local: SocketAddr,
}
