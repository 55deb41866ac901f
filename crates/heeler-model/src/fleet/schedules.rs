//! Schedules: the decision about due times, and the jobs that they create.
//!
//! Start at [`FleetState::due_schedules`].

use jiff::Timestamp;

use super::change::{FleetChange, FleetStep};
use super::event::NewJob;
use super::state::{FleetState, UnfinishedRun};
use crate::calendar::ScheduleKey;
use crate::timetable::{DueTimeDecision, DueTimeSkip, SkipReason};
use crate::{JobId, JobRequest, SessionMode, TriggerType};

/// Most schedules that [`FleetState::due_schedules`] returns; the others follow in the next call.
pub const DUE_SCHEDULES_MAX: usize = 256;

impl FleetState {
    /// Creates the jobs of due times, or skips them.
    pub(super) fn fire_schedule(
        &mut self,
        key: &ScheduleKey,
        decision: &DueTimeDecision,
        new_jobs: Vec<JobId>,
        now: Timestamp,
        step: &mut FleetStep,
    ) {
        let starts_workflow =
            self.rules.schedule(&key.agent, &key.schedule).is_some_and(|it| it.starts_workflow);
        let record = |skip: DueTimeSkip| FleetChange::RecordSkip { key: key.clone(), skip };
        // Adjacent skips are merged unless a start is between them, so starts come first.
        for (start, job) in decision.starts.iter().zip(new_jobs) {
            let due = start.due;
            if starts_workflow {
                // The workflow's own start has refusals of its own, which the caller records.
                step.changes.push(FleetChange::StartWorkflow { key: key.clone(), due });
                continue;
            }
            if let Some(reason) = self.due_skip_reason(&key.agent) {
                step.changes.push(record(DueTimeSkip { first: due, last: due, count: 1, reason }));
                continue;
            }
            let Ok(agent) = key.agent.parse() else { continue };
            let request = JobRequest {
                schedule: Some(key.schedule.clone()),
                trigger: TriggerType::Schedule,
                ..JobRequest::new(agent)
            };
            let request_json = serde_json::to_string(&request).expect("a request is JSON");
            // The start is recorded in the same commit as the job, so no due time starts twice.
            step.changes.push(FleetChange::RecordStart { key: key.clone(), due, job: job.clone() });
            let created = Box::new(request.clone());
            step.changes.push(FleetChange::CreateJob { job: job.clone(), request: created });
            self.submit_job(job, NewJob { request, request_json }, None, now, step);
        }
        step.changes.extend(decision.skips.iter().map(|skip| record(*skip)));
        let cursor = decision.cursor;
        // The cursor moves with the decisions that it covers, so a crash repeats all or none.
        step.changes.push(FleetChange::AdvanceSchedule { key: key.clone(), cursor });
        self.calendar.commit_cursor(key, cursor, now);
    }

    /// Returns the reason for which a due time of an agent's schedule creates no job.
    pub fn due_skip_reason(&self, agent: &str) -> Option<SkipReason> {
        let request = JobRequest::new(agent.parse().ok()?);
        // The request stands for any job of the agent; its prompt has no influence on the limits.
        let decision = self.check_budget(agent, self.rules.job_limits(&request)?);
        match decision.is_spent() {
            true => Some(SkipReason::Budget),
            false => {
                (self.jobs.waiting_len() >= self.rules.queue_max).then_some(SkipReason::QueueFull)
            }
        }
    }

    /// Returns true if a schedule may fire.
    pub fn is_schedule_enabled(&self, key: &ScheduleKey) -> bool {
        let rules = self.rules.schedule(&key.agent, &key.schedule);
        let by_config = rules.is_some_and(|schedule| schedule.is_enabled);
        // A person's choice outlasts reloads; only the absence of one lets the config decide.
        self.switched_schedules.get(key).copied().unwrap_or(by_config)
            && !self.disabled_agents.contains(&key.agent)
    }

    /// Returns true if the last job of a schedule is queued or running, or another job uses the
    /// session that the schedule would continue.
    pub fn is_schedule_busy(&self, key: &ScheduleKey) -> bool {
        let rules = self.rules.schedule(&key.agent, &key.schedule);
        let is_persistent = rules.is_some_and(|it| it.session_mode == SessionMode::Persistent);
        let is_blocking = |run: &UnfinishedRun| {
            run.agent == key.agent
                && (run.schedule.as_deref() == Some(&key.schedule)
                    // The schedule would continue the session in use, so its job could not start
                    // anyway.
                    || is_persistent && run.uses_persistent_session)
        };
        self.jobs.has_job_of(key) || self.runs.values().any(is_blocking)
    }

    /// Decides about schedules that are due. A decision takes effect with
    /// [`super::FleetEvent::ScheduleDue`].
    pub fn due_schedules(&mut self, now: Timestamp) -> Vec<(ScheduleKey, DueTimeDecision)> {
        // Collected once: the closure below is called for each due schedule.
        let active = self.active_trigger_ids();
        // Taken out, because the closure borrows the rest of the state.
        let mut calendar = std::mem::take(&mut self.calendar);
        let due = calendar.decide_due(now, DUE_SCHEDULES_MAX, |key| {
            match self.rules.schedule(&key.agent, &key.schedule) {
                Some(schedule) if schedule.starts_workflow => {
                    // A workflow run has no queue entry; its subject tells whether the last one
                    // still runs.
                    active.contains(&key.workflow_trigger_id())
                }
                _ => self.is_schedule_busy(key),
            }
        });
        self.calendar = calendar;
        due
    }
}
