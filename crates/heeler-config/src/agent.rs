//! Agent configuration: prompt, permissions, schedules and limits.
//!
//! [`AgentKeys`] declares the keys accepted in an agent file, inline, in `defaults` and in
//! `overrides`. [`AgentConfig`] is the checked form that the rest of the program uses.

use std::num::NonZeroU32;

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use crate::agent_api::complete_network;
use crate::agent_program::{ProgramSetting, resolve_runtime};
use crate::amount::UsdAmount;
use crate::capabilities::RuntimeSettings;
use crate::chat_config::ChatConfig;
use crate::cron::ConfigTimeZone;
use crate::docker::DockerConfig;
use crate::docker_check::check_docker;
use crate::duration::ConfigDuration;
use crate::effort::ReasoningEffort;
use crate::egress::CredentialMode;
use crate::fleet_secrets::FleetSecrets;
use crate::github::GithubPermission;
use crate::hooks::{AgentHooks, HooksKeys, check_new_privileges};
use crate::host_choice::{HostChoice, PartitionPolicy};
use crate::mcp::{McpKeys, McpServer, PluginConfig, PluginEntry};
use crate::policy::{PriorityKey, RetryKeys, RetryPolicy, SpawnKeys, SpawnLimits};
use crate::reader::{ConfigDialect, ConfigReader};
use crate::render_json::{AgentConfigJson, restore_templates};
use crate::repo::RepoConfig;
use crate::runtime::{PermissionMode, ProgramPath, RuntimeConfig, RuntimeType, SettingSource};
use crate::sandbox::SandboxConfig;
use crate::schedule::{
    AgentScheduleDefaults, MissedRunPolicy, OverlapPolicy, ScheduleConfig, SchedulesKeys,
};
use crate::script_source::ScriptSource;
use crate::session::{SessionKeys, SessionRules};
use crate::shape::{ConfigSection, ValueShape, section};
use crate::token_price::{TokenPrice, find_token_price};
use crate::unused_keys;
use crate::value::{ConfigValue, EnvVars, NonBlankText, SpannedValue, VarName};
use crate::work_source::WorkSource;
use crate::yaml::{YamlKind, YamlNode};
use crate::{AgentName, ApprovalMode, LocalName, SessionMode};

