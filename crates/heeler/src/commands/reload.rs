//! `heeler reload`: makes the daemon reread its config. Start at [`run`].

use clap::Args;
use heeler_engine::DaemonCommand;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;

/// Help footer of `reload`.
pub(crate) const ABOUT: &str =
    "The whole new config is checked first: if it has an error, the daemon keeps the old one. An invalid
workflow file is reported, and only that workflow cannot run until it is corrected.
Running jobs are not affected. If nothing has changed, the daemon says so.
Exit codes: 0 applied, 2 invalid config (nothing changed), 3 no daemon runs.";

/// Arguments of `reload`.
#[derive(Args)]
pub(crate) struct ReloadArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `reload`, and prints the differences.
pub(crate) fn run(global: &GlobalArgs, args: &ReloadArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let answer = daemon::request_running(&context, &DaemonCommand::Reload)?;
    daemon::print_answer(&answer, args.json)
}
