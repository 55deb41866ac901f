//! Work on GitHub: searches for crons, and posts of workflow runs.
//!
//! A task is recorded as an effect in the transaction that decides on it, executed by a thread that
//! may wait, and removed in the transaction that records its result. So a daemon that dies meanwhile
//! is followed by one that executes the task again; a post is looked for before it is made. Start at
//! [`GithubTask`].

mod agent_token;
mod chat_message;
mod connection;
mod execute;
mod issue_address;
mod missed_deliveries;
mod review_post;
mod search;
mod task;
mod thread_post;
mod work;

pub(crate) use agent_token::add_agent_token;
pub(crate) use chat_message::{edit_chat_message, post_chat_message};
pub use connection::{GithubAccessReport, check_github_access};
pub(crate) use connection::{GithubConnection, GithubConnections};
pub(crate) use execute::execute_task;
pub(crate) use issue_address::{IssueAddress, TaskFailure};
pub(crate) use missed_deliveries::{DELIVERY_MARGIN, fetch_missed_calls, wants_missed_deliveries};
pub(crate) use search::GithubSearchResult;
pub(crate) use task::{GithubLane, GithubTask, GithubTaskOutcome, GithubTaskResult, ReviewTask};
pub(crate) use work::{ClaimLabels, FoundWork, WorkClaim, WorkIssue, WorkReport};
