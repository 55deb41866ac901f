//! Search for issues and pull requests that need work.
//!
//! Each search reads one repository and returns the oldest matches first, up to a limit. Start at
//! [`GithubClient::discover`].

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::github_client::GithubClient;
use crate::github_error::GithubError;
use crate::github_repo::GithubRepo;
use crate::issues::IssueListFilter;
use crate::pull_requests::{CheckConclusion, GithubPullRequest};

/// Most open issues or pull requests of a repository that are looked at.
const CANDIDATES_MAX: usize = 1_000;

/// Pauses before a pull request is read again whose mergeability GitHub is still computing.
const MERGEABLE_PAUSES: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(10)];

/// Accounts that open pull requests for new versions of dependencies.
const DEPENDENCY_AUTHORS: [&str; 2] = ["dependabot[bot]", "renovate[bot]"];

/// Beginnings of titles that such accounts use, in lower case.
const DEPENDENCY_TITLES: [&str; 5] = ["bump ", "chore(deps", "build(deps", "deps:", "deps-dev:"];

/// Subject of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryTarget {
    /// Pull requests for dependencies that can be merged and whose checks have passed.
    GreenDependencies,
    /// Pull requests for dependencies whose checks have failed, or that cannot be merged.
    RedDependencies,
    /// Open pull requests of people.
    OpenPullRequests,
    /// Open issues without a change for this time.
    StaleIssues { age: SignedDuration },
}

/// A search of one repository.
#[derive(Debug, Clone, Copy)]
pub struct DiscoveryQuery<'a> {
    pub target: DiscoveryTarget,
    /// Login of the client's account: its own checks do not count, and it does not review its own
    /// pull requests.
    pub own: &'a str,
    /// Relations to the repository that an author must have one of; `None` accepts everyone. The
    /// accounts that open pull requests for dependencies are accepted in any case.
    pub associations: Option<&'a [&'a str]>,
    /// Most items to return.
    pub limit: usize,
}

impl DiscoveryQuery<'_> {
    fn trusts(&self, association: &str) -> bool {
        self.associations.is_none_or(|trusted| trusted.contains(&association))
    }
}

/// An issue or pull request that was found. Its title is untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredItem {
    pub number: u64,
    pub title: String,
    pub is_pull_request: bool,
    /// Branch with the changes of a pull request.
    pub branch: Option<String>,
    /// Last commit of a pull request.
    pub head_sha: Option<String>,
    /// Reason for which a pull request is red: `checks-failing`, `behind`, `dirty` or `blocked`.
    pub reason: Option<String>,
    /// Text that differs when there is something new to do: the commit of a pull request, or the
    /// time of the last change of an issue.
    pub revision: String,
}

impl DiscoveredItem {
    fn of_pull_request(pull: &GithubPullRequest, reason: Option<&str>) -> DiscoveredItem {
        DiscoveredItem {
            number: pull.number,
            title: pull.title.clone(),
            is_pull_request: true,
            branch: Some(pull.head_ref.clone()),
            head_sha: Some(pull.head_sha.clone()),
            reason: reason.map(str::to_owned),
            revision: format!("{} {}", pull.head_sha, reason.unwrap_or("open")),
        }
    }
}

impl GithubClient {
    /// Searches a repository.
    pub fn discover(
        &self,
        repo: &GithubRepo,
        query: &DiscoveryQuery<'_>,
    ) -> Result<Vec<DiscoveredItem>, GithubError> {
        let DiscoveryQuery { target, own, limit, .. } = *query;
        if let DiscoveryTarget::StaleIssues { age } = target {
            return self.stale_issues(repo, age, query);
        }
        let mut pulls = self.open_pull_requests(repo, CANDIDATES_MAX)?;
        pulls.sort_by_key(|pull| pull.number);
        pulls.retain(|pull| match target {
            // GitHub refuses a review of one's own pull request, and those of bots are not for people.
            DiscoveryTarget::OpenPullRequests => {
                let is_own = pull.author.eq_ignore_ascii_case(own);
                let is_person = !pull.author.ends_with("[bot]") && !is_own;
                is_person && !pull.is_draft && query.trusts(&pull.author_association)
            }
            _ => is_dependency(pull, query),
        });
        // Limited before the checks are read, which takes several calls each.
        pulls.truncate(limit);
        let mut found = Vec::new();
        for pull in &pulls {
            found.extend(match target {
                DiscoveryTarget::GreenDependencies => self.check_green(repo, pull, own)?,
                DiscoveryTarget::RedDependencies => self.check_red(repo, pull, own)?,
                _ => Some(DiscoveredItem::of_pull_request(pull, None)),
            });
        }
        Ok(found)
    }

