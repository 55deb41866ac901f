//! Git snapshots of a work tree, and worktrees made of them.
//!
//! A snapshot holds every tracked and untracked file of somebody's [`WorkTree`], byte for byte, as a
//! commit in a repository of ours. Nothing is written into the user's repository, and nothing that
//! an agent wrote there is run: git never sees its config, hooks or filters. This crate does not
//! know what a session is. Start at [`Snapshots`].

mod bundle;
mod commit;
mod diff;
mod git;
mod lock;
mod objects;
mod oid;
mod pack;
mod paths;
mod plan;
mod prune;
mod read;
mod snapshot;
mod stat;
mod store;
mod take;
mod walk;
mod work_tree;
mod worktree;

pub use diff::{Diff, DiffTo, PATCH_BYTES_MAX};
pub use git::{GIT_TIME_MAX, GitError};
pub use prune::PRUNE_AGE;
pub use snapshot::{
    Commit, EXAMPLES_MAX, LeftOut, NAME_BYTES_MAX, Snapshot, SnapshotName, SnapshotNameError,
};
pub use store::{
    FILE_BYTES_MAX, Limits, SnapshotError, Snapshots, UNTRACKED_BYTES_MAX, UNTRACKED_FILES_MAX,
};
pub use work_tree::{FindError, WorkTree};
pub use worktree::Unrecorded;
