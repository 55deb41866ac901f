//! Follows the recorded state of a job: queued, running, ended or unattended. Start at
//! [`follow_job`].

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use heeler_model::{JobId, JobStatus, RunId};
use heeler_store::{StateDir, StoreReader};
use heeler_transcript::LockFile;
use jiff::Timestamp;

use super::JobWatchEvent;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time without any writer of the state after which an active job counts as unattended. A daemon
/// that is being replaced is absent for a moment.
const UNATTENDED_AFTER: Duration = Duration::from_secs(2);

/// State of a watched job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WatchedJobState {
    /// This run executes the job.
    Running(RunId),
    /// The job has run, and is queued to continue later.
    Delayed {
        reason: String,
        /// Earliest time.
        at: Timestamp,
    },
    /// The result is recorded, or the job's record no longer exists.
    Ended,
    /// The job has not ended, and no daemon runs.
    Unattended,
}

/// Follows a job in a thread of its own, until the job has ended or the receiver is gone.
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
                // Fails only if the receiver is gone.
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

/// State of a job as recorded in the database.
#[derive(Default)]
struct RecordedJobState {
    is_ended: bool,
    /// The newest run.
    run: Option<RunId>,
    /// Set if the job is queued to continue later.
    delayed: Option<WatchedJobState>,
}

/// Reads the job's state. If the database cannot be read now, returns no news.
fn read_job_state(dir: &StateDir, job: &JobId) -> RecordedJobState {
    let Ok(reader) = StoreReader::open(dir) else { return RecordedJobState::default() };
    // Read the job before its runs: a run that starts in between is seen the next time.
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
