//! Schedules: when agents start by themselves, and what people changed about it.

use std::collections::HashMap;

use heeler_engine::cron_override;
use heeler_model::calendar::ScheduleKey;
use heeler_model::config::{self, Loaded, Missed, Overlap, Period, Trigger};
use heeler_model::timetable::SkipReason;
use heeler_model::{ScheduleState, ScheduleStatus};
use heeler_store::{Occurrence, Override, Reader, SkipRow};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::records::unknown_agent;
use crate::{QueryError, Records, words};

/// How many starts and skips of a schedule are told.
pub const HAPPENINGS: usize = 10;

/// Schedules of the config, in its order.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePage {
    /// The schedules.
    pub schedules: Vec<ScheduleItem>,
    /// How many there are.
    pub total: usize,
}

/// A schedule, as the config has it and as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleItem {
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
    #[schema(value_type = words::ScheduleStatus)]
    pub status: ScheduleStatus,
    /// When its last run ended.
    pub last_run_at: Option<Timestamp>,
    /// When it is next due.
    pub next_run_at: Option<Timestamp>,
    /// Why its last run failed.
    pub last_error: Option<String>,
    /// What a person changed.
    #[serde(rename = "override")]
    pub changed: Option<ScheduleChanged>,
    /// Whether its agent is disabled.
    #[serde(skip)]
    pub agent_disabled: bool,
}

/// What a person changed about a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleChanged {
    /// Whether it starts by itself.
    pub enabled: bool,
    /// When it starts instead, if not as the config says.
    pub when: Option<String>,
    /// Who changed it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

impl From<&Override> for ScheduleChanged {
    fn from(row: &Override) -> ScheduleChanged {
        let Override { enabled, text, by, at, .. } = row.clone();
        ScheduleChanged { enabled, when: text, by, at }
    }
}

/// All that is known of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleDetails {
    /// What a list shows of it.
    #[serde(flatten)]
    pub item: ScheduleItem,
    /// What is asked.
    pub prompt: Option<String>,
    /// What happens to due times at which no daemon was there.
    #[schema(value_type = words::Missed)]
    pub missed: Missed,
    /// What happens while the run before goes on.
    #[schema(value_type = words::Overlap)]
    pub overlap: Overlap,
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
    #[schema(value_type = words::SkipReason)]
    pub reason: SkipReason,
}

impl From<Occurrence> for ScheduleStart {
    fn from(row: Occurrence) -> ScheduleStart {
        ScheduleStart { due_at: row.due, job: row.job.to_string() }
    }
}

