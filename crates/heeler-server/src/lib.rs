//! The daemon's HTTP interface on a unix socket, and its client.
//!
//! It translates requests to commands and answers to replies. It decides nothing and opens no
//! database. Start at [`serve()`] for the daemon's side and at [`Client`] for the other.

mod bodies;
mod client;
mod routes;
mod serve;
mod socket;

pub use bodies::Hello;
pub use client::{Client, ClientError};
pub use serve::{Connections, serve};
pub use socket::{bind, socket_name};

/// The version of the interface, which every reply carries in [`PROTOCOL_HEADER`].
pub const PROTOCOL: u32 = 1;

/// The header with the version of the interface.
pub const PROTOCOL_HEADER: &str = "heeler-protocol";

/// The header by which a caller of a webhook names its delivery.
pub(crate) const DELIVERY_HEADER: &str = "heeler-delivery";

#[cfg(test)]
mod tests;
