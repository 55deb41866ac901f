//! Reports the outcome of a watched job, and derives the exit code. Start at [`report`].

use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use heeler_engine::EngineContext;
use heeler_model::run::{ErrorClass, RunError};
use heeler_model::{Job, JobId, JobStatus, Session, job_row};
use heeler_store::{StateDir, StoreReader};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::trigger_args::TriggerArgs;
use crate::commands::jobs;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::job_watch::JobWatchOutcome;
use crate::output::{self, SafeText};
use crate::process_env;

/// Time for a newly started daemon to settle a job that has lost its daemon.
const SETTLE_WAIT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the job once its end is recorded. Starts another daemon if the job's daemon died.
pub(super) fn wait_for_record(
    context: &CommandContext,
    id: &JobId,
    seen: &JobWatchOutcome,
) -> CommandResult<Job> {
    let mut job = context.recorded_job(id)?;
    // A job of a stopped fleet stays queued, so no daemon may be started for it.
    let is_left = job.head.status.is_final() || seen.interrupts > 2;
    if is_left || daemon::waits_for_start(context, id)? {
        return Ok(job);
    }
    // The open connection keeps a temporary daemon alive until the job is settled.
    let daemon = daemon::connect_or_start(context)?;
    let deadline = Instant::now() + SETTLE_WAIT;
    while !job.head.status.is_final() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
        job = context.recorded_job(id)?;
    }
    context.wait_for_views(&job)?;
    drop(daemon);
    Ok(job)
}

/// Prints the outcome of the job, and returns the matching exit code.
pub(super) fn report(
    global: &GlobalArgs,
    args: &TriggerArgs,
    context: &CommandContext,
    engine: &EngineContext,
    job: &Job,
    seen: &JobWatchOutcome,
) -> CommandResult {
    let reader = StoreReader::open(&engine.dir)?;
    // The job's outcome decides the exit code, even if it cannot be printed.
    if let Err(failure) = print_result(global, args, context, &reader, job, seen) {
        tracing::debug!(error = ?failure.error, "cannot print the outcome of the job");
    }
    // A job that succeeded in spite of Ctrl-C counts as a success.
    let success = job.head.status == JobStatus::Completed;
    match (success, seen.interrupts > 0) {
        (true, _) => Ok(()),
        (false, true) => Err(CommandFailure::silent(FailureCode::Interrupted)),
        // Only a stopped fleet leaves a watched job in the queue.
        (false, false) if job.head.status == JobStatus::Pending => {
            Err(CommandFailure::silent(FailureCode::NoDaemon))
        }
        (false, false) if is_busy(&reader, &engine.dir, job)? => {
            Err(CommandFailure::silent(FailureCode::Refused))
        }
        (false, false) => Err(CommandFailure::silent(FailureCode::Failed)),
    }
}

fn print_result(
    global: &GlobalArgs,
    args: &TriggerArgs,
    context: &CommandContext,
    reader: &StoreReader,
    job: &Job,
    seen: &JobWatchOutcome,
) -> CommandResult {
    let success = job.head.status == JobStatus::Completed;
    // The record has only a shortened summary.
    let answer = seen.answer.as_deref().or(job.head.summary.as_deref());
    if args.json {
        let job = context.open_records()?.job_details(reader, job.clone())?;
        let mut document = json!({ "success": success, "result": answer, "job": job });
        if let Some(fork) = &args.forked {
            document["fork"] = fork.clone();
        }
        return Ok(output::print_json(&document)?);
    }
    // A failure is printed even with `--quiet`: it is an error, not a note.
    if global.quiet && success {
        return Ok(answer.map(output::print_line).transpose().map(drop)?);
    }
    print_outcome(args, job, reader, &context.dir()?, seen)
}

/// Returns true if the job failed because its session has external messages.
pub(super) fn is_session_moved(engine: &EngineContext, job: &Job) -> CommandResult<bool> {
    let error = jobs::last_error(&StoreReader::open(&engine.dir)?, &engine.dir, &job.head.id)?;
    Ok(error.is_some_and(|error| error.class == ErrorClass::SessionMovedOn))
}

/// Returns true if the job failed because its session was in use or has external messages.
fn is_busy(reader: &StoreReader, dir: &StateDir, job: &Job) -> CommandResult<bool> {
    let error = jobs::last_error(reader, dir, &job.head.id)?;
    Ok(error.is_some_and(|error| {
        matches!(error.class, ErrorClass::SessionBusy | ErrorClass::SessionMovedOn)
    }))
}

