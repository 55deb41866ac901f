//! Tools for agents: MCP servers and plugins.

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use serde_json::Value as Json;

use super::hooks::TimeoutDuration;
use super::reader::ConfigReader;
use super::shape::{ValueShape, section};
use super::value::{
    ConfigValue, EnvVars, NonBlankText, SecretText, SpannedValue, WebUrl, word_value,
};
use super::yaml::{YamlKind, YamlNode};
use crate::words::words;

words! {
    /// How an MCP server is reached.
    pub enum McpType ("MCP transport") {
        /// As a process.
        Stdio = "stdio",
        /// By server-sent events.
        Sse = "sse",
        /// By HTTP.
        Http = "http",
    }
}

words! {
    /// Where a plugin comes from.
    pub enum PluginType ("plugin type") {
        /// A folder.
        Local = "local",
    }
}

word_value!(McpType, PluginType);

section! {
    /// An MCP server.
    pub(crate) struct McpKeys ("mcp_server") {
        /// How it is reached; `http` if there is a `url`, else `stdio`.
        kind as "type": Option<SpannedValue<McpType>>,
        /// The program (stdio).
        command: Option<SpannedValue<NonBlankText>>,
        /// Its arguments (stdio).
        args: Vec<String>,
        /// Its environment variables (stdio).
        env: EnvVars,
        /// Its address (http, sse).
        url: Option<SpannedValue<WebUrl>>,
        /// Headers of each call (http, sse).
        headers: IndexMap<String, SecretText>,
        /// The time limit of a call, as a duration or in milliseconds.
        timeout: Option<TimeoutDuration>,
        /// Load its tools at once instead of when they are searched for.
        always_load as "alwaysLoad": Option<bool>,
    }
}

/// An MCP server, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServer {
    /// How it is reached.
    pub transport: McpTransport,
    /// The time limit of a call.
    pub timeout: Option<TimeoutDuration>,
    /// Whether its tools are loaded at once.
    pub always_load: Option<bool>,
}

/// How an MCP server is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum McpTransport {
    /// As a process.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Its environment.
        env: EnvVars,
    },
    /// By HTTP.
    Http {
        /// The address.
        url: WebUrl,
        /// Further headers.
        headers: IndexMap<String, SecretText>,
    },
    /// By server-sent events.
    Sse {
        /// The address.
        url: WebUrl,
        /// Further headers.
        headers: IndexMap<String, SecretText>,
    },
}

impl McpServer {
    pub(crate) fn check(
        name: &str,
        SpannedValue { value: keys, at, .. }: &SpannedValue<McpKeys>,
        reader: &mut ConfigReader,
    ) -> Option<McpServer> {
        if let (Some(_), Some(url)) = (&keys.command, &keys.url) {
            let message = format!("the MCP server `{name}` has both `command` and `url`");
            reader.error(url.at, message).expected("keep one of them");
            return None;
        }
        let inferred = if keys.url.is_some() { McpType::Http } else { McpType::Stdio };
        let kind = keys.kind.as_ref().map_or(inferred, |kind| kind.value);
        let key = if kind == McpType::Stdio { "command" } else { "url" };
        let headers = keys.headers.clone();
        let transport = match (kind, &keys.command, &keys.url) {
            (McpType::Stdio, Some(command), _) => McpTransport::Stdio {
                command: command.value.0.clone(),
                args: keys.args.clone(),
                env: keys.env.clone(),
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
        /// Where it comes from; `local` is the only choice.
        kind as "type": PluginType = "local",
        /// Its folder, relative to this file.
        path: Utf8PathBuf,
        /// Whether its MCP servers are left out.
        skip_mcp_discovery as "skipMcpDiscovery": bool = "false",
    }
}

/// A plugin as written: its folder alone, or a map.
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
