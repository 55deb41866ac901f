//! Git snapshots of a work tree, and worktrees made of them.
//!
//! A snapshot holds every tracked and untracked file of somebody's [`WorkTree`], byte for byte, as a
//! commit in a repository of ours. Nothing is written into the user's repository, and nothing that
//! an agent wrote there is run: git never sees its config, hooks or filters. This crate does not
//! know what a session is. Start at [`Snapshots`].

mod git;
mod snapshot;
mod store;
mod work_tree;

pub use git::{GIT_TIME_MAX, GitError};
pub use snapshot::{
    Commit, EXAMPLES_MAX, LeftOut, NAME_BYTES_MAX, Snapshot, SnapshotName, SnapshotNameError,
};
pub use store::{Diff, DiffTo, Limits, SnapshotError, Snapshots, Unrecorded};
pub use work_tree::{FindError, WorkTree};

/// The longest patch that a [`Diff`] holds.
pub const PATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
