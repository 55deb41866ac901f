//! Work sources of agents: issues of a repository.

use std::str::FromStr;

use serde_json::json;

use crate::reader::{ConfigDialect, ConfigReader};
use crate::shape::section;
use crate::value::{SpannedValue, VarName, text_value, word_value};
use crate::words::words;
use crate::work_access::WorkSourceAccess;

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
        /// Give an issue back when its job fails: the label `ready` is set again.
        cleanup_on_failure: bool = "true",
        /// Give issues back that have the `in_progress` label but no job of this fleet. Do not use it if several fleets
        /// share the label.
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
        /// Environment variable that holds the access token. It must be that of `github`, whose access is used.
        token_env: Option<VarName>,
    }
}

/// Checks that a work source can be used. In a file of herdctl, which never uses it, it is dropped
/// with a warning.
pub(crate) fn check_work_source(
    source: &SpannedValue<WorkSource>,
    reader: &mut ConfigReader,
) -> Option<WorkSource> {
    let problem = find_problem(&source.value, &reader.work_access);
    let Some((message, help)) = problem else { return Some(source.value.clone()) };
    match reader.dialect {
        ConfigDialect::Heeler => {
            reader.error(source.at, message).expected("no work can be taken").help(help);
        }
        ConfigDialect::Herdctl => {
            reader.warn(source.at, message).expected("it has no effect").help(help);
        }
    }
    None
}

fn find_problem(source: &WorkSource, access: &WorkSourceAccess) -> Option<(String, String)> {
    let Some(repo) = source.repo.as_ref().map(RepoName::as_str) else {
        let help = "name the repository whose issues are the work: `repo: owner/name`";
        return Some(("`work_source` names no `repo`".to_owned(), help.to_owned()));
    };
    if access.repos.is_empty() {
        let message = "`work_source` needs access to GitHub".to_owned();
        let help = "set `github` in the fleet file, with `token_env` or `app`, and `repos`";
        return Some((message, help.to_owned()));
    }
    if !access.repos.iter().any(|known| known.eq_ignore_ascii_case(repo)) {
        let message = format!("{repo} is not in `github.repos`");
        return Some((message, "add it there, to let the fleet write to it".to_owned()));
    }
    let named = source.auth.token_env.as_ref().map(VarName::as_str)?;
    (access.token_env.as_deref() != Some(named)).then(|| {
        let message = format!("`work_source` names the token {named}, and `github` another access");
        (message, "remove `auth`: the access of `github` is used".to_owned())
    })
}
