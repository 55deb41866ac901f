//! Snapshots and worktrees of real repositories, made by the real git.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start git")]

mod hostile;
mod kill;
mod kinds;
mod limits;
mod listing;
mod model;
mod restore;
mod scene;
mod take;
mod worktree;
