//! Adoption of a herdctl state directory in place, by the first command that runs in it. Start at
//! [`adopt_if_foreign`].

use std::time::{Duration, Instant};

use heeler_import::{AdoptError, AdoptionReport, ImportItemKind};
use heeler_model::job_row;
use heeler_transcript::LockFile;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;
use crate::process_env;

/// Longest wait for a database that another process is about to create.
const WRITER_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Adopts the state directory if it is herdctl's and not yet adopted, and prints a one-line
/// summary.
pub(crate) fn adopt_if_foreign(context: &CommandContext) -> CommandResult {
    if !heeler_store::is_adoptable(&context.state_dir) {
        return Ok(());
    }
    wait_for_writer(context)?;
    if !heeler_store::is_adoptable(&context.state_dir) {
        return Ok(());
    }
    refuse_lost_database(context)?;
    let start = Instant::now();
    let adopted = heeler_import::adopt(&context.state_dir, process_env::now()).map_err(failure)?;
    // Another process may have adopted the directory since the check above.
    let Some(adoption) = adopted else { return Ok(()) };
    // The scripts of a herdctl user read `state.yaml` and `sessions/`, so these must exist at once.
    publish_views(context, "adopt");
    if !context.quiet {
        let took = i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX);
        output::print_note(&adoption_summary(context, &adoption, took))?;
    }
    Ok(())
}

/// Waits for a process that writes the directory: it is about to create the database, by adoption or
/// as a new daemon, or to write back a deleted one.
fn wait_for_writer(context: &CommandContext) -> CommandResult {
    let (dir, deadline) = (context.dir()?, Instant::now() + WRITER_WAIT);
    // A lock that cannot be probed is reported by the adoption.
    let is_locked = || LockFile::probe(&dir.lock()).is_ok_and(|held| held.is_some());
    while Instant::now() < deadline && !dir.has_database() && is_locked() {
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Publishes the views, so that they agree with the database, and makes the day's backup.
///
/// Opening the store publishes the views. If another process has become the writer, that process
/// publishes them.
pub(crate) fn publish_views(context: &CommandContext, command: &str) {
    let now = process_env::now();
    let done = context.store(command, now).map_err(|failure| failure.error);
    let done = done.and_then(|store| Ok(store.backup_daily(now)?));
    if let Err(error) = done {
        // The state itself is complete. The next writer publishes the views again.
        tracing::warn!("the views or the database backup were not written: {error:#}");
    }
}

/// Refuses a directory that has Heeler's backups but no database: `heeler doctor` must repair it.
fn refuse_lost_database(context: &CommandContext) -> CommandResult {
    // The next command completes an interrupted rebuild or restore.
    if context.state_dir.join("rebuild.json").exists() {
        return Ok(());
    }
    let backups = context.state_dir.join("backups").read_dir_utf8();
    if backups.is_ok_and(|mut entries| entries.next().is_some()) {
        let message = format!("{} has lost its database", context.state_dir);
        return Err(
            CommandFailure::message(FailureCode::Failed, message).hint("heeler doctor --rebuild")
        );
    }
    Ok(())
}

fn adoption_summary(
    context: &CommandContext,
    adoption: &AdoptionReport,
    milliseconds: i64,
) -> String {
    let report = &adoption.report;
    let (jobs, sessions) = (
        report.counts_for(ImportItemKind::Job).imported,
        report.counts_for(ImportItemKind::Session).imported,
    );
    let mut text = format!(
        "adopted herdctl's state in {}: {}, {}",
        context.state_dir,
        output::pluralize(jobs, "job"),
        output::pluralize(sessions, "session")
    );
    if adoption.interrupted > 0 {
        text += &format!(", {} left unfinished by a crash", adoption.interrupted);
    }
    if !report.refused.is_empty() {
        text += &format!(", {} unreadable (see: heeler doctor)", report.refused.len());
    }
    if adoption.originals_kept > 0 {
        text += &format!("; originals kept in .before-heeler ({})", adoption.originals_kept);
    }
    format!("{text}; took {}", job_row::format_duration(milliseconds))
}

fn failure(error: AdoptError) -> CommandFailure {
    match error {
        // These three leave the directory unchanged, so the command can simply be repeated later.
        AdoptError::HerdctlRunning { .. }
        | AdoptError::ReadOnly { .. }
        | AdoptError::Locked { .. } => CommandFailure::new(FailureCode::Refused, error),
        AdoptError::Layout(error) => error.into(),
        AdoptError::Build { .. } => CommandFailure::new(FailureCode::Failed, error),
    }
}
