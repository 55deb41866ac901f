//! Jobs: lists and details.

use camino::Utf8PathBuf;
use heeler_model::fleet::QueuedJobRecord;
use heeler_model::run::{ErrorClass, RunError, RunResult, file};
use heeler_model::workflow::PartDecision;
use heeler_model::{ExitReason, Job, JobHead, JobId, JobStatus, RunId, TriggerType};
use heeler_store::{
    FailedHook, JobListRow, RunRecord, SentFile, StateDir, StoreReader, failed_hooks,
};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError, enum_schemas};

/// Reason for the host of a run that was not assigned.
const LEADER_PLACEMENT: &str = "it was the host that led, or that the agent names";

/// Filter and page of a job list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct JobListQuery {
    /// Only jobs of this agent; its own name suffices if it is unique.
    pub agent: Option<String>,
    /// Only jobs with this status.
    pub status: Option<JobStatus>,
    /// Only jobs created since this time.
    pub since: Option<Timestamp>,
    /// Only jobs with their last run on this host.
    pub host: Option<String>,
    /// Only jobs older than this one (unique ID prefix).
    pub before: Option<String>,
    /// Maximum number of entries.
    pub limit: usize,
}

/// A page of jobs, newest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobPage {
    /// Jobs.
    pub jobs: Vec<JobSummary>,
    /// Number of jobs on all pages.
    pub total: i64,
    /// Maximum number of entries per page.
    pub limit: usize,
    /// Value of `before` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSummary {
    /// Job ID.
    pub id: String,
    /// Name of the agent.
    pub agent: String,
    /// Schedule that created the job.
    pub schedule: Option<String>,
    /// Status.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
    /// True if the job is recorded as `running` but no process executes it.
    pub dead: bool,
    /// True while the image of the job's container is being pulled.
    pub pulling: bool,
    /// Type of trigger.
    pub trigger_type: String,
    /// Creation time.
    pub asked_at: Timestamp,
    /// Start time of the first run.
    pub started_at: Option<Timestamp>,
    /// End time.
    pub finished_at: Option<Timestamp>,
    /// Duration in seconds.
    pub duration_seconds: Option<f64>,
    /// Reason for the end.
    #[schema(value_type = Option<enum_schemas::ExitReason>)]
    pub exit_reason: Option<ExitReason>,
    /// Cost in US dollars.
    pub cost_usd: Option<f64>,
    /// ID of the native session.
    pub session_id: Option<String>,
    /// Summary of the result.
    pub summary: Option<String>,
    /// First line of the prompt.
    pub title: Option<String>,
    /// Tools that the agent was denied, with the number of calls: `Bash (2 times), Write`.
    pub denied: Option<String>,
    /// Name of the host of the last run, in a fleet with several hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Error, if the job failed.
    #[serde(skip)]
    pub error: Option<String>,
}

impl JobDetails {
    /// Returns true while the image of the job's container is being pulled.
    pub fn is_pulling(&self) -> bool {
        self.item.pulling
    }
}

impl JobSummary {
    /// Creates the list entry of a job.
    pub fn of(
        head: JobHead,
        reader: &StoreReader,
        dir: &StateDir,
    ) -> Result<JobSummary, QueryError> {
        let line = reader.job_list_row(&head.id)?;
        // The job may have been deleted since its head was read.
        let line = match line {
            Some(line) => {
                let error = line.error.filter(|_| head.status == JobStatus::Failed);
                JobListRow { head, error, ..line }
            }
            None => JobListRow {
                head,
                began_at: None,
                error: None,
                title: None,
                denied: None,
                host: None,
            },
        };
        JobSummary::from_line(line, reader, dir)
    }

    /// Creates the list entry from a list row; reads more only if the job is running.
    pub fn from_line(
        line: JobListRow,
        reader: &StoreReader,
        dir: &StateDir,
    ) -> Result<JobSummary, QueryError> {
        let JobListRow { head, began_at, error, title, denied, host } = line;
        let life = JobLife::look_up((&head.id, head.status), reader, dir)?;
        let entry = JobSummary::from_head(head, began_at, life);
        Ok(JobSummary { error, title, denied, host, ..entry })
    }

