//! Result of an import: numbers, and a reason for every item that was refused.
//!
//! Order is kept: kinds by their first occurrence, refusals as they happened. The binary prints
//! the report. Start at [`ImportReport`].

use indexmap::IndexMap;

/// Kind of imported item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportItemKind {
    /// Jobs, and Last Light's executions.
    Job,
    /// Transcripts of jobs and sessions.
    Transcript,
    Session,
    /// Agents and their schedules.
    Agent,
    WorkflowRun,
    /// Approvals of workflows.
    Approval,
    /// Settings that override crons and workflows.
    Override,
    ChatThread,
    ChatMessage,
    /// Transcripts of an interactive session's workers.
    Worker,
    /// Other files, kept unchanged.
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
    /// New in this state directory.
    pub imported: u64,
    /// Present from an earlier import.
    pub existing: u64,
    /// Not imported; [`ImportReport::refused`] has the reasons.
    pub refused: u64,
}

/// An item that was not imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRefusal {
    pub kind: ImportItemKind,
    /// The item's path in the source, or its table and key.
    pub what: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportReport {
    pub by_kind: IndexMap<ImportItemKind, ImportCounts>,
    /// Every item that was not imported.
    pub refused: Vec<ImportRefusal>,
    /// Notes on the numbers: records that were changed by the import, and parts of the source that
    /// Heeler does not support.
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