section! {
    /// Settings of one agent.
    pub(crate) struct AgentKeys ("agent") {
        /// Name of the agent, unique within its fleet: letters, digits, `-` and `_`.
        name: Option<SpannedValue<LocalName>>,
        /// Purpose of the agent, for readers.
        description: Option<String>,
        /// How Heeler talks to the agent: `sdk` and `cli` are Claude Code, `codex` is Codex, `acp` is
        /// any `program` that speaks the Agent Client Protocol, `qwen` is Qwen Code (short for `sdk`
        /// with `program: qwen`), `scripted` follows the `script` without a model, `command` runs the
        /// `command`. `docs/agents.md` compares them.
        runtime: RuntimeType = "sdk",
        /// Steps of a scripted agent: a list, or the path of a file that holds the list. The steps
        /// are described in `docs/scripted.md`.
        script: Option<SpannedValue<ScriptSource>>,
        /// Shell command of an agent with `runtime: command`. It receives the prompt on standard
        /// input and the run ID in the environment variable `HEELER_RUN`. Each line of its output
        /// is a message; after the first 1,000 lines, lines that arrive together form one message.
        /// Standard error is also logged.
        command: Option<SpannedValue<NonBlankText>>,
        /// Program of an agent with `runtime: acp`, `codex` or `qwen`: the name of a known agent, such
        /// as `gemini` or `goose`, a path, or a block of settings. With `runtime: sdk`, only
        /// `qwen` is accepted. Described in `docs/agents.md`.
        program: Option<SpannedValue<ProgramSetting>>,
        /// Directory in which the agent runs, relative to this file. Defaults to the directory of
        /// the agent's file.
        working_directory alias "workspace": Option<WorkingDirectory>,
        /// Repository the agent works on: `owner/name` on GitHub, a URL or a path. If the
        /// `working_directory` does not exist, the repository is cloned into it before the first
        /// job. A token in an `https` URL is passed to git and not stored in the clone.
        repo: Option<RepoConfig>,
        /// Host that executes the agent's jobs, in a fleet with several hosts: the name of its `heeler
        /// start --host`, or a block with labels that it must have. While there is none, the jobs wait.
        /// Defaults to the host that leads. Described in `docs/hosts.md`.
        host: Option<SpannedValue<HostChoice>>,
        /// What happens to the agent if its host loses contact with the fleet's database: `keep` lets it
        /// work on, `stop` ends it after a minute, and another host may continue the job. Without several
        /// hosts it has no effect. Described in `docs/hosts.md`.
        on_partition: PartitionPolicy = "keep",
        /// Name, role and personality of the agent in messages to people.
        identity: Option<AgentIdentity>,
        /// Instructions placed before every prompt.
        system_prompt: Option<String>,
        /// Prompt used when a trigger provides none.
        default_prompt: Option<String>,
        /// Model, such as `claude-sonnet-4-5`. Defaults to Claude's own choice.
        model: Option<String>,
        /// Schedules that start the agent: a map by name, or a list.
        schedules: SchedulesKeys,
        /// Session settings: how the agent's conversation continues between jobs.
        session: SessionKeys = "{}",
        /// Handling of questions and permission requests: `autonomous` (a person who follows the
        /// job may answer; otherwise the request is denied), `interactive` (the job waits for a
        /// person's answer, whatever its trigger; see `heeler approvals`), `review` (a person
        /// approves each action that is not read-only; needs `runtime: sdk`).
        approvals: ApprovalMode = "autonomous",
        /// Actions that the agent may take without asking. It has no effect with `runtime: scripted`
        /// or `command`. The tool lists apply to Claude only.
        permission_mode: PermissionMode = "acceptEdits",
        /// Built-in tools available to the agent. Defaults to all.
        tools: Option<Vec<String>>,
        /// If set, only these tools may run, and they run without asking. If not set, all tools may run, as `permission_mode` allows.
        /// `mcp__github__*` matches every tool of a server.
        allowed_tools: Option<Vec<String>>,
        /// Tools that must not be used.
        denied_tools: Option<Vec<String>>,
        /// Places from which Claude loads settings, CLAUDE.md and skills: `user`, `project`,
        /// `local`.
        setting_sources: Option<Vec<SettingSource>>,
        /// Let Claude's tools edit instruction files that other agents load: `CLAUDE.md`,
        /// `AGENTS.md`, `.claude` and `.mcp.json` in the fleet's directory and in the working
        /// directories of other agents.
        edit_instructions: bool = "false",
        /// MCP servers, by name.
        mcp_servers: IndexMap<String, SpannedValue<McpKeys>>,
        /// Plugin directories, relative to this file.
        plugins: Vec<PluginEntry>,
        /// Reasoning effort of the model: `low`, `medium`, `high`, `xhigh` or `max`. Defaults to the model's
        /// own.
        effort: Option<ReasoningEffort>,
        /// Maximum number of turns in one job.
        max_turns: Option<NonZeroU32>,
        /// Time limit of one job.
        timeout: Option<ConfigDuration>,
        /// A job that produces no output for this long is stopped. While a tool, a sub-agent or a
        /// background task is running, or a question is open, only `timeout` applies. Defaults to `1h`; with
        /// `runtime: scripted` or `command`, there is no limit.
        stall_timeout: Option<ConfigDuration>,
        /// The most money that the agent may spend.
        budget: Option<Budget>,
        /// Prices of models by name, for agents that report tokens and no cost (Codex, agents that speak
        /// ACP). With the price of `model`, `budget` holds for them. For some models Heeler has estimates. Claude Code
        /// reports its cost itself, so the key is refused for it.
        prices: IndexMap<String, TokenPrice>,
        /// Number of jobs of the agent that may run concurrently.
        instances: InstanceLimits = "{}",
        /// Queue priority of the agent's jobs, from -100 to 100; higher starts first.
        priority: PriorityKey = "0",
        /// Retries of jobs that failed for a temporary reason.
        retry: RetryKeys = "{}",
        /// Limits on the jobs that jobs of this agent may start.
        spawn: SpawnKeys = "{}",
        /// Time zone of the agent's cron schedules, such as `Europe/Vienna`. Defaults to the
        /// machine's time zone.
        timezone: Option<ConfigTimeZone>,
        /// Delay each scheduled start by a random time up to this.
        jitter: Option<ConfigDuration>,
        /// Handling of missed due times: `skip`, `run_once` (the default), `run_all`.
        missed: Option<MissedRunPolicy>,
        /// Handling of a due time while the previous job is still active: `skip` (the default) or
        /// `queue`.
        overlap: Option<OverlapPolicy>,
        /// Environment variables of the agent. The agent receives these, the listed `secrets` and a
        /// few variables that every program needs, and no others.
        env: EnvVars,
        /// Names of environment variables that the agent receives. Heeler removes their values from
        /// everything it writes.
        secrets: Vec<VarName>,
        /// Let the agent execute programs that gain privileges, such as `sudo`. Heeler then recognizes
        /// its processes less reliably; see `docs/security.md`. Defaults to false.
        allow_new_privileges: Option<SpannedValue<bool>>,
        /// The `claude` program: a path, or a name to look up on `PATH`.
        claude_path: Option<ProgramPath>,
        /// Actions that follow the end of a job; described in `docs/hooks.md`.
        hooks: HooksKeys = "{}",
        /// JSON file in the working directory that the agent writes for its hooks. Defaults to
        /// `metadata.json`. A file left by an earlier job is ignored.
        metadata_file: Option<String>,
        /// Source from which the interval and cron schedules of the agent take their work: each due time takes one issue
        /// and creates a job for it.
        work_source: Option<SpannedValue<WorkSource>>,
        /// Chats in which the agent answers.
        chat: Option<ChatConfig>,
        /// Channels and people of the fleet's `notify` that receive notices about this agent. Defaults to all of them;
        /// `[]` means none. Described in `docs/notifications.md`.
        notify: Option<Vec<SpannedValue<String>>>,
        /// Container in which the agent runs. It is described in `docs/isolation.md`.
        docker: Option<SpannedValue<DockerConfig>>,
        /// Sandbox in which the agent runs: `true`, `off`, or the settings of one. It is described in
        /// `docs/isolation.md`.
        sandbox: Option<SpannedValue<SandboxConfig>>,
    }
}

