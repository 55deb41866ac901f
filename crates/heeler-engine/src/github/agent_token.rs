//! Tokens for GitHub that agents get: of the App's installation, for the repositories of the config.
//!
//! Start at [`add_agent_token`].

use std::sync::Arc;

use heeler_github::{GithubRepo, TokenRequest};
use heeler_model::error_chain;
use heeler_model::run::AgentLaunchSpec;
use jiff::Timestamp;

use super::connection::GithubConnections;
use crate::resolved_request::ResolvedJobRequest;
use crate::setup::DaemonSetup;

/// Variables in which programs look for a token.
const TOKEN_VARIABLES: [&str; 2] = ["GITHUB_TOKEN", "GH_TOKEN"];

/// Creates a token for a run, if the config gives the agent one. Each run has its own, so a run begins
/// with an hour. Blocks for the call.
pub(crate) fn add_agent_token(
    connections: &GithubConnections,
    setup: &Arc<DaemonSetup>,
    request: &mut ResolvedJobRequest,
    now: fn() -> Timestamp,
) -> Result<(), String> {
    if request.github_token.is_empty() {
        return Ok(());
    }
    let failed =
        |reason: String| format!("the agent's token for GitHub cannot be created: {reason}");
    let connection = connections.get(setup, now).map_err(failed)?;
    let github = setup.root().and_then(|root| root.github.as_ref());
    let repos = github.map(|github| github.repos.as_slice()).unwrap_or_default();
    let repositories: Result<Vec<GithubRepo>, _> =
        repos.iter().map(|repo| repo.as_str().parse::<GithubRepo>()).collect();
    let repositories = repositories.map_err(|error| failed(error.to_string()))?;
    // Without repositories the token would be for all of the installation.
    if repositories.is_empty() {
        return Err(failed("`github.repos` is empty".to_owned()));
    }
    let permissions = request.github_token.iter();
    let permissions = permissions.map(|it| (it.name.clone(), it.level.as_str().to_owned()));
    let wanted = TokenRequest { repositories, permissions: permissions.collect() };
    let created = connection.client.create_installation_token(&wanted);
    let created = created.map_err(|error| failed(error_chain(&error)))?;
    give_token(&mut request.brief, created.token);
    Ok(())
}

/// Puts a token into the environment of an agent. It is removed from everything that is written.
fn give_token(brief: &mut AgentLaunchSpec, token: String) {
    for name in TOKEN_VARIABLES {
        brief.env.insert(name.to_owned(), token.clone());
    }
    brief.secrets.push(token);
}