    fn stale_issues(
        &self,
        repo: &GithubRepo,
        age: SignedDuration,
        query: &DiscoveryQuery<'_>,
    ) -> Result<Vec<DiscoveredItem>, GithubError> {
        let now = (self.config.clock.now)();
        let before = now.checked_sub(age).unwrap_or(Timestamp::MIN);
        // The list begins with the issues that changed least recently.
        let issues = self.open_issues(repo, &IssueListFilter::default(), CANDIDATES_MAX)?;
        let stale = issues.into_iter().filter(|issue| issue.updated_at < before);
        let stale = stale.filter(|issue| query.trusts(&issue.author_association));
        let items = stale.take(query.limit).map(|issue| DiscoveredItem {
            number: issue.number,
            title: issue.title,
            is_pull_request: false,
            branch: None,
            head_sha: None,
            reason: None,
            revision: issue.updated_at.to_string(),
        });
        Ok(items.collect())
    }

    /// A pull request is green if GitHub would merge it and all checks have passed. The first alone
    /// is no proof: without required checks, GitHub would merge a red one.
    fn check_green(
        &self,
        repo: &GithubRepo,
        pull: &GithubPullRequest,
        own: &str,
    ) -> Result<Option<DiscoveredItem>, GithubError> {
        let is_clean = self.mergeable_state(repo, pull)?.as_deref() == Some("clean");
        if !is_clean || self.conclusion(repo, pull, own)? != CheckConclusion::Passing {
            return Ok(None);
        }
        Ok(Some(DiscoveredItem::of_pull_request(pull, None)))
    }

    fn check_red(
        &self,
        repo: &GithubRepo,
        pull: &GithubPullRequest,
        own: &str,
    ) -> Result<Option<DiscoveredItem>, GithubError> {
        if self.conclusion(repo, pull, own)? == CheckConclusion::Failing {
            return Ok(Some(DiscoveredItem::of_pull_request(pull, Some("checks-failing"))));
        }
        let state = self.mergeable_state(repo, pull)?;
        let reason = state.as_deref().filter(|it| matches!(*it, "behind" | "dirty" | "blocked"));
        Ok(reason.map(|reason| DiscoveredItem::of_pull_request(pull, Some(reason))))
    }

    fn conclusion(
        &self,
        repo: &GithubRepo,
        pull: &GithubPullRequest,
        own: &str,
    ) -> Result<CheckConclusion, GithubError> {
        // An App's checks have its name without the suffix of its account.
        let app = own.strip_suffix("[bot]").unwrap_or(own);
        self.check_conclusion(repo, &pull.head_sha, Some(app))
    }

    /// Returns GitHub's judgement whether a pull request can be merged. GitHub begins to compute it
    /// when it is first asked.
    fn mergeable_state(
        &self,
        repo: &GithubRepo,
        pull: &GithubPullRequest,
    ) -> Result<Option<String>, GithubError> {
        let mut state = self.pull_request(repo, pull.number)?.mergeable_state;
        for pause in MERGEABLE_PAUSES {
            if state.as_deref() != Some("unknown") {
                break;
            }
            (self.config.clock.pause)(pause);
            state = self.pull_request(repo, pull.number)?.mergeable_state;
        }
        Ok(state)
    }
}

/// Everyone can choose a title, so it counts only for authors who are trusted.
fn is_dependency(pull: &GithubPullRequest, query: &DiscoveryQuery<'_>) -> bool {
    let title = pull.title.to_ascii_lowercase();
    let is_author = DEPENDENCY_AUTHORS.iter().any(|it| pull.author.eq_ignore_ascii_case(it));
    let has_title = DEPENDENCY_TITLES.iter().any(|it| title.starts_with(it));
    !pull.is_draft && (is_author || has_title && query.trusts(&pull.author_association))
}