    fn from_head(head: JobHead, started_at: Option<Timestamp>, life: JobLife) -> JobSummary {
        JobSummary {
            id: head.id.to_string(),
            agent: head.agent,
            schedule: head.schedule,
            status: head.status,
            dead: life.is_dead,
            pulling: life.is_pulling,
            trigger_type: head.trigger_type.as_str().to_owned(),
            asked_at: head.started_at,
            started_at,
            finished_at: head.finished_at,
            duration_seconds: head.duration_ms.map(|ms| ms as f64 / 1_000.0),
            exit_reason: head.exit_reason,
            cost_usd: head.cost_usd,
            session_id: head.session_id.map(|id| id.to_string()),
            summary: head.summary,
            title: None,
            denied: None,
            host: None,
            error: None,
        }
    }
}

/// Facts about a running job that its record does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct JobLife {
    pub(crate) is_dead: bool,
    pub(crate) is_pulling: bool,
}

impl JobLife {
    /// Looks at the run of a job. Only a running job has one, so nothing is read for the others.
    pub(crate) fn look_up(
        (id, status): (&JobId, JobStatus),
        reader: &StoreReader,
        dir: &StateDir,
    ) -> Result<JobLife, QueryError> {
        if status != JobStatus::Running {
            return Ok(JobLife::default());
        }
        let is_dead = reader.is_job_orphaned(dir, id)?;
        let last = reader.runs_of_job(id)?.into_iter().next_back();
        // A killed run may have left the file.
        let is_pulling = !is_dead && last.is_some_and(|run| is_run_pulling(&run, dir));
        Ok(JobLife { is_dead, is_pulling })
    }
}

fn is_run_pulling(run: &RunRecord, dir: &StateDir) -> bool {
    !run.committed && dir.run(run.id).join(file::PULLING).exists()
}

/// Returns the start time of a job; records imported from other programs have one time only.
pub fn run_started_at(job: &Job) -> Option<Timestamp> {
    job.run_started_at.or_else(|| job.origin.as_ref().map(|_| job.head.started_at))
}

/// All details of a job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobDetails {
    /// Fields of the list entry.
    #[serde(flatten)]
    pub item: JobSummary,
    /// Prompt.
    pub prompt: Option<String>,
    /// The agent and job that wrote the prompt, if no person did.
    pub prompt_by: Option<String>,
    /// Error message.
    pub error: Option<String>,
    /// Error of the last run.
    pub error_details: Option<RunErrorDetails>,
    /// Stop reason reported by the agent.
    pub stop_reason: Option<String>,
    /// True if the job was interrupted by a crash.
    pub interrupted: bool,
    /// Number of restarts after a crash.
    pub restart_count: i64,
    /// ID of the job from which it was forked.
    pub forked_from: Option<String>,
    /// Name of the agent, or of the workflow and phase.
    pub skill: String,
    /// Source of the trigger: a schedule, channel or job.
    pub trigger_id: String,
    /// ID of the job that started this one.
    pub parent: Option<String>,
    /// Reason for waiting, while the job is queued.
    pub waits: Option<String>,
    /// Earliest start time.
    pub not_before: Option<Timestamp>,
    /// Time at which the queued job is abandoned.
    pub expires_at: Option<Timestamp>,
    /// Repository that the job concerns.
    pub repo: Option<String>,
    /// Number of the issue that the job concerns.
    pub issue_number: Option<i64>,
    /// ID of the workflow run.
    pub workflow_run_id: Option<String>,
    /// Phase of the workflow run.
    pub phase: Option<String>,
    /// Part of the phase.
    pub part: Option<String>,
    /// Decision made from the job's output.
    #[schema(value_type = Option<enum_schemas::Decision>)]
    pub decision: Option<PartDecision>,
    /// Working directory.
    pub working_directory: Option<String>,
    /// Path of the transcript.
    pub output_file: Option<String>,
    /// Path of the output as text, if configured.
    pub text_file: Option<String>,
    /// Files that the agent delivered.
    pub files: Vec<JobFile>,
    /// Failed hooks.
    pub failed_hooks: Vec<FailedHookSummary>,
    /// Session ID.
    pub session: Option<String>,
    /// Program that created the record, if not Heeler.
    pub origin: Option<String>,
    /// Runs, oldest first.
    pub runs: Vec<RunSummary>,
    /// Resource usage.
    pub usage: UsageSummary,
    /// True if a daemon is running that will start the job.
    #[serde(skip)]
    pub has_daemon: bool,
}

/// Error of a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunErrorDetails {
    /// Class of the error.
    #[schema(value_type = enum_schemas::ErrorClass)]
    pub class: ErrorClass,
    /// Error message.
    pub message: String,
    /// True if a retry may succeed.
    pub recoverable: bool,
    /// Delay before a retry in milliseconds, if known.
    pub retry_after_ms: Option<u64>,
    /// Time at which a usage limit resets.
    pub resets_at: Option<Timestamp>,
    /// Number of messages received before the error.
    pub messages_received: u64,
    /// Suggested action.
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

