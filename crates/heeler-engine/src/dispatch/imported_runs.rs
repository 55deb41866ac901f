//! Workflow runs that were imported: a person may end or continue them.
//!
//! An imported run has no definition. If the fleet has a workflow of the same name, a run that is
//! answered or retried becomes one of this fleet, with that workflow. Start at
//! [`DispatchTransaction::adopt_imported_run`].

use std::sync::Arc;

use heeler_config::workflow::{LoadedWorkflow, Workflow, freeze_workflow};
use heeler_model::workflow::{PhasePart, WorkflowRunStatus};
use heeler_model::{Approval, ApprovalStatus, WorkflowRunId};
use heeler_store::{DatabaseError, WorkflowRunRow};

use super::transaction::DispatchTransaction;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;

/// Returns true if a run was imported and has not become one of this fleet.
pub(super) fn is_imported(row: &WorkflowRunRow) -> bool {
    row.head.origin.is_some()
}

impl DispatchTransaction<'_, '_> {
    /// Makes an imported run one of this fleet. Nothing is stored if it is refused.
    pub(super) fn adopt_imported_run(
        &mut self,
        row: &mut WorkflowRunRow,
        by: &str,
    ) -> Result<Arc<Workflow>, DispatchFailure> {
        let setup = Arc::clone(&self.state.setup);
        let loaded = imported_workflow(setup.workflow(&row.head.workflow), row)?;
        let id = row.head.id.clone();
        // Two active runs for one trigger would do its work twice.
        let active = self.tx.active_workflow_run(&row.head.workflow, &row.head.trigger_id)?;
        if let Some(active) = active {
            let trigger = &row.head.trigger_id;
            let message = format!("{active} is already active for the same trigger ({trigger})");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
            return Err(refused.with_hint(format!("heeler workflow cancel {id}")).into());
        }
        let (hash, files) = freeze_workflow(loaded);
        self.tx.put_definition(&hash, &row.head.workflow, &files, self.now)?;
        let origin = row.head.origin.clone().unwrap_or_default();
        self.tx.adopt_imported_run(&id, &hash)?;
        let text = format!("continued by {by}; it was imported from {origin}");
        self.tx.add_workflow_event(&id, "adopted", None, &text, self.now)?;
        tracing::info!(run = %id, by, origin, "an imported workflow run continues");
        // Its version has changed.
        if let Some(adopted) = self.tx.workflow_run(&id)? {
            *row = adopted;
        }
        Ok(Arc::new(loaded.workflow.clone()))
    }

    /// Returns the workflow with which an imported run would continue.
    pub(super) fn imported_definition(
        &self,
        row: &WorkflowRunRow,
    ) -> Result<Arc<Workflow>, DaemonCommandError> {
        let loaded = imported_workflow(self.state.setup.workflow(&row.head.workflow), row)?;
        Ok(Arc::new(loaded.workflow.clone()))
    }

    /// Prepares the run of a gate for the answer, if the run was imported. Returns a reply if the
    /// answer has ended it.
    pub(super) fn prepare_imported_gate(
        &mut self,
        approval: &Approval,
        (approves, text): (bool, Option<&str>),
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Ok(id) = approval.workflow_run_id.parse::<WorkflowRunId>() else { return Ok(None) };
        let Some(mut row) = self.tx.workflow_run(&id)?.filter(is_imported) else {
            return Ok(None);
        };
        if row.head.status.is_final() {
            let message = format!("{id} has ended already: {}", row.head.status);
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message).into());
        }
        let setup = Arc::clone(&self.state.setup);
        let known = imported_workflow(setup.workflow(&row.head.workflow), &row)
            .and_then(|loaded| check_gate(&loaded.workflow, approval, &id));
        match known {
            Ok(()) => {
                let workflow = self.adopt_imported_run(&mut row, by)?;
                self.state.load_workflow_run(self.tx, row, workflow)?;
                Ok(None)
            }
            Err(refused) if approves => Err(refused.into()),
            // A refusal needs no workflow: it ends the run, as in Last Light.
            Err(_) => {
                let text = text.map(|text| format!(": {text}")).unwrap_or_default();
                let why = format!("`{}` rejected by {by}{text}", approval.gate);
                self.tx.answer_approval(
                    &approval.id,
                    ApprovalStatus::Rejected,
                    None,
                    by,
                    self.now,
                )?;
                self.close_imported_run(row, WorkflowRunStatus::Failed, &why, by)?;
                let message = format!("{id} has ended: {why}");
                Ok(Some(CommandReply::Done { message }))
            }
        }
    }

    /// Ends an imported run and withdraws its questions.
    pub(super) fn close_imported_run(
        &mut self,
        mut row: WorkflowRunRow,
        status: WorkflowRunStatus,
        why: &str,
        by: &str,
    ) -> Result<(), DatabaseError> {
        let id = row.head.id.clone();
        for approval in self.tx.pending_approvals_of(id.as_str())? {
            let withdrawn = ApprovalStatus::Withdrawn;
            self.tx.answer_approval(&approval.id, withdrawn, None, by, self.now)?;
        }
        tracing::info!(run = %id, by, why, "an imported workflow run is closed");
        self.tx.add_workflow_event(&id, "ended", None, &format!("{status}: {why}"), self.now)?;
        row.head.status = status;
        row.head.finished_at = Some(self.now);
        row.head.updated_at = self.now;
        row.head.error = Some(why.to_owned());
        self.tx.update_workflow_run(&row).map(drop)
    }
}

/// Returns the workflow with which an imported run may continue, or the reason and the cure.
fn imported_workflow<'s>(
    found: Result<&'s LoadedWorkflow, DaemonCommandError>,
    row: &WorkflowRunRow,
) -> Result<&'s LoadedWorkflow, DaemonCommandError> {
    found.map_err(|why| {
        let id = &row.head.id;
        let origin = row.head.origin.as_deref().unwrap_or_default();
        let message =
            format!("{id} was imported from {origin} and cannot continue: {}", why.message);
        let hint = format!(
            "copy the file of the workflow into the fleet's workflow folder, or: heeler workflow \
             cancel {id}"
        );
        DaemonCommandError::new(why.kind, message).with_hint(hint)
    })
}

/// Refuses a gate that the workflow of this fleet does not have in this place.
fn check_gate(
    workflow: &Workflow,
    approval: &Approval,
    id: &WorkflowRunId,
) -> Result<(), DaemonCommandError> {
    let place = approval.phase.as_deref().and_then(|phase| workflow.phase_index(phase));
    let gate = place.and_then(|place| match approval.part? {
        PhasePart::Gate(number) => workflow.phases[place].gate_at(number),
        _ => None,
    });
    let is_iteration = approval.part.is_some_and(|part| part != PhasePart::Gate(0));
    match gate {
        // Last Light names a gate between two iterations after the iteration.
        Some(gate) if gate.name == approval.gate || is_iteration => Ok(()),
        _ => {
            let (gate, name) = (&approval.gate, &workflow.name);
            let message = format!("the workflow `{name}` of this fleet has no gate `{gate}` there");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message);
            Err(refused.with_hint(format!("heeler workflow cancel {id}")))
        }
    }
}
