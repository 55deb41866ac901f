//! Schedules: when agents start by themselves, and what people changed about it.

use std::collections::HashMap;

use heeler_engine::cron_override;
use heeler_model::calendar::ScheduleKey;
use heeler_model::config::{
    self, ConfigDuration, LoadedConfig, MissedRunPolicy, OverlapPolicy, ScheduleTrigger,
};
use heeler_model::timetable::SkipReason;
use heeler_model::{ScheduleState, ScheduleStatus};
use heeler_store::{OccurrenceRecord, ScheduleOverrideRecord, SkipRecord, StoreReader};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::fleet_reader::unknown_agent;
use crate::{FleetReader, QueryError, enum_schemas};

/// How many starts and skips of a schedule are told.
pub const RECENT_EVENTS_MAX: usize = 10;

/// Schedules of the config, in its order.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePage {
    /// The schedules.
    pub schedules: Vec<ScheduleSummary>,
    /// How many there are.
    pub total: usize,
}

/// A schedule, as the config has it and as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSummary {
    /// The agent that has it.
    pub agent: String,
    /// Its name.
    pub name: String,
    /// The workflow that it starts, if it does.
    pub workflow: Option<String>,
    /// When it starts, in words.
    pub when: String,
    /// When it would start if nobody had changed it.
    pub configured: String,
    /// Whether it starts by itself.
    pub enabled: bool,
    /// What it is doing.
    #[schema(value_type = enum_schemas::ScheduleStatus)]
    pub status: ScheduleStatus,
    /// When its last run ended.
    pub last_run_at: Option<Timestamp>,
    /// When it is next due.
    pub next_run_at: Option<Timestamp>,
    /// Why its last run failed.
    pub last_error: Option<String>,
    /// What a person changed.
    #[serde(rename = "override")]
    pub changed: Option<ScheduleOverrideSummary>,
    /// Whether its agent is disabled.
    #[serde(skip)]
    pub agent_disabled: bool,
}

/// What a person changed about a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleOverrideSummary {
    /// Whether it starts by itself.
    pub enabled: bool,
    /// When it starts instead, if not as the config says.
    pub when: Option<String>,
    /// Who changed it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

impl From<&ScheduleOverrideRecord> for ScheduleOverrideSummary {
    fn from(row: &ScheduleOverrideRecord) -> ScheduleOverrideSummary {
        let ScheduleOverrideRecord { enabled, text, by, at, .. } = row.clone();
        ScheduleOverrideSummary { enabled, when: text, by, at }
    }
}

/// All that is known of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleDetails {
    /// What a list shows of it.
    #[serde(flatten)]
    pub item: ScheduleSummary,
    /// What is asked.
    pub prompt: Option<String>,
    /// What happens to due times at which no daemon was there.
    #[schema(value_type = enum_schemas::Missed)]
    pub missed: MissedRunPolicy,
    /// What happens while the run before goes on.
    #[schema(value_type = enum_schemas::Overlap)]
    pub overlap: OverlapPolicy,
    /// Its last starts, newest first.
    pub starts: Vec<ScheduleStart>,
    /// What was skipped last, newest first.
    pub skips: Vec<ScheduleSkip>,
}

/// A due time that got a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStart {
    /// When it was due.
    pub due_at: Timestamp,
    /// The job.
    pub job: String,
}

/// Due times that got no run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSkip {
    /// The first of them.
    pub first_due_at: Timestamp,
    /// The last of them.
    pub last_due_at: Timestamp,
    /// How many.
    pub count: u64,
    /// Why.
    #[schema(value_type = enum_schemas::SkipReason)]
    pub reason: SkipReason,
}

