//! Searches on GitHub for the crons of a fleet. Start at [`search_repos`].

use heeler_config::{AuthorAssociation, CronFanOut, DiscoveryKind, DiscoveryRule};
use heeler_github::{DiscoveredItem, DiscoveryQuery, DiscoveryTarget, GithubRepo};
use heeler_model::calendar::ScheduleKey;
use jiff::SignedDuration;

use super::connection::GithubConnection;
use crate::setup::DaemonSetup;

/// Result of a search in all repositories.
#[derive(Debug, Clone, Default)]
pub(crate) struct GithubSearchResult {
    pub(crate) found: Vec<(GithubRepo, DiscoveredItem)>,
    /// Errors, one for each repository that could not be searched.
    pub(crate) failures: Vec<String>,
}

/// Searches all repositories of the config. One that cannot be read does not keep the others from
/// being searched.
pub(super) fn search_repos(
    setup: &DaemonSetup,
    connection: Result<&GithubConnection, &str>,
    key: &ScheduleKey,
) -> GithubSearchResult {
    let mut result = GithubSearchResult::default();
    let fan_out = setup.scheduled_workflow(key).and_then(|start| start.fan_out.as_ref());
    // The config may have changed since the search was requested.
    let Some(CronFanOut::EachMatch(rule)) = fan_out else {
        result.failures.push("the config names no search any more".to_owned());
        return result;
    };
    let github = setup.root().and_then(|root| root.github.as_ref());
    let (connection, github) = match (connection, github) {
        (Ok(connection), Some(github)) => (connection, github),
        (Err(reason), _) => {
            result.failures.push(reason.to_owned());
            return result;
        }
        (_, None) => {
            result.failures.push("the config has no `github`".to_owned());
            return result;
        }
    };
    let own = match connection.login() {
        Ok(own) => own,
        Err(error) => {
            result.failures.push(error.to_string());
            return result;
        }
    };
    let words: Vec<&str> = rule.associations.iter().map(|it| it.as_str()).collect();
    let is_any = rule.associations.contains(&AuthorAssociation::Any);
    let query = DiscoveryQuery {
        target: discovery_target(rule),
        own,
        associations: (!is_any).then_some(&words[..]),
        limit: github.max_runs as usize,
    };
    for repo in &github.repos {
        let Ok(repo) = repo.as_str().parse::<GithubRepo>() else { continue };
        match connection.client.discover(&repo, &query) {
            Ok(items) => result.found.extend(items.into_iter().map(|it| (repo.clone(), it))),
            Err(error) => result.failures.push(error.to_string()),
        }
    }
    result
}

fn discovery_target(rule: &DiscoveryRule) -> DiscoveryTarget {
    match rule.kind {
        DiscoveryKind::GreenDependencyPrs => DiscoveryTarget::GreenDependencies,
        DiscoveryKind::RedDependencyPrs => DiscoveryTarget::RedDependencies,
        DiscoveryKind::PrsAwaitingReview => DiscoveryTarget::OpenPullRequests,
        DiscoveryKind::StaleIssues => {
            let hours = 24 * i64::from(rule.stale_days);
            DiscoveryTarget::StaleIssues { age: SignedDuration::from_hours(hours) }
        }
    }
}
