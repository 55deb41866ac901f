//! The JSON of claude's `--mcp-config`.
//!
//! It may hold secrets (environment, headers, the run's token), so it is passed in memory and never
//! as a file on disk or an argument. Start at [`build_mcp_config`].

use heeler_model::run::McpServerSpec;
use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use super::{InjectedMcpServers, McpBridgeEndpoint};

/// Time that an agent allows for a call of an injected tool. Calls may wait for people and workers,
/// and the default for a server over HTTP is five minutes.
pub(crate) const CALL_TIME_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// Transport by which claude reaches the injected servers.
#[derive(Debug, Clone)]
pub(crate) enum InjectedMcpTransport {
    /// The control protocol of the `sdk` runtime.
    InProcess,
    /// HTTP, for the `cli` runtime.
    Http(McpBridgeEndpoint),
}

/// Returns the JSON of claude's `--mcp-config` with the configured and the injected servers.
///
/// An injected server takes precedence over a configured one of the same name: Heeler guarantees
/// its tools to the agent.
pub(crate) fn build_mcp_config(
    configured: &IndexMap<String, McpServerSpec>,
    injected: &InjectedMcpServers,
    transport: &InjectedMcpTransport,
) -> Json {
    let configured = match transport {
        InjectedMcpTransport::InProcess => configured.clone(),
        InjectedMcpTransport::Http(endpoint) => with_host_addresses(configured, injected, endpoint),
    };
    let entry = |(name, server): (&String, &McpServerSpec)| {
        // The process of a server on the host concerns the runner only; its environment is secret.
        let entry = match injected.host_server(name) {
            Some(_) if matches!(transport, InjectedMcpTransport::InProcess) => {
                with_settings(json!({ "type": "sdk", "name": name }), server)
            }
            _ => with_settings(server_entry(server), server),
        };
        (name.clone(), entry)
    };
    let mut servers: Map<String, Json> = configured.iter().map(entry).collect();
    for name in injected.names() {
        let entry = match transport {
            InjectedMcpTransport::InProcess => {
                json!({ "type": "sdk", "name": name, "timeout": CALL_TIME_MAX_MS })
            }
            InjectedMcpTransport::Http(endpoint) => json!({
                "type": "http",
                "url": endpoint.url(name),
                "headers": { "Authorization": endpoint.authorization() },
                "timeout": CALL_TIME_MAX_MS,
            }),
        };
        // This replaces a configured server of the same name.
        servers.insert(name.to_owned(), entry);
    }
    json!({ "mcpServers": servers })
}

/// Returns the configured servers as an agent sees them that reaches those on the host by HTTP.
pub(crate) fn with_host_addresses(
    configured: &IndexMap<String, McpServerSpec>,
    injected: &InjectedMcpServers,
    endpoint: &McpBridgeEndpoint,
) -> IndexMap<String, McpServerSpec> {
    let seen = |(name, server): (&String, &McpServerSpec)| {
        let Some(index) = injected.host_server(name) else { return (name.clone(), server.clone()) };
        let (timeout_ms, always_load) = call_settings(server);
        let headers = [("Authorization".to_owned(), endpoint.authorization())].into();
        let url = endpoint.host_server_url(index);
        (name.clone(), McpServerSpec::Http { url, headers, timeout_ms, always_load })
    };
    configured.iter().map(seen).collect()
}

fn call_settings(server: &McpServerSpec) -> (Option<u64>, Option<bool>) {
    match server {
        McpServerSpec::Stdio { timeout_ms, always_load, .. }
        | McpServerSpec::Http { timeout_ms, always_load, .. }
        | McpServerSpec::Sse { timeout_ms, always_load, .. } => (*timeout_ms, *always_load),
    }
}

fn server_entry(server: &McpServerSpec) -> Json {
    let remote = |kind, url: &str, headers| json!({ "type": kind, "url": escape_variables(url), "headers": escape_values(headers) });
    match server {
        McpServerSpec::Stdio { command, args, env, .. } => {
            let args: Vec<String> = args.iter().map(|arg| escape_variables(arg)).collect();
            json!({ "type": "stdio", "command": escape_variables(command), "args": args, "env": escape_values(env) })
        }
        McpServerSpec::Http { url, headers, .. } => remote("http", url, headers),
        McpServerSpec::Sse { url, headers, .. } => remote("sse", url, headers),
    }
}

fn with_settings(mut entry: Json, server: &McpServerSpec) -> Json {
    let (timeout_ms, always_load) = call_settings(server);
    // Claude rejects its whole config because of a timeout of zero.
    if let Some(timeout_ms) = timeout_ms.filter(|&timeout_ms| timeout_ms > 0) {
        entry["timeout"] = json!(timeout_ms);
    }
    if let Some(always_load) = always_load {
        entry["alwaysLoad"] = json!(always_load);
    }
    entry
}

fn escape_values(map: &IndexMap<String, String>) -> IndexMap<&String, String> {
    map.iter().map(|(key, value)| (key, escape_variables(value))).collect()
}

