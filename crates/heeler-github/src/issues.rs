//! Issues, comments, labels and reactions.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::github_client::GithubClient;
use crate::github_error::GithubError;
use crate::github_repo::GithubRepo;
use crate::http_exchange::ApiRequestSpec;

/// Account in a response. A deleted account is absent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct AccountAnswer {
    pub(crate) login: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct LabelAnswer {
    pub(crate) name: String,
}

pub(crate) fn login(account: Option<AccountAnswer>) -> String {
    account.map(|account| account.login).unwrap_or_default()
}

pub(crate) fn label_names(labels: Vec<LabelAnswer>) -> Vec<String> {
    labels.into_iter().map(|label| label.name).collect()
}

/// An issue. Its texts are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubIssue {
    pub number: u64,
    pub title: String,
    pub body: String,
    /// Login of the author; empty if the account was deleted.
    pub author: String,
    pub labels: Vec<String>,
    pub html_url: String,
    pub is_open: bool,
    pub updated_at: Timestamp,
    /// Relation of the author to the repository, such as `MEMBER`.
    pub author_association: String,
}

#[derive(Deserialize)]
struct IssueAnswer {
    number: u64,
    title: String,
    body: Option<String>,
    user: Option<AccountAnswer>,
    labels: Vec<LabelAnswer>,
    html_url: String,
    state: String,
    updated_at: Timestamp,
    author_association: Option<String>,
    pull_request: Option<serde_json::Value>,
}

impl From<IssueAnswer> for GithubIssue {
    fn from(answer: IssueAnswer) -> GithubIssue {
        GithubIssue {
            number: answer.number,
            title: answer.title,
            body: answer.body.unwrap_or_default(),
            author: login(answer.user),
            labels: label_names(answer.labels),
            html_url: answer.html_url,
            is_open: answer.state == "open",
            updated_at: answer.updated_at,
            author_association: answer.author_association.unwrap_or_default(),
        }
    }
}

/// Change of the labels of an issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubLabelEvent {
    pub label: String,
    /// Login of the person who changed it; empty if the account was deleted.
    pub actor: String,
    /// False if the label was removed.
    pub is_added: bool,
    pub at: Timestamp,
}

#[derive(Deserialize)]
struct IssueEventAnswer {
    event: String,
    actor: Option<AccountAnswer>,
    label: Option<LabelAnswer>,
    created_at: Timestamp,
}

/// Selection of issues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IssueListFilter {
    /// Only issues with all of these labels.
    pub labels: Vec<String>,
}

/// A comment on an issue or pull request. Its text is untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubComment {
    pub id: u64,
    pub body: String,
    /// Login of the author; empty if the account was deleted.
    pub author: String,
}

#[derive(Deserialize)]
struct CommentAnswer {
    id: u64,
    body: Option<String>,
    user: Option<AccountAnswer>,
}

impl From<CommentAnswer> for GithubComment {
    fn from(answer: CommentAnswer) -> GithubComment {
        let CommentAnswer { id, body, user } = answer;
        GithubComment { id, body: body.unwrap_or_default(), author: login(user) }
    }
}

/// Reaction to a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReactionKind {
    ThumbsUp,
    ThumbsDown,
    Eyes,
    Rocket,
    Confused,
}

impl ReactionKind {
    fn as_str(self) -> &'static str {
        match self {
            ReactionKind::ThumbsUp => "+1",
            ReactionKind::ThumbsDown => "-1",
            ReactionKind::Eyes => "eyes",
            ReactionKind::Rocket => "rocket",
            ReactionKind::Confused => "confused",
        }
    }
}

impl GithubClient {
    pub(crate) fn repo_request(
        &self,
        method: &'static str,
        repo: &GithubRepo,
        parts: &[&str],
        attempt: String,
    ) -> ApiRequestSpec {
        let path: Vec<&str> =
            ["repos", repo.owner(), repo.name()].into_iter().chain(parts.iter().copied()).collect();
        ApiRequestSpec::new(method, self.address(&path), attempt)
    }

    /// Lists open issues, the one that changed least recently first. Pull requests are left out.
    pub fn open_issues(
        &self,
        repo: &GithubRepo,
        filter: &IssueListFilter,
        limit: usize,
    ) -> Result<Vec<GithubIssue>, GithubError> {
        let mut request =
            self.repo_request("GET", repo, &["issues"], format!("list the issues of {repo}"));
        {
            let mut query = request.url.query_pairs_mut();
            query.append_pair("state", "open");
            query.append_pair("sort", "updated").append_pair("direction", "asc");
            if !filter.labels.is_empty() {
                query.append_pair("labels", &filter.labels.join(","));
            }
        }
        self.list(request, limit, |page: Vec<IssueAnswer>| {
            // GitHub lists pull requests as issues.
            let issues = page.into_iter().filter(|issue| issue.pull_request.is_none());
            issues.map(GithubIssue::from).collect()
        })
    }

