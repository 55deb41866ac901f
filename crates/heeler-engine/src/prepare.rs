//! Converts an agent's config and a job request to everything that a run needs.
//!
//! Errors that can be detected before a job exists are reported here, with a remedy. Nothing is
//! written. Start at [`prepare_request`].

mod assigned;
mod container;
mod protection;
mod runtime;
mod sandbox;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{
    AgentConfig, ConfigDuration, LogDurability, PermissionMode, RuntimeConfig, RuntimeType,
    ScheduleConfig, SessionRules,
};
use heeler_connect::ChatPolicy;
pub(crate) use heeler_model::agent_environment as environment;
use heeler_model::agent_environment::AgentEnvironmentError;
use heeler_model::permission_grant::PermissionGrant;
use heeler_model::run::{
    AgentLaunchSpec, BudgetSource, KeptAgentLimits, PROTOCOL, QuestionPolicy, RunAuthority,
    RunLimits, RuntimeLaunchSpec,
};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{ApprovalMode, JobRequest, PhaseJobKind, SessionMode, TriggerType};
use indexmap::IndexMap;
use thiserror::Error;

use crate::resolved_request::ResolvedJobRequest;
pub(crate) use assigned::prepare_assigned_request;
use container::{ContainerError, run_container};
pub use protection::{ProtectedFiles, StateDirFinder};
use protection::{RunProtection, protect_run};

/// Longest time without output of an agent with a model, if its config names none: an hour.
const STALL_DEFAULT_MS: u64 = 60 * 60 * 1000;

/// Time that a question waits for a person who watches.
const ANSWER_WAIT_MS: u64 = 30 * 60 * 1000;

/// Variable by which an environment claims to be a sandbox, to Claude and to Heeler.
pub const SANDBOX_VARIABLE: &str = "IS_SANDBOX";

/// Expiry of a chat channel's session if the agent's rules define none.
const CHANNEL_EXPIRY: &str = "24h";

/// Environment, directories and fleet settings for preparing a job.
#[derive(Clone, Copy)]
pub struct PrepareContext<'s> {
    /// Environment variables, including those of `.env`.
    pub env: &'s BTreeMap<String, String>,
    /// The user's home directory.
    pub home: &'s Utf8Path,
    /// Directory for control sockets.
    pub sockets: &'s Utf8Path,
    /// Setting for when transcripts are synced to disk.
    pub durability: LogDurability,
    /// The fleet's limit on concurrent jobs.
    pub max_concurrent: Option<NonZeroU32>,
    /// Agents of the config.
    pub agents: &'s [AgentConfig],
    /// Files that agents must not change or read.
    pub protected: &'s ProtectedFiles,
    /// True if agents run as root.
    pub is_root: bool,
    /// Working directory of the session, if it has its own; overrides the config.
    pub directory: Option<&'s Utf8Path>,
}

