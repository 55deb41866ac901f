//! `heeler restart`: another daemon takes over, and no job notices.

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand, DaemonMode, StopMode};
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::commands::stop;
use crate::context::CommandContext;
use crate::daemon::{self, DaemonReadiness};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Jobs run on meanwhile, and the new daemon takes them over: this is how to upgrade. The new daemon
runs in the background with the environment of this command. One that systemd started is to be
restarted by systemd: `systemctl --user restart heeler`, which keeps jobs too.
Exit codes: 0 restarted, 2 a fault in the config (nothing was stopped), 3 no daemon runs.";

/// Arguments of `restart`.
#[derive(Args)]
pub(crate) struct RestartArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restarts the daemon.
pub(crate) fn run(global: &GlobalArgs, args: &RestartArgs) -> CommandResult {
    let mut place = CommandContext::find(global)?;
    let mut client = daemon::connect_required(&place)?;
    let CommandReply::Status(status) = client.send_command(&DaemonCommand::Status, None)? else {
        return Err(CommandFailure::message(
            FailureCode::Bug,
            "the daemon answered something else",
        ));
    };
    // It may have been started with another config than the one that is found from here.
    place.config = Some(status.config);
    // Nothing is stopped that could not be started again.
    fleet_config::print_workflow_faults(&place, &fleet_config::load(&place)?)?;
    stop::stop(&place, client, StopMode::KeepJobs, true)?;
    let pid = match status.mode {
        DaemonMode::Permanent => daemon::start_permanent(&place)?,
        mode @ DaemonMode::UntilIdle => match daemon::launch(&place, mode)? {
            DaemonReadiness::Ready { pid } => pid,
            DaemonReadiness::Held { holder } => {
                return Err(daemon::already_running(&place, &holder));
            }
            DaemonReadiness::Failed { message, .. } => {
                return Err(
                    CommandFailure::message(FailureCode::Failed, message).hint("heeler start -d")
                );
            }
        },
    };
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        return Ok(output::print_json(&json!({ "pid": pid, "version": version }))?);
    }
    let kept = match status.running.len() as u64 {
        0 => String::new(),
        jobs => format!("; {} kept", output::pluralize(jobs, "running job")),
    };
    Ok(output::print_line(format!("restarted: heeler {version}, process {pid}{kept}"))?)
}
