//! A transaction of the leader, as it is sent to the database.

use std::sync::Arc;

use super::super::*;
use super::server::SharedRun;

/// A step of a dispatcher whose transaction is sent over a network.
#[derive(Debug)]
pub(in super::super) struct UnsentStep {
    pub(in super::super) changes: Vec<FleetChange>,
    pub(in super::super) effects: Vec<FleetEffect>,
    pub(in super::super) now: Timestamp,
    pub(in super::super) budget: Option<i64>,
    pub(in super::super) uses_persistent_session: bool,
    pub(in super::super) result: Option<RunResult>,
    pub(in super::super) new_workflow_run: Option<SimulatedWorkflowRun>,
    /// Change of the run's row, which the state machine does not know.
    pub(in super::super) run_change: Option<SharedRunChange>,
}

/// Change of the row of a run.
#[derive(Debug)]
pub(in super::super) enum SharedRunChange {
    Start(RunId, Box<SharedRun>),
    End(RunId),
    /// The fleet does not wait for its host any more.
    GiveUp {
        run: RunId,
        source: RunEndSource,
    },
}

/// Content of a transaction.
#[derive(Debug)]
pub(super) struct CommitRequest {
    pub(super) term: i64,
    pub(super) rules: Arc<FleetRules>,
    pub(super) steps: Vec<UnsentStep>,
    /// A host that a person drains or releases.
    pub(super) drain: Option<(usize, bool)>,
    /// A report that is not needed any more.
    pub(super) report: Option<RunId>,
}

impl CommitRequest {
    /// Returns true if there is nothing to store.
    pub(super) fn is_empty(&self) -> bool {
        let has_changes = |step: &UnsentStep| !step.changes.is_empty() || step.run_change.is_some();
        self.drain.is_none() && self.report.is_none() && !self.steps.iter().any(has_changes)
    }

    /// Returns the jobs that it creates.
    pub(super) fn new_jobs(&self) -> Vec<JobId> {
        let changes = self.steps.iter().flat_map(|step| &step.changes);
        let created = changes.filter_map(|change| match change {
            FleetChange::CreateJob { job, .. } => Some(job.clone()),
            _ => None,
        });
        created.collect()
    }
}