/// Failure to prepare a job.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// The schedule does not exist.
    #[error("{agent} has no schedule `{schedule}`; it has {known}")]
    Schedule {
        agent: String,
        schedule: String,
        /// Names of the existing schedules.
        known: String,
    },
    /// There is no prompt.
    #[error("there is no prompt for {agent}: pass one, or set `default_prompt` in {file}")]
    Prompt {
        agent: String,
        /// The agent's config file.
        file: Utf8PathBuf,
    },
    /// The config asks for a container that cannot be had.
    #[error(
        "{agent} cannot run in its container, and never runs without it unless its config says \
         `docker: {{enabled: false}}`"
    )]
    Container {
        agent: String,
        #[source]
        source: ContainerError,
    },
    /// Claude no longer has the permission mode.
    #[error(
        "{agent} has `permission_mode: delegate`, which Claude no longer has; it never runs in \
         another mode instead: choose one in {file}"
    )]
    PermissionMode {
        agent: String,
        /// The agent's config file.
        file: Utf8PathBuf,
    },
    /// The working directory cannot be used.
    #[error("{agent} cannot work in {path}: make that folder, or change `working_directory`")]
    WorkingDirectory {
        agent: String,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// A link leads from another agent's directory to the working directory.
    #[error(
        "{agent} was not started: {path} is behind a link in the working directory of {other}, \
         which may have made it, and leads to {real}; name that directory as `working_directory` if \
         it is right"
    )]
    ForeignLink { agent: String, other: String, path: Utf8PathBuf, real: Utf8PathBuf },
    /// Root may not skip permissions outside a sandbox.
    #[error(
        "{agent} has `permission_mode: bypassPermissions`, which root must not use outside a \
         sandbox: set `sandbox: true`, run the fleet as another user, or choose another mode in {file}; if this machine \
         is a sandbox, set `env: {{IS_SANDBOX: \"1\"}}` there"
    )]
    BypassAsRoot {
        agent: String,
        /// The agent's config file.
        file: Utf8PathBuf,
    },
    /// `claude` is not installed.
    #[error(
        "cannot find `{program}`{}: install Claude Code (npm install -g \
         @anthropic-ai/claude-code), or set `claude_path` to where it is",
        if program.as_str().contains('/') { "" } else { " on PATH" }
    )]
    Claude {
        /// The name or path that was looked up.
        program: Utf8PathBuf,
    },
    /// The program of the agent is not installed.
    #[error(
        "cannot find `{program}`{}: install {package}, or set `program: {{path: ...}}` to where it is",
        if program.as_str().contains('/') { "" } else { " on PATH" }
    )]
    Program {
        /// The name or path that was looked up.
        program: Utf8PathBuf,
        /// Package that contains the program.
        package: String,
    },
    /// The agent's environment lacks a secret, or has one that is too short.
    #[error(transparent)]
    Environment(#[from] AgentEnvironmentError),
}

impl PrepareContext<'_> {
    /// Returns the directories of Heeler itself.
    fn own_folders(&self) -> Vec<Utf8PathBuf> {
        let mut folders = self.protected.state_dirs.clone();
        folders.extend([self.home.to_owned(), self.sockets.to_owned()]);
        folders
    }

    /// Adds the secrets of all agents: external messages may contain those of any agent.
    fn add_all_secrets(&self, secrets: &mut Vec<String>) {
        secrets.extend(self.agents.iter().flat_map(|agent| environment::secrets(agent, self.env)));
        secrets.sort();
        secrets.dedup();
    }
}

/// Returns the prompt of a job, with a mark if an agent wrote it.
fn marked_prompt(
    agent: &AgentConfig,
    schedule: Option<&ScheduleConfig>,
    wanted: &JobRequest,
) -> Result<String, PrepareError> {
    let prompt = resolve_prompt(agent, schedule, wanted.prompt.clone())?;
    let author = wanted.prompt_by.as_ref().filter(|_| reads_marks(agent));
    Ok(author.map_or_else(|| prompt.clone(), |author| author.mark(&prompt)))
}

fn cannot_work(agent: &AgentConfig, path: &Utf8Path, source: io::Error) -> PrepareError {
    let (agent, path) = (agent.name.to_string(), path.to_owned());
    PrepareError::WorkingDirectory { agent, path, source }
}

/// Resolves a job request for an agent.
pub fn prepare_request(
    agent: &AgentConfig,
    wanted: &JobRequest,
    around: &PrepareContext<'_>,
) -> Result<ResolvedJobRequest, PrepareError> {
    refuse_removed_mode(agent)?;
    let schedule = find_schedule(agent, wanted.schedule.as_deref())?;
    let prompt = marked_prompt(agent, schedule, wanted)?;
    let directory = around.directory.unwrap_or(&agent.working_directory);
    let mut working_directory =
        real_folder(directory).map_err(|source| cannot_work(agent, directory, source))?;
    sandbox::refuse_foreign_link(agent, around.agents, directory, &working_directory)?;
    let environment::AgentEnvironment { mut env, mut secrets, shared_secrets } =
        environment::select_environment(agent, around.env)?;
    if wanted.take_in {
        around.add_all_secrets(&mut secrets);
    }
    if let Some(phase) = &wanted.phase {
        if let Some(folder) = &phase.folder {
            let inside = working_directory.join(folder);
            // The folder may be text from a workflow, so it must not lead outside.
            working_directory = resolve_subfolder(&working_directory, folder)
                .map_err(|source| cannot_work(agent, &inside, source))?;
        }
        if let PhaseJobKind::Command { env: more, .. } = &phase.work {
            env.extend(more.iter().cloned());
        }
    }
    let mut work = resolve_work(agent, &env, around, &working_directory)?;
    apply_permissions(&mut work, agent, &wanted.permissions);
    // An agent never runs with less isolation than its config asks for.
    let container = run_container(agent, around.env, &around.own_folders(), &mut env)
        .map_err(|source| PrepareError::Container { agent: agent.name.to_string(), source })?;
    let sandbox = sandbox::run_sandbox(agent, around, &env, &working_directory, container);
    // The daemon adds its lock when it starts the run.
    let file_limits = sandbox::run_file_limits(agent, around, &env, &working_directory);
    let allow_new_privileges = agent.allow_new_privileges;
    let authority = RunAuthority { allow_new_privileges, file_limits, ..RunAuthority::default() };
    let brief = AgentLaunchSpec {
        protocol: PROTOCOL,
        prompt,
        env,
        secrets,
        shared_secrets,
        work,
        send_files_to: None,
        authority,
        may_start_jobs: agent.spawn.allows_jobs(),
        sandbox,
    };
    Ok(ResolvedJobRequest {
        keep_agent: kept_agent_limits(agent, wanted),
        github_token: agent.github_token.clone(),
        ..configured_request((agent, schedule), wanted, around, (working_directory, brief))
    })
}

