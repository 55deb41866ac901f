//! What a daemon works by: the checked config, and what is around it.
//!
//! It is replaced as a whole when the config is read again. Start at [`Setup::prepare`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::calendar::ScheduleKey;
use heeler_model::config::{
    Agent, AgentLookup, CRON_SUFFIX, Durability, Fleet, Loaded, Runtime, Schedule, Style,
};
use heeler_model::ledger::is_within;
use heeler_model::redact::Redactor;
use heeler_model::workflow::{FaultyFile, LoadedWorkflow, Workflow, WorkflowSettings, thaw};
use heeler_model::{AgentName, PhaseJob, Wanted};
use heeler_store::{CronOverride, Db, DbError, Override, WorkflowRunRow};
use jiff::tz::TimeZone;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::command::{Refused, RefusedKind};
use crate::hooks::{HookConfig, Services};
use crate::prepare::{self, PrepareError, Surroundings, environment};
use crate::reading::Around;
use crate::request::JobRequest;

/// What a daemon works by.
#[derive(Debug)]
pub struct Setup {
    /// The config file.
    pub config: Utf8PathBuf,
    /// What it says.
    pub loaded: Arc<Loaded>,
    /// The environment, with what `.env` adds.
    pub env: BTreeMap<String, String>,
    /// The user's folder.
    pub home: Utf8PathBuf,
    /// The folder of control sockets.
    pub sockets: Utf8PathBuf,
    /// What decides what agents may do, or holds what they did.
    pub protected: Vec<Utf8PathBuf>,
    /// The time zone of days, and of cron expressions that name none.
    pub zone: TimeZone,
    /// Where chats are.
    pub services: Services,
}

impl Setup {
    /// Returns what those who only read need.
    pub(crate) fn around(&self) -> Around<'_> {
        Around { loaded: Some(&self.loaded), env: &self.env, home: &self.home }
    }

    /// Returns an agent by its qualified name.
    pub fn agent(&self, name: &str) -> Option<&Agent> {
        self.loaded.agent(name)
    }

    /// Finds an agent by its qualified name, or by its own name while that is unique.
    pub fn find_agent(&self, name: &str) -> Result<&Agent, Refused> {
        self.loaded.find_agent(name).map_err(|error| match &error {
            AgentLookup::Unknown { nearest, .. } => {
                let refused = Refused::new(RefusedKind::NotFound, error.to_string());
                match nearest {
                    Some(near) => refused.hint(format!("did you mean `{near}`?")),
                    None => refused.hint("heeler reload, if it was just added to the config"),
                }
            }
            AgentLookup::Ambiguous { .. } => Refused::new(RefusedKind::Usage, error.to_string()),
        })
    }

    /// Finds a workflow by its name.
    pub fn workflow(&self, name: &str) -> Result<&LoadedWorkflow, Refused> {
        if let Some(found) = self.loaded.workflow(name) {
            return Ok(found);
        }
        Err(self
            .loaded
            .faulty_workflow(name)
            .map_or_else(|| self.no_workflow(name), |faulty| self.faulty_workflow(faulty)))
    }

    fn faulty_workflow(&self, faulty: &FaultyFile) -> Refused {
        let faults = faulty.faults.render(Style::Plain, self.folder());
        let message = format!("the workflow `{}` has faults:\n{faults}", faulty.label());
        let hint = format!("heeler workflow validate {}", faulty.label());
        Refused::new(RefusedKind::Usage, message).hint(hint)
    }

    /// Returns the folder of the config file.
    pub(crate) fn folder(&self) -> &Utf8Path {
        self.config.parent().unwrap_or(Utf8Path::new(""))
    }

    fn no_workflow(&self, name: &str) -> Refused {
        let names: Vec<&str> =
            self.loaded.workflows.iter().map(|it| it.workflow.name.as_str()).collect();
        let refused = Refused::new(RefusedKind::NotFound, format!("there is no workflow `{name}`"));
        match names.is_empty() {
            true => refused.hint(format!("put one into {}", self.workflow_settings().folder)),
            false => refused.hint(format!("there is {}", names.join(", "))),
        }
    }

    /// Returns the agent of workflows that name none: what the config says, or the only one.
    pub(crate) fn workflow_agent(&self) -> Option<AgentName> {
        let only = || match &self.loaded.agents[..] {
            [only] => Some(only.name.clone()),
            _ => None,
        };
        self.workflow_settings().agent.clone().or_else(only)
    }

    /// Returns what holds for all workflows.
    pub(crate) fn workflow_settings(&self) -> Cow<'_, WorkflowSettings> {
        match self.root() {
            Some(fleet) => Cow::Borrowed(&fleet.workflows),
            None => Cow::Owned(WorkflowSettings::default()),
        }
    }

    /// Returns the definition that a run goes by.
    pub(crate) fn definition_of(
        &self,
        db: &Db,
        row: &WorkflowRunRow,
    ) -> Result<Result<Arc<Workflow>, Refused>, DbError> {
        let id = &row.head.id;
        let trouble = |why: String| Refused::new(RefusedKind::Trouble, why);
        let files = match &row.definition {
            Some(hash) => db.definition(hash)?,
            None => None,
        };
        let Some(files) = files else {
            return Ok(Err(trouble(format!("what {id} goes by is not on record"))));
        };
        let thawed = thaw(&files, &self.loaded.agents);
        Ok(thawed.map(Arc::new).map_err(|faults| {
            trouble(format!("what {id} goes by cannot be read: {}", faults.summary()))
        }))
    }

    /// Returns the agent of what is wanted as it counts for that: a command or a play in its name
    /// has its folder and environment, and nothing else of it.
    pub(crate) fn agent_for(&self, wanted: &Wanted) -> Result<Cow<'_, Agent>, Refused> {
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
            PhaseJob::Ask { model } => return Ok(answered_by(model.as_ref())),
            PhaseJob::Command { command, .. } => Runtime::Command(command.clone()),
            PhaseJob::Play { text } => Runtime::Scripted(vec![json!({ "say": text })]),
        };
        let mut agent = agent.clone();
        agent.runtime = runtime;
        agent.max_concurrent = NonZeroU32::MAX;
        agent.budget = None;
        Ok(Cow::Owned(agent))
    }

    /// Makes a request of what is wanted, in a directory of the session's own if it has one.
    pub(crate) fn prepare(
        &self,
        agent: &Agent,
        wanted: &Wanted,
        directory: Option<&Utf8Path>,
    ) -> Result<JobRequest, PrepareError> {
        let root = self.root();
        let around = Surroundings {
            env: &self.env,
            home: &self.home,
            sockets: &self.sockets,
            durability: root.map_or(Durability::Interval, |fleet| fleet.durability),
            max_concurrent: root.and_then(|fleet| fleet.max_concurrent),
            agents: &self.loaded.agents,
            protected: &self.protected,
            directory,
        };
        prepare::prepare(agent, wanted, &around)
    }

    /// Returns what is wanted of an agent as it may be written down.
    pub(crate) fn redacted(&self, agent: &Agent, wanted: &Wanted) -> Wanted {
        if wanted.prompt.is_none() && wanted.phase.is_none() {
            return wanted.clone();
        }
        redact(wanted, &Redactor::new(&environment::secrets(agent, &self.env)))
    }

    /// Lists every secret that an agent is given, or that has the name of one.
    pub(crate) fn secrets(&self) -> Vec<String> {
        self.around().secrets()
    }

    /// Returns what hooks are done with.
    pub(crate) fn hooks(&self) -> HookConfig {
        HookConfig {
            loaded: Arc::clone(&self.loaded),
            env: self.env.clone(),
            sockets: self.sockets.clone(),
            services: self.services.clone(),
        }
    }

    /// Returns the root fleet's settings.
    pub(crate) fn root(&self) -> Option<&Fleet> {
        self.loaded.fleets.first()
    }

    /// Returns the fleets that an agent is in, the root first.
    pub(crate) fn fleets_of<'s>(&'s self, agent: &'s str) -> impl Iterator<Item = &'s Fleet> {
        self.loaded.fleets.iter().filter(move |fleet| is_within(agent, &fleet.path))
    }

    /// Names the account that an agent's model is paid by, so that those who share one share its
    /// limits. It holds no secret. `None` where no model is asked.
    pub(crate) fn credential(&self, agent: &Agent) -> Option<String> {
        if matches!(agent.runtime, Runtime::Command(_)) {
            return None;
        }
        let given = environment::give(agent, &self.env).ok()?;
        let value = |name: &str| given.env.get(name).filter(|value| !value.is_empty());
        let named = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
        if let Some((name, key)) = named.into_iter().find_map(|name| Some((name, value(name)?))) {
            let digest = Sha256::digest(key.as_bytes());
            let digest: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            return Some(format!("{name}:{digest}"));
        }
        // A script asks no model; with a key it plays one that does.
        if matches!(agent.runtime, Runtime::Scripted(_)) {
            return None;
        }
        let login = value("CLAUDE_CONFIG_DIR").or_else(|| value("HOME"));
        Some(format!("login:{}", login.map_or("", String::as_str)))
    }
}