/// A file that an agent delivered.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobFile {
    /// Name given by the agent.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Path of the copy.
    pub path: String,
}

impl From<SentFile> for JobFile {
    fn from(file: SentFile) -> JobFile {
        JobFile { name: file.name, bytes: file.bytes, path: file.path.into() }
    }
}

/// A failed hook of a job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedHookSummary {
    /// Name of the hook, or its list and position.
    pub name: String,
    /// Event ID.
    pub event_id: String,
    /// Last error.
    pub error: String,
    /// Number of attempts.
    pub attempts: i64,
    /// True if the hook is not retried any more.
    pub given_up: bool,
}

impl From<FailedHook> for FailedHookSummary {
    fn from(hook: FailedHook) -> FailedHookSummary {
        let FailedHook { name, event, error, attempts, is_over } = hook;
        FailedHookSummary { name, event_id: event, error, attempts, given_up: is_over }
    }
}

/// Status of a run while the image of its container is pulled.
const STATUS_PULLING: &str = "pulling";

/// A run: one attempt to execute a job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Run ID.
    pub id: String,
    /// Number of the attempt, counted from one.
    pub attempt: i64,
    /// Status. `pulling` means that the image of the run's container is being pulled.
    pub status: String,
    /// Name of the host, or of the machine, that executes it.
    pub host: String,
    /// Reason for the choice of the host, in a fleet with several hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Creation time of the record.
    pub created_at: Timestamp,
    /// Start time of the process.
    pub started_at: Option<Timestamp>,
    /// End time.
    pub finished_at: Option<Timestamp>,
    /// True if the result of the run is recorded.
    pub committed: bool,
    /// Reason for the end.
    #[schema(value_type = Option<enum_schemas::ExitReason>)]
    pub exit_reason: Option<ExitReason>,
    /// Exit code of the agent's process.
    pub exit_code: Option<i32>,
    /// Cost in US dollars.
    pub cost_usd: Option<f64>,
    /// ID of the native session.
    pub session_id: Option<String>,
    /// Error.
    pub error: Option<RunErrorDetails>,
    /// Error with a suggested action that names the directory of the run.
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
            host: run.host,
            placement: None,
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
                // The runner does not know where the user finds its files, so the paths are inserted
                // here.
                let (folder, copy) = (dir.run(run.id), dir.stderr_copy(&run.job_id, run.id));
                let is_copied = !folder.exists() && copy.is_file();
                let cure = match is_copied {
                    true => error.cure.replace("stderr.log in the run's folder", copy.as_str()),
                    false => error.cure.clone(),
                };
                let cure = cure.replace("the run's folder", folder.as_str());
                RunError { cure, ..error.clone() }
            }),
        }
    }
}

/// Resource usage of a job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageSummary {
    /// Number of turns.
    pub num_turns: Option<i64>,
    /// Duration of API requests in milliseconds.
    pub api_duration_ms: Option<i64>,
    /// Input tokens.
    pub input_tokens: Option<i64>,
    /// Input tokens written to the cache.
    pub cache_creation_input_tokens: Option<i64>,
    /// Input tokens read from the cache.
    pub cache_read_input_tokens: Option<i64>,
    /// Output tokens.
    pub output_tokens: Option<i64>,
    /// Usage per model, as reported by the agent.
    #[schema(value_type = std::collections::BTreeMap<String, Value>)]
    pub per_model: IndexMap<String, Value>,
}

/// Lists the runs of a job, oldest first.
pub fn load_runs(
    reader: &StoreReader,
    dir: &StateDir,
    job: &JobId,
) -> Result<Vec<RunSummary>, QueryError> {
    let runs = reader.runs_of_job(job)?.into_iter();
    runs.map(|run| {
        let result = reader.run_result(run.id)?;
        let is_pulling = is_run_pulling(&run, dir);
        let placement = placement(reader, dir, run.id)?;
        let summary = RunSummary { placement, ..RunSummary::of(run, result.as_ref(), dir) };
        Ok(match is_pulling {
            true => RunSummary { status: STATUS_PULLING.to_owned(), ..summary },
            false => summary,
        })
    })
    .collect()
}

