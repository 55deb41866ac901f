//! `heeler jobs resume` and `heeler jobs retry`: what did not end well is tried again.

use clap::Args;
use heeler_engine::{Answer, Command};
use heeler_model::JobId;

use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::Outcome;
use crate::output;
use crate::place::Place;

/// Arguments of `jobs resume`.
#[derive(Args)]
pub(crate) struct ResumeArgs {
    /// The job's id; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    id: String,
    /// What to tell the agent [default: that it was interrupted and may go on]
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
    let job = find(&place, &args.id)?;
    let command = Command::Resume { job, prompt: args.prompt.clone(), by: place.who() };
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
    daemon::tell(answer, json)?;
    if let (Answer::Job { job, .. }, false) = (answer, json || global.quiet) {
        output::note(&format!("heeler jobs logs {job} -f"))?;
    }
    Ok(())
}