/// Returns what was changed about a workflow's cron as a change of the schedule that it is.
pub fn cron_override(loaded: &Loaded, row: CronOverride) -> Option<(ScheduleKey, Override)> {
    let CronOverride { name, enabled, schedule: text, at, by } = row;
    let is_it = |it: &Schedule| it.workflow.is_some() && cron_name(it) == name;
    let agents = loaded.agents.iter();
    let (agent, schedule) = agents
        .flat_map(|agent| agent.schedules.iter().map(move |schedule| (agent, schedule)))
        .find(|(_, schedule)| is_it(schedule))?;
    let (agent, schedule) = (agent.name.to_string(), schedule.name.clone());
    let key = ScheduleKey { agent: agent.clone(), schedule: schedule.clone() };
    Some((key, Override { agent, schedule, enabled, text, at, by }))
}

/// Returns the name of the cron that a schedule is.
pub(crate) fn cron_name(schedule: &Schedule) -> &str {
    schedule.name.strip_suffix(CRON_SUFFIX).unwrap_or(&schedule.name)
}

/// Returns what is wanted as it may be written down.
pub(crate) fn redact(wanted: &Wanted, redactor: &Redactor) -> Wanted {
    let clean = |text: &str| redactor.text(text).into_owned();
    let mut wanted = wanted.clone();
    wanted.prompt = wanted.prompt.as_deref().map(clean);
    if let Some(phase) = &mut wanted.phase {
        match &mut phase.work {
            PhaseJob::Ask { .. } => {}
            PhaseJob::Command { command, env } => {
                *command = clean(command);
                env.iter_mut().for_each(|(_, value)| *value = clean(value));
            }
            PhaseJob::Play { text } => *text = clean(text),
        }
    }
    wanted
}
