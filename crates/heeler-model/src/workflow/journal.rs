//! Journal of a workflow run: one entry per part, with its outcome and decision.
//!
//! Start at [`JournalEntry`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use heeler_config::words;
use serde::{Deserialize, Serialize};

use crate::{ExitReason, JobId, JobStatus, LocalName, UnknownWordError};

/// Part of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PhasePart {
    /// The work itself; in a review loop, the first review.
    Work,
    /// Fix that a review requested.
    Fix(u32),
    /// Review after a fix.
    Recheck(u32),
    /// Iteration of a loop.
    Iteration(u32),
    /// Command that decides whether an iteration was the last.
    Check(u32),
    /// Evaluation of the item list.
    Items,
    /// Item of the list.
    Item(u32),
    /// Gate: 0 at the end of the phase, otherwise in the iteration or cycle of that number.
    Gate(u32),
    /// The daemon posts the result of the work.
    Post,
    /// The phase is skipped.
    Skip,
    /// The phase starts over: its earlier entries no longer count.
    Reset,
}

impl PhasePart {
    /// Returns Last Light's name for this part of a phase.
    pub fn label(self, phase: &LocalName) -> String {
        match self {
            // Last Light has one name for a phase's own rows, whatever they record.
            PhasePart::Work
            | PhasePart::Post
            | PhasePart::Skip
            | PhasePart::Reset
            | PhasePart::Gate(0) => phase.to_string(),
            PhasePart::Fix(number) => format!("{phase}_fix_{number}"),
            PhasePart::Recheck(number) => format!("{phase}_recheck_{number}"),
            // A gate within a loop belongs to the iteration after which it asks.
            PhasePart::Iteration(number) | PhasePart::Gate(number) => {
                format!("{phase}_iter_{number}")
            }
            PhasePart::Check(number) => format!("{phase}_iter_{number}_check"),
            PhasePart::Items => format!("{phase}_items"),
            PhasePart::Item(number) => format!("{phase}_item_{number}"),
        }
    }
}

impl fmt::Display for PhasePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PhasePart::Work => f.write_str("work"),
            PhasePart::Fix(number) => write!(f, "fix:{number}"),
            PhasePart::Recheck(number) => write!(f, "recheck:{number}"),
            PhasePart::Iteration(number) => write!(f, "iteration:{number}"),
            PhasePart::Check(number) => write!(f, "check:{number}"),
            PhasePart::Items => f.write_str("items"),
            PhasePart::Item(number) => write!(f, "item:{number}"),
            PhasePart::Gate(number) => write!(f, "gate:{number}"),
            PhasePart::Post => f.write_str("post"),
            PhasePart::Skip => f.write_str("skip"),
            PhasePart::Reset => f.write_str("reset"),
        }
    }
}

impl FromStr for PhasePart {
    type Err = UnknownWordError;

