//! Choice of the agent that a chat platform is set up for, and failures of checks.

use heeler_config::{AgentConfig, LoadedConfig};
use heeler_connect::ChatApiError;

use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// Returns the named agent, or the only one. `platform` is the subcommand, for the hint.
pub(super) fn choose_agent<'c>(
    loaded: &'c LoadedConfig,
    name: Option<&str>,
    platform: &str,
) -> CommandResult<&'c AgentConfig> {
    match (name, &loaded.agents[..]) {
        (Some(name), _) => loaded
            .find_agent(name)
            .map_err(|error| CommandFailure::message(FailureCode::NotFound, error.to_string())),
        (None, [only]) => Ok(only),
        (None, _) => Err(CommandFailure::message(
            FailureCode::Usage,
            "the fleet has several agents, or none",
        )
        .hint(format!("heeler connect {platform} --agent NAME"))),
    }
}

/// Returns the failure of a check.
pub(super) fn check_failed(error: ChatApiError) -> CommandFailure {
    let failure = CommandFailure::message(FailureCode::Failed, error.to_string());
    match error {
        ChatApiError::Conflict { .. } => {
            failure.hint("another program uses the bot: heeler stop, or give the ID with --chat")
        }
        _ => failure,
    }
}
