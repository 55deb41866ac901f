//! An agent: what it is asked, what it may do, when it starts.
//!
//! [`AgentKeys`] is what may be written, in an agent file, inline, in `defaults` and in
//! `overrides`; [`AgentConfig`] is the checked form the rest of the program sees.

use std::num::NonZeroU32;

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use super::amount::UsdAmount;
use super::chat::ChatConfig;
use super::cron::ConfigTimeZone;
use super::docker::DockerConfig;
use super::duration::ConfigDuration;
use super::hooks::{AgentHooks, HooksKeys};
use super::mcp::{McpKeys, McpServer, PluginConfig, PluginEntry};
use super::policy::{PriorityKey, RetryKeys, RetryPolicy, SpawnKeys, SpawnLimits};
use super::reader::ConfigReader;
use super::render_json::{AgentConfigJson, restore_templates};
use super::repo::RepoConfig;
use super::schedule::{MissedRunPolicy, OverlapPolicy, ScheduleConfig, SchedulesKeys};
use super::script_source::ScriptSource;
use super::session::{SessionKeys, SessionRules};
use super::shape::{ConfigSection, ValueShape, section};
use super::unused_keys;
use super::value::{ConfigValue, EnvVars, NonBlankText, SpannedValue, VarName, word_value};
use super::work_source::WorkSource;
use super::yaml::{YamlKind, YamlNode};
use crate::words::words;
use crate::{AgentName, ApprovalMode, LocalName};

words! {
    /// What runs an agent.
    pub enum RuntimeType ("runtime") {
        /// Claude through the Agent SDK's protocol.
        Sdk = "sdk",
        /// `claude -p`.
        Cli = "cli",
        /// A script of ours.
        Scripted = "scripted",
        /// A shell command.
        Command = "command",
    }
}

words! {
    /// What Claude may do without asking.
    pub enum PermissionMode ("permission mode") {
        /// What its own settings say.
        Default = "default",
        /// Edit files.
        AcceptEdits = "acceptEdits",
        /// Everything.
        BypassPermissions = "bypassPermissions",
        /// Plan.
        Plan = "plan",
        /// What is allowed; the rest is denied without asking.
        DontAsk = "dontAsk",
        /// What Claude itself judges to be harmless.
        Auto = "auto",
    }
}

words! {
    /// Where Claude looks for settings.
    pub enum SettingSource ("setting source") {
        /// The user's home.
        User = "user",
        /// The working directory.
        Project = "project",
        /// The working directory's local settings.
        Local = "local",
    }
}

word_value!(RuntimeType, PermissionMode, SettingSource);

