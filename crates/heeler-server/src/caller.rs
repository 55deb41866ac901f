//! Caller of a request: identity, scope and connection.

use std::net::SocketAddr;

use heeler_engine::{Caller, IdempotencyKey, PeerIdentity};
pub(crate) use heeler_model::AccessScope;

/// Identity behind a request, with its permissions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestCaller {
    /// Name for records and log lines.
    pub(crate) name: String,
    pub(crate) scope: AccessScope,
    /// Person or run behind the request. It is determined only for requests that change state; for
    /// others it is unknown, and an unknown caller may change nothing.
    pub(crate) engine_caller: Caller,
    /// Expected CSRF token; `None` if the caller is not a browser.
    pub(crate) csrf_token: Option<String>,
}

/// Caller of a change, and the idempotency key of the request. A request whose key was already used
/// gets the first reply and does not reach the handler.
#[derive(Debug)]
pub(crate) struct KeyedCaller {
    pub(crate) caller: RequestCaller,
    pub(crate) key: Option<IdempotencyKey>,
}

/// Process at the other end of a connection of the unix socket.
#[derive(Debug, Clone)]
pub(crate) struct SocketPeer {
    /// Login name of its user.
    pub(crate) user_name: String,
    pub(crate) identity: PeerIdentity,
}

/// Both ends of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TcpPeer {
    /// Address of the client.
    pub(crate) address: SocketAddr,
    /// Address of this end.
    pub(crate) local: SocketAddr,
}
