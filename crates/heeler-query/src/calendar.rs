//! Calendar of the previous and next 24 hours of every schedule: jobs started, due times skipped
//! with the reason, and due times ahead.

use std::collections::HashMap;

use heeler_config::{LoadedConfig, ScheduleConfig};
use heeler_model::calendar::ScheduleKey;
use heeler_model::schedule_rule::{parse_rule, rule_text};
use heeler_model::timetable::{DueTimeCursor, ScheduleTimetable};
use heeler_model::{JobStatus, ScheduleStatus};
use heeler_store::{ScheduleOverrideRecord, ScheduledWorkId, StoreReader};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::schedules::{describe_trigger, load_overrides};
use crate::{FleetReader, QueryError};

/// Length of the window before and after the current time.
const WINDOW_SPAN: SignedDuration = SignedDuration::from_hours(24);

/// Maximum number of starts, and of skips, read per schedule; the newest are read.
pub const PAST_MAX: usize = 200;

/// Maximum number of due times computed per schedule.
pub const DUE_MAX: usize = 100;

/// Calendar of the previous and next 24 hours.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetCalendar {
    /// Start of the window.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Current time, the middle of the window.
    #[schema(value_type = String, format = DateTime)]
    pub now: Timestamp,
    /// End of the window.
    #[schema(value_type = String, format = DateTime)]
    pub until: Timestamp,
    /// Schedules, by agent and name in config order.
    pub lanes: Vec<ScheduleTimeline>,
}

/// Calendar of one schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleTimeline {
    /// Name of the agent.
    pub agent: String,
    /// Name of the schedule.
    pub schedule: String,
    /// Description of the trigger.
    pub when: String,
    /// False if the schedule can be triggered manually only.
    pub enabled: bool,
    /// Past and future due times, oldest first.
    pub marks: Vec<TimelineEntry>,
    /// True if the past part is incomplete because of a limit.
    pub more_past: bool,
    /// True if the future part is incomplete because of a limit.
    pub more_due: bool,
}

/// Due time of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimelineEntry {
    /// Due time.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Outcome of the due time.
    #[serde(flatten)]
    pub what: TimelineOutcome,
}

/// Outcome of a due time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase", tag = "fate")]
pub enum TimelineOutcome {
    /// A job was created.
    Ran {
        /// Job ID.
        job: String,
        /// Status of the job.
        #[schema(value_type = Option<String>)]
        status: Option<JobStatus>,
    },
    /// No job was created.
    Skipped {
        /// Number of consecutive skipped due times, starting with this one.
        count: u64,
        /// Last of the skipped due times.
        #[schema(value_type = String, format = DateTime)]
        last: Timestamp,
        /// Reason for skipping.
        reason: String,
    },
    /// The due time is in the future.
    Due,
}

impl FleetReader {
    /// Returns the calendar of every schedule.
    pub fn calendar(&self, now: Timestamp, zone: &TimeZone) -> Result<FleetCalendar, QueryError> {
        let reader = self.reader()?;
        let span = CalendarWindow {
            from: now.checked_sub(WINDOW_SPAN).unwrap_or(Timestamp::MIN),
            now,
            until: now.checked_add(WINDOW_SPAN).unwrap_or(Timestamp::MAX),
        };
        // Without a config nothing is known about the schedules.
        let Some(loaded) = self.context().loaded else {
            return Ok(FleetCalendar {
                from: span.from,
                now,
                until: span.until,
                lanes: Vec::new(),
            });
        };
        let state = CalendarContext::read(&reader, &loaded)?;
        let mut lanes = Vec::new();
        for agent in &loaded.agents {
            for schedule in &agent.schedules {
                let key =
                    ScheduleKey { agent: agent.name.to_string(), schedule: schedule.name.clone() };
                lanes.push(build_timeline(&reader, &state, &span, zone, key, schedule)?);
            }
        }
        Ok(FleetCalendar { from: span.from, now, until: span.until, lanes })
    }
}

struct CalendarWindow {
    from: Timestamp,
    now: Timestamp,
    until: Timestamp,
}

/// Stored state of all schedules.
struct CalendarContext {
    overrides: HashMap<ScheduleKey, ScheduleOverrideRecord>,
    progress: HashMap<ScheduleKey, (DueTimeCursor, String)>,
    disabled_schedules: Vec<ScheduleKey>,
    disabled_agents: Vec<String>,
}