/// Prints the status, duration and cost of the job, and the next command.
fn print_outcome(
    args: &TriggerArgs,
    job: &Job,
    reader: &StoreReader,
    dir: &StateDir,
    seen: &JobWatchOutcome,
) -> CommandResult {
    let head = &job.head;
    let took = head.duration_ms.map(|took| format!(" in {}", job_row::format_duration(took)));
    let cost = output::format_price(head.cost_usd).map(|cost| format!(", {cost}"));
    let session = match &head.session_id {
        Some(id) => reader.session_by_agent_id(id)?,
        None => None,
    };
    // A session without a message, or without a native session, cannot be continued.
    let goes_on = |session: &Session| session.message_count > 0 && session.own.is_some();
    let resumable = session.filter(goes_on);
    let in_session = resumable.as_ref().map(|session| format!(", {}", session.id));
    let rest = [took, cost, in_session].into_iter().flatten().collect::<String>();
    // On stderr, because stdout holds only the agent's messages.
    output::print_error(status_symbol(head.status).append(rest))?;
    if seen.denied_unasked > 0 {
        let were = if seen.denied_unasked == 1 { "was" } else { "were" };
        let denied = output::pluralize(seen.denied_unasked, "request");
        output::print_error(format!(
            "  {denied} {were} denied, because there was no one to ask; see allowed_tools and permission_mode"
        ))?;
    }
    let error = jobs::last_error(reader, dir, &head.id)?;
    if head.status == JobStatus::Failed {
        print_run_error(error.as_ref(), job, seen)?;
    }
    let next = next_command(args, job, error.as_ref(), resumable.as_ref());
    Ok(output::print_error(SafeText::styled(Style::new().dimmed(), &format!("  next: {next}")))?)
}

fn status_symbol(status: JobStatus) -> SafeText {
    match status {
        JobStatus::Completed => SafeText::styled(AnsiColor::Green.on_default(), "✓ completed"),
        JobStatus::Cancelled => SafeText::styled(AnsiColor::Yellow.on_default(), "✗ cancelled"),
        JobStatus::Failed => SafeText::styled(AnsiColor::Red.on_default(), "✗ failed"),
        JobStatus::Pending => SafeText::styled(AnsiColor::Cyan.on_default(), "· waiting"),
        JobStatus::Running => SafeText::styled(AnsiColor::Cyan.on_default(), "· still running"),
    }
}

/// Returns the most likely next command.
fn next_command(
    args: &TriggerArgs,
    job: &Job,
    error: Option<&RunError>,
    session: Option<&Session>,
) -> String {
    let head = &job.head;
    // After other failures the same session would most likely fail again.
    let goes_on = match head.status {
        JobStatus::Failed => error.is_some_and(|error| was_cut_off(error.class)),
        status => status.is_final(),
    };
    match (head.status, session) {
        (_, Some(session)) if goes_on => {
            format!("heeler trigger {} --session {} -p '…'", args.agent, session.id)
        }
        (JobStatus::Completed, None) => format!("heeler jobs logs {}", head.id),
        (JobStatus::Running | JobStatus::Pending, _) => format!("heeler jobs logs {} -f", head.id),
        _ => format!("heeler jobs show {}", head.id),
    }
}

/// Returns true if the session is intact and can simply be continued.
fn was_cut_off(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Budget | ErrorClass::MaxTurns | ErrorClass::Interrupted)
}

/// Prints the error unless it was shown already, the time of the next attempt, and the remedy.
fn print_run_error(error: Option<&RunError>, job: &Job, seen: &JobWatchOutcome) -> CommandResult {
    let message = error.map(|error| error.message.as_str()).or(job.error.as_deref());
    // The watch has printed the agent's own error, which is often the same text.
    let shown = seen.error.as_deref().map(str::trim);
    if let Some(message) = message.map(str::trim).filter(|message| shown != Some(message)) {
        output::print_error(format!("  {message}"))?;
    }
    let Some(error) = error else { return Ok(()) };
    if let Some(when) = retry_time_text(error, process_env::now(), &TimeZone::system()) {
        output::print_error(format!("  retry not before: {when}"))?;
    }
    if !error.cure.is_empty() {
        output::print_error(format!("  fix: {}", error.cure))?;
    }
    Ok(())
}

/// Returns the time at which the API accepts requests again, if it told.
fn retry_time_text(error: &RunError, now: Timestamp, here: &TimeZone) -> Option<String> {
    let wait = error.retry_after_ms.and_then(|ms| i64::try_from(ms).ok());
    let after = wait.and_then(|ms| now.checked_add(SignedDuration::from_millis(ms)).ok());
    // The time of a reset is exact; a waiting time counts from the reply that carried it.
    let at = error.resets_at.or(after)?;
    let form = match at.duration_since(now) < SignedDuration::from_hours(24) {
        true => "%H:%M:%S",
        false => "%Y-%m-%d %H:%M",
    };
    let clock = at.to_zoned(here.clone()).strftime(form);
    Some(format!("{clock} ({})", output::relative_time(at, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moment_from_which_the_api_takes_requests_again_is_told() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let mut error = RunError::new(ErrorClass::RateLimited, "slow down");
        let when = |error: &RunError| retry_time_text(error, now, &TimeZone::UTC);
        assert_eq!(when(&error), None);
        error.retry_after_ms = Some(90_000);
        assert_eq!(when(&error).unwrap(), "12:01:30 (in 1m)");
        error.resets_at = Some("2026-11-18T15:30:00Z".parse().unwrap());
        assert_eq!(when(&error).unwrap(), "2026-11-18 15:30 (in 3d)");
        error.retry_after_ms = Some(u64::MAX);
        error.resets_at = None;
        assert_eq!(when(&error), None);
    }
}
