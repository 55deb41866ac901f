//! What a check-up finds, and what can be done about it.

use std::fmt;

use camino::Utf8PathBuf;
use heeler_model::{JobId, RunId};

use crate::views::View;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Something is not as it should be; nothing is lost by it.
    Warning,
    /// Something is broken or at risk.
    Error,
}

/// Which part of the state directory it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Area {
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

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Area::Database => "database",
            Area::Transcripts => "transcripts",
            Area::Worktrees => "worktrees",
            Area::Views => "views",
            Area::Locks => "locks",
            Area::Permissions => "permissions",
            Area::Disk => "disk",
            Area::TempFiles => "temp files",
            Area::Runs => "runs",
            Area::Versions => "versions",
            Area::Backups => "backups",
        })
    }
}

/// A repair that loses nothing, so that `--fix` may do it unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Takes the permissions of group and others away.
    Permissions(Vec<Utf8PathBuf>),
    /// Removes what a crash left half-written.
    Sweep(Vec<Utf8PathBuf>),
    /// Cuts a torn line off a log and keeps its bytes beside it, or completes it.
    RepairTail(Utf8PathBuf),
    /// Publishes views anew, after taking over what was changed in them.
    Publish(Vec<View>),
    /// Counts jobs and sessions anew.
    Recount,
    /// Marks a job that nobody works on as interrupted.
    Interrupt(JobId),
    /// Takes jobs that wait no longer out of the queue.
    Dequeue(Vec<JobId>),
    /// Frees the money that is set aside for runs that ended.
    Release(Vec<RunId>),
    /// Completes a rebuild that was cut off.
    FinishRebuild,
}

/// One thing that a check-up found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Which part it concerns.
    pub area: Area,
    /// The file or record.
    pub subject: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it.
    pub cure: String,
    /// What `--fix` would do.
    pub fix: Option<Fix>,
}

impl Finding {
    pub(crate) fn new(
        severity: Severity,
        area: Area,
        subject: impl Into<String>,
        problem: impl Into<String>,
    ) -> Finding {
        let (subject, problem) = (subject.into(), problem.into());
        Finding { severity, area, subject, problem, cure: String::new(), fix: None }
    }

    /// Says what the user can do.
    pub(crate) fn cure(mut self, cure: impl Into<String>) -> Finding {
        self.cure = cure.into();
        self
    }

    /// Says what `--fix` does.
    pub(crate) fn fixable(mut self, fix: Fix) -> Finding {
        self.cure = "run `heeler doctor --fix`".to_owned();
        self.fix = Some(fix);
        self
    }
}

/// Names the first of several, and how many more there are.
pub(crate) fn first_of<T: fmt::Display>(items: &[T]) -> String {
    match items {
        [] => String::new(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}
