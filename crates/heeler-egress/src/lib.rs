//! The network of a sandboxed run.
//!
//! A sandboxed agent has no network. One unix socket leads to this proxy, which runs in the runner's
//! process, outside of the sandbox. It speaks HTTP (`CONNECT` and absolute URLs) and SOCKS5, allows only
//! the hosts of its rules, resolves names itself and connects to the address that it has checked.
//! Requests without a host go to the agent's API: the proxy adds the credentials, which the agent does
//! not have, and counts the tokens of the replies. Those for configured git remotes go there, also with
//! a credential that the agent does not have.
//!
//! The crate writes no files and knows no rows. Its decisions are events. Start at [`EgressProxy`].

mod api_protocol;
mod api_route;
mod body;
mod client_hello;
mod decision;
mod forward;
mod forwarded_address;
mod gate;
mod git_route;
mod limits;
mod meter;
mod network;
mod passing;
mod price;
mod proxy;
mod relay;
mod reply_figures;
mod reply_usage;
mod server;
mod socks;
mod tunnel;
mod upstream;
mod usage;

pub use api_route::{ApiCredentials, ApiRoute};
pub use decision::{DenialReason, EgressDecision, EgressEvent, EgressQuestion, GrantScope};
pub use forwarded_address::ForwardedAddress;
pub use git_route::{GIT_PATH, GitRemoteAccess, GitRoute};
pub use limits::EgressLimits;
pub use network::{EgressNetwork, NetworkFuture, SystemNetwork};
pub use price::{ModelRates, price_usd};
pub use proxy::{EgressOptions, EgressProxy, EgressStartError};
pub use reply_usage::ReplyUsage;
pub use server::AgentPeerCheck;
pub use upstream::ApiRouteError;
pub use usage::{ApiUsage, UsageLedger};