impl CalendarContext {
    fn read(reader: &StoreReader, loaded: &LoadedConfig) -> Result<CalendarContext, QueryError> {
        let progress = reader.schedule_progress()?.into_iter().map(|it| {
            (ScheduleKey { agent: it.agent, schedule: it.schedule }, (it.progress, it.trigger_text))
        });
        let mut off = Vec::new();
        for (agent, state) in reader.agents()? {
            for (schedule, state) in state.schedules {
                if state.status == ScheduleStatus::Disabled {
                    off.push(ScheduleKey { agent: agent.clone(), schedule });
                }
            }
        }
        Ok(CalendarContext {
            overrides: load_overrides(reader, loaded)?,
            progress: progress.collect(),
            disabled_schedules: off,
            disabled_agents: reader.disabled_agents()?,
        })
    }
}

fn build_timeline(
    reader: &StoreReader,
    state: &CalendarContext,
    span: &CalendarWindow,
    zone: &TimeZone,
    key: ScheduleKey,
    schedule: &ScheduleConfig,
) -> Result<ScheduleTimeline, QueryError> {
    let changed = state.overrides.get(&key);
    let mut schedule = schedule.clone();
    let text = changed.and_then(|changed| changed.text.as_deref());
    // A change that no longer fits the trigger is ignored, as in the scheduler.
    if let Some(trigger) = text.and_then(|text| parse_rule(text, &schedule.trigger)) {
        schedule.trigger = trigger;
    }
    let enabled = changed.map_or(schedule.enabled, |changed| changed.enabled)
        && !state.disabled_schedules.contains(&key)
        && !state.disabled_agents.contains(&key.agent);
    let (mut entries, more_past) = past_entries(reader, &key, span)?;
    let mut more_due = false;
    if enabled
        && let Some(table) = ScheduleTimetable::for_schedule(&schedule, &key.to_string(), zone)
    {
        let rule = rule_text(&schedule.trigger);
        // Progress of an earlier trigger does not apply: the schedule starts afresh.
        let known = state.progress.get(&key).filter(|(_, known)| *known == rule);
        let cursor = known.map_or_else(|| table.initial_cursor(span.now), |(cursor, _)| *cursor);
        let due;
        (due, more_due) = upcoming_due_times(&table, cursor, span);
        entries.extend(due.into_iter().map(|at| TimelineEntry { at, what: TimelineOutcome::Due }));
    }
    let when = describe_trigger(&schedule.trigger);
    let ScheduleKey { agent, schedule } = key;
    Ok(ScheduleTimeline { agent, schedule, when, enabled, marks: entries, more_past, more_due })
}

/// Returns the past due times with their outcomes, oldest first, and true if some were omitted.
fn past_entries(
    reader: &StoreReader,
    key: &ScheduleKey,
    span: &CalendarWindow,
) -> Result<(Vec<TimelineEntry>, bool), QueryError> {
    let mut entries = Vec::new();
    let started = reader.occurrences(&key.agent, &key.schedule, None, PAST_MAX)?;
    let skipped = reader.skips(&key.agent, &key.schedule, None, PAST_MAX)?;
    let is_more = |count: usize, oldest: Option<Timestamp>| {
        // A full page that begins inside the window was cut.
        count == PAST_MAX && oldest.is_some_and(|oldest| oldest >= span.from)
    };
    let more = is_more(started.len(), started.last().map(|one| one.due))
        || is_more(skipped.len(), skipped.last().map(|one| one.skip.first));
    // The page may reach beyond the window.
    for one in started.into_iter().filter(|one| one.due >= span.from) {
        let status = match &one.work {
            ScheduledWorkId::Job(job) => reader.job(job)?.map(|job| job.head.status),
            ScheduledWorkId::WorkflowRun(_) => None,
        };
        let job = one.work.as_str().to_owned();
        entries.push(TimelineEntry { at: one.due, what: TimelineOutcome::Ran { job, status } });
    }
    // A span may begin before the window and end in it.
    for row in skipped.into_iter().filter(|row| row.skip.last >= span.from) {
        let (count, last) = (row.skip.count, row.skip.last);
        let reason = row.skip.reason.as_str().to_owned();
        entries.push(TimelineEntry {
            at: row.skip.first,
            what: TimelineOutcome::Skipped { count, last, reason },
        });
    }
    entries.sort_by_key(|entry| entry.at);
    Ok((entries, more))
}

/// Returns the due times ahead, and true if some were omitted.
fn upcoming_due_times(
    table: &ScheduleTimetable,
    mut cursor: DueTimeCursor,
    span: &CalendarWindow,
) -> (Vec<Timestamp>, bool) {
    let mut due = Vec::new();
    // Due times missed while no daemon was running are in the past and not upcoming.
    cursor.through = cursor.through.max(span.now);
    while let Some((at, _)) = table.next_due(cursor) {
        if at > span.until {
            return (due, false);
        }
        if due.len() == DUE_MAX {
            return (due, true);
        }
        due.push(at);
        cursor.through = at;
    }
    (due, false)
}
