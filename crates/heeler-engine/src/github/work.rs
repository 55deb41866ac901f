//! Issues as work of agents: search, claim by labels, and the report of the result.
//!
//! An issue is taken only if its author is trusted, or if somebody else has set the label: GitHub
//! demands a role in the repository for that. Start at [`find_work`].

use heeler_config::{TRUSTED_ASSOCIATIONS, WorkSource};
use heeler_github::{GithubClient, GithubError, GithubIssue, GithubRepo, IssueListFilter};
use heeler_store::EffectRecord;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::connection::GithubConnection;
use super::issue_address::{IssueAddress, TaskFailure};
use super::thread_post;

/// Most issues of a repository that are looked at.
const ISSUES_MAX: usize = 100;

/// Most label events of an issue that are read.
const LABEL_EVENTS_MAX: usize = 1_000;

/// Longest text of an issue that an agent gets, in bytes.
const BODY_BYTES_MAX: usize = 60_000;

/// Difference between the clocks of this machine and of GitHub that does not matter.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// Issues of a work source.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundWork {
    /// Issues that may be taken, oldest first.
    pub(crate) ready: Vec<WorkIssue>,
    /// Issues that carry the label of work in progress.
    pub(crate) in_progress: Vec<IssueAddress>,
}

/// An issue as work. Its texts are untrusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkIssue {
    pub(crate) address: IssueAddress,
    pub(crate) title: String,
    pub(crate) body: String,
    pub(crate) url: String,
    pub(crate) author: String,
}

/// Labels by which an issue is claimed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimLabels {
    pub(crate) ready: String,
    pub(crate) in_progress: String,
}

/// Claim of an issue for a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkClaim {
    pub(crate) agent: String,
    pub(crate) schedule: String,
    pub(crate) due: Timestamp,
    pub(crate) issue: WorkIssue,
    pub(crate) labels: ClaimLabels,
}

/// Result of work on an issue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkReport {
    pub(crate) issue: IssueAddress,
    pub(crate) labels: ClaimLabels,
    /// Comment; `None` if a stale claim is only removed.
    pub(crate) text: Option<String>,
    /// The issue is closed.
    pub(crate) is_success: bool,
    /// The issue can be taken again.
    pub(crate) is_ready_again: bool,
}

/// Searches the issues of a work source.
pub(super) fn find_work(
    connection: &GithubConnection,
    source: &WorkSource,
) -> Result<FoundWork, TaskFailure> {
    let name = source.repo.as_ref().ok_or_else(|| "it names no repository".to_owned())?;
    let repo: GithubRepo = name.as_str().parse().map_err(|error| format!("{name:?}: {error}"))?;
    let client = &connection.client;
    let list = |label: &str| {
        client.open_issues(&repo, &IssueListFilter { labels: vec![label.to_owned()] }, ISSUES_MAX)
    };
    let address = |issue: &GithubIssue| IssueAddress {
        owner: repo.owner().to_owned(),
        repo: repo.name().to_owned(),
        number: issue.number,
    };
    let mut ready = list(&source.labels.ready)?;
    ready.sort_by_key(|issue| issue.number);
    let has = |issue: &GithubIssue, label: &str| {
        issue.labels.iter().any(|it| it.eq_ignore_ascii_case(label))
    };
    ready.retain(|issue| {
        !has(issue, &source.labels.in_progress)
            && !source.exclude_labels.iter().any(|label| has(issue, label))
    });
    let mut found = FoundWork::default();
    for issue in ready {
        if !is_admitted(client, &repo, &issue, &source.labels.ready)? {
            tracing::info!(repo = %repo, number = issue.number, "an issue of a stranger is not taken");
            continue;
        }
        let end = issue.body.floor_char_boundary(BODY_BYTES_MAX);
        found.ready.push(WorkIssue {
            address: address(&issue),
            title: issue.title,
            body: issue.body[..end].to_owned(),
            url: issue.html_url,
            author: issue.author,
        });
    }
    if source.cleanup_in_progress == Some(true) {
        found.in_progress = list(&source.labels.in_progress)?.iter().map(address).collect();
    }
    Ok(found)
}

/// Returns true if a person with a role in the repository wrote or labelled the issue.
fn is_admitted(
    client: &GithubClient,
    repo: &GithubRepo,
    issue: &GithubIssue,
    label: &str,
) -> Result<bool, GithubError> {
    if TRUSTED_ASSOCIATIONS.iter().any(|it| it.as_str() == issue.author_association) {
        return Ok(true);
    }
    let events = client.label_events(repo, issue.number, LABEL_EVENTS_MAX)?;
    let added = events.iter().rev().find(|it| it.is_added && it.label.eq_ignore_ascii_case(label));
    // A template can set the label in the author's name.
    Ok(added
        .is_some_and(|it| !it.actor.is_empty() && !it.actor.eq_ignore_ascii_case(&issue.author)))
}

/// Claims an issue by its labels. A repeated claim of the same task succeeds.
pub(super) fn claim_work(
    connection: &GithubConnection,
    effect: &EffectRecord,
    claim: &WorkClaim,
) -> Result<(), TaskFailure> {
    let address = &claim.issue.address;
    let (repo, number) = (address.github_repo()?, address.number);
    let client = &connection.client;
    let issue = client.issue(&repo, number)?;
    if !issue.is_open {
        return Err(format!("{address} was closed").into());
    }
    let has = |label: &str| issue.labels.iter().any(|it| it.eq_ignore_ascii_case(label));
    let ClaimLabels { ready, in_progress } = &claim.labels;
    if has(in_progress) {
        let own = connection.login()?;
        let since = effect.created_at.checked_sub(CLOCK_SKEW).unwrap_or(Timestamp::MIN);
        let events = client.label_events(&repo, number, LABEL_EVENTS_MAX)?;
        let last = events.iter().rev().find(|it| it.label.eq_ignore_ascii_case(in_progress));
        let is_own = last
            .is_some_and(|it| it.is_added && it.actor.eq_ignore_ascii_case(own) && it.at >= since);
        if !is_own {
            return Err(format!("{address} was taken by somebody else").into());
        }
    } else if !has(ready) {
        return Err(format!("{address} is no longer `{ready}`").into());
    }
    client.add_labels(&repo, number, &[in_progress])?;
    client.remove_label(&repo, number, ready)?;
    Ok(())
}

/// Reports the result of work on an issue, and gives the issue back.
pub(super) fn report_work(
    connection: &GithubConnection,
    effect: &EffectRecord,
    report: &WorkReport,
) -> Result<(), TaskFailure> {
    let (repo, number) = (report.issue.github_repo()?, report.issue.number);
    let client = &connection.client;
    if let Some(text) = &report.text {
        thread_post::post_comment(connection, effect, &report.issue, text)?;
    }
    // Before the other label is removed, so that the issue is never without both.
    if report.is_ready_again {
        client.add_labels(&repo, number, &[&report.labels.ready])?;
    }
    client.remove_label(&repo, number, &report.labels.in_progress)?;
    if report.is_success {
        client.close_issue(&repo, number)?;
    }
    Ok(())
}