section! {
    /// An agent.
    pub(crate) struct AgentKeys ("agent") {
        /// The agent's name, unique within its fleet: letters, digits, `-` and `_`.
        name: Option<SpannedValue<LocalName>>,
        /// What the agent is for.
        description: Option<String>,
        /// What runs the agent: `sdk` and `cli` are Claude Code, `scripted` plays the `script`
        /// without any model, `command` runs the `command`.
        runtime: RuntimeType = "sdk",
        /// What a scripted agent does: a list of steps, or the path of a file with such a list. The
        /// steps are described in `docs/scripted.md`.
        script: Option<SpannedValue<ScriptSource>>,
        /// The shell command of an agent with `runtime: command`. It gets the prompt on its standard
        /// input and the run's id as `HEELER_RUN` in its environment. Each line that it prints is a
        /// message, of more than 1,000 those that come at once; standard error is in the log too.
        command: Option<SpannedValue<NonBlankText>>,
        /// Where the agent works; the folder of its file if left out. Relative to this file.
        working_directory alias "workspace": Option<WorkingDirectory>,
        /// The repository the agent works on: `owner/name` on GitHub, an address or a path. Where the
        /// `working_directory` is not there, it is cloned to it before the first job. A token in an
        /// `https` address is handed to git and not kept in the clone.
        repo: Option<RepoConfig>,
        /// Who the agent is, in messages to people.
        identity: Option<AgentIdentity>,
        /// Instructions that come before every prompt.
        system_prompt: Option<String>,
        /// What the agent is asked when a trigger brings no prompt of its own.
        default_prompt: Option<String>,
        /// The model, such as `claude-sonnet-4-5`; Claude's own choice if left out.
        model: Option<String>,
        /// When the agent starts by itself: schedules by name, or a list of them.
        schedules: SchedulesKeys,
        /// How the agent keeps its conversation between jobs.
        session: SessionKeys = "{}",
        /// Who answers what the agent asks: `autonomous` (whoever watches it, else nobody: it is
        /// denied), `interactive` (a person, whatever started the job: `heeler approvals`),
        /// `review` (a person approves each action).
        approvals: ApprovalMode = "autonomous",
        /// What Claude may do without asking. This and the lists of tools bind Claude only: with
        /// `runtime: scripted` and `command` they have no effect.
        permission_mode: PermissionMode = "acceptEdits",
        /// The built-in tools there are; all of them if left out.
        tools: Option<Vec<String>>,
        /// The only tools that may run, and they run without asking; all of them if left out.
        /// `mcp__github__*` stands for every tool of a server.
        allowed_tools: Option<Vec<String>>,
        /// Tools that may not be used.
        denied_tools: Option<Vec<String>>,
        /// Where Claude looks for settings, CLAUDE.md and skills: `user`, `project`, `local`.
        setting_sources: Option<Vec<SettingSource>>,
        /// MCP servers by name.
        mcp_servers: IndexMap<String, SpannedValue<McpKeys>>,
        /// Plugins: folders, relative to this file.
        plugins: Vec<PluginEntry>,
        /// The most turns of one job.
        max_turns: Option<NonZeroU32>,
        /// The time limit of one job.
        timeout: Option<ConfigDuration>,
        /// A job that says nothing for this long is ended. While a tool, a sub-agent or a
        /// background task works, or a question waits for its answer, only `timeout` counts.
        stall_timeout: Option<ConfigDuration>,
        /// The most money the agent may spend.
        budget: Option<Budget>,
        /// How many jobs of the agent may run at once.
        instances: InstanceLimits = "{}",
        /// Its place among jobs that wait, from -100 to 100: higher ones start first.
        priority: PriorityKey = "0",
        /// What becomes of a job that failed in a way that may pass.
        retry: RetryKeys = "{}",
        /// What jobs of the agent may start themselves.
        spawn: SpawnKeys = "{}",
        /// The time zone of its cron schedules, such as `Europe/Vienna`; the machine's if left
        /// out.
        timezone: Option<ConfigTimeZone>,
        /// Start schedules up to this much later, by chance.
        jitter: Option<ConfigDuration>,
        /// What schedules do about missed occurrences: `skip`, `run_once` (the default),
        /// `run_all`.
        missed: Option<MissedRunPolicy>,
        /// What schedules do when the last run still goes on: `skip` (the default) or `queue`.
        overlap: Option<OverlapPolicy>,
        /// Environment variables for the agent. It gets these, the named `secrets` and a few
        /// that every program needs, nothing else.
        env: EnvVars,
        /// Names of environment variables that the agent gets and that are kept out of everything
        /// Heeler writes.
        secrets: Vec<VarName>,
        /// The `claude` program: a path, or a name to find on PATH.
        claude_path: Option<ProgramPath>,
        /// What happens after a job; described in `docs/hooks.md`.
        hooks: HooksKeys = "{}",
        /// A JSON file that the agent writes for its hooks, in the working directory; `metadata.json`
        /// if left out. One that an earlier job left does not count.
        metadata_file: Option<String>,
        /// Where the agent takes its work from.
        work_source: Option<WorkSource>,
        /// The chats in which the agent answers.
        chat: Option<ChatConfig>,
        /// Runs the agent in a container.
        docker: Option<DockerConfig>,
        /// Runs the agent in a sandbox.
        sandbox: Option<Json>,
    }
}

/// Keys of an agent that `defaults` may not set: they say what one agent is.
pub(crate) const KEYS_WITHOUT_DEFAULT: &[&str] =
    &["name", "description", "script", "command", "schedules", "identity", "chat", "metadata_file"];

impl AgentKeys {
    /// Describes an agent file, where the name must be there.
    pub(crate) fn file_section() -> ConfigSection {
        let mut section = AgentKeys::section();
        section
            .keys
            .iter_mut()
            .filter(|key| key.name == "name")
            .for_each(|key| key.required = true);
        section
    }

