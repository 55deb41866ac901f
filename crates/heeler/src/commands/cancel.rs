//! `heeler jobs cancel`: cancels running and queued jobs. Start at [`run`].

use std::time::{Duration, Instant};

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::{Job, JobId, JobStatus};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;

/// Time allowed for a run to end and be recorded; longer than all its grace periods together.
const END_WAIT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `jobs cancel`.
#[derive(Args)]
pub(crate) struct JobCancelArgs {
    /// Job IDs or unique prefixes
    #[arg(required = true, value_name = "ID", add = shared_args::jobs())]
    ids: Vec<String>,
    /// Kill the agent at once instead of letting it finish its current step
    #[arg(long, alias = "force", short_alias = 'f')]
    now: bool,
    /// No effect: nothing is asked (herdctl's flag)
    #[arg(short, long, hide = true)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Cancels each job. Tries all, then fails with the first failure's exit code.
pub(crate) fn run(global: &GlobalArgs, args: &JobCancelArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let reader = context.reader_for("job", &args.ids[0])?;
    let jobs: Vec<Job> =
        // All IDs are resolved first, so that a misspelled one cancels nothing.
        args.ids.iter().map(|id| Ok(reader.find_job(id)?)).collect::<CommandResult<_>>()?;
    drop(reader);
    let mut results: Vec<Value> = Vec::new();
    let mut failure = None;
    for job in jobs {
        let id = job.head.id.clone();
        // A queued job ends at once, so no note about a wait is needed.
        if job.head.status == JobStatus::Running && !(args.json || global.quiet) {
            let more = if args.now { "" } else { " (--now kills it at once)" };
            // The job must be cancelled even if this note cannot be written.
            drop(output::print_note(&format!("cancelling {id}…{more}")));
        }
        match cancel(&context, &id, args.now) {
            Ok(job) => {
                let line = format!("{id}: {}", job.head.status);
                results.push(json!({ "id": id, "status": job.head.status, "error": null }));
                if !args.json {
                    output::print_line(line)?;
                }
            }
            Err(failed) => {
                results.push(
                    json!({ "id": id, "status": null, "error": format!("{:#}", failed.error) }),
                );
                if !args.json {
                    output::print_error(failed.text())?;
                }
                failure.get_or_insert(failed.code);
            }
        }
    }
    if args.json {
        output::print_json(&json!({ "jobs": results }))?;
    }
    failure.map_or(Ok(()), |code| Err(CommandFailure::silent(code)))
}

/// Asks the daemon to cancel a job, and waits until its end is recorded.
fn cancel(context: &CommandContext, id: &JobId, now: bool) -> CommandResult<Job> {
    let command = DaemonCommand::Cancel { job: id.clone(), now, by: context.caller_name() };
    // The reply only says that the run was told. The loop below waits for its end.
    daemon::request(context, &command)?;
    let deadline = Instant::now() + END_WAIT;
    loop {
        let job = context.recorded_job(id)?;
        if job.head.status == JobStatus::Cancelled {
            context.wait_for_views(&job)?;
            return Ok(job);
        }
        // The job may have completed before the cancel request reached it.
        if job.head.status.is_final() {
            let message = format!("job {id} has already ended: {}", job.head.status);
            return Err(CommandFailure::message(FailureCode::Refused, message));
        }
        // A run that cannot be settled never ends, so waiting the full time would be useless.
        if let Some(fault) = find_run_fault(context, id)? {
            return Err(CommandFailure::message(FailureCode::Failed, fault).hint("heeler doctor"));
        }
        if Instant::now() >= deadline {
            let message = format!("job {id} has not ended within {} s", END_WAIT.as_secs());
            let at_once = format!("heeler jobs cancel --now {id}");
            return Err(CommandFailure::message(FailureCode::Failed, message).hint(at_once));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the reason why a job's run cannot be settled, if the daemon knows one.
fn find_run_fault(context: &CommandContext, id: &JobId) -> CommandResult<Option<String>> {
    // A temporary daemon may just be replaced; the next poll asks again.
    let Some(mut daemon) = daemon::connect(context)? else { return Ok(None) };
    let Ok(CommandReply::Status(status)) =
        daemon.send_command(&DaemonCommand::Status, Some(END_WAIT))
    else {
        return Ok(None);
    };
    let run = status.running.iter().find(|running| running.job == *id);
    let run = run.map(|running| running.run.to_string());
    Ok(run.and_then(|run| status.faults.into_iter().find(|fault| fault.contains(&run))))
}
