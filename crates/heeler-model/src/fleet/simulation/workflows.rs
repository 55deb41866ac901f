//! Random events of workflow runs: starts, answers, cancellation, retries and impossible parts.

use std::sync::Arc;

use serde_json::json;

use super::journal::SimulatedWorkflowRun;
use super::*;
use crate::workflow::{
    EndedPart, GateAnswer, JournalEntry, PartJobWork, PartOutcome, WorkflowEffect,
    WorkflowRunStatus,
};
use crate::{PhaseJobKind, PhaseJobRequest, WorkflowRunId};

/// Most workflow runs that are active at once. Their jobs may wait longer than others arrive.
const ACTIVE_RUNS_MAX: usize = 8;

/// Workflow runs that are kept after their end, for retries.
const ENDED_RUNS_MAX: usize = 8;

impl FleetSimulation {
    /// Executes a random event of a workflow run.
    pub(super) fn disturb_workflow(&mut self) {
        match self.random.u32(0..16) {
            0..=4 => self.start_workflow(),
            5..=11 => self.answer_gate(),
            12 => self.cancel_workflow(),
            13 | 14 => self.retry_workflow(),
            _ if self.random.u32(0..8) == 0 => self.fail_workflow(),
            _ => self.continue_workflows(),
        }
    }

    fn active_runs(&self) -> Vec<WorkflowRunId> {
        self.state.workflow_runs().map(|(id, _)| id.clone()).collect()
    }

    fn random_active_run(&mut self) -> Option<WorkflowRunId> {
        let mut active = self.active_runs();
        active.sort();
        (!active.is_empty()).then(|| active.swap_remove(self.random.usize(0..active.len())))
    }

    fn start_workflow(&mut self) {
        if self.active_runs().len() >= ACTIVE_RUNS_MAX {
            return self.continue_workflows();
        }
        self.number += 1;
        let id = WorkflowRunId::mint(self.now, self.number);
        let place = self.random.usize(0..self.workflows.len());
        let workflow = Arc::clone(&self.workflows[place]);
        let context = json!({"items": ["x", "y", "z"]});
        let row = SimulatedWorkflowRun::new(workflow, context, id.to_string(), self.now);
        let active = Box::new(row.load(&self.database.jobs));
        self.new_workflow_run = Some(row);
        self.step(FleetEvent::Workflow { run: &id, event: WorkflowEvent::Start(active) });
        self.new_workflow_run = None;
        self.forget_ended_runs();
    }

    /// Removes old rows, so that checks stay fast.
    fn forget_ended_runs(&mut self) {
        let runs = self.database.workflow_runs.iter();
        let mut ended: Vec<WorkflowRunId> =
            runs.filter(|(_, row)| row.status.is_final()).map(|(id, _)| id.clone()).collect();
        while ended.len() > ENDED_RUNS_MAX {
            self.database.workflow_runs.remove(&ended.remove(0));
        }
    }

    /// Answers a question as a person would, who only sees what is stored.
    pub(super) fn answer_gate(&mut self) {
        let runs = self.database.workflow_runs.iter().filter(|(_, row)| !row.status.is_final());
        let open: Vec<(WorkflowRunId, JournalEntry)> = runs
            .flat_map(|(id, row)| row.open_gates().map(|entry| (id.clone(), entry.clone())))
            .collect();
        if open.is_empty() {
            return self.continue_workflows();
        }
        let (id, entry) = &open[self.random.usize(0..open.len())];
        let answer = GateAnswer {
            is_approved: !self.is_wild || self.random.u32(0..6) > 0,
            text: self.random.bool().then(|| "yes".to_owned()),
            by: "ada".to_owned(),
            at: self.now,
            seq: entry.seq,
        };
        let (phase, part) = (entry.phase, entry.part);
        let event = WorkflowEvent::GateAnswered { phase, part, answer };
        self.step(FleetEvent::Workflow { run: id, event });
    }

    fn cancel_workflow(&mut self) {
        let Some(id) = self.random_active_run() else { return self.tick() };
        let request = CancelRequest { now: self.random.bool(), by: "ada".to_owned() };
        let event = WorkflowEvent::Cancel { request, is_cancelled: false };
        self.step(FleetEvent::Workflow { run: &id, event });
    }

    fn fail_workflow(&mut self) {
        let Some(id) = self.random_active_run() else { return self.tick() };
        let event = WorkflowEvent::Fail { why: "its definition cannot be read".to_owned() };
        self.step(FleetEvent::Workflow { run: &id, event });
    }

    fn retry_workflow(&mut self) {
        let runs = self.database.workflow_runs.iter().filter(|(_, row)| row.status.is_final());
        let ended: Vec<WorkflowRunId> = runs.map(|(id, _)| id.clone()).collect();
        if ended.is_empty() || self.active_runs().len() >= ACTIVE_RUNS_MAX {
            return self.continue_workflows();
        }
        let id = &ended[self.random.usize(0..ended.len())];
        let mut row = self.database.workflow_runs[id].clone();
        let has_succeeded = row.status == WorkflowRunStatus::Succeeded;
        let from = (has_succeeded || self.random.bool())
            .then(|| self.random.usize(0..row.workflow.phases.len()));
        row.status = WorkflowRunStatus::Running;
        let active = Box::new(row.load(&self.database.jobs));
        self.step(FleetEvent::Workflow { run: id, event: WorkflowEvent::Retry { active, from } });
    }

