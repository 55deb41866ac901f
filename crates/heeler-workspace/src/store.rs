//! The repository of ours that holds the snapshots of one repository's work trees.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::DiskError;
use jiff::Timestamp;
use thiserror::Error;

use crate::git::GitError;
use crate::snapshot::{Commit, LeftOut, Snapshot, SnapshotName};
use crate::work_tree::{FindError, WorkTree};

/// Why something about snapshots was not done.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Git could not be run, or did not do as told.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The work tree's repository could not be read.
    #[error(transparent)]
    Find(#[from] FindError),
    /// A file of ours could not be written durably.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Some other file could not be used.
    #[error("cannot {attempt} {path}")]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// The file or folder.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// There is no such repository of ours.
    #[error("there is no snapshot repository {key} in {dir}")]
    NoRepository {
        /// Where it was looked for.
        dir: Utf8PathBuf,
        /// Its name.
        key: String,
    },
    /// A commit that is no snapshot of this repository.
    #[error("{commit} is not a snapshot that is kept here")]
    NotASnapshot {
        /// The commit.
        commit: String,
    },
    /// The place for a worktree is taken.
    #[error("{at} exists already; name a folder that does not")]
    Taken {
        /// The folder.
        at: Utf8PathBuf,
    },
    /// The folder is no worktree of ours.
    #[error("{at} is not a worktree of ours")]
    NotAWorktree {
        /// The folder.
        at: Utf8PathBuf,
    },
    /// Removing the worktree would lose what no snapshot can hold.
    #[error(
        "{at} holds what a snapshot cannot keep; move it away or say that it may go: {}",
        said(left_out)
    )]
    WouldLose {
        /// The folder.
        at: Utf8PathBuf,
        /// What would be lost. The snapshot of the rest has been taken.
        left_out: Vec<LeftOut>,
    },
    /// A file that is no export of ours, or is damaged.
    #[error("{path} holds no snapshots: {reason}")]
    BadExport {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn said(left_out: &[LeftOut]) -> String {
    left_out.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// How much a snapshot takes in. What is past it is [`LeftOut::TooLarge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest file that is not in git already as it is.
    pub file_bytes_max: u64,
    /// How many untracked files.
    pub untracked_files_max: usize,
    /// How many bytes of untracked files together.
    pub untracked_bytes_max: u64,
}

/// What a snapshot is compared with.
#[derive(Debug, Clone, Copy)]
pub enum DiffTo<'a> {
    /// Another snapshot, or any commit that is kept here.
    Commit(&'a Commit),
    /// The files as they are now.
    Now(&'a WorkTree),
}

/// What changed between two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diff {
    /// A line for each file, and a total.
    pub summary: String,
    /// The unified diff, whose bytes are those of the files.
    pub patch: Vec<u8>,
    /// Whether the patch was cut at [`crate::PATCH_BYTES_MAX`].
    pub cut: bool,
}

/// What to do about files that no snapshot can hold when a worktree is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrecorded {
    /// Refuse to remove it when there are any, ignored files and empty folders aside.
    Keep,
    /// They may go.
    Discard,
}

/// The snapshots of one repository's work trees.
#[derive(Debug, Clone)]
pub struct Snapshots {
    dir: Utf8PathBuf,
    limits: Limits,
}

#[expect(unused_variables, reason = "the surface, for those who build on it; bodies follow")]
impl Snapshots {
    /// Opens the snapshots of a work tree's repository under `dir`, making their repository if it is missing.
    ///
    /// A worktree of ours belongs to the repository that it was made in.
    pub fn open(dir: &Utf8Path, tree: &WorkTree) -> Result<Snapshots, SnapshotError> {
        Err(SnapshotError::NoRepository { dir: dir.to_owned(), key: String::new() })
    }

    /// Opens a repository of ours by its key; the user's may be gone.
    pub fn open_key(dir: &Utf8Path, key: &str) -> Result<Snapshots, SnapshotError> {
        Err(SnapshotError::NoRepository { dir: dir.to_owned(), key: key.to_owned() })
    }

    /// Says which repositories of ours are under `dir`, by key.
    pub fn keys(dir: &Utf8Path) -> Result<Vec<String>, SnapshotError> {
        Ok(Vec::new())
    }

    /// Names this repository among those under the same folder.
    pub fn key(&self) -> &str {
        self.dir.file_name().unwrap_or_default()
    }

    /// Sets other limits than the usual.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Snapshots {
        self.limits = limits;
        self
    }

    /// Records a work tree as it is now. The name, if taken, then means this snapshot.
    pub fn take(
        &self,
        tree: &WorkTree,
        name: &SnapshotName,
        note: &str,
        now: Timestamp,
    ) -> Result<Snapshot, SnapshotError> {
        Err(SnapshotError::NotASnapshot { commit: name.to_string() })
    }

    /// Finds a snapshot by name.
    pub fn find(&self, name: &SnapshotName) -> Result<Option<Snapshot>, SnapshotError> {
        Ok(None)
    }

    /// Lists the names that are `prefix` or below it, all with `None`, with their commits.
    pub fn list(
        &self,
        prefix: Option<&SnapshotName>,
    ) -> Result<Vec<(SnapshotName, Commit)>, SnapshotError> {
        Ok(Vec::new())
    }

    /// Drops names. The space is given back by [`Snapshots::prune`].
    pub fn forget(&self, names: &[SnapshotName]) -> Result<(), SnapshotError> {
        Ok(())
    }

    /// Drops the objects that neither a snapshot nor a worktree of ours needs, unless they are young.
    pub fn prune(&self, now: Timestamp) -> Result<(), SnapshotError> {
        Ok(())
    }

    /// Compares a snapshot with another, or with the files as they are now.
    pub fn diff(&self, from: &Commit, to: DiffTo<'_>) -> Result<Diff, SnapshotError> {
        Err(SnapshotError::NotASnapshot { commit: from.to_string() })
    }

    /// Makes a worktree of our repository with the files of a snapshot, byte for byte.
    ///
    /// `HEAD` is detached at the snapshot's base, and what was staged is staged, so that `git status`
    /// says what it said then.
    pub fn add_worktree(
        &self,
        snapshot: &Commit,
        at: &Utf8Path,
    ) -> Result<WorkTree, SnapshotError> {
        Err(SnapshotError::NotASnapshot { commit: snapshot.to_string() })
    }

    /// Lists the worktrees of this repository that are there.
    pub fn worktrees(&self) -> Result<Vec<Utf8PathBuf>, SnapshotError> {
        Ok(Vec::new())
    }

    /// Records a worktree of ours under `name`, then removes it. Returns that snapshot.
    pub fn remove_worktree(
        &self,
        at: &Utf8Path,
        name: &SnapshotName,
        unrecorded: Unrecorded,
        now: Timestamp,
    ) -> Result<Snapshot, SnapshotError> {
        Err(SnapshotError::NotAWorktree { at: at.to_owned() })
    }

    /// Writes snapshots with all that they need to a new file, a git bundle.
    pub fn export(&self, names: &[SnapshotName], to: &Utf8Path) -> Result<(), SnapshotError> {
        Ok(())
    }

    /// Takes over the snapshots of an export into the repository `key` under `dir`, which is made
    /// if it is missing. Returns their names.
    pub fn import(
        dir: &Utf8Path,
        key: &str,
        from: &Utf8Path,
    ) -> Result<(Snapshots, Vec<SnapshotName>), SnapshotError> {
        Err(SnapshotError::NoRepository { dir: dir.to_owned(), key: key.to_owned() })
    }
}