/// Returns a request with the values that come from the config and the request alone.
fn configured_request(
    (agent, schedule): (&AgentConfig, Option<&ScheduleConfig>),
    wanted: &JobRequest,
    around: &PrepareContext<'_>,
    (working_directory, brief): (Utf8PathBuf, AgentLaunchSpec),
) -> ResolvedJobRequest {
    ResolvedJobRequest {
        agent: agent.name.clone(),
        fleet_agents: around.agents.iter().map(|agent| agent.name.clone()).collect(),
        trigger: wanted.trigger.clone(),
        schedule: schedule.map(|schedule| schedule.name.clone()),
        runtime: agent.runtime.kind(),
        working_directory,
        host_choice: agent.host.clone(),
        is_assigned: false,
        host: None,
        output_file: wanted.output_file || schedule.is_some_and(|it| it.output_to_file),
        home: around.home.to_owned(),
        sockets: around.sockets.to_owned(),
        session: wanted.session.clone(),
        is_phase_command: wanted.is_phase_command(),
        rules: session_rules(agent, schedule, wanted),
        forked_from: None,
        channel: wanted.channel.clone(),
        has_transcript: false,
        note: None,
        take_in: wanted.take_in,
        approvals: agent.approvals,
        max_concurrent: agent.max_concurrent,
        fleet_max_concurrent: around.max_concurrent,
        limits: run_limits(agent, schedule, wanted),
        attendance: question_policy(agent, wanted),
        sync_each_row: around.durability == LogDurability::Event,
        // The answer to a message is posted.
        keep_output: wanted.phase.is_some() || wanted.trigger == TriggerType::Chat,
        keep_agent: None,
        skill_files: Vec::new(),
        github_token: Vec::new(),
        brief,
    }
}

/// Returns the limits of the agent's process if it may stay for the next turn of a conversation.
fn kept_agent_limits(agent: &AgentConfig, wanted: &JobRequest) -> Option<KeptAgentLimits> {
    let conversation_pid = wanted.conversation_pid.filter(|_| wanted.attended)?;
    let idle_ms = period_millis(agent.session.keep_agent_for?);
    // Claude counts these limits for its process, which would have all turns.
    let is_limited = agent.max_turns.is_some()
        || agent.budget.as_ref().is_some_and(|budget| budget.job.is_some());
    let is_sdk = matches!(agent.runtime, RuntimeConfig::Sdk);
    (is_sdk && !is_limited).then_some(KeptAgentLimits { idle_ms, conversation_pid })
}

fn question_policy(agent: &AgentConfig, wanted: &JobRequest) -> QuestionPolicy {
    match wanted.attended || agent.approvals != ApprovalMode::Autonomous {
        true => QuestionPolicy::Person { timeout_ms: ANSWER_WAIT_MS },
        false => QuestionPolicy::Nobody,
    }
}

