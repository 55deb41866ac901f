//! The journal of a workflow run: one entry for each part of a phase, with what was decided about it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::words::words;
use crate::{ExitReason, JobId, JobStatus, LocalName, UnknownWordError};

/// A part of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PhasePart {
    /// The work itself; in a review loop, the first review.
    Work,
    /// A fix that a review asked for.
    Fix(u32),
    /// The review after a fix.
    Recheck(u32),
    /// One pass of a loop.
    Iteration(u32),
    /// The command that says whether a pass was the last.
    Check(u32),
    /// The list of items is known.
    Items,
    /// One item of a list.
    Item(u32),
    /// Somebody is asked; 0 at the end of the phase, else in the pass of that number.
    Gate(u32),
    /// The phase is left out.
    Skip,
    /// The phase is done anew: nothing before counts.
    Reset,
}

impl PhasePart {
    /// Returns what Last Light calls this part of a phase.
    pub fn label(self, phase: &LocalName) -> String {
        match self {
            PhasePart::Work | PhasePart::Skip | PhasePart::Reset | PhasePart::Gate(0) => {
                phase.to_string()
            }
            PhasePart::Fix(number) => format!("{phase}_fix_{number}"),
            PhasePart::Recheck(number) => format!("{phase}_recheck_{number}"),
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
            expected: "work, skip, reset, items, fix:N, recheck:N, iteration:N, check:N, item:N, \
                gate:N"
                .to_owned(),
        };
        let (word, number) = match text.split_once(':') {
            Some((word, number)) => (word, Some(number.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (word, number) {
            ("work", None) => Ok(PhasePart::Work),
            ("items", None) => Ok(PhasePart::Items),
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

/// How a part ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartOutcome {
    /// Well; a gate: with consent, or an answer.
    Succeeded,
    /// Badly; a gate: without consent.
    Failed,
    /// Neither: it ran out of turns or said nothing.
    Soft,
    /// It was cut off by a crash: it is done again.
    Interrupted,
    /// A person ended it.
    Cancelled,
}

impl PartOutcome {
    /// Says how a part ended, by what the record says of its job; none while that goes on.
    pub fn from_job(
        status: JobStatus,
        reason: Option<ExitReason>,
        interrupted: bool,
    ) -> Option<PartOutcome> {
        match (status, reason) {
            (JobStatus::Pending | JobStatus::Running, _) => None,
            (JobStatus::Cancelled, _) => Some(PartOutcome::Cancelled),
            (JobStatus::Failed, _) if interrupted => Some(PartOutcome::Interrupted),
            (_, Some(ExitReason::MaxTurns)) => Some(PartOutcome::Soft),
            (JobStatus::Completed, _) => Some(PartOutcome::Succeeded),
            (JobStatus::Failed, _) => Some(PartOutcome::Failed),
        }
    }
}

words! {
    /// What was decided about a part when it ended.
    pub enum PartDecision ("decision") {
        /// A review approves.
        Approved = "approved",
        /// A review wants changes.
        RequestChanges = "request_changes",
        /// A pass of a loop was the last.
        ConditionMet = "condition_met",
        /// It was not.
        ConditionNotMet = "condition_not_met",
        /// It is yet to be found out, by a command.
        ConditionOpen = "condition_open",
        /// It said BLOCKED.
        Blocked = "blocked",
        /// It lacks the text that it must have.
        Unmarked = "unmarked",
        /// What it said cannot be used.
        Unusable = "unusable",
        /// It cannot be done.
        Impossible = "impossible",
        /// It was cut off too often.
        GaveUp = "gave_up",
        /// It was over only after its run was, and nobody looked at it.
        Unjudged = "unjudged",
        /// The fleet was stopped: it is done again.
        Stopped = "stopped",
    }
}

impl PartDecision {
    /// Says whether a part has failed by this, however it ended.
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

/// What the journal says of one part.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// The place of its phase in the workflow.
    pub phase: usize,
    /// Which part of it.
    pub part: PhasePart,
    /// Counts the entries of a run, by their beginning.
    pub seq: u64,
    /// The job that does it, where one does.
    pub job: Option<JobId>,
    /// How it ended; none while it goes on.
    pub outcome: Option<PartOutcome>,
    /// What was decided about it.
    pub decision: Option<PartDecision>,
    /// What it said, or was answered, cut to a bound.
    pub output: Option<Arc<str>>,
    /// What went wrong.
    pub error: Option<String>,
    /// What it cost, in millionths of a dollar; while it goes on, what it may cost.
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
