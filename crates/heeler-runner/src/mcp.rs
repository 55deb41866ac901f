//! MCP: the servers that a run's config names, and those that we give every agent ourselves.
//!
//! A server of ours is defined once ([`Injected`]) and reached in two ways: in process, by JSON-RPC
//! messages that claude's control protocol carries, or over HTTP on the loopback interface
//! ([`Bridge`]). This module starts no agent and writes no row: what a tool has to record goes to the
//! run's loop as a [`Note`]. Start at [`Injected`].

mod bridge;
mod config;
mod door;
mod files;
mod fleet;
mod server;
mod tasks;
mod workers;

pub(crate) use bridge::{Bridge, Endpoint, Token};
pub(crate) use config::{Transport, config};
pub use door::{FleetDoor, Heard, StartedJob, TaskNow, WorkerNow, WorkerState};
pub(crate) use fleet::ASK_HUMAN;
pub(crate) use server::{FromTools, Injected, Inquiry, Note};

/// Says whether a tool of ours may take so long that claude must keep its streams open for it
/// (`CLAUDE_CODE_STREAM_CLOSE_TIMEOUT`).
pub(crate) fn has_long_running(injected: &Injected) -> bool {
    injected.names().any(|name| name == files::SERVER)
}

#[cfg(test)]
mod tests;
