//! Where a job is: it waits, a run is at it, it is over. Read from the record, whoever writes that.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use heeler_model::{JobId, RunId};
use heeler_store::{Reader, StateDir};
use heeler_transcript::LockFile;

use super::Event;

/// How often the record is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long nobody may write the state before a job that is not over counts as left alone. A daemon
/// that makes way for another is gone for a moment.
const ALONE_AFTER: Duration = Duration::from_secs(2);

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// This run is at it.
    Runs(RunId),
    /// What came of it is on record.
    Over,
    /// It is not over, and nobody cares for it.
    Alone,
}

/// Follows a job in a thread of its own, until it is over or nobody listens.
pub(crate) fn follow(dir: StateDir, job: JobId, tell: SyncSender<Event>) {
    std::thread::spawn(move || {
        let (mut run, mut written, mut is_alone) = (None, Instant::now(), false);
        loop {
            let Some((is_over, last)) = look(&dir, &job) else { return };
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

/// Says whether the job is over, and which run was at it last; `None` if its record is gone.
fn look(dir: &StateDir, job: &JobId) -> Option<(bool, Option<RunId>)> {
    let Ok(reader) = Reader::open(dir) else { return Some((false, None)) };
    // The job first: a run that begins after it was read is seen the next time.
    let found = reader.job(job).ok()?;
    let runs = reader.runs_of_job(job).unwrap_or_default();
    Some((found?.head.status.is_final(), runs.last().map(|run| run.id)))
}
