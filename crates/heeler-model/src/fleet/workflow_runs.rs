//! Workflow runs of a fleet: their starts, the ends of their parts, answers, cancellation and
//! retries.
//!
//! [`crate::workflow::WorkflowRun`] decides about phases. This module connects it with the jobs of
//! its parts: the end of a job and the progress that follows from it are one step. Start at
//! [`FleetState::step_workflow`].

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::active_workflow_run::{ActiveWorkflowRun, OpenPart};
use super::change::{FleetChange, FleetStep, WorkflowDecision, WorkflowRunRecord};
use super::event::{CancelRequest, SubmittedPart, WorkflowEvent};
use super::state::FleetState;
use crate::run::ErrorClass;
use crate::workflow::{
    EndedPart, PartOutcome, PhasePart, WorkflowEffect, WorkflowRunStatus, WorkflowStepContext,
    WorkflowStepEvent,
};
use crate::{ExitReason, JobId, JobStatus, WorkflowRunId};

/// End of a job, as far as a workflow run depends on it.
#[derive(Debug)]
pub(super) struct PartJobEnd {
    pub(super) status: JobStatus,
    pub(super) reason: ExitReason,
    pub(super) is_interrupted: bool,
    /// Output of the last run.
    pub(super) output: Option<String>,
    pub(super) error: Option<String>,
    pub(super) class: Option<ErrorClass>,
    /// Cost of the last run, in millionths of a dollar.
    pub(super) spent: i64,
}

impl PartJobEnd {
    /// Returns the end of a job that cannot run.
    pub(super) fn failed(why: String) -> PartJobEnd {
        PartJobEnd {
            status: JobStatus::Failed,
            reason: ExitReason::Error,
            error: Some(why),
            ..PartJobEnd::cancelled(None)
        }
    }

    /// Returns the end of a queued job that is cancelled. The error of its last run stays.
    pub(super) fn cancelled(error: Option<String>) -> PartJobEnd {
        PartJobEnd {
            status: JobStatus::Cancelled,
            reason: ExitReason::Cancelled,
            is_interrupted: false,
            output: None,
            error,
            class: None,
            spent: 0,
        }
    }
}

impl FleetState {
    /// Applies an event of a workflow run.
    pub(super) fn step_workflow(
        &mut self,
        id: &WorkflowRunId,
        event: WorkflowEvent,
        now: Timestamp,
        step: &mut FleetStep,
    ) -> WorkflowDecision {
        match event {
            WorkflowEvent::Start(active) => self.start_workflow_run(id, *active, step),
            WorkflowEvent::Retry { active, from } => {
                // A job that still ends would close a part of the new attempt.
                if active.state.has_open_parts() {
                    return WorkflowDecision::PartsEnding;
                }
                // A retried run is queued like any other.
                let queued = !self.has_workflow_capacity();
                self.workflow_runs.insert(id.clone(), *active);
                self.advance_and_record(id, WorkflowStepEvent::Retry { from, queued }, step)
            }
            WorkflowEvent::Continue => {
                self.advance_and_record(id, WorkflowStepEvent::Continue, step)
            }
            WorkflowEvent::GateAnswered { phase, part, answer } => {
                let answered = WorkflowStepEvent::GateAnswered { phase, part, answer };
                self.advance_and_record(id, answered, step)
            }
            WorkflowEvent::PartSubmitted(part) => {
                let SubmittedPart { job, part, new, not_before } = *part;
                if let Some(active) = self.workflow_runs.get_mut(id) {
                    active.open_parts.insert(job.clone(), part);
                }
                self.submit_job(job, new, not_before, now, step);
                self.workflow_decision(id)
            }
            WorkflowEvent::JoblessPartEnded(ended) => {
                self.advance_and_record(id, WorkflowStepEvent::PartEnded(ended), step)
            }
            WorkflowEvent::Cancel { request, is_cancelled } => {
                self.cancel_workflow_run(id, request, is_cancelled, step)
            }
            WorkflowEvent::Fail { why } => {
                // Removed first: the ends of its jobs must not advance a run that failed.
                self.workflow_runs.remove(id);
                step.changes.push(FleetChange::FailWorkflowRun { run: id.clone(), why });
                self.stop_workflow_jobs(id, false, step);
                WorkflowDecision::Stepped(WorkflowRunStatus::Failed)
            }
        }
    }

    fn start_workflow_run(
        &mut self,
        id: &WorkflowRunId,
        mut active: ActiveWorkflowRun,
        step: &mut FleetStep,
    ) -> WorkflowDecision {
        let status = match self.has_workflow_capacity() {
            true => WorkflowRunStatus::Running,
            false => WorkflowRunStatus::Queued,
        };
        active.state.status = status;
        step.changes.push(FleetChange::CreateWorkflowRun { run: id.clone(), status });
        self.workflow_runs.insert(id.clone(), active);
        // A queued run begins nothing, so there is no progress to record.
        match status {
            WorkflowRunStatus::Running => {
                self.advance_and_record(id, WorkflowStepEvent::Continue, step)
            }
            _ => self.workflow_decision(id),
        }
    }

