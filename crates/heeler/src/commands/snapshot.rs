//! `heeler snapshot`: records the work tree of this folder. A run starts it at the end of each turn.

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::error_chain;
use heeler_workspace::{Snapshot, SnapshotError, SnapshotName, SnapshotStore, WorkTree};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::{context, output};

/// Arguments of `snapshot`.
#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// The folder of our repositories, in the state directory
    #[arg(long, value_name = "DIR")]
    into: Utf8PathBuf,
    /// What the snapshot is called
    #[arg(long, value_name = "SESSION/MESSAGE")]
    name: String,
    /// What is said of it
    #[arg(long, value_name = "TEXT")]
    note: String,
}

/// Records, and says what: one line, also when it fails.
pub(crate) fn run(args: &SnapshotArgs) -> CommandResult {
    let name = SnapshotName::parse(&args.name)
        .map_err(|error| CommandFailure::message(FailureCode::Usage, error.to_string()))?;
    let cwd = context::working_directory()?;
    let answer = match take(&cwd, args, &name, context::now()) {
        Ok(snapshot) => json!({ "snapshot": snapshot }),
        Err(error) => json!({ "error": error_chain(&error) }),
    };
    output::print_json_line(&answer.to_string())?;
    Ok(())
}

/// Takes the snapshot; none where there is no repository.
fn take(
    cwd: &Utf8Path,
    args: &SnapshotArgs,
    name: &SnapshotName,
    now: Timestamp,
) -> Result<Option<Json>, SnapshotError> {
    let Some(tree) = WorkTree::find(cwd)? else { return Ok(None) };
    // What we write there while the agent works is no work of its.
    let state: Vec<Utf8PathBuf> = args.into.parent().map(Utf8Path::to_owned).into_iter().collect();
    let snapshots = SnapshotStore::open(&args.into, &tree)?.excluding(&state);
    let Snapshot { commit, base, branch, omissions: left_out } =
        snapshots.take(&tree, name, &args.note, now)?;
    let below = cwd.strip_prefix(&tree.top).unwrap_or(Utf8Path::new(""));
    Ok(Some(json!({
        "commit": commit.as_str(), "base": base.as_ref().map(|base| base.as_str()),
        "branch": branch, "repository": snapshots.key(), "top": tree.top, "cwd": below,
        "leftOut": left_out,
    })))
}
