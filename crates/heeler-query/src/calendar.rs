//! The past and the coming day of every schedule: what was started, what was skipped and why, and
//! what is due.

use std::collections::HashMap;

use heeler_engine::{read_rule, rule_text};
use heeler_model::calendar::ScheduleKey;
use heeler_model::config::{Loaded, Schedule};
use heeler_model::timetable::{Mark, Timetable};
use heeler_model::{JobStatus, ScheduleStatus};
use heeler_store::{Override, Reader};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::schedules::{overrides, when};
use crate::{QueryError, Records};

/// How far it looks back and ahead.
const SPAN: SignedDuration = SignedDuration::from_hours(24);

/// How many starts of a schedule, and how many of its skips, are looked at: the newest.
pub const PAST_MAX: usize = 200;

/// How many due times of a schedule are looked ahead.
pub const DUE_MAX: usize = 100;

/// The past and the coming day.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Calendar {
    /// Where it begins.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Between the past and the coming day.
    #[schema(value_type = String, format = DateTime)]
    pub now: Timestamp,
    /// Where it ends.
    #[schema(value_type = String, format = DateTime)]
    pub until: Timestamp,
    /// The schedules, by agent and name as in the config.
    pub lanes: Vec<Lane>,
}

/// A schedule's two days.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lane {
    /// The agent.
    pub agent: String,
    /// The schedule.
    pub schedule: String,
    /// When it starts, in words.
    pub when: String,
    /// Whether it starts by itself.
    pub enabled: bool,
    /// What happened and will, oldest first.
    pub marks: Vec<CalendarMark>,
    /// There was more in the past day than is looked at.
    pub more_past: bool,
    /// There is more in the coming day than is looked at.
    pub more_due: bool,
}

/// Something on a schedule's day.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalendarMark {
    /// When it was or is due.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What became of it.
    #[serde(flatten)]
    pub what: Fate,
}

/// What became of a due time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase", tag = "fate")]
pub enum Fate {
    /// It got a job.
    Ran {
        /// The job.
        job: String,
        /// Where that is.
        #[schema(value_type = Option<String>)]
        status: Option<JobStatus>,
    },
    /// It got none.
    Skipped {
        /// How many, from this one on.
        count: u64,
        /// When the last of them was due.
        #[schema(value_type = String, format = DateTime)]
        last: Timestamp,
        /// Why.
        reason: String,
    },
    /// It is to come.
    Due,
}

impl Records {
    /// Returns the past and the coming day of every schedule.
    pub fn calendar(&self, now: Timestamp, zone: &TimeZone) -> Result<Calendar, QueryError> {
        let reader = self.reader()?;
        let span = Span {
            from: now.checked_sub(SPAN).unwrap_or(Timestamp::MIN),
            now,
            until: now.checked_add(SPAN).unwrap_or(Timestamp::MAX),
        };
        let Some(loaded) = self.known().loaded else {
            return Ok(Calendar { from: span.from, now, until: span.until, lanes: Vec::new() });
        };
        let state = State::read(&reader, &loaded)?;
        let mut lanes = Vec::new();
        for agent in &loaded.agents {
            for schedule in &agent.schedules {
                let key =
                    ScheduleKey { agent: agent.name.to_string(), schedule: schedule.name.clone() };
                lanes.push(lane(&reader, &state, &span, zone, key, schedule)?);
            }
        }
        Ok(Calendar { from: span.from, now, until: span.until, lanes })
    }
}

struct Span {
    from: Timestamp,
    now: Timestamp,
    until: Timestamp,
}

/// What the state knows of all schedules.
struct State {
    overrides: HashMap<ScheduleKey, Override>,
    marks: HashMap<ScheduleKey, (Mark, String)>,
    off: Vec<ScheduleKey>,
    disabled_agents: Vec<String>,
}

