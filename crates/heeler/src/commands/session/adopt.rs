//! `heeler session adopt` and `heeler session import`: [`adopt`] and [`import`].

use std::io::IsTerminal as _;

use camino::Utf8PathBuf;
use clap::Args;
use heeler_engine::{
    AdoptedSession, CommandReply, DaemonCommand, DaemonCommandError, SessionOperation,
};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;

/// Help footer of `session adopt`.
pub(crate) const ADOPT: &str = "Examples:
  heeler session list --native
  heeler session adopt 3f2a81c4 --as coder
  heeler session adopt codex:01a1ec35 --as builder   # a session of Codex
  heeler session resume sess-1a2b -p 'Now the tests'

The messages so far are copied, with secrets removed, and the session continues in the directory
where it was made. The program's own file is not changed. A directory outside of the fleet's working
directories needs your agreement, because an agent could have written it into that file. A session of
Codex that Heeler began is refused: a fleet has it already.
Exit codes: 0 adopted, 4 the program has no such session, 5 refused: already adopted, 6 the directory
needs an agreement.";

/// Help footer of `session import`.
pub(crate) const IMPORT: &str = "Examples:
  heeler session export sess-1a2b -o session.json     # on one machine
  heeler session import session.json                  # on another, under another path

The session continues in its agent's working directory on this machine; its native session is written
to the place where the agent program expects it, if the agent runs the same program. If it does not, or
if the file has no native session, a fork gives an agent the messages as text. No existing file is
overwritten. Snapshots are imported too if they were exported (`session export --workspace`), for
`session diff` and `session fork --workspace`.
Exit codes: 0 imported, 2 the file is truncated or was changed, 5 refused: already imported.";

/// Arguments of `session adopt`.
#[derive(Args)]
pub(crate) struct SessionAdoptArgs {
    /// Claude's session ID or unique prefix; `codex:ID`, `copilot:ID` and so on for others
    id: String,
    /// Agent to assign the session to
    #[arg(long = "as", value_name = "AGENT", add = shared_args::agents())]
    agent: String,
    /// Agree to a directory outside of the fleet's working directories
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session import`.
#[derive(Args)]
pub(crate) struct SessionImportArgs {
    /// File written by `session export`
    file: Utf8PathBuf,
    /// Agent to assign the session to [default: same name as exported]
    #[arg(long = "as", value_name = "AGENT", add = shared_args::agents())]
    agent: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `session adopt`.
pub(crate) fn adopt(global: &GlobalArgs, args: &SessionAdoptArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let order = |directory: Option<Utf8PathBuf>| SessionOperation::Adopt {
        id: args.id.clone(),
        agent: args.agent.clone(),
        directory,
    };
    match send_session_order(global, &context, order(None), args.json) {
        Err(failure) => {
            let directory = agreed_directory(failure, args.yes)?;
            send_session_order(global, &context, order(Some(directory)), args.json)
        }
        adopted => adopted,
    }
}

/// Returns the directory that the daemon asks about, if the person agrees to it. Any other failure
/// stays one.
fn agreed_directory(failure: CommandFailure, is_agreed: bool) -> CommandResult<Utf8PathBuf> {
    let refused = failure.error.downcast_ref::<DaemonCommandError>();
    let Some(directory) = refused.and_then(|refused| refused.directory.clone()) else {
        return Err(failure);
    };
    if is_agreed {
        return Ok(directory);
    }
    if !std::io::stdin().is_terminal() {
        return Err(failure);
    }
    let question = format!("{refusal}. Continue it there?", refusal = failure.error);
    match output::confirm(&question, false)? {
        true => Ok(directory),
        false => Err(CommandFailure::message(FailureCode::Refused, "nothing was changed")),
    }
}

/// Runs `session import`.
pub(crate) fn import(global: &GlobalArgs, args: &SessionImportArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // The daemon may have another working directory, so the path must be absolute.
    let file = context.working_dir.join(&args.file);
    send_session_order(
        global,
        &context,
        SessionOperation::Import { file, agent: args.agent.clone() },
        args.json,
    )
}

fn send_session_order(
    global: &GlobalArgs,
    context: &CommandContext,
    order: SessionOperation,
    json: bool,
) -> CommandResult {
    let answer =
        daemon::request(context, &DaemonCommand::Session { order, by: context.caller_name() })?;
    let CommandReply::Taken(taken) = &answer else { return Err(daemon::unexpected(&answer)) };
    daemon::print_answer(&answer, json)?;
    // The answer is printed already; the rest is advice for people.
    if json || global.quiet {
        return Ok(());
    }
    let AdoptedSession { id, agent, messages, .. } = &**taken;
    let messages = output::pluralize(*messages, "message");
    output::print_note(&format!("{messages}, now assigned to {agent}"))?;
    if let Some(directory) = &taken.working_directory {
        output::print_note(&format!("it continues in {directory}"))?;
    }
    if taken.snapshots > 0 {
        let count = output::pluralize(taken.snapshots, "snapshot");
        output::print_note(&format!(
            "imported {count} of its files; to continue with these files: heeler session fork {id} --workspace"
        ))?;
    }
    if taken.as_text {
        return Ok(output::print_note(&format!(
            "its native session is not here; give the messages to an agent as text: heeler session fork {id} \
             --run -p '…'"
        ))?);
    }
    Ok(output::print_note(&format!("continue it: heeler session resume {id} -p '…'"))?)
}
