//! `heeler session diff`: what changed in the files since a message.

use std::io::{IsTerminal as _, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::Session;
use heeler_store::history::{CutError, NotedSnapshot, SnapshotNote, find_cut, snapshots};
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

From the files as they were at that message, without one: before the session's first turn. To the
files as they are now, or as they last were if their folder is gone or on another machine. Snapshots
are taken before the first turn and after each finished one where the agent works in a git
repository; what they leave out (ignored files, nested repositories, submodules) is not compared.
Exit codes: 0 shown, 4 not found, 5 there is no snapshot.";

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
    let noted = snapshots(&log).map_err(|error| Failure::new(Code::Failed, error))?;
    let last = noted.last().ok_or_else(|| no_snapshot(&session))?.note.clone();
    let from = Start::find(&session, &log, &noted, args.at_message)?;
    if !place.quiet && !args.json {
        from.words.iter().try_for_each(|words| output::note(words))?;
    }
    let repository = &from.note.repository;
    let snapshots = Snapshots::open_key(&dir.workspaces(), repository).map_err(failed)?;
    let snapshots = snapshots.leaving_out(&[dir.root().to_owned()]);
    let tree = files_now(&session, &last);
    if tree.is_none() && last.repository != *repository {
        let message = format!(
            "the files of session {} are gone since, and were recorded in another repository than at that message",
            session.id
        );
        return Err(Failure::message(Code::Refused, message).hint("-m names a message since then"));
    }
    let end = commit(&last.commit)?;
    let to = tree.as_ref().map_or(DiffTo::Commit(&end), DiffTo::Now);
    let diff = snapshots.diff(&commit(&from.commit)?, to, place::now()).map_err(failed)?;
    print(args, &session, &from, &diff)
}

/// Finds the folder in which a session's files are; none if it is gone, or was on another machine.
fn files_now(session: &Session, last: &SnapshotNote) -> Option<WorkTree> {
    let top = session.workspace.as_deref().unwrap_or(&last.top);
    let works_in = |directory: &Utf8PathBuf| {
        directory.canonicalize_utf8().is_ok_and(|directory| directory.starts_with(top))
    };
    // Of a folder that is now something else nothing is compared.
    let tree = WorkTree::find(top).ok().flatten().filter(|found| found.top == top);
    tree.filter(|_| session.working_directory.as_ref().is_none_or(works_in))
}

/// What a comparison begins with.
struct Start {
    note: SnapshotNote,
    /// The snapshot, or the commit that it is based on.
    commit: String,
    /// What is to be said of it.
    words: Option<String>,
}

impl Start {
    /// Finds the snapshot at a message; without one, that from before the session's first turn.
    fn find(
        session: &Session,
        log: &Utf8Path,
        noted: &[NotedSnapshot],
        at: Option<u64>,
    ) -> Outcome<Start> {
        let id = session.agent_session_id.as_ref();
        let begin = noted.iter().find(|it| id.is_some() && it.begins.as_ref() == id);
        let forked = session.forked_at_message.and_then(|number| u64::try_from(number).ok());
        if let Some(number) = at.or(forked.filter(|_| begin.is_none())) {
            let found = Start::at_message(log, number)?;
            let begin = begin.map(|begin| Start {
                words: Some(moved(number, "before the first turn")),
                ..Start::snapshot(&begin.note)
            });
            return found.or(begin).ok_or_else(|| no_snapshot(session));
        }
        if let Some(begin) = begin {
            return Ok(Start::snapshot(&begin.note));
        }
        let first = &noted.first().ok_or_else(|| no_snapshot(session))?.note;
        let Some(base) = &first.base else { return Ok(Start::snapshot(first)) };
        let words = "nothing was recorded before the first turn: it begins at the commit that was \
                     checked out, so that what was not committed by then is in it too";
        Ok(Start { note: first.clone(), commit: base.clone(), words: Some(words.to_owned()) })
    }

    fn snapshot(note: &SnapshotNote) -> Start {
        Start { note: note.clone(), commit: note.commit.clone(), words: None }
    }

    /// Finds the last snapshot that was taken up to a message.
    fn at_message(log: &Utf8Path, asked: u64) -> Outcome<Option<Start>> {
        let mut number = asked;
        while number > 0 {
            let cut = match find_cut(log, None, Some(number)) {
                Ok(cut) => cut,
                Err(CutError::NoneSafe { .. }) => break,
                Err(error) => return Err(Failure::new(Code::Refused, error)),
            };
            let Some(note) = cut.snapshot else {
                // That turn was not recorded.
                number = cut.number - 1;
                continue;
            };
            let words = moved(asked, &format!("at message {}", cut.number));
            let words = Some(words).filter(|_| cut.number != asked);
            return Ok(Some(Start { words, ..Start::snapshot(&note) }));
        }
        Ok(None)
    }
}

fn moved(asked: u64, to: &str) -> String {
    format!("no files were recorded at message {asked}: it begins {to}, the last time before it")
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

fn commit(text: &str) -> Outcome<Commit> {
    let none = || Failure::message(Code::Failed, "the log names no commit for a snapshot");
    Commit::parse(text).ok_or_else(none)
}

fn print(args: &DiffArgs, session: &Session, from: &Start, diff: &Diff) -> Outcome {
    if args.json {
        let patch = (!args.stat).then(|| String::from_utf8_lossy(&diff.patch));
        return Ok(output::json(&json!({
            "session": session.id, "from": from.note, "fromCommit": from.commit, "note": from.words, "summary": diff.summary, "patch": patch,
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