/// Returns the agent's work, with the files that its tools must not touch.
fn resolve_work(
    agent: &AgentConfig,
    env: &IndexMap<String, String>,
    around: &PrepareContext<'_>,
    working_directory: &Utf8Path,
) -> Result<RuntimeLaunchSpec, PrepareError> {
    refuse_bypass_as_root(agent, env, around.is_root)?;
    let mut work = runtime::runtime_work(agent, env)?;
    let protection = || protect_run(around.protected, agent, around.agents, working_directory);
    match &mut work {
        RuntimeLaunchSpec::Claude(claude) => {
            let RunProtection { protected, instructed, unreadable } = protection();
            (claude.protected, claude.unreadable) = (protected, unreadable);
            claude.instructed = instructed;
        }
        RuntimeLaunchSpec::Acp(program)
        | RuntimeLaunchSpec::Codex(program)
        | RuntimeLaunchSpec::Qwen(program) => {
            let RunProtection { protected, unreadable, .. } = protection();
            (program.protected, program.unreadable) = (protected, unreadable);
        }
        RuntimeLaunchSpec::Script { .. } | RuntimeLaunchSpec::Command { .. } => {}
    }
    Ok(work)
}

/// Applies the permissions that a person gave in the conversation. The agent's lists of tools, its
/// protected files and a review limit them, as in any mode.
fn apply_permissions(work: &mut RuntimeLaunchSpec, agent: &AgentConfig, given: &PermissionGrant) {
    let RuntimeLaunchSpec::Claude(claude) = work else { return };
    if let Some(mode) = given.mode.as_deref().and_then(|mode| runtime::chosen_mode(agent, mode)) {
        claude.permission_mode = mode.to_string();
    }
    if agent.approvals != ApprovalMode::Review {
        claude.granted = given.allow.iter().map(ToString::to_string).collect();
    }
}

fn refuse_removed_mode(agent: &AgentConfig) -> Result<(), PrepareError> {
    if agent.permission_mode != PermissionMode::Delegate {
        return Ok(());
    }
    let (agent, file) = (agent.name.to_string(), agent.file.clone());
    Err(PrepareError::PermissionMode { agent, file })
}

/// Refuses root without permissions, for any agent program. Claude refuses it too, unless its environment claims to be a
/// sandbox: only the person who writes the config may claim that.
fn refuse_bypass_as_root(
    agent: &AgentConfig,
    env: &IndexMap<String, String>,
    is_root: bool,
) -> Result<(), PrepareError> {
    let has_mode = !matches!(agent.runtime, RuntimeConfig::Scripted(_) | RuntimeConfig::Command(_));
    let skips = runtime::permission_mode(agent) == PermissionMode::BypassPermissions;
    let is_sandboxed = agent.isolation_settings().is_some();
    if !(is_root && has_mode && skips) || is_sandboxed || env.contains_key(SANDBOX_VARIABLE) {
        return Ok(());
    }
    let (agent, file) = (agent.name.to_string(), agent.file.clone());
    Err(PrepareError::BypassAsRoot { agent, file })
}

fn find_schedule<'a>(
    agent: &'a AgentConfig,
    name: Option<&str>,
) -> Result<Option<&'a ScheduleConfig>, PrepareError> {
    let Some(name) = name else { return Ok(None) };
    let found = agent.schedules.iter().find(|schedule| schedule.name == name);
    found.map(Some).ok_or_else(|| {
        let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
        PrepareError::Schedule {
            agent: agent.name.to_string(),
            schedule: name.to_owned(),
            known: match names.is_empty() {
                true => "none: leave --schedule out".to_owned(),
                false => names.join(", "),
            },
        }
    })
}

/// Returns the prompt. It may be empty for scripted agents and commands, which need none.
fn resolve_prompt(
    agent: &AgentConfig,
    schedule: Option<&ScheduleConfig>,
    given: Option<String>,
) -> Result<String, PrepareError> {
    let prompt = given
        .or_else(|| schedule.and_then(|schedule| schedule.prompt.clone()))
        .or_else(|| agent.default_prompt.clone());
    let needs_prompt =
        !matches!(agent.runtime, RuntimeConfig::Scripted(_) | RuntimeConfig::Command(_));
    match prompt {
        Some(prompt) if !(needs_prompt && prompt.trim().is_empty()) => Ok(prompt),
        None if !needs_prompt => Ok(String::new()),
        _ => Err(PrepareError::Prompt { agent: agent.name.to_string(), file: agent.file.clone() }),
    }
}

