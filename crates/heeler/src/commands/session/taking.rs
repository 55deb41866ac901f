//! `heeler session adopt` and `heeler session import`: sessions that come from elsewhere.

use camino::Utf8PathBuf;
use clap::Args;
use heeler_engine::{Answer, Command, SessionOrder, TakenSession};

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::Outcome;
use crate::output;
use crate::place::Place;

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
pub(crate) struct AdoptArgs {
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
pub(crate) struct ImportArgs {
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
pub(crate) fn adopt(global: &Global, args: &AdoptArgs) -> Outcome {
    let place = Place::find(global)?;
    let order = SessionOrder::Adopt { id: args.id.clone(), agent: args.agent.clone() };
    take(global, &place, order, args.json)
}

/// Imports a session that was exported.
pub(crate) fn import(global: &Global, args: &ImportArgs) -> Outcome {
    let place = Place::find(global)?;
    // The daemon may work elsewhere.
    let file = place.here.join(&args.file);
    take(global, &place, SessionOrder::Import { file, agent: args.agent.clone() }, args.json)
}

fn take(global: &Global, place: &Place, order: SessionOrder, json: bool) -> Outcome {
    let answer = daemon::ask(place, &Command::Session { order, by: place.who() })?;
    let Answer::Taken(taken) = &answer else { return Err(daemon::unexpected(&answer)) };
    daemon::tell(&answer, json)?;
    if json || global.quiet {
        return Ok(());
    }
    let TakenSession { id, agent, messages, .. } = &**taken;
    let messages = output::counted(*messages, "message");
    output::note(&format!("{messages}, now of {agent}"))?;
    if let Some(directory) = &taken.working_directory {
        output::note(&format!("it goes on in {directory}"))?;
    }
    if taken.snapshots > 0 {
        let count = output::counted(taken.snapshots, "snapshot");
        output::note(&format!(
            "{count} of its files came along; go on with the files too: heeler session fork {id} --workspace"
        ))?;
    }
    Ok(output::note(&format!("go on in it: heeler session resume {id} -p '…'"))?)
}
