//! What a fleet does now: what runs, waits, comes next, failed, and asks for a person.
//!
//! Every part is bounded, so that it costs the same however much there is.

use heeler_model::{Approval, ApprovalStatus, JobStatus, ScheduleStatus};
use heeler_store::{ApprovalFilter, JobFilter, JobListRow, StoreReader};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::jobs::JobSummary;
use crate::{FleetReader, QueryError};

/// How many of each kind are shown.
pub const SECTION_ENTRIES_MAX: usize = 8;

/// How many rows at the end of a transcript are looked at for the last line.
const LAST_ROWS: usize = 4;

/// A transcript's last rows are not looked for in more than this.
const LAST_BYTES_MAX: u64 = 256 * 1024;

/// How long ago a failure still counts.
const FAILURE_WINDOW: SignedDuration = SignedDuration::from_hours(24);

/// How much goes on in a fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetActivity {
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
pub struct FleetOverview {
    /// How much goes on.
    pub activity: FleetActivity,
    /// How many agents there are.
    pub agents: usize,
    /// How many jobs there are.
    pub jobs: i64,
    /// What runs, longest first.
    pub running: Vec<RunningJobSummary>,
    /// What waits, in its order.
    pub waiting: Vec<WaitingJobSummary>,
    /// What comes next, soonest first.
    pub next: Vec<UpcomingSchedule>,
    /// What failed within a day, newest first.
    pub failed: Vec<JobSummary>,
    /// What ended last, newest first.
    pub recent: Vec<JobSummary>,
    /// What people are asked, oldest first.
    pub approvals: Vec<Approval>,
    /// What was spent today.
    pub cost_today_usd: f64,
}

/// A job that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningJobSummary {
    /// The job.
    pub job: JobSummary,
    /// The last rows of its transcript, as JSON, oldest first.
    pub last_rows: Vec<String>,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingJobSummary {
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
pub struct UpcomingSchedule {
    /// The agent.
    pub agent: String,
    /// The schedule.
    pub schedule: String,
    /// When.
    pub at: Timestamp,
}

impl FleetReader {
    /// Says how much goes on.
    pub fn activity(&self, now: Timestamp) -> Result<FleetActivity, QueryError> {
        count_activity(&*self.reader()?, now)
    }

    /// Says what the fleet does now; today is a day of `zone`.
    pub fn overview(&self, now: Timestamp, zone: &TimeZone) -> Result<FleetOverview, QueryError> {
        let reader = self.reader()?;
        let loaded = self.context().loaded;
        let today = now.to_zoned(zone.clone()).date();
        let spent: i64 = reader.daily_spend_by_agent(today)?.iter().map(|(_, micros)| micros).sum();
        Ok(FleetOverview {
            activity: count_activity(&reader, now)?,
            agents: loaded.map_or(0, |loaded| loaded.agents.len()),
            jobs: reader.count_jobs(&JobFilter::default())?,
            running: self.running_jobs(&reader)?,
            waiting: waiting_jobs(&reader)?,
            next: upcoming_schedules(&reader)?,
            failed: self.failed_jobs(&reader, now)?,
            recent: self.recent_jobs(&reader)?,
            approvals: pending_approvals(&reader)?,
            cost_today_usd: spent as f64 / 1e6,
        })
    }

    fn running_jobs(&self, reader: &StoreReader) -> Result<Vec<RunningJobSummary>, QueryError> {
        let filter = JobFilter { status: Some(JobStatus::Running), ..JobFilter::default() };
        let lines = reader.job_list_rows(&filter, None, SECTION_ENTRIES_MAX)?;
        let one = |line: JobListRow| {
            let last_rows = last_rows(&self.dir().job_transcript(&line.head.id));
            Ok(RunningJobSummary {
                job: JobSummary::from_line(line, reader, self.dir())?,
                last_rows,
            })
        };
        lines.into_iter().map(one).collect()
    }

    fn failed_jobs(
        &self,
        reader: &StoreReader,
        now: Timestamp,
    ) -> Result<Vec<JobSummary>, QueryError> {
        let since = now.checked_sub(FAILURE_WINDOW).ok();
        let filter = JobFilter { status: Some(JobStatus::Failed), since, agent: None };
        self.job_summaries(reader, reader.job_list_rows(&filter, None, SECTION_ENTRIES_MAX)?)
    }

    fn recent_jobs(&self, reader: &StoreReader) -> Result<Vec<JobSummary>, QueryError> {
        self.job_summaries(
            reader,
            reader.job_list_rows(&JobFilter::default(), None, SECTION_ENTRIES_MAX)?,
        )
    }
}

fn count_activity(reader: &StoreReader, now: Timestamp) -> Result<FleetActivity, QueryError> {
    let count =
        |status, since| reader.count_jobs(&JobFilter { status: Some(status), since, agent: None });
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    Ok(FleetActivity {
        running: count(JobStatus::Running, None)?,
        waiting: count(JobStatus::Pending, None)?,
        failed24h: count(JobStatus::Failed, now.checked_sub(FAILURE_WINDOW).ok())?,
        approvals: reader.count_approvals(&pending)?,
    })
}

/// Returns the last rows of a transcript; none where it is not there yet or cannot be read.
fn last_rows(path: &camino::Utf8Path) -> Vec<String> {
    let Ok(length) = path.metadata().map(|found| found.len()) else { return Vec::new() };
    // A row may be as long as a file: nobody waits for that here.
    let page = match length {
        0..=LAST_BYTES_MAX => heeler_transcript::read_tail(path, LAST_ROWS),
        _ => heeler_transcript::read_tail(path, 1),
    };
    page.map_or_else(|_| Vec::new(), |page| page.records.into_iter().map(|row| row.text).collect())
}

fn waiting_jobs(reader: &StoreReader) -> Result<Vec<WaitingJobSummary>, QueryError> {
    let filter = JobFilter { status: Some(JobStatus::Pending), ..JobFilter::default() };
    let mut found = Vec::new();
    for head in reader.jobs(&filter, None, SECTION_ENTRIES_MAX)? {
        let reason = reader.queued_job(&head.id)?.map(|queued| queued.reason).unwrap_or_default();
        let (id, since) = (head.id.to_string(), head.started_at);
        found.push(WaitingJobSummary { id, agent: head.agent, since, reason });
    }
    Ok(found)
}

fn upcoming_schedules(reader: &StoreReader) -> Result<Vec<UpcomingSchedule>, QueryError> {
    let disabled = reader.disabled_agents()?;
    let mut due = Vec::new();
    for (agent, state) in reader.agents()? {
        if disabled.contains(&agent) {
            continue;
        }
        for (schedule, state) in state.schedules {
            let at = state.next_run_at.filter(|_| state.status != ScheduleStatus::Disabled);
            due.extend(at.map(|at| UpcomingSchedule { agent: agent.clone(), schedule, at }));
        }
    }
    due.sort_by(|one, other| {
        (one.at, &one.agent, &one.schedule).cmp(&(other.at, &other.agent, &other.schedule))
    });
    due.truncate(SECTION_ENTRIES_MAX);
    Ok(due)
}

fn pending_approvals(reader: &StoreReader) -> Result<Vec<Approval>, QueryError> {
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    let mut found = reader.approvals(&pending, None, SECTION_ENTRIES_MAX)?;
    found.reverse();
    Ok(found)
}

#[cfg(test)]
mod tests;
