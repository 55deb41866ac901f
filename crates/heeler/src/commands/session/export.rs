//! `heeler session export`: writes a session to one file. Start at [`run`].

use std::io::{self, BufWriter, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use heeler_query::export::{SessionExport, SnapshotInclusion};
use heeler_store::bundle::{BundleChecksums, BundleExportError};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::OptionalFleetConfig;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;
use crate::text_file::parent_dir;

/// Help footer of `session export`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session export sess-1a2b > session.json
  heeler session export sess-1a2b -o session.json
  heeler session export sess-1a2b --workspace -o session.json     # with the files of each turn

The file holds the records of the session and its jobs, every row of its transcript, and every line of
the native session, which another machine needs to continue it. Native sessions of OpenCode, goose and
Mistral Vibe are not included: they are in a database, or in many files. All messages and tool results
are included. The fleet's secrets are removed; check the rest before you share the file. `session
import` reads it.

With --workspace, the file also holds the snapshots of the session's files, with the commits they are
based on, for `session fork --workspace` and `session diff` on the other machine. Secrets are
not removed from snapshots, and a snapshot may hold files that were deleted later. For a fork that has
not started, its source up to the fork point is exported.
Exit codes: 0 exported, 4 not found, 5 refused: there is no snapshot for --workspace.";

/// Arguments of `session export`.
#[derive(Args)]
pub(crate) struct SessionExportArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<Utf8PathBuf>,
    /// Include the snapshots of its files, which may hold secrets
    #[arg(short = 'W', long)]
    workspace: bool,
}

/// Runs `session export`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionExportArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // This lookup also knows deleted sessions, and tells how to restore one.
    drop(context.find_session(&args.id)?);
    // Fail if `.env` cannot be read: its secrets could not be removed from the export.
    let loaded = OptionalFleetConfig::load(&context)?.into_loaded();
    let files =
        if args.workspace { SnapshotInclusion::Included } else { SnapshotInclusion::Excluded };
    let export = context.open_records_with(loaded)?.export(&args.id, files)?;
    if args.workspace && !context.quiet {
        warn(&export)?;
    }
    let session = &export.session;
    let sums = match &args.output {
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            let sums = write(&export, &mut out)?;
            // `drop` would ignore an error, and the output would be incomplete without notice.
            out.flush()?;
            sums
        }
        Some(file) => {
            let sums = write_to_file(&context.working_dir.join(file), &export)?;
            let lines = output::pluralize(sums.events.lines, "row");
            output::print_note(&format!("wrote {} with {lines} to {file}", session.id))?;
            sums
        }
    };
    // The export is not refused: reading the session elsewhere is useful too.
    if sums.own.is_none() && sums.native.is_none() && !context.quiet {
        let (use_there, why) = match (&session.fork, &export.native_omitted) {
            (Some(fork), _) => {
                ("", format!("the native session of {} no longer exists", fork.source))
            }
            (None, Some(reason)) => (" and fork it as text", reason.clone()),
            (None, None) => {
                ("", "its native session no longer exists, or its runtime keeps none".to_owned())
            }
        };
        output::print_note(&format!(
            "another machine can show this session{use_there}, but not continue it: {why}"
        ))?;
    }
    Ok(())
}

/// Warns about the content of exported snapshots.
fn warn(export: &SessionExport) -> CommandResult {
    let what = output::pluralize(export.snapshots, "snapshot");
    let words = "hold the files as they were and the commits they are based on. Nothing is removed: \
                 check the content before you share the file";
    // Not dimmed like a note, because it must be seen.
    output::print_error(format!("warning: {what} may contain secrets: they {words}"))?;
    match export.snapshots_missing {
        0 => Ok(()),
        gone => {
            let gone = output::pluralize(gone, "snapshot");
            Ok(output::print_note(&format!("{gone} of this session no longer exist"))?)
        }
    }
}

fn write(export: &SessionExport, out: &mut dyn io::Write) -> CommandResult<BundleChecksums> {
    export.write(out).map_err(|error| match error {
        // The reader of stdout may have closed the pipe, which is no failure.
        BundleExportError::Write(error) => CommandFailure::from(error),
        error => CommandFailure::new(FailureCode::Failed, error),
    })
}

/// Writes a file that appears under its name only when complete.
fn write_to_file(file: &Utf8Path, export: &SessionExport) -> CommandResult<BundleChecksums> {
    let mut temp = tempfile::NamedTempFile::new_in(parent_dir(file))?;
    let mut out = BufWriter::new(&mut temp);
    let sums = write(export, &mut out)?;
    out.flush()?;
    drop(out);
    // The rename must not become durable before the content.
    temp.as_file().sync_all()?;
    temp.persist(file).map_err(|error| error.error)?;
    Ok(sums)
}
