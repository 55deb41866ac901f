//! Bringing a job to its end: cancelling it, and waiting until its end is on record.
//!
//! A run that can be reached is asked; of one that cannot, the wish is put on record; one that does
//! not answer is killed if it is to end at once. What nobody works on any more is settled here.
//! Start at [`Cancelling`].

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use heeler_model::run::{Op, ReplyBody};
use heeler_model::{Job, JobId, JobStatus, RunId};
use heeler_store::{DbError, Reader, Store, WriteError};
use thiserror::Error;

use crate::cancel::{KillError, kill_runner, wish_to_cancel};
use crate::conduct::publish;
use crate::control::{Control, ControlError};
use crate::fleet::{Fleet, OpenError};
use crate::recover::{Compare, RecoverError, recover};

/// As what a process that cancels is known to others that want to write.
const COMMAND: &str = "jobs cancel";
/// How long a run may take to end and to be recorded: each of its graces, and a writer that waits.
const END_WAIT: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a runner may take to answer that is to end at once; after that it is killed.
const NOW_WAIT: Duration = Duration::from_secs(5);

/// Why a job was not brought to its end.
#[derive(Debug, Error)]
pub enum CancelError {
    /// It has ended otherwise before.
    #[error("job {job} has ended already: {status}")]
    Over {
        /// The job.
        job: JobId,
        /// How.
        status: JobStatus,
    },
    /// Its run does not want to.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// Its run cannot be talked to.
    #[error(transparent)]
    Mute(ControlError),
    /// Its runner, which is mute, cannot be killed.
    #[error(transparent)]
    Kill(KillError),
    /// Its run is still starting.
    #[error("it does not answer yet; it is cancelled if it does not start")]
    Unheard,
    /// Nobody works on its run, and yet it cannot be found out now how that ended.
    #[error("the run of job {job} cannot be settled: {why}")]
    Unsettled {
        /// The job.
        job: JobId,
        /// Why; it would be so again.
        why: String,
    },
    /// It goes on, or its record is not written.
    #[error("job {job} has not ended within {} s", END_WAIT.as_secs())]
    TooLong {
        /// The job.
        job: JobId,
    },
    /// The state cannot be read.
    #[error("cannot read the state")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The state is not to be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The wish is not on record.
    #[error("cannot record that the job is to be cancelled")]
    Write(#[from] WriteError<DbError>),
    /// Runs that nobody works on cannot be settled.
    #[error(transparent)]
    Recover(#[from] RecoverError),
}

/// Waits until it is on record how a job ended. Where nobody works on it, this process settles it.
pub fn wait_recorded(fleet: &Fleet, id: &JobId, command: &str) -> Result<Job, CancelError> {
    let ended = look_until(END_WAIT, || recorded(fleet, id, command))?;
    ended.ok_or_else(|| CancelError::TooLong { job: id.clone() })
}

/// A job that is being cancelled: each of its runs is asked once, and what cannot be asked is on
/// record as to be cancelled.
#[derive(Debug)]
pub struct Cancelling<'c> {
    fleet: &'c Fleet,
    id: &'c JobId,
    now: bool,
    by: &'c str,
    asked: Option<RunId>,
    wished: Option<RunId>,
}

impl<'c> Cancelling<'c> {
    /// Is about to cancel a job: at once if `now` says so, and else gracefully. Its record says by
    /// whom.
    pub fn new(fleet: &'c Fleet, id: &'c JobId, now: bool, by: &'c str) -> Cancelling<'c> {
        Cancelling { fleet, id, now, by, asked: None, wished: None }
    }

    /// Puts the wish on record and returns the job's; one that nobody works on is cancelled by that.
    pub fn wish(&self) -> Result<Job, CancelError> {
        let store = self.fleet.writer(COMMAND, END_WAIT)?;
        let job = wish_to_cancel(&store, self.id, (self.fleet.now)())?;
        publish(self.fleet, &store);
        Ok(job)
    }

    /// Tries until the job's run has heard it or the job has ended.
    pub fn reach(&mut self, patience: Duration) -> Result<(), CancelError> {
        let reached = look_until(patience, || {
            self.step()?;
            let job = read(self.fleet, |reader| reader.job(self.id))?;
            let is_over = job.is_none_or(|job| job.head.status.is_final());
            Ok((is_over || self.asked.is_some()).then_some(()))
        })?;
        reached.ok_or(CancelError::Unheard)
    }

    /// Cancels the job and returns its record once it has ended.
    pub fn end(&mut self) -> Result<Job, CancelError> {
        let found = read(self.fleet, |reader| reader.job(self.id))?;
        let job = match found {
            Some(job) if !matches!(job.head.status, JobStatus::Failed | JobStatus::Pending) => job,
            // It may have come to nothing and be about to be started once more, which only the
            // writer of the state can tell.
            _ => self.wish()?,
        };
        match job.head.status {
            JobStatus::Cancelled => return Ok(job),
            status @ (JobStatus::Completed | JobStatus::Failed) => {
                return Err(CancelError::Over { job: self.id.clone(), status });
            }
            JobStatus::Pending | JobStatus::Running => {}
        }
        let ended = look_until(END_WAIT, || {
            self.step()?;
            recorded(self.fleet, self.id, COMMAND)
        })?;
        ended.ok_or_else(|| CancelError::TooLong { job: self.id.clone() })
    }

    /// Asks the job's run, or puts the wish on record.
    fn step(&mut self) -> Result<(), CancelError> {
        let (is_alive, last) = read(self.fleet, |reader| {
            let last = reader.runs_of_job(self.id)?.pop().map(|run| run.id);
            Ok((reader.is_alive(&self.fleet.dir, self.id)?, last))
        })?;
        let Some(run) = last else { return Ok(()) };
        if is_alive && self.asked != last && self.ask(run)? {
            self.asked = last;
        }
        let is_heard = is_alive && self.asked == last;
        if !is_heard && self.wished != last {
            self.wish()?;
            self.wished = last;
        }
        Ok(())
    }

    /// Asks a run and says whether it has heard.
    fn ask(&self, run: RunId) -> Result<bool, CancelError> {
        let folder = self.fleet.dir.run(run);
        let asked = Control::of_run(&folder).and_then(|mut control| {
            if self.now {
                control.reply_within(NOW_WAIT)?;
            }
            control.ask(Op::Cancel { now: self.now, by: self.by.to_owned() })
        });
        match asked {
            Ok(ReplyBody::Refused { reason }) => Err(CancelError::Refused { reason }),
            Ok(_) => Ok(true),
            // It is starting, or has ended by itself.
            Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => Ok(false),
            // It ends just now. If it is to end at once and hangs up again, it is mute.
            Err(error) if is_hang_up(&error) && !(self.now && self.wished == Some(run)) => {
                Ok(false)
            }
            Err(error) if self.now => self.kill(run, &error),
            Err(error) => Err(CancelError::Mute(error)),
        }
    }

    /// Ends a runner that does not answer. Its run has heard nothing: it is settled.
    fn kill(&self, run: RunId, error: &ControlError) -> Result<bool, CancelError> {
        // On record before: whoever settles it finds that it was cancelled.
        self.wish()?;
        match kill_runner(&self.fleet.dir.run(run)) {
            Ok(pid) => {
                let why = heeler_model::chain(error);
                tracing::warn!("killed its runner (process {pid}), which is mute: {why}");
                Ok(false)
            }
            Err(KillError::Gone(_)) => Ok(false),
            Err(error) => Err(CancelError::Kill(error)),
        }
    }
}

/// Says whether the other side closed the connection instead of replying.
fn is_hang_up(error: &ControlError) -> bool {
    let ControlError::Io { source, .. } = error else { return false };
    matches!(
        source.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// Returns the job if it is on record as ended, after it was settled if nobody works on it.
fn recorded(fleet: &Fleet, id: &JobId, command: &str) -> Result<Option<Job>, CancelError> {
    if !read(fleet, |reader| reader.is_alive(&fleet.dir, id))? {
        settle(fleet, &fleet.writer(command, END_WAIT)?, id)?;
    }
    let job = read(fleet, |reader| reader.job(id))?;
    Ok(job.filter(|job| job.head.status.is_final()))
}

fn settle(fleet: &Fleet, store: &Store, id: &JobId) -> Result<(), CancelError> {
    let recovered = recover(fleet, store, Compare::WhenDue)?;
    publish(fleet, store);
    let runs = read(fleet, |reader| reader.runs_of_job(id))?;
    let is_own = |run: RunId| runs.iter().any(|own| own.id == run);
    match recovered.unsettled.into_iter().find(|(run, _)| is_own(*run)) {
        Some((_, why)) => Err(CancelError::Unsettled { job: id.clone(), why }),
        None => Ok(()),
    }
}

fn read<T>(
    fleet: &Fleet,
    question: impl FnOnce(&Reader) -> Result<T, DbError>,
) -> Result<T, CancelError> {
    let reader = Reader::open(&fleet.dir).map_err(|error| CancelError::Read(Box::new(error)))?;
    question(&reader).map_err(|error| CancelError::Read(Box::new(error)))
}

/// Looks until there is something to be seen; `None` if there is nothing for so long.
fn look_until<T>(
    patience: Duration,
    mut look: impl FnMut() -> Result<Option<T>, CancelError>,
) -> Result<Option<T>, CancelError> {
    let deadline = Instant::now() + patience;
    loop {
        match look()? {
            None if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            found => return Ok(found),
        }
    }
}
