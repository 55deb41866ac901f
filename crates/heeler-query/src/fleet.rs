//! The fleet at a glance: who is in it, what runs, waits and failed.

use heeler_engine::{BudgetStatus, DaemonMode, DaemonStatus};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{AgentState, AgentStatus, ApprovalStatus, JobHead, JobStatus, ScheduleStatus};
use heeler_store::{
    ApprovalFilter, JobFilter, ParkedCredentialRecord, QueuedJobRecord, StoreReader,
    WorkflowRunFilter,
};
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::agents::micros_to_usd;
use crate::jobs::JobSummary;
use crate::workflow_runs::WorkflowRunSummary;
use crate::workflows::FaultyWorkflow;
use crate::{FleetReader, QueryError, StateLockOwner, enum_schemas};

/// How far back failures are told.
const FAILURES_SINCE: SignedDuration = SignedDuration::from_hours(24);
/// How many failures are listed, and of how many agents.
pub const FAILURES_MAX: usize = 5;
/// How many failures are looked at, to tell whose they are.
const FAILURES_READ_MAX: usize = 1_000;
/// How many runs of workflows in each state are told.
const WORKFLOW_RUNS_MAX: usize = 100;
/// How many questions are looked at for the runs that they belong to.
const PENDING_APPROVALS_MAX: usize = 1_000;

/// The fleet at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetStatus {
    /// What it is.
    pub fleet: FleetSummary,
    /// How many jobs are on record.
    pub jobs_total: i64,
    /// How much waits for an answer of a person.
    pub approvals_waiting: i64,
    /// The daemon, if one runs.
    pub daemon: Option<DaemonSummary>,
    /// Its agents.
    pub agents: Vec<FleetAgentSummary>,
    /// The jobs that run.
    pub running: Vec<JobSummary>,
    /// The jobs that wait, in their order.
    pub waiting: Vec<QueuedJobSummary>,
    /// The credentials that no job may use for now.
    pub parked: Vec<ParkedCredentialSummary>,
    /// The newest jobs that failed in the last day.
    pub failed: Vec<JobSummary>,
    /// What may be spent and what was; only a daemon knows.
    pub budgets: Vec<BudgetSummary>,
    /// The runs of workflows that have not ended.
    pub workflow_runs: Vec<OpenWorkflowRun>,
    /// The files of workflows that have faults.
    pub faulty_workflows: Vec<FaultyWorkflow>,
    /// The newest that failed of each agent, and how many of its jobs did.
    #[serde(skip)]
    pub failing: Vec<(JobSummary, usize)>,
    /// How many jobs failed in the last day.
    #[serde(skip)]
    pub failed_total: i64,
}

/// What a fleet is.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetSummary {
    /// Its name.
    pub name: Option<String>,
    /// The config file.
    pub config_path: Option<String>,
    /// The state directory.
    pub state_dir: String,
    /// When it was last started.
    pub started_at: Option<String>,
    /// Who writes the state, in words.
    pub writer: Option<String>,
}

/// A daemon.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonSummary {
    /// Its process.
    pub pid: u32,
    /// When it started.
    #[schema(format = DateTime)]
    pub since: String,
    /// Its version.
    pub version: String,
    /// How long it stays: `permanent` or `until_idle`.
    #[schema(value_type = String)]
    pub mode: DaemonMode,
    /// Where it serves the dashboard and the API.
    pub url: Option<String>,
    /// Whether it ends, and waits for jobs before that.
    pub stopping: bool,
    /// What it cannot do at present, in words.
    pub faults: Vec<String>,
}

/// An agent of the config or of the record.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetAgentSummary {
    /// Its name.
    pub name: String,
    /// What it is doing.
    #[schema(value_type = enum_schemas::AgentStatus)]
    pub status: AgentStatus,
    /// Whether its jobs start.
    pub enabled: bool,
    /// The job that it does.
    pub current_job: Option<String>,
    /// The job that it did last.
    pub last_job: Option<String>,
    /// The schedule that is due next.
    pub next_schedule: Option<String>,
    /// When that is.
    pub next_trigger_at: Option<Timestamp>,
    /// Its container.
    pub container_id: Option<String>,
    /// Why its last job failed.
    pub error_message: Option<String>,
    /// Its schedules.
    pub schedules: Vec<FleetScheduleSummary>,
}

