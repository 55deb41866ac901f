//! What an import did, in numbers and, for everything it could not take, in words.
//!
//! Order is kept: kinds appear as they were first met, refusals as they happened. Printing is the
//! binary's. Start at [`Report`].

use indexmap::IndexMap;

/// What kind of thing was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Jobs, and Last Light's executions.
    Job,
    /// Logs of jobs and sessions.
    Transcript,
    /// Sessions.
    Session,
    /// Agents and their schedules.
    Agent,
    /// Runs of workflows.
    WorkflowRun,
    /// Approvals asked for in workflows.
    Approval,
    /// Switches of crons and workflows.
    Override,
    /// Chat threads.
    ChatThread,
    /// Chat messages.
    ChatMessage,
    /// Transcripts of an interactive session's workers.
    Worker,
    /// Other files, kept as they are.
    File,
}

impl Kind {
    /// Returns the plural, as a report prints it.
    pub fn plural(self) -> &'static str {
        match self {
            Kind::Job => "jobs",
            Kind::Transcript => "transcripts",
            Kind::Session => "sessions",
            Kind::Agent => "agents",
            Kind::WorkflowRun => "workflow runs",
            Kind::Approval => "approvals",
            Kind::Override => "overrides",
            Kind::ChatThread => "chat threads",
            Kind::ChatMessage => "chat messages",
            Kind::Worker => "worker transcripts",
            Kind::File => "other files",
        }
    }
}

/// Numbers of one kind. `read` is the sum of the other three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Found in the source.
    pub read: u64,
    /// New here.
    pub imported: u64,
    /// Here from an earlier import.
    pub already_there: u64,
    /// Not taken; [`Report::refused`] says why.
    pub refused: u64,
}

/// One thing that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of thing it is.
    pub kind: Kind,
    /// Which one: its path in the source, or its table and key.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Numbers by kind.
    pub by_kind: IndexMap<Kind, Tally>,
    /// Everything that was not taken.
    pub refused: Vec<Refusal>,
    /// What a reader of the numbers should know: records that were changed on the way in, and
    /// parts of the source that have no place here.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns the sum over all kinds.
    pub fn total(&self) -> Tally {
        self.by_kind.values().fold(Tally::default(), |sum, tally| Tally {
            read: sum.read + tally.read,
            imported: sum.imported + tally.imported,
            already_there: sum.already_there + tally.already_there,
            refused: sum.refused + tally.refused,
        })
    }

    /// Returns the numbers of one kind.
    pub fn of(&self, kind: Kind) -> Tally {
        self.by_kind.get(&kind).copied().unwrap_or_default()
    }

    pub(crate) fn imported(&mut self, kind: Kind) {
        let tally = self.by_kind.entry(kind).or_default();
        tally.read += 1;
        tally.imported += 1;
    }

    pub(crate) fn already_there(&mut self, kind: Kind) {
        let tally = self.by_kind.entry(kind).or_default();
        tally.read += 1;
        tally.already_there += 1;
    }

    pub(crate) fn refuse(
        &mut self,
        kind: Kind,
        what: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let tally = self.by_kind.entry(kind).or_default();
        tally.read += 1;
        tally.refused += 1;
        self.refused.push(Refusal { kind, what: what.into(), reason: reason.into() });
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}