/// Agent keys that `defaults` may not set, because they identify one agent.
pub(crate) const KEYS_WITHOUT_DEFAULT: &[&str] =
    &["name", "description", "script", "command", "schedules", "identity", "chat", "metadata_file"];

impl AgentKeys {
    /// Returns the section of an agent file, in which `name` is required.
    pub(crate) fn file_section() -> ConfigSection {
        let mut section = AgentKeys::section();
        section
            .keys
            // An agent needs a name, but its overrides and the defaults do not.
            .iter_mut()
            .filter(|key| key.name == "name")
            .for_each(|key| key.required = true);
        section
    }

    /// Returns the section of `defaults`.
    pub(crate) fn defaults_section() -> ConfigSection {
        AgentKeys::section().without_keys("defaults", KEYS_WITHOUT_DEFAULT)
    }
}

section! {
    /// Name, role and personality of the agent in messages to people.
    pub struct AgentIdentity ("identity") {
        /// Display name.
        name: Option<String>,
        /// Role of the agent.
        role: Option<String>,
        /// Tone and style of the agent's messages.
        personality: Option<String>,
    }
}

section! {
    /// Concurrency limits.
    pub struct InstanceLimits ("instances") {
        /// Maximum number of jobs of the agent that run concurrently.
        max_concurrent: NonZeroU32 = "1",
    }
}

section! {
    /// The most money that may be spent, in US dollars.
    pub struct Budget ("budget") {
        /// Maximum for one job.
        job: Option<UsdAmount>,
        /// Maximum for one day, from midnight to midnight in the fleet's time zone.
        day: Option<UsdAmount>,
        /// Maximum in total.
        total: Option<UsdAmount>,
    }
}

section! {
    /// Working directory with its clone settings.
    pub struct CheckoutConfig ("working_directory") {
        /// The directory, relative to this file.
        root: Utf8PathBuf,
        /// Clone `repo` into the directory if it does not exist.
        auto_clone: bool = "true",
        /// Number of commits to clone.
        clone_depth: NonZeroU32 = "1",
        /// Branch to clone. Defaults to the repository's default branch.
        default_branch: Option<String>,
    }
}

