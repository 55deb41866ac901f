//! Status of the fleet: agents, and running, queued and failed jobs. Start at
//! [`FleetReader::fleet`].

use heeler_model::daemon_status::{BudgetStatus, DaemonMode, DaemonStatus};
use heeler_model::fleet::{ParkedCredentialRecord, QueuedJobRecord};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{AgentState, AgentStatus, ApprovalStatus, JobHead, JobStatus, ScheduleStatus};
use heeler_store::{ApprovalFilter, JobFilter, StoreReader, WorkflowRunFilter};
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::agents::micros_to_usd;
use crate::chat_links::ChatLinkSummary;
use crate::config_change::ConfigChangeSummary;
use crate::jobs::JobSummary;
use crate::workflow_runs::WorkflowRunSummary;
use crate::workflows::FaultyWorkflow;
use crate::{FleetReader, QueryError, StateLockOwner, enum_schemas};

/// Age up to which failures are reported.
const FAILURES_SINCE: SignedDuration = SignedDuration::from_hours(24);
/// Maximum number of failures listed, and of agents with failures.
pub const FAILURES_MAX: usize = 5;
/// Maximum number of failures read to group them by agent.
const FAILURES_READ_MAX: usize = 1_000;
/// Maximum number of workflow runs reported per status.
const WORKFLOW_RUNS_MAX: usize = 100;
/// Maximum number of questions read to find the workflow runs they belong to.
const PENDING_APPROVALS_MAX: usize = 1_000;

/// Status of the fleet at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetStatus {
    /// Identity of the fleet.
    pub fleet: FleetSummary,
    /// Number of recorded jobs.
    pub jobs_total: i64,
    /// Number of open questions.
    pub approvals_waiting: i64,
    /// Running daemon.
    pub daemon: Option<DaemonSummary>,
    /// Agents.
    pub agents: Vec<FleetAgentSummary>,
    /// Running jobs.
    pub running: Vec<JobSummary>,
    /// Queued jobs, in queue order.
    pub waiting: Vec<QueuedJobSummary>,
    /// Parked credentials.
    pub parked: Vec<ParkedCredentialSummary>,
    /// Newest jobs that failed within the last 24 hours.
    pub failed: Vec<JobSummary>,
    /// Budgets and money spent. Empty unless a daemon is running.
    pub budgets: Vec<BudgetSummary>,
    /// Workflow runs that have not ended.
    pub workflow_runs: Vec<OpenWorkflowRun>,
    /// Workflow files with faults.
    pub faulty_workflows: Vec<FaultyWorkflow>,
    /// Change of the config that is not loaded before a person has confirmed it.
    pub config_change: Option<ConfigChangeSummary>,
    /// Connections to chat platforms. Empty unless a daemon is running.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chats: Vec<ChatLinkSummary>,
    /// The newest failed job of each agent, and the number of its failed jobs.
    #[serde(skip)]
    pub failing: Vec<(JobSummary, usize)>,
    /// Number of jobs that failed within the last 24 hours.
    #[serde(skip)]
    pub failed_total: i64,
}

/// Identity of a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetSummary {
    /// Name of the fleet.
    pub name: Option<String>,
    /// Path of the config file.
    pub config_path: Option<String>,
    /// Path of the state directory.
    pub state_dir: String,
    /// Time of the last start.
    pub started_at: Option<String>,
    /// Description of the process that holds the state lock.
    pub writer: Option<String>,
}

/// A daemon.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonSummary {
    /// Process ID.
    pub pid: u32,
    /// Start time.
    #[schema(format = DateTime)]
    pub since: String,
    /// Version.
    pub version: String,
    /// Lifetime: `permanent` or `until_idle`.
    #[schema(value_type = String)]
    pub mode: DaemonMode,
    /// URL of the dashboard and the API.
    pub url: Option<String>,
    /// True if the daemon is stopping and waits for jobs.
    pub stopping: bool,
    /// Descriptions of current problems.
    pub faults: Vec<String>,
}

/// An agent of the config or of the recorded state.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetAgentSummary {
    /// Name of the agent.
    pub name: String,
    /// Current state.
    #[schema(value_type = enum_schemas::AgentStatus)]
    pub status: AgentStatus,
    /// False if the agent's jobs are not started.
    pub enabled: bool,
    /// ID of the job that is running.
    pub current_job: Option<String>,
    /// ID of the last job that ended.
    pub last_job: Option<String>,
    /// Name of the schedule that is due next.
    pub next_schedule: Option<String>,
    /// Next due time.
    pub next_trigger_at: Option<Timestamp>,
    /// Container ID.
    pub container_id: Option<String>,
    /// Error of the last job.
    pub error_message: Option<String>,
    /// Schedules.
    pub schedules: Vec<FleetScheduleSummary>,
}

