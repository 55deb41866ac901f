//! What an import did, in numbers and, for everything it could not take, in words.
//!
//! Order is kept: kinds appear as they were first met, refusals as they happened. Printing is the
//! binary's. Start at [`ImportReport`].

use indexmap::IndexMap;

/// What kind of thing was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportItemKind {
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

impl ImportItemKind {
    /// Returns the plural, as a report prints it.
    pub fn plural(self) -> &'static str {
        match self {
            ImportItemKind::Job => "jobs",
            ImportItemKind::Transcript => "transcripts",
            ImportItemKind::Session => "sessions",
            ImportItemKind::Agent => "agents",
            ImportItemKind::WorkflowRun => "workflow runs",
            ImportItemKind::Approval => "approvals",
            ImportItemKind::Override => "overrides",
            ImportItemKind::ChatThread => "chat threads",
            ImportItemKind::ChatMessage => "chat messages",
            ImportItemKind::Worker => "worker transcripts",
            ImportItemKind::File => "other files",
        }
    }
}

/// Numbers of one kind. `read` is the sum of the other three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportCounts {
    /// Found in the source.
    pub read: u64,
    /// New here.
    pub imported: u64,
    /// Here from an earlier import.
    pub existing: u64,
    /// Not taken; [`ImportReport::refused`] says why.
    pub refused: u64,
}

/// One thing that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRefusal {
    /// What kind of thing it is.
    pub kind: ImportItemKind,
    /// Which one: its path in the source, or its table and key.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// Numbers by kind.
    pub by_kind: IndexMap<ImportItemKind, ImportCounts>,
    /// Everything that was not taken.
    pub refused: Vec<ImportRefusal>,
    /// What a reader of the numbers should know: records that were changed on the way in, and
    /// parts of the source that have no place here.
    pub notes: Vec<String>,
}

impl ImportReport {
    /// Returns the sum over all kinds.
    pub fn total(&self) -> ImportCounts {
        self.by_kind.values().fold(ImportCounts::default(), |sum, tally| ImportCounts {
            read: sum.read + tally.read,
            imported: sum.imported + tally.imported,
            existing: sum.existing + tally.existing,
            refused: sum.refused + tally.refused,
        })
    }

    /// Returns the numbers of one kind.
    pub fn counts_for(&self, kind: ImportItemKind) -> ImportCounts {
        self.by_kind.get(&kind).copied().unwrap_or_default()
    }

    pub(crate) fn count_imported(&mut self, kind: ImportItemKind) {
        let tally = self.by_kind.entry(kind).or_default();
        tally.read += 1;
        tally.imported += 1;
    }

    pub(crate) fn count_existing(&mut self, kind: ImportItemKind) {
        let tally = self.by_kind.entry(kind).or_default();
        tally.read += 1;
        tally.existing += 1;
    }

    pub(crate) fn refuse(
        &mut self,
        kind: ImportItemKind,
        what: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let tally = self.by_kind.entry(kind).or_default();
        tally.read += 1;
        tally.refused += 1;
        self.refused.push(ImportRefusal { kind, what: what.into(), reason: reason.into() });
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}
