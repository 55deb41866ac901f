//! What claude is told of MCP servers: the JSON of its `--mcp-config`.
//!
//! It may hold secrets (environment, headers, our own token), so it is handed over in memory and
//! never as a file or an argument. Start at [`config`].

use heeler_model::run::McpBrief;
use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use super::{Endpoint, Injected};

/// How claude reaches the servers that we inject.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    /// By the control protocol of the `sdk` runtime.
    InProcess,
    /// By HTTP, for the `cli` runtime.
    Http(Endpoint),
}

/// Returns the JSON of claude's `--mcp-config`: what is configured, and what is injected.
///
/// An injected server wins over a configured one of the same name: its tools are part of what we
/// promise an agent.
pub(crate) fn config(
    configured: &IndexMap<String, McpBrief>,
    injected: &Injected,
    transport: &Transport,
) -> Json {
    let mut servers: Map<String, Json> =
        configured.iter().map(|(name, server)| (name.clone(), entry(server))).collect();
    for name in injected.names() {
        let entry = match transport {
            Transport::InProcess => json!({ "type": "sdk", "name": name }),
            Transport::Http(endpoint) => json!({
                "type": "http",
                "url": endpoint.url(name),
                "headers": { "Authorization": endpoint.authorization() },
            }),
        };
        servers.insert(name.to_owned(), entry);
    }
    json!({ "mcpServers": servers })
}

fn entry(server: &McpBrief) -> Json {
    let (mut entry, timeout_ms, always_load) = match server {
        McpBrief::Stdio { command, args, env, timeout_ms, always_load } => (
            json!({ "type": "stdio", "command": command, "args": args, "env": env }),
            timeout_ms,
            always_load,
        ),
        McpBrief::Http { url, headers, timeout_ms, always_load } => {
            (json!({ "type": "http", "url": url, "headers": headers }), timeout_ms, always_load)
        }
        McpBrief::Sse { url, headers, timeout_ms, always_load } => {
            (json!({ "type": "sse", "url": url, "headers": headers }), timeout_ms, always_load)
        }
    };
    if let Some(timeout_ms) = timeout_ms {
        entry["timeout"] = json!(timeout_ms);
    }
    if let Some(always_load) = always_load {
        entry["alwaysLoad"] = json!(always_load);
    }
    entry
}
