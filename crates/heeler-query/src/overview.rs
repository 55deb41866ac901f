//! Current activity of a fleet: running, queued, upcoming and failed jobs, and open questions.
//!
//! Every part has a maximum size, so the cost does not grow with the amount of data. Start at
//! [`FleetReader::overview`].

use std::collections::BTreeSet;

use heeler_model::{Approval, ApprovalStatus, JobId, JobStatus, ScheduleStatus};
use heeler_store::{ApprovalFilter, JobFilter, JobListRow, StoreReader};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::jobs::JobSummary;
use crate::{FleetReader, QueryError};

/// Maximum number of entries per section.
pub const SECTION_ENTRIES_MAX: usize = 8;

/// Number of transcript rows read from the end to find the last line of output.
const LAST_ROWS: usize = 4;

/// Maximum number of bytes read from the end of a transcript.
const LAST_BYTES_MAX: u64 = 256 * 1024;

/// Age up to which failures are counted.
const FAILURE_WINDOW: SignedDuration = SignedDuration::from_hours(24);

/// Open questions that are looked at to find the jobs that wait for an answer.
const ASKING_JOBS_MAX: usize = 200;

/// Activity of a fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetActivity {
    /// Number of jobs at work. A job that waits for an answer is an open question instead.
    pub running: i64,
    /// Number of queued jobs.
    pub waiting: i64,
    /// Number of jobs that failed within 24 hours.
    pub failed24h: i64,
    /// Number of open questions.
    pub approvals: i64,
}

/// Current activity of a fleet with its details.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetOverview {
    pub activity: FleetActivity,
    /// Number of agents.
    pub agents: usize,
    /// Number of jobs.
    pub jobs: i64,
    /// Running jobs, longest first.
    pub running: Vec<RunningJobSummary>,
    /// Queued jobs, in queue order.
    pub waiting: Vec<WaitingJobSummary>,
    /// Upcoming schedules, soonest first.
    pub next: Vec<UpcomingSchedule>,
    /// Jobs that failed within 24 hours, newest first.
    pub failed: Vec<JobSummary>,
    /// Most recently ended jobs, newest first.
    pub recent: Vec<JobSummary>,
    /// Open questions, oldest first.
    pub approvals: Vec<Approval>,
    /// Money spent today, in US dollars.
    pub cost_today_usd: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunningJobSummary {
    pub job: JobSummary,
    /// Last rows of the transcript, as JSON, oldest first.
    pub last_rows: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WaitingJobSummary {
    /// Job ID.
    pub id: String,
    pub agent: String,
    /// Creation time.
    pub since: Timestamp,
    /// Reason for waiting.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct UpcomingSchedule {
    pub agent: String,
    pub schedule: String,
    /// Due time.
    pub at: Timestamp,
}

impl FleetReader {
    /// Returns the activity figures.
    pub fn activity(&self, now: Timestamp) -> Result<FleetActivity, QueryError> {
        count_activity(&*self.reader()?, now)
    }

    /// Returns the current activity; the current day is in `zone`.
    pub fn overview(&self, now: Timestamp, zone: &TimeZone) -> Result<FleetOverview, QueryError> {
        let reader = self.reader()?;
        let loaded = self.context().loaded;
        let today = now.to_zoned(zone.clone()).date();
        // Spending is kept by day, so no job is read for it.
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
        let status = Some(JobStatus::Failed);
        let filter = JobFilter { status, since, ..JobFilter::default() };
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
    let count = |status, since| {
        let status = Some(status);
        reader.count_jobs(&JobFilter { status, since, ..JobFilter::default() })
    };
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    let running = count(JobStatus::Running, None)?;
    let asking = if running == 0 { 0 } else { count_asking_jobs(reader, &pending)? };
    Ok(FleetActivity {
        running: running.saturating_sub(asking).max(0),
        waiting: count(JobStatus::Pending, None)?,
        failed24h: count(JobStatus::Failed, now.checked_sub(FAILURE_WINDOW).ok())?,
        approvals: reader.count_approvals(&pending)?,
    })
}

/// Counts the running jobs that wait for an answer.
fn count_asking_jobs(reader: &StoreReader, pending: &ApprovalFilter) -> Result<i64, QueryError> {
    let open = reader.approvals(pending, None, ASKING_JOBS_MAX)?;
    // An agent may ask several questions at once.
    let jobs: BTreeSet<JobId> = open.into_iter().filter_map(|approval| approval.job_id).collect();
    let mut asking = 0;
    for job in jobs {
        let is_running = reader.job(&job)?.is_some_and(|job| job.head.status == JobStatus::Running);
        asking += i64::from(is_running);
    }
    Ok(asking)
}

/// Returns the last rows of a transcript; empty if it does not exist yet or cannot be read.
fn last_rows(path: &camino::Utf8Path) -> Vec<String> {
    let Ok(length) = path.metadata().map(|found| found.len()) else { return Vec::new() };
    // A row may be very long; reading is limited so that the overview stays fast.
    let page = match length {
        0..=LAST_BYTES_MAX => heeler_transcript::read_tail(path, LAST_ROWS),
        // One row suffices for a long transcript, where a row may have megabytes.
        _ => heeler_transcript::read_tail(path, 1),
    };
    page.map_or_else(|_| Vec::new(), |page| page.records.into_iter().map(|row| row.text).collect())
}

fn waiting_jobs(reader: &StoreReader) -> Result<Vec<WaitingJobSummary>, QueryError> {
    let filter = JobFilter { status: Some(JobStatus::Pending), ..JobFilter::default() };
    let mut found = Vec::new();
    for head in reader.jobs(&filter, None, SECTION_ENTRIES_MAX)? {
        // A job that was just created may not be in the queue yet.
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
    // Agent and schedule break ties, so that the display does not jump.
    due.sort_by(|one, other| {
        (one.at, &one.agent, &one.schedule).cmp(&(other.at, &other.agent, &other.schedule))
    });
    due.truncate(SECTION_ENTRIES_MAX);
    Ok(due)
}

fn pending_approvals(reader: &StoreReader) -> Result<Vec<Approval>, QueryError> {
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    let mut found = reader.approvals(&pending, None, SECTION_ENTRIES_MAX)?;
    // The oldest question is shown first, because it has waited longest.
    found.reverse();
    Ok(found)
}

#[cfg(test)]
mod tests;
