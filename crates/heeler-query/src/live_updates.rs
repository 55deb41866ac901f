//! State of a job, session or workflow run, for live streams that also deliver rows.

use camino::Utf8PathBuf;
use heeler_model::{JobHead, JobId, SessionId};
use heeler_store::StoreReader;
use heeler_transcript::untrusted_file;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::jobs::JobSummary;
use crate::overview::FleetActivity;
use crate::{FleetReader, QueryError};

/// Current state of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobProgress {
    /// Fields of the list entry.
    pub item: JobSummary,
    /// Path of the transcript; `None` if it no longer exists.
    pub log: Option<Utf8PathBuf>,
    /// Directory of the job's last run.
    pub run: Option<Utf8PathBuf>,
}

/// Current state of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunUpdate {
    /// Workflow run ID.
    pub id: String,
    /// Name of the workflow.
    pub workflow: String,
    /// Status.
    pub status: String,
    /// Current phase.
    pub phase: String,
    /// Cost in US dollars up to now.
    pub cost_usd: f64,
    /// Time of the last progress.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// Error.
    pub error: Option<String>,
    /// True if the workflow run has ended.
    #[serde(skip)]
    pub is_over: bool,
}

/// An event of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunEvent {
    /// Number of the event in the workflow run, counted from one.
    pub number: u64,
    /// Time of the event.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Kind of event.
    pub kind: String,
    /// Phase concerned.
    pub phase: Option<String>,
    /// Description of the event.
    pub text: String,
}

/// Activity of a fleet in a few figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetActivityUpdate {
    /// Counter that increases with each change while the daemon runs.
    pub commit: u64,
    /// Activity figures.
    #[serde(flatten)]
    pub pulse: FleetActivity,
}

impl FleetReader {
    /// Resolves a unique ID prefix of a job.
    pub fn job_id(&self, text: &str) -> Result<JobId, QueryError> {
        Ok(self.reader()?.find_job(text)?.head.id)
    }

    /// Returns the current state of a job.
    pub fn job_progress(&self, job: &JobId) -> Result<JobProgress, QueryError> {
        let reader = self.reader()?;
        // The job is read first; a run that starts afterwards appears in the next update.
        let head = reader.find_job(&job.to_string())?.head;
        let run = reader.runs_of_job(job)?.last().map(|run| self.dir().run(run.id));
        let log = self.followed_transcript_path(&reader, &head)?;
        Ok(JobProgress { item: JobSummary::of(head, &reader, self.dir())?, log, run })
    }

    /// Returns the transcript of a job: its own, or its session's if another program wrote it.
    fn followed_transcript_path(
        &self,
        reader: &StoreReader,
        head: &JobHead,
    ) -> Result<Option<Utf8PathBuf>, QueryError> {
        let path = self.dir().job_transcript(&head.id);
        // The transcript of a job that has not started will appear under this name.
        if is_file(&path) || !head.status.is_final() {
            return Ok(Some(path));
        }
        let Some(id) = &head.session_id else { return Ok(None) };
        let session = reader.session_by_agent_id(id)?;
        let home = self.context().home;
        let log =
            session.and_then(|session| self.dir().session_log_path(home.as_deref(), &session));
        Ok(log.filter(|log| is_file(log)))
    }

    /// Resolves a unique ID prefix of a session, or a native session ID.
    pub fn session_id(&self, text: &str) -> Result<SessionId, QueryError> {
        Ok(self.reader()?.find_session(text)?.id)
    }

    /// Returns the transcript of a session, once it exists.
    pub fn session_transcript(
        &self,
        session: &SessionId,
    ) -> Result<Option<Utf8PathBuf>, QueryError> {
        let found = self.reader()?.session(session)?;
        let home = self.context().home;
        Ok(found.and_then(|session| self.dir().session_log_path(home.as_deref(), &session)))
    }

    /// Resolves a unique ID prefix of a workflow run.
    pub fn workflow_run_id(&self, text: &str) -> Result<String, QueryError> {
        Ok(self.reader()?.find_workflow_run(text)?.head.id.to_string())
    }

    /// Returns the current state of a workflow run.
    pub fn workflow_run_update(&self, run: &str) -> Result<WorkflowRunUpdate, QueryError> {
        let head = self.reader()?.find_workflow_run(run)?.head;
        Ok(WorkflowRunUpdate {
            id: head.id.to_string(),
            workflow: head.workflow,
            status: head.status.as_str().to_owned(),
            phase: head.current_phase,
            cost_usd: head.spent as f64 / 1e6,
            updated_at: head.updated_at,
            error: head.error,
            is_over: head.status.is_final(),
        })
    }

    /// Returns the events of a workflow run after a number, oldest first.
    pub fn workflow_run_events(
        &self,
        run: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<WorkflowRunEvent>, QueryError> {
        let reader = self.reader()?;
        let run = reader.find_workflow_run(run)?.head.id;
        // A client may send any number. There are no events after the largest one.
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let events = reader.workflow_events(&run, after, limit)?;
        let events = events.into_iter().map(|event| WorkflowRunEvent {
            number: event.number.unsigned_abs(),
            at: event.at,
            kind: event.kind,
            phase: event.phase,
            text: event.text,
        });
        Ok(events.collect())
    }
}

fn is_file(path: &camino::Utf8Path) -> bool {
    // Opening it also refuses links and pipes, which an agent could have put there.
    untrusted_file::open(path).is_ok()
}