impl From<SkipRow> for ScheduleSkip {
    fn from(row: SkipRow) -> ScheduleSkip {
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
pub fn when(trigger: &Trigger) -> String {
    match trigger {
        Trigger::Every(period) => format!("every {period}"),
        Trigger::Cron { expr, zone: Some(zone) } => format!("{} {}", expr.as_str(), zone.name()),
        Trigger::Cron { expr, zone: None } => expr.as_str().to_owned(),
        Trigger::Watch { paths, .. } => format!("when {} change", paths.patterns().join(", ")),
        Trigger::Webhook(_) => "webhook".to_owned(),
        Trigger::Chat => "chat".to_owned(),
    }
}

/// Returns when a schedule starts by what a person set.
fn when_set(text: &str, trigger: &Trigger) -> String {
    match (text.parse::<Period>(), trigger) {
        (Ok(period), _) => when(&Trigger::Every(period)),
        // The zone stays as it is.
        (Err(_), Trigger::Cron { zone: Some(zone), .. }) => format!("{text} {}", zone.name()),
        (Err(_), _) => text.to_owned(),
    }
}

/// What the state knows of schedules.
struct Standing {
    states: indexmap::IndexMap<String, heeler_model::AgentState>,
    overrides: HashMap<ScheduleKey, Override>,
    disabled: Vec<String>,
    /// Whether somebody starts them.
    is_kept: bool,
}

/// Returns what people changed about schedules, those that are crons of workflows too.
pub(crate) fn overrides(
    reader: &Reader,
    loaded: &Loaded,
) -> Result<HashMap<ScheduleKey, Override>, QueryError> {
    let own = reader.overrides()?.into_iter().map(|row| {
        let key = ScheduleKey { agent: row.agent.clone(), schedule: row.schedule.clone() };
        (key, row)
    });
    let crons = reader.cron_overrides()?.into_iter();
    Ok(own.chain(crons.filter_map(|row| cron_override(loaded, row))).collect())
}

impl Standing {
    fn read(reader: &Reader, loaded: &Loaded, is_kept: bool) -> Result<Standing, QueryError> {
        Ok(Standing {
            states: reader.agents()?,
            overrides: overrides(reader, loaded)?,
            disabled: reader.disabled_agents()?,
            is_kept,
        })
    }

    fn item(&self, agent: &config::Agent, schedule: &config::Schedule) -> ScheduleItem {
        let name = agent.name.as_str();
        let key = ScheduleKey { agent: name.to_owned(), schedule: schedule.name.clone() };
        let changed = self.overrides.get(&key);
        let state = self.states.get(name).and_then(|state| state.schedules.get(&schedule.name));
        let state: ScheduleState = state.cloned().unwrap_or_default();
        let agent_disabled = self.disabled.iter().any(|known| known == name);
        let by_hand = changed.map_or(schedule.enabled, |changed| changed.enabled);
        let enabled = by_hand && !agent_disabled && state.status != ScheduleStatus::Disabled;
        let configured = when(&schedule.trigger);
        let set = changed.and_then(|changed| changed.text.as_deref());
        ScheduleItem {
            agent: name.to_owned(),
            name: schedule.name.clone(),
            workflow: schedule.workflow.as_ref().map(|start| start.workflow.to_string()),
            when: set.map_or_else(|| configured.clone(), |set| when_set(set, &schedule.trigger)),
            configured,
            enabled,
            status: state.status,
            last_run_at: state.last_run_at,
            next_run_at: state.next_run_at.filter(|_| enabled && self.is_kept),
            last_error: state.last_error,
            changed: changed.map(ScheduleChanged::from),
            agent_disabled,
        }
    }
}

impl Records {
    /// Lists schedules, of one agent or of all.
    pub fn schedules(&self, agent: Option<&str>) -> Result<SchedulePage, QueryError> {
        let loaded = self.known().config()?;
        let only = agent.map(|name| loaded.find_agent(name)).transpose();
        let only = only.map_err(|error| unknown_agent(&error))?;
        let standing = Standing::read(&*self.reader()?, &loaded, self.keeper()?.is_permanent())?;
        let agents = loaded.agents.iter().filter(|it| only.is_none_or(|one| one.name == it.name));
        let schedules: Vec<ScheduleItem> = agents
            .flat_map(|agent| agent.schedules.iter().map(move |it| (agent, it)))
            .map(|(agent, schedule)| standing.item(agent, schedule))
            .collect();
        Ok(SchedulePage { total: schedules.len(), schedules })
    }

    /// Returns a schedule of an agent.
    pub fn schedule(&self, agent: &str, name: &str) -> Result<ScheduleDetails, QueryError> {
        let loaded = self.known().config()?;
        let agent = loaded.find_agent(agent).map_err(|error| unknown_agent(&error))?;
        let schedule = agent.schedules.iter().find(|it| it.name == name);
        let schedule = schedule.ok_or_else(|| unknown_schedule(agent, name))?;
        let is_kept = self.keeper()?.is_permanent();
        let reader = self.reader()?;
        let item = Standing::read(&reader, &loaded, is_kept)?.item(agent, schedule);
        let starts = reader.occurrences(&item.agent, name, None, HAPPENINGS)?;
        let skips = reader.skips(&item.agent, name, None, HAPPENINGS)?;
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
fn unknown_schedule(agent: &config::Agent, name: &str) -> QueryError {
    let names: Vec<&str> = agent.schedules.iter().map(|it| it.name.as_str()).collect();
    let has = match names[..] {
        [] => "it has none".to_owned(),
        _ => format!("it has: {}", names.join(", ")),
    };
    let message = format!("`{}` has no schedule `{name}`; {has}", agent.name);
    QueryError::not_found(message, "heeler schedule list")
}
