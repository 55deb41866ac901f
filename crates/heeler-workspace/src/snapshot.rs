//! The words of this crate: a commit, a snapshot's name, a snapshot, and what it leaves out.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest name of a snapshot.
pub const NAME_BYTES_MAX: usize = 200;

/// How many paths are named as examples of what was left out.
pub const EXAMPLES_MAX: usize = 5;

/// A commit's object id in hex: 40 digits, or 64 where the repository uses SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct CommitId(String);

impl CommitId {
    /// Reads an id; `None` when it is not a whole one.
    pub fn parse(text: &str) -> Option<CommitId> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let whole = matches!(text.len(), 40 | 64) && text.bytes().all(is_hex);
        whole.then(|| CommitId(text.to_owned()))
    }

    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CommitId {
    type Error = String;

    fn try_from(text: String) -> Result<CommitId, String> {
        CommitId::parse(&text).ok_or_else(|| format!("{text:?} is no whole commit id"))
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a snapshot is found by: parts of letters, digits, `-`, `_` and `.`, with `/` between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct SnapshotName(String);

/// A text that cannot name a snapshot.
#[derive(Debug, Error)]
#[error("{0:?} cannot name a snapshot; use parts of letters, digits, - and _, with / between them")]
pub struct SnapshotNameError(pub String);

impl SnapshotName {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<SnapshotName, SnapshotNameError> {
        let fits = text.len() <= NAME_BYTES_MAX && text.split('/').all(is_part);
        if fits { Ok(SnapshotName(text.to_owned())) } else { Err(SnapshotNameError(text.into())) }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says whether git takes this as one part of a ref's name, and we as a file's.
fn is_part(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !part.is_empty()
        && part.bytes().all(plain)
        && !part.starts_with(['.', '-'])
        && !part.ends_with('.')
        && !part.ends_with(".lock")
        && !part.contains("..")
}

/// One recorded state of a work tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit in our repository whose tree is the work tree.
    pub commit: CommitId,
    /// The commit that `HEAD` was at; `None` where nothing was committed yet.
    pub base: Option<CommitId>,
    /// The branch that was checked out; `None` when `HEAD` was detached.
    pub branch: Option<String>,
    /// What is on disk and not in the snapshot.
    pub omissions: Vec<SnapshotOmission>,
}

/// Something of a work tree that a snapshot does not hold. Examples are at most [`EXAMPLES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SnapshotOmission {
    /// Files and folders that `.gitignore` or `info/exclude` names; a folder counts once.
    Ignored {
        /// How many.
        count: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// A repository inside the work tree that is no submodule.
    NestedRepository {
        /// Its folder.
        path: String,
    },
    /// A submodule: which commit it is at is recorded, its files are not.
    Submodule {
        /// Its folder.
        path: String,
    },
    /// Large files of Git LFS whose pointer is recorded in place of the content.
    Lfs {
        /// How many.
        count: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// Folders without a file: git has no word for them.
    EmptyFolder {
        /// How many.
        count: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// Files past the limits. Of a tracked one, the version that was last staged is recorded.
    TooLarge {
        /// How many.
        count: u64,
        /// Their bytes.
        bytes: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// Tracked files that a sparse checkout keeps away.
    NotCheckedOut {
        /// How many.
        count: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// Files and folders that could not be read, or changed all the while.
    Unreadable {
        /// How many.
        count: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// Sockets, pipes and devices.
    Special {
        /// How many.
        count: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// Files in conflict: their content is recorded, the three sides of the merge are not.
    Conflict {
        /// How many.
        count: u64,
        /// Some of them.
        examples: Vec<String>,
    },
}

impl fmt::Display for SnapshotOmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, count, examples) = match self {
            SnapshotOmission::NestedRepository { path } => {
                return write!(f, "{path} is a repository of its own and is not recorded");
            }
            SnapshotOmission::Submodule { path } => {
                return write!(f, "{path} is a submodule: its commit is recorded, not its files");
            }
            SnapshotOmission::Ignored { count, examples } => ("ignored", count, examples),
            SnapshotOmission::Lfs { count, examples } => {
                ("large LFS files recorded as pointers", count, examples)
            }
            SnapshotOmission::EmptyFolder { count, examples } => ("empty folders", count, examples),
            SnapshotOmission::TooLarge { count, examples, .. } => {
                ("past the size limits", count, examples)
            }
            SnapshotOmission::NotCheckedOut { count, examples } => {
                ("not checked out", count, examples)
            }
            SnapshotOmission::Unreadable { count, examples } => {
                ("could not be read", count, examples)
            }
            SnapshotOmission::Special { count, examples } => {
                ("sockets, pipes and devices", count, examples)
            }
            SnapshotOmission::Conflict { count, examples } => {
                ("in conflict: recorded without the sides of the merge", count, examples)
            }
        };
        write!(f, "{count} {what}: {}", examples.join(", "))?;
        if *count > examples.len() as u64 { write!(f, ", …") } else { Ok(()) }
    }
}
