//! `heeler reload`: the daemon reads its config again.

use clap::Args;
use heeler_engine::DaemonCommand;

use crate::cli::GlobalArgs;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;

/// What the help shows at its end.
pub(crate) const ABOUT: &str =
    "The new config is checked whole: with a fault in it the daemon goes on by the old one. A workflow
file with a fault is told of, and only that workflow cannot run until it is corrected.
Jobs that run are left as they are. A daemon without a config change says that nothing has changed.
Exit codes: 0 applied, 2 a fault in the config (nothing changed), 3 no daemon runs.";

/// Arguments of `reload`.
#[derive(Args)]
pub(crate) struct ReloadArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reloads and prints what is different.
pub(crate) fn run(global: &GlobalArgs, args: &ReloadArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let answer = daemon::request_running(&place, &DaemonCommand::Reload)?;
    daemon::print_answer(&answer, args.json)
}