/// A schedule of such an agent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetScheduleSummary {
    /// Its name.
    pub name: String,
    /// What it is doing.
    #[schema(value_type = enum_schemas::ScheduleStatus)]
    pub status: ScheduleStatus,
    /// When its last run ended.
    pub last_run_at: Option<Timestamp>,
    /// When it is next due.
    pub next_run_at: Option<Timestamp>,
    /// Why its last run failed.
    pub last_error: Option<String>,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueuedJobSummary {
    /// The job.
    #[serde(flatten)]
    pub job: JobSummary,
    /// What is higher starts first.
    pub priority: i64,
    /// When it may start at the earliest.
    pub not_before: Option<Timestamp>,
    /// When it is given up.
    pub expires_at: Option<Timestamp>,
    /// Why it waits.
    pub waits: String,
}

/// A credential that ran into a limit.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParkedCredentialSummary {
    /// When it may be used again.
    pub until: Timestamp,
    /// When it ran into the limit.
    pub since: Timestamp,
    /// What the limit is.
    pub reason: String,
    /// The job that ran into it.
    pub job: String,
}

impl From<ParkedCredentialRecord> for ParkedCredentialSummary {
    fn from(row: ParkedCredentialRecord) -> ParkedCredentialSummary {
        let ParkedCredentialRecord { until, since, reason, job, .. } = row;
        ParkedCredentialSummary { until, since, reason, job: job.to_string() }
    }
}

/// What may be spent and what was.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetSummary {
    /// The agent, or `fleet`.
    pub whose: String,
    /// What may be spent in a day.
    pub day_limit_usd: Option<f64>,
    /// What was spent today.
    pub day_spent_usd: f64,
    /// What may be spent in all.
    pub total_limit_usd: Option<f64>,
    /// What was spent in all.
    pub total_spent_usd: f64,
    /// What runs have set aside and not spent yet.
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

/// A run of a workflow that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenWorkflowRun {
    /// The run.
    #[serde(flatten)]
    pub run: WorkflowRunSummary,
    /// Whether it waits for a person.
    pub asks: bool,
}

/// What is asked of the fleet.
#[derive(Debug, Clone, Default)]
pub struct FleetStatusQuery {
    /// Only this agent.
    pub agent: Option<String>,
    /// What the daemon says of itself; `Err` is why it says nothing.
    pub daemon: Option<Result<DaemonStatus, String>>,
}

