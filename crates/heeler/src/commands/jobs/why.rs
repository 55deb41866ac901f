//! `heeler jobs why`: the reason for which a job waits, and for the host that executes it. Start at
//! [`why`].

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::JobStatus;
use heeler_query::jobs::JobDetails;
use heeler_store::ASSIGNED_RUN;
use serde_json::json;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;

/// Help footer of `jobs why`.
pub(crate) const WHY: &str = "Examples:
  heeler jobs why k3v9q1
  heeler jobs why k3v9q1 --json

A queued job waits for a limit, a budget, a parked credential, its session, a host, or a daemon. In a fleet with
several hosts the reason for the choice of the host is shown too. Exit codes: 0 shown, 4 no such job.";

/// Arguments of `jobs why`.
#[derive(Args)]
pub(crate) struct JobWhyArgs {
    /// Job ID or unique prefix
    #[arg(add = shared_args::jobs())]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `jobs why`.
pub(super) fn why(global: &GlobalArgs, args: &JobWhyArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // Fails with a better message than an empty reader would: there is no state at all.
    drop(context.reader_for("job", &args.id)?);
    let job = context.open_records()?.job(&args.id)?;
    let current = match job.item.status {
        JobStatus::Pending => current_reason(&context, &job.item.id)?,
        _ => None,
    };
    let reason = reason(&job, current);
    let run = job.runs.last();
    if args.json {
        return Ok(output::print_json(&json!({
            "job": job.item.id,
            "status": job.item.status,
            "reason": reason,
            "notBefore": job.not_before,
            "expiresAt": job.expires_at,
            "host": run.map(|run| &run.host),
            "placement": run.and_then(|run| run.placement.as_ref()),
        }))?);
    }
    output::print_field("job", Some(job.item.id.as_str().into()))?;
    output::print_field("status", Some(job.item.status.as_str().into()))?;
    output::print_field("reason", Some(reason.as_str().into()))?;
    let not_before = job.not_before.map(|at| heeler_model::iso_millis(at).into());
    output::print_field("not before", not_before)?;
    output::print_field("expires", job.expires_at.map(|at| heeler_model::iso_millis(at).into()))?;
    // Without a reason the fleet has one machine, which says nothing.
    if let Some((run, placement)) = run.and_then(|run| Some((run, run.placement.as_ref()?))) {
        let text = format!("{}: {}", output::one_line(&run.host), output::one_line(placement));
        output::print_field("host", Some(text.as_str().into()))?;
    }
    Ok(())
}

/// Returns the reason that the daemon has now; `None` without a daemon, or if the job waits no more.
fn current_reason(context: &CommandContext, job: &str) -> CommandResult<Option<String>> {
    let Some(mut client) = daemon::connect(context)? else { return Ok(None) };
    let reply = client.send_command(&DaemonCommand::Status, Some(daemon::ANSWER_WAIT));
    // The record has the reason at the last attempt, which is better than none.
    let Ok(CommandReply::Status(status)) = reply else { return Ok(None) };
    let found = status.queue.into_iter().find(|waiting| waiting.job.as_str() == job);
    Ok(found.map(|waiting| waiting.reason))
}

/// Returns the reason for the status of a job, as one sentence.
fn reason(job: &JobDetails, current: Option<String>) -> String {
    match job.item.status {
        JobStatus::Pending if !job.has_daemon => {
            "no daemon is running to start it: heeler start -d".to_owned()
        }
        JobStatus::Pending => match current.or_else(|| job.waits.clone()) {
            Some(reason) if !reason.is_empty() => reason,
            _ => "it is about to start".to_owned(),
        },
        JobStatus::Running if job.item.dead => {
            "the record says running, but no process executes it: heeler doctor --fix".to_owned()
        }
        JobStatus::Running if job.runs.last().is_some_and(|run| run.status == ASSIGNED_RUN) => {
            "its host has not started it yet".to_owned()
        }
        JobStatus::Running => "it has started, and waits for nothing".to_owned(),
        status => match &job.error {
            Some(error) => format!("it has ended: {error}"),
            None => format!("it has ended: {status}"),
        },
    }
}