    /// Lets queued runs begin while there is capacity.
    pub(super) fn start_waiting_workflow_runs(&mut self, step: &mut FleetStep) {
        while !self.is_queue_held && !self.is_stopping && self.has_workflow_capacity() {
            let waiting = self.workflow_runs.iter();
            let waiting = waiting.filter(|(_, it)| it.state.status == WorkflowRunStatus::Queued);
            // By age, then ID, so that a crash does not change the order.
            let first = waiting.min_by_key(|(id, it)| (it.started_at, (*id).clone()));
            let Some(id) = first.map(|(id, _)| id.clone()) else { break };
            // Set before the step, because a queued run begins no parts.
            if let Some(active) = self.workflow_runs.get_mut(&id) {
                active.state.status = WorkflowRunStatus::Running;
            }
            self.advance_and_record(&id, WorkflowStepEvent::Continue, step);
        }
    }

    fn has_workflow_capacity(&self) -> bool {
        let running = self.workflow_runs.values();
        // Paused runs do not count: a run may wait for a person for weeks.
        let running = running.filter(|it| it.state.status == WorkflowRunStatus::Running).count();
        self.rules.workflow_runs_max.is_none_or(|most| running < most as usize)
    }

    fn cancel_workflow_run(
        &mut self,
        id: &WorkflowRunId,
        request: CancelRequest,
        is_cancelled: bool,
        step: &mut FleetStep,
    ) -> WorkflowDecision {
        let CancelRequest { now, by } = request;
        if self.workflow_runs.contains_key(id) {
            return self.advance_and_record(id, WorkflowStepEvent::Cancel { by, now }, step);
        }
        // A second cancellation, now without patience, of a run that is off the list already.
        let is_ending = now && is_cancelled && self.jobs_of_workflow_run(id).next().is_some();
        if !is_ending {
            return WorkflowDecision::NotActive;
        }
        // Its jobs were cancelled gracefully and are still ending.
        self.stop_workflow_jobs(id, now, step);
        WorkflowDecision::Stepped(WorkflowRunStatus::Cancelled)
    }

    fn workflow_decision(&self, id: &WorkflowRunId) -> WorkflowDecision {
        match self.workflow_runs.get(id) {
            Some(active) => WorkflowDecision::Stepped(active.state.status),
            None => WorkflowDecision::NotActive,
        }
    }

    /// Applies an event to a run, stops its jobs if it is cancelled, and records its progress.
    fn advance_and_record(
        &mut self,
        id: &WorkflowRunId,
        event: WorkflowStepEvent,
        step: &mut FleetStep,
    ) -> WorkflowDecision {
        let Some(before) = self.workflow_runs.get(id).map(|active| active.state.status) else {
            return WorkflowDecision::NotActive;
        };
        // The jobs end before the record is made, because their ends change its figures.
        if let Some(now) = self.advance(id, event, step) {
            self.stop_workflow_jobs(id, now, step);
        }
        self.record_workflow_run(id, before, step)
    }

    /// Applies an event to a run. Returns `Some` if its jobs must end; true means immediately.
    fn advance(
        &mut self,
        id: &WorkflowRunId,
        event: WorkflowStepEvent,
        step: &mut FleetStep,
    ) -> Option<bool> {
        let active = self.workflow_runs.get_mut(id)?;
        let rules = Arc::clone(&self.rules);
        let is_off = |gate: &str| rules.disabled_gates.contains(gate);
        let context = WorkflowStepContext { run: id.as_str(), is_gate_disabled: &is_off };
        let outcome = active.state.step(event, &context);
        // Without this the rest of a large step would wait for an unrelated event.
        active.has_ready_parts = outcome.has_more;
        let workflow = Arc::clone(&active.state.workflow);
        let mut stop = None;
        for effect in outcome.effects {
            match effect {
                WorkflowEffect::StopJobs { now } => stop = Some(now),
                effect => step.changes.push(FleetChange::RecordWorkflow {
                    run: id.clone(),
                    workflow: Arc::clone(&workflow),
                    effect: Box::new(effect),
                }),
            }
        }
        stop
    }

    /// Records the progress of a run, and drops one that has ended.
    fn record_workflow_run(
        &mut self,
        id: &WorkflowRunId,
        before: WorkflowRunStatus,
        step: &mut FleetStep,
    ) -> WorkflowDecision {
        let Some(active) = self.workflow_runs.get(id) else { return WorkflowDecision::NotActive };
        let status = active.state.status;
        let record = WorkflowRunRecord::of_run(&active.state, before);
        step.changes
            .push(FleetChange::UpdateWorkflowRun { run: id.clone(), record: Box::new(record) });
        // Dropped only after its record was made; the database has the rest.
        if status.is_final() {
            self.workflow_runs.remove(id);
        }
        WorkflowDecision::Stepped(status)
    }

