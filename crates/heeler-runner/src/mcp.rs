//! MCP: the servers that a run's config names, and those that Heeler injects into every agent.
//!
//! An injected server is defined once ([`InjectedMcpServers`]) and reached in two ways: in process,
//! by JSON-RPC messages in claude's control protocol, or over HTTP on the loopback interface
//! ([`McpHttpBridge`]). Configured servers that run outside of the agent's sandbox
//! ([`HostMcpServer`]) are reached in the same ways. This module starts no agent and writes no row:
//! records of a tool are sent to the run's event loop as a [`ToolNote`]. Start at
//! [`InjectedMcpServers`].

mod config;
mod file_tools;
mod fleet_client;
mod fleet_tools;
mod host_server;
mod http_bridge;
mod server;
mod task_tools;
mod tool_definition;
mod tool_note;
mod worker_tools;

pub(crate) use config::{
    CALL_TIME_MAX_MS, InjectedMcpTransport, build_mcp_config, with_host_addresses,
};
pub use fleet_client::{
    FleetClient, StartedJob, TaskSnapshot, WorkerMessageDelivery, WorkerSnapshot, WorkerState,
};
pub(crate) use host_server::{HostMcpServer, HostRequestFilter, HostServerStreams};
pub(crate) use http_bridge::{McpBridgeEndpoint, McpBridgeToken, McpHttpBridge};
pub(crate) use server::{FleetToolAccess, InjectedMcpServers, ToolChannels};
pub(crate) use tool_note::{ToolNote, ToolQuestion};

/// Address of an injected server for an agent that reaches it by HTTP.
#[derive(Clone)]
pub(crate) struct InjectedMcpAddress {
    pub(crate) name: String,
    pub(crate) url: String,
    /// Value of the `Authorization` header. A secret.
    pub(crate) authorization: String,
}

/// Returns the addresses of the injected servers.
pub(crate) fn injected_addresses(
    injected: &InjectedMcpServers,
    endpoint: &McpBridgeEndpoint,
) -> Vec<InjectedMcpAddress> {
    let address = |name: &str| InjectedMcpAddress {
        name: name.to_owned(),
        url: endpoint.url(name),
        authorization: endpoint.authorization(),
    };
    injected.names().map(address).collect()
}

/// Returns true if an injected tool may take so long that claude must keep its streams open for it
/// (`CLAUDE_CODE_STREAM_CLOSE_TIMEOUT`).
pub(crate) fn has_long_running(injected: &InjectedMcpServers) -> bool {
    injected.names().any(|name| name == file_tools::SERVER)
}

#[cfg(test)]
mod tests;