/// Working directory of an agent: a path, or a path with clone settings.
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

/// Checked configuration of one agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentConfig {
    /// Name qualified by the names of its fleets.
    pub name: AgentName,
    /// File that defines the agent.
    pub file: Utf8PathBuf,
    pub description: Option<String>,
    pub runtime: RuntimeConfig,
    pub claude_path: Option<ProgramPath>,
    pub working_directory: Utf8PathBuf,
    /// True if the config sets the directory; otherwise it is the directory of the agent's file.
    pub has_explicit_working_directory: bool,
    /// Clone settings of the working directory, if configured.
    pub checkout: Option<CheckoutConfig>,
    pub repo: Option<RepoConfig>,
    /// Host that executes its jobs; `None` for the one that leads.
    pub host: Option<HostChoice>,
    /// Whether it works on if its host loses contact with the database.
    pub on_partition: PartitionPolicy,
    pub identity: Option<AgentIdentity>,
    pub system_prompt: Option<String>,
    pub default_prompt: Option<String>,
    pub model: Option<String>,
    /// Reasoning effort of the model.
    pub effort: Option<ReasoningEffort>,
    pub schedules: Vec<ScheduleConfig>,
    /// Session rules of jobs that no schedule started.
    pub session: SessionRules,
    pub approvals: ApprovalMode,
    pub permission_mode: PermissionMode,
    /// Built-in tools available to the agent; `None` means all.
    pub tools: Option<Vec<String>>,
    /// The only tools that may be used; `None` means no restriction.
    pub allowed_tools: Option<Vec<String>>,
    pub denied_tools: Vec<String>,
    pub setting_sources: Option<Vec<SettingSource>>,
    /// True if the agent may edit instruction files that other agents load.
    pub edit_instructions: bool,
    pub mcp_servers: IndexMap<String, McpServer>,
    pub plugins: Vec<PluginConfig>,
    pub max_turns: Option<NonZeroU32>,
    /// Time limit of a job that no schedule started.
    pub timeout: Option<ConfigDuration>,
    /// Longest time a job may produce no output.
    pub stall_timeout: Option<ConfigDuration>,
    pub budget: Option<Budget>,
    /// Prices of models, besides the estimated ones.
    pub prices: IndexMap<String, TokenPrice>,
    pub max_concurrent: NonZeroU32,
    /// Queue priority; higher starts first.
    pub priority: i32,
    pub retry: RetryPolicy,
    pub spawn: SpawnLimits,
    pub env: EnvVars,
    /// Names of the secret variables the agent receives.
    pub secrets: Vec<VarName>,
    /// Permissions of the token for GitHub that the agent gets; empty for none.
    pub github_token: Vec<GithubPermission>,
    /// Secrets of the whole fleet, which the agent may find in files.
    pub fleet_secrets: FleetSecrets,
    /// Its processes may gain privileges. They then lack the mark of agents.
    pub allow_new_privileges: bool,
    pub hooks: AgentHooks,
    /// File that the agent writes for its hooks.
    pub metadata_file: Option<String>,
    pub work_source: Option<WorkSource>,
    pub chat: Option<ChatConfig>,
    /// Channels that are told; `None` means all.
    pub notify: Option<Vec<String>>,
    pub docker: Option<DockerConfig>,
    pub sandbox: Option<SandboxConfig>,
    pub(crate) config_json: AgentConfigJson,
}

impl AgentConfig {
    /// Returns the price of the agent's model, if the config names the model and its price is known.
    pub fn token_price(&self) -> Option<TokenPrice> {
        find_token_price(&self.prices, self.model.as_deref()?)
    }
}

/// Position of an agent in the loaded files.
pub(crate) struct AgentSource<'a> {
    /// Names of the enclosing fleets, joined by dots; empty for the root.
    pub(crate) fleet: &'a str,
    /// File that defines the agent.
    pub(crate) file: &'a Utf8Path,
    /// Merged YAML tree of the agent.
    pub(crate) tree: &'a YamlNode,
}

impl AgentSource<'_> {
    /// Returns true if the key is present, even with a faulty value.
    fn has_key(&self, key: &str) -> bool {
        // A null hides an inherited value, as if the key were missing.
        self.tree.get(key).is_some_and(|value| !value.is_null())
    }
}

