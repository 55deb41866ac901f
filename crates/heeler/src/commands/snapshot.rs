//! `heeler snapshot`: records the files of the working directory. A run starts it at the end of
//! each turn.

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::error_chain;
use heeler_workspace::{Snapshot, SnapshotError, SnapshotName, SnapshotStore, WorkTree};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;
use crate::process_env;

/// Arguments of `snapshot`.
#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// Folder of the snapshot repositories in the state directory
    #[arg(long, value_name = "DIR")]
    into: Utf8PathBuf,
    /// Name of the snapshot
    #[arg(long, value_name = "SESSION/MESSAGE")]
    name: String,
    /// Message of the snapshot
    #[arg(long, value_name = "TEXT")]
    note: String,
}

/// Takes a snapshot, and prints one line of JSON, even on failure.
pub(crate) fn run(args: &SnapshotArgs) -> CommandResult {
    let name = SnapshotName::parse(&args.name)
        .map_err(|error| CommandFailure::message(FailureCode::Usage, error.to_string()))?;
    let cwd = process_env::working_directory()?;
    let answer = match take(&cwd, args, &name, process_env::now()) {
        Ok(snapshot) => json!({ "snapshot": snapshot }),
        // A failed snapshot must not fail the run, so the runner reads the error from the output.
        Err(error) => json!({ "error": error_chain(&error) }),
    };
    output::print_json_line(&answer.to_string())?;
    Ok(())
}

/// Takes the snapshot; returns `None` outside a git repository.
fn take(
    cwd: &Utf8Path,
    args: &SnapshotArgs,
    name: &SnapshotName,
    now: Timestamp,
) -> Result<Option<Json>, SnapshotError> {
    let Some(tree) = WorkTree::find(cwd)? else { return Ok(None) };
    // Leave out the state directory: Heeler writes there while the agent works.
    let state: Vec<Utf8PathBuf> = args.into.parent().map(Utf8Path::to_owned).into_iter().collect();
    let snapshots = SnapshotStore::open(&args.into, &tree)?.excluding(&state);
    let Snapshot { commit, base, branch, omissions: left_out } =
        snapshots.take(&tree, name, &args.note, now)?;
    // A fork's worktree holds the whole repository, so the agent's place in it must be known.
    let below = cwd.strip_prefix(&tree.top).unwrap_or(Utf8Path::new(""));
    Ok(Some(json!({
        "commit": commit.as_str(), "base": base.as_ref().map(|base| base.as_str()),
        "branch": branch, "repository": snapshots.key(), "top": tree.top, "cwd": below,
        "leftOut": left_out,
    })))
}
