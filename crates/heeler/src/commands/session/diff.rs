//! `heeler session diff`: what changed in the files since a message.

use std::io::{IsTerminal as _, Write as _};

use camino::Utf8Path;
use clap::Args;
use heeler_model::Session;
use heeler_store::history::{SnapshotNote, find_cut, history};
use heeler_workspace::{Commit, Diff, DiffTo, Snapshots, WorkTree};
use serde_json::json;

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::output;
use crate::place::{self, Place};

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session diff sess-1a2b
  heeler session diff sess-1a2b --at-message 6 --stat
  heeler session diff sess-1a2b | git apply     # in another checkout

From the files as they were at that message (for a fork without one: where it was cut; else: as the
commit has them that was checked out at the session's first turn) to the files as they are now, or as
they last were if their folder is gone. Snapshots are taken after each finished turn where the agent works in a git repository; what
they leave out (ignored files, nested repositories, submodules) is not compared.
Exit codes: 0 shown, 4 not found, 5 there is no snapshot.";

/// How many messages are looked at at once for a snapshot.
const PAGE: usize = 200;

/// Arguments of `session diff`.
#[derive(Args)]
pub(crate) struct DiffArgs {
    /// The session; a beginning of its id will do while only one begins so
    #[arg(add = cli::sessions())]
    id: String,
    /// From the state at this message
    #[arg(short = 'm', long, value_name = "N")]
    at_message: Option<u64>,
    /// Only a line for each file
    #[arg(long)]
    stat: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows what changed.
pub(crate) fn run(global: &Global, args: &DiffArgs) -> Outcome {
    let place = Place::find(global)?;
    let session = super::find(&place, &args.id)?;
    let dir = place.dir()?;
    let log = dir.session_log_path(place.home.as_deref(), &session);
    let log = log.filter(|log| log.is_file()).ok_or_else(|| no_snapshot(&session))?;
    let from = snapshot_at(&session, &log, args.at_message)?;
    let last = last_snapshot(&log)?.ok_or_else(|| no_snapshot(&session))?;
    let snapshots = Snapshots::open_key(&dir.workspaces(), &from.repository).map_err(failed)?;
    let snapshots = snapshots.leaving_out(&[dir.root().to_owned()]);
    let tree = session.workspace.as_deref().unwrap_or(&last.top);
    // Of a folder that is now something else nothing is compared.
    let tree = WorkTree::find(tree).ok().flatten().filter(|found| found.top == tree);
    let is_begin = args.at_message.is_none() && session.forked_at_message.is_none();
    let base = from.base.as_deref().filter(|_| is_begin).and_then(Commit::parse);
    let (begin, end) = (base.map_or_else(|| commit(&from), Ok)?, commit(&last)?);
    let to = tree.as_ref().map_or(DiffTo::Commit(&end), DiffTo::Now);
    let diff = snapshots.diff(&begin, to, place::now()).map_err(failed)?;
    print(args, &session, &from, &diff)
}

fn failed(error: heeler_workspace::SnapshotError) -> Failure {
    Failure::new(Code::Failed, error)
}

/// Says that a session has no snapshots.
pub(super) fn no_snapshot(session: &Session) -> Failure {
    let message = format!("no snapshot of the files of session {} was taken", session.id);
    Failure::message(Code::Refused, message)
        .hint("snapshots need a working directory in a git repository, and `session.snapshots`")
}

fn commit(note: &SnapshotNote) -> Outcome<Commit> {
    let none = || Failure::message(Code::Failed, "the log names no commit for a snapshot");
    Commit::parse(&note.commit).ok_or_else(none)
}

/// Returns the snapshot that the comparison begins with.
fn snapshot_at(session: &Session, log: &Utf8Path, at: Option<u64>) -> Outcome<SnapshotNote> {
    let forked = session.forked_at_message.and_then(|number| u64::try_from(number).ok());
    if let Some(number) = at.or(forked) {
        let cut = find_cut(log, None, Some(number));
        let cut = cut.map_err(|error| Failure::new(Code::Refused, error))?;
        return cut.snapshot.ok_or_else(|| no_snapshot(session));
    }
    let mut first = None;
    let mut before = None;
    loop {
        let page = history(log, None, before, PAGE);
        let page = page.map_err(|error| Failure::new(Code::Failed, error))?;
        let oldest = page.messages.iter().find_map(|message| message.snapshot.clone());
        first = oldest.or(first);
        before = page.messages.first().map(|message| message.number);
        if before.is_none_or(|number| number <= 1) {
            return first.ok_or_else(|| no_snapshot(session));
        }
    }
}

fn last_snapshot(log: &Utf8Path) -> Outcome<Option<SnapshotNote>> {
    let mut before = None;
    loop {
        let page = history(log, None, before, PAGE);
        let page = page.map_err(|error| Failure::new(Code::Failed, error))?;
        let newest = page.messages.iter().rev().find_map(|message| message.snapshot.clone());
        before = page.messages.first().map(|message| message.number);
        if newest.is_some() || before.is_none_or(|number| number <= 1) {
            return Ok(newest);
        }
    }
}

fn print(args: &DiffArgs, session: &Session, from: &SnapshotNote, diff: &Diff) -> Outcome {
    if args.json {
        let patch = (!args.stat).then(|| String::from_utf8_lossy(&diff.patch));
        return Ok(output::json(&json!({
            "session": session.id, "from": from, "summary": diff.summary, "patch": patch,
            "cut": diff.cut,
        }))?);
    }
    if diff.patch.is_empty() {
        return Ok(output::note("nothing has changed")?);
    }
    if args.stat {
        return Ok(output::line(diff.summary.trim_end())?);
    }
    // A patch is for programs too: its bytes are those of the files.
    match std::io::stdout().is_terminal() {
        true => output::line(String::from_utf8_lossy(&diff.patch).trim_end())?,
        false => std::io::stdout().lock().write_all(&diff.patch)?,
    }
    match diff.cut {
        true => Ok(output::note("the patch is longer than what is shown; --stat lists all files")?),
        false => Ok(()),
    }
}
