//! Pull requests, their checks and their reviews.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::github_client::GithubClient;
use crate::github_error::GithubError;
use crate::github_repo::GithubRepo;
use crate::http_exchange::ApiRequestSpec;
use crate::issues::{AccountAnswer, LabelAnswer, label_names, login};

/// Most checks of a commit that are read.
const CHECKS_MAX: usize = 1_000;

/// A pull request. Its texts are untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubPullRequest {
    pub number: u64,
    pub title: String,
    pub body: String,
    /// Login of the author; empty if the account was deleted.
    pub author: String,
    /// Relation of the author to the repository, such as `MEMBER`.
    pub author_association: String,
    pub is_draft: bool,
    pub labels: Vec<String>,
    pub html_url: String,
    /// Branch that is to be merged, and its last commit.
    pub head_ref: String,
    pub head_sha: String,
    /// Branch into which it is to be merged.
    pub base_ref: String,
    /// GitHub's judgement, such as `clean` or `dirty`. Only a single pull request has it; GitHub
    /// computes it later and says `unknown` until then.
    pub mergeable_state: Option<String>,
}

#[derive(Deserialize)]
struct BranchAnswer {
    #[serde(rename = "ref")]
    name: String,
    sha: String,
}

#[derive(Deserialize)]
struct PullRequestAnswer {
    number: u64,
    title: String,
    body: Option<String>,
    user: Option<AccountAnswer>,
    author_association: Option<String>,
    #[serde(default)]
    draft: bool,
    #[serde(default)]
    labels: Vec<LabelAnswer>,
    html_url: String,
    head: BranchAnswer,
    base: BranchAnswer,
    mergeable_state: Option<String>,
}

impl From<PullRequestAnswer> for GithubPullRequest {
    fn from(answer: PullRequestAnswer) -> GithubPullRequest {
        GithubPullRequest {
            number: answer.number,
            title: answer.title,
            body: answer.body.unwrap_or_default(),
            author: login(answer.user),
            author_association: answer.author_association.unwrap_or_default(),
            is_draft: answer.draft,
            labels: label_names(answer.labels),
            html_url: answer.html_url,
            head_ref: answer.head.name,
            head_sha: answer.head.sha,
            base_ref: answer.base.name,
            mergeable_state: answer.mergeable_state,
        }
    }
}

/// Conclusion of all checks of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckConclusion {
    /// There are no checks.
    Absent,
    /// At least one has not ended.
    Pending,
    Passing,
    /// All have ended, and at least one has failed.
    Failing,
}

/// State of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SingleCheck {
    Pending,
    Passed,
    Failed,
}

#[derive(Deserialize)]
struct CheckRunPage {
    check_runs: Vec<CheckRunAnswer>,
}

#[derive(Deserialize)]
struct CheckRunAnswer {
    status: String,
    conclusion: Option<String>,
    app: Option<CheckAppAnswer>,
}

#[derive(Deserialize)]
struct CheckAppAnswer {
    slug: Option<String>,
}

impl CheckRunAnswer {
    fn state(&self) -> SingleCheck {
        match (self.status.as_str(), self.conclusion.as_deref()) {
            ("completed", Some("success" | "neutral" | "skipped")) => SingleCheck::Passed,
            // Whatever conclusion GitHub may add is no success.
            ("completed", _) => SingleCheck::Failed,
            _ => SingleCheck::Pending,
        }
    }
}

#[derive(Deserialize)]
struct CombinedStatusAnswer {
    statuses: Vec<CommitStatusAnswer>,
}

#[derive(Deserialize)]
struct CommitStatusAnswer {
    state: String,
}

impl CommitStatusAnswer {
    fn state(&self) -> SingleCheck {
        match self.state.as_str() {
            "success" => SingleCheck::Passed,
            "pending" => SingleCheck::Pending,
            _ => SingleCheck::Failed,
        }
    }
}

fn conclude(checks: &[SingleCheck]) -> CheckConclusion {
    if checks.is_empty() {
        CheckConclusion::Absent
    } else if checks.contains(&SingleCheck::Pending) {
        CheckConclusion::Pending
    } else if checks.contains(&SingleCheck::Failed) {
        CheckConclusion::Failing
    } else {
        CheckConclusion::Passing
    }
}

/// Verdict of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewEvent {
    Approve,
    RequestChanges,
    Comment,
}

impl ReviewEvent {
    fn as_str(self) -> &'static str {
        match self {
            ReviewEvent::Approve => "APPROVE",
            ReviewEvent::RequestChanges => "REQUEST_CHANGES",
            ReviewEvent::Comment => "COMMENT",
        }
    }
}

/// Version of a file in a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiffSide {
    Old,
    New,
}

impl DiffSide {
    fn as_str(self) -> &'static str {
        match self {
            DiffSide::Old => "LEFT",
            DiffSide::New => "RIGHT",
        }
    }
}

/// Comment on a line of the changed files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewComment {
    pub path: String,
    pub side: DiffSide,
    pub line: u32,
    /// First line, if the comment is about several.
    pub start_line: Option<u32>,
    pub body: String,
}

