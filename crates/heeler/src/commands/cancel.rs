//! `heeler jobs cancel`: ends running jobs.

use std::time::{Duration, Instant};

use clap::Args;
use heeler_engine::{Compare, Fleet, recover};
use heeler_model::{ExitReason, Job, JobStatus};
use heeler_store::{DbError, Reader};
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::live;
use crate::output;
use crate::place::{self, Place};

/// How long a run may take to end and to be recorded: each of its graces, and a writer that waits.
const END_WAIT: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a starting run is tried to be reached.
const REACH_WAIT: Duration = Duration::from_secs(5);

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
        match cancel(&engine, job, args.now) {
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

fn cancel(engine: &Fleet, job: Job, now: bool) -> Outcome<Job> {
    match job.head.status {
        JobStatus::Cancelled => return Ok(job),
        JobStatus::Completed | JobStatus::Failed => {
            let message = format!("job {} has ended already: {}", job.head.id, job.head.status);
            return Err(Failure::message(Code::Refused, message));
        }
        JobStatus::Pending => return withdraw(engine, &job),
        JobStatus::Running => {}
    }
    let reader = Reader::open(&engine.dir)?;
    if reader.is_alive(&engine.dir, &job.head.id)? {
        let runs = reader.runs_of_job(&job.head.id)?;
        let run = runs.last().expect("a job with a living run has runs").id;
        live::cancel(&engine.dir.run(run), now, "jobs cancel", REACH_WAIT)
            .map_err(|why| Failure::message(Code::Failed, why))?;
    }
    drop(reader);
    recorded(engine, &job)
}

/// Takes back a job that nobody has started.
fn withdraw(engine: &Fleet, job: &Job) -> Outcome<Job> {
    let mut cancelled = job.clone();
    cancelled.head.status = JobStatus::Cancelled;
    cancelled.head.exit_reason = Some(ExitReason::Cancelled);
    cancelled.head.finished_at = Some(place::now());
    let store = engine.writer("jobs cancel", END_WAIT).map_err(anyhow::Error::from)?;
    let changed = cancelled.clone();
    store
        .write::<i64, DbError, _>(move |tx| tx.update_job(&changed))
        .map_err(anyhow::Error::from)?;
    store.publish_views(place::now()).map_err(anyhow::Error::from)?;
    Ok(cancelled)
}

/// Waits until the job is on record as ended. Where nobody conducts it, this process settles it.
fn recorded(engine: &Fleet, job: &Job) -> Outcome<Job> {
    let id = &job.head.id;
    let deadline = Instant::now() + END_WAIT;
    loop {
        let reader = Reader::open(&engine.dir)?;
        let found = reader.job(id)?;
        match found.filter(|job| job.head.status.is_final()) {
            Some(job) => return Ok(job),
            None if Instant::now() >= deadline => {
                let message = format!("job {id} has not ended within {} s", END_WAIT.as_secs());
                return Err(Failure::message(Code::Failed, message)
                    .hint(format!("heeler jobs cancel --now {id}")));
            }
            None => {}
        }
        let is_alive = reader.is_alive(&engine.dir, id)?;
        drop(reader);
        if !is_alive {
            let store = engine.writer("jobs cancel", END_WAIT).map_err(anyhow::Error::from)?;
            recover(engine, &store, Compare::WhenDue).map_err(anyhow::Error::from)?;
            store.publish_views(place::now()).map_err(anyhow::Error::from)?;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
