//! The daemon's setup: the checked config with its environment.
//!
//! It is replaced as a whole when the config is reloaded. Start at
//! [`DaemonSetup::prepare_request`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::workflow::{
    FaultyWorkflowFile, GitAccessProfile, LoadedWorkflow, Workflow, WorkflowSettings,
    load_frozen_workflow,
};
use heeler_config::{
    AgentConfig, AgentLookupError, AgentProgram, FleetConfig, LoadedConfig, LogDurability,
    RenderStyle, RuntimeConfig, is_secret_name,
};
use heeler_model::config_change::ConfigContent;
use heeler_model::redact::SecretRedactor;
use heeler_model::{AgentName, JobRequest, PhaseJobKind};
use heeler_store::{StateDatabase, WorkflowRunRow};
use indexmap::IndexMap;
use jiff::tz::TimeZone;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::command::{DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::hooks::{ChatServiceUrls, HookWorkerConfig};
use crate::prepare::{self, PrepareContext, PrepareError, ProtectedFiles, environment};
use crate::resolved_request::ResolvedJobRequest;
use heeler_store::FleetEnvironment;

/// Config and environment of a daemon.
#[derive(Debug)]
pub struct DaemonSetup {
    /// Path of the config file.
    pub config: Utf8PathBuf,
    /// Content of the config.
    pub loaded: Arc<LoadedConfig>,
    /// Content of all files that decided it.
    pub content: ConfigContent,
    /// Environment variables, including those of `.env`.
    pub env: BTreeMap<String, String>,
    /// The user's home directory.
    pub home: Utf8PathBuf,
    /// Directory for control sockets.
    pub sockets: Utf8PathBuf,
    /// Files that agents must not change or read.
    pub protected: ProtectedFiles,
    /// Time zone of days, and of cron expressions that name none.
    pub zone: TimeZone,
    /// Addresses of chat services.
    pub services: ChatServiceUrls,
}

impl DaemonSetup {
    /// Returns the part of the setup that readers need.
    pub(crate) fn fleet_environment(&self) -> FleetEnvironment<'_> {
        FleetEnvironment { loaded: Some(&self.loaded), env: &self.env, home: &self.home }
    }

    /// Returns an agent by its qualified name.
    pub fn agent(&self, name: &str) -> Option<&AgentConfig> {
        self.loaded.agent(name)
    }

    /// Finds an agent by its qualified name, or by its own name if that is unique.
    pub fn find_agent(&self, name: &str) -> Result<&AgentConfig, DaemonCommandError> {
        self.loaded.find_agent(name).map_err(|error| match &error {
            AgentLookupError::Unknown { nearest, .. } => {
                let refused =
                    DaemonCommandError::new(DaemonCommandErrorKind::NotFound, error.to_string());
                match nearest {
                    Some(near) => refused.with_hint(format!("did you mean `{near}`?")),
                    None => refused.with_hint("heeler reload, if it was just added to the config"),
                }
            }
            AgentLookupError::Ambiguous { .. } => {
                DaemonCommandError::new(DaemonCommandErrorKind::Usage, error.to_string())
            }
        })
    }

    pub fn workflow(&self, name: &str) -> Result<&LoadedWorkflow, DaemonCommandError> {
        if let Some(found) = self.loaded.workflow(name) {
            return Ok(found);
        }
        Err(self.loaded.faulty_workflow(name).map_or_else(
            || self.workflow_not_found(name),
            |faulty| self.faulty_workflow_error(faulty),
        ))
    }

    fn faulty_workflow_error(&self, faulty: &FaultyWorkflowFile) -> DaemonCommandError {
        let faults = faulty.faults.render(RenderStyle::Plain, self.config_folder());
        let message = format!("the workflow `{}` has faults:\n{faults}", faulty.label());
        let hint = format!("heeler workflow validate {}", faulty.label());
        DaemonCommandError::new(DaemonCommandErrorKind::Usage, message).with_hint(hint)
    }

    /// Returns the directory of the config file.
    pub(crate) fn config_folder(&self) -> &Utf8Path {
        self.config.parent().unwrap_or(Utf8Path::new(""))
    }

    fn workflow_not_found(&self, name: &str) -> DaemonCommandError {
        let names: Vec<&str> =
            self.loaded.workflows.iter().map(|it| it.workflow.name.as_str()).collect();
        let refused = DaemonCommandError::new(
            DaemonCommandErrorKind::NotFound,
            format!("there is no workflow `{name}`"),
        );
        match names.is_empty() {
            true => refused.with_hint(format!("put one into {}", self.workflow_settings().folder)),
            false => refused.with_hint(format!("known workflows: {}", names.join(", "))),
        }
    }

    /// Returns the default agent of workflows: the configured one, or the only one.
    pub(crate) fn workflow_agent(&self) -> Option<AgentName> {
        let only = || match &self.loaded.agents[..] {
            [only] => Some(only.name.clone()),
            _ => None,
        };
        self.workflow_settings().agent.clone().or_else(only)
    }

    /// Returns the settings for all workflows.
    pub(crate) fn workflow_settings(&self) -> Cow<'_, WorkflowSettings> {
        match self.root() {
            Some(fleet) => Cow::Borrowed(&fleet.workflows),
            None => Cow::Owned(WorkflowSettings::default()),
        }
    }

    /// Returns the workflow definition that a run uses.
    pub(crate) fn definition_of(
        &self,
        db: &StateDatabase,
        row: &WorkflowRunRow,
    ) -> Result<Arc<Workflow>, DispatchFailure> {
        let id = &row.head.id;
        let trouble = |why: String| DaemonCommandError::new(DaemonCommandErrorKind::Trouble, why);
        // The stored definition is used, because the file may have changed since the run began.
        let files = match &row.definition {
            Some(hash) => db.definition(hash)?,
            None => None,
        };
        let Some(files) = files else {
            return Err(trouble(format!("the workflow definition of {id} is not stored")).into());
        };
        let thawed = load_frozen_workflow(&files, &self.loaded.agents);
        let workflow = thawed.map_err(|faults| {
            trouble(format!("the workflow definition of {id} cannot be read: {}", faults.summary()))
        })?;
        Ok(Arc::new(workflow))
    }

    /// Returns the effective agent config of a request. A command or simulated part in an agent's
    /// name has the agent's directory and environment, but none of its other settings.
    pub(crate) fn agent_for(
        &self,
        wanted: &JobRequest,
    ) -> Result<Cow<'_, AgentConfig>, DaemonCommandError> {
        let agent = self.find_agent(wanted.agent.as_str())?;
        let answered_by = |model: Option<&String>| match model {
            None => Cow::Borrowed(agent),
            Some(model) => {
                let mut agent = agent.clone();
                agent.model = Some(model.clone());
                Cow::Owned(agent)
            }
        };
        let Some(phase) = &wanted.phase else { return Ok(answered_by(wanted.model.as_ref())) };
        let runtime = match &phase.work {
            PhaseJobKind::Ask { model, effort } => {
                let mut agent = answered_by(model.as_ref());
                if effort.is_some() {
                    agent.to_mut().effort = *effort;
                }
                limit_token(&mut agent, phase.git_access);
                return Ok(agent);
            }
            PhaseJobKind::Command { command, .. } => RuntimeConfig::Command(command.clone()),
            PhaseJobKind::Play { text } => RuntimeConfig::Scripted(vec![json!({ "say": text })]),
        };
        let mut agent = Cow::Owned(agent.clone());
        limit_token(&mut agent, phase.git_access);
        let mut agent = agent.into_owned();
        agent.runtime = runtime;
        agent.max_concurrent = NonZeroU32::MAX;
        agent.budget = None;
        Ok(Cow::Owned(agent))
    }

    /// Resolves a request, in the session's own directory if it has one.
    pub(crate) fn prepare_request(
        &self,
        agent: &AgentConfig,
        wanted: &JobRequest,
        directory: Option<&Utf8Path>,
    ) -> Result<ResolvedJobRequest, PrepareError> {
        prepare::prepare_request(agent, wanted, &self.prepare_context(directory))
    }

    /// Resolves a request for another host as far as its start needs it on record.
    pub(crate) fn prepare_assigned_request(
        &self,
        agent: &AgentConfig,
        wanted: &JobRequest,
        directory: Option<&Utf8Path>,
    ) -> Result<ResolvedJobRequest, PrepareError> {
        let around = self.prepare_context(directory);
        prepare::prepare_assigned_request(agent, wanted, &around)
    }

    fn prepare_context<'s>(&'s self, directory: Option<&'s Utf8Path>) -> PrepareContext<'s> {
        let root = self.root();
        PrepareContext {
            env: &self.env,
            home: &self.home,
            sockets: &self.sockets,
            durability: root.map_or(LogDurability::Interval, |fleet| fleet.durability),
            max_concurrent: root.and_then(|fleet| fleet.max_concurrent),
            agents: &self.loaded.agents,
            protected: &self.protected,
            is_root: rustix::process::geteuid().is_root(),
            directory,
        }
    }

    /// Returns a request without the agent's secrets, for storage.
    pub(crate) fn redact_for_agent(&self, agent: &AgentConfig, wanted: &JobRequest) -> JobRequest {
        // Without a prompt or phase there is no text that could hold a secret.
        if wanted.prompt.is_none() && wanted.phase.is_none() {
            return wanted.clone();
        }
        redact_request(wanted, &SecretRedactor::new(&environment::secrets(agent, &self.env)))
    }

    /// Lists the secrets of all agents, and variables named like secrets.
    pub fn secrets(&self) -> Vec<String> {
        self.fleet_environment().secrets()
    }

    /// Returns the config of the hook worker.
    pub(crate) fn hook_config(&self) -> HookWorkerConfig {
        HookWorkerConfig {
            loaded: Arc::clone(&self.loaded),
            env: self.env.clone(),
            sockets: self.sockets.clone(),
            services: self.services.clone(),
        }
    }

    /// Returns the root fleet's settings.
    pub(crate) fn root(&self) -> Option<&FleetConfig> {
        self.loaded.fleets.first()
    }

    /// Returns a name for the account that pays for an agent's model, so that agents with the same
    /// account share its limits. It holds no secret. `None` if the agent uses no model.
    pub(crate) fn credential(&self, agent: &AgentConfig) -> Option<String> {
        if matches!(agent.runtime, RuntimeConfig::Command(_)) {
            return None;
        }
        let given = environment::select_environment(agent, &self.env).ok()?;
        // Other programs have logins and limits of their own.
        if let Some(program) = agent.runtime.program() {
            return Some(program_credential(program, &given.env));
        }
        let value = |name: &str| given.env.get(name).filter(|value| !value.is_empty());
        let named = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
        if let Some((name, key)) = named.into_iter().find_map(|name| Some((name, value(name)?))) {
            // The name is stored and displayed, so it must not contain the key.
            return Some(format!("{name}:{}", short_digest(key.as_bytes())));
        }
        // A scripted agent uses no model. With a key it imitates an agent that does.
        if matches!(agent.runtime, RuntimeConfig::Scripted(_)) {
            return None;
        }
        // Agents that share a login share its usage limits.
        let login = value("CLAUDE_CONFIG_DIR").or_else(|| value("HOME"));
        Some(format!("login:{}", login.map_or("", String::as_str)))
    }
}