/// Returns true if an agent can take a mark of a message into account. A script would only
/// repeat it.
pub(crate) fn reads_marks(agent: &AgentConfig) -> bool {
    !matches!(agent.runtime, RuntimeConfig::Scripted(_))
}

pub(crate) fn real_folder(path: &Utf8Path) -> io::Result<Utf8PathBuf> {
    let real = path.canonicalize_utf8()?;
    match real.is_dir() {
        true => Ok(real),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Returns the canonical path of a subdirectory; refuses symbolic links that lead outside.
fn resolve_subfolder(root: &Utf8Path, folder: &str) -> io::Result<Utf8PathBuf> {
    let real = real_folder(&root.join(folder))?;
    // Both paths are resolved, so links and `..` are covered.
    match real.starts_with(root) {
        true => Ok(real),
        false => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("not inside of {root}")))
        }
    }
}

fn session_rules(
    agent: &AgentConfig,
    schedule: Option<&ScheduleConfig>,
    wanted: &JobRequest,
) -> SessionRules {
    let mut rules = schedule.map_or(&agent.session, |schedule| &schedule.session).clone();
    // Parts of a workflow are not part of the agent's own session.
    // Nor are a worker's new sessions: only a caller that names such a session continues it.
    let is_workers_own = wanted.parent.is_some() && wanted.session == SessionChoice::Fresh;
    if wanted.phase.is_some() || is_workers_own {
        rules.mode = SessionMode::FreshPerJob;
    }
    // A request with a channel continues the channel's session.
    if wanted.channel.is_some() {
        rules.mode = SessionMode::PerChannel;
        let day = || CHANNEL_EXPIRY.parse().expect("a day is within the limits of a period");
        rules.expires_after.get_or_insert_with(|| chat_expiry(agent, wanted).unwrap_or_else(day));
    }
    rules
}

/// Returns the expiry of a conversation that the settings of its platform name.
fn chat_expiry(agent: &AgentConfig, wanted: &JobRequest) -> Option<ConfigDuration> {
    let platform = wanted.channel.as_deref()?.split('/').next()?.parse().ok()?;
    let expiry = ChatPolicy::of_agent(agent, platform)?.session_expiry;
    // An expiry beyond the limit of a period is no expiry that a person would notice.
    ConfigDuration::from_millis(u64::try_from(expiry.as_millis()).ok()?).ok()
}

fn run_limits(
    agent: &AgentConfig,
    schedule: Option<&ScheduleConfig>,
    wanted: &JobRequest,
) -> RunLimits {
    let timeout = schedule.map_or(agent.timeout, |schedule| schedule.timeout);
    let budget = agent.budget.as_ref().and_then(|budget| budget.job);
    let budget = budget.map(|usd| i64::try_from(usd.micros()).unwrap_or(i64::MAX));
    let phase = wanted.phase.as_deref();
    let left = phase.and_then(|phase| phase.micros_left);
    let is_of_workflow = left.is_some_and(|left| budget.is_none_or(|budget| left < budget));
    let source = if is_of_workflow { BudgetSource::Workflow } else { BudgetSource::Job };
    let budget = [budget, left].into_iter().flatten().min();
    RunLimits {
        timeout_ms: phase.and_then(|phase| phase.timeout_ms).or(timeout.map(period_millis)),
        stall_timeout_ms: stall_timeout(agent).map(period_millis),
        max_turns: agent.max_turns.map(NonZeroU32::get),
        budget_usd: budget.map(|micros| micros as f64 / 1_000_000.0),
        budget_source: budget.map(|_| source),
        grace_ms: None,
        // It depends on the fleet: see `set_run_lease`.
        lease_ms: None,
    }
}

/// Returns the time without output after which a run is stopped. A model that says nothing for so
/// long, and waits for no tool, has lost its connection. Commands may be silent for hours.
fn stall_timeout(agent: &AgentConfig) -> Option<ConfigDuration> {
    let has_model = !matches!(agent.runtime.kind(), RuntimeType::Command | RuntimeType::Scripted);
    agent
        .stall_timeout
        .or_else(|| ConfigDuration::from_millis(STALL_DEFAULT_MS).ok().filter(|_| has_model))
}

pub(crate) fn period_millis(period: ConfigDuration) -> u64 {
    duration_millis(period.get())
}

pub(crate) fn duration_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