/// A schedule of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetScheduleSummary {
    /// Name of the schedule.
    pub name: String,
    /// Current state.
    #[schema(value_type = enum_schemas::ScheduleStatus)]
    pub status: ScheduleStatus,
    /// End of the last job.
    pub last_run_at: Option<Timestamp>,
    /// Next due time.
    pub next_run_at: Option<Timestamp>,
    /// Error of the last job.
    pub last_error: Option<String>,
}

/// A queued job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueuedJobSummary {
    /// The job.
    #[serde(flatten)]
    pub job: JobSummary,
    /// Queue priority; higher starts first.
    pub priority: i64,
    /// Earliest start time.
    pub not_before: Option<Timestamp>,
    /// Time at which the queued job is abandoned.
    pub expires_at: Option<Timestamp>,
    /// Reason for waiting.
    pub waits: String,
}

/// A credential that reached a usage limit.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParkedCredentialSummary {
    /// Time at which it can be used again.
    pub until: Timestamp,
    /// Time at which it reached the limit.
    pub since: Timestamp,
    /// Description of the limit.
    pub reason: String,
    /// ID of the job that reached the limit.
    pub job: String,
}

impl From<ParkedCredentialRecord> for ParkedCredentialSummary {
    fn from(row: ParkedCredentialRecord) -> ParkedCredentialSummary {
        let ParkedCredentialRecord { until, since, reason, job, .. } = row;
        ParkedCredentialSummary { until, since, reason, job: job.to_string() }
    }
}

/// Budget and money spent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetSummary {
    /// Name of the agent, or `fleet`.
    pub whose: String,
    /// Limit for one day, in US dollars.
    pub day_limit_usd: Option<f64>,
    /// Money spent today, in US dollars.
    pub day_spent_usd: f64,
    /// Limit in total, in US dollars.
    pub total_limit_usd: Option<f64>,
    /// Money spent in total, in US dollars.
    pub total_spent_usd: f64,
    /// Money reserved by runs and not yet spent, in US dollars.
    pub reserved_usd: f64,
}

impl From<&BudgetStatus> for BudgetSummary {
    fn from(budget: &BudgetStatus) -> BudgetSummary {
        BudgetSummary {
            whose: budget.whose.clone(),
            day_limit_usd: budget.day_limit.map(micros_to_usd),
            day_spent_usd: micros_to_usd(budget.day_spent),
            total_limit_usd: budget.total_limit.map(micros_to_usd),
            total_spent_usd: micros_to_usd(budget.total_spent),
            reserved_usd: micros_to_usd(budget.reserved),
        }
    }
}

/// A workflow run that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenWorkflowRun {
    /// The workflow run.
    #[serde(flatten)]
    pub run: WorkflowRunSummary,
    /// True if it waits for a person's answer.
    pub asks: bool,
}

/// Parameters of a fleet status query.
#[derive(Debug, Clone, Default)]
pub struct FleetStatusQuery {
    /// Only this agent.
    pub agent: Option<String>,
    /// Status reported by the daemon; `Err` holds the reason why it did not answer.
    pub daemon: Option<Result<DaemonStatus, String>>,
}