impl AgentConfig {
    /// Checks rules that involve several keys. Reports all faults.
    pub(crate) fn check(
        mut keys: AgentKeys,
        origin: &AgentSource<'_>,
        reader: &mut ConfigReader,
    ) -> Option<AgentConfig> {
        // Kept until all checks are done, so that every fault is reported.
        let name = qualified_name(&keys, origin, reader);
        keys.runtime = resolve_runtime(keys.runtime, keys.program.as_ref().map(|it| &it.value));
        unused_keys::warn_claude_only_keys(origin.tree, keys.runtime, reader);
        let runtime = check_runtime(&keys, origin, reader);
        complete_network(&mut keys, runtime.as_ref(), origin, reader);
        check_combinations(&keys, origin, reader);
        let schedules = check_own_and_schedules(&mut keys, origin, reader);
        let mut check_server =
            |(name, server)| Some((String::clone(name), McpServer::check(name, server, reader)?));
        let mcp_servers = keys.mcp_servers.iter().filter_map(&mut check_server).collect();
        let hooks = AgentHooks::check(&keys.hooks, reader);
        let allow_new_privileges = check_new_privileges(keys.allow_new_privileges.as_ref(), reader);
        let retry = RetryPolicy::check(&keys.retry, reader);
        let (working_directory, checkout) = match keys.working_directory.clone() {
            // Paths of a file are relative to it, and so is the directory of its agent.
            None => (origin.file.parent().unwrap_or(Utf8Path::new("")).to_owned(), None),
            Some(WorkingDirectory::Folder(folder)) => (folder, None),
            Some(WorkingDirectory::Checkout(checkout)) => (checkout.root.clone(), Some(checkout)),
        };
        let (name, runtime, mode) = (name?, runtime?, keys.session.mode);
        Some(AgentConfig {
            config_json: render_agent_json(&keys, &name, origin, &working_directory),
            name,
            file: origin.file.to_owned(),
            runtime,
            working_directory,
            has_explicit_working_directory: keys.working_directory.is_some(),
            checkout,
            schedules,
            mcp_servers,
            allow_new_privileges,
            hooks,
            retry,
            spawn: SpawnLimits::new(&keys.spawn),
            priority: keys.priority.get(),
            // The agent's own rules; each schedule may have others.
            session: keys.session.to_rules(mode),
            timeout: keys.timeout.or(keys.session.job_timeout(mode)),
            model: keys.model.or(keys.session.model),
            effort: keys.effort,
            max_turns: keys.max_turns.or(keys.session.max_turns),
            max_concurrent: keys.instances.max_concurrent,
            plugins: keys.plugins.into_iter().map(|PluginEntry(plugin)| plugin).collect(),
            allowed_tools: keys.allowed_tools,
            denied_tools: keys.denied_tools.unwrap_or_default(),
            description: keys.description,
            claude_path: keys.claude_path,
            repo: keys.repo,
            host: keys.host.map(|host| host.value),
            on_partition: keys.on_partition,
            identity: keys.identity,
            system_prompt: keys.system_prompt,
            default_prompt: keys.default_prompt,
            approvals: keys.approvals,
            permission_mode: keys.permission_mode,
            tools: keys.tools,
            setting_sources: keys.setting_sources,
            edit_instructions: keys.edit_instructions,
            stall_timeout: keys.stall_timeout,
            budget: keys.budget,
            prices: keys.prices,
            env: keys.env,
            secrets: keys.secrets,
            // Known only when all files are loaded.
            github_token: Vec::new(),
            fleet_secrets: FleetSecrets::default(),
            metadata_file: keys.metadata_file,
            work_source: keys.work_source.map(|source| source.value),
            chat: keys.chat,
            notify: keys.notify.map(|names| names.into_iter().map(|name| name.value).collect()),
            docker: keys.docker.map(|docker| docker.value),
            sandbox: keys.sandbox.map(|sandbox| sandbox.value),
        })
    }
}

/// Refuses keys that cannot be honoured together.
fn check_combinations(keys: &AgentKeys, origin: &AgentSource<'_>, reader: &mut ConfigReader) {
    runtime_settings(keys, origin).check_review(reader);
    runtime_settings(keys, origin).check_messages(reader);
    runtime_settings(keys, origin).check_prices(reader);
    warn_removed_mode(keys, origin, reader);
    check_sandbox(keys, reader);
    check_docker(keys, reader);
}

