//! Metrics of a fleet for monitoring, and the data of an ended run for traces.

use std::collections::BTreeMap;

use heeler_model::{JobStatus, RunId, UsageTotals};
use heeler_store::JobFilter;
use jiff::Timestamp;

use crate::hosts::HostSummary;
use crate::{FleetReader, QueryError};

/// Metrics of a fleet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetMetrics {
    /// Number of jobs by agent and status.
    pub jobs: BTreeMap<(String, &'static str), i64>,
    /// Creation times of the queued jobs.
    pub waiting: Vec<Timestamp>,
    /// Money spent by each agent in total, in millionths of a dollar.
    pub spent: BTreeMap<String, i64>,
    /// Number of open questions.
    pub approvals: i64,
    /// Hosts by name; a fleet with one machine has none.
    pub hosts: Vec<HostSummary>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EndedRun {
    pub run: RunId,
    pub job: String,
    /// Workflow run that the job is part of.
    pub workflow_run: Option<String>,
    pub agent: String,
    pub schedule: Option<String>,
    /// Type of the job's trigger.
    pub trigger: String,
    /// Creation time of the job.
    pub asked_at: Timestamp,
    /// End time of the job, if it has ended.
    pub job_finished_at: Option<Timestamp>,
    /// Status of the job.
    pub status: JobStatus,
    /// Start time of the run.
    pub started_at: Timestamp,
    /// End time of the run.
    pub finished_at: Timestamp,
    pub exit_reason: &'static str,
    /// Class of the error.
    pub error: Option<&'static str>,
    /// Stop reason reported by the model.
    pub stop_reason: Option<String>,
    /// ID of the native session.
    pub session: Option<String>,
    pub cost_usd: Option<f64>,
    pub usage: UsageTotals,
}

impl FleetReader {
    /// Reads the metrics of the agents that the fleet knows.
    pub fn metrics(&self) -> Result<FleetMetrics, QueryError> {
        let reader = self.reader()?;
        let hosts = reader.hosts()?.into_iter().map(HostSummary::from).collect();
        let mut figures = FleetMetrics { hosts, ..FleetMetrics::default() };
        for agent in reader.agent_names()? {
            for status in JobStatus::ALL {
                let filter = JobFilter {
                    agent: Some(agent.clone()),
                    status: Some(*status),
                    ..JobFilter::default()
                };
                let count = reader.count_jobs(&filter)?;
                // Zeros are included: a series that appears late would look like a jump.
                figures.jobs.insert((agent.clone(), status.as_str()), count);
            }
        }
        let queue = reader.queue()?;
        for queued in queue {
            let job = reader.job(&queued.job)?;
            // Running jobs keep their entry in the queue.
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

    /// Returns the data of a run; `None` if it has not ended.
    pub fn ended_run(&self, run: RunId) -> Result<Option<EndedRun>, QueryError> {
        let reader = self.reader()?;
        let Some(result) = reader.run_result(run)? else { return Ok(None) };
        // The job may have been deleted since its run ended.
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
