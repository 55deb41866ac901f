//! `heeler status`: an overview of the fleet.
//!
//! It is read from the state directory, with or without a daemon. The daemon is asked only for its
//! current faults and budgets. Start at [`run`].

mod page;
mod snapshot;
mod state_writer;
mod watch;

use clap::Args;

use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::shared_args;

use self::page::{StatusPage, page};
use self::snapshot::StatusSnapshot;
pub(crate) use self::state_writer::StateWriterInfo;

/// Help footer of `status`.
pub(crate) const ABOUT: &str = "Examples:
  heeler status
  heeler status coder
  heeler status --watch
  heeler status --json | jq '.waiting[] | {id, waits}'

The status is read from the state directory, with or without a daemon, and nothing is changed.
Exit codes: 0 shown, even if something failed, 4 no such agent, 130 --watch was interrupted.";

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Show only this agent
    #[arg(add = shared_args::agents())]
    agent: Option<String>,
    /// Refresh every second, until `q` or Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `status`.
pub(crate) fn run(global: &GlobalArgs, args: &StatusArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    if args.watch {
        return watch::run(|| {
            Ok(page(
                &StatusSnapshot::take(&context, args.agent.as_deref())?,
                &context,
                process_env::now(),
            )
            .into_lines())
        });
    }
    let snapshot = StatusSnapshot::take(&context, args.agent.as_deref())?;
    if args.json {
        return Ok(output::print_json(&snapshot.fleet)?);
    }
    let StatusPage { lines, notes } = page(&snapshot, &context, process_env::now());
    for line in lines {
        output::print_line(line)?;
    }
    notes.iter().try_for_each(|note| Ok(output::print_note(note)?))
}
