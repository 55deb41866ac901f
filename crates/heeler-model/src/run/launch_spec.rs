//! Launch data of an agent: prompt, environment and runtime options.
//!
//! It may hold secrets, so it is never written to a file: the runner receives it on standard input.
//! Start at [`AgentLaunchSpec`].

use camino::Utf8PathBuf;
use heeler_config::{
    CredentialMode, EgressConfig, ImagePull, LocalAddress, MountMode, NetworkMode, ReasoningEffort,
};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::signature::{ResultPublicKey, ResultSigningKey};
use super::{RunLeaseSource, RunSpec};
use crate::RunId;

/// Launch data of an agent. May hold secrets.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentLaunchSpec {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    pub prompt: String,
    /// Complete environment. The runner adds only its own marker.
    pub env: IndexMap<String, String>,
    /// Values that Heeler must never write.
    pub secrets: Vec<String>,
    /// Those of the secrets that may be process arguments: they may be settings of the agent.
    #[serde(default)]
    pub shared_secrets: Vec<String>,
    pub work: RuntimeLaunchSpec,
    /// Destination of files that the agent sends. `None` disables the file sender tool.
    pub send_files_to: Option<Utf8PathBuf>,
    #[serde(default)]
    pub authority: RunAuthority,
    /// True if the agent may start jobs of other agents. Otherwise it has no tools for that.
    #[serde(default)]
    pub may_start_jobs: bool,
    /// Sandbox in which the agent runs. Without it, the agent may do what its user may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSpec>,
}

/// Sandbox of a run: the file system as the agent sees it, besides its working directory. Paths are
/// absolute. Of two paths, the deeper one counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxSpec {
    /// Files and directories that the config lets the agent write. They must exist.
    pub writable: Vec<Utf8PathBuf>,
    /// Files and directories that the config lets the agent read. They must exist.
    pub readable: Vec<Utf8PathBuf>,
    /// Files and directories that the agent must not change. They need not exist.
    pub protected: Vec<Utf8PathBuf>,
    /// Files and directories that the agent must not see. They need not exist.
    pub hidden: Vec<Utf8PathBuf>,
    /// True if the agent must not create unix sockets.
    pub denies_unix_sockets: bool,
    pub network: EgressConfig,
    /// Handling of the API credentials. `None` proxies those of the environment.
    pub credentials: Option<CredentialMode>,
    /// Git remotes whose tokens only the proxy has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub git: Vec<GitAccessSpec>,
    /// Local addresses that the agent reaches at the same port of its own loopback interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<LocalAddress>,
    /// Container that isolates the agent. Without it, bubblewrap does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerSpec>,
}

/// Git remote that an agent reaches with a token which it does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitAccessSpec {
    /// Address of the repository, without `.git`.
    pub url: String,
    pub username: String,
    /// Variable of the agent's environment that holds the token.
    pub token_env: String,
}

/// Container of a run. It has the same paths as this machine where it has files of this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Socket of the engine.
    pub engine: Utf8PathBuf,
    pub image: String,
    pub pull: ImagePull,
    pub network: NetworkMode,
    /// Access to the working directory.
    pub workspace: MountMode,
    /// User and group as numbers; `None` for those of the runner.
    pub user: Option<String>,
    pub memory_bytes: u64,
    pub pids_limit: Option<u32>,
    pub cpu_shares: Option<u32>,
    pub cpu_period: Option<u32>,
    pub cpu_quota: Option<u32>,
    pub volumes: Vec<ContainerVolume>,
    /// In-memory mounts: path and options.
    pub tmpfs: Vec<(String, String)>,
    /// Published ports: of this machine, and of the container.
    pub ports: Vec<(Option<String>, String)>,
    pub labels: IndexMap<String, String>,
    /// Further settings of the engine.
    pub host_config: Option<Json>,
    /// Most idle containers of the agent that are kept. `None` removes the container after its run;
    /// otherwise its file system is kept for the next run of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_max: Option<u32>,
    /// Variables of this machine that mean nothing in a container, with the configured value.
    pub local_env: IndexMap<String, Option<String>>,
}

/// Memory of a container for which none is set, as in the config.
const CONTAINER_MEMORY_BYTES: u64 = 2 << 30;

impl ContainerSpec {
    /// Returns a container with default settings.
    pub fn new(engine: Utf8PathBuf, image: String) -> ContainerSpec {
        ContainerSpec {
            engine,
            image,
            pull: ImagePull::Missing,
            network: NetworkMode::None,
            workspace: MountMode::ReadWrite,
            user: None,
            memory_bytes: CONTAINER_MEMORY_BYTES,
            pids_limit: None,
            cpu_shares: None,
            cpu_period: None,
            cpu_quota: None,
            volumes: Vec::new(),
            tmpfs: Vec::new(),
            ports: Vec::new(),
            labels: IndexMap::new(),
            host_config: None,
            kept_max: None,
            local_env: IndexMap::new(),
        }
    }
}

/// Configured mount of a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerVolume {
    /// Canonical path on this machine, or the name of a volume of the engine.
    pub source: String,
    /// True if the source is the name of a volume.
    pub is_named: bool,
    pub target: String,
    pub mode: MountMode,
}

/// Who may control a run, and what its processes may become.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunAuthority {
    /// Lock file of the fleet. Its holder is the daemon, which may control the run.
    pub daemon_lock: Option<Utf8PathBuf>,
    /// True if processes of the agent may gain privileges. They then lack the mark of agents.
    pub allow_new_privileges: bool,
    /// Files that processes of the agent may use, if Landlock limits them. There is no sandbox then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_limits: Option<FileLimitSpec>,
    /// Contacts of the host with the fleet's database, if the run may depend on them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<RunLeaseSource>,
}

