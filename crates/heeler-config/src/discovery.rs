//! Runs that a cron starts at one due time: for each repository, or for each match of a search on
//! GitHub.
//!
//! Start at [`CronFanOut`].

use crate::github_event::AuthorAssociation;
use crate::words::words;

words! {
    /// Search that a cron performs on GitHub.
    pub enum DiscoveryKind ("search on GitHub") {
        /// Pull requests for dependencies that can be merged and whose checks have passed.
        GreenDependencyPrs = "green-dependency-prs",
        /// Pull requests for dependencies whose checks have failed, or that cannot be merged.
        RedDependencyPrs = "red-dependency-prs",
        /// Open pull requests of people.
        PrsAwaitingReview = "prs-awaiting-review",
        /// Open issues without a change for some days.
        StaleIssues = "stale-issues",
    }
}

/// Search of a cron with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryRule {
    pub kind: DiscoveryKind,
    /// Days without a change after which an issue is stale.
    pub stale_days: u32,
    /// Relations to the repository that an author must have one of.
    pub associations: Vec<AuthorAssociation>,
}

/// Runs that a cron starts at one due time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CronFanOut {
    /// One for each repository of `github.repos`.
    EachRepo,
    /// One for each issue or pull request that a search finds.
    EachMatch(DiscoveryRule),
}

/// Inputs that a cron with more than one run fills, with the names that Last Light uses.
pub const FAN_OUT_INPUTS: [&str; 9] = [
    "owner",
    "repo",
    "issueNumber",
    "prNumber",
    "issueTitle",
    "title",
    "branch",
    "headSha",
    "reason",
];
