//! `heeler session diff`: shows file changes since a message. Start at [`run`].

use std::io::{IsTerminal as _, Write as _};

use clap::Args;
use heeler_query::diff::SessionDiff;

use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::shared_args;

/// Help footer of `session diff`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session diff sess-1a2b
  heeler session diff sess-1a2b --at-message 6 --stat
  heeler session diff sess-1a2b --secrets | git apply     # in another checkout

Compares the current files with those at the given message or, without one, with those before the
session's first turn. If the folder is gone or on another machine, the last snapshot is compared instead
of the current files. Snapshots are taken before the first turn and after each finished turn if the
agent works in a git repository. They leave out ignored files, nested repositories and submodules, so
these are not compared.
Exit codes: 0 shown, 4 not found, 5 there is no snapshot.";

/// Arguments of `session diff`.
#[derive(Args)]
pub(crate) struct SessionDiffArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    /// Compare with the files at this message
    #[arg(short = 'm', long, value_name = "N")]
    at_message: Option<u64>,
    /// Print one line per file
    #[arg(long)]
    stat: bool,
    /// Include secrets that the files hold, so that the patch can be applied
    #[arg(long, conflicts_with = "json")]
    secrets: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `session diff`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionDiffArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // This lookup also knows deleted sessions, and tells how to restore one.
    drop(context.find_session(&args.id)?);
    let diff = context.open_records()?.diff(&args.id, args.at_message, process_env::now())?;
    if !context.quiet && !args.json {
        diff.note.iter().try_for_each(|words| output::print_note(words))?;
    }
    print(args, diff)
}

fn print(args: &SessionDiffArgs, mut diff: SessionDiff) -> CommandResult {
    if args.json {
        // With `--stat` only the list of files is wanted, and a patch may be large.
        diff.patch = diff.patch.filter(|_| !args.stat);
        return Ok(output::print_json(&diff)?);
    }
    if diff.bytes.is_empty() {
        return Ok(output::print_note("no changes")?);
    }
    if args.stat {
        return Ok(output::print_line(diff.summary.trim_end())?);
    }
    let bytes = if args.secrets { &diff.bytes_with_secrets } else { &diff.bytes };
    // Programs read patches too, so other bytes of the files must stay unchanged.
    match std::io::stdout().is_terminal() {
        true => {
            output::print_line(output::reveal_hidden(String::from_utf8_lossy(bytes).trim_end()))?;
        }
        false => std::io::stdout().lock().write_all(bytes)?,
    }
    if diff.is_redacted && !args.secrets {
        output::print_note(
            "secrets were removed from the patch: do not apply it; --secrets keeps them",
        )?;
    }
    match diff.cut {
        true => Ok(output::print_note("the patch was shortened; --stat lists all files")?),
        false => Ok(()),
    }
}