fn short_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a name for the account of a program that is not Claude: its keys, or the home directory
/// that holds its login.
fn program_credential(program: &AgentProgram, env: &IndexMap<String, String>) -> String {
    let mut keys: Vec<String> = env
        .iter()
        .filter(|(name, value)| is_secret_name(name) && !value.is_empty())
        .map(|(name, value)| format!("{name}={value}\0"))
        .collect();
    keys.sort();
    let account = match keys.is_empty() {
        true => env.get("HOME").cloned().unwrap_or_default(),
        false => short_digest(keys.concat().as_bytes()),
    };
    format!("{}:{account}", program.name())
}

/// Lowers the permissions of an agent's token for GitHub to those of its workflow.
fn limit_token(agent: &mut Cow<'_, AgentConfig>, access: Option<GitAccessProfile>) {
    if let Some(access) = access.filter(|_| !agent.github_token.is_empty()) {
        agent.to_mut().github_token = access.limit(&agent.github_token);
    }
}

/// Returns a request without secrets, for storage.
pub(crate) fn redact_request(wanted: &JobRequest, redactor: &SecretRedactor) -> JobRequest {
    let clean = |text: &str| redactor.redact_text(text).into_owned();
    let mut wanted = wanted.clone();
    wanted.prompt = wanted.prompt.as_deref().map(clean);
    if let Some(phase) = &mut wanted.phase {
        match &mut phase.work {
            PhaseJobKind::Ask { .. } => {}
            PhaseJobKind::Command { command, env } => {
                *command = clean(command);
                env.iter_mut().for_each(|(_, value)| *value = clean(value));
            }
            PhaseJobKind::Play { text } => *text = clean(text),
        }
    }
    wanted
}
