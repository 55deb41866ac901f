//! `heeler jobs resume` and `heeler jobs retry`: what did not end well is tried again.

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::JobId;

use crate::cli::{self, GlobalArgs};
use crate::commands::trigger;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::output;

/// What the help of `jobs resume` shows at its end.
pub(crate) const RESUME: &str = "Examples:
  heeler jobs resume job-2026-11-15-k3v9q1
  heeler jobs resume job-2026-11-15-k3v9q1 -p 'The disk has room again; go on'
  heeler jobs logs $(heeler jobs resume job-2026-11-15-k3v9q1 -q) -f

It is the same job, and it goes on in the background: starts a daemon if none runs.
Exit codes: 0 it runs or waits, 4 not found, 5 refused: it runs, or there is nothing to go on from.";

/// What the help of `jobs retry` shows at its end.
pub(crate) const RETRY: &str = "Example:
  heeler jobs logs $(heeler jobs retry job-2026-11-15-k3v9q1 -q) -f

A new job with the same agent and prompt, in the background: starts a daemon if none runs.
Exit codes: 0 it runs or waits, 4 not found, 5 refused.";

/// Arguments of `jobs resume`.
#[derive(Args)]
pub(crate) struct JobResumeArgs {
    /// The job's id; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    id: String,
    /// What to tell the agent [default: that it was interrupted and may go on]; `-` reads it
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `jobs retry`.
#[derive(Args)]
pub(crate) struct JobRetryArgs {
    /// The job's id; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lets a job go on in its session.
pub(crate) fn resume(global: &GlobalArgs, args: &JobResumeArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let prompt = trigger::read_prompt(args.prompt.as_deref())?;
    let job = find(&place, &args.id)?;
    let command = DaemonCommand::Resume { job, prompt, by: place.caller_name() };
    print_answer(global, &daemon::request(&place, &command)?, args.json)
}

/// Asks for the same again.
pub(crate) fn retry(global: &GlobalArgs, args: &JobRetryArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let command = DaemonCommand::Retry { job: find(&place, &args.id)?, by: place.caller_name() };
    print_answer(global, &daemon::request(&place, &command)?, args.json)
}

fn find(place: &CommandContext, id: &str) -> CommandResult<JobId> {
    place.migrate_database()?;
    Ok(place.reader_for("job", id)?.find_job(id)?.head.id)
}

fn print_answer(global: &GlobalArgs, answer: &CommandReply, json: bool) -> CommandResult {
    match answer {
        CommandReply::Job { job, .. } if global.quiet && !json => {
            Ok(output::print_line(job.as_str())?)
        }
        CommandReply::Job { job, .. } if !json => {
            daemon::print_answer(answer, json)?;
            Ok(output::print_note(&format!("follow it: heeler jobs logs {job} -f"))?)
        }
        _ => daemon::print_answer(answer, json),
    }
}
