//! What a check-up finds, and what can be done about it.

use std::fmt;

use camino::Utf8PathBuf;
use heeler_model::{JobId, RunId};

use crate::views::PublishedView;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingSeverity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Something is not as it should be; nothing is lost by it.
    Warning,
    /// Something is broken or at risk.
    Error,
}

/// Which part of the state directory it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FindingArea {
    /// `heeler.db`.
    Database,
    /// Logs of jobs and sessions.
    Transcripts,
    /// Files of forks.
    Worktrees,
    /// YAML and JSON files made from the database.
    Views,
    /// Lock files.
    Locks,
    /// Who can read the files.
    Permissions,
    /// The disk and its file system.
    Disk,
    /// What a crash left half-written.
    TempFiles,
    /// Folders of runs.
    Runs,
    /// Versions of the database and of SQLite.
    Versions,
    /// Backups.
    Backups,
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
        })
    }
}

/// A repair that loses nothing, so that `--fix` may do it unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairAction {
    /// Takes the permissions of group and others away.
    RestrictPermissions(Vec<Utf8PathBuf>),
    /// Removes what a crash left half-written.
    RemoveTempFiles(Vec<Utf8PathBuf>),
    /// Cuts a torn line off a log and keeps its bytes beside it, or completes it.
    RepairTail(Utf8PathBuf),
    /// Publishes views anew, after taking over what was changed in them.
    RepublishViews(Vec<PublishedView>),
    /// Counts jobs and sessions anew.
    Recount,
    /// Marks a job that nobody works on as interrupted.
    Interrupt(JobId),
    /// Takes jobs that wait no longer out of the queue.
    Dequeue(Vec<JobId>),
    /// Frees the money that is set aside for runs that ended.
    ReleaseReservations(Vec<RunId>),
    /// Completes a rebuild that was cut off.
    FinishRebuild,
}

/// One thing that a check-up found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: FindingSeverity,
    /// Which part it concerns.
    pub area: FindingArea,
    /// The file or record.
    pub subject: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
    /// What `--fix` would do.
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

    /// Says what the user can do.
    pub(crate) fn with_remedy(mut self, cure: impl Into<String>) -> Finding {
        self.remedy = cure.into();
        self
    }

    /// Says what `--fix` does.
    pub(crate) fn with_repair(mut self, fix: RepairAction) -> Finding {
        self.remedy = "run `heeler doctor --fix`".to_owned();
        self.repair = Some(fix);
        self
    }
}

/// Names the first of several, and how many more there are.
pub(crate) fn describe_first<T: fmt::Display>(items: &[T]) -> String {
    match items {
        [] => String::new(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}
