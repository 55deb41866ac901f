//! `heeler session export`: a session in one file.

use std::io::{self, BufWriter, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use heeler_query::export::{SessionExport, SnapshotInclusion};
use heeler_store::bundle::{BundleChecksums, BundleExportError};

use crate::cli::{self, GlobalArgs};
use crate::context::{CommandContext, parent_dir};
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::OptionalFleetConfig;
use crate::output;

/// What the help of `session export` shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session export sess-1a2b > session.json
  heeler session export sess-1a2b -o session.json
  heeler session export sess-1a2b --workspace -o session.json     # with the files of each turn

In the file are the session's record and those of its jobs, every line of our log, and every line of
the agent's own file, which is what another machine needs to go on: all that was said, all that tools
gave. The fleet's secrets are taken out; what else is in there is for you to know before you give it
away. `session import` reads it.

With --workspace, the snapshots of its files are in it too, with the commits that they are based on:
for `session fork --workspace` and `session diff` there. Nothing is taken out of those: files may
hold secrets, also such as were deleted since. Of a fork that has not begun, what it goes on from is
exported.
Exit codes: 0 exported, 4 not found, 5 refused: there is no snapshot for --workspace.";

/// Arguments of `session export`.
#[derive(Args)]
pub(crate) struct SessionExportArgs {
    /// The session; a beginning of its id will do while only one begins so
    #[arg(add = cli::sessions())]
    id: String,
    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<Utf8PathBuf>,
    /// With the snapshots of its files, which may hold secrets
    #[arg(short = 'W', long)]
    workspace: bool,
}

/// Exports a session.
pub(crate) fn run(global: &GlobalArgs, args: &SessionExportArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    drop(super::find(&place, &args.id)?);
    // Of a `.env` that cannot be read nobody knows which secrets are to be taken out.
    let loaded = OptionalFleetConfig::load(&place)?.into_loaded();
    let files =
        if args.workspace { SnapshotInclusion::Included } else { SnapshotInclusion::Excluded };
    let export = place.open_records_with(loaded)?.export(&args.id, files)?;
    if args.workspace && !place.quiet {
        warn(&export)?;
    }
    let session = &export.session;
    let sums = match &args.output {
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            let sums = write(&export, &mut out)?;
            out.flush()?;
            sums
        }
        Some(file) => {
            let sums = write_to_file(&place.working_dir.join(file), &export)?;
            let lines = output::pluralize(sums.events.lines, "row");
            output::print_note(&format!("{} with {lines} is in {file}", session.id))?;
            sums
        }
    };
    if sums.own.is_none() && !place.quiet {
        let why = match &session.fork {
            Some(fork) => format!("the agent's own record of {} is gone", fork.source),
            None => "the agent's own record of it is gone, or it keeps none".to_owned(),
        };
        output::print_note(&format!("another machine can read the session but not go on: {why}"))?;
    }
    Ok(())
}

/// Says what is in the files that go with a session.
fn warn(export: &SessionExport) -> CommandResult {
    let what = output::pluralize(export.snapshots, "snapshot");
    let words = "hold the files as they were and the commits below them: know what is in there \
                 before you give it away, nothing is taken out";
    output::print_error(format!("warning: {what} may hold secrets: they {words}"))?;
    match export.snapshots_missing {
        0 => Ok(()),
        gone => {
            let gone = output::pluralize(gone, "snapshot");
            Ok(output::print_note(&format!("{gone} of this session are not kept any more"))?)
        }
    }
}

fn write(export: &SessionExport, out: &mut dyn io::Write) -> CommandResult<BundleChecksums> {
    export.write(out).map_err(|error| match error {
        // Whoever reads it may have had enough.
        BundleExportError::Write(error) => CommandFailure::from(error),
        error => CommandFailure::new(FailureCode::Failed, error),
    })
}

/// Writes a file, which appears under its name whole.
fn write_to_file(file: &Utf8Path, export: &SessionExport) -> CommandResult<BundleChecksums> {
    let mut temp = tempfile::NamedTempFile::new_in(parent_dir(file))?;
    let mut out = BufWriter::new(&mut temp);
    let sums = write(export, &mut out)?;
    out.flush()?;
    drop(out);
    temp.as_file().sync_all()?;
    temp.persist(file).map_err(|error| error.error)?;
    Ok(sums)
}
