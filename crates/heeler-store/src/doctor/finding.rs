//! Findings of `heeler doctor`, and their repairs.

use std::fmt;

use camino::Utf8PathBuf;
use heeler_model::{JobId, RunId};

use crate::views::PublishedView;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingSeverity {
    /// Information; nothing is wrong.
    Note,
    /// A fault without loss of data.
    Warning,
    /// Damage, or a risk of it.
    Error,
}

/// Part of the state directory that a finding concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FindingArea {
    /// `heeler.db`.
    Database,
    /// Transcripts of jobs and sessions.
    Transcripts,
    /// Working directories of forks.
    Worktrees,
    Views,
    Locks,
    /// Access to the files.
    Permissions,
    /// The disk and its file system.
    Disk,
    /// Temp files that a crash left.
    TempFiles,
    /// Directories of runs.
    Runs,
    /// Versions of the database and of SQLite.
    Versions,
    Backups,
    /// Machines of a fleet with several hosts.
    Hosts,
}

impl fmt::Display for FindingArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FindingArea::Database => "database",
            FindingArea::Transcripts => "transcripts",
            FindingArea::Worktrees => "worktrees",
            FindingArea::Views => "views",
            FindingArea::Locks => "locks",
            FindingArea::Permissions => "permissions",
            FindingArea::Disk => "disk",
            FindingArea::TempFiles => "temp files",
            FindingArea::Runs => "runs",
            FindingArea::Versions => "versions",
            FindingArea::Backups => "backups",
            FindingArea::Hosts => "hosts",
        })
    }
}

/// A repair that loses nothing, so that `--fix` may perform it without asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairAction {
    /// Removes the permissions of group and others.
    RestrictPermissions(Vec<Utf8PathBuf>),
    /// Removes temp files that a crash left.
    RemoveTempFiles(Vec<Utf8PathBuf>),
    /// Completes the torn last line of a transcript, or cuts it off and saves its bytes in a file
    /// next to it.
    RepairTail(Utf8PathBuf),
    /// Publishes views again, after applying hand edits.
    RepublishViews(Vec<PublishedView>),
    /// Recounts jobs and sessions.
    Recount,
    /// Marks a job without a running process as interrupted.
    Interrupt(JobId),
    /// Removes jobs from the queue that no longer wait.
    Dequeue(Vec<JobId>),
    /// Releases the reservations of runs that have ended.
    ReleaseReservations(Vec<RunId>),
    /// Completes an interrupted rebuild.
    FinishRebuild,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: FindingSeverity,
    pub area: FindingArea,
    /// The file or record concerned.
    pub subject: String,
    pub problem: String,
    pub remedy: String,
    /// Repair that `--fix` performs.
    pub repair: Option<RepairAction>,
}

impl Finding {
    pub(crate) fn new(
        severity: FindingSeverity,
        area: FindingArea,
        subject: impl Into<String>,
        problem: impl Into<String>,
    ) -> Finding {
        let (subject, problem) = (subject.into(), problem.into());
        Finding { severity, area, subject, problem, remedy: String::new(), repair: None }
    }

    /// Sets the action that the user can take.
    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = remedy.into();
        self
    }

    /// Sets the repair that `--fix` performs.
    pub(crate) fn with_repair(mut self, fix: RepairAction) -> Finding {
        self.remedy = "run `heeler doctor --fix`".to_owned();
        self.repair = Some(fix);
        self
    }
}

/// Names the first of several items, and the number of the others.
pub(crate) fn describe_first<T: fmt::Display>(items: &[T]) -> String {
    match items {
        [] => String::new(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}
