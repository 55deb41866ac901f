//! Where a job is: it waits, a run is at it, it is over. Read from the record, whoever writes that.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use heeler_model::{JobId, JobStatus, RunId};
use heeler_store::{Reader, StateDir};
use heeler_transcript::LockFile;
use jiff::Timestamp;

use super::Event;

/// How often the record is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long nobody may write the state before a job that is not over counts as left alone. A daemon
/// that makes way for another is gone for a moment.
const ALONE_AFTER: Duration = Duration::from_secs(2);

/// What becomes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Course {
    /// This run is at it.
    Runs(RunId),
    /// It has run and goes on later.
    Later {
        /// Why.
        reason: String,
        /// When at the earliest.
        at: Timestamp,
    },
    /// What came of it is on record, or nothing of it is any more.
    Over,
    /// It is not over, and nobody cares for it.
    Alone,
}

/// Follows a job in a thread of its own, until it is over or nobody listens.
pub(crate) fn follow(dir: StateDir, job: JobId, tell: SyncSender<Event>) {
    std::thread::spawn(move || {
        let (mut run, mut later, mut written, mut is_alone) = (None, None, Instant::now(), false);
        loop {
            let Look { is_over, run: last, later: put_off } = look(&dir, &job);
            if put_off.is_some() && put_off != later {
                later.clone_from(&put_off);
                if put_off.is_some_and(|it| tell.send(Event::Course(it)).is_err()) {
                    return;
                }
            }
            if last != run
                && let Some(last) = last
                && tell.send(Event::Course(Course::Runs(last))).is_err()
            {
                return;
            }
            run = last;
            if is_over {
                // Where nobody listens any more there is nobody to tell.
                let _told = tell.send(Event::Course(Course::Over));
                return;
            }
            if !matches!(LockFile::probe(&dir.lock()), Ok(None)) {
                (written, is_alone) = (Instant::now(), false);
            }
            if !is_alone && written.elapsed() > ALONE_AFTER {
                is_alone = true;
                if tell.send(Event::Course(Course::Alone)).is_err() {
                    return;
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    });
}

/// What the record says of a job.
#[derive(Default)]
struct Look {
    is_over: bool,
    /// Which run was at it last.
    run: Option<RunId>,
    /// Whether it goes on later.
    later: Option<Course>,
}

/// Looks at the record. One that cannot be read now tells nothing new.
fn look(dir: &StateDir, job: &JobId) -> Look {
    let Ok(reader) = Reader::open(dir) else { return Look::default() };
    // The job first: a run that begins after it was read is seen the next time.
    let status = match reader.job(job) {
        Ok(Some(found)) => found.head.status,
        Ok(None) => return Look { is_over: true, ..Look::default() },
        Err(_) => return Look::default(),
    };
    let run = reader.runs_of_job(job).unwrap_or_default().last().map(|run| run.id);
    let queued = match (status, run) {
        (JobStatus::Pending, Some(_)) => reader.queued(job).ok().flatten(),
        _ => None,
    };
    let later = queued.and_then(|row| {
        let reason = row.reason;
        row.not_before.map(|at| Course::Later { reason, at })
    });
    Look { is_over: status.is_final(), run, later }
}