impl FleetReader {
    /// Returns the status of the fleet.
    pub fn fleet(
        &self,
        wanted: &FleetStatusQuery,
        now: Timestamp,
    ) -> Result<FleetStatus, QueryError> {
        let (known, lock_owner, reader) = (self.context(), self.lock_owner()?, self.reader()?);
        let loaded = known.loaded.as_deref();
        // Configured agents first, so that their order is that of the file.
        let mut agents: IndexMap<String, AgentState> = IndexMap::new();
        for agent in loaded.iter().flat_map(|loaded| &loaded.agents) {
            agents.insert(agent.name.to_string(), configured_state(agent));
        }
        // Agents that are no longer configured still have jobs to show.
        merge_recorded_state(&reader, &mut agents)?;
        if let Some(name) = &wanted.agent {
            retain_agent(&mut agents, name)?;
        }
        // A daemon that does not answer still has a state on disk, which is shown.
        let daemon_status = wanted.daemon.as_ref().and_then(|status| status.as_ref().ok());
        let is_stopping = daemon_status.is_some_and(|status| status.stopping);
        let disabled = reader.disabled_agents()?;
        // A daemon that ends when idle starts no schedules, so no due time is shown.
        let is_due = lock_owner.has_permanent_daemon() && !is_stopping;
        let shown = agents.iter().map(|(name, state)| {
            let enabled = !disabled.contains(name);
            FleetAgentSummary::of(name, state, enabled, is_due && enabled)
        });
        let name = loaded.and_then(|loaded| loaded.fleets.first()).and_then(|it| it.name.as_ref());
        let status = Some(ApprovalStatus::Pending);
        let mut fleet = FleetStatus {
            fleet: FleetSummary {
                name: name.map(ToString::to_string),
                config_path: known.config.as_ref().map(ToString::to_string),
                state_dir: self.dir().root().to_string(),
                started_at: reader.meta(heeler_store::STARTED_AT)?,
                writer: lock_owner.writer.clone(),
            },
            jobs_total: reader.count_jobs(&JobFilter::default())?,
            approvals_waiting: reader.count_approvals(&ApprovalFilter { status, run: None })?,
            daemon: DaemonSummary::of(&lock_owner, wanted),
            agents: shown.collect(),
            running: Vec::new(),
            waiting: Vec::new(),
            parked: reader
                .parked_credentials()?
                .into_iter()
                .map(ParkedCredentialSummary::from)
                .collect(),
            failed: Vec::new(),
            budgets: daemon_status
                .iter()
                .flat_map(|it| &it.budgets)
                .map(BudgetSummary::from)
                .collect(),
            // Workflow runs belong to the fleet and not to one agent.
            workflow_runs: match wanted.agent {
                None => open_runs(&reader)?,
                Some(_) => Vec::new(),
            },
            faulty_workflows: loaded.map(FaultyWorkflow::list_all).unwrap_or_default(),
            chats: daemon_status
                .iter()
                .flat_map(|it| &it.chats)
                .map(ChatLinkSummary::from)
                .collect(),
            config_change: daemon_status
                .and_then(|it| it.held_change.as_ref())
                .map(ConfigChangeSummary::from),
            failing: Vec::new(),
            failed_total: 0,
        };
        // The name may be short, so the resolved names are used for the jobs.
        let only = wanted.agent.as_ref().map(|_| agents.keys().cloned().collect::<Vec<_>>());
        self.add_jobs(&reader, only.as_deref(), now, &mut fleet)?;
        Ok(fleet)
    }

    /// Adds running, queued and recently failed jobs, of some agents or of all.
    fn add_jobs(
        &self,
        reader: &StoreReader,
        only: Option<&[String]>,
        now: Timestamp,
        fleet: &mut FleetStatus,
    ) -> Result<(), QueryError> {
        let is_shown = |head: &JobHead| only.is_none_or(|names| names.contains(&head.agent));
        for head in reader.running_jobs()?.into_iter().filter(is_shown) {
            fleet.running.push(JobSummary::of(head, reader, self.dir())?);
        }
        for row in reader.queue()? {
            let Some(job) = reader.job(&row.job)? else { continue };
            // The entry stays until the job ends, so running jobs are in the table, too.
            if job.head.status == JobStatus::Pending && is_shown(&job.head) {
                fleet.waiting.push(self.queued_job_summary(reader, job.head, row)?);
            }
        }
        // One query per agent uses the index by agent and status.
        let agents = match only {
            None => vec![None],
            Some(names) => names.iter().cloned().map(Some).collect(),
        };
        let mut failed = Vec::new();
        for agent in agents {
            let since = now.checked_sub(FAILURES_SINCE).ok();
            let status = Some(JobStatus::Failed);
            let filter = JobFilter { agent, status, since, host: None };
            failed.extend(reader.jobs(&filter, None, FAILURES_READ_MAX)?);
            fleet.failed_total += reader.count_jobs(&filter)?;
        }
        self.add_failed(reader, failed, fleet)
    }

    fn queued_job_summary(
        &self,
        reader: &StoreReader,
        head: JobHead,
        row: QueuedJobRecord,
    ) -> Result<QueuedJobSummary, QueryError> {
        Ok(QueuedJobSummary {
            job: JobSummary::of(head, reader, self.dir())?,
            priority: row.priority,
            not_before: row.not_before,
            expires_at: row.expires_at,
            waits: row.reason,
        })
    }

    /// Adds the newest failed jobs and groups failures by agent.
    fn add_failed(
        &self,
        reader: &StoreReader,
        failed: Vec<JobHead>,
        fleet: &mut FleetStatus,
    ) -> Result<(), QueryError> {
        let mut counts: IndexMap<String, (JobHead, usize)> = IndexMap::new();
        // Newest first, so the first job of each agent is its newest failure.
        for (number, head) in failed.into_iter().enumerate() {
            let (_, count) = counts.entry(head.agent.clone()).or_insert_with(|| (head.clone(), 0));
            *count += 1;
            if number < FAILURES_MAX {
                fleet.failed.push(JobSummary::of(head, reader, self.dir())?);
            }
        }
        for (newest, count) in counts.into_values().take(FAILURES_MAX) {
            fleet.failing.push((JobSummary::of(newest, reader, self.dir())?, count));
        }
        Ok(())
    }
}

