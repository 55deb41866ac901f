//! `heeler restart`: a new daemon takes over, without interrupting jobs. Start at [`run`].

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand, DaemonMode, StopMode};
use serde_json::json;

use crate::commands::stop;
use crate::config_changes;
use crate::context::CommandContext;
use crate::daemon::{self, DaemonReadiness};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::trust::{self, UnlistedFleet};

/// Help footer of `restart`.
pub(crate) const ABOUT: &str = "Jobs keep running, and the new daemon takes them over: use this to upgrade. The new daemon runs in
the background with the environment of this command. If systemd started the daemon, restart it with
`systemctl --user restart heeler`, which keeps jobs too.
Exit codes: 0 restarted, 2 invalid config or 6 not trusted (nothing was stopped), 3 no daemon runs.";

/// Arguments of `restart`.
#[derive(Args)]
pub(crate) struct RestartArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `restart`.
pub(crate) fn run(global: &GlobalArgs, args: &RestartArgs) -> CommandResult {
    let mut context = CommandContext::find(global)?;
    let mut client = daemon::connect_required(&context)?;
    let CommandReply::Status(status) = client.send_command(&DaemonCommand::Status, None)? else {
        return Err(CommandFailure::message(
            FailureCode::Bug,
            "the daemon sent an unexpected answer",
        ));
    };
    // The daemon may have been started with another config than the one found from here.
    context.config = Some(status.config);
    // Check both before stopping: an invalid or untrusted config would prevent the new start.
    trust::require(&context, UnlistedFleet::Ask)?;
    config_changes::require(&context)?;
    fleet_config::print_workflow_faults(&context, &fleet_config::load(&context)?)?;
    // Waits until the state lock is free, which the new daemon needs.
    stop::stop(&context, client, StopMode::KeepJobs, true)?;
    let pid = match status.mode {
        DaemonMode::Permanent => daemon::start_permanent(&context)?,
        // A temporary daemon stays temporary: it must not start schedules that no one asked for.
        mode @ DaemonMode::UntilIdle => match daemon::launch(&context, mode)? {
            DaemonReadiness::Ready { pid } => pid,
            DaemonReadiness::Held { holder } => {
                return Err(daemon::already_running(&context, &holder));
            }
            DaemonReadiness::Failed { message, .. } => {
                return Err(
                    CommandFailure::message(FailureCode::Failed, message).hint("heeler start -d")
                );
            }
        },
    };
    // The new daemon is this program, so the version tells whether an upgrade took effect.
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
