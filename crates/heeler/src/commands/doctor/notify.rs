//! Check of the channels that tell people when they are needed.
//!
//! Start at [`run`].

use heeler_engine::{ChannelReport, check_channels};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;

/// Runs `doctor notify`.
pub(super) fn run(context: &CommandContext, is_json: bool) -> CommandResult {
    let loaded = fleet_config::load_without_workflows(context)?;
    let env = fleet_config::environment(context, context.config_file()?)?;
    let reader = context.open_reader()?;
    let reports = check_channels(&loaded, &env, reader.as_deref());
    if reports.is_empty() {
        let message = "the config has no channels";
        return Err(CommandFailure::message(FailureCode::Usage, message)
            .hint("set `notify.channels` in the fleet file: docs/notifications.md"));
    }
    if is_json {
        let one = |ChannelReport { name, kind, person, problem }: &ChannelReport| json!({"name": name, "kind": kind, "person": person, "problem": problem});
        let channels: Vec<Value> = reports.iter().map(one).collect();
        output::print_json(&json!({ "channels": channels }))?;
    } else {
        for ChannelReport { name, kind, problem, .. } in &reports {
            let state = problem.as_deref().unwrap_or("ready; send a test: heeler notify test");
            output::print_line(format!("{name} ({kind}): {state}"))?;
        }
    }
    match reports.iter().all(|report| report.problem.is_none()) {
        true => Ok(()),
        false => Err(CommandFailure::silent(FailureCode::Failed)),
    }
}
