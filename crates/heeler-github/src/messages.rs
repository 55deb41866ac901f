//! Messages of people on issues and pull requests: their descriptions, comments and comments on lines.
//!
//! Start at [`GithubClient::changed_messages`].

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::github_client::GithubClient;
use crate::github_error::GithubError;
use crate::github_repo::GithubRepo;
use crate::http_exchange::ApiRequestSpec;

/// A message on an issue or pull request. Its texts are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubMessage {
    pub kind: GithubMessageKind,
    /// ID among the messages of its kind. That of a description is the number of the issue.
    pub id: u64,
    /// Number of the issue or pull request.
    pub number: u64,
    pub body: String,
    pub author: GithubAuthor,
    /// Relation of the author to the repository, such as `MEMBER`.
    pub author_association: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Kind of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GithubMessageKind {
    /// The description of an issue or pull request.
    Description { title: String, is_pull_request: bool },
    /// A comment.
    Comment,
    /// A comment on a line of a pull request.
    LineComment { path: String, line: Option<u64> },
}

/// Author of a message, as GitHub authenticated the account. A deleted account has the ID 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GithubAuthor {
    /// ID that does not change, unlike the login.
    pub id: u64,
    pub login: String,
    pub is_bot: bool,
}

/// Messages that a repository lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GithubMessageList {
    Descriptions,
    Comments,
    LineComments,
}

impl GithubMessageList {
    pub const ALL: [GithubMessageList; 3] = [
        GithubMessageList::Descriptions,
        GithubMessageList::Comments,
        GithubMessageList::LineComments,
    ];
}

#[derive(Deserialize)]
struct AuthorAnswer {
    #[serde(default)]
    id: u64,
    login: String,
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct MessageAnswer {
    #[serde(default)]
    id: u64,
    number: Option<u64>,
    title: Option<String>,
    body: Option<String>,
    user: Option<AuthorAnswer>,
    author_association: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
    issue_url: Option<String>,
    pull_request_url: Option<String>,
    pull_request: Option<serde_json::Value>,
    path: Option<String>,
    line: Option<u64>,
}

#[derive(Deserialize)]
struct CreatedAnswer {
    id: u64,
}

impl MessageAnswer {
    /// Returns the message; `None` if its form is not known.
    fn into_message(self) -> Option<GithubMessage> {
        let number_in = |url: &String| url.rsplit('/').next()?.parse::<u64>().ok();
        let (id, number, kind) = match (self.title, self.path) {
            (Some(title), _) => {
                let is_pull_request = self.pull_request.is_some();
                let kind = GithubMessageKind::Description { title, is_pull_request };
                (self.number?, self.number?, kind)
            }
            (None, Some(path)) => {
                let number = self.pull_request_url.as_ref().and_then(number_in)?;
                (self.id, number, GithubMessageKind::LineComment { path, line: self.line })
            }
            (None, None) => {
                let number = self.issue_url.as_ref().and_then(number_in)?;
                (self.id, number, GithubMessageKind::Comment)
            }
        };
        let author = self.user.map(|user| GithubAuthor {
            id: user.id,
            login: user.login,
            is_bot: user.kind.is_some_and(|kind| kind != "User"),
        });
        Some(GithubMessage {
            kind,
            id,
            number,
            body: self.body.unwrap_or_default(),
            author: author.unwrap_or_default(),
            author_association: self.author_association.unwrap_or_default(),
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

impl GithubClient {
    /// Lists the messages of a repository that changed since a time, the one that changed least recently
    /// first.
    pub fn changed_messages(
        &self,
        repo: &GithubRepo,
        list: GithubMessageList,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<GithubMessage>, GithubError> {
        let (parts, what): (&[&str], &str) = match list {
            GithubMessageList::Descriptions => (&["issues"], "issues"),
            GithubMessageList::Comments => (&["issues", "comments"], "comments"),
            GithubMessageList::LineComments => (&["pulls", "comments"], "comments on lines"),
        };
        let mut request =
            self.repo_request("GET", repo, parts, format!("list the {what} of {repo}"));
        {
            let mut query = request.url.query_pairs_mut();
            query.append_pair("sort", "updated").append_pair("direction", "asc");
            query.append_pair("since", &since.to_string());
            if list == GithubMessageList::Descriptions {
                query.append_pair("state", "all");
            }
        }
        self.list_messages(request, limit)
    }

    /// Lists the comments on lines of one pull request that changed since a time.
    pub fn line_comments(
        &self,
        repo: &GithubRepo,
        number: u64,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<GithubMessage>, GithubError> {
        let attempt = format!("list the comments on lines of {repo}#{number}");
        let number = number.to_string();
        let mut request = self.repo_request("GET", repo, &["pulls", &number, "comments"], attempt);
        request.url.query_pairs_mut().append_pair("since", &since.to_string());
        self.list_messages(request, limit)
    }

    /// Lists the comments of one issue or pull request that changed since a time, oldest first.
    pub fn issue_messages(
        &self,
        repo: &GithubRepo,
        number: u64,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<GithubMessage>, GithubError> {
        let attempt = format!("list the comments of {repo}#{number}");
        let number = number.to_string();
        let mut request = self.repo_request("GET", repo, &["issues", &number, "comments"], attempt);
        request.url.query_pairs_mut().append_pair("since", &since.to_string());
        self.list_messages(request, limit)
    }

    /// Returns the description of an issue or pull request.
    pub fn description(
        &self,
        repo: &GithubRepo,
        number: u64,
    ) -> Result<GithubMessage, GithubError> {
        let attempt = format!("read {repo}#{number}");
        let text = number.to_string();
        let request = self.repo_request("GET", repo, &["issues", &text], attempt.clone());
        let answer: MessageAnswer = self.send_json(&request)?;
        let reason = "it has an unexpected form".to_owned();
        answer.into_message().ok_or(GithubError::BadAnswer { attempt, reason })
    }

    /// Replies to a comment on a line; returns the ID of the reply. A call that fails may still have been
    /// executed.
    pub fn reply_to_line_comment(
        &self,
        repo: &GithubRepo,
        number: u64,
        comment: u64,
        body: &str,
    ) -> Result<u64, GithubError> {
        let attempt = format!("reply to comment {comment} of {repo}#{number}");
        let (number, comment) = (number.to_string(), comment.to_string());
        let parts = ["pulls", &number, "comments", &comment, "replies"];
        let request = ApiRequestSpec {
            body: Some(json!({ "body": body })),
            ..self.repo_request("POST", repo, &parts, attempt)
        };
        self.send_json::<CreatedAnswer>(&request).map(|created| created.id)
    }

    fn list_messages(
        &self,
        request: ApiRequestSpec,
        limit: usize,
    ) -> Result<Vec<GithubMessage>, GithubError> {
        self.list(request, limit, |page: Vec<MessageAnswer>| {
            page.into_iter().filter_map(MessageAnswer::into_message).collect()
        })
    }
}
