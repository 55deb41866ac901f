//! What an agent is told and given. It may hold secrets, so it is never a file: it reaches the
//! runner through its standard input.

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// What an agent is told and given.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentLaunchSpec {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// What it is asked.
    pub prompt: String,
    /// Its whole environment; the runner adds only its own marker.
    pub env: IndexMap<String, String>,
    /// Values that nothing of ours may write.
    pub secrets: Vec<String>,
    /// What it does.
    pub work: RuntimeLaunchSpec,
    /// Files that the agent may hand over with the file sender; no such tool if left out.
    pub send_files_to: Option<Utf8PathBuf>,
}

impl std::fmt::Debug for AgentLaunchSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Brief(…)")
    }
}

/// What an agent does, by its runtime.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RuntimeLaunchSpec {
    /// Claude, by either runtime.
    Claude(Box<ClaudeLaunchSpec>),
    /// Steps that are played.
    Script {
        /// The steps as the config has them.
        steps: Vec<Json>,
    },
    /// A shell command.
    Command {
        /// The command.
        command: String,
    },
}

/// What Claude is given beyond the prompt.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaudeLaunchSpec {
    /// The program, found already.
    pub program: Utf8PathBuf,
    /// The permission mode.
    pub permission_mode: String,
    /// The built-in tools there are.
    pub tools: Option<Vec<String>>,
    /// The only tools that may run, when there is such a list.
    pub allowed_tools: Option<Vec<String>>,
    /// Tools that may not run.
    pub denied_tools: Vec<String>,
    /// Files and folders that decide what agents may do, or hold what they did: one with a list of
    /// allowed tools must not write them. Absolute; those that do not exist count too.
    pub protected: Vec<Utf8PathBuf>,
    /// Replaces Claude Code's own instructions.
    pub system_prompt: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// Where Claude looks for settings.
    pub setting_sources: Vec<String>,
    /// Plugin folders.
    pub plugins: Vec<Utf8PathBuf>,
    /// Configured MCP servers by name.
    pub mcp_servers: IndexMap<String, McpServerSpec>,
}

/// A configured MCP server.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum McpServerSpec {
    /// A process.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Its variables.
        env: IndexMap<String, String>,
        /// The time limit of a call.
        timeout_ms: Option<u64>,
        /// Whether its tools are loaded at once.
        always_load: Option<bool>,
    },
    /// Streamable HTTP.
    Http {
        /// The address.
        url: String,
        /// Further headers.
        headers: IndexMap<String, String>,
        /// The time limit of a call.
        timeout_ms: Option<u64>,
        /// Whether its tools are loaded at once.
        always_load: Option<bool>,
    },
    /// Server-sent events.
    Sse {
        /// The address.
        url: String,
        /// Further headers.
        headers: IndexMap<String, String>,
        /// The time limit of a call.
        timeout_ms: Option<u64>,
        /// Whether its tools are loaded at once.
        always_load: Option<bool>,
    },
}