impl FleetReader {
    /// Tells what goes on in the fleet.
    pub fn fleet(
        &self,
        wanted: &FleetStatusQuery,
        now: Timestamp,
    ) -> Result<FleetStatus, QueryError> {
        let (known, keeper, reader) = (self.context(), self.lock_owner()?, self.reader()?);
        let loaded = known.loaded.as_deref();
        let mut agents: IndexMap<String, AgentState> = IndexMap::new();
        for agent in loaded.iter().flat_map(|loaded| &loaded.agents) {
            agents.insert(agent.name.to_string(), configured_state(agent));
        }
        merge_recorded_state(&reader, &mut agents)?;
        if let Some(name) = &wanted.agent {
            retain_agent(&mut agents, name)?;
        }
        let told = wanted.daemon.as_ref().and_then(|told| told.as_ref().ok());
        let is_stopping = told.is_some_and(|told| told.stopping);
        let disabled = reader.disabled_agents()?;
        let is_due = keeper.has_permanent_daemon() && !is_stopping;
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
                writer: keeper.writer.clone(),
            },
            jobs_total: reader.count_jobs(&JobFilter::default())?,
            approvals_waiting: reader.count_approvals(&ApprovalFilter { status, run: None })?,
            daemon: DaemonSummary::of(&keeper, wanted),
            agents: shown.collect(),
            running: Vec::new(),
            waiting: Vec::new(),
            parked: reader
                .parked_credentials()?
                .into_iter()
                .map(ParkedCredentialSummary::from)
                .collect(),
            failed: Vec::new(),
            budgets: told.iter().flat_map(|it| &it.budgets).map(BudgetSummary::from).collect(),
            workflow_runs: match wanted.agent {
                None => open_runs(&reader)?,
                Some(_) => Vec::new(),
            },
            faulty_workflows: loaded.map(FaultyWorkflow::list_all).unwrap_or_default(),
            failing: Vec::new(),
            failed_total: 0,
        };
        let only = wanted.agent.as_ref().map(|_| agents.keys().cloned().collect::<Vec<_>>());
        self.add_jobs(&reader, only.as_deref(), now, &mut fleet)?;
        Ok(fleet)
    }

    /// Adds the jobs that run and wait and the newest that failed, of some agents or of all.
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
            if job.head.status == JobStatus::Pending && is_shown(&job.head) {
                fleet.waiting.push(self.queued_job_summary(reader, job.head, row)?);
            }
        }
        let agents = match only {
            None => vec![None],
            Some(names) => names.iter().cloned().map(Some).collect(),
        };
        let mut failed = Vec::new();
        for agent in agents {
            let since = now.checked_sub(FAILURES_SINCE).ok();
            let filter = JobFilter { agent, status: Some(JobStatus::Failed), since };
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

    /// Adds the newest that failed, and whose they are.
    fn add_failed(
        &self,
        reader: &StoreReader,
        failed: Vec<JobHead>,
        fleet: &mut FleetStatus,
    ) -> Result<(), QueryError> {
        let mut counts: IndexMap<String, (JobHead, usize)> = IndexMap::new();
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

/// Lists the runs of workflows that go on or wait, the oldest of what waits for people first.
fn open_runs(reader: &StoreReader) -> Result<Vec<OpenWorkflowRun>, QueryError> {
    let pending = ApprovalFilter { run: None, status: Some(ApprovalStatus::Pending) };
    let pending = reader.approvals(&pending, None, PENDING_APPROVALS_MAX)?;
    let mut open = Vec::new();
    for status in [WorkflowRunStatus::Paused, WorkflowRunStatus::Running, WorkflowRunStatus::Queued]
    {
        let filter = WorkflowRunFilter { status: Some(status), ..WorkflowRunFilter::default() };
        let mut heads = reader.workflow_runs(&filter, None, WORKFLOW_RUNS_MAX)?;
        heads.retain(|head| head.origin.is_none());
        heads.reverse();
        open.extend(heads.iter().map(|head| OpenWorkflowRun {
            run: WorkflowRunSummary::from(head),
            asks: pending.iter().any(|it| it.workflow_run_id == head.id.as_str()),
        }));
    }
    Ok(open)
}

/// Keeps only what is called so.
fn retain_agent(agents: &mut IndexMap<String, AgentState>, name: &str) -> Result<(), QueryError> {
    agents.retain(|known, _| known == name || known.rsplit('.').next() == Some(name));
    match agents.is_empty() {
        false => Ok(()),
        true => {
            let message = format!("there is no agent `{name}`");
            Err(QueryError::not_found(message, "heeler status lists them"))
        }
    }
}

/// What an agent is before anything ran: idle, with the schedules that its config names.
fn configured_state(agent: &heeler_model::config::AgentConfig) -> AgentState {
    let schedules = agent.schedules.iter();
    let named = schedules.map(|schedule| (schedule.name.clone(), Default::default()));
    AgentState { schedules: named.collect(), ..AgentState::default() }
}

/// Adds what the state knows of the agents; schedules that only the config knows stay.
fn merge_recorded_state(
    reader: &StoreReader,
    agents: &mut IndexMap<String, AgentState>,
) -> Result<(), QueryError> {
    for (name, mut state) in reader.agents()? {
        if let Some(configured) = agents.get(&name) {
            for (schedule, idle) in &configured.schedules {
                state.schedules.entry(schedule.clone()).or_insert_with(|| idle.clone());
            }
        }
        agents.insert(name, state);
    }
    for (name, agent) in agents {
        // herdctl never recorded it.
        if agent.last_job.is_none() {
            let newest = reader.newest_job(name)?.filter(|head| head.status.is_final());
            agent.last_job = newest.map(|head| head.id);
        }
    }
    Ok(())
}

impl FleetAgentSummary {
    /// `is_due` says whether somebody starts its schedules.
    fn of(name: &str, state: &AgentState, enabled: bool, is_due: bool) -> FleetAgentSummary {
        let schedules = state.schedules.iter().map(|(name, state)| FleetScheduleSummary {
            name: name.clone(),
            status: state.status,
            last_run_at: state.last_run_at,
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
    fn of(keeper: &StateLockOwner, wanted: &FleetStatusQuery) -> Option<DaemonSummary> {
        let file = keeper.daemon.as_ref()?;
        let told = wanted.daemon.as_ref();
        Some(DaemonSummary {
            pid: file.pid,
            since: heeler_model::iso_millis(file.since),
            version: file.version.clone(),
            mode: file.mode,
            url: file.url.clone(),
            stopping: told.is_some_and(|told| told.as_ref().is_ok_and(|told| told.stopping)),
            faults: match told {
                None => Vec::new(),
                Some(Ok(told)) => told.faults.clone(),
                Some(Err(why)) => vec![format!("the daemon does not answer: {why}")],
            },
        })
    }
}