impl From<OccurrenceRecord> for ScheduleStart {
    fn from(row: OccurrenceRecord) -> ScheduleStart {
        ScheduleStart { due_at: row.due, job: row.job.to_string() }
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

/// Returns when a schedule starts, in words.
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

/// Returns when a schedule starts by what a person set.
fn describe_override(text: &str, trigger: &ScheduleTrigger) -> String {
    match (text.parse::<ConfigDuration>(), trigger) {
        (Ok(period), _) => describe_trigger(&ScheduleTrigger::Interval(period)),
        // The zone stays as it is.
        (Err(_), ScheduleTrigger::Cron { zone: Some(zone), .. }) => {
            format!("{text} {}", zone.name())
        }
        (Err(_), _) => text.to_owned(),
    }
}

/// What the state knows of schedules.
struct ScheduleListContext {
    states: indexmap::IndexMap<String, heeler_model::AgentState>,
    overrides: HashMap<ScheduleKey, ScheduleOverrideRecord>,
    disabled: Vec<String>,
    /// Whether somebody starts them.
    has_permanent_daemon: bool,
}

/// Returns what people changed about schedules, those that are crons of workflows too.
pub(crate) fn load_overrides(
    reader: &StoreReader,
    loaded: &LoadedConfig,
) -> Result<HashMap<ScheduleKey, ScheduleOverrideRecord>, QueryError> {
    let own = reader.schedule_overrides()?.into_iter().map(|row| {
        let key = ScheduleKey { agent: row.agent.clone(), schedule: row.schedule.clone() };
        (key, row)
    });
    let crons = reader.cron_overrides()?.into_iter();
    Ok(own.chain(crons.filter_map(|row| cron_override(loaded, row))).collect())
}

impl ScheduleListContext {
    fn read(
        reader: &StoreReader,
        loaded: &LoadedConfig,
        is_kept: bool,
    ) -> Result<ScheduleListContext, QueryError> {
        Ok(ScheduleListContext {
            states: reader.agents()?,
            overrides: load_overrides(reader, loaded)?,
            disabled: reader.disabled_agents()?,
            has_permanent_daemon: is_kept,
        })
    }

    fn schedule_summary(
        &self,
        agent: &config::AgentConfig,
        schedule: &config::ScheduleConfig,
    ) -> ScheduleSummary {
        let name = agent.name.as_str();
        let key = ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
        let changed = self.overrides.get(&key);
        let state = self.states.get(name).and_then(|state| state.schedules.get(&schedule.name));
        let state: ScheduleState = state.cloned().unwrap_or_default();
        let agent_disabled = self.disabled.iter().any(|known| known == name);
        let by_hand = changed.map_or(schedule.enabled, |changed| changed.enabled);
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
            next_run_at: state.next_run_at.filter(|_| enabled && self.has_permanent_daemon),
            last_error: state.last_error,
            changed: changed.map(ScheduleOverrideSummary::from),
            agent_disabled,
        }
    }
}

impl FleetReader {
    /// Lists schedules, of one agent or of all.
    pub fn schedules(&self, agent: Option<&str>) -> Result<SchedulePage, QueryError> {
        let loaded = self.context().config()?;
        let only = agent.map(|name| loaded.find_agent(name)).transpose();
        let only = only.map_err(|error| unknown_agent(&error))?;
        let standing = ScheduleListContext::read(
            &*self.reader()?,
            &loaded,
            self.lock_owner()?.has_permanent_daemon(),
        )?;
        let agents = loaded.agents.iter().filter(|it| only.is_none_or(|one| one.name == it.name));
        let schedules: Vec<ScheduleSummary> = agents
            .flat_map(|agent| agent.schedules.iter().map(move |it| (agent, it)))
            .map(|(agent, schedule)| standing.schedule_summary(agent, schedule))
            .collect();
        Ok(SchedulePage { total: schedules.len(), schedules })
    }

    /// Returns a schedule of an agent.
    pub fn schedule(&self, agent: &str, name: &str) -> Result<ScheduleDetails, QueryError> {
        let loaded = self.context().config()?;
        let agent = loaded.find_agent(agent).map_err(|error| unknown_agent(&error))?;
        let schedule = agent.schedules.iter().find(|it| it.name == name);
        let schedule = schedule.ok_or_else(|| unknown_schedule(agent, name))?;
        let is_kept = self.lock_owner()?.has_permanent_daemon();
        let reader = self.reader()?;
        let item =
            ScheduleListContext::read(&reader, &loaded, is_kept)?.schedule_summary(agent, schedule);
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

/// Says that an agent has no such schedule, and which it has.
fn unknown_schedule(agent: &config::AgentConfig, name: &str) -> QueryError {
    let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
    let has = match names[..] {
        [] => "it has none".to_owned(),
        _ => format!("it has: {}", names.join(", ")),
    };
    let message = format!("`{}` has no schedule `{name}`; {has}", agent.name);
    QueryError::not_found(message, "heeler schedule list")
}
