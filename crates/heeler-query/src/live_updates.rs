//! What live streams tell beside rows: where a job, a session or a run of a workflow is now.

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

/// Where a job is now.
#[derive(Debug, Clone, PartialEq)]
pub struct JobProgress {
    /// What lists show of it.
    pub item: JobSummary,
    /// Its transcript; none if there is none any more.
    pub log: Option<Utf8PathBuf>,
    /// The folder of the run that was at it last.
    pub run: Option<Utf8PathBuf>,
}

/// Where a run of a workflow is now.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunUpdate {
    /// Its id.
    pub id: String,
    /// The workflow.
    pub workflow: String,
    /// Where it is.
    pub status: String,
    /// The phase that it is in.
    pub phase: String,
    /// What it cost so far.
    pub cost_usd: f64,
    /// When it last came further.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// What went wrong.
    pub error: Option<String>,
    /// Whether it is over.
    #[serde(skip)]
    pub is_over: bool,
}

/// Something that happened in a run of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunEvent {
    /// Counts the events of a run from one.
    pub number: u64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What sort of event.
    pub kind: String,
    /// The phase that it concerns.
    pub phase: Option<String>,
    /// What is said.
    pub text: String,
}

/// A fleet in a few figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetActivityUpdate {
    /// Grows with each change while the daemon lives.
    pub commit: u64,
    /// The figures.
    #[serde(flatten)]
    pub pulse: FleetActivity,
}

impl FleetReader {
    /// Returns the id of a job; a beginning of it will do while it is unique.
    pub fn job_id(&self, text: &str) -> Result<JobId, QueryError> {
        Ok(self.reader()?.find_job(text)?.head.id)
    }

    /// Returns where a job is now.
    pub fn job_progress(&self, job: &JobId) -> Result<JobProgress, QueryError> {
        let reader = self.reader()?;
        // The job first: a run that begins after it was read is seen the next time.
        let head = reader.find_job(&job.to_string())?.head;
        let run = reader.runs_of_job(job)?.last().map(|run| self.dir().run(run.id));
        let log = self.followed_transcript_path(&reader, &head)?;
        Ok(JobProgress { item: JobSummary::of(head, &reader, self.dir())?, log, run })
    }

    /// Returns the transcript of a job: its own, or its session's where another program wrote it.
    fn followed_transcript_path(
        &self,
        reader: &StoreReader,
        head: &JobHead,
    ) -> Result<Option<Utf8PathBuf>, QueryError> {
        let own = self.dir().job_transcript(&head.id);
        if is_file(&own) || !head.status.is_final() {
            return Ok(Some(own));
        }
        let Some(id) = &head.session_id else { return Ok(None) };
        let session = reader.session_by_agent_id(id)?;
        let home = self.context().home;
        let log =
            session.and_then(|session| self.dir().session_log_path(home.as_deref(), &session));
        Ok(log.filter(|log| is_file(log)))
    }

    /// Returns the id of a session; a beginning of it, or the agent's own id, will do.
    pub fn session_id(&self, text: &str) -> Result<SessionId, QueryError> {
        Ok(self.reader()?.find_session(text)?.id)
    }

    /// Returns the log of a session, once it has one.
    pub fn session_transcript(
        &self,
        session: &SessionId,
    ) -> Result<Option<Utf8PathBuf>, QueryError> {
        let found = self.reader()?.session(session)?;
        let home = self.context().home;
        Ok(found.and_then(|session| self.dir().session_log_path(home.as_deref(), &session)))
    }

    /// Returns the id of a run of a workflow; a beginning of it will do while it is unique.
    pub fn workflow_run_id(&self, text: &str) -> Result<String, QueryError> {
        Ok(self.reader()?.find_workflow_run(text)?.head.id.to_string())
    }

    /// Returns where a run of a workflow is now.
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

    /// Returns the events of a run of a workflow after a number, the oldest first.
    pub fn workflow_run_events(
        &self,
        run: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<WorkflowRunEvent>, QueryError> {
        let reader = self.reader()?;
        let run = reader.find_workflow_run(run)?.head.id;
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let events = reader.workflow_events(&run, after, limit)?;
        let told = events.into_iter().map(|event| WorkflowRunEvent {
            number: event.number.unsigned_abs(),
            at: event.at,
            kind: event.kind,
            phase: event.phase,
            text: event.text,
        });
        Ok(told.collect())
    }
}

fn is_file(path: &camino::Utf8Path) -> bool {
    untrusted_file::open(path).is_ok()
}
