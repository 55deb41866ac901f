//! What a fleet does now: what runs, waits, comes next, failed, and asks for a person.
//!
//! Every part is bounded, so that it costs the same however much there is.

use heeler_model::{Approval, ApprovalStatus, JobStatus, ScheduleStatus};
use heeler_store::{ApprovalFilter, JobFilter, JobLine, Reader};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::jobs::JobItem;
use crate::{QueryError, Records};

/// How many of each kind are shown.
pub const SHOWN: usize = 8;

/// How many rows at the end of a transcript are looked at for the last line.
const LAST_ROWS: usize = 4;

/// A transcript's last rows are not looked for in more than this.
const LAST_BYTES_MAX: u64 = 256 * 1024;

/// How long ago a failure still counts.
const FAILED_WITHIN: SignedDuration = SignedDuration::from_hours(24);

/// How much goes on in a fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pulse {
    /// Jobs that run.
    pub running: i64,
    /// Jobs that wait.
    pub waiting: i64,
    /// Jobs that failed within a day.
    pub failed24h: i64,
    /// Questions that nobody has answered.
    pub approvals: i64,
}

/// What a fleet does now.
#[derive(Debug, Clone, PartialEq)]
pub struct Overview {
    /// How much goes on.
    pub pulse: Pulse,
    /// How many agents there are.
    pub agents: usize,
    /// How many jobs there are.
    pub jobs: i64,
    /// What runs, longest first.
    pub running: Vec<Running>,
    /// What waits, in its order.
    pub waiting: Vec<Waiting>,
    /// What comes next, soonest first.
    pub next: Vec<Due>,
    /// What failed within a day, newest first.
    pub failed: Vec<JobItem>,
    /// What ended last, newest first.
    pub recent: Vec<JobItem>,
    /// What people are asked, oldest first.
    pub approvals: Vec<Approval>,
    /// What was spent today.
    pub cost_today_usd: f64,
}

/// A job that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// The job.
    pub job: JobItem,
    /// The last rows of its transcript, as JSON, oldest first.
    pub last_rows: Vec<String>,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The job.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// When it was asked for.
    pub since: Timestamp,
    /// Why it waits.
    pub reason: String,
}

/// A schedule that is due.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    /// The agent.
    pub agent: String,
    /// The schedule.
    pub schedule: String,
    /// When.
    pub at: Timestamp,
}

impl Records {
    /// Says how much goes on.
    pub fn pulse(&self, now: Timestamp) -> Result<Pulse, QueryError> {
        pulse(&*self.reader()?, now)
    }

    /// Says what the fleet does now; today is a day of `zone`.
    pub fn overview(&self, now: Timestamp, zone: &TimeZone) -> Result<Overview, QueryError> {
        let reader = self.reader()?;
        let loaded = self.known().loaded;
        let today = now.to_zoned(zone.clone()).date();
        let spent: i64 = reader.spent_by_agent(today)?.iter().map(|(_, micros)| micros).sum();
        Ok(Overview {
            pulse: pulse(&reader, now)?,
            agents: loaded.map_or(0, |loaded| loaded.agents.len()),
            jobs: reader.count_jobs(&JobFilter::default())?,
            running: self.running(&reader)?,
            waiting: waiting(&reader)?,
            next: next(&reader)?,
            failed: self.failed(&reader, now)?,
            recent: self.recent(&reader)?,
            approvals: approvals(&reader)?,
            cost_today_usd: spent as f64 / 1e6,
        })
    }

    fn running(&self, reader: &Reader) -> Result<Vec<Running>, QueryError> {
        let filter = JobFilter { status: Some(JobStatus::Running), ..JobFilter::default() };
        let lines = reader.job_lines(&filter, None, SHOWN)?;
        let one = |line: JobLine| {
            let last_rows = last_rows(&self.dir().log_of(&line.head.id));
            Ok(Running { job: JobItem::of_line(line, reader, self.dir())?, last_rows })
        };
        lines.into_iter().map(one).collect()
    }

    fn failed(&self, reader: &Reader, now: Timestamp) -> Result<Vec<JobItem>, QueryError> {
        let since = now.checked_sub(FAILED_WITHIN).ok();
        let filter = JobFilter { status: Some(JobStatus::Failed), since, agent: None };
        self.job_items(reader, reader.job_lines(&filter, None, SHOWN)?)
    }

    fn recent(&self, reader: &Reader) -> Result<Vec<JobItem>, QueryError> {
        self.job_items(reader, reader.job_lines(&JobFilter::default(), None, SHOWN)?)
    }
}

fn pulse(reader: &Reader, now: Timestamp) -> Result<Pulse, QueryError> {
    let count =
        |status, since| reader.count_jobs(&JobFilter { status: Some(status), since, agent: None });
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    Ok(Pulse {
        running: count(JobStatus::Running, None)?,
        waiting: count(JobStatus::Pending, None)?,
        failed24h: count(JobStatus::Failed, now.checked_sub(FAILED_WITHIN).ok())?,
        approvals: reader.count_approvals(&pending)?,
    })
}

/// Returns the last rows of a transcript; none where it is not there yet or cannot be read.
fn last_rows(path: &camino::Utf8Path) -> Vec<String> {
    let Ok(length) = path.metadata().map(|found| found.len()) else { return Vec::new() };
    // A row may be as long as a file: nobody waits for that here.
    let page = match length {
        0..=LAST_BYTES_MAX => heeler_transcript::tail(path, LAST_ROWS),
        _ => heeler_transcript::tail(path, 1),
    };
    page.map_or_else(|_| Vec::new(), |page| page.records.into_iter().map(|row| row.text).collect())
}

fn waiting(reader: &Reader) -> Result<Vec<Waiting>, QueryError> {
    let filter = JobFilter { status: Some(JobStatus::Pending), ..JobFilter::default() };
    let mut found = Vec::new();
    for head in reader.jobs(&filter, None, SHOWN)? {
        let reason = reader.queued(&head.id)?.map(|queued| queued.reason).unwrap_or_default();
        let (id, since) = (head.id.to_string(), head.started_at);
        found.push(Waiting { id, agent: head.agent, since, reason });
    }
    Ok(found)
}

fn next(reader: &Reader) -> Result<Vec<Due>, QueryError> {
    let disabled = reader.disabled_agents()?;
    let mut due = Vec::new();
    for (agent, state) in reader.agents()? {
        if disabled.contains(&agent) {
            continue;
        }
        for (schedule, state) in state.schedules {
            let at = state.next_run_at.filter(|_| state.status != ScheduleStatus::Disabled);
            due.extend(at.map(|at| Due { agent: agent.clone(), schedule, at }));
        }
    }
    due.sort_by(|one, other| {
        (one.at, &one.agent, &one.schedule).cmp(&(other.at, &other.agent, &other.schedule))
    });
    due.truncate(SHOWN);
    Ok(due)
}

fn approvals(reader: &Reader) -> Result<Vec<Approval>, QueryError> {
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    let mut found = reader.approvals(&pending, None, SHOWN)?;
    found.reverse();
    Ok(found)
}

#[cfg(test)]
mod tests;
