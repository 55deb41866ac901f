//! The journal of a workflow run: one entry for each part of a phase, with what was decided about it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::words::words;
use crate::{ExitReason, JobId, JobStatus, Name, UnknownWord};

/// A part of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
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

impl Part {
    /// Returns what Last Light calls this part of a phase.
    pub fn label(self, phase: &Name) -> String {
        match self {
            Part::Work | Part::Skip | Part::Reset | Part::Gate(0) => phase.to_string(),
            Part::Fix(number) => format!("{phase}_fix_{number}"),
            Part::Recheck(number) => format!("{phase}_recheck_{number}"),
            Part::Iteration(number) | Part::Gate(number) => format!("{phase}_iter_{number}"),
            Part::Check(number) => format!("{phase}_iter_{number}_check"),
            Part::Items => format!("{phase}_items"),
            Part::Item(number) => format!("{phase}_item_{number}"),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Work => f.write_str("work"),
            Part::Fix(number) => write!(f, "fix:{number}"),
            Part::Recheck(number) => write!(f, "recheck:{number}"),
            Part::Iteration(number) => write!(f, "iteration:{number}"),
            Part::Check(number) => write!(f, "check:{number}"),
            Part::Items => f.write_str("items"),
            Part::Item(number) => write!(f, "item:{number}"),
            Part::Gate(number) => write!(f, "gate:{number}"),
            Part::Skip => f.write_str("skip"),
            Part::Reset => f.write_str("reset"),
        }
    }
}

impl FromStr for Part {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Part, UnknownWord> {
        let unknown = || UnknownWord {
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
            ("work", None) => Ok(Part::Work),
            ("items", None) => Ok(Part::Items),
            ("skip", None) => Ok(Part::Skip),
            ("reset", None) => Ok(Part::Reset),
            ("fix", Some(number)) => Ok(Part::Fix(number)),
            ("recheck", Some(number)) => Ok(Part::Recheck(number)),
            ("iteration", Some(number)) => Ok(Part::Iteration(number)),
            ("check", Some(number)) => Ok(Part::Check(number)),
            ("item", Some(number)) => Ok(Part::Item(number)),
            ("gate", Some(number)) => Ok(Part::Gate(number)),
            _ => Err(unknown()),
        }
    }
}

/// How a part ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
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

impl How {
    /// Says how a part ended, by what the record says of its job; none while that goes on.
    pub fn of_job(status: JobStatus, reason: Option<ExitReason>, interrupted: bool) -> Option<How> {
        match (status, reason) {
            (JobStatus::Pending | JobStatus::Running, _) => None,
            (JobStatus::Cancelled, _) => Some(How::Cancelled),
            (JobStatus::Failed, _) if interrupted => Some(How::Interrupted),
            (_, Some(ExitReason::MaxTurns)) => Some(How::Soft),
            (JobStatus::Completed, _) => Some(How::Succeeded),
            (JobStatus::Failed, _) => Some(How::Failed),
        }
    }
}

words! {
    /// What was decided about a part when it ended.
    pub enum Decision ("decision") {
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

impl Decision {
    /// Says whether a part has failed by this, however it ended.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            Decision::Blocked
                | Decision::Unmarked
                | Decision::Unusable
                | Decision::Impossible
                | Decision::GaveUp
                | Decision::Unjudged
        )
    }
}

/// What the journal says of one part.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The place of its phase in the workflow.
    pub phase: usize,
    /// Which part of it.
    pub part: Part,
    /// Counts the entries of a run, by their beginning.
    pub seq: u64,
    /// The job that does it, where one does.
    pub job: Option<JobId>,
    /// How it ended; none while it goes on.
    pub how: Option<How>,
    /// What was decided about it.
    pub decision: Option<Decision>,
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
            Part::Work,
            Part::Fix(2),
            Part::Recheck(3),
            Part::Iteration(4),
            Part::Check(5),
            Part::Items,
            Part::Item(6),
            Part::Gate(0),
            Part::Skip,
            Part::Reset,
        ];
        for part in parts {
            assert_eq!(part.to_string().parse::<Part>().unwrap(), part);
        }
        for text in ["", "fix", "fix:", "fix:x", "work:1", "nothing", "item:-1"] {
            assert!(text.parse::<Part>().is_err(), "{text:?}");
        }
    }
}
