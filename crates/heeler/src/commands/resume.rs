//! `heeler jobs resume` and `heeler jobs retry`: [`resume`] and [`retry`].

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::JobId;

use crate::commands::trigger;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;

/// Help footer of `jobs resume`.
pub(crate) const RESUME: &str = "Examples:
  heeler jobs resume job-2026-11-15-k3v9q1
  heeler jobs resume job-2026-11-15-k3v9q1 -p 'The disk has room again; continue'
  heeler jobs logs $(heeler jobs resume job-2026-11-15-k3v9q1 -q) -f

The same job continues in the background. Starts a daemon if none runs.
Exit codes: 0 running or queued, 4 not found, 5 refused: it is running, or cannot be resumed.";

/// Help footer of `jobs retry`.
pub(crate) const RETRY: &str = "Example:
  heeler jobs logs $(heeler jobs retry job-2026-11-15-k3v9q1 -q) -f

The new job runs in the background. Starts a daemon if none runs.
Exit codes: 0 running or queued, 4 not found, 5 refused.";

/// Arguments of `jobs resume`.
#[derive(Args)]
pub(crate) struct JobResumeArgs {
    /// Job ID or unique prefix
    #[arg(add = shared_args::jobs())]
    id: String,
    /// Prompt; `-` reads standard input [default: a note about the interruption]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `jobs retry`.
#[derive(Args)]
pub(crate) struct JobRetryArgs {
    /// Job ID or unique prefix
    #[arg(add = shared_args::jobs())]
    id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `jobs resume`.
pub(crate) fn resume(global: &GlobalArgs, args: &JobResumeArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let prompt = trigger::read_prompt(args.prompt.as_deref())?;
    let job = find(&context, &args.id)?;
    let command = DaemonCommand::Resume { job, prompt, by: context.caller_name() };
    print_answer(global, &daemon::request(&context, &command)?, args.json)
}

/// Runs `jobs retry`.
pub(crate) fn retry(global: &GlobalArgs, args: &JobRetryArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let command =
        DaemonCommand::Retry { job: find(&context, &args.id)?, by: context.caller_name() };
    print_answer(global, &daemon::request(&context, &command)?, args.json)
}

fn find(context: &CommandContext, id: &str) -> CommandResult<JobId> {
    // The lookup is a read, which refuses an older database, and the request writes anyway.
    context.migrate_database()?;
    Ok(context.reader_for("job", id)?.find_job(id)?.head.id)
}

fn print_answer(global: &GlobalArgs, answer: &CommandReply, json: bool) -> CommandResult {
    match answer {
        // Only the ID, so that it can be used in `$(…)`.
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
