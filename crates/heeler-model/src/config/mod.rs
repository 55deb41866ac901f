//! Config: from text and an environment map to checked types.
//!
//! Start at [`load`]. It is handed a way to read files and a map of variables, and returns
//! [`Loaded`] (fleets and agents that can only hold legal values) or [`Faults`] (everything that
//! is wrong, each with its place). The way through: `yaml` makes a tree with positions,
//! `interpolate` puts variables in, `compose` merges trees and reads them into sections, which
//! `shape` declares: a struct, its reader, its JSON Schema and its documentation in one.
//!
//! Nothing here reads files, clocks or the environment.

mod agent;
mod amount;
mod changes;
mod chat;
mod compose;
mod docker;
mod dotenv;
mod fault;
mod find;
mod fleet;
mod globs;
mod hooks;
pub(crate) mod inert;
mod interpolate;
mod mcp;
mod period;
pub(crate) mod policy;
pub(crate) mod reader;
mod reference;
mod repo;
mod schedule;
mod schema;
mod script;
mod session;
pub(crate) mod shape;
mod show;
pub mod templates;
pub(crate) mod value;
mod web;
mod when;
mod work;
pub(crate) mod yaml;

use std::sync::Arc;

use camino::Utf8PathBuf;

use crate::workflow::{Cron, FaultyFile, LoadedWorkflow, Workflows};

pub use agent::{
    Agent, Budget, Checkout, Identity, Instances, PermissionMode, Program, Runtime, RuntimeType,
    SettingSource,
};
pub use amount::{SIZE_MAX, Size, USD_MAX, Usd};
pub use changes::{Change, changes};
pub use chat::{
    ActivityType, AssistantMessages, Attachments, Channel, Chat, ChatLogLevel, ChatMode,
    CommandRegistration, CommandScope, DirectMessages, Discord, DiscordOutput, Guild, Presence,
    ResultLength, Skill, Slack, SlackOutput, Voice,
};
pub use compose::{FLEET_DEPTH_MAX, LOAD_BYTES_MAX, MEMBERS_MAX, ReadFile, load};
pub use docker::{ContainerUser, Docker, MountMode, Network, PortBinding, Tmpfs, Volume};
pub use dotenv::{DotenvFault, parse_dotenv};
pub use fault::{FAULTS_SHOWN_MAX, Fault, Faults, Severity, Style};
pub use find::AgentLookup;
pub use fleet::{Durability, Fleet, FleetInfo, MessageGrouping, Telemetry, Web, Webhooks};
pub use globs::{GLOBS_MAX, Globs};
pub use hooks::{Hook, HookAction, HookEvent, HookMethod, HookType, Hooks, Timeout};
pub use mcp::{McpServer, McpTransport, McpType, Plugin, PluginType};
pub use period::{PERIOD_MAX, Period};
pub use policy::{
    Logs, PRIORITY_MAX, Queue, RETRIES_MAX, Retention, Retry, SPAWN_DEPTH_MAX, Spawn,
};
pub use reader::{Dialect, did_you_mean};
pub use reference::{reference_markdown, workflow_reference_markdown};
pub use repo::{Credentials, Repo};
pub use schedule::{
    INTERVAL_MIN, MISSED_RUNS_MAX, Missed, Overlap, Schedule, ScheduleType, Trigger, WorkflowStart,
};
pub use schema::{agent_schema, cron_schema, fleet_schema, workflow_schema};
pub use script::steps_of_file;
pub use session::SessionRules;
pub use value::{EnvVars, SecretText, VarName, WebUrl};
pub use web::{WebOrigin, WebPort};
pub use when::{CronExpr, Zone};
pub use work::{RepoName, WorkAuth, WorkLabels, WorkSource, WorkSourceType};
pub use yaml::{DEPTH_MAX, FILE_BYTES_MAX, NODES_MAX, TEXT_BYTES_MAX};

/// A config that was read whole and found legal.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The fleets: the root first, then those within, depth first.
    pub fleets: Vec<Fleet>,
    /// The agents of all fleets, those of a fleet before those of the fleets within it.
    pub agents: Vec<Agent>,
    /// The workflows, once somebody has read their folder.
    pub workflows: Vec<Arc<LoadedWorkflow>>,
    /// What starts workflows by the clock.
    pub crons: Vec<Cron>,
    /// Files of the workflow folder of which nothing counts, because there is a fault in them.
    pub faulty: Vec<FaultyFile>,
    /// The files that were read.
    pub files: Vec<Utf8PathBuf>,
    /// What works, but not as its author may think.
    pub warnings: Faults,
}

/// What the name of a cron ends with whose agent has a schedule of the same name.
pub const CRON_SUFFIX: &str = "-workflow";

impl Loaded {
    /// Adds what the fleet's workflow folder holds.
    ///
    /// A cron is a schedule of the agent that its workflow is done by. If that has one of the same
    /// name, it is called `NAME-workflow`.
    pub fn add_workflows(&mut self, found: Workflows) {
        self.workflows = found.workflows;
        for cron in &found.crons {
            let named = |it: &&Arc<LoadedWorkflow>| it.workflow.name == cron.workflow;
            let workflow = self.workflows.iter().find(named).map(|it| &it.workflow);
            let agent = workflow.and_then(|workflow| {
                let own = workflow.phases.iter().find_map(|phase| phase.agent.as_ref());
                workflow.agent.as_ref().or(own)
            });
            let agent = self.agents.iter_mut().find(|it| Some(&it.name) == agent);
            let Some(agent) = agent else { continue };
            let mut schedule = Schedule::of_cron(cron, agent);
            if agent.schedules.iter().any(|it| it.name == schedule.name) {
                schedule.name.push_str(CRON_SUFFIX);
            }
            agent.schedules.push(schedule);
        }
        self.crons = found.crons;
        self.faulty = found.faulty;
        self.files.extend(found.files);
        let warnings = std::mem::take(&mut self.warnings);
        self.warnings = Faults::together([warnings, found.warnings]);
    }

    /// Returns it if no file of the workflow folder has a fault either.
    pub fn whole(self) -> Result<Loaded, Faults> {
        match self.faulty.is_empty() {
            true => Ok(self),
            false => Err(FaultyFile::faults_of(self.faulty, self.warnings)),
        }
    }
}
