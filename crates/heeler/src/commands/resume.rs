//! `heeler jobs resume` and `heeler jobs retry`: what did not end well is tried again.

use clap::Args;
use heeler_engine::{Answer, Command};
use heeler_model::JobId;

use crate::cli::{self, Global};
use crate::commands::trigger;
use crate::daemon;
use crate::failure::Outcome;
use crate::output;
use crate::place::Place;

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
pub(crate) struct ResumeArgs {
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
pub(crate) struct RetryArgs {
    /// The job's id; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lets a job go on in its session.
pub(crate) fn resume(global: &Global, args: &ResumeArgs) -> Outcome {
    let place = Place::find(global)?;
    let prompt = trigger::read_prompt(args.prompt.as_deref())?;
    let job = find(&place, &args.id)?;
    let command = Command::Resume { job, prompt, by: place.who() };
    tell(global, &daemon::ask(&place, &command)?, args.json)
}

/// Asks for the same again.
pub(crate) fn retry(global: &Global, args: &RetryArgs) -> Outcome {
    let place = Place::find(global)?;
    let command = Command::Retry { job: find(&place, &args.id)?, by: place.who() };
    tell(global, &daemon::ask(&place, &command)?, args.json)
}

fn find(place: &Place, id: &str) -> Outcome<JobId> {
    place.bring_up_to_date()?;
    Ok(place.reader_for("job", id)?.find_job(id)?.head.id)
}

fn tell(global: &Global, answer: &Answer, json: bool) -> Outcome {
    match answer {
        Answer::Job { job, .. } if global.quiet && !json => Ok(output::line(job.as_str())?),
        Answer::Job { job, .. } if !json => {
            daemon::tell(answer, json)?;
            Ok(output::note(&format!("follow it: heeler jobs logs {job} -f"))?)
        }
        _ => daemon::tell(answer, json),
    }
}
