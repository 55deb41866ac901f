//! Messages of a workflow run: which hook speaks at which event, and with which names.
//!
//! `docs/workflow-reference.md` has the table of hooks and outcomes. Start at
//! [`WorkflowRun::announce_part_end`] and [`WorkflowRun::announce_phase_end`].

use std::sync::Arc;

use heeler_config::workflow::{Phase, PhaseRepeat, WorkflowTemplate};
use serde_json::{Value as Json, json};

use super::journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};
use super::loop_result::LoopEnd;
use super::workflow_run::{PhaseAction, PhaseOutcome, WorkflowRun};
use super::workflow_step::{WorkflowEffect, WorkflowStepContext, WorkflowStepOutcome};

/// Message that a phase may send.
pub(super) struct PhaseMessage<'m> {
    /// Index of the phase.
    pub(super) phase: usize,
    pub(super) template: Option<&'m WorkflowTemplate>,
    /// Iteration or cycle that it concerns.
    pub(super) number: u32,
    /// Reason of a failure.
    pub(super) error: Option<&'m str>,
}

impl WorkflowRun {
    /// Sends the messages of a part that begins for the first time.
    pub(super) fn announce_part_start(
        &self,
        place: usize,
        part: PhasePart,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let phase = &self.workflow.phases[place];
        if !matches!(phase.repeat, PhaseRepeat::Review(_)) {
            return;
        }
        let messages = &phase.messages;
        let (template, number) = match part {
            PhasePart::Work => (&messages.on_cycle_start, 1),
            PhasePart::Recheck(cycle) => (&messages.on_cycle_start, cycle + 1),
            PhasePart::Fix(cycle) => (&messages.on_fix_start, cycle),
            _ => return,
        };
        let template = template.as_ref();
        self.push_message(
            &PhaseMessage { phase: place, template, number, error: None },
            around,
            step,
        );
    }

    /// Sends the messages of a part that has just ended. The entry is applied already.
    pub(super) fn announce_part_end(
        &self,
        entry: &JournalEntry,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let place = entry.phase;
        let phase = &self.workflow.phases[place];
        let message = match (&phase.repeat, entry.part, entry.decision) {
            (.., Some(PartDecision::Blocked)) => (blocked_message(phase), self.rounds(place)),
            (PhaseRepeat::Review(review), PhasePart::Work | PhasePart::Recheck(_), decision) => {
                let fixes = self.rounds(place);
                match decision {
                    Some(PartDecision::Approved) => {
                        (phase.messages.on_approved.as_ref(), fixes + 1)
                    }
                    Some(PartDecision::RequestChanges) if fixes < review.max_cycles => {
                        (phase.messages.on_request_changes.as_ref(), fixes + 1)
                    }
                    Some(PartDecision::RequestChanges) => {
                        (phase.messages.on_max_cycles.as_ref(), fixes)
                    }
                    _ => return,
                }
            }
            (PhaseRepeat::Review(_), PhasePart::Fix(cycle), _) => {
                let has_failed =
                    matches!(entry.outcome, Some(PartOutcome::Failed | PartOutcome::Soft))
                        || entry.decision.is_some_and(PartDecision::is_failure);
                let is_repeated =
                    matches!(self.next_action(place), PhaseAction::Begin(PhasePart::Fix(_)));
                if !has_failed || is_repeated {
                    return;
                }
                (phase.messages.on_fix_failed.as_ref(), cycle)
            }
            _ => return,
        };
        let (template, number) = message;
        let error = entry.error.as_deref();
        self.push_message(&PhaseMessage { phase: place, template, number, error }, around, step);
    }

    /// Sends the message of a phase that has just ended, with its last entry.
    pub(super) fn announce_phase_end(
        &mut self,
        last: &JournalEntry,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let place = last.phase;
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        let messages = &phase.messages;
        let template = match self.phase_outcome(place) {
            Some(PhaseOutcome::Succeeded) => {
                if let Some(name) = &phase.set_phase {
                    self.current_phase = name.clone();
                }
                let end = self.nodes[place].loop_result.map(|result| result.end);
                match (&phase.repeat, end) {
                    // The phase has ended without a failure, but not with what it was for.
                    (PhaseRepeat::Until(_), Some(LoopEnd::OutOfRounds)) => &messages.on_failure,
                    (PhaseRepeat::Until(_), Some(LoopEnd::OutOfTurns)) => return,
                    // `on_max_cycles` or `on_fix_failed` has said it.
                    (PhaseRepeat::Review(_), Some(LoopEnd::OutOfRounds | LoopEnd::FixFailed)) => {
                        return;
                    }
                    _ => &messages.on_success,
                }
            }
            // The message about BLOCKED has said it.
            Some(PhaseOutcome::Failed)
                if last.decision == Some(PartDecision::Blocked)
                    && !matches!(phase.repeat, PhaseRepeat::Foreach(_))
                    && blocked_message(phase).is_some() =>
            {
                return;
            }
            Some(PhaseOutcome::Failed) => &messages.on_failure,
            Some(PhaseOutcome::Skipped) | None => return,
        };
        let number = self.rounds(place);
        let error = match (self.phase_outcome(place), &last.error) {
            (_, Some(error)) => Some(error.clone()),
            // Another item of the list has failed.
            (Some(PhaseOutcome::Failed), None) => Some("it failed".to_owned()),
            (_, None) => Some(format!("the condition does not hold after {number} iterations")),
        };
        let (template, error) = (template.as_ref(), error.as_deref());
        let message = PhaseMessage { phase: place, template, number, error };
        self.push_message(&message, around, step);
    }

    /// Returns the number of fixes or iterations of a loop so far.
    pub(super) fn rounds(&self, place: usize) -> u32 {
        self.nodes[place].loop_result.map_or(0, |result| result.rounds)
    }

    pub(super) fn push_message(
        &self,
        message: &PhaseMessage<'_>,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let mut names = self.template_names(message.phase, message.number, around);
        names.push(("error", json!(message.error)));
        step.effects.extend(self.render_message(message.phase, message.template, &names));
    }

    /// Renders a message. Returns `None` if the text is empty.
    pub(super) fn render_message(
        &self,
        place: usize,
        message: Option<&WorkflowTemplate>,
        names: &[(&str, Json)],
    ) -> Option<WorkflowEffect> {
        // A message that cannot be rendered must not fail the run.
        let text =
            message?.render(&self.template_scope(names)).unwrap_or_else(|error| error.to_string());
        (!text.trim().is_empty())
            .then_some(WorkflowEffect::SendMessage { phase: Some(place), text })
    }

    pub(super) fn push_final_message(
        &self,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let Some(message) = &self.workflow.final_message else { return };
        let run =
            json!({ "id": around.run, "workflow": self.workflow.name, "status": self.status });
        let names = [("run", run)];
        // As for other messages, the error is sent rather than nothing.
        let text =
            message.render(&self.template_scope(&names)).unwrap_or_else(|error| error.to_string());
        if !text.trim().is_empty() {
            step.effects.push(WorkflowEffect::SendMessage { phase: None, text });
        }
    }
}

/// Returns the message about a blocked output. The rule's own is more specific than the phase's.
fn blocked_message(phase: &Phase) -> Option<&WorkflowTemplate> {
    let rule = phase.on_output.blocked.as_ref().and_then(|rule| rule.message.as_ref());
    rule.or(phase.messages.on_blocked.as_ref())
}
