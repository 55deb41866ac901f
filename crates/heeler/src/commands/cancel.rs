//! `heeler jobs cancel`: ends running jobs.

use std::time::{Duration, Instant};

use clap::Args;
use heeler_engine::{
    Compare, Control, ControlError, Fleet, KillError, kill_runner, recover, wish_to_cancel,
};
use heeler_model::run::{Op, ReplyBody};
use heeler_model::{Job, JobId, JobStatus, RunId, chain};
use heeler_store::Reader;
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::output;
use crate::place::{self, Place};

/// How long a run may take to end and to be recorded: each of its graces, and a writer that waits.
const END_WAIT: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a runner may take to answer that is to end at once; after that it is killed.
const NOW_WAIT: Duration = Duration::from_secs(5);

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
    let id = &job.head.id;
    let over = |job: &Job| {
        let message = format!("job {id} has ended already: {}", job.head.status);
        Failure::message(Code::Refused, message)
    };
    let job = match job.head.status {
        // It may have come to nothing and be about to be started once more, which only the writer
        // of the state can tell.
        JobStatus::Failed | JobStatus::Pending => &wish(engine, id)?,
        _ => &job,
    };
    match job.head.status {
        JobStatus::Cancelled => return Ok(job.clone()),
        JobStatus::Completed | JobStatus::Failed => return Err(over(job)),
        JobStatus::Pending | JobStatus::Running => {}
    }
    let mut cancelling = Cancelling::new(engine, id, now, "jobs cancel");
    recorded(&mut cancelling)
}

/// Puts the wish on record; a job that nobody works on is cancelled by that.
pub(crate) fn wish(engine: &Fleet, id: &JobId) -> Outcome<Job> {
    let store = engine.writer("jobs cancel", END_WAIT).map_err(anyhow::Error::from)?;
    let job = wish_to_cancel(&store, id, place::now()).map_err(anyhow::Error::from)?;
    store.publish_views(place::now()).map_err(anyhow::Error::from)?;
    Ok(job)
}

/// A job that is being cancelled: each of its runs is asked once, and what cannot be asked is on
/// record as to be cancelled.
pub(crate) struct Cancelling<'c> {
    engine: &'c Fleet,
    id: &'c JobId,
    now: bool,
    by: &'c str,
    asked: Option<RunId>,
    wished: Option<RunId>,
}

impl<'c> Cancelling<'c> {
    pub(crate) fn new(engine: &'c Fleet, id: &'c JobId, now: bool, by: &'c str) -> Cancelling<'c> {
        Cancelling { engine, id, now, by, asked: None, wished: None }
    }

    /// Tries until the job's run has heard it or the job has ended.
    pub(crate) fn reach(&mut self, patience: Duration) -> Outcome {
        let deadline = Instant::now() + patience;
        loop {
            self.step()?;
            let job = Reader::open(&self.engine.dir)?.job(self.id)?;
            if self.asked.is_some() || job.is_none_or(|job| job.head.status.is_final()) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let message = "it does not answer yet; it is cancelled if it does not start";
                return Err(Failure::message(Code::Failed, message));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Asks the job's run, or puts the wish on record; returns whether a process works on the job.
    fn step(&mut self) -> Outcome<bool> {
        let reader = Reader::open(&self.engine.dir)?;
        let is_alive = reader.is_alive(&self.engine.dir, self.id)?;
        let last = reader.runs_of_job(self.id)?.pop().map(|run| run.id);
        drop(reader);
        let Some(run) = last else { return Ok(is_alive) };
        if is_alive && self.asked != last && self.ask(run)? {
            self.asked = last;
        }
        let is_heard = is_alive && self.asked == last;
        if !is_heard && self.wished != last {
            wish(self.engine, self.id)?;
            self.wished = last;
        }
        Ok(is_alive)
    }

    /// Asks a run and says whether it has heard.
    fn ask(&self, run: RunId) -> Outcome<bool> {
        let folder = self.engine.dir.run(run);
        let asked = Control::of_run(&folder).and_then(|mut control| {
            if self.now {
                control.reply_within(NOW_WAIT)?;
            }
            control.ask(Op::Cancel { now: self.now, by: self.by.to_owned() })
        });
        match asked {
            Ok(ReplyBody::Refused { reason }) => Err(Failure::message(Code::Failed, reason)),
            Ok(_) => Ok(true),
            // It is starting, or has ended by itself.
            Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => Ok(false),
            Err(error) if self.now => self.kill(run, &error),
            Err(error) => Err(Failure::new(Code::Failed, error)
                .hint(format!("heeler jobs cancel --now {}", self.id))),
        }
    }

    /// Ends a runner that does not answer. Its run has heard nothing: it is settled.
    fn kill(&self, run: RunId, error: &ControlError) -> Outcome<bool> {
        // On record before: whoever settles it finds that it was cancelled.
        wish(self.engine, self.id)?;
        match kill_runner(&self.engine.dir.run(run)) {
            Ok(pid) => {
                let why = chain(error);
                output::note(&format!("killed its runner (process {pid}), which is mute: {why}"))?;
                Ok(false)
            }
            Err(KillError::Gone(_)) => Ok(false),
            Err(error) => Err(Failure::new(Code::Failed, error)),
        }
    }
}

/// Waits until the job is on record as ended. Where nobody conducts it, this process settles it.
fn recorded(cancelling: &mut Cancelling<'_>) -> Outcome<Job> {
    let (engine, id) = (cancelling.engine, cancelling.id);
    let deadline = Instant::now() + END_WAIT;
    loop {
        let is_alive = cancelling.step()?;
        if !is_alive && let Some(why) = settle(engine, "jobs cancel", id)? {
            let message = format!("the run of job {id} cannot be settled: {why}");
            return Err(Failure::message(Code::Failed, message).hint("heeler doctor"));
        }
        let found = Reader::open(&engine.dir)?.job(id)?;
        match found.filter(|job| job.head.status.is_final()) {
            Some(job) => return Ok(job),
            None if Instant::now() >= deadline => {
                let message = format!("job {id} has not ended within {} s", END_WAIT.as_secs());
                return Err(Failure::message(Code::Failed, message)
                    .hint(format!("heeler jobs cancel --now {id}")));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// Settles runs that nobody works on; says why this job's could not be, which would be so again.
pub(crate) fn settle(engine: &Fleet, command: &str, id: &JobId) -> Outcome<Option<String>> {
    let store = engine.writer(command, END_WAIT).map_err(anyhow::Error::from)?;
    let recovered = recover(engine, &store, Compare::WhenDue).map_err(anyhow::Error::from)?;
    store.publish_views(place::now()).map_err(anyhow::Error::from)?;
    drop(store);
    let runs = Reader::open(&engine.dir)?.runs_of_job(id)?;
    let is_own = |run: RunId| runs.iter().any(|own| own.id == run);
    Ok(recovered.unsettled.into_iter().find(|(run, _)| is_own(*run)).map(|(_, why)| why))
}