/// Returns a text that claude reads as `text`.
///
/// Claude expands variables (`${HOME}`, `${HOME:-default}`) and has no escape for them. Heeler has
/// expanded its own already, so each `${` is written as the default value of a variable that is not
/// set, followed by the rest.
fn escape_variables(text: &str) -> String {
    text.replace("${", "${HEELER_NOT_SET:-$}{")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use expect_test::expect;

    use super::super::tests::McpFixture;
    use super::super::{HostMcpServer, McpBridgeToken, McpHttpBridge};
    use super::*;

    fn configured() -> IndexMap<String, McpServerSpec> {
        let map = |key: &str, value: &str| IndexMap::from([(key.to_owned(), value.to_owned())]);
        IndexMap::from([
            (
                "github".to_owned(),
                McpServerSpec::Stdio {
                    command: "npx".to_owned(),
                    args: vec!["-y".to_owned(), "server-github".to_owned()],
                    env: map("GITHUB_TOKEN", "t"),
                    timeout_ms: Some(5_000),
                    always_load: Some(true),
                    is_on_host: false,
                },
            ),
            (
                "web".to_owned(),
                McpServerSpec::Http {
                    url: "http://localhost:8080/mcp".to_owned(),
                    headers: map("X-Key", "k"),
                    timeout_ms: Some(0),
                    always_load: None,
                },
            ),
            (
                "old".to_owned(),
                McpServerSpec::Sse {
                    url: "https://example.org/sse".to_owned(),
                    headers: IndexMap::new(),
                    timeout_ms: None,
                    always_load: Some(false),
                },
            ),
            (
                "heeler".to_owned(),
                McpServerSpec::Sse {
                    url: "https://example.org/not-ours".to_owned(),
                    headers: IndexMap::new(),
                    timeout_ms: None,
                    always_load: None,
                },
            ),
        ])
    }

    #[test]
    fn configured_and_injected_servers_are_told_together() {
        let place = McpFixture::new();
        let (injected, _notes) = place.injected();
        let config = build_mcp_config(&configured(), &injected, &InjectedMcpTransport::InProcess);
        expect![[r#"
            {
              "mcpServers": {
                "github": {
                  "type": "stdio",
                  "command": "npx",
                  "args": [
                    "-y",
                    "server-github"
                  ],
                  "env": {
                    "GITHUB_TOKEN": "t"
                  },
                  "timeout": 5000,
                  "alwaysLoad": true
                },
                "web": {
                  "type": "http",
                  "url": "http://localhost:8080/mcp",
                  "headers": {
                    "X-Key": "k"
                  }
                },
                "old": {
                  "type": "sse",
                  "url": "https://example.org/sse",
                  "headers": {},
                  "alwaysLoad": false
                },
                "heeler": {
                  "type": "sdk",
                  "name": "heeler",
                  "timeout": 86400000
                },
                "heeler-files": {
                  "type": "sdk",
                  "name": "heeler-files",
                  "timeout": 86400000
                }
              }
            }"#]]
        .assert_eq(&format!("{config:#}"));
    }

    #[tokio::test]
    async fn the_agent_does_not_see_the_process_of_a_server_on_the_host() {
        let place = McpFixture::new();
        let server = HostMcpServer::new("github", Arc::new(|_: &str, _: &str, _: &Json| None));
        let injected = place.injected().0.with_host_servers([server]);
        let config = build_mcp_config(&configured(), &injected, &InjectedMcpTransport::InProcess);
        let expected =
            json!({ "type": "sdk", "name": "github", "timeout": 5000, "alwaysLoad": true });
        assert_eq!(config["mcpServers"]["github"], expected);
        let token = McpBridgeToken::mint();
        let bridge = McpHttpBridge::open(&injected, &token).await.unwrap();
        let endpoint = bridge.endpoint().clone();
        let config =
            build_mcp_config(&configured(), &injected, &InjectedMcpTransport::Http(endpoint));
        let entry = &config["mcpServers"]["github"];
        assert_eq!((&entry["type"], &entry["timeout"]), (&json!("http"), &json!(5000)));
        assert_eq!(entry["headers"]["Authorization"], format!("Bearer {}", token.secret()));
        assert!(!config.to_string().contains("GITHUB_TOKEN"), "{config}");
        // One that Heeler injects takes precedence.
        let own = HostMcpServer::new("heeler", Arc::new(|_: &str, _: &str, _: &Json| None));
        let injected = place.injected().0.with_host_servers([own]);
        assert!(injected.host_servers().is_empty());
    }

    #[test]
    fn a_text_that_looks_like_a_variable_is_told_plainly() {
        // Imitates the expansion of claude 2.1.325, in one pass.
        let read = |text: &str| text.replace("${HEELER_NOT_SET:-$}", "$");
        for text in ["${HOME}", "pa$$${HOME:-x}${", "$HOME", "{}", "${${A}}"] {
            assert_eq!(read(&escape_variables(text)), text);
        }
        assert_eq!(escape_variables("a${HOME}"), "a${HEELER_NOT_SET:-$}{HOME}");
    }

    #[tokio::test]
    async fn over_http_each_injected_server_has_its_address_and_the_token() {
        let place = McpFixture::new();
        let (injected, _notes) = place.injected();
        let token = McpBridgeToken::mint();
        let bridge = McpHttpBridge::open(&injected, &token).await.unwrap();
        let endpoint = bridge.endpoint();
        let transport = InjectedMcpTransport::Http(endpoint.clone());
        let config = build_mcp_config(&IndexMap::new(), &injected, &transport);
        let config = format!("{config:#}").replace(token.secret(), "TOKEN");
        let (port, _) = config.split_once("/heeler-files").unwrap();
        let port = port.rsplit_once(':').unwrap().1.to_owned();
        expect![[r#"
            {
              "mcpServers": {
                "heeler-files": {
                  "type": "http",
                  "url": "http://127.0.0.1:PORT/heeler-files",
                  "headers": {
                    "Authorization": "Bearer TOKEN"
                  },
                  "timeout": 86400000
                },
                "heeler": {
                  "type": "http",
                  "url": "http://127.0.0.1:PORT/heeler",
                  "headers": {
                    "Authorization": "Bearer TOKEN"
                  },
                  "timeout": 86400000
                }
              }
            }"#]]
        .assert_eq(&config.replace(&port, "PORT"));
        assert!(!format!("{bridge:?} {transport:?}").contains(token.secret()));
    }
}
