//! Jobs: pages of them.

use heeler_model::{ExitReason, Job, JobHead, JobStatus};
use heeler_store::{JobCursor, JobFilter, Reader, StateDir};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{QueryError, Records};

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub struct JobsWanted {
    /// Only those of this agent, by its qualified name.
    pub agent: Option<String>,
    /// Only those in this state.
    pub status: Option<JobStatus>,
    /// Only those that were asked for since then.
    pub since: Option<Timestamp>,
    /// Those older than this job; a beginning of its id will do while it is unique.
    pub before: Option<String>,
    /// How many.
    pub limit: usize,
}

/// A page of jobs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobItem>,
    /// How many there are on all pages.
    pub total: i64,
    /// How many a page has at most.
    pub limit: usize,
    /// What `before` is for the next page; none on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobItem {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// The schedule that it is a run of.
    pub schedule: Option<String>,
    /// Where it is.
    #[schema(value_type = String)]
    pub status: JobStatus,
    /// It is `running` by the record, and no process runs it.
    pub dead: bool,
    /// What started it.
    pub trigger_type: String,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub asked_at: Timestamp,
    /// When it began to run.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// How long it ran.
    pub duration_seconds: Option<f64>,
    /// How it ended.
    #[schema(value_type = Option<String>)]
    pub exit_reason: Option<ExitReason>,
    /// What it cost.
    pub cost_usd: Option<f64>,
    /// The agent's own id of its session.
    pub session_id: Option<String>,
    /// What it did.
    pub summary: Option<String>,
    /// Why it failed, if it did.
    #[serde(skip)]
    pub error: Option<String>,
}

impl JobItem {
    /// Reads what a list shows of a job.
    pub fn of(head: JobHead, reader: &Reader, dir: &StateDir) -> Result<JobItem, QueryError> {
        let dead = head.status == JobStatus::Running && reader.is_dead(dir, &head.id)?;
        let error = match head.status {
            JobStatus::Failed => reader.job_error(&head.id)?,
            _ => None,
        };
        let started_at = reader.job(&head.id)?.as_ref().and_then(started);
        Ok(JobItem {
            id: head.id.to_string(),
            agent: head.agent,
            schedule: head.schedule,
            status: head.status,
            dead,
            trigger_type: head.trigger_type.as_str().to_owned(),
            asked_at: head.started_at,
            started_at,
            finished_at: head.finished_at,
            duration_seconds: head.duration_ms.map(|ms| ms as f64 / 1_000.0),
            exit_reason: head.exit_reason,
            cost_usd: head.cost_usd,
            session_id: head.session_id.map(|id| id.to_string()),
            summary: head.summary,
            error,
        })
    }
}

/// Returns when a job began to run; the records of other programs know one time only.
pub fn started(job: &Job) -> Option<Timestamp> {
    job.run_started_at.or_else(|| job.origin.as_ref().map(|_| job.head.started_at))
}

impl Records {
    /// Lists jobs, newest first.
    pub fn jobs(&self, wanted: &JobsWanted) -> Result<JobPage, QueryError> {
        let reader = self.reader()?;
        let JobsWanted { agent, status, since, before, limit } = wanted;
        let filter = JobFilter { agent: agent.clone(), status: *status, since: *since };
        let before = match before {
            None => None,
            Some(id) => Some(JobCursor::after(&reader.find_job(id)?.head)),
        };
        // One more tells whether there is a next page.
        let mut heads = reader.jobs(&filter, before.as_ref(), limit.saturating_add(1))?;
        let total = reader.count_jobs(&filter)?;
        let has_more = heads.len() > *limit;
        heads.truncate(*limit);
        let next = heads.last().filter(|_| has_more).map(|last| last.id.to_string());
        let jobs: Result<Vec<JobItem>, QueryError> =
            heads.into_iter().map(|head| JobItem::of(head, &reader, self.dir())).collect();
        Ok(JobPage { jobs: jobs?, total, limit: *limit, next })
    }
}
