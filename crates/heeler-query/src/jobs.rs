//! Jobs: pages of them, and all that is known of one.

use camino::Utf8PathBuf;
use heeler_engine::hooks::{FailedHook, failed_hooks};
use heeler_model::run::{ErrorClass, RunError, RunResult};
use heeler_model::workflow::PartDecision;
use heeler_model::{ExitReason, Job, JobHead, JobId, JobStatus, TriggerType};
use heeler_store::{
    JobCursor, JobFilter, JobListRow, QueuedJobRecord, RunRecord, SentFile, StateDir, StoreReader,
};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError, enum_schemas};

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub struct JobListQuery {
    /// Only those of this agent; its last name will do while it is unique.
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobSummary>,
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
pub struct JobSummary {
    /// Its id.
    pub id: String,
    /// Its agent.
    pub agent: String,
    /// The schedule that it is a run of.
    pub schedule: Option<String>,
    /// Where it is.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
    /// It is `running` by the record, and no process runs it.
    pub dead: bool,
    /// What started it.
    pub trigger_type: String,
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// When it began to run.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long it ran.
    pub duration_seconds: Option<f64>,
    /// How it ended.
    #[schema(value_type = Option<enum_schemas::ExitReason>)]
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

impl JobSummary {
    /// Reads what a list shows of a job.
    pub fn of(
        head: JobHead,
        reader: &StoreReader,
        dir: &StateDir,
    ) -> Result<JobSummary, QueryError> {
        let line = reader.job_list_row(&head.id)?;
        let (began_at, error) = line.map_or((None, None), |line| (line.began_at, line.error));
        let error = error.filter(|_| head.status == JobStatus::Failed);
        JobSummary::from_line(JobListRow { head, began_at, error }, reader, dir)
    }

    /// Makes the same of a line of a list; only of a job that runs more is read.
    pub fn from_line(
        line: JobListRow,
        reader: &StoreReader,
        dir: &StateDir,
    ) -> Result<JobSummary, QueryError> {
        let JobListRow { head, began_at, error } = line;
        let dead = is_dead(&head, reader, dir)?;
        Ok(JobSummary { error, ..JobSummary::from_head(head, began_at, dead) })
    }

    fn from_head(head: JobHead, started_at: Option<Timestamp>, dead: bool) -> JobSummary {
        JobSummary {
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
            error: None,
        }
    }
}

/// Returns where the page ends whose last job is named, without reading what that was asked.
fn job_cursor(reader: &StoreReader, id: &str) -> Result<JobCursor, QueryError> {
    let line = id.parse().ok().map(|id| reader.job_list_row(&id)).transpose()?.flatten();
    let head = match line {
        Some(line) => line.head,
        None => reader.find_job(id)?.head,
    };
    Ok(JobCursor::after(&head))
}

fn is_dead(head: &JobHead, reader: &StoreReader, dir: &StateDir) -> Result<bool, QueryError> {
    Ok(head.status == JobStatus::Running && reader.is_job_orphaned(dir, &head.id)?)
}

/// Returns when a job began to run; the records of other programs know one time only.
pub fn run_started_at(job: &Job) -> Option<Timestamp> {
    job.run_started_at.or_else(|| job.origin.as_ref().map(|_| job.head.started_at))
}

/// All that is known of one job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobDetails {
    /// What a list shows of it.
    #[serde(flatten)]
    pub item: JobSummary,
    /// What was asked.
    pub prompt: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// What went wrong in its last run.
    pub error_details: Option<RunErrorDetails>,
    /// Why the agent stopped, in its own words.
    pub stop_reason: Option<String>,
    /// It was cut off by a crash.
    pub interrupted: bool,
    /// How often it was started again after a crash.
    pub restart_count: i64,
    /// The job that it was forked from.
    pub forked_from: Option<String>,
    /// The agent, or the workflow and the phase.
    pub skill: String,
    /// What it is about: a schedule, a channel, a job.
    pub trigger_id: String,
    /// The job whose agent asked for it.
    pub parent: Option<String>,
    /// Why it waits, while it does.
    pub waits: Option<String>,
    /// When it may start at the earliest.
    pub not_before: Option<Timestamp>,
    /// When it is given up if it waits that long.
    pub expires_at: Option<Timestamp>,
    /// The repository that it is about.
    pub repo: Option<String>,
    /// The issue that it is about.
    pub issue_number: Option<i64>,
    /// The run of a workflow that it is a part of.
    pub workflow_run_id: Option<String>,
    /// The phase of that run.
    pub phase: Option<String>,
    /// The part of that phase.
    pub part: Option<String>,
    /// What was decided by what it said.
    #[schema(value_type = Option<enum_schemas::Decision>)]
    pub decision: Option<PartDecision>,
    /// Where it worked.
    pub working_directory: Option<String>,
    /// Its transcript.
    pub output_file: Option<String>,
    /// Its rows as text, where that was asked for.
    pub text_file: Option<String>,
    /// What its agent handed over.
    pub files: Vec<JobFile>,
    /// Its hooks that failed.
    pub failed_hooks: Vec<FailedHookSummary>,
    /// Our id of its session.
    pub session: Option<String>,
    /// Whose record it is, if not ours.
    pub origin: Option<String>,
    /// Every attempt at it.
    pub runs: Vec<RunSummary>,
    /// What it used.
    pub usage: UsageSummary,
    /// Whether a daemon is there that will start it.
    #[serde(skip)]
    pub has_daemon: bool,
}

/// What went wrong in a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunErrorDetails {
    /// What kind of failure it was.
    #[schema(value_type = enum_schemas::ErrorClass)]
    pub class: ErrorClass,
    /// In words.
    pub message: String,
    /// Whether the same again may succeed.
    pub recoverable: bool,
    /// After which time, if that is known.
    pub retry_after_ms: Option<u64>,
    /// When a limit ends, if it was one.
    pub resets_at: Option<Timestamp>,
    /// How many messages had come by then.
    pub messages_received: u64,
    /// What to do about it.
    pub cure: String,
}