    /// Reports the end of a part's job to its workflow run, in the step that ends the job.
    pub(super) fn end_part(&mut self, job: &JobId, end: PartJobEnd, step: &mut FleetStep) {
        // A part is closed without a record in `stop_workflow_jobs`, whose caller makes one for
        // all.
        if let Some((id, before)) = self.close_part(job, end, step) {
            self.record_workflow_run(&id, before, step);
        }
    }

    fn close_part(
        &mut self,
        job: &JobId,
        end: PartJobEnd,
        step: &mut FleetStep,
    ) -> Option<(WorkflowRunId, WorkflowRunStatus)> {
        // The daemon cancels jobs when it stops. That is no decision about the part.
        let is_stopped = self.is_stopping && end.status == JobStatus::Cancelled;
        let (id, active) =
            self.workflow_runs.iter_mut().find(|(_, it)| it.open_parts.contains_key(job))?;
        let (id, before) = (id.clone(), active.state.status);
        // Removed before the step, so that no second end of the job closes the part again.
        let open = active.open_parts.remove(job)?;
        let outcome = PartOutcome::from_job(end.status, Some(end.reason), end.is_interrupted)?;
        // A failing command is a negative result of a check, not an error.
        let said_no =
            matches!(open.part, PhasePart::Check(_)) && end.class == Some(ErrorClass::AgentFailed);
        let ended = EndedPart {
            phase: open.phase,
            part: open.part,
            seq: open.seq,
            job: job.clone(),
            outcome,
            // The last run may have ended before it said anything.
            output: end.output.or(open.output),
            error: end.error.filter(|_| !said_no),
            micros: open.spent.saturating_add(end.spent),
            is_stopped,
        };
        self.advance(&id, WorkflowStepEvent::PartEnded(ended), step);
        Some((id, before))
    }

    /// Returns the open part of a job.
    pub(super) fn open_part_mut(&mut self, job: &JobId) -> Option<&mut OpenPart> {
        self.workflow_runs.values_mut().find_map(|active| active.open_parts.get_mut(job))
    }

    /// Cancels the jobs of a run that has ended, and withdraws its questions.
    fn stop_workflow_jobs(&mut self, id: &WorkflowRunId, now: bool, step: &mut FleetStep) {
        // Collected first, because cancelling changes the list.
        let jobs: Vec<JobId> = self.jobs_of_workflow_run(id).cloned().collect();
        let request = CancelRequest { now, by: format!("the end of {id}") };
        for job in jobs {
            if self.cancel_waiting_or_running(&job, false, &request, step) {
                let error = self.open_part_mut(&job).and_then(|part| part.error.clone());
                self.close_part(&job, PartJobEnd::cancelled(error), step);
            }
        }
        let by = request.by;
        step.changes.push(FleetChange::WithdrawQuestions { run: id.clone(), by });
    }

    fn jobs_of_workflow_run(&self, id: &WorkflowRunId) -> impl Iterator<Item = &JobId> {
        let jobs = self.jobs.all();
        let own =
            jobs.filter(move |job| job.request.phase.as_ref().is_some_and(|it| it.run == *id));
        own.map(|job| &job.entry.job)
    }

    /// Returns a workflow run that has not ended.
    pub fn workflow_run(&self, id: &WorkflowRunId) -> Option<&ActiveWorkflowRun> {
        self.workflow_runs.get(id)
    }

    /// Lists the workflow runs that have not ended, in no order.
    pub fn workflow_runs(&self) -> impl Iterator<Item = (&WorkflowRunId, &ActiveWorkflowRun)> {
        self.workflow_runs.iter()
    }

    /// Lists the workflow runs that can continue immediately.
    pub fn runnable_workflow_runs(&self) -> Vec<WorkflowRunId> {
        let ready = self.workflow_runs.iter();
        // A held fleet begins nothing new, and a workflow run's next part would be new.
        let ready = ready.filter(|(_, it)| it.has_ready_parts && !self.is_queue_held);
        ready.map(|(id, _)| id.clone()).collect()
    }

    /// Returns true if a workflow run can continue immediately.
    pub fn has_runnable_workflow_runs(&self) -> bool {
        !self.is_queue_held && self.workflow_runs.values().any(|active| active.has_ready_parts)
    }

    /// Adds a workflow run that has not ended.
    pub fn load_workflow_run(&mut self, id: WorkflowRunId, mut active: ActiveWorkflowRun) {
        // The last step may have left parts to start.
        active.has_ready_parts = active.state.status != WorkflowRunStatus::Queued;
        self.workflow_runs.insert(id, active);
    }

    /// Sets whether the daemon is stopping.
    pub fn set_stopping(&mut self, is_stopping: bool) {
        self.is_stopping = is_stopping;
    }

    /// Returns the trigger IDs of active workflow runs.
    pub(super) fn active_trigger_ids(&self) -> HashSet<String> {
        self.workflow_runs.values().map(|active| active.trigger_id.clone()).collect()
    }
}
