//! `heeler session adopt` and `heeler session import`: sessions that come from elsewhere.

use camino::Utf8PathBuf;
use clap::Args;
use heeler_engine::{AdoptedSession, CommandReply, DaemonCommand, SessionOperation};

use crate::cli::{self, GlobalArgs};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::output;

/// What the help of `session adopt` shows at its end.
pub(crate) const ADOPT: &str = "Examples:
  heeler session list --native
  heeler session adopt 3f2a81c4 --as coder
  heeler session resume sess-1a2b -p 'Now the tests'

What was said so far is copied, without the keys in it, and the session goes on where it was made.
Claude's own file stays where it is.
Exit codes: 0 adopted, 4 claude has no such session, 5 refused: it is here already.";

/// What the help of `session import` shows at its end.
pub(crate) const IMPORT: &str = "Examples:
  heeler session export sess-1a2b -o session.json     # on one machine
  heeler session import session.json                  # on another, under another path

The session goes on in its agent's working directory here; the agent's own record of it is put where
the agent looks. Nothing that is there is overwritten. Snapshots of the files, if they were exported
(`session export --workspace`), come along: for `session diff` and `session fork --workspace`.
Exit codes: 0 imported, 2 the file is cut off or was changed, 5 refused: it is here already.";

/// Arguments of `session adopt`.
#[derive(Args)]
pub(crate) struct SessionAdoptArgs {
    /// Claude's id of the session; a beginning will do while only one begins so
    id: String,
    /// The agent that it is to be of
    #[arg(long = "as", value_name = "AGENT", add = cli::agents())]
    agent: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session import`.
#[derive(Args)]
pub(crate) struct SessionImportArgs {
    /// What `session export` wrote
    file: Utf8PathBuf,
    /// The agent that it is to be of [default: an agent of the name that it had]
    #[arg(long = "as", value_name = "AGENT", add = cli::agents())]
    agent: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Adopts a session of claude's.
pub(crate) fn adopt(global: &GlobalArgs, args: &SessionAdoptArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let order = SessionOperation::Adopt { id: args.id.clone(), agent: args.agent.clone() };
    send_session_order(global, &place, order, args.json)
}

/// Imports a session that was exported.
pub(crate) fn import(global: &GlobalArgs, args: &SessionImportArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    // The daemon may work elsewhere.
    let file = place.working_dir.join(&args.file);
    send_session_order(
        global,
        &place,
        SessionOperation::Import { file, agent: args.agent.clone() },
        args.json,
    )
}

fn send_session_order(
    global: &GlobalArgs,
    place: &CommandContext,
    order: SessionOperation,
    json: bool,
) -> CommandResult {
    let answer =
        daemon::request(place, &DaemonCommand::Session { order, by: place.caller_name() })?;
    let CommandReply::Taken(taken) = &answer else { return Err(daemon::unexpected(&answer)) };
    daemon::print_answer(&answer, json)?;
    if json || global.quiet {
        return Ok(());
    }
    let AdoptedSession { id, agent, messages, .. } = &**taken;
    let messages = output::pluralize(*messages, "message");
    output::print_note(&format!("{messages}, now of {agent}"))?;
    if let Some(directory) = &taken.working_directory {
        output::print_note(&format!("it goes on in {directory}"))?;
    }
    if taken.snapshots > 0 {
        let count = output::pluralize(taken.snapshots, "snapshot");
        output::print_note(&format!(
            "{count} of its files came along; go on with the files too: heeler session fork {id} --workspace"
        ))?;
    }
    Ok(output::print_note(&format!("go on in it: heeler session resume {id} -p '…'"))?)
}