impl From<&RunError> for RunErrorDetails {
    fn from(error: &RunError) -> RunErrorDetails {
        RunErrorDetails {
            class: error.class,
            message: error.message.clone(),
            recoverable: error.recoverable,
            retry_after_ms: error.retry_after_ms,
            resets_at: error.resets_at,
            messages_received: error.messages_received,
            cure: error.cure.clone(),
        }
    }
}

/// A file that an agent handed over.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobFile {
    /// What the agent called it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Where the copy is.
    pub path: String,
}

impl From<SentFile> for JobFile {
    fn from(file: SentFile) -> JobFile {
        JobFile { name: file.name, bytes: file.bytes, path: file.path.into() }
    }
}

/// A hook of a job that failed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedHookSummary {
    /// Its name, or else its list and place there.
    pub name: String,
    /// The event's id.
    pub event_id: String,
    /// Why it failed last.
    pub error: String,
    /// How often it was tried.
    pub attempts: i64,
    /// Whether it was given up; else it is tried again.
    pub given_up: bool,
}

impl From<FailedHook> for FailedHookSummary {
    fn from(hook: FailedHook) -> FailedHookSummary {
        let FailedHook { name, event, error, attempts, is_over } = hook;
        FailedHookSummary { name, event_id: event, error, attempts, given_up: is_over }
    }
}