/// Review to be posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewDraft {
    pub event: ReviewEvent,
    pub body: String,
    /// Commit that was reviewed; later commits do not count.
    pub commit: Option<String>,
    pub comments: Vec<ReviewComment>,
}

impl ReviewDraft {
    fn to_body(&self) -> Json {
        let comments = self.comments.iter().map(|comment| {
            let mut json = json!({
                "path": comment.path,
                "line": comment.line,
                "side": comment.side.as_str(),
                "body": comment.body,
            });
            if let Some(start) = comment.start_line.filter(|start| *start < comment.line) {
                json["start_line"] = Json::from(start);
                json["start_side"] = Json::from(comment.side.as_str());
            }
            json
        });
        let mut body = json!({
            "event": self.event.as_str(),
            "body": self.body,
            "comments": comments.collect::<Json>(),
        });
        if let Some(commit) = &self.commit {
            body["commit_id"] = Json::from(commit.as_str());
        }
        body
    }
}

/// A changed file of a pull request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GithubChangedFile {
    #[serde(rename = "filename")]
    pub path: String,
    /// Diff of the file. Absent for a binary file or a large diff.
    pub patch: Option<String>,
}

impl GithubChangedFile {
    /// Returns the lines on which GitHub accepts comments: those that the diff shows.
    pub fn diff_lines(&self) -> Vec<(DiffSide, u32)> {
        let (mut old, mut new) = (0_u32, 0_u32);
        let mut lines = Vec::new();
        for text in self.patch.as_deref().unwrap_or_default().lines() {
            if let Some((old_start, new_start)) = parse_hunk(text) {
                (old, new) = (old_start, new_start);
                continue;
            }
            match text.as_bytes().first() {
                Some(b'+') => {
                    lines.push((DiffSide::New, new));
                    new = new.saturating_add(1);
                }
                Some(b'-') => {
                    lines.push((DiffSide::Old, old));
                    old = old.saturating_add(1);
                }
                // A note about a missing line end.
                Some(b'\\') => {}
                _ => {
                    lines.extend([(DiffSide::Old, old), (DiffSide::New, new)]);
                    (old, new) = (old.saturating_add(1), new.saturating_add(1));
                }
            }
        }
        lines
    }
}

/// Returns the first lines of a hunk from its header: `@@ -10,7 +12,8 @@`.
fn parse_hunk(text: &str) -> Option<(u32, u32)> {
    let (ranges, _) = text.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let first = |range: &str| range.split(',').next()?.parse().ok();
    Some((first(old)?, first(new)?))
}

/// A posted review. Its text is untrusted unless the author is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubReview {
    pub id: u64,
    pub body: String,
    /// Login of the author; empty if the account was deleted.
    pub author: String,
    /// `APPROVED`, `CHANGES_REQUESTED`, `COMMENTED` and so on.
    pub state: String,
    pub commit: String,
}

#[derive(Deserialize)]
struct ReviewAnswer {
    id: u64,
    body: Option<String>,
    user: Option<AccountAnswer>,
    state: String,
    commit_id: Option<String>,
}

impl From<ReviewAnswer> for GithubReview {
    fn from(answer: ReviewAnswer) -> GithubReview {
        GithubReview {
            id: answer.id,
            body: answer.body.unwrap_or_default(),
            author: login(answer.user),
            state: answer.state,
            commit: answer.commit_id.unwrap_or_default(),
        }
    }
}

impl GithubClient {
    /// Lists open pull requests, oldest first.
    pub fn open_pull_requests(
        &self,
        repo: &GithubRepo,
        limit: usize,
    ) -> Result<Vec<GithubPullRequest>, GithubError> {
        let attempt = format!("list the pull requests of {repo}");
        let mut request = self.repo_request("GET", repo, &["pulls"], attempt);
        request.url.query_pairs_mut().extend_pairs([
            ("state", "open"),
            ("sort", "created"),
            ("direction", "asc"),
        ]);
        self.list(request, limit, |page: Vec<PullRequestAnswer>| {
            page.into_iter().map(GithubPullRequest::from).collect()
        })
    }

    pub fn pull_request(
        &self,
        repo: &GithubRepo,
        number: u64,
    ) -> Result<GithubPullRequest, GithubError> {
        let attempt = format!("read the pull request {repo}#{number}");
        let number = number.to_string();
        let request = self.repo_request("GET", repo, &["pulls", &number], attempt);
        self.send_json::<PullRequestAnswer>(&request).map(GithubPullRequest::from)
    }

    /// Lists the changed files of a pull request.
    pub fn changed_files(
        &self,
        repo: &GithubRepo,
        number: u64,
        limit: usize,
    ) -> Result<Vec<GithubChangedFile>, GithubError> {
        let attempt = format!("list the files of {repo}#{number}");
        let number = number.to_string();
        let request = self.repo_request("GET", repo, &["pulls", &number, "files"], attempt);
        self.list(request, limit, |page: Vec<GithubChangedFile>| page)
    }

