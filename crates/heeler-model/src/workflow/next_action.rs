//! Next action of an active phase, by the part that ended last.
//!
//! Start at [`retry_action`], then the function of the phase's kind of repetition.

use heeler_config::workflow::{Phase, PhaseRepeat, PhaseWork};

use super::journal::{PartDecision, PartOutcome, PhasePart};
use super::workflow_run::{LastPart, PhaseAction, PhaseOutcome, PhaseProgress};

/// Returns the next action after a part that did not succeed, for any kind of part.
pub(super) fn retry_action(
    phase: &Phase,
    progress: &PhaseProgress,
    last: LastPart,
) -> Option<PhaseAction> {
    if last.decision.is_some_and(PartDecision::is_failure) {
        return Some(PhaseAction::Finish(PhaseOutcome::Failed));
    }
    match (last.part, last.outcome) {
        // Items have counts of their own, and were put back in `ItemsProgress::close`.
        (PhasePart::Item(_), _) => None,
        // A crash is not the part's fault, so its retries are not used up; `RESTARTS_MAX` limits
        // it.
        (_, PartOutcome::Interrupted) => Some(PhaseAction::Begin(last.part)),
        (_, PartOutcome::Cancelled) => Some(PhaseAction::Finish(PhaseOutcome::Failed)),
        (PhasePart::Gate(_), PartOutcome::Failed) => {
            // A refusal is an answer. Asking again would ignore it.
            Some(PhaseAction::Finish(PhaseOutcome::Failed))
        }
        (_, PartOutcome::Failed) if progress.failures <= phase.retry.max => {
            Some(PhaseAction::Begin(last.part))
        }
        // The work is not approved, but it exists: later phases decide what to do with it.
        (PhasePart::Fix(_), PartOutcome::Failed) => Some(finish_or_gate(phase)),
        (_, PartOutcome::Failed) => Some(PhaseAction::Finish(PhaseOutcome::Failed)),
        (_, PartOutcome::Soft) => match &phase.repeat {
            PhaseRepeat::Until(until) if progress.failures <= until.on_soft_failure.retries => {
                Some(PhaseAction::Begin(last.part))
            }
            PhaseRepeat::Until(until) if until.on_soft_failure.completes => None,
            PhaseRepeat::Once | PhaseRepeat::Review(_) if progress.failures <= phase.retry.max => {
                Some(PhaseAction::Begin(last.part))
            }
            _ if matches!(last.part, PhasePart::Fix(_)) => Some(finish_or_gate(phase)),
            _ => Some(PhaseAction::Finish(PhaseOutcome::Failed)),
        },
        (_, PartOutcome::Succeeded) => None,
    }
}

fn finish_or_gate(phase: &Phase) -> PhaseAction {
    match phase.gate {
        Some(_) => PhaseAction::Begin(PhasePart::Gate(0)),
        None => PhaseAction::Finish(PhaseOutcome::Succeeded),
    }
}

pub(super) fn after_work(phase: &Phase, last: LastPart) -> PhaseAction {
    match last.part {
        PhasePart::Gate(_) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        PhasePart::Work if matches!(phase.work, PhaseWork::PostReview) => {
            PhaseAction::Begin(PhasePart::Post)
        }
        _ => finish_or_gate(phase),
    }
}

pub(super) fn after_review(
    phase: &Phase,
    last: LastPart,
    cycles: u32,
    has_gate: bool,
) -> PhaseAction {
    let wants_changes = last.decision == Some(PartDecision::RequestChanges);
    match last.part {
        PhasePart::Gate(0) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        PhasePart::Gate(cycle) => PhaseAction::Begin(PhasePart::Fix(cycle)),
        PhasePart::Fix(cycle) => PhaseAction::Begin(PhasePart::Recheck(cycle)),
        PhasePart::Work | PhasePart::Recheck(_) if wants_changes => {
            let cycle = match last.part {
                PhasePart::Recheck(cycle) => cycle + 1,
                _ => 1,
            };
            match has_gate {
                // After the last fix the work counts as done.
                _ if cycle > cycles => finish_or_gate(phase),
                true => PhaseAction::Begin(PhasePart::Gate(cycle)),
                false => PhaseAction::Begin(PhasePart::Fix(cycle)),
            }
        }
        _ => finish_or_gate(phase),
    }
}

/// Optional features of a loop.
#[derive(Clone, Copy)]
pub(super) struct LoopFeatures {
    pub(super) has_check: bool,
    pub(super) has_gate: bool,
}

pub(super) fn after_iteration(
    phase: &Phase,
    last: LastPart,
    most: u32,
    soft_completes: bool,
    has: LoopFeatures,
) -> PhaseAction {
    let next_pass = |number: u32| match has.has_gate {
        _ if number >= most => finish_or_gate(phase),
        true => PhaseAction::Begin(PhasePart::Gate(number)),
        false => PhaseAction::Begin(PhasePart::Iteration(number + 1)),
    };
    match (last.part, last.decision) {
        (PhasePart::Gate(0), _) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        (PhasePart::Gate(number), _) => PhaseAction::Begin(PhasePart::Iteration(number + 1)),
        (_, Some(PartDecision::ConditionMet)) => finish_or_gate(phase),
        (PhasePart::Iteration(_), _) if last.outcome == PartOutcome::Soft && soft_completes => {
            finish_or_gate(phase)
        }
        (PhasePart::Iteration(number), Some(PartDecision::ConditionOpen)) if has.has_check => {
            PhaseAction::Begin(PhasePart::Check(number))
        }
        (PhasePart::Iteration(number) | PhasePart::Check(number), _) => next_pass(number),
        _ => finish_or_gate(phase),
    }
}

pub(super) fn after_items(phase: &Phase, progress: &PhaseProgress, last: LastPart) -> PhaseAction {
    let Some(items) = &progress.items else { return PhaseAction::Finish(PhaseOutcome::Failed) };
    match (last.part, items.remaining_items, items.failed_items) {
        (PhasePart::Gate(_), ..) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        (_, 0, 0) => finish_or_gate(phase),
        (_, 0, _) => PhaseAction::Finish(PhaseOutcome::Failed),
        _ => match items.ready_items.first() {
            Some(number) => PhaseAction::Begin(PhasePart::Item(*number)),
            None => PhaseAction::Wait,
        },
    }
}
