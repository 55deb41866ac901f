//! The daemon's HTTP interface, and its client.
//!
//! It translates requests to questions and commands, and answers to replies. It decides nothing and
//! opens no database. On a unix socket it serves our own command line and, to the same user, the API;
//! on TCP the API and the dashboard, to whoever can say who they are. Start at [`serve_client()`] for the
//! daemon's side and at [`Client`] for the other.

mod access;
mod api;
mod caller;
mod connection_limiter;
mod daemon_client;
mod dashboard;
mod encoded_json;
mod expensive_reads;
mod extractors;
mod internal;
mod live_streams;
mod metrics;
mod problem;
mod read_coalescer;
mod serve;
mod server_state;
mod socket;
mod tcp_table;
mod telemetry;
mod webhooks;

pub use access::{
    AccessControl, PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN, PasswordError, WebEndpoint,
    hash_password,
};
pub use caller::login_name;
pub use daemon_client::{DaemonClient, DaemonClientError};
pub use expensive_reads::ExpensiveReads;
pub use internal::{DaemonInfo, LoginLink};
pub use live_streams::LiveStreams;
pub use metrics::ServerMetrics;
pub use serve::{ConnectionCounter, DaemonListeners, serve};
pub use server_state::{ServerState, SharedServerState};
pub use socket::{bind, socket_name};
pub use tcp_table::{PortHolder, port_holder};
pub use telemetry::start_telemetry;

/// The version of the interface between our own programs, which every reply carries in
/// [`PROTOCOL_HEADER`].
pub const PROTOCOL: u32 = 2;

/// The header with that version.
pub const PROTOCOL_HEADER: &str = "heeler-protocol";

#[cfg(test)]
mod tests;
