//! The daemon's HTTP interface, and its client.
//!
//! It translates requests to questions and commands, and answers to replies. It decides nothing and
//! opens no database. On a unix socket it serves our own command line and, to the same user, the API;
//! on TCP the API and the dashboard, to whoever can say who they are. Start at [`serve()`] for the
//! daemon's side and at [`Client`] for the other.

mod access;
mod api;
mod app;
mod caller;
mod client;
mod costly;
mod flights;
mod hooks;
mod internal;
mod live;
mod metrics;
mod problem;
mod request;
mod rooms;
mod serve;
mod site;
mod socket;
mod tcp_table;
mod telemetry;
mod written;

pub use access::{
    Access, PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN, PasswordError, Reach, hash_password,
};
pub use app::{App, Served};
pub use caller::login_name;
pub use client::{Client, ClientError};
pub use costly::Costly;
pub use internal::{Hello, Link};
pub use live::Live;
pub use metrics::Metrics;
pub use serve::{Connections, Listeners, serve};
pub use socket::{bind, socket_name};
pub use tcp_table::{PortHolder, port_holder};
pub use telemetry::observe;

/// The version of the interface between our own programs, which every reply carries in
/// [`PROTOCOL_HEADER`].
pub const PROTOCOL: u32 = 2;

/// The header with that version.
pub const PROTOCOL_HEADER: &str = "heeler-protocol";

#[cfg(test)]
mod tests;
