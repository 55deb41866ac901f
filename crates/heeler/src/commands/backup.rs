//! `heeler backup FILE` and `heeler restore FILE`: [`run`] and [`restore`].

use std::io::IsTerminal as _;

use camino::Utf8PathBuf;
use clap::{Args, ValueHint};
use heeler_store::{RestoreError, RestoreReport, StateDir, backup_to_file, restore_from_file};
use serde_json::json;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, ProgressIndicator};
use crate::process_env;

/// State that no backup holds, because it contains the whole history of the agents' repositories.
const NOT_IN_BACKUP: &str = "workspaces/ and worktrees/ (snapshots and files of forks, with all commits of \
                       your repositories); copy these folders yourself (cp -a), or use `heeler session \
                       export --workspace` for a session";

/// Arguments of `backup`.
#[derive(Args)]
#[command(
    after_help = "The file holds the database, all transcripts and the files that agents sent. It does not hold
snapshots and files of forks (workspaces/ and worktrees/): they contain the whole history of the
agents' repositories. Copy these folders yourself, or use `heeler session export --workspace`."
)]
pub(crate) struct BackupArgs {
    /// File to write: `.tar`, or compressed `.tar.gz` or `.tgz`
    #[arg(value_hint = ValueHint::FilePath)]
    file: Utf8PathBuf,
    /// Replace the file if it exists
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `restore`.
#[derive(Args)]
#[command(
    after_help = "The current database is backed up first. Missing transcripts are restored; existing ones are never shortened."
)]
pub(crate) struct RestoreArgs {
    /// File written by `heeler backup`
    #[arg(value_hint = ValueHint::FilePath)]
    file: Utf8PathBuf,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `backup`.
pub(crate) fn run(global: &GlobalArgs, args: &BackupArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    if context.open_reader()?.is_none() {
        let message = format!("there is nothing to back up in {}", context.state_dir);
        return Err(CommandFailure::message(FailureCode::NotFound, message));
    }
    // The extension decides about compression, so an unknown one is refused before any work.
    check_name(args)?;
    let progress = ProgressIndicator::bytes("backing up", context.quiet || args.json);
    let report =
        backup_to_file(&context.dir()?, &args.file, process_env::now(), &mut |done, all| {
            progress.update(done, all);
        });
    progress.end();
    let report = report.map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
    let manifest = &report.manifest;
    let without = ["workspaces", "worktrees"];
    let without: Vec<_> = without.iter().filter(|it| context.state_dir.join(it).exists()).collect();
    if args.json {
        return Ok(output::print_json(&json!({
            "file": args.file, "without": without, "bytes": report.bytes, "jobs": manifest.jobs,
            "sessions": manifest.sessions, "files": manifest.files.len(),
            "skipped": report.skipped,
        }))?);
    }
    if !without.is_empty() {
        output::print_line(format!("left out: {NOT_IN_BACKUP}"))?;
    }
    for skipped in &report.skipped {
        output::print_line(format!("left out: {skipped}"))?;
    }
    Ok(output::print_line(format!(
        "wrote {}: {}, {}, {}, {}",
        args.file,
        output::pluralize(manifest.jobs.unsigned_abs(), "job"),
        output::pluralize(manifest.sessions.unsigned_abs(), "session"),
        output::pluralize(manifest.files.len() as u64, "file"),
        output::format_size(report.bytes),
    ))?)
}

/// Checks the file's extension, and refuses to replace a file without `--force`.
fn check_name(args: &BackupArgs) -> CommandResult {
    let known =
        [".tar", ".tar.gz", ".tgz"].iter().any(|ending| args.file.as_str().ends_with(ending));
    if !known {
        let message = format!("{} does not end in .tar, .tar.gz or .tgz", args.file);
        return Err(CommandFailure::message(FailureCode::Usage, message));
    }
    if args.file.exists() && !args.force {
        let message = format!("{} exists; it was not changed", args.file);
        return Err(
            CommandFailure::message(FailureCode::Refused, message).hint("--force replaces it")
        );
    }
    Ok(())
}

/// Runs `restore`.
pub(crate) fn restore(global: &GlobalArgs, args: &RestoreArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // A database that cannot be read is there too; the restore sets it aside.
    let is_present = context.open_reader().map_or(true, |reader| reader.is_some());
    if is_present && !args.yes {
        confirm(&context, args)?;
    }
    // A restore on a new machine has no state directory yet.
    let dir = StateDir::create(&context.state_dir)?;
    let progress = ProgressIndicator::bytes("restoring", context.quiet || args.json);
    let report = restore_from_file(&dir, &args.file, process_env::now(), &mut |done, all| {
        progress.update(done, all);
    });
    progress.end();
    let report = report.map_err(|error| match error {
        RestoreError::BadArchive { .. } => CommandFailure::new(FailureCode::Failed, error),
        RestoreError::Lock(_) => CommandFailure::new(FailureCode::Refused, error),
        other => CommandFailure::new(FailureCode::Failed, other),
    })?;
    // The views on disk still describe the state before the restore.
    crate::adopt::publish_views(&context, "restore");
    print(args, &report)
}

fn confirm(context: &CommandContext, args: &RestoreArgs) -> CommandResult {
    let question = format!("Replace the state in {} with {}?", context.state_dir, args.file);
    // No prompt in a script: it must say `--yes`, so that it replaces nothing by accident.
    if !std::io::stdin().is_terminal() {
        let message = format!("{} already holds a fleet's state", context.state_dir);
        return Err(CommandFailure::message(FailureCode::Refused, message)
            .hint("--yes replaces it; the current database is backed up first"));
    }
    match output::confirm(&question, false)? {
        true => Ok(()),
        false => Err(CommandFailure::message(FailureCode::Refused, "nothing was changed")),
    }
}

fn print(args: &RestoreArgs, report: &RestoreReport) -> CommandResult {
    let manifest = &report.manifest;
    if args.json {
        return Ok(output::print_json(&json!({
            "file": args.file, "createdAt": manifest.created_at, "jobs": manifest.jobs,
            "sessions": manifest.sessions, "putBack": report.restored,
            "keptBeside": report.conflict_copies, "safetyBackup": report.safety_backup, "damaged": report.damaged,
        }))?);
    }
    output::print_line(format!(
        "restored {} and {} from {} of {}",
        output::pluralize(manifest.jobs.unsigned_abs(), "job"),
        output::pluralize(manifest.sessions.unsigned_abs(), "session"),
        args.file,
        heeler_model::iso_millis(manifest.created_at),
    ))?;
    if !report.restored.is_empty() {
        output::print_line(format!(
            "put back {}",
            output::pluralize(report.restored.len() as u64, "file")
        ))?;
    }
    for path in &report.conflict_copies {
        output::print_line(format!("differs from the existing file; the restored copy is {path}"))?;
    }
    // A damaged database cannot be backed up; it is moved aside as it is.
    if let Some(path) = report.safety_backup.as_ref().or(report.damaged.as_ref()) {
        output::print_line(format!("the previous state is in {path}"))?;
    }
    Ok(())
}