/// An attempt at a job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Its id.
    pub id: String,
    /// Which attempt it is, from one.
    pub attempt: i64,
    /// Where it is.
    pub status: String,
    /// When it was put on record.
    pub created_at: Timestamp,
    /// When its process began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Whether what it did is on record.
    pub committed: bool,
    /// How it ended.
    #[schema(value_type = Option<enum_schemas::ExitReason>)]
    pub exit_reason: Option<ExitReason>,
    /// The exit code of the agent's process.
    pub exit_code: Option<i32>,
    /// What it cost.
    pub cost_usd: Option<f64>,
    /// The agent's own id of its session.
    pub session_id: Option<String>,
    /// What went wrong.
    pub error: Option<RunErrorDetails>,
    /// What went wrong, with a cure that names the run's folder.
    #[serde(skip)]
    pub fault: Option<RunError>,
}

impl RunSummary {
    fn of(run: RunRecord, result: Option<&RunResult>, dir: &StateDir) -> RunSummary {
        let error = result.and_then(|result| result.error.as_ref());
        let session = result.and_then(|result| result.session.as_ref());
        RunSummary {
            id: run.id.to_string(),
            attempt: run.attempt,
            status: run.status,
            created_at: run.created_at,
            started_at: run.started_at,
            finished_at: run.finished_at,
            committed: run.committed,
            exit_reason: result.map(|result| result.exit_reason),
            exit_code: result.and_then(|result| result.exit_code),
            cost_usd: result.and_then(|result| result.cost.usd),
            session_id: session.map(|session| session.id.to_string()),
            error: error.map(RunErrorDetails::from),
            fault: error.map(|error| {
                let cure = error.cure.replace("the run's folder", dir.run(run.id).as_str());
                RunError { cure, ..error.clone() }
            }),
        }
    }
}

/// What a job used.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageSummary {
    /// How many turns it took.
    pub num_turns: Option<i64>,
    /// How long the API took.
    pub api_duration_ms: Option<i64>,
    /// Tokens that were read.
    pub input_tokens: Option<i64>,
    /// Tokens that were put into the cache.
    pub cache_creation_input_tokens: Option<i64>,
    /// Tokens that were read from the cache.
    pub cache_read_input_tokens: Option<i64>,
    /// Tokens that were written.
    pub output_tokens: Option<i64>,
    /// What each model used, in the words of the agent that reported it.
    #[schema(value_type = std::collections::BTreeMap<String, Value>)]
    pub per_model: IndexMap<String, Value>,
}

/// Lists the attempts at a job, oldest first.
pub fn load_runs(
    reader: &StoreReader,
    dir: &StateDir,
    job: &JobId,
) -> Result<Vec<RunSummary>, QueryError> {
    let runs = reader.runs_of_job(job)?.into_iter();
    runs.map(|run| {
        let result = reader.run_result(run.id)?;
        Ok(RunSummary::of(run, result.as_ref(), dir))
    })
    .collect()
}

/// Returns the job whose agent asked for this one.
fn parent_job(job: &Job) -> Option<String> {
    let is_spawned = job.head.trigger_type == TriggerType::Spawned;
    Some(job.trigger_id.clone()).filter(|id| is_spawned && !id.is_empty())
}

impl FleetReader {
    /// Lists jobs, newest first.
    pub fn jobs(&self, wanted: &JobListQuery) -> Result<JobPage, QueryError> {
        let reader = self.reader()?;
        let JobListQuery { agent, status, since, before, limit } = wanted;
        let agent =
            agent.as_deref().map(|name| self.resolve_agent_name(&reader, name)).transpose()?;
        let filter = JobFilter { agent, status: *status, since: *since };
        let before = before.as_deref().map(|id| job_cursor(&reader, id)).transpose()?;
        // One more tells whether there is a next page.
        let mut lines = reader.job_list_rows(&filter, before.as_ref(), limit.saturating_add(1))?;
        let total = reader.count_jobs(&filter)?;
        let has_more = lines.len() > *limit;
        lines.truncate(*limit);
        let next = lines.last().filter(|_| has_more).map(|last| last.head.id.to_string());
        let jobs = self.job_summaries(&reader, lines)?;
        Ok(JobPage { jobs, total, limit: *limit, next })
    }

