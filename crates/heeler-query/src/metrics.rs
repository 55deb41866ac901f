//! Figures of a fleet for those who watch it from afar, and what is told of a run that has ended.

use std::collections::BTreeMap;

use heeler_model::{JobStatus, RunId, UsageTotals};
use heeler_store::JobFilter;
use jiff::Timestamp;

use crate::{FleetReader, QueryError};

/// The figures of a fleet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetMetrics {
    /// How many jobs of each agent are in each state.
    pub jobs: BTreeMap<(String, &'static str), i64>,
    /// When each job that waits was asked for.
    pub waiting: Vec<Timestamp>,
    /// What each agent has ever spent, in millionths of a dollar.
    pub spent: BTreeMap<String, i64>,
    /// How many questions wait for a person.
    pub approvals: i64,
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedRun {
    /// The run.
    pub run: RunId,
    /// The job.
    pub job: String,
    /// The run of a workflow that the job is part of.
    pub workflow_run: Option<String>,
    /// The agent.
    pub agent: String,
    /// The schedule.
    pub schedule: Option<String>,
    /// What started the job.
    pub trigger: String,
    /// When the job was asked for.
    pub asked_at: Timestamp,
    /// When the job ended, if it has.
    pub job_finished_at: Option<Timestamp>,
    /// Where the job is.
    pub status: JobStatus,
    /// When the run began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Why.
    pub exit_reason: &'static str,
    /// What went wrong, as a class.
    pub error: Option<&'static str>,
    /// The model's own reason for stopping.
    pub stop_reason: Option<String>,
    /// The agent's session.
    pub session: Option<String>,
    /// What it cost.
    pub cost_usd: Option<f64>,
    /// What it used.
    pub usage: UsageTotals,
}

impl FleetReader {
    /// Reads the figures of a fleet: of the agents that it knows.
    pub fn metrics(&self) -> Result<FleetMetrics, QueryError> {
        let reader = self.reader()?;
        let mut figures = FleetMetrics::default();
        for agent in reader.agent_names()? {
            for status in JobStatus::ALL {
                let filter =
                    JobFilter { agent: Some(agent.clone()), status: Some(*status), since: None };
                let count = reader.count_jobs(&filter)?;
                figures.jobs.insert((agent.clone(), status.as_str()), count);
            }
        }
        let queue = reader.queue()?;
        for queued in queue {
            let job = reader.job(&queued.job)?;
            if job.is_some_and(|job| job.head.status == JobStatus::Pending) {
                figures.waiting.push(queued.requested_at);
            }
        }
        figures.spent = reader.total_spend_by_agent()?.into_iter().collect();
        let pending = heeler_model::ApprovalStatus::Pending;
        let filter = heeler_store::ApprovalFilter { run: None, status: Some(pending) };
        figures.approvals = reader.count_approvals(&filter)?;
        Ok(figures)
    }

    /// Returns what is told of a run; nothing of one that has not ended.
    pub fn ended_run(&self, run: RunId) -> Result<Option<EndedRun>, QueryError> {
        let reader = self.reader()?;
        let Some(result) = reader.run_result(run)? else { return Ok(None) };
        let Some(job) = reader.job(&result.job)? else { return Ok(None) };
        Ok(Some(EndedRun {
            run,
            job: job.head.id.to_string(),
            workflow_run: job.workflow_run_id,
            agent: job.head.agent,
            schedule: job.head.schedule,
            trigger: job.head.trigger_type.as_str().to_owned(),
            asked_at: job.head.started_at,
            job_finished_at: job.head.finished_at,
            status: job.head.status,
            started_at: result.started_at,
            finished_at: result.finished_at,
            exit_reason: result.exit_reason.as_str(),
            error: result.error.map(|error| error.class.as_str()),
            stop_reason: result.stop_reason,
            session: result.session.map(|session| session.id.to_string()),
            cost_usd: result.cost.usd,
            usage: result.cost.usage,
        }))
    }
}
