//! Rows of simulated workflow runs: the journal, and the progress that the engine stores beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use heeler_config::workflow::Workflow;
use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::super::*;
use super::database::{SimulatedDatabase, SimulatedJob, StoredFacts};
use crate::workflow::{
    JournalEntry, PartDecision, PartOutcome, PhasePart, WorkflowEffect, WorkflowRun,
    WorkflowRunStatus,
};
use crate::{JobId, WorkflowRunId};

/// Row of a workflow run, with its journal.
#[derive(Debug, Clone)]
pub(super) struct SimulatedWorkflowRun {
    pub(super) workflow: Arc<Workflow>,
    pub(super) context: Json,
    pub(super) trigger_id: String,
    pub(super) started_at: Timestamp,
    pub(super) status: WorkflowRunStatus,
    pub(super) journal: BTreeMap<u64, JournalEntry>,
    pub(super) scratch: Map<String, Json>,
    pub(super) restarts: u32,
    pub(super) error: Option<String>,
    pub(super) current_phase: String,
}

impl SimulatedWorkflowRun {
    pub(super) fn new(
        workflow: Arc<Workflow>,
        context: Json,
        trigger_id: String,
        started_at: Timestamp,
    ) -> SimulatedWorkflowRun {
        SimulatedWorkflowRun {
            workflow,
            context,
            trigger_id,
            started_at,
            status: WorkflowRunStatus::Queued,
            journal: BTreeMap::new(),
            scratch: Map::new(),
            restarts: 0,
            error: None,
            current_phase: String::new(),
        }
    }

    /// Loads the run from its journal.
    pub(super) fn load(&self, jobs: &BTreeMap<JobId, SimulatedJob>) -> ActiveWorkflowRun {
        let mut state = WorkflowRun::new(Arc::clone(&self.workflow), self.context.clone());
        self.journal.values().for_each(|entry| state.apply_entry(entry));
        state.status = self.status;
        state.scratch.clone_from(&self.scratch);
        state.restarts = self.restarts;
        state.error.clone_from(&self.error);
        state.current_phase.clone_from(&self.current_phase);
        let mut active = ActiveWorkflowRun::new(state, self.trigger_id.clone(), self.started_at);
        for entry in self.journal.values().filter(|entry| entry.outcome.is_none()) {
            if let Some(job) = &entry.job {
                let part = OpenPart::new(entry.phase, entry.part, entry.seq);
                active.load_part(job.clone(), jobs[job].open_part(part));
            }
        }
        active
    }

    /// Returns the gates that wait for an answer.
    pub(super) fn open_gates(&self) -> impl Iterator<Item = &JournalEntry> {
        let is_open =
            |it: &&JournalEntry| matches!(it.part, PhasePart::Gate(_)) && it.outcome.is_none();
        self.journal.values().filter(is_open)
    }

    /// Adds an entry. A part that succeeded begins again only after a reset of its phase, which only
    /// a person requests (P7).
    fn add(&mut self, entry: JournalEntry) {
        if entry.part != PhasePart::Reset {
            let same = self.journal.values().rev().filter(|it| it.phase == entry.phase);
            let same = same.take_while(|it| it.part != PhasePart::Reset);
            let mut same = same.filter(|it| it.part == entry.part);
            let is_done = |it: &JournalEntry| {
                it.outcome == Some(PartOutcome::Succeeded)
                    && it.decision != Some(PartDecision::Blocked)
            };
            assert!(!same.any(is_done), "{:?} is done again", (entry.phase, entry.part));
        }
        let before = self.journal.insert(entry.seq, entry);
        assert!(before.is_none(), "an entry is overwritten");
    }

    /// Stores the decision about a part. Everything else is known from the record of its job, which
    /// must say the same as the state did.
    fn close(&mut self, entry: JournalEntry) {
        let row = self.journal.get_mut(&entry.seq).expect("an open part ends");
        if let PhasePart::Gate(_) = entry.part {
            assert!(row.outcome.is_none(), "a question is answered twice");
            *row = entry;
            return;
        }
        assert_eq!(row.outcome, entry.outcome, "a part and its job end differently");
        assert_eq!(row.decision, None, "a part is judged twice");
        assert_eq!((&row.output, row.micros), (&entry.output, entry.micros));
        row.decision = entry.decision;
        if entry.decision.is_some_and(PartDecision::is_failure) && row.error.is_none() {
            row.error = entry.error;
        }
    }
}

impl SimulatedDatabase {
    /// Stores a change of a workflow run.
    pub(super) fn store_workflow(&mut self, change: FleetChange, facts: &StoredFacts<'_>) {
        match change {
            FleetChange::CreateWorkflowRun { run, status } => {
                let mut fresh = facts.new_workflow_run.cloned().expect("its event has the run");
                fresh.status = status;
                assert!(self.workflow_runs.insert(run, fresh).is_none(), "it is created twice");
            }
            FleetChange::RecordWorkflow { run, effect, .. } => self.record_effect(&run, *effect),
            FleetChange::UpdateWorkflowRun { run, record } => {
                let row = self.workflow_runs.get_mut(&run).expect("it is created first");
                row.status = record.status;
                row.scratch = record.scratch;
                row.restarts = record.restarts;
                row.error = record.error;
                row.current_phase = record.current_phase;
            }
            FleetChange::FailWorkflowRun { run, why } => {
                let row = self.workflow_runs.get_mut(&run).expect("it is created first");
                row.status = WorkflowRunStatus::Failed;
                row.error = Some(why);
            }
            FleetChange::WithdrawQuestions { run, .. } => {
                let row = self.workflow_runs.get_mut(&run).expect("it is created first");
                for entry in row.journal.values_mut() {
                    if matches!(entry.part, PhasePart::Gate(_)) && entry.outcome.is_none() {
                        entry.outcome = Some(PartOutcome::Cancelled);
                    }
                }
            }
            // The row of its job is gone already.
            FleetChange::RecordUnjudgedPart { .. } => {}
            other => panic!("{other:?} is stored elsewhere"),
        }
    }

    fn record_effect(&mut self, id: &WorkflowRunId, effect: WorkflowEffect) {
        let row = self.workflow_runs.get_mut(id).expect("it is created first");
        match effect {
            WorkflowEffect::StartPart { entry, .. } => {
                let job = entry.job.as_ref().expect("its job is created first");
                let job = self.jobs.get_mut(job).expect("its job is created first");
                job.part = Some((id.clone(), entry.seq));
                row.add(entry);
            }
            WorkflowEffect::RecordPart { entry }
            | WorkflowEffect::PostReview { entry, .. }
            | WorkflowEffect::AskQuestion { entry, .. } => {
                row.add(entry);
            }
            WorkflowEffect::ClosePart { entry } => row.close(entry),
            WorkflowEffect::SendMessage { .. } | WorkflowEffect::StopJobs { .. } => {}
        }
    }
}

/// Compares a run with one that is loaded from its journal.
pub(super) fn check_same_run(id: &WorkflowRunId, one: &ActiveWorkflowRun, two: &ActiveWorkflowRun) {
    assert!(one.state.knows_what(&two.state), "{id}: {one:#?}\ndiffers from\n{two:#?}");
    assert_eq!(one.open_parts, two.open_parts, "{id}");
    let texts = |it: &ActiveWorkflowRun| (it.state.error.clone(), it.state.current_phase.clone());
    assert_eq!(texts(one), texts(two), "{id}");
}
