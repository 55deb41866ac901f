//! MCP servers and plugins of agents.

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use serde_json::Value as Json;

use crate::hooks::TimeoutDuration;
use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::value::{
    ConfigValue, EnvVars, NonBlankText, SecretText, SpannedValue, WebUrl, word_value,
};
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};

words! {
    /// Transport of an MCP server.
    pub enum McpType ("MCP transport") {
        /// Standard input and output of a process.
        Stdio = "stdio",
        /// Server-sent events.
        Sse = "sse",
        /// HTTP.
        Http = "http",
    }
}

words! {
    /// Source of a plugin.
    pub enum PluginType ("plugin type") {
        /// Local directory.
        Local = "local",
    }
}

word_value!(McpType, PluginType);

section! {
    /// An MCP server.
    pub(crate) struct McpKeys ("mcp_server") {
        /// Transport. Defaults to `http` if `url` is set, else to `stdio`.
        kind as "type": Option<SpannedValue<McpType>>,
        /// Program to start (stdio).
        command: Option<SpannedValue<NonBlankText>>,
        /// Arguments of the program (stdio).
        args: Vec<String>,
        /// Environment variables of the program (stdio).
        env: EnvVars,
        /// URL of the server (http, sse).
        url: Option<SpannedValue<WebUrl>>,
        /// Headers of each request (http, sse).
        headers: IndexMap<String, SecretText>,
        /// Time limit of a call, as a duration or in milliseconds.
        timeout: Option<TimeoutDuration>,
        /// Load the server's tools immediately instead of when they are searched for.
        always_load as "alwaysLoad": Option<bool>,
        /// Start the server outside of the agent's sandbox or container (stdio).
        host: Option<SpannedValue<bool>>,
    }
}

/// Checked settings of an MCP server.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServer {
    pub transport: McpTransport,
    /// Time limit of a call.
    pub timeout: Option<TimeoutDuration>,
    /// Load the server's tools immediately instead of when they are searched for.
    pub always_load: Option<bool>,
}

/// Transport of an MCP server with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum McpTransport {
    /// Standard input and output of a process.
    Stdio {
        command: String,
        args: Vec<String>,
        env: EnvVars,
        /// True if it runs outside of the agent's sandbox or container.
        is_on_host: bool,
    },
    Http {
        url: WebUrl,
        /// Additional headers.
        headers: IndexMap<String, SecretText>,
    },
    /// Server-sent events.
    Sse {
        url: WebUrl,
        /// Additional headers.
        headers: IndexMap<String, SecretText>,
    },
}

impl McpServer {
    pub(crate) fn check(
        name: &str,
        SpannedValue { value: keys, at, .. }: &SpannedValue<McpKeys>,
        reader: &mut ConfigReader,
    ) -> Option<McpServer> {
        // Neither can be ignored safely: the person meant one of two different servers.
        if let (Some(_), Some(url)) = (&keys.command, &keys.url) {
            let message = format!("the MCP server `{name}` has both `command` and `url`");
            reader.error(url.at, message).expected("keep one of them");
            return None;
        }
        let inferred = if keys.url.is_some() { McpType::Http } else { McpType::Stdio };
        let kind = keys.kind.as_ref().map_or(inferred, |kind| kind.value);
        let key = if kind == McpType::Stdio { "command" } else { "url" };
        let headers = keys.headers.clone();
        let is_on_host = keys.host.as_ref().is_some_and(|host| host.value);
        if let (true, Some(host)) = (is_on_host && kind != McpType::Stdio, &keys.host) {
            let message =
                format!("the MCP server `{name}` has a `url`, so Heeler does not start it");
            reader.error(host.at, message).expected(
                "remove `host`, and allow the server in `sandbox.network` or `sandbox.forward`",
            );
            return None;
        }
        if is_on_host
            && let Some(command) = &keys.command
            && command.value.0.contains('/')
            && !command.value.0.starts_with('/')
        {
            // It is not started in the working directory, where the agent could replace it.
            let message = format!("the MCP server `{name}` on the host has a relative path");
            reader.error(command.at, message).expected("an absolute path, or a name in PATH");
            return None;
        }
        let transport = match (kind, &keys.command, &keys.url) {
            (McpType::Stdio, Some(command), _) => McpTransport::Stdio {
                command: command.value.0.clone(),
                args: keys.args.clone(),
                env: keys.env.clone(),
                is_on_host,
            },
            (McpType::Http, _, Some(url)) => McpTransport::Http { url: url.value.clone(), headers },
            (McpType::Sse, _, Some(url)) => McpTransport::Sse { url: url.value.clone(), headers },
            _ => {
                let message = format!("the MCP server `{name}` of type `{kind}` needs `{key}`");
                reader.error(*at, message).expected(format!("`{key}` belongs here"));
                return None;
            }
        };
        Some(McpServer { transport, timeout: keys.timeout, always_load: keys.always_load })
    }
}

section! {
    /// A plugin.
    pub struct PluginConfig ("plugin") {
        /// Source of the plugin; `local` is the only value.
        kind as "type": PluginType = "local",
        /// Directory of the plugin, relative to this file.
        path: Utf8PathBuf,
        /// Ignore the plugin's MCP servers.
        skip_mcp_discovery as "skipMcpDiscovery": bool = "false",
    }
}

/// Plugin as written: a path, or a map.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PluginEntry(pub(crate) PluginConfig);

impl ConfigValue for PluginEntry {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![ValueShape::Text, PluginConfig::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<PluginEntry> {
        let plugin = match &node.kind {
            YamlKind::Map(_) => PluginConfig::read(node, reader)?,
            _ => PluginConfig {
                kind: PluginType::Local,
                path: Utf8PathBuf::read(node, reader)?,
                skip_mcp_discovery: false,
            },
        };
        Some(PluginEntry(plugin))
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}
