//! Schedules: their configuration, state, and changes made by people.

use std::collections::HashMap;

use heeler_config::{
    ConfigDuration, LoadedConfig, MissedRunPolicy, OverlapPolicy, ScheduleTrigger,
};
use heeler_model::calendar::ScheduleKey;
use heeler_model::timetable::SkipReason;
use heeler_model::{ScheduleState, ScheduleStatus};
use heeler_store::cron_override;
use heeler_store::{OccurrenceRecord, ScheduleOverrideRecord, SkipRecord, StoreReader};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::fleet_reader::unknown_agent;
use crate::{FleetReader, QueryError, enum_schemas};

/// Maximum number of starts and skips reported per schedule.
pub const RECENT_EVENTS_MAX: usize = 10;

/// Schedules of the config, in config order.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePage {
    /// Schedules.
    pub schedules: Vec<ScheduleSummary>,
    /// Number of schedules.
    pub total: usize,
}

/// Configuration and state of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSummary {
    /// Name of the agent.
    pub agent: String,
    /// Name of the schedule.
    pub name: String,
    /// Name of the workflow it starts, if any.
    pub workflow: Option<String>,
    /// Description of the trigger.
    pub when: String,
    /// Description of the trigger in the config, without changes made by people.
    pub configured: String,
    /// False if the schedule can be triggered manually only.
    pub enabled: bool,
    /// Current state.
    #[schema(value_type = enum_schemas::ScheduleStatus)]
    pub status: ScheduleStatus,
    /// End of the last job.
    pub last_run_at: Option<Timestamp>,
    /// Next due time.
    pub next_run_at: Option<Timestamp>,
    /// Error of the last job.
    pub last_error: Option<String>,
    /// Change made by a person.
    #[serde(rename = "override")]
    pub changed: Option<ScheduleOverrideSummary>,
    /// True if the agent is disabled.
    #[serde(skip)]
    pub agent_disabled: bool,
}

/// Change of a schedule made by a person.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleOverrideSummary {
    /// False if the schedule can be triggered manually only.
    pub enabled: bool,
    /// Description of the changed trigger, if it differs from the config.
    pub when: Option<String>,
    /// Person who made the change.
    pub by: String,
    /// Time of the change.
    pub at: Timestamp,
}

impl From<&ScheduleOverrideRecord> for ScheduleOverrideSummary {
    fn from(row: &ScheduleOverrideRecord) -> ScheduleOverrideSummary {
        let ScheduleOverrideRecord { enabled, text, by, at, .. } = row.clone();
        ScheduleOverrideSummary { enabled, when: text, by, at }
    }
}

/// All details of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleDetails {
    /// Fields of the list entry.
    #[serde(flatten)]
    pub item: ScheduleSummary,
    /// Prompt.
    pub prompt: Option<String>,
    /// Handling of due times that passed while no daemon was running.
    #[schema(value_type = enum_schemas::Missed)]
    pub missed: MissedRunPolicy,
    /// Handling of a due time while the previous job is still active.
    #[schema(value_type = enum_schemas::Overlap)]
    pub overlap: OverlapPolicy,
    /// Most recent starts, newest first.
    pub starts: Vec<ScheduleStart>,
    /// Most recent skips, newest first.
    pub skips: Vec<ScheduleSkip>,
}

/// A due time for which a job was created.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStart {
    /// Due time.
    pub due_at: Timestamp,
    /// Job ID.
    pub job: String,
}

/// Due times for which no job was created.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSkip {
    /// First of the due times.
    pub first_due_at: Timestamp,
    /// Last of the due times.
    pub last_due_at: Timestamp,
    /// Number of due times.
    pub count: u64,
    /// Reason for skipping.
    #[schema(value_type = enum_schemas::SkipReason)]
    pub reason: SkipReason,
}

impl From<OccurrenceRecord> for ScheduleStart {
    fn from(row: OccurrenceRecord) -> ScheduleStart {
        ScheduleStart { due_at: row.due, job: row.work.as_str().to_owned() }
    }
}

impl From<SkipRecord> for ScheduleSkip {
    fn from(row: SkipRecord) -> ScheduleSkip {
        let skip = row.skip;
        ScheduleSkip {
            first_due_at: skip.first,
            last_due_at: skip.last,
            count: skip.count,
            reason: skip.reason,
        }
    }
}

/// Describes a trigger as text.
pub fn describe_trigger(trigger: &ScheduleTrigger) -> String {
    match trigger {
        ScheduleTrigger::Interval(period) => format!("every {period}"),
        ScheduleTrigger::Cron { expr, zone: Some(zone) } => {
            format!("{} {}", expr.as_str(), zone.name())
        }
        ScheduleTrigger::Cron { expr, zone: None } => expr.as_str().to_owned(),
        ScheduleTrigger::Watch { paths, .. } => {
            format!("when {} change", paths.patterns().join(", "))
        }
        ScheduleTrigger::Webhook(_) => "webhook".to_owned(),
        ScheduleTrigger::Chat => "chat".to_owned(),
    }
}

/// Describes a trigger changed by a person as text.
fn describe_override(text: &str, trigger: &ScheduleTrigger) -> String {
    match (text.parse::<ConfigDuration>(), trigger) {
        (Ok(period), _) => describe_trigger(&ScheduleTrigger::Interval(period)),
        // A changed expression keeps the configured time zone.
        (Err(_), ScheduleTrigger::Cron { zone: Some(zone), .. }) => {
            format!("{text} {}", zone.name())
        }
        (Err(_), _) => text.to_owned(),
    }
}