    /// Describes `defaults`.
    pub(crate) fn defaults_section() -> ConfigSection {
        AgentKeys::section().without_keys("defaults", KEYS_WITHOUT_DEFAULT)
    }
}

section! {
    /// Who the agent is, in messages to people.
    pub struct AgentIdentity ("identity") {
        /// The name that people see.
        name: Option<String>,
        /// What it does.
        role: Option<String>,
        /// How it speaks.
        personality: Option<String>,
    }
}

section! {
    /// How many jobs may run at once.
    pub struct InstanceLimits ("instances") {
        /// The most jobs of the agent that run at once.
        max_concurrent: NonZeroU32 = "1",
    }
}

section! {
    /// The most money that may be spent, in US dollars.
    pub struct Budget ("budget") {
        /// By one job.
        job: Option<UsdAmount>,
        /// In one day, from midnight to midnight in the time zone of the fleet.
        day: Option<UsdAmount>,
        /// In all.
        total: Option<UsdAmount>,
    }
}

section! {
    /// A folder to work in, and how it comes to be.
    pub struct CheckoutConfig ("working_directory") {
        /// The folder, relative to this file.
        root: Utf8PathBuf,
        /// Clone `repo` into it if it is not there.
        auto_clone: bool = "true",
        /// How many commits of history are cloned.
        clone_depth: NonZeroU32 = "1",
        /// The branch that is cloned; the repository's own choice if left out.
        default_branch: Option<String>,
    }
}

/// Where an agent works: a folder, or a folder with how it comes to be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WorkingDirectory {
    Folder(Utf8PathBuf),
    Checkout(CheckoutConfig),
}