    /// Returns the conclusion of all checks and statuses of a commit. Checks of the App `except`
    /// do not count.
    pub fn check_conclusion(
        &self,
        repo: &GithubRepo,
        commit: &str,
        except: Option<&str>,
    ) -> Result<CheckConclusion, GithubError> {
        let attempt = format!("read the checks of {repo} at {commit}");
        let parts = ["commits", commit, "check-runs"];
        let request = self.repo_request("GET", repo, &parts, attempt.clone());
        let mut checks = self.list(request, CHECKS_MAX, |page: CheckRunPage| {
            let counted = page.check_runs.into_iter().filter(|run| {
                let slug = run.app.as_ref().and_then(|app| app.slug.as_deref());
                except.is_none() || slug != except
            });
            counted.map(|run| run.state()).collect()
        })?;
        let request = self.repo_request("GET", repo, &["commits", commit, "status"], attempt);
        let statuses = self.list(request, CHECKS_MAX, |page: CombinedStatusAnswer| {
            page.statuses.iter().map(CommitStatusAnswer::state).collect()
        })?;
        checks.extend(statuses);
        Ok(conclude(&checks))
    }

    /// Lists the reviews of a pull request, oldest first.
    pub fn reviews(
        &self,
        repo: &GithubRepo,
        number: u64,
        limit: usize,
    ) -> Result<Vec<GithubReview>, GithubError> {
        let attempt = format!("list the reviews of {repo}#{number}");
        let number = number.to_string();
        let request = self.repo_request("GET", repo, &["pulls", &number, "reviews"], attempt);
        self.list(request, limit, |page: Vec<ReviewAnswer>| {
            page.into_iter().map(GithubReview::from).collect()
        })
    }

    /// Posts a review. A call that fails may still have been executed: look for a mark in the body
    /// among [`GithubClient::reviews`] before the call is repeated.
    pub fn create_review(
        &self,
        repo: &GithubRepo,
        number: u64,
        draft: &ReviewDraft,
    ) -> Result<GithubReview, GithubError> {
        let attempt = format!("post a review of {repo}#{number}");
        let number = number.to_string();
        let request = ApiRequestSpec {
            body: Some(draft.to_body()),
            ..self.repo_request("POST", repo, &["pulls", &number, "reviews"], attempt)
        };
        self.send_json::<ReviewAnswer>(&request).map(GithubReview::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_concluded_by_the_worst_and_an_unknown_end_is_no_success() {
        let run = |status: &str, conclusion: Option<&str>| {
            CheckRunAnswer {
                status: status.to_owned(),
                conclusion: conclusion.map(str::to_owned),
                app: None,
            }
            .state()
        };
        let passed = run("completed", Some("skipped"));
        assert_eq!(conclude(&[]), CheckConclusion::Absent);
        assert_eq!(conclude(&[passed]), CheckConclusion::Passing);
        assert_eq!(conclude(&[passed, run("queued", None)]), CheckConclusion::Pending);
        assert_eq!(conclude(&[run("completed", Some("new"))]), CheckConclusion::Failing);
        let failed = run("completed", Some("timed_out"));
        assert_eq!(conclude(&[failed, run("in_progress", None)]), CheckConclusion::Pending);
        assert_eq!(conclude(&[passed, failed]), CheckConclusion::Failing);
    }

    #[test]
    fn comments_are_possible_on_the_lines_that_a_diff_shows() {
        let patch =
            "@@ -3,3 +3,3 @@ fn main\n a\n-b\n+c\n d\n\\ No newline\n@@ -20 +20,2 @@\n+x\n y";
        let file = GithubChangedFile { path: "a".to_owned(), patch: Some(patch.to_owned()) };
        let lines = |side| {
            let lines = file.diff_lines().into_iter();
            lines.filter(|it| it.0 == side).map(|it| it.1).collect::<Vec<_>>()
        };
        assert_eq!(lines(DiffSide::Old), [3, 4, 5, 20]);
        assert_eq!(lines(DiffSide::New), [3, 4, 5, 20, 21]);
        let binary = GithubChangedFile { path: "b".to_owned(), patch: None };
        assert_eq!(binary.diff_lines(), []);
    }

    #[test]
    fn a_review_names_lines_of_the_new_version() {
        let comment = |line, start_line| ReviewComment {
            path: "a.rs".to_owned(),
            side: DiffSide::New,
            line,
            start_line,
            body: "x".to_owned(),
        };
        let draft = ReviewDraft {
            event: ReviewEvent::RequestChanges,
            body: "No.".to_owned(),
            commit: Some("abc".to_owned()),
            comments: vec![comment(3, None), comment(9, Some(7)), comment(9, Some(9))],
        };
        let body = draft.to_body();
        assert_eq!(body["event"], "REQUEST_CHANGES");
        assert_eq!(body["commit_id"], "abc");
        assert_eq!(body["comments"][0]["line"], 3);
        assert_eq!(body["comments"][1]["start_line"], 7);
        assert_eq!(body["comments"][2].get("start_line"), None, "one line is no range");
    }
}