    pub fn issue(&self, repo: &GithubRepo, number: u64) -> Result<GithubIssue, GithubError> {
        let attempt = format!("read {repo}#{number}");
        let number = number.to_string();
        let request = self.repo_request("GET", repo, &["issues", &number], attempt);
        self.send_json::<IssueAnswer>(&request).map(GithubIssue::from)
    }

    /// Lists the comments of an issue or pull request that changed since a time, oldest first.
    pub fn comments(
        &self,
        repo: &GithubRepo,
        number: u64,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<GithubComment>, GithubError> {
        let attempt = format!("list the comments of {repo}#{number}");
        let number = number.to_string();
        let mut request = self.repo_request("GET", repo, &["issues", &number, "comments"], attempt);
        request.url.query_pairs_mut().append_pair("since", &since.to_string());
        self.list(request, limit, |page: Vec<CommentAnswer>| {
            page.into_iter().map(GithubComment::from).collect()
        })
    }

    /// Adds a comment to an issue or pull request. A call that fails may still have been executed.
    pub fn create_comment(
        &self,
        repo: &GithubRepo,
        number: u64,
        body: &str,
    ) -> Result<GithubComment, GithubError> {
        let attempt = format!("comment on {repo}#{number}");
        let number = number.to_string();
        let request = ApiRequestSpec {
            body: Some(json!({ "body": body })),
            ..self.repo_request("POST", repo, &["issues", &number, "comments"], attempt)
        };
        self.send_json::<CommentAnswer>(&request).map(GithubComment::from)
    }

    /// Replaces the text of a comment.
    pub fn update_comment(
        &self,
        repo: &GithubRepo,
        comment: u64,
        body: &str,
    ) -> Result<(), GithubError> {
        let attempt = format!("edit comment {comment} of {repo}");
        let comment = comment.to_string();
        let request = ApiRequestSpec {
            body: Some(json!({ "body": body })),
            is_repeatable: true,
            ..self.repo_request("PATCH", repo, &["issues", "comments", &comment], attempt)
        };
        self.send_only(&request)
    }

    /// Reacts to a comment. A second equal reaction changes nothing.
    pub fn react_to_comment(
        &self,
        repo: &GithubRepo,
        comment: u64,
        kind: ReactionKind,
    ) -> Result<(), GithubError> {
        let attempt = format!("react to comment {comment} of {repo}");
        let comment = comment.to_string();
        let parts = ["issues", "comments", &comment, "reactions"];
        let request = ApiRequestSpec {
            body: Some(json!({ "content": kind.as_str() })),
            is_repeatable: true,
            ..self.repo_request("POST", repo, &parts, attempt)
        };
        self.send_only(&request)
    }

    /// Lists the changes of an issue's labels, oldest first.
    pub fn label_events(
        &self,
        repo: &GithubRepo,
        number: u64,
        limit: usize,
    ) -> Result<Vec<GithubLabelEvent>, GithubError> {
        let attempt = format!("list the events of {repo}#{number}");
        let number = number.to_string();
        let request = self.repo_request("GET", repo, &["issues", &number, "events"], attempt);
        self.list(request, limit, |page: Vec<IssueEventAnswer>| {
            let events = page.into_iter().filter_map(|event| {
                let is_added = match event.event.as_str() {
                    "labeled" => true,
                    "unlabeled" => false,
                    _ => return None,
                };
                let (actor, at) = (login(event.actor), event.created_at);
                Some(GithubLabelEvent { label: event.label?.name, actor, is_added, at })
            });
            events.collect()
        })
    }

    /// Closes an issue as completed.
    pub fn close_issue(&self, repo: &GithubRepo, number: u64) -> Result<(), GithubError> {
        let attempt = format!("close {repo}#{number}");
        let number = number.to_string();
        let request = ApiRequestSpec {
            body: Some(json!({ "state": "closed", "state_reason": "completed" })),
            is_repeatable: true,
            ..self.repo_request("PATCH", repo, &["issues", &number], attempt)
        };
        self.send_only(&request)
    }

    /// Adds labels. Labels that it has already stay.
    pub fn add_labels(
        &self,
        repo: &GithubRepo,
        number: u64,
        labels: &[&str],
    ) -> Result<(), GithubError> {
        let attempt = format!("label {repo}#{number}");
        let number = number.to_string();
        let request = ApiRequestSpec {
            body: Some(json!({ "labels": labels })),
            is_repeatable: true,
            ..self.repo_request("POST", repo, &["issues", &number, "labels"], attempt)
        };
        self.send_only(&request)
    }

    /// Removes a label. It is no error if the label is not there.
    pub fn remove_label(
        &self,
        repo: &GithubRepo,
        number: u64,
        label: &str,
    ) -> Result<(), GithubError> {
        let attempt = format!("remove the label `{label}` of {repo}#{number}");
        let number = number.to_string();
        let parts = ["issues", &number, "labels", label];
        match self.send_only(&self.repo_request("DELETE", repo, &parts, attempt)) {
            Err(GithubError::NotFound { .. }) => Ok(()),
            result => result,
        }
    }
}