/// Stored state of all schedules.
struct ScheduleListContext {
    states: indexmap::IndexMap<String, heeler_model::AgentState>,
    overrides: HashMap<ScheduleKey, ScheduleOverrideRecord>,
    disabled: Vec<String>,
    /// True if a daemon starts the schedules.
    has_permanent_daemon: bool,
}

/// Returns the changes made by people to schedules, including crons of workflows.
pub(crate) fn load_overrides(
    reader: &StoreReader,
    loaded: &LoadedConfig,
) -> Result<HashMap<ScheduleKey, ScheduleOverrideRecord>, QueryError> {
    let schedules = reader.schedule_overrides()?.into_iter().map(|row| {
        let key = ScheduleKey { agent: row.agent.clone(), schedule: row.schedule.clone() };
        (key, row)
    });
    let crons = reader.cron_overrides()?.into_iter();
    // Crons of workflows are stored under other names, but they are schedules of agents.
    Ok(schedules.chain(crons.filter_map(|row| cron_override(loaded, row))).collect())
}

impl ScheduleListContext {
    fn read(
        reader: &StoreReader,
        loaded: &LoadedConfig,
        has_daemon: bool,
    ) -> Result<ScheduleListContext, QueryError> {
        Ok(ScheduleListContext {
            states: reader.agents()?,
            overrides: load_overrides(reader, loaded)?,
            disabled: reader.disabled_agents()?,
            has_permanent_daemon: has_daemon,
        })
    }

    fn schedule_summary(
        &self,
        agent: &heeler_config::AgentConfig,
        schedule: &heeler_config::ScheduleConfig,
    ) -> ScheduleSummary {
        let name = agent.name.as_str();
        let key = ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
        let changed = self.overrides.get(&key);
        let state = self.states.get(name).and_then(|state| state.schedules.get(&schedule.name));
        let state: ScheduleState = state.cloned().unwrap_or_default();
        let agent_disabled = self.disabled.iter().any(|known| known == name);
        // A person's change takes precedence over the config.
        let by_hand = changed.map_or(schedule.enabled, |changed| changed.enabled);
        // A hand edit of `state.yaml` can disable a schedule, too.
        let enabled = by_hand && !agent_disabled && state.status != ScheduleStatus::Disabled;
        let configured = describe_trigger(&schedule.trigger);
        let set = changed.and_then(|changed| changed.text.as_deref());
        ScheduleSummary {
            agent: name.to_owned(),
            name: schedule.name.clone(),
            workflow: schedule.workflow.as_ref().map(|start| start.workflow.to_string()),
            when: set.map_or_else(
                || configured.clone(),
                |set| describe_override(set, &schedule.trigger),
            ),
            configured,
            enabled,
            status: state.status,
            last_run_at: state.last_run_at,
            // Without a daemon the recorded time is no promise.
            next_run_at: state.next_run_at.filter(|_| enabled && self.has_permanent_daemon),
            last_error: state.last_error,
            changed: changed.map(ScheduleOverrideSummary::from),
            agent_disabled,
        }
    }
}

impl FleetReader {
    /// Lists schedules of one agent or of all.
    pub fn schedules(&self, agent: Option<&str>) -> Result<SchedulePage, QueryError> {
        let loaded = self.context().config()?;
        let only = agent.map(|name| loaded.find_agent(name)).transpose();
        let only = only.map_err(|error| unknown_agent(&error))?;
        let context = ScheduleListContext::read(
            &*self.reader()?,
            &loaded,
            self.lock_owner()?.has_permanent_daemon(),
        )?;
        let agents = loaded.agents.iter().filter(|it| only.is_none_or(|one| one.name == it.name));
        let schedules: Vec<ScheduleSummary> = agents
            .flat_map(|agent| agent.schedules.iter().map(move |it| (agent, it)))
            .map(|(agent, schedule)| context.schedule_summary(agent, schedule))
            .collect();
        Ok(SchedulePage { total: schedules.len(), schedules })
    }

    /// Returns a schedule of an agent.
    pub fn schedule(&self, agent: &str, name: &str) -> Result<ScheduleDetails, QueryError> {
        let loaded = self.context().config()?;
        let agent = loaded.find_agent(agent).map_err(|error| unknown_agent(&error))?;
        let schedule = agent.schedules.iter().find(|it| it.name == name);
        let schedule = schedule.ok_or_else(|| unknown_schedule(agent, name))?;
        let has_daemon = self.lock_owner()?.has_permanent_daemon();
        let reader = self.reader()?;
        let item = ScheduleListContext::read(&reader, &loaded, has_daemon)?
            .schedule_summary(agent, schedule);
        let starts = reader.occurrences(&item.agent, name, None, RECENT_EVENTS_MAX)?;
        let skips = reader.skips(&item.agent, name, None, RECENT_EVENTS_MAX)?;
        Ok(ScheduleDetails {
            item,
            prompt: schedule.prompt.clone(),
            missed: schedule.missed,
            overlap: schedule.overlap,
            starts: starts.into_iter().map(ScheduleStart::from).collect(),
            skips: skips.into_iter().map(ScheduleSkip::from).collect(),
        })
    }
}

/// Returns the error for an unknown schedule, with the names of the agent's schedules.
fn unknown_schedule(agent: &heeler_config::AgentConfig, name: &str) -> QueryError {
    let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
    let has = match names[..] {
        [] => "it has none".to_owned(),
        _ => format!("it has: {}", names.join(", ")),
    };
    let message = format!("`{}` has no schedule `{name}`; {has}", agent.name);
    QueryError::not_found(message, "heeler schedule list")
}
