//! Git snapshots of a work tree, and worktrees created from them.
//!
//! A snapshot holds every tracked and untracked file of a user's [`WorkTree`], byte for byte, as a
//! commit in a repository of Heeler. Nothing is written into the user's git directory, and nothing
//! that an agent wrote there is executed: git never sees its config, hooks or filters. This crate
//! has no notion of sessions. Start at [`SnapshotStore`].

mod bundle;
mod commit;
mod diff;
mod file_listing;
mod file_reader;
mod git_command;
mod listing_cache;
mod lock;
mod object_id;
mod objects;
mod pack_writer;
mod path_map;
mod pending_folder;
mod prune;
mod repository_config;
mod restore;
mod restore_step;
mod snapshot;
mod snapshot_cache;
mod snapshot_plan;
mod snapshot_store;
mod take_snapshot;
mod walk;
mod work_tree;
mod worktree;

pub use diff::{DiffTarget, PATCH_BYTES_MAX, SnapshotDiff};
pub use git_command::{GIT_TIME_MAX, GitError};
pub use prune::PRUNE_AGE;
pub use restore::{FileRestoration, RestoreMode, RestoredFile, RestoredFileAction};
pub use snapshot::{
    CommitId, EXAMPLES_MAX, NAME_BYTES_MAX, Snapshot, SnapshotName, SnapshotNameError,
    SnapshotOmission,
};
pub use snapshot_store::{
    FILE_BYTES_MAX, SnapshotError, SnapshotLimits, SnapshotStore, UNTRACKED_BYTES_MAX,
    UNTRACKED_FILES_MAX,
};
pub use work_tree::{WorkTree, WorkTreeFindError};
pub use worktree::UnrecordedPolicy;
