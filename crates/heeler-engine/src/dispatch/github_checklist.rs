//! One comment on GitHub with the state of all phases of a workflow run, which is edited.
//!
//! A workflow with `status_checklist` has it instead of one comment for each message. Start at
//! [`DispatchTransaction::update_checklist`].

use std::collections::HashMap;
use std::sync::Arc;

use heeler_config::workflow::PhaseWork;
use heeler_model::workflow::{PhaseOutcome, WorkflowRun, WorkflowRunStatus};
use heeler_model::{WorkflowRunId, one_line};
use heeler_store::{DatabaseError, WorkflowEventRecord};

use super::transaction::DispatchTransaction;
use crate::dispatch_failure::DispatchFailure;
use crate::github::{GithubLane, GithubTask};

/// Most events of a run that are searched for messages.
const EVENTS_MAX: usize = 10_000;

/// Longest message beside a phase, in characters.
const DETAIL_CHARS_MAX: usize = 300;

impl DispatchTransaction<'_, '_> {
    /// Returns true if the messages of a run are one comment.
    pub(super) fn has_checklist(&self, id: &WorkflowRunId) -> bool {
        self.state.workflow_records.get(id).is_some_and(|stored| stored.checklist.is_some())
    }

    /// Edits the comment of a run if its text has changed. Called after each step of the run.
    pub(super) fn update_checklist(&mut self, id: &WorkflowRunId) -> Result<(), DatabaseError> {
        if !self.has_checklist(id) {
            return Ok(());
        }
        let Some(issue) = self.issue_of_run(id) else { return Ok(()) };
        let events = self.tx.workflow_events(id, 0, EVENTS_MAX)?;
        let messages: Vec<&WorkflowEventRecord> =
            events.iter().filter(|event| event.kind == "message").collect();
        let text = match self.state.fleet.workflow_run(id) {
            Some(active) => render_checklist(&active.state, active.state.status, &messages),
            // The fleet has no state of a run that has ended; its journal is complete.
            None => {
                let Some(stored) = self.state.workflow_records.get(id) else { return Ok(()) };
                let workflow = match self.state.setup.definition_of(self.tx, &stored.row) {
                    Ok(workflow) => workflow,
                    Err(DispatchFailure::Database(error)) => return Err(error),
                    // The definition is unreadable, so the comment stays as it is.
                    Err(DispatchFailure::Refused(_)) => return Ok(()),
                };
                let ended = stored.load_state(self.tx, Arc::clone(&workflow))?;
                render_checklist(&ended.state, stored.row.head.status, &messages)
            }
        };
        let Some(stored) = self.state.workflow_records.get_mut(id) else { return Ok(()) };
        if stored.checklist.as_ref() == Some(&text) {
            return Ok(());
        }
        stored.checklist = Some(text.clone());
        let started_at = stored.row.head.started_at;
        let effect = format!("{} {}", GithubLane::Post.effect_kind(), uuid::Uuid::new_v4());
        let task = GithubTask::Checklist { run: id.clone(), issue, started_at, text };
        self.add_github_task(effect, &task)
    }
}

/// Renders the phases of a run with their last messages, and the final message.
fn render_checklist(
    run: &WorkflowRun,
    status: WorkflowRunStatus,
    messages: &[&WorkflowEventRecord],
) -> String {
    let last: HashMap<&str, &str> =
        messages.iter().filter_map(|it| Some((it.phase.as_deref()?, it.text.as_str()))).collect();
    let mut text = format!("**{}**: {status}\n\n", run.workflow.name);
    for (place, phase) in run.workflow.phases.iter().enumerate() {
        if matches!(phase.work, PhaseWork::Context) {
            continue;
        }
        let (sign, state) = match run.phase_outcome(place) {
            Some(PhaseOutcome::Succeeded) => ("x", ""),
            Some(PhaseOutcome::Failed) => (" ", " (failed)"),
            Some(PhaseOutcome::Skipped) => ("x", " (skipped)"),
            None if run.is_phase_active(place) => (" ", " (in progress)"),
            None => (" ", ""),
        };
        let name = phase.label.as_deref().unwrap_or(phase.name.as_str());
        text.push_str(&format!("- [{sign}] **{}**{state}", one_line(name)));
        if let Some(message) = last.get(phase.name.as_str()) {
            let detail: String = one_line(message.trim()).chars().take(DETAIL_CHARS_MAX).collect();
            text.push_str(&format!(": {detail}"));
        }
        text.push('\n');
    }
    // Messages of no phase are about the whole run.
    if let Some(message) = messages.iter().rev().find(|it| it.phase.is_none()) {
        text.push_str(&format!("\n{}\n", message.text.trim()));
    }
    text
}