/// Returns the reason for the choice of a run's host, in a fleet with several hosts.
fn placement(
    reader: &StoreReader,
    dir: &StateDir,
    run: RunId,
) -> Result<Option<String>, QueryError> {
    if dir.host().is_none() {
        return Ok(None);
    }
    // The leader writes the reason with the assignment. Other runs are not assigned.
    let assignment = reader.run_assignment(run)?;
    let reason = assignment.and_then(|(_, body)| {
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        body["placement"].as_str().map(str::to_owned)
    });
    let reason = reason.unwrap_or_else(|| LEADER_PLACEMENT.to_owned());
    Ok(Some(reason).filter(|reason| !reason.is_empty()))
}

/// Returns the job that started this one.
fn parent_job(job: &Job) -> Option<String> {
    let is_spawned = job.head.trigger_type == TriggerType::Spawned;
    // For other triggers, the id names a schedule or a channel.
    Some(job.trigger_id.clone()).filter(|id| is_spawned && !id.is_empty())
}

/// Returns the agent and job that started this one, and so wrote its prompt.
fn prompt_author(reader: &StoreReader, job: &Job) -> Result<Option<String>, QueryError> {
    let Some(parent) = parent_job(job) else { return Ok(None) };
    let author = parent.parse::<JobId>().ok().map(|id| reader.job(&id)).transpose()?.flatten();
    let agent = author.map_or_else(|| "unknown".to_owned(), |author| author.head.agent);
    Ok(Some(format!("agent {agent} ({parent})")))
}

impl FleetReader {
    /// Lists jobs, newest first.
    pub fn jobs(&self, wanted: &JobListQuery) -> Result<JobPage, QueryError> {
        self.with_job_lists(|lists| lists.page(wanted))?
    }

    /// Converts list rows to list entries.
    pub(crate) fn job_summaries(
        &self,
        reader: &StoreReader,
        lines: Vec<JobListRow>,
    ) -> Result<Vec<JobSummary>, QueryError> {
        lines.into_iter().map(|line| JobSummary::from_line(line, reader, self.dir())).collect()
    }

    /// Returns the details of a job by a unique ID prefix.
    pub fn job(&self, id: &str) -> Result<JobDetails, QueryError> {
        let reader = self.reader()?;
        let job = reader.find_job(id)?;
        self.job_details(&reader, job)
    }

    /// Returns the details of a loaded job.
    pub fn job_details(&self, reader: &StoreReader, job: Job) -> Result<JobDetails, QueryError> {
        let (dir, id) = (self.dir(), job.head.id.clone());
        let session = match &job.head.session_id {
            Some(id) => reader.session_by_agent_id(id)?.map(|session| session.id.to_string()),
            None => None,
        };
        // Running jobs keep their entry in the queue, but no longer wait.
        let queued = match job.head.status {
            JobStatus::Pending => reader.queued_job(&id)?,
            _ => None,
        };
        let runs = load_runs(reader, dir, &id)?;
        let hooks = failed_hooks(reader, &id)?;
        let output_file = self.job_transcript_path(reader, &job.head)?;
        let life = JobLife::look_up((&id, job.head.status), reader, dir)?;
        let prompt_by = prompt_author(reader, &job)?;
        let about =
            JobDetailsContext { session, queued, runs, hooks, output_file, life, prompt_by };
        let line = reader.job_list_row(&id)?;
        let line = line.map(|line| (line.title, line.denied, line.host));
        let (title, denied, host) = line.unwrap_or_default();
        // Without a daemon a queued job does not start, which the display explains.
        let has_daemon = self.lock_owner()?.writer.is_some();
        let mut details = JobDetails { has_daemon, ..about.details(dir, job) };
        (details.item.title, details.item.denied) = (title, denied);
        details.item.host = host;
        Ok(details)
    }
}

/// Records loaded together with a job.
struct JobDetailsContext {
    session: Option<String>,
    queued: Option<QueuedJobRecord>,
    runs: Vec<RunSummary>,
    hooks: Vec<FailedHook>,
    output_file: Option<Utf8PathBuf>,
    life: JobLife,
    prompt_by: Option<String>,
}

impl JobDetailsContext {
    fn details(self, dir: &StateDir, job: Job) -> JobDetails {
        let JobDetailsContext { session, queued, runs, hooks, output_file, life, prompt_by } = self;
        let id = job.head.id.clone();
        let text_file = Some(dir.job_output(&id)).filter(|path| path.is_file());
        JobDetails {
            parent: parent_job(&job),
            item: JobSummary::from_head(job.head.clone(), run_started_at(&job), life),
            prompt: job.prompt,
            prompt_by,
            error: job.error,
            // The error of the last run is the one that ended the job.
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
