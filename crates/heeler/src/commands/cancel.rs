//! `heeler jobs cancel`: ends running jobs.

use clap::Args;
use heeler_engine::{CancelError, Cancelling, Fleet};
use heeler_model::{Job, JobId, JobStatus};
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::output;
use crate::place::{self, Place};

/// Arguments of `jobs cancel`.
#[derive(Args)]
pub(crate) struct CancelArgs {
    /// The jobs' ids; a beginning will do while it is unique
    #[arg(required = true, value_name = "ID", add = cli::jobs())]
    ids: Vec<String>,
    /// End the agent at once, without letting it finish what it is at
    #[arg(long, alias = "force", short_alias = 'f')]
    now: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Cancels each job; ends with the first failure, after all were tried.
pub(crate) fn run(global: &Global, args: &CancelArgs) -> Outcome {
    let place = Place::find(global)?;
    place.bring_up_to_date()?;
    let reader = place.reader_for("job", &args.ids[0])?;
    let jobs: Vec<Job> =
        args.ids.iter().map(|id| Ok(reader.find_job(id)?)).collect::<Outcome<_>>()?;
    drop(reader);
    let engine = place::engine(&place.state_dir, &place.env)?;
    let mut told: Vec<Value> = Vec::new();
    let mut failure = None;
    for job in jobs {
        let id = job.head.id.clone();
        if job.head.status == JobStatus::Running && !(args.json || global.quiet) {
            let more = if args.now { "" } else { " (--now ends it at once)" };
            // The job is cancelled whether or not this can be written.
            drop(output::note(&format!("cancelling {id}…{more}")));
        }
        match cancel(&engine, &id, args.now) {
            Ok(job) => {
                let said = format!("{id}: {}", job.head.status);
                told.push(json!({ "id": id, "status": job.head.status, "error": null }));
                if !args.json {
                    output::line(said)?;
                }
            }
            Err(failed) => {
                told.push(
                    json!({ "id": id, "status": null, "error": format!("{:#}", failed.error) }),
                );
                if !args.json {
                    output::complain(failed.text())?;
                }
                failure.get_or_insert(failed.code);
            }
        }
    }
    if args.json {
        output::json(&json!({ "jobs": told }))?;
    }
    failure.map_or(Ok(()), |code| Err(Failure::silent(code)))
}

fn cancel(engine: &Fleet, id: &JobId, now: bool) -> Outcome<Job> {
    let at_once = || format!("heeler jobs cancel --now {id}");
    Cancelling::new(engine, id, now, "jobs cancel").end().map_err(|error| match error {
        CancelError::Over { .. } => Failure::new(Code::Refused, error),
        CancelError::Mute(_) | CancelError::TooLong { .. } => {
            Failure::new(Code::Failed, error).hint(at_once())
        }
        CancelError::Unsettled { .. } => Failure::new(Code::Failed, error).hint("heeler doctor"),
        error => Failure::new(Code::Failed, error),
    })
}
