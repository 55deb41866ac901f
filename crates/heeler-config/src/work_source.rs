//! Work sources of agents: issues of a repository.

use std::str::FromStr;

use serde_json::json;

use crate::shape::section;
use crate::value::{VarName, text_value, word_value};
use crate::words::words;

words! {
    /// Type of work source.
    pub enum WorkSourceType ("work source") {
        /// Issues of a GitHub repository.
        Github = "github",
    }
}

word_value!(WorkSourceType);

/// Repository on GitHub: `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoName(String);

impl RepoName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RepoName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<RepoName, &'static str> {
        let fits = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            // Only characters that need no escape in an address.
            !part.is_empty() && part.bytes().all(allowed)
        };
        match text.split_once('/') {
            Some((owner, name)) if fits(owner) && fits(name) => Ok(RepoName(text.to_owned())),
            _ => Err("write it as owner/name"),
        }
    }
}

text_value! {
    RepoName: "a repository", "`octocat/hello`", Some("^[a-zA-Z0-9_.-]+/[a-zA-Z0-9_.-]+$"),
        |repo| json!(repo.as_str());
}

section! {
    /// Source from which the agent takes its work.
    pub struct WorkSource ("work_source") {
        /// Type of source; `github` is the only value.
        kind as "type": WorkSourceType,
        /// Repository, as `owner/name`.
        repo: Option<RepoName>,
        /// Labels by which issues are found and claimed.
        labels: WorkLabels = "{}",
        /// Ignore issues with any of these labels.
        exclude_labels: Vec<String>,
        /// Restore the `ready` label when a job fails.
        cleanup_on_failure: bool = "true",
        /// Remove stale `in_progress` labels at start.
        cleanup_in_progress: Option<bool>,
        /// Authentication with the source.
        auth: WorkAuth = "{}",
    }
}

section! {
    /// Labels by which issues are found and claimed.
    pub struct WorkLabels ("work_source.labels") {
        /// Label of an issue that an agent may take.
        ready: String = "ready",
        /// Label of an issue that an agent has taken.
        in_progress: String = "agent-working",
    }
}

section! {
    /// Authentication with the work source.
    pub struct WorkAuth ("work_source.auth") {
        /// Environment variable that holds the access token.
        token_env: VarName = "GITHUB_TOKEN",
    }
}