/// Files that an agent may use under Landlock, besides its working directory. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FileLimitSpec {
    /// Files and directories that the config lets the agent write. They must exist.
    pub writable: Vec<Utf8PathBuf>,
    /// Files and directories that the agent must not read. They need not exist.
    pub hidden: Vec<Utf8PathBuf>,
}

/// Environment variable that holds the capability of a run or a hook: the secret with which its
/// processes identify themselves to the daemon.
pub const CAPABILITY_VARIABLE: &str = "HEELER_RUN_TOKEN";

impl std::fmt::Debug for AgentLaunchSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentLaunchSpec(…)")
    }
}

/// Standard input of a runner: the run, the launch data, and a secret of the runner itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunnerInput {
    #[serde(flatten)]
    pub brief: AgentLaunchSpec,
    /// The run. Agents can write `spec.json`, so a runner does not read it. `None` if an earlier
    /// version of Heeler starts the runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<RunSpec>,
    /// Signs the result. `None` for runs that nothing depends on, such as those of hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_key: Option<ResultSigningKey>,
}

/// Line by which a runner tells its daemon that the run has a result and that the agent's process
/// stays for the next run.
pub const AGENT_KEPT_REPLY: &str = "kept\n";

/// Line by which such a runner confirms the next run.
pub const RUN_TAKEN_REPLY: &str = "taken\n";

/// Standard input of a settling process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettleInput {
    /// [`super::PROTOCOL`].
    pub protocol: u32,
    /// Signs the results. Only the process that started the settling knows it: a later one settles
    /// again.
    pub result_key: ResultSigningKey,
    /// Keys of the runners, by run. A result that such a runner wrote stays.
    pub runner_keys: IndexMap<RunId, ResultPublicKey>,
}

/// Launch data that depends on the runtime.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RuntimeLaunchSpec {
    /// Claude, with runtime `sdk` or `cli`.
    Claude(Box<ClaudeLaunchSpec>),
    /// Steps of a scripted agent.
    Script {
        /// Steps as configured.
        steps: Vec<Json>,
    },
    Command {
        command: String,
    },
    /// Agent program that speaks ACP.
    Acp(Box<ProgramLaunchSpec>),
    /// Codex, by its app server.
    Codex(Box<ProgramLaunchSpec>),
    /// Qwen Code, by its dialect of Claude's protocol.
    Qwen(Box<ProgramLaunchSpec>),
}

/// Launch options of an agent program that is not Claude, besides the prompt.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramLaunchSpec {
    /// Resolved path of the program.
    pub program: Utf8PathBuf,
    pub args: Vec<String>,
    /// Name of a known agent, or the configured program.
    pub agent: String,
    pub permission_mode: String,
    /// Instructions for the model.
    pub system_prompt: Option<String>,
    pub model: Option<String>,
    /// Reasoning effort of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<ReasoningEffort>,
    /// Configured MCP servers by name.
    pub mcp_servers: IndexMap<String, McpServerSpec>,
    /// Files and directories that the agent must not write. A question about one of them is denied.
    pub protected: Vec<Utf8PathBuf>,
    /// Files and directories that the runner must not read for the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Utf8PathBuf>,
    /// True if the run has a sandbox or container of Heeler.
    pub is_isolated: bool,
    /// Prices of the model, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<TokenRates>,
}

/// Prices of a model, in dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TokenRates {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
}

/// Launch options of Claude besides the prompt.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaudeLaunchSpec {
    /// Resolved path of the program.
    pub program: Utf8PathBuf,
    pub permission_mode: String,
    /// Built-in tools that are available.
    pub tools: Option<Vec<String>>,
    /// Rules of calls that need no question: permissions that a person has given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub granted: Vec<String>,
    /// If set, only these tools may run.
    pub allowed_tools: Option<Vec<String>>,
    pub denied_tools: Vec<String>,
    /// Files and directories that Claude's tools must not write, in any mode and with any list:
    /// they control agents' permissions, record their actions, or are loaded by other agents.
    /// Paths are absolute and need not exist.
    pub protected: Vec<Utf8PathBuf>,
    /// Directories in which, at any depth, Claude's tools must not write files from which another
    /// agent's Claude takes instructions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instructed: Vec<Utf8PathBuf>,
    /// Files and directories that Claude's tools must not read: secrets of the fleet.
    pub unreadable: Vec<Utf8PathBuf>,
    /// Directories outside of the working directory that Claude's tools may read: files of skills.
    pub readable: Vec<Utf8PathBuf>,
    /// A person approves each call that is not read-only.
    pub review: bool,
    /// Replaces Claude Code's own instructions.
    pub system_prompt: Option<String>,
    pub model: Option<String>,
    /// Reasoning effort of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<ReasoningEffort>,
    /// Sources of Claude's settings.
    pub setting_sources: Vec<String>,
    pub plugins: Vec<Utf8PathBuf>,
    /// Configured MCP servers by name.
    pub mcp_servers: IndexMap<String, McpServerSpec>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum McpServerSpec {
    /// Local process, by standard input and output.
    Stdio {
        command: String,
        args: Vec<String>,
        env: IndexMap<String, String>,
        /// Time limit of a call.
        timeout_ms: Option<u64>,
        /// True if its tools are loaded at the start.
        always_load: Option<bool>,
        /// True if it runs outside of the agent's sandbox or container.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_on_host: bool,
    },
    Http {
        url: String,
        headers: IndexMap<String, String>,
        /// Time limit of a call.
        timeout_ms: Option<u64>,
        /// True if its tools are loaded at the start.
        always_load: Option<bool>,
    },
    Sse {
        url: String,
        headers: IndexMap<String, String>,
        /// Time limit of a call.
        timeout_ms: Option<u64>,
        /// True if its tools are loaded at the start.
        always_load: Option<bool>,
    },
}