/// Returns the settings that depend on the capabilities of the runtime.
fn runtime_settings<'a>(keys: &'a AgentKeys, origin: &AgentSource<'a>) -> RuntimeSettings<'a> {
    let is_sandboxed = keys.sandbox.as_ref().is_some_and(|it| it.value.settings().is_some());
    RuntimeSettings {
        runtime: keys.runtime,
        tree: origin.tree,
        program: keys.program.as_ref(),
        permission_mode: keys.permission_mode,
        approvals: keys.approvals,
        is_priced: keys
            .model
            .as_ref()
            .or(keys.session.model.as_ref())
            .is_some_and(|model| find_token_price(&keys.prices, model).is_some()),
        is_counted: is_sandboxed && has_proxied_credentials(keys),
        is_isolated: is_sandboxed || keys.docker.as_ref().is_some_and(|it| it.value.enabled),
    }
}

/// Returns true if the agent is refused unless the proxy adds its credentials.
fn has_proxied_credentials(keys: &AgentKeys) -> bool {
    let settings = keys.sandbox.as_ref().and_then(|sandbox| sandbox.value.settings());
    settings.is_some_and(|it| it.credentials == Some(CredentialMode::Proxied))
}

/// Refuses what a sandbox cannot give.
fn check_sandbox(keys: &AgentKeys, reader: &mut ConfigReader) {
    let is_on = |it: &&SpannedValue<SandboxConfig>| {
        it.value.settings().is_some() || it.value.file_limits().is_some()
    };
    let Some(sandbox) = keys.sandbox.as_ref().filter(is_on) else { return };
    check_landlock(keys, sandbox, reader);
    if keys.allow_new_privileges.as_ref().is_some_and(|allowed| allowed.value) {
        let message =
            "no process gains privileges in a sandbox, so `allow_new_privileges` cannot be honoured"
                .to_owned();
        reader.error(sandbox.at, message).expected("remove one of both keys");
    }
}

/// Refuses what Landlock cannot give.
fn check_landlock(
    keys: &AgentKeys,
    sandbox: &SpannedValue<SandboxConfig>,
    reader: &mut ConfigReader,
) {
    let Some(settings) = sandbox.value.file_limits() else { return };
    for key in settings.keys_beyond_landlock() {
        let message = format!("`level: landlock` limits only files, so it cannot honour `{key}`");
        reader
            .error(sandbox.at, message)
            .expected(format!("remove `{key}`, or `level: landlock`").as_str());
    }
    if keys.docker.as_ref().is_some_and(|docker| docker.value.enabled) {
        let message = "an agent in a container cannot have `level: landlock`".to_owned();
        reader.error(sandbox.at, message).expected("remove `level`, or `docker`");
    }
}

fn qualified_name(
    keys: &AgentKeys,
    origin: &AgentSource<'_>,
    reader: &mut ConfigReader,
) -> Option<AgentName> {
    let Some(name) = &keys.name else {
        // A name with a fault was reported already, and is not missing.
        if !origin.has_key("name") {
            let message = "the agent has no `name`".to_owned();
            reader.error(origin.tree.at, message).expected("`name` belongs here");
        }
        return None;
    };
    // Names are unique within a fleet only.
    let text = match origin.fleet {
        "" => name.value.to_string(),
        fleet => format!("{fleet}.{}", name.value),
    };
    // Each part is valid, so only the length of the whole can be wrong.
    match text.parse() {
        Ok(name) => Some(name),
        Err(error) => {
            let message = format!("{error}");
            reader.error(name.at, message).expected("expected a shorter name");
            None
        }
    }
}

/// Prompt of a herdctl agent for which none is written.
const HERDCTL_PROMPT: &str = "Execute your configured task";

/// Returns true if an agent of this runtime cannot work without a prompt.
fn reads_prompts(runtime: RuntimeType) -> bool {
    !matches!(runtime, RuntimeType::Scripted | RuntimeType::Command)
}

