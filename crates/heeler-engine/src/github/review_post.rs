//! Post of a review of a pull request, made once.
//!
//! A remark about a line that the diff shows becomes a comment on that line; GitHub refuses a review
//! with comments on other lines, so those remarks are in its text. Start at [`post_review`].

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use heeler_github::{DiffSide, GithubError, GithubRepo, ReviewComment, ReviewDraft, ReviewEvent};
use heeler_model::workflow::{ReviewFinding, ReviewFindings, ReviewSide, ReviewVerdict};
use heeler_store::EffectRecord;

use super::connection::GithubConnection;
use super::issue_address::{IssueAddress, TaskFailure};
use super::thread_post::{SEARCHED_MAX, mark_text, post_mark};

/// Most changed files whose diffs are read; GitHub's own limit.
const FILES_MAX: usize = 3_000;

/// Longest text of a comment on a line, in bytes.
const COMMENT_BYTES_MAX: usize = 20_000;

/// Status with which GitHub refuses a review that it cannot show, for example because of a line.
const UNPROCESSABLE: u16 = 422;

/// Posts a review, unless an earlier attempt has. `commit` is the one that was reviewed, if it is
/// known.
pub(super) fn post_review(
    connection: &GithubConnection,
    effect: &EffectRecord,
    issue: &IssueAddress,
    commit: Option<&str>,
    findings: &ReviewFindings,
) -> Result<(), TaskFailure> {
    let repo = issue.github_repo()?;
    let (client, number) = (&connection.client, issue.number);
    let mark = post_mark(effect);
    let own = connection.login()?;
    let reviews = client.reviews(&repo, number, SEARCHED_MAX)?;
    let is_posted = reviews
        .iter()
        .any(|review| review.author.eq_ignore_ascii_case(own) && review.body.contains(&mark));
    if is_posted {
        return Ok(());
    }
    let head = client.pull_request(&repo, number)?.head_sha;
    // The diff is that of the last commit. Lines of another one would be wrong.
    let shown = match commit.is_none_or(|commit| commit == head) {
        true => read_diff(connection, &repo, number)?,
        false => HashMap::new(),
    };
    let commit = commit.map_or(head, str::to_owned);
    let (inline, others) = split_findings(&findings.findings, &shown);
    let draft = ReviewDraft {
        event: review_event(findings.event),
        body: mark_text(&review_text(&findings.summary, &others), &mark),
        commit: Some(commit),
        comments: inline.iter().map(|finding| line_comment(finding)).collect(),
    };
    let Err(refused) = client.create_review(&repo, number, &draft) else { return Ok(()) };
    let is_unprocessable = matches!(refused, GithubError::Refused { status: UNPROCESSABLE, .. });
    if !is_unprocessable || inline.is_empty() {
        return Err(refused.into());
    }
    // One line that GitHub does not accept must not lose the whole review.
    let all: Vec<&ReviewFinding> = findings.findings.iter().collect();
    let body = mark_text(&review_text(&findings.summary, &all), &mark);
    let draft = ReviewDraft { body, comments: Vec::new(), ..draft };
    client.create_review(&repo, number, &draft)?;
    Ok(())
}

/// Lines that the diff of each file shows.
type ShownLines = HashMap<String, HashSet<(DiffSide, u32)>>;

fn read_diff(
    connection: &GithubConnection,
    repo: &GithubRepo,
    number: u64,
) -> Result<ShownLines, GithubError> {
    let files = connection.client.changed_files(repo, number, FILES_MAX)?;
    let lines = files.into_iter().map(|file| {
        let lines = file.diff_lines().into_iter().collect();
        (file.path, lines)
    });
    Ok(lines.collect())
}

/// Separates the remarks about lines that the diff shows from the others.
fn split_findings<'f>(
    findings: &'f [ReviewFinding],
    shown: &ShownLines,
) -> (Vec<&'f ReviewFinding>, Vec<&'f ReviewFinding>) {
    findings.iter().partition(|finding| {
        let Some(lines) = shown.get(&finding.path) else { return false };
        let side = diff_side(finding.side);
        let first = finding.start_line.unwrap_or(finding.line);
        [first, finding.line].into_iter().all(|line| lines.contains(&(side, line)))
    })
}

fn line_comment(finding: &ReviewFinding) -> ReviewComment {
    let mut body = finding_text(finding);
    if let Some(suggestion) = &finding.suggestion {
        // A longer fence, so that the text cannot end it.
        let _infallible = write!(body, "\n\n````suggestion\n{suggestion}\n````");
    }
    ReviewComment {
        path: finding.path.clone(),
        side: diff_side(finding.side),
        line: finding.line,
        start_line: finding.start_line,
        body: body[..body.floor_char_boundary(COMMENT_BYTES_MAX)].to_owned(),
    }
}

fn finding_text(finding: &ReviewFinding) -> String {
    let title = [finding.severity.as_str(), finding.title.as_str()];
    let title: Vec<&str> = title.into_iter().filter(|text| !text.is_empty()).collect();
    match title.is_empty() {
        true => finding.body.clone(),
        false => format!("**{}**\n\n{}", title.join(": "), finding.body),
    }
}

fn review_text(summary: &str, others: &[&ReviewFinding]) -> String {
    let mut text = summary.to_owned();
    if !others.is_empty() {
        text.push_str("\n\n### Additional findings\n");
    }
    for finding in others {
        let place = format!("`{}:{}`", finding.path.replace('`', "'"), finding.line);
        let _infallible = write!(text, "\n{place} {}\n", finding_text(finding));
    }
    text
}

fn diff_side(side: ReviewSide) -> DiffSide {
    match side {
        ReviewSide::Left => DiffSide::Old,
        ReviewSide::Right => DiffSide::New,
    }
}

fn review_event(verdict: ReviewVerdict) -> ReviewEvent {
    match verdict {
        ReviewVerdict::Approve => ReviewEvent::Approve,
        ReviewVerdict::RequestChanges => ReviewEvent::RequestChanges,
        ReviewVerdict::Comment => ReviewEvent::Comment,
    }
}
