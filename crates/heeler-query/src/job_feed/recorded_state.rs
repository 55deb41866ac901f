//! State of a job as recorded in the database, for a feed. Start at [`read_job_state`].

use heeler_model::{JobId, JobStatus, RunId};
use heeler_store::{StateDir, StoreReader};

use crate::unpublished_views::UnpublishedViews;
use jiff::Timestamp;

/// State of a job as recorded in the database.
#[derive(Debug, Default)]
pub(super) struct RecordedJobState {
    /// True if the result is recorded, or the job's record no longer exists.
    pub(super) is_ended: bool,
    /// Views of an ended job that are not published yet.
    pub(super) unpublished: UnpublishedViews,
    /// The newest run.
    pub(super) run: Option<RunId>,
    /// Reason and earliest time, if the job has run and is queued to continue later.
    pub(super) delayed: Option<(String, Timestamp)>,
}

/// Reads the job's state. If the database cannot be read now, returns no news.
pub(super) fn read_job_state(dir: &StateDir, job: &JobId) -> RecordedJobState {
    let Ok(reader) = StoreReader::open(dir) else { return RecordedJobState::default() };
    // Read the job before its runs: a run that starts in between is seen the next time.
    let (status, unpublished) = match reader.job(job) {
        // A view that cannot be read is not waited for.
        Ok(Some(found)) if found.head.status.is_final() => {
            (found.head.status, UnpublishedViews::of_job(&reader, &found).unwrap_or_default())
        }
        Ok(Some(found)) => (found.head.status, UnpublishedViews::default()),
        Ok(None) => return RecordedJobState { is_ended: true, ..RecordedJobState::default() },
        Err(_) => return RecordedJobState::default(),
    };
    let run = reader.runs_of_job(job).unwrap_or_default().last().map(|run| run.id);
    let queued = match (status, run) {
        (JobStatus::Pending, Some(_)) => reader.queued_job(job).ok().flatten(),
        _ => None,
    };
    let delayed = queued.and_then(|row| row.not_before.map(|at| (row.reason, at)));
    RecordedJobState { is_ended: status.is_final(), unpublished, run, delayed }
}
