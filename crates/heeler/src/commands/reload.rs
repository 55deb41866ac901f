//! `heeler reload`: makes the daemon reread its config. Start at [`run`].

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::config_change::HeldConfigChange;

use crate::config_changes;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::trust;

/// Help footer of `reload`.
pub(crate) const ABOUT: &str =
    "The whole new config is checked first: if it has an error, the daemon keeps the old one. An invalid
workflow file is reported, and only that workflow cannot run until it is corrected.
Running jobs are not affected. If nothing has changed, the daemon says so.

A change that happened while a job ran may be the work of its agent. It is shown, and loaded only if a
person confirms it: at a terminal, or with --accept --yes in a script. --accept also works without a
daemon; the next one then starts with the change. See docs/security.md.

Exit codes: 0 applied, 2 invalid config (nothing changed), 3 no daemon runs, 6 not confirmed.";

/// Arguments of `reload`.
#[derive(Args)]
pub(crate) struct ReloadArgs {
    /// Show a change that happened while a job ran, and load it once you confirm it
    #[arg(long)]
    accept: bool,
    /// Confirm what is shown without a question
    #[arg(short, long, requires = "accept")]
    yes: bool,
    /// Confirm the change with this fingerprint (see `status --json`), and no other
    #[arg(long, value_name = "HASH", requires = "accept", conflicts_with = "yes")]
    fingerprint: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `reload`, and prints the differences.
pub(crate) fn run(global: &GlobalArgs, args: &ReloadArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let Some(mut client) = daemon::connect(&context)? else {
        return match args.accept {
            true => accept_without_daemon(&context, args),
            false => Err(daemon::no_daemon(&context)),
        };
    };
    let status = client.send_command(&DaemonCommand::Status, Some(daemon::ANSWER_WAIT))?;
    let held = match status {
        CommandReply::Status(status) => status.held_change,
        _ => None,
    };
    let answer = match held {
        None => client.send_command(&DaemonCommand::Reload, Some(daemon::ANSWER_WAIT))?,
        Some(change) => {
            confirm(&change, args)?;
            match config_changes::accept(&context, &change)? {
                Some(answer) => answer,
                // The daemon has ended meanwhile, so the next one loads the change.
                None => return Ok(output::print_line("confirmed")?),
            }
        }
    };
    daemon::print_answer(&answer, args.json)
}

/// Confirms a change that keeps a daemon from starting.
fn accept_without_daemon(context: &CommandContext, args: &ReloadArgs) -> CommandResult {
    trust::refuse_run()?;
    let Some(held) = config_changes::find(context)? else {
        config_changes::refuse_nearby(context)?;
        return Ok(output::print_line("there is no change to confirm")?);
    };
    confirm(&held.change, args)?;
    config_changes::accept(context, &held.change)?;
    Ok(output::print_line("confirmed; the next daemon loads it: heeler start")?)
}

/// Shows a change, and makes sure that a person wants it.
fn confirm(change: &HeldConfigChange, args: &ReloadArgs) -> CommandResult {
    if let Some(fingerprint) = &args.fingerprint {
        return match *fingerprint == change.fingerprint {
            true => Ok(()),
            false => Err(config_changes::changed_again()),
        };
    }
    if args.json && !args.yes {
        return Err(config_changes::refusal(change));
    }
    let can_ask = trust::is_person_at_terminal();
    if args.yes || can_ask {
        config_changes::print_change(change)?;
    }
    match (args.yes, can_ask) {
        (true, _) => Ok(()),
        (false, true) => config_changes::confirm_at_terminal(change),
        (false, false) => Err(config_changes::refusal(change)),
    }
}
