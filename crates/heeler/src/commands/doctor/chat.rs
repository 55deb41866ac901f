//! Check of the access to chat platforms: tokens, bots and rules.
//!
//! Start at [`run`].

use heeler_engine::{ChatAccessReport, check_chat_access};
use serde_json::json;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;
use crate::process_env;
use crate::trust::{self, UnlistedFleet};

/// Runs `doctor chat`. It sends tokens to addresses of the config, so a person must have agreed to the
/// config.
pub(super) fn run(context: &CommandContext, is_json: bool) -> CommandResult {
    trust::require(context, UnlistedFleet::Ask)?;
    let loaded = fleet_config::load_without_workflows(context)?;
    let env = fleet_config::environment(context, context.config_file()?)?;
    let Some(report) = check_chat_access(&loaded, &env, process_env::now) else {
        let message = "no agent of the config uses a chat platform";
        return Err(CommandFailure::message(FailureCode::Usage, message)
            .hint("set `chat.telegram` on an agent: docs/chat-platforms.md"));
    };
    let ChatAccessReport { bots, problems, notes } = &report;
    match is_json {
        true => {
            output::print_json(&json!({"bots": bots, "problems": problems, "notes": notes}))?;
        }
        false => {
            for line in bots.iter().chain(problems) {
                output::print_line(line.as_str())?;
            }
            for note in notes {
                output::print_line(format!("note: {note}"))?;
            }
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(CommandFailure::silent(FailureCode::Failed)),
    }
}
