//! Options of a conversation.

use camino::Utf8PathBuf;

/// Treatment of running workers when the person leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerExitPolicy {
    /// Ask the person.
    Ask,
    /// Stop them.
    Stop,
    /// Keep them running under the daemon.
    KeepRunning,
}

/// Command that the agent itself understands, such as `/compact` or a skill of its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSlashCommand {
    /// Name without the slash.
    pub name: String,
    pub about: String,
}

/// Options of a conversation.
#[derive(Debug, Clone)]
pub struct ConversationOptions {
    /// A person is present and can answer questions.
    pub attended: bool,
    /// Treatment of running workers at the end.
    pub worker_exit_policy: WorkerExitPolicy,
    /// Ask the agent for insights at the end.
    pub insights: bool,
    /// Insights of earlier sessions, sent with the first turn.
    pub earlier_insights: Option<String>,
    /// Restart the loops of a resumed session at once.
    pub restart_loops: bool,
    /// Permission mode of the agent's config; `None` if its runtime has none.
    pub permission_mode: Option<String>,
    /// Model of the agent's config.
    pub model: Option<String>,
    /// Tokens of the context at the start; 0 for a new conversation.
    pub context_tokens: Option<u64>,
    /// Working directory of the agent, as it is shown.
    pub agent_folder: Option<String>,
    /// Git branch of that directory at the start.
    pub branch: Option<String>,
    /// Directory in which `/export` writes.
    pub folder: Utf8PathBuf,
    /// Commands of the agent: such a line is sent to it as it is.
    pub agent_commands: Vec<AgentSlashCommand>,
    /// Keys with descriptions, for `/help`; empty without a screen.
    pub keys: &'static [(&'static str, &'static str)],
}
