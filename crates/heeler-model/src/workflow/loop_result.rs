//! Result of a loop: whether it reached its goal, and after how many rounds.
//!
//! Start at [`LoopResult::after`].

use heeler_config::workflow::PhaseRepeat;
use serde_json::{Value as Json, json};

use super::journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};

/// Result of a loop, as far as its parts have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoopResult {
    pub(super) end: LoopEnd,
    /// Fixes of a review loop, or iterations.
    pub(super) rounds: u32,
}

/// Reason why a loop ends, if it ends after the part that ended last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopEnd {
    /// A review approved, or the condition holds.
    Reached,
    /// An iteration ran out of turns, and `on_soft_failure` completes the loop.
    OutOfTurns,
    /// No round is left.
    OutOfRounds,
    /// A fix failed.
    FixFailed,
}

impl LoopResult {
    /// Returns the result of a loop after one of its parts. `None` if the part decides nothing.
    pub(super) fn after(
        repeat: &PhaseRepeat,
        entry: &JournalEntry,
        how: PartOutcome,
    ) -> Option<LoopResult> {
        let reached_by = |wanted: PartDecision| match entry.decision == Some(wanted) {
            true => LoopEnd::Reached,
            false => LoopEnd::OutOfRounds,
        };
        let (end, rounds) = match (repeat, entry.part) {
            (PhaseRepeat::Review(_), PhasePart::Work) => (reached_by(PartDecision::Approved), 0),
            (PhaseRepeat::Review(_), PhasePart::Recheck(cycle)) => {
                (reached_by(PartDecision::Approved), cycle)
            }
            (PhaseRepeat::Review(_), PhasePart::Fix(cycle)) => match how {
                PartOutcome::Failed | PartOutcome::Soft => (LoopEnd::FixFailed, cycle),
                _ => (LoopEnd::OutOfRounds, cycle),
            },
            (PhaseRepeat::Until(until), PhasePart::Iteration(number))
                if how == PartOutcome::Soft && until.on_soft_failure.completes =>
            {
                (LoopEnd::OutOfTurns, number)
            }
            (PhaseRepeat::Until(_), PhasePart::Iteration(number) | PhasePart::Check(number)) => {
                (reached_by(PartDecision::ConditionMet), number)
            }
            _ => return None,
        };
        Some(LoopResult { end, rounds })
    }

    /// Returns the value of the loop's `output_var`, with Last Light's keys.
    pub(super) fn to_json(self, repeat: &PhaseRepeat) -> Json {
        let LoopResult { end, rounds } = self;
        match repeat {
            PhaseRepeat::Review(_) => {
                json!({ "approved": end == LoopEnd::Reached, "cycles": rounds })
            }
            _ => {
                let is_completed = matches!(end, LoopEnd::Reached | LoopEnd::OutOfTurns);
                json!({ "completed": is_completed, "iterations": rounds })
            }
        }
    }
}