    /// Lets workflow runs continue, as every turn of the dispatcher does.
    pub(super) fn continue_workflows(&mut self) {
        self.step(FleetEvent::WorkflowStartsAllowed);
        for id in self.state.runnable_workflow_runs() {
            self.step(FleetEvent::Workflow { run: &id, event: WorkflowEvent::Continue });
        }
    }

    /// Answers the questions of the remaining workflow runs.
    pub(super) fn drain_workflows(&mut self) {
        self.continue_workflows();
        let is_asking = |row: &SimulatedWorkflowRun| {
            !row.status.is_final() && row.open_gates().next().is_some()
        };
        while self.database.workflow_runs.values().any(is_asking) {
            self.answer_gate();
        }
    }

    pub(super) fn has_active_runs(&self) -> bool {
        self.database.workflow_runs.values().any(|row| !row.status.is_final())
    }

    /// Collects the changes of a step. The jobs of parts are created as the engine does: in the
    /// same transaction.
    pub(super) fn collect_changes(&mut self, step: FleetStep, all: &mut SimulatedCommit) {
        all.effects.extend(step.effects);
        for change in step.changes {
            let FleetChange::RecordWorkflow { run, workflow, effect } = change else {
                all.changes.push(change);
                continue;
            };
            let WorkflowEffect::StartPart { entry, job, after } = *effect else {
                all.changes.push(FleetChange::RecordWorkflow { run, workflow, effect });
                continue;
            };
            if self.is_wild && self.random.u32(0..50) == 0 {
                self.refuse_part(&run, &entry, all);
                continue;
            }
            let id = self.new_job_id();
            let request = self.part_request(&run, &job.work);
            let request_json = serde_json::to_string(&request).unwrap();
            let created = Box::new(request.clone());
            all.changes.push(FleetChange::CreateJob { job: id.clone(), request: created });
            let part = OpenPart::new(entry.phase, entry.part, entry.seq);
            let not_before = (!after.is_zero()).then(|| state::later(self.now, after));
            let new = NewJob { request, request_json };
            let entry = JournalEntry { job: Some(id.clone()), ..entry };
            let effect = Box::new(WorkflowEffect::StartPart { entry, job, after });
            let recorded = FleetChange::RecordWorkflow { run: run.clone(), workflow, effect };
            all.changes.push(recorded);
            let submitted = SubmittedPart { job: id, part, new, not_before };
            let event = WorkflowEvent::PartSubmitted(Box::new(submitted));
            let step = self.state.step(FleetEvent::Workflow { run: &run, event }, self.now);
            all.changes.extend(step.changes);
        }
    }

    fn part_request(&mut self, run: &WorkflowRunId, work: &PartJobWork) -> JobRequest {
        let agent = AGENTS[self.random.usize(0..AGENTS.len())];
        let work = match work {
            PartJobWork::Ask { .. } => PhaseJobKind::Ask { model: None, effort: None },
            _ => PhaseJobKind::Command { command: "true".to_owned(), env: Vec::new() },
        };
        let (timeout_ms, folder, micros_left) = (None, None, None);
        let phase = PhaseJobRequest {
            run: run.clone(),
            work,
            timeout_ms,
            folder,
            micros_left,
            skills: None,
            git_access: None,
            run_clone: None,
        };
        JobRequest { phase: Some(Box::new(phase)), ..JobRequest::new(agent.parse().unwrap()) }
    }

    /// Records a part whose job cannot be created. The run learns of it after the current step.
    fn refuse_part(
        &mut self,
        run: &WorkflowRunId,
        entry: &JournalEntry,
        all: &mut SimulatedCommit,
    ) {
        let ended = EndedPart {
            phase: entry.phase,
            part: entry.part,
            seq: entry.seq,
            job: "none".parse().unwrap(),
            outcome: PartOutcome::Failed,
            output: None,
            error: Some("no agent is named".to_owned()),
            micros: 0,
            is_stopped: false,
        };
        let workflow = Arc::clone(&self.state.workflow_run(run).unwrap().state.workflow);
        let outcome = Some(PartOutcome::Failed);
        let entry = JournalEntry { outcome, error: ended.error.clone(), ..entry.clone() };
        let effect = Box::new(WorkflowEffect::RecordPart { entry });
        all.changes.push(FleetChange::RecordWorkflow { run: run.clone(), workflow, effect });
        all.pending_events.push((run.clone(), WorkflowEvent::JoblessPartEnded(ended)));
    }
}

/// Everything that one transaction stores.
#[derive(Debug, Default)]
pub(super) struct SimulatedCommit {
    pub(super) changes: Vec<FleetChange>,
    pub(super) effects: Vec<FleetEffect>,
    /// Events that follow from the changes, and are part of the same transaction.
    pub(super) pending_events: Vec<(WorkflowRunId, WorkflowEvent)>,
}
