//! Where a job is: it waits, a run is at it, it is over. Read from the record, whoever writes that.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use heeler_model::{JobId, JobStatus, RunId};
use heeler_store::{StateDir, StoreReader};
use heeler_transcript::LockFile;
use jiff::Timestamp;

use super::JobWatchEvent;

/// How often the record is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long nobody may write the state before a job that is not over counts as left alone. A daemon
/// that makes way for another is gone for a moment.
const UNATTENDED_AFTER: Duration = Duration::from_secs(2);

/// What becomes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WatchedJobState {
    /// This run is at it.
    Running(RunId),
    /// It has run and goes on later.
    Delayed {
        /// Why.
        reason: String,
        /// When at the earliest.
        at: Timestamp,
    },
    /// What came of it is on record, or nothing of it is any more.
    Ended,
    /// It is not over, and nobody cares for it.
    Unattended,
}

/// Follows a job in a thread of its own, until it is over or nobody listens.
pub(crate) fn follow_job(dir: StateDir, job: JobId, tell: SyncSender<JobWatchEvent>) {
    std::thread::spawn(move || {
        let (mut run, mut later, mut written, mut is_alone) = (None, None, Instant::now(), false);
        loop {
            let RecordedJobState { is_ended: is_over, run: last, delayed: put_off } =
                read_job_state(&dir, &job);
            if put_off.is_some() && put_off != later {
                later.clone_from(&put_off);
                if put_off.is_some_and(|it| tell.send(JobWatchEvent::JobState(it)).is_err()) {
                    return;
                }
            }
            if last != run
                && let Some(last) = last
                && tell.send(JobWatchEvent::JobState(WatchedJobState::Running(last))).is_err()
            {
                return;
            }
            run = last;
            if is_over {
                // Where nobody listens any more there is nobody to tell.
                let _told = tell.send(JobWatchEvent::JobState(WatchedJobState::Ended));
                return;
            }
            if !matches!(LockFile::probe(&dir.lock()), Ok(None)) {
                (written, is_alone) = (Instant::now(), false);
            }
            if !is_alone && written.elapsed() > UNATTENDED_AFTER {
                is_alone = true;
                if tell.send(JobWatchEvent::JobState(WatchedJobState::Unattended)).is_err() {
                    return;
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    });
}

/// What the record says of a job.
#[derive(Default)]
struct RecordedJobState {
    is_ended: bool,
    /// Which run was at it last.
    run: Option<RunId>,
    /// Whether it goes on later.
    delayed: Option<WatchedJobState>,
}

/// Looks at the record. One that cannot be read now tells nothing new.
fn read_job_state(dir: &StateDir, job: &JobId) -> RecordedJobState {
    let Ok(reader) = StoreReader::open(dir) else { return RecordedJobState::default() };
    // The job first: a run that begins after it was read is seen the next time.
    let status = match reader.job(job) {
        Ok(Some(found)) => found.head.status,
        Ok(None) => return RecordedJobState { is_ended: true, ..RecordedJobState::default() },
        Err(_) => return RecordedJobState::default(),
    };
    let run = reader.runs_of_job(job).unwrap_or_default().last().map(|run| run.id);
    let queued = match (status, run) {
        (JobStatus::Pending, Some(_)) => reader.queued_job(job).ok().flatten(),
        _ => None,
    };
    let later = queued.and_then(|row| {
        let reason = row.reason;
        row.not_before.map(|at| WatchedJobState::Delayed { reason, at })
    });
    RecordedJobState { is_ended: status.is_final(), run, delayed: later }
}
