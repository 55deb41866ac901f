//! How a run ended, as a pure judgement over what the agent said and how its process ended.
//!
//! Start at [`Tally`], which sees every message, and [`Tally::conclude`].

use serde_json::Value as Json;

use crate::ExitReason;
use crate::message::Message;
use crate::run::{Cost, RunError};

/// How an agent's process ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// By itself, or because of a signal that nobody here sent.
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It was ended because it took too long.
    TimedOut {
        /// The limit.
        after_ms: u64,
    },
    /// It was ended because it said nothing for too long.
    Stalled {
        /// The limit.
        after_ms: u64,
    },
    /// A person ended it.
    Cancelled {
        /// Who.
        by: String,
    },
    /// It could not be started.
    NotStarted {
        /// Why.
        reason: String,
    },
    /// Its rows could not be written.
    Disk {
        /// Why.
        reason: String,
    },
    /// A fault of ours.
    Internal {
        /// What.
        reason: String,
    },
}

/// The judgement.
#[derive(Debug, Clone, PartialEq)]
pub struct Conclusion {
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// The model's own reason.
    pub stop_reason: Option<String>,
    /// A short account.
    pub summary: Option<String>,
    /// What went wrong.
    pub error: Option<RunError>,
    /// What was spent.
    pub cost: Cost,
}

/// What is remembered of a run's messages until it is judged.
#[derive(Debug, Clone, Default)]
pub struct Tally {}

impl Tally {
    /// Starts a run that is judged by the result that its agent reports.
    pub fn new() -> Tally {
        Tally::default()
    }

    /// Starts a run that is judged by its exit code: its agent reports no result.
    pub fn by_exit_code() -> Tally {
        Tally::default()
    }

    /// Tells what the session had cost before this run: the last `result` row of its log.
    /// Only old agents need it, whose figures go on counting where the last run stopped.
    #[must_use]
    pub fn after(self, _last_result: &Json) -> Tally {
        self
    }

    /// Takes a message into account.
    pub fn message(&mut self, _message: &Message) {}

    /// Returns what this run has cost so far, if the agent has said.
    pub fn cost_usd(&self) -> Option<f64> {
        None
    }

    /// Judges.
    pub fn conclude(&self, _end: &Ending) -> Conclusion {
        Conclusion {
            exit_reason: ExitReason::Success,
            stop_reason: None,
            summary: None,
            error: None,
            cost: Cost::default(),
        }
    }
}
