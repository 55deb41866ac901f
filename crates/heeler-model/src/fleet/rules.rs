//! The part of the config on which scheduling decisions depend.
//!
//! It is replaced as a whole when the config is reloaded. Start at [`FleetRules`].

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::budget_ledger::{SpendingLimits, is_in_fleet};
use crate::rerun::RerunPolicy;
use crate::{JobRequest, PhaseJobKind, SessionMode};

/// Limits and policies of a fleet.
#[derive(Debug, Clone)]
pub struct FleetRules {
    pub agents: HashMap<String, AgentRules>,
    /// The root fleet first, then its subfleets.
    pub fleets: Vec<SubfleetRules>,
    /// Most jobs in the queue.
    pub queue_max: usize,
    /// Longest time that a job waits in the queue.
    pub queue_wait_max: Duration,
    /// Time zone that defines the days of budgets.
    pub zone: TimeZone,
    /// Most workflow runs that are active at once.
    pub workflow_runs_max: Option<u32>,
    /// Gates that the config disables, by name.
    pub disabled_gates: HashSet<String>,
}

/// Limits of the root fleet or of a subfleet.
#[derive(Debug, Clone)]
pub struct SubfleetRules {
    /// Empty for the root fleet.
    pub path: String,
    pub max_concurrent: Option<u32>,
    pub limits: SpendingLimits,
}

/// Limits and policies of an agent.
#[derive(Debug, Clone)]
pub struct AgentRules {
    pub max_concurrent: u32,
    pub limits: SpendingLimits,
    /// Most that one job may cost, in millionths of a dollar.
    pub job_budget: Option<i64>,
    /// False for a command, which costs nothing.
    pub uses_model: bool,
    /// Name of the account that pays for the model. Agents with the same account share its limits.
    pub credential: Option<String>,
    pub priority: i64,
    /// Policy for jobs without a schedule.
    pub reruns: RerunPolicy,
    pub schedules: HashMap<String, ScheduleRules>,
}

/// Settings of a schedule.
#[derive(Debug, Clone)]
pub struct ScheduleRules {
    /// False if the config disables it.
    pub is_enabled: bool,
    pub priority: i64,
    pub session_mode: SessionMode,
    pub reruns: RerunPolicy,
    /// True if it starts a workflow instead of a job.
    pub starts_workflow: bool,
}

/// Limits that apply to one job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobLimits<'r> {
    pub(super) agent: &'r AgentRules,
    /// `None` if the job does not count for its agent's limit.
    pub(super) max_concurrent: Option<u32>,
    pub(super) uses_model: bool,
    pub(super) job_budget: Option<i64>,
}

impl FleetRules {
    /// Returns the date in the fleet's time zone.
    pub fn day_of(&self, at: Timestamp) -> Date {
        at.to_zoned(self.zone.clone()).date()
    }

    /// Returns the fleets that contain an agent, root first.
    pub fn fleets_of<'r>(&'r self, agent: &'r str) -> impl Iterator<Item = &'r SubfleetRules> {
        self.fleets.iter().filter(move |fleet| is_in_fleet(agent, &fleet.path))
    }

    /// Returns a schedule of an agent.
    pub fn schedule(&self, agent: &str, schedule: &str) -> Option<&ScheduleRules> {
        self.agents.get(agent)?.schedules.get(schedule)
    }

    /// Returns the limits of a job; `None` if its agent no longer exists. A command or simulated
    /// part in an agent's name has no limits of the agent's own.
    pub(super) fn job_limits(&self, request: &JobRequest) -> Option<JobLimits<'_>> {
        let agent = self.agents.get(request.agent.as_str())?;
        let work = request.phase.as_ref().map(|phase| &phase.work);
        let is_simulated = matches!(work, Some(PhaseJobKind::Play { .. }));
        Some(match request.runs_no_agent() {
            true => JobLimits {
                agent,
                max_concurrent: None,
                // A simulated part may report a cost, so it needs a reservation.
                uses_model: is_simulated,
                job_budget: None,
            },
            false => JobLimits {
                agent,
                max_concurrent: Some(agent.max_concurrent),
                uses_model: agent.uses_model,
                job_budget: agent.job_budget,
            },
        })
    }

    /// Returns the queue priority of a job.
    pub(super) fn priority_of(&self, request: &JobRequest) -> i64 {
        // The job will be failed; until then it keeps the priority that its request named.
        let Some(agent) = self.agents.get(request.agent.as_str()) else { return request.priority };
        let schedule = request.schedule.as_ref().and_then(|name| agent.schedules.get(name));
        let own = schedule.map_or(agent.priority, |schedule| schedule.priority);
        // Saturating, because a request may name any number.
        request.priority.saturating_add(own)
    }

    /// Returns the policy for further runs of a job. An agent that is no longer in the config gets
    /// none. A workflow retries its parts by its own rules.
    pub(super) fn rerun_policy(
        &self,
        agent: &str,
        schedule: Option<&str>,
        is_workflow_part: bool,
    ) -> RerunPolicy {
        // A new run of it could not be prepared anyway.
        let Some(agent) = self.agents.get(agent) else { return RerunPolicy::NEVER };
        let schedule = schedule.and_then(|name| agent.schedules.get(name));
        let policy = schedule.map_or(agent.reruns, |schedule| schedule.reruns);
        match is_workflow_part {
            // Interruptions and limits still lead to another run: they are not the part's own
            // failure.
            true => RerunPolicy { retries_max: 0, ..policy },
            false => policy,
        }
    }
}