impl ConfigValue for WorkingDirectory {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![ValueShape::Text, CheckoutConfig::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WorkingDirectory> {
        match &node.kind {
            YamlKind::Map(_) => CheckoutConfig::read(node, reader).map(WorkingDirectory::Checkout),
            _ => Utf8PathBuf::read(node, reader).map(WorkingDirectory::Folder),
        }
    }
    fn show(&self) -> Json {
        match self {
            WorkingDirectory::Folder(folder) => folder.show(),
            WorkingDirectory::Checkout(checkout) => checkout.show(),
        }
    }
}

/// A program: a path, or a name to find on PATH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramPath(Utf8PathBuf);

impl ProgramPath {
    /// Returns the path or name.
    pub fn as_path(&self) -> &Utf8Path {
        &self.0
    }
}

impl ConfigValue for ProgramPath {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ProgramPath> {
        match &node.kind {
            YamlKind::Scalar(scalar) if !scalar.text.is_empty() && !scalar.text.contains('/') => {
                Some(ProgramPath(Utf8PathBuf::from(&scalar.text)))
            }
            _ => Utf8PathBuf::read(node, reader).map(ProgramPath),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// What runs an agent, with what it needs.
#[derive(Debug, Clone, PartialEq)]
pub enum RuntimeConfig {
    /// Claude through the Agent SDK's protocol.
    Sdk,
    /// `claude -p`.
    Cli,
    /// The steps of a script, checked.
    Scripted(Vec<Json>),
    /// A shell command.
    Command(String),
}

/// An agent, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentConfig {
    /// Its name, qualified by its fleets.
    pub name: AgentName,
    /// The file that defines it.
    pub file: Utf8PathBuf,
    /// What it is for.
    pub description: Option<String>,
    /// What runs it.
    pub runtime: RuntimeConfig,
    /// The `claude` program.
    pub claude_path: Option<ProgramPath>,
    /// Where it works.
    pub working_directory: Utf8PathBuf,
    /// Whether the config names that folder; otherwise it is the one of the agent's file.
    pub has_explicit_working_directory: bool,
    /// How that folder comes to be, if the config says.
    pub checkout: Option<CheckoutConfig>,
    /// The repository it works on.
    pub repo: Option<RepoConfig>,
    /// Who it is.
    pub identity: Option<AgentIdentity>,
    /// Instructions before every prompt.
    pub system_prompt: Option<String>,
    /// What it is asked by default.
    pub default_prompt: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// When it starts by itself.
    pub schedules: Vec<ScheduleConfig>,
    /// How context is kept for jobs that no schedule started.
    pub session: SessionRules,
    /// Who approves.
    pub approvals: ApprovalMode,
    /// What Claude may do without asking.
    pub permission_mode: PermissionMode,
    /// The built-in tools there are.
    pub tools: Option<Vec<String>>,
    /// The only tools that may be used, when there is such a list.
    pub allowed_tools: Option<Vec<String>>,
    /// Tools that may not be used.
    pub denied_tools: Vec<String>,
    /// Where Claude looks for settings.
    pub setting_sources: Option<Vec<SettingSource>>,
    /// MCP servers by name.
    pub mcp_servers: IndexMap<String, McpServer>,
    /// Plugins.
    pub plugins: Vec<PluginConfig>,
    /// The most turns of one job.
    pub max_turns: Option<NonZeroU32>,
    /// The time limit of a job that no schedule started.
    pub timeout: Option<ConfigDuration>,
    /// How long a job may say nothing.
    pub stall_timeout: Option<ConfigDuration>,
    /// The most money.
    pub budget: Option<Budget>,
    /// The most jobs at once.
    pub max_concurrent: NonZeroU32,
    /// Its place among jobs that wait: higher ones first.
    pub priority: i32,
    /// What becomes of a job that failed in a way that may pass.
    pub retry: RetryPolicy,
    /// What its jobs may start themselves.
    pub spawn: SpawnLimits,
    /// Environment variables.
    pub env: EnvVars,
    /// Names of the secrets it gets.
    pub secrets: Vec<VarName>,
    /// What happens after a job.
    pub hooks: AgentHooks,
    /// The file it writes for its hooks.
    pub metadata_file: Option<String>,
    /// Where it takes its work from.
    pub work_source: Option<WorkSource>,
    /// The chats it answers in.
    pub chat: Option<ChatConfig>,
    /// Its container.
    pub docker: Option<DockerConfig>,
    /// Its sandbox, not looked into yet.
    pub sandbox: Option<Json>,
    pub(crate) config_json: AgentConfigJson,
}

/// Where an agent was found.
pub(crate) struct AgentSource<'a> {
    /// The fleets it lives in, joined by dots; empty for the root.
    pub(crate) fleet: &'a str,
    /// The file that defines it.
    pub(crate) file: &'a Utf8Path,
    /// Its merged tree.
    pub(crate) tree: &'a YamlNode,
}

impl AgentSource<'_> {
    /// Says whether a key was written, well or badly.
    fn has_key(&self, key: &str) -> bool {
        self.tree.get(key).is_some_and(|value| !value.is_null())
    }
}

impl AgentConfig {
    /// Checks what the keys mean together. Faults of all of them are reported.
    pub(crate) fn check(
        keys: AgentKeys,
        origin: &AgentSource<'_>,
        reader: &mut ConfigReader,
    ) -> Option<AgentConfig> {
        let name = qualified_name(&keys, origin, reader);
        unused_keys::warn_claude_only_keys(origin.tree, keys.runtime, reader);
        let runtime = check_runtime(&keys, origin, reader);
        // A box has no room to spare: there may be ten thousand.
        let schedules: Box<[ScheduleConfig]> = keys
            .schedules
            .0
            .iter()
            .filter_map(|(name, schedule)| ScheduleConfig::check(name, schedule, &keys, reader))
            .collect();
        let mcp_servers = keys
            .mcp_servers
            .iter()
            .filter_map(|(name, server)| {
                Some((name.clone(), McpServer::check(name, server, reader)?))
            })
            .collect();
        let hooks = AgentHooks::check(&keys.hooks, reader);
        let retry = RetryPolicy::check(&keys.retry, reader);
        let folder = origin.file.parent().unwrap_or(Utf8Path::new("")).to_owned();
        let names_working_directory = keys.working_directory.is_some();
        let (working_directory, checkout) = match keys.working_directory.clone() {
            None => (folder, None),
            Some(WorkingDirectory::Folder(folder)) => (folder, None),
            Some(WorkingDirectory::Checkout(checkout)) => (checkout.root.clone(), Some(checkout)),
        };
        let (name, runtime) = (name?, runtime?);
        let shown = render_agent_json(&keys, &name, origin, &working_directory);
        let mode = keys.session.mode;
        Some(AgentConfig {
            name,
            file: origin.file.to_owned(),
            runtime,
            working_directory,
            has_explicit_working_directory: names_working_directory,
            checkout,
            schedules: schedules.into_vec(),
            mcp_servers,
            hooks,
            config_json: shown,
            retry,
            spawn: SpawnLimits::new(&keys.spawn),
            priority: keys.priority.get(),
            session: keys.session.to_rules(mode),
            timeout: keys.timeout.or(keys.session.job_timeout(mode)),
            model: keys.model.or(keys.session.model),
            max_turns: keys.max_turns.or(keys.session.max_turns),
            max_concurrent: keys.instances.max_concurrent,
            plugins: keys.plugins.into_iter().map(|PluginEntry(plugin)| plugin).collect(),
            allowed_tools: keys.allowed_tools,
            denied_tools: keys.denied_tools.unwrap_or_default(),
            description: keys.description,
            claude_path: keys.claude_path,
            repo: keys.repo,
            identity: keys.identity,
            system_prompt: keys.system_prompt,
            default_prompt: keys.default_prompt,
            approvals: keys.approvals,
            permission_mode: keys.permission_mode,
            tools: keys.tools,
            setting_sources: keys.setting_sources,
            stall_timeout: keys.stall_timeout,
            budget: keys.budget,
            env: keys.env,
            secrets: keys.secrets,
            metadata_file: keys.metadata_file,
            work_source: keys.work_source,
            chat: keys.chat,
            docker: keys.docker,
            sandbox: keys.sandbox,
        })
    }
}

fn qualified_name(
    keys: &AgentKeys,
    origin: &AgentSource<'_>,
    reader: &mut ConfigReader,
) -> Option<AgentName> {
    let Some(name) = &keys.name else {
        if !origin.has_key("name") {
            let message = "the agent has no `name`".to_owned();
            reader.error(origin.tree.at, message).expected("`name` belongs here");
        }
        return None;
    };
    let text = match origin.fleet {
        "" => name.value.to_string(),
        fleet => format!("{fleet}.{}", name.value),
    };
    match text.parse() {
        Ok(name) => Some(name),
        Err(error) => {
            let message = format!("{error}");
            reader.error(name.at, message).expected("expected a shorter name");
            None
        }
    }
}

fn check_runtime(
    keys: &AgentKeys,
    origin: &AgentSource<'_>,
    reader: &mut ConfigReader,
) -> Option<RuntimeConfig> {
    let at = keys.name.as_ref().map_or(origin.tree.at, |name| name.at);
    let runtime = keys.runtime;
    if let Some(script) = keys.script.as_ref().filter(|_| runtime != RuntimeType::Scripted) {
        let message = format!("`script` needs `runtime: scripted`; the runtime is `{runtime}`");
        reader.error(script.at, message).expected("it would never be played");
    }
    if let Some(command) = keys.command.as_ref().filter(|_| runtime != RuntimeType::Command) {
        let message = format!("`command` needs `runtime: command`; the runtime is `{runtime}`");
        reader.error(command.at, message).expected("it would never be run");
    }
    let mut missing = |key: &str| {
        if origin.has_key(key) {
            return None;
        }
        let message = format!("an agent with `runtime: {runtime}` needs the key `{key}`");
        reader.error(at, message).expected(format!("`{key}` is missing"));
        None
    };
    match runtime {
        RuntimeType::Sdk => Some(RuntimeConfig::Sdk),
        RuntimeType::Cli => Some(RuntimeConfig::Cli),
        RuntimeType::Scripted => match &keys.script {
            Some(script) => Some(RuntimeConfig::Scripted(script.value.steps())),
            None => missing("script"),
        },
        RuntimeType::Command => match &keys.command {
            Some(command) => Some(RuntimeConfig::Command(command.value.0.clone())),
            None => missing("command"),
        },
    }
}

/// Shows the merged keys, with what only loading can know: the qualified name and the folders.
fn render_agent_json(
    keys: &AgentKeys,
    name: &AgentName,
    origin: &AgentSource<'_>,
    working_directory: &Utf8Path,
) -> AgentConfigJson {
    let mut shown = keys.show();
    restore_templates(&mut shown, origin.tree);
    if keys.working_directory.is_none() {
        shown["working_directory"] = json!(working_directory);
    }
    shown["qualified_name"] = json!(name);
    shown["file"] = json!(origin.file);
    AgentConfigJson::new(&shown)
}
