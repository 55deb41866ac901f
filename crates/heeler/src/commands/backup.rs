//! `heeler backup FILE` and `heeler restore FILE`.

use std::io::IsTerminal as _;

use camino::Utf8PathBuf;
use clap::{Args, ValueHint};
use heeler_store::{RestoreError, RestoreReport, StateDir, backup_to_file, restore_from_file};
use serde_json::json;

use crate::cli::Global;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Progress};
use crate::place::{self, Place};

/// What is in no backup: it holds the whole history of the repositories that agents work in.
const WITHOUT: &str = "workspaces/ and worktrees/, the snapshots and files of forks, with all commits \
                       of your repositories; copy these folders yourself (cp -a), or `heeler session \
                       export --workspace` a session";

/// Arguments of `backup`.
#[derive(Args)]
#[command(
    after_help = "In the file are the database, all transcripts and what agents sent. Snapshots and files of forks
(workspaces/ and worktrees/) are not: they hold the whole history of the repositories that agents
work in. Copy these folders yourself, or use `heeler session export --workspace`."
)]
pub(crate) struct BackupArgs {
    /// The file to write: `.tar`, or compressed `.tar.gz` or `.tgz`
    #[arg(value_hint = ValueHint::FilePath)]
    file: Utf8PathBuf,
    /// Replace the file when it exists
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `restore`.
#[derive(Args)]
#[command(
    after_help = "The present database is backed up first; transcripts are put back where they are missing, never shortened."
)]
pub(crate) struct RestoreArgs {
    /// A file that `heeler backup` wrote
    #[arg(value_hint = ValueHint::FilePath)]
    file: Utf8PathBuf,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Writes the state directory to one file.
pub(crate) fn run(global: &Global, args: &BackupArgs) -> Outcome {
    let place = Place::find(global)?;
    if place.reader()?.is_none() {
        let message = format!("there is nothing to back up in {}", place.state_dir);
        return Err(Failure::message(Code::NotFound, message));
    }
    check_name(args)?;
    let progress = Progress::bytes("backing up", place.quiet || args.json);
    let report = backup_to_file(&place.dir()?, &args.file, place::now(), &mut |done, all| {
        progress.at(done, all);
    });
    progress.end();
    let report = report.map_err(|error| Failure::new(Code::Failed, error))?;
    let manifest = &report.manifest;
    let without = ["workspaces", "worktrees"];
    let without: Vec<_> = without.iter().filter(|it| place.state_dir.join(it).exists()).collect();
    if args.json {
        return Ok(output::json(&json!({
            "file": args.file, "without": without, "bytes": report.bytes, "jobs": manifest.jobs,
            "sessions": manifest.sessions, "files": manifest.files.len(),
            "skipped": report.skipped,
        }))?);
    }
    if !without.is_empty() {
        output::line(format!("left out: {WITHOUT}"))?;
    }
    for skipped in &report.skipped {
        output::line(format!("left out: {skipped}"))?;
    }
    Ok(output::line(format!(
        "wrote {}: {}, {}, {}, {}",
        args.file,
        output::counted(manifest.jobs.unsigned_abs(), "job"),
        output::counted(manifest.sessions.unsigned_abs(), "session"),
        output::counted(manifest.files.len() as u64, "file"),
        output::size(report.bytes),
    ))?)
}

/// A backup replaces nothing unasked, and is what its name says.
fn check_name(args: &BackupArgs) -> Outcome {
    let known =
        [".tar", ".tar.gz", ".tgz"].iter().any(|ending| args.file.as_str().ends_with(ending));
    if !known {
        let message = format!("{} does not end in .tar, .tar.gz or .tgz", args.file);
        return Err(Failure::message(Code::Usage, message));
    }
    if args.file.exists() && !args.force {
        let message = format!("{} exists; it was not changed", args.file);
        return Err(Failure::message(Code::Refused, message).hint("--force replaces it"));
    }
    Ok(())
}

/// Brings a backup back.
pub(crate) fn restore(global: &Global, args: &RestoreArgs) -> Outcome {
    let place = Place::find(global)?;
    let there = place.reader()?;
    if there.is_some() && !args.yes {
        confirm(&place, args)?;
    }
    drop(there);
    let dir = StateDir::create(&place.state_dir)?;
    let progress = Progress::bytes("restoring", place.quiet || args.json);
    let report =
        restore_from_file(&dir, &args.file, place::now(), &mut |done, all| progress.at(done, all));
    progress.end();
    let report = report.map_err(|error| match error {
        RestoreError::BadArchive { .. } => Failure::new(Code::Failed, error),
        RestoreError::Lock(_) => Failure::new(Code::Refused, error),
        other => Failure::new(Code::Failed, other),
    })?;
    crate::adopt::publish(&place, "restore");
    print(args, &report)
}

fn confirm(place: &Place, args: &RestoreArgs) -> Outcome {
    let question = format!("Replace the state in {} by {}?", place.state_dir, args.file);
    if !std::io::stdin().is_terminal() {
        let message = format!("{} has state already", place.state_dir);
        return Err(Failure::message(Code::Refused, message)
            .hint("--yes replaces it; the present database is backed up first"));
    }
    match output::ask(&question, false)? {
        true => Ok(()),
        false => Err(Failure::message(Code::Refused, "nothing was changed")),
    }
}

fn print(args: &RestoreArgs, report: &RestoreReport) -> Outcome {
    let manifest = &report.manifest;
    if args.json {
        return Ok(output::json(&json!({
            "file": args.file, "createdAt": manifest.created_at, "jobs": manifest.jobs,
            "sessions": manifest.sessions, "putBack": report.put_back,
            "keptBeside": report.kept_beside, "safetyBackup": report.safety_backup, "damaged": report.damaged,
        }))?);
    }
    output::line(format!(
        "restored {} and {} from {} of {}",
        output::counted(manifest.jobs.unsigned_abs(), "job"),
        output::counted(manifest.sessions.unsigned_abs(), "session"),
        args.file,
        heeler_model::iso_millis(manifest.created_at),
    ))?;
    if !report.put_back.is_empty() {
        output::line(format!(
            "put back {}",
            output::counted(report.put_back.len() as u64, "file")
        ))?;
    }
    for path in &report.kept_beside {
        output::line(format!("differs from what is there, kept beside it: {path}"))?;
    }
    if let Some(path) = report.safety_backup.as_ref().or(report.damaged.as_ref()) {
        output::line(format!("the state before is in {path}"))?;
    }
    Ok(())
}
