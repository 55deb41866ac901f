//! Where agents take their work from: issues of a repository.

use std::str::FromStr;

use serde_json::json;

use super::shape::section;
use super::value::{VarName, text_value, word_value};
use crate::words::words;

words! {
    /// The kinds of work source.
    pub enum WorkSourceType ("work source") {
        /// Issues of a GitHub repository.
        Github = "github",
    }
}

word_value!(WorkSourceType);

/// A repository on GitHub: `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoName(String);

impl RepoName {
    /// Returns `owner/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RepoName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<RepoName, &'static str> {
        let fits = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
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
    /// Where the agent takes its work from.
    pub struct WorkSource ("work_source") {
        /// The kind of source; `github` is the only one.
        kind as "type": WorkSourceType,
        /// The repository, as `owner/name`.
        repo: Option<RepoName>,
        /// The labels by which issues are found and claimed.
        labels: WorkLabels = "{}",
        /// Issues with any of these labels are left alone.
        exclude_labels: Vec<String>,
        /// Put the `ready` label back when a job fails.
        cleanup_on_failure: bool = "true",
        /// Remove stale `in_progress` labels at start.
        cleanup_in_progress: Option<bool>,
        /// How the source is reached.
        auth: WorkAuth = "{}",
    }
}

section! {
    /// The labels by which issues are found and claimed.
    pub struct WorkLabels ("work_source.labels") {
        /// Marks an issue that an agent may take.
        ready: String = "ready",
        /// Marks an issue that an agent has taken.
        in_progress: String = "agent-working",
    }
}

section! {
    /// How the work source is reached.
    pub struct WorkAuth ("work_source.auth") {
        /// The environment variable that holds the access token.
        token_env: VarName = "GITHUB_TOKEN",
    }
}