/// Completes the agent's keys as herdctl does, if the config is herdctl's, and checks the schedules.
fn check_own_and_schedules(
    keys: &mut AgentKeys,
    origin: &AgentSource<'_>,
    reader: &mut ConfigReader,
) -> Vec<ScheduleConfig> {
    let is_herdctl = reader.dialect == ConfigDialect::Herdctl;
    if is_herdctl && reads_prompts(keys.runtime) {
        keys.default_prompt.get_or_insert_with(|| HERDCTL_PROMPT.to_owned());
    }
    let session = origin.tree.get("session");
    let names_session_mode = session.is_some_and(|session| session.get("mode").is_some());
    let schedules = check_schedules(keys, names_session_mode, reader);
    // After the schedules: jobs of a person continue the agent's session, theirs do not.
    if is_herdctl && !names_session_mode && keys.runtime != RuntimeType::Command {
        keys.session.mode = SessionMode::Persistent;
    }
    schedules
}

fn check_schedules(
    keys: &AgentKeys,
    names_session_mode: bool,
    reader: &mut ConfigReader,
) -> Vec<ScheduleConfig> {
    let defaults = AgentScheduleDefaults {
        names_session_mode,
        prompt: keys.default_prompt.as_ref(),
        session: &keys.session,
        timeout: keys.timeout,
        timezone: keys.timezone.as_ref(),
        jitter: keys.jitter,
        missed: keys.missed,
        overlap: keys.overlap,
        work_source: keys.work_source.as_ref(),
        priority: keys.priority,
    };
    let schedules = keys.schedules.0.iter();
    // A boxed slice has no spare capacity, which matters with ten thousand agents.
    let checked: Box<[ScheduleConfig]> = schedules
        .filter_map(|(name, keys)| ScheduleConfig::check(name, keys, &defaults, reader))
        .collect();
    checked.into_vec()
}

/// Warns about a permission mode that Claude no longer has. Only its agent is refused: the others of
/// a herdctl fleet go on.
fn warn_removed_mode(keys: &AgentKeys, origin: &AgentSource<'_>, reader: &mut ConfigReader) {
    if keys.permission_mode == PermissionMode::Delegate {
        let at = origin.tree.get("permission_mode").map_or(origin.tree.at, |mode| mode.at);
        let message = "Claude has no mode `delegate` any more: the agent is refused and never runs \
                       in another mode instead";
        reader.warn(at, message.to_owned()).expected("choose another mode");
    }
}

fn check_runtime(
    keys: &AgentKeys,
    origin: &AgentSource<'_>,
    reader: &mut ConfigReader,
) -> Option<RuntimeConfig> {
    // The fault is about the agent as a whole, so it is shown at its name.
    let at = keys.name.as_ref().map_or(origin.tree.at, |name| name.at);
    let runtime = keys.runtime;
    if let Some(script) = keys.script.as_ref().filter(|_| runtime != RuntimeType::Scripted) {
        let message = format!("`script` needs `runtime: scripted`; the runtime is `{runtime}`");
        reader.error(script.at, message).expected("it would never be executed");
    }
    if let Some(command) = keys.command.as_ref().filter(|_| runtime != RuntimeType::Command) {
        let message = format!("`command` needs `runtime: command`; the runtime is `{runtime}`");
        reader.error(command.at, message).expected("it would never be run");
    }
    let settings = runtime_settings(keys, origin);
    settings.refuse_program(reader);
    if runtime.has_program() {
        return settings.check_program(reader);
    }
    let mut missing = |key: &str| {
        // A value with a fault is not missing.
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
        RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen => unreachable!("checked above"),
    }
}

/// Renders the merged keys together with the qualified name and directories, which are known only
/// after loading.
fn render_agent_json(
    keys: &AgentKeys,
    name: &AgentName,
    origin: &AgentSource<'_>,
    working_directory: &Utf8Path,
) -> AgentConfigJson {
    let mut shown = keys.show();
    // Values of variables may be secret, so the text as written is shown.
    restore_templates(&mut shown, origin.tree);
    // The default depends on the file, so a reader could not know it.
    if keys.working_directory.is_none() {
        shown["working_directory"] = json!(working_directory);
    }
    shown["qualified_name"] = json!(name);
    shown["file"] = json!(origin.file);
    AgentConfigJson::new(&shown)
}
