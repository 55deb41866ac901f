//! Decisions of the proxy, as events for the runner.

use heeler_config::RequestHost;
use thiserror::Error;
use tokio::sync::watch;

/// Event of the proxy.
#[derive(Debug)]
pub enum EgressEvent {
    /// First decision of its kind about a host and port.
    Decision(EgressDecision),
    /// A person may allow a host that is not listed.
    Question(EgressQuestion),
    /// More hosts were requested than are reported.
    DecisionsOmitted,
}

/// Decision about a host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressDecision {
    pub host: String,
    pub port: u16,
    /// Reason of a denial; `None` if the host was allowed.
    pub denial: Option<DenialReason>,
}

/// Question whether a host may be reached. A dropped `reply` denies it.
#[derive(Debug)]
pub struct EgressQuestion {
    pub host: RequestHost,
    pub port: u16,
    pub reply: watch::Sender<Option<GrantScope>>,
}

/// Answer to an [`EgressQuestion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantScope {
    /// The connections that wait for the answer, or else the next one.
    Once,
    /// All connections of this run.
    Run,
    Denied,
}

/// Reason that a request was denied, with the cure.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum DenialReason {
    #[error("the host is not listed; to allow it, add it to `sandbox.network.allow`")]
    UnlistedHost,
    #[error(
        "the port is not listed; to allow it, add the host with this port to `sandbox.network.allow`"
    )]
    UnlistedPort,
    #[error(
        "an IP address is not allowed; use the host's name, or add a private address with its port to \
         `sandbox.network.allow_local`"
    )]
    IpLiteral,
    #[error("it was asked about and not allowed")]
    DeniedByPerson,
    #[error(
        "the name leads to an address of this machine or of a private network; to allow it, add the host \
         with its port to `sandbox.network.allow_local`"
    )]
    LocalAddress,
    #[error("the name leads to {0}, which is never allowed")]
    RefusedAddress(&'static str),
    #[error("the host is not a name that DNS could know")]
    MalformedHost,
    #[error("the header `Host` differs from the host of the request")]
    HostHeader,
    #[error("the tunnel's TLS server name is another host: `{0}`")]
    ServerName(String),
    #[error("the tunnel's TLS handshake names no server")]
    NoServerName,
    #[error("the tunnel's TLS handshake hides the server's name (encrypted client hello)")]
    HiddenServerName,
    #[error("the tunnel's TLS handshake is malformed")]
    MalformedHello,
    #[error("a tunnel to port 80 or 443 must carry TLS; send plain HTTP to the proxy instead")]
    NoTls,
    #[error("the API route serves only the calls that the agent program needs")]
    ApiPath,
    #[error(
        "only the repositories of `sandbox.git`, and the calls of git's own protocol, get a credential"
    )]
    GitRemote,
    #[error("the run has spent its budget")]
    Budget,
    #[error("the agent has no API route; its config says `credentials: agent`")]
    NoApiRoute,
    #[error("only the schemes `http` and, in a tunnel, `https` are supported")]
    Scheme,
}
