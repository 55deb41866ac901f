//! The daemon's HTTP interface, and its client.
//!
//! It translates requests to queries and commands, and results to replies. It makes no decisions
//! and opens no database. The unix socket serves Heeler's own command line and, to the same user,
//! the API; TCP serves the API and the dashboard to authenticated callers. Start at [`serve()`] for
//! the daemon's side and at [`DaemonClient`] for the other.

mod access;
mod agent_connections;
mod api;
mod batched_reads;
mod caller;
pub mod config_editor;
mod connection_limiter;
mod daemon_client;
mod daemon_info;
mod dashboard;
mod encoded_json;
mod expensive_reads;
mod extractors;
mod internal;
mod job_list_reads;
mod live_streams;
mod metrics;
mod peer_identification;
mod problem;
mod query_context;
mod read_coalescer;
mod redacted_reply;
pub mod replies;
mod reply_redaction;
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
pub use daemon_client::{DaemonClient, DaemonClientError};
pub use daemon_info::DaemonInfo;
pub use expensive_reads::ExpensiveReads;
pub use internal::LoginLink;
pub use job_list_reads::JobListReads;
pub use live_streams::LiveStreams;
pub use metrics::ServerMetrics;
pub use query_context::query_context;
pub use reply_redaction::ReplyRedactor;
pub use serve::{ConnectionCounter, DaemonListeners, serve};
pub use server_state::{ServerState, SharedServerState};
pub use socket::{StateIdentity, bind, socket_name, socket_path};
pub use tcp_table::{PortHolder, port_holder};
pub use telemetry::start_telemetry;
#[cfg(any(test, feature = "fuzz-entry"))]
pub use webhooks::call_fuzz::drive_call;

/// Version of the interface between Heeler's own programs. Every reply carries it in
/// [`PROTOCOL_HEADER`].
pub const PROTOCOL: u32 = 2;

/// Header with the [`PROTOCOL`] version.
pub const PROTOCOL_HEADER: &str = "heeler-protocol";

#[cfg(test)]
mod tests;