/// Lists paused, then running, then queued workflow runs; oldest first within each status.
fn open_runs(reader: &StoreReader) -> Result<Vec<OpenWorkflowRun>, QueryError> {
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    // One query for all questions instead of one per run.
    let pending = reader.approvals(&pending, None, PENDING_APPROVALS_MAX)?;
    let mut open = Vec::new();
    for status in [WorkflowRunStatus::Paused, WorkflowRunStatus::Running, WorkflowRunStatus::Queued]
    {
        let filter = WorkflowRunFilter { status: Some(status), ..WorkflowRunFilter::default() };
        let mut heads = reader.workflow_runs(&filter, None, WORKFLOW_RUNS_MAX)?;
        // Imported runs never continue.
        heads.retain(|head| head.origin.is_none());
        heads.reverse();
        open.extend(heads.iter().map(|head| OpenWorkflowRun {
            run: WorkflowRunSummary::from(head),
            asks: pending.iter().any(|it| it.workflow_run_id == head.id.as_str()),
        }));
    }
    Ok(open)
}

/// Keeps only the agent with this name.
fn retain_agent(agents: &mut IndexMap<String, AgentState>, name: &str) -> Result<(), QueryError> {
    // An agent of a nested fleet has a qualified name, and its last part is accepted.
    agents.retain(|known, _| known == name || known.rsplit('.').next() == Some(name));
    match agents.is_empty() {
        false => Ok(()),
        true => {
            let message = format!("there is no agent `{name}`");
            Err(QueryError::not_found(message, "heeler status lists them"))
        }
    }
}

/// Returns the initial state of a configured agent: idle, with its schedules.
fn configured_state(agent: &heeler_config::AgentConfig) -> AgentState {
    let schedules = agent.schedules.iter();
    let named = schedules.map(|schedule| (schedule.name.clone(), Default::default()));
    AgentState { schedules: named.collect(), ..AgentState::default() }
}

/// Adds the recorded state of the agents and keeps schedules that only the config has.
fn merge_recorded_state(
    reader: &StoreReader,
    agents: &mut IndexMap<String, AgentState>,
) -> Result<(), QueryError> {
    for (name, mut state) in reader.agents()? {
        if let Some(configured) = agents.get(&name) {
            for (schedule, idle) in &configured.schedules {
                // A new schedule has no row before its first due time.
                state.schedules.entry(schedule.clone()).or_insert_with(|| idle.clone());
            }
        }
        agents.insert(name, state);
    }
    for (name, agent) in agents {
        // herdctl does not record the last job.
        if agent.last_job.is_none() {
            let newest = reader.newest_job(name)?.filter(|head| head.status.is_final());
            agent.last_job = newest.map(|head| head.id);
        }
    }
    Ok(())
}

impl FleetAgentSummary {
    /// Creates the summary. `is_due` is true if a daemon starts the schedules.
    fn of(name: &str, state: &AgentState, enabled: bool, is_due: bool) -> FleetAgentSummary {
        let schedules = state.schedules.iter().map(|(name, state)| FleetScheduleSummary {
            name: name.clone(),
            status: state.status,
            last_run_at: state.last_run_at,
            // Without a daemon the recorded time is no promise.
            next_run_at: state.next_run_at.filter(|_| is_due),
            last_error: state.last_error.clone(),
        });
        FleetAgentSummary {
            name: name.to_owned(),
            status: state.status,
            enabled,
            current_job: state.current_job.as_ref().map(ToString::to_string),
            last_job: state.last_job.as_ref().map(ToString::to_string),
            next_schedule: state.next_schedule.clone().filter(|_| is_due),
            next_trigger_at: state.next_trigger_at.filter(|_| is_due),
            container_id: state.container_id.clone(),
            error_message: state.error_message.clone(),
            schedules: schedules.collect(),
        }
    }
}

impl DaemonSummary {
    fn of(lock_owner: &StateLockOwner, wanted: &FleetStatusQuery) -> Option<DaemonSummary> {
        // The file proves nothing by itself; the owner of the lock has been compared with it.
        let file = lock_owner.daemon.as_ref();
        let status = wanted.daemon.as_ref();
        // A daemon that answers knows better than its file, which may be lost.
        let (pid, since, version, mode) = match (status, file) {
            (Some(Ok(status)), _) => (status.pid, status.since, &status.version, status.mode),
            (_, Some(file)) => (file.pid, file.since, &file.version, file.mode),
            (_, None) => return None,
        };
        Some(DaemonSummary {
            pid,
            since: heeler_model::iso_millis(since),
            version: version.clone(),
            mode,
            url: file.and_then(|file| file.url.clone()),
            stopping: status
                .is_some_and(|status| status.as_ref().is_ok_and(|status| status.stopping)),
            faults: match status {
                None => Vec::new(),
                Some(Ok(status)) => status.faults.clone(),
                Some(Err(why)) => vec![format!("the daemon does not answer: {why}")],
            },
        })
    }
}
