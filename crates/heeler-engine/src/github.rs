//! Work on GitHub: searches for crons, and posts of workflow runs.
//!
//! A task is recorded as an effect in the transaction that decides on it, executed by a thread that
//! may wait, and removed in the transaction that records its result. So a daemon that dies meanwhile
//! is followed by one that executes the task again; a post is looked for before it is made. Start at
//! [`GithubTask`].

mod connection;
mod review_post;
mod search;
mod task;
mod thread_post;

pub(crate) use connection::GithubConnections;
pub use connection::{GithubAccessReport, check_github_access};
pub(crate) use search::GithubSearchResult;
pub(crate) use task::{
    GithubLane, GithubTask, GithubTaskOutcome, GithubTaskResult, IssueAddress, ReviewTask,
    execute_task,
};