impl State {
    fn read(reader: &Reader, loaded: &Loaded) -> Result<State, QueryError> {
        let marks = reader
            .schedule_marks()?
            .into_iter()
            .map(|it| (ScheduleKey { agent: it.agent, schedule: it.schedule }, (it.mark, it.rule)));
        let mut off = Vec::new();
        for (agent, state) in reader.agents()? {
            for (schedule, state) in state.schedules {
                if state.status == ScheduleStatus::Disabled {
                    off.push(ScheduleKey { agent: agent.clone(), schedule });
                }
            }
        }
        Ok(State {
            overrides: overrides(reader, loaded)?,
            marks: marks.collect(),
            off,
            disabled_agents: reader.disabled_agents()?,
        })
    }
}

fn lane(
    reader: &Reader,
    state: &State,
    span: &Span,
    zone: &TimeZone,
    key: ScheduleKey,
    schedule: &Schedule,
) -> Result<Lane, QueryError> {
    let changed = state.overrides.get(&key);
    let mut schedule = schedule.clone();
    let text = changed.and_then(|changed| changed.text.as_deref());
    if let Some(trigger) = text.and_then(|text| read_rule(text, &schedule.trigger)) {
        schedule.trigger = trigger;
    }
    let enabled = changed.map_or(schedule.enabled, |changed| changed.enabled)
        && !state.off.contains(&key)
        && !state.disabled_agents.contains(&key.agent);
    let (mut marks, more_past) = past(reader, &key, span)?;
    let mut more_due = false;
    if enabled && let Some(table) = Timetable::of(&schedule, &key.to_string(), zone) {
        let rule = rule_text(&schedule.trigger);
        let known = state.marks.get(&key).filter(|(_, known)| *known == rule);
        let mark = known.map_or_else(|| table.begin(span.now), |(mark, _)| *mark);
        let due;
        (due, more_due) = coming(&table, mark, span);
        marks.extend(due.into_iter().map(|at| CalendarMark { at, what: Fate::Due }));
    }
    let when = when(&schedule.trigger);
    let ScheduleKey { agent, schedule } = key;
    Ok(Lane { agent, schedule, when, enabled, marks, more_past, more_due })
}

/// Returns what became of the past day's due times, oldest first, and whether there was more.
fn past(
    reader: &Reader,
    key: &ScheduleKey,
    span: &Span,
) -> Result<(Vec<CalendarMark>, bool), QueryError> {
    let mut marks = Vec::new();
    let started = reader.occurrences(&key.agent, &key.schedule, None, PAST_MAX)?;
    let skipped = reader.skips(&key.agent, &key.schedule, None, PAST_MAX)?;
    let is_more = |count: usize, oldest: Option<Timestamp>| {
        count == PAST_MAX && oldest.is_some_and(|oldest| oldest >= span.from)
    };
    let more = is_more(started.len(), started.last().map(|one| one.due))
        || is_more(skipped.len(), skipped.last().map(|one| one.skip.first));
    for one in started.into_iter().filter(|one| one.due >= span.from) {
        let status = reader.job(&one.job)?.map(|job| job.head.status);
        marks.push(CalendarMark {
            at: one.due,
            what: Fate::Ran { job: one.job.to_string(), status },
        });
    }
    for row in skipped.into_iter().filter(|row| row.skip.last >= span.from) {
        let (count, last) = (row.skip.count, row.skip.last);
        let reason = row.skip.reason.as_str().to_owned();
        marks
            .push(CalendarMark { at: row.skip.first, what: Fate::Skipped { count, last, reason } });
    }
    marks.sort_by_key(|mark| mark.at);
    Ok((marks, more))
}

/// Returns the due times of the coming day, and whether there are more than are looked at.
fn coming(table: &Timetable, mut mark: Mark, span: &Span) -> (Vec<Timestamp>, bool) {
    let mut due = Vec::new();
    // What was missed while nothing kept the schedules is not to come.
    mark.through = mark.through.max(span.now);
    while let Some((at, _)) = table.next(mark) {
        if at > span.until {
            return (due, false);
        }
        if due.len() == DUE_MAX {
            return (due, true);
        }
        due.push(at);
        mark.through = at;
    }
    (due, false)
}
