//! Basic types of this crate: commit ID, snapshot name, snapshot, and its omissions. Start at
//! [`Snapshot`].

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Length limit of a snapshot name.
pub const NAME_BYTES_MAX: usize = 200;

/// Limit on example paths of an omission.
pub const EXAMPLES_MAX: usize = 5;

/// Commit ID in hex: 40 digits, or 64 if the repository uses SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct CommitId(String);

impl CommitId {
    /// Parses a complete ID.
    pub fn parse(text: &str) -> Option<CommitId> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let whole = matches!(text.len(), 40 | 64) && text.bytes().all(is_hex);
        whole.then(|| CommitId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CommitId {
    type Error = String;

    fn try_from(text: String) -> Result<CommitId, String> {
        CommitId::parse(&text).ok_or_else(|| format!("{text:?} is not a complete commit ID"))
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of a snapshot: parts of letters, digits, `-`, `_` and `.`, separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct SnapshotName(String);

/// Text that is not a valid snapshot name.
#[derive(Debug, Error)]
#[error("{0:?} cannot name a snapshot; use parts of letters, digits, - and _, with / between them")]
pub struct SnapshotNameError(pub String);

impl SnapshotName {
    pub fn parse(text: &str) -> Result<SnapshotName, SnapshotNameError> {
        let fits = text.len() <= NAME_BYTES_MAX && text.split('/').all(is_part);
        if fits { Ok(SnapshotName(text.to_owned())) } else { Err(SnapshotNameError(text.into())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if the text is valid both as a part of a git ref name and as a file name.
fn is_part(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !part.is_empty()
        && part.bytes().all(plain)
        // A leading dash would be taken for an option by git.
        && !part.starts_with(['.', '-'])
        && !part.ends_with('.')
        && !part.ends_with(".lock")
        && !part.contains("..")
}

/// Recorded state of a work tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Commit in Heeler's repository; its tree is the work tree.
    pub commit: CommitId,
    /// Commit of `HEAD`; `None` if there was no commit yet.
    pub base: Option<CommitId>,
    /// Checked-out branch; `None` if `HEAD` was detached.
    pub branch: Option<String>,
    /// Files on disk that are not in the snapshot.
    pub omissions: Vec<SnapshotOmission>,
}

/// Part of a work tree that a snapshot does not hold. It has at most [`EXAMPLES_MAX`] examples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SnapshotOmission {
    /// Files and directories that `.gitignore` or `info/exclude` names; a directory counts once.
    Ignored { count: u64, examples: Vec<String> },
    /// Repository inside the work tree that is not a submodule.
    NestedRepository { path: String },
    /// Submodule: its commit is recorded, its files are not.
    Submodule { path: String },
    /// Large files of Git LFS; the pointer is recorded in place of the content.
    Lfs { count: u64, examples: Vec<String> },
    /// Directories without a file, which git cannot represent.
    EmptyFolder { count: u64, examples: Vec<String> },
    /// Files above the limits. Of a tracked file, the last staged version is recorded.
    TooLarge {
        count: u64,
        /// Total size in bytes.
        bytes: u64,
        examples: Vec<String>,
    },
    /// Tracked files that a sparse checkout excludes.
    NotCheckedOut { count: u64, examples: Vec<String> },
    /// Files and directories that could not be read, or kept changing.
    Unreadable { count: u64, examples: Vec<String> },
    /// Sockets, pipes and devices.
    Special { count: u64, examples: Vec<String> },
    /// Files in conflict: their content is recorded, the three sides of the merge are not.
    Conflict { count: u64, examples: Vec<String> },
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
