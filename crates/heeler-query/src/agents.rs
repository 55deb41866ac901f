//! Agents: their configuration and current state.

use heeler_config::UsdAmount;
use heeler_model::AgentStatus;
use heeler_store::NetworkGrant;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::fleet_reader::unknown_agent;
use crate::{FleetReader, QueryError, enum_schemas};

/// All agents of the config, in config order.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentPage {
    /// Agents.
    pub agents: Vec<AgentSummary>,
    /// Number of agents.
    pub total: usize,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentSummary {
    /// Qualified name.
    pub name: String,
    /// Purpose of the agent.
    pub description: Option<String>,
    /// Current state.
    #[schema(value_type = enum_schemas::AgentStatus)]
    pub status: AgentStatus,
    /// False if the agent's jobs are not started.
    pub enabled: bool,
    /// Error of the last job.
    pub error_message: Option<String>,
    /// ID of the job that is running.
    pub current_job: Option<String>,
    /// ID of the last job that ended.
    pub last_job: Option<String>,
    /// Name of the schedule that is due next.
    pub next_schedule: Option<String>,
    /// Next due time.
    pub next_trigger_at: Option<Timestamp>,
    /// Runtime: `sdk`, `cli`, `scripted` or `command`.
    pub runtime: String,
    /// Configured model.
    pub model: Option<String>,
    /// Working directory.
    pub working_directory: String,
    /// Maximum number of concurrent jobs.
    pub max_concurrent: u32,
    /// Names of the schedules.
    pub schedules: Vec<String>,
    /// Hosts that people allowed in answers to questions, besides those of the config: `name:port`,
    /// and the native session if it is for one only.
    pub allowed_hosts: Vec<String>,
    /// Calls of tools that people allowed for all later runs, besides those of the config: rules of
    /// Claude, such as `Bash(npm test:*)`.
    pub kept_permissions: Vec<String>,
    /// Budget limits.
    pub budget: AgentBudgetLimits,
    /// Money spent today, in US dollars.
    pub spent_today_usd: f64,
    /// Money spent in total, in US dollars.
    pub spent_usd: f64,
    /// File that defines the agent.
    #[serde(skip)]
    pub file: String,
}

/// Budget limits of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentBudgetLimits {
    /// Limit for one job, in US dollars.
    pub job_usd: Option<f64>,
    /// Limit for one day, in US dollars.
    pub day_usd: Option<f64>,
    /// Limit in total, in US dollars.
    pub total_usd: Option<f64>,
}

impl AgentBudgetLimits {
    fn of(budget: Option<&heeler_config::Budget>) -> AgentBudgetLimits {
        let limit = |of: fn(&heeler_config::Budget) -> Option<UsdAmount>| {
            budget.and_then(of).map(|limit| limit.micros() as f64 / 1e6)
        };
        AgentBudgetLimits {
            job_usd: limit(|budget| budget.job),
            day_usd: limit(|budget| budget.day),
            total_usd: limit(|budget| budget.total),
        }
    }
}

fn granted_host(grant: &NetworkGrant) -> String {
    match &grant.session {
        None => grant.host.clone(),
        Some(session) => format!("{} (session {session})", grant.host),
    }
}

/// Converts millionths of a dollar to dollars.
pub(crate) fn micros_to_usd(micros: i64) -> f64 {
    micros as f64 / 1e6
}

impl FleetReader {
    /// Lists the agents of the config.
    pub fn agents(&self, now: Timestamp) -> Result<AgentPage, QueryError> {
        let known = self.context();
        let loaded = known.config()?;
        let reader = self.reader()?;
        let states = reader.agents()?;
        let disabled = reader.disabled_agents()?;
        let (day, all) =
            (reader.daily_spend_by_agent(known.today(now))?, reader.total_spend_by_agent()?);
        let mut granted = Vec::with_capacity(loaded.agents.len());
        for agent in &loaded.agents {
            let name = agent.name.as_str();
            granted.push((reader.network_grants(name)?, reader.permission_rules(name)?));
        }
        // The reader goes back to the pool before the lock is probed.
        drop(reader);
        let has_daemon = self.lock_owner()?.has_permanent_daemon();
        let agents: Vec<AgentSummary> = loaded
            .agents
            .iter()
            .zip(granted)
            .map(|(agent, (granted, rules))| {
                let name = agent.name.as_str();
                let state = states.get(name).cloned().unwrap_or_default();
                let is_disabled = disabled.iter().any(|known| known == name);
                // Without a daemon the recorded time is no promise.
                let is_due = has_daemon && !is_disabled;
                let sum = |sums: &[(String, i64)]| {
                    // An agent that has spent nothing has no row.
                    let found = sums.iter().find(|(known, _)| known == name);
                    micros_to_usd(found.map_or(0, |(_, micros)| *micros))
                };
                AgentSummary {
                    name: name.to_owned(),
                    description: agent.description.clone(),
                    status: state.status,
                    enabled: !is_disabled,
                    error_message: state.error_message,
                    current_job: state.current_job.map(|id| id.to_string()),
                    last_job: state.last_job.map(|id| id.to_string()),
                    next_schedule: state.next_schedule.filter(|_| is_due),
                    next_trigger_at: state.next_trigger_at.filter(|_| is_due),
                    runtime: agent.runtime.kind().as_str().to_owned(),
                    model: agent.model.clone(),
                    working_directory: agent.working_directory.to_string(),
                    max_concurrent: agent.max_concurrent.get(),
                    schedules: agent.schedules.iter().map(|it| it.name.clone()).collect(),
                    allowed_hosts: granted.iter().map(granted_host).collect(),
                    kept_permissions: rules.into_iter().map(|kept| kept.rule).collect(),
                    budget: AgentBudgetLimits::of(agent.budget.as_ref()),
                    spent_today_usd: sum(&day),
                    spent_usd: sum(&all),
                    file: agent.file.to_string(),
                }
            })
            .collect();
        Ok(AgentPage { total: agents.len(), agents })
    }

    /// Returns the names of agents that had jobs but are no longer in the config.
    pub fn past_agents(&self) -> Result<Vec<String>, QueryError> {
        let mut names = self.reader()?.agent_names()?;
        let loaded = self.context().config()?;
        names.retain(|name| loaded.agents.iter().all(|agent| agent.name.as_str() != name));
        Ok(names)
    }

    /// Returns an agent by its qualified name, or by its own name if that is unique.
    pub fn agent(&self, name: &str, now: Timestamp) -> Result<AgentSummary, QueryError> {
        let loaded = self.context().config()?;
        let name = loaded.find_agent(name).map_err(|error| unknown_agent(&error))?.name.as_str();
        // The config may have been reloaded between the two reads.
        let found = self.agents(now)?.agents.into_iter().find(|agent| agent.name == name);
        found
            .ok_or_else(|| QueryError::not_found("the agent no longer exists", "heeler agent list"))
    }
}