    fn from_str(text: &str) -> Result<PhasePart, UnknownWordError> {
        let unknown = || UnknownWordError {
            what: "part of a phase",
            word: text.to_owned(),
            expected:
                "work, post, skip, reset, items, fix:N, recheck:N, iteration:N, check:N, item:N, \
                gate:N"
                    .to_owned(),
        };
        let (word, number) = match text.split_once(':') {
            // A number that does not fit is a damaged row, not another part.
            Some((word, number)) => (word, Some(number.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (word, number) {
            ("work", None) => Ok(PhasePart::Work),
            ("items", None) => Ok(PhasePart::Items),
            ("post", None) => Ok(PhasePart::Post),
            ("skip", None) => Ok(PhasePart::Skip),
            ("reset", None) => Ok(PhasePart::Reset),
            ("fix", Some(number)) => Ok(PhasePart::Fix(number)),
            ("recheck", Some(number)) => Ok(PhasePart::Recheck(number)),
            ("iteration", Some(number)) => Ok(PhasePart::Iteration(number)),
            ("check", Some(number)) => Ok(PhasePart::Check(number)),
            ("item", Some(number)) => Ok(PhasePart::Item(number)),
            ("gate", Some(number)) => Ok(PhasePart::Gate(number)),
            _ => Err(unknown()),
        }
    }
}

/// Outcome of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartOutcome {
    /// Success; for a gate, consent or an answer.
    Succeeded,
    /// Failure; for a gate, refusal.
    Failed,
    /// The job ran out of turns: neither success nor failure.
    Soft,
    /// Interrupted by a crash; the part is repeated.
    Interrupted,
    Cancelled,
}

impl PartOutcome {
    /// Returns the outcome of a part from its job's record. `None` if the job has not ended.
    pub fn from_job(
        status: JobStatus,
        reason: Option<ExitReason>,
        interrupted: bool,
    ) -> Option<PartOutcome> {
        match (status, reason) {
            (JobStatus::Pending | JobStatus::Running, _) => None,
            (JobStatus::Cancelled, _) => Some(PartOutcome::Cancelled),
            // Checked before the exit reason: a crash says nothing about the work.
            (JobStatus::Failed, _) if interrupted => Some(PartOutcome::Interrupted),
            // A job that ran out of turns may have succeeded or failed; the loop decides what it
            // means.
            (_, Some(ExitReason::MaxTurns)) => Some(PartOutcome::Soft),
            (JobStatus::Completed, _) => Some(PartOutcome::Succeeded),
            (JobStatus::Failed, _) => Some(PartOutcome::Failed),
        }
    }
}

words! {
    /// Decision about a part when it ended.
    pub enum PartDecision ("decision") {
        /// A review approved.
        Approved = "approved",
        /// A review requested changes.
        RequestChanges = "request_changes",
        /// The iteration was the last one.
        ConditionMet = "condition_met",
        /// The iteration was not the last one.
        ConditionNotMet = "condition_not_met",
        /// A command will decide whether the iteration was the last one.
        ConditionOpen = "condition_open",
        /// The output contains BLOCKED.
        Blocked = "blocked",
        /// The output lacks the required marker.
        Unmarked = "unmarked",
        /// The output cannot be evaluated.
        Unusable = "unusable",
        /// The part cannot be executed.
        Impossible = "impossible",
        /// The part was interrupted too often.
        GaveUp = "gave_up",
        /// The part ended after its run, and its output was not judged.
        Unjudged = "unjudged",
        /// The fleet was stopped; the part is repeated.
        Stopped = "stopped",
    }
}

impl PartDecision {
    /// Returns the verdict of a review's output, if it has one.
    pub fn of_review(output: &str) -> Option<PartDecision> {
        super::output::parse_verdict(output)
    }

    /// Returns true if a part with this decision counts as failed, regardless of its outcome.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            PartDecision::Blocked
                | PartDecision::Unmarked
                | PartDecision::Unusable
                | PartDecision::Impossible
                | PartDecision::GaveUp
                | PartDecision::Unjudged
        )
    }
}

/// Journal entry of one part.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// Index of the phase in the workflow.
    pub phase: usize,
    pub part: PhasePart,
    /// Number of the entry within the run, in the order in which parts began.
    pub seq: u64,
    /// Job that executes the part, if any.
    pub job: Option<JobId>,
    /// Outcome. `None` while the part is in progress.
    pub outcome: Option<PartOutcome>,
    pub decision: Option<PartDecision>,
    /// Output of the part, or answer to the gate; truncated.
    pub output: Option<Arc<str>>,
    pub error: Option<String>,
    /// Cost in millionths of a US dollar. While the part is in progress, the most it may cost.
    pub micros: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_they_are_written() {
        let parts = [
            PhasePart::Work,
            PhasePart::Fix(2),
            PhasePart::Recheck(3),
            PhasePart::Iteration(4),
            PhasePart::Check(5),
            PhasePart::Items,
            PhasePart::Item(6),
            PhasePart::Gate(0),
            PhasePart::Post,
            PhasePart::Skip,
            PhasePart::Reset,
        ];
        for part in parts {
            assert_eq!(part.to_string().parse::<PhasePart>().unwrap(), part);
        }
        for text in ["", "fix", "fix:", "fix:x", "work:1", "nothing", "item:-1"] {
            assert!(text.parse::<PhasePart>().is_err(), "{text:?}");
        }
    }
}