    /// Makes items of the lines of a list.
    pub(crate) fn job_summaries(
        &self,
        reader: &StoreReader,
        lines: Vec<JobListRow>,
    ) -> Result<Vec<JobSummary>, QueryError> {
        lines.into_iter().map(|line| JobSummary::from_line(line, reader, self.dir())).collect()
    }

    /// Returns all that is known of a job; a beginning of its id will do while it is unique.
    pub fn job(&self, id: &str) -> Result<JobDetails, QueryError> {
        let reader = self.reader()?;
        let job = reader.find_job(id)?;
        self.job_details(&reader, job)
    }

    /// Returns all that is known of a job that was read.
    pub fn job_details(&self, reader: &StoreReader, job: Job) -> Result<JobDetails, QueryError> {
        let (dir, id) = (self.dir(), job.head.id.clone());
        let session = match &job.head.session_id {
            Some(id) => reader.session_by_agent_id(id)?.map(|session| session.id.to_string()),
            None => None,
        };
        let queued = match job.head.status {
            JobStatus::Pending => reader.queued_job(&id)?,
            _ => None,
        };
        let runs = load_runs(reader, dir, &id)?;
        let hooks = failed_hooks(reader, &id)?;
        let output_file = self.job_transcript_path(reader, &job.head)?;
        let dead = is_dead(&job.head, reader, dir)?;
        let about = JobDetailsContext { session, queued, runs, hooks, output_file, dead };
        let has_daemon = self.lock_owner()?.writer.is_some();
        Ok(JobDetails { has_daemon, ..about.details(dir, job) })
    }
}

/// What was read beside a job.
struct JobDetailsContext {
    session: Option<String>,
    queued: Option<QueuedJobRecord>,
    runs: Vec<RunSummary>,
    hooks: Vec<FailedHook>,
    output_file: Option<Utf8PathBuf>,
    dead: bool,
}

impl JobDetailsContext {
    fn details(self, dir: &StateDir, job: Job) -> JobDetails {
        let JobDetailsContext { session, queued, runs, hooks, output_file, dead } = self;
        let id = job.head.id.clone();
        let text_file = Some(dir.job_output(&id)).filter(|path| path.is_file());
        JobDetails {
            parent: parent_job(&job),
            item: JobSummary::from_head(job.head.clone(), run_started_at(&job), dead),
            prompt: job.prompt,
            error: job.error,
            error_details: runs.last().and_then(|run| run.error.clone()),
            stop_reason: job.stop_reason,
            interrupted: job.interrupted,
            restart_count: job.restart_count,
            forked_from: job.forked_from.map(|id| id.to_string()),
            skill: job.skill,
            trigger_id: job.trigger_id,
            waits: queued.as_ref().map(|row| row.reason.clone()),
            not_before: queued.as_ref().and_then(|row| row.not_before),
            expires_at: queued.as_ref().and_then(|row| row.expires_at),
            repo: job.repo,
            issue_number: job.issue_number,
            workflow_run_id: job.workflow_run_id,
            phase: job.phase,
            part: job.part.map(|part| part.to_string()),
            decision: job.decision,
            working_directory: job.working_directory.map(Into::into),
            output_file: output_file.map(Into::into),
            text_file: text_file.map(Into::into),
            files: dir.sent_files(&id).into_iter().map(JobFile::from).collect(),
            failed_hooks: hooks.into_iter().map(FailedHookSummary::from).collect(),
            session,
            origin: job.origin,
            runs,
            usage: UsageSummary {
                num_turns: job.usage.num_turns,
                api_duration_ms: job.usage.api_duration_ms,
                input_tokens: job.usage.input_tokens,
                cache_creation_input_tokens: job.usage.cache_creation_input_tokens,
                cache_read_input_tokens: job.usage.cache_read_input_tokens,
                output_tokens: job.usage.output_tokens,
                per_model: job.usage.per_model,
            },
            has_daemon: false,
        }
    }
}
