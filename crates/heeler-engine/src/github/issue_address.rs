//! Issues and pull requests by their addresses, and failures of calls about them.

use std::fmt;

use heeler_github::GithubRepo;
use serde::{Deserialize, Serialize};

/// Issue or pull request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IssueAddress {
    pub(crate) owner: String,
    pub(crate) repo: String,
    pub(crate) number: u64,
}

impl IssueAddress {
    pub(super) fn github_repo(&self) -> Result<GithubRepo, String> {
        let name = format!("{}/{}", self.owner, self.repo);
        name.parse().map_err(|error| format!("{name}: {error}"))
    }
}

impl fmt::Display for IssueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.owner, self.repo, self.number)
    }
}

/// Failure of an attempt.
#[derive(Debug)]
pub(crate) struct TaskFailure {
    pub(crate) message: String,
    /// True if a later attempt may succeed.
    pub(crate) is_transient: bool,
}

impl From<heeler_github::GithubError> for TaskFailure {
    fn from(error: heeler_github::GithubError) -> TaskFailure {
        TaskFailure { is_transient: error.is_transient(), message: error.to_string() }
    }
}

impl From<String> for TaskFailure {
    fn from(message: String) -> TaskFailure {
        TaskFailure { message, is_transient: false }
    }
}
