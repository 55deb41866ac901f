//! Views of a job that its daemon has not published yet, for commands that return when the job has
//! ended. Start at [`UnpublishedViews`].

use std::time::{Duration, Instant};

use heeler_model::Job;
use heeler_store::{DatabaseError, PublishedView, StateDir, StoreReader};
use heeler_transcript::LockFile;

/// Longest wait for views. A view that cannot be written must not hold a command.
const WAIT_MAX: Duration = Duration::from_secs(5);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Views with a change that is committed, but not in their files yet.
#[derive(Debug, Default)]
pub struct UnpublishedViews {
    /// Path and generation of each.
    views: Vec<(String, i64)>,
}

impl UnpublishedViews {
    /// Returns the due views that show a job: its own, those of its session, and `state.yaml`.
    pub fn of_job(reader: &StoreReader, job: &Job) -> Result<UnpublishedViews, DatabaseError> {
        let mut shown = vec![PublishedView::Job(job.head.id.clone()), PublishedView::State];
        // A name from another system may not be a valid file name; it has no such view.
        shown.extend(job.head.agent.parse().ok().map(PublishedView::AgentSession));
        if let Some(id) = &job.head.session_id {
            let session = reader.session_by_agent_id(id)?;
            shown.extend(session.map(|session| PublishedView::Session(session.id)));
        }
        let mut views = Vec::new();
        for view in shown {
            let due = reader.due_view(&view.path())?;
            views.extend(due.map(|row| (row.path, row.generation)));
        }
        Ok(UnpublishedViews { views })
    }

    /// Returns true if all files are published, or if no process is left that publishes them.
    pub fn are_settled(&mut self, dir: &StateDir) -> bool {
        if self.views.is_empty() {
            return true;
        }
        // Read before the record: a daemon publishes its views before it releases the lock.
        let is_unattended = matches!(LockFile::probe(&dir.lock()), Ok(None));
        let Ok(reader) = StoreReader::open(dir) else { return true };
        self.views.retain(|(path, generation)| {
            // One that cannot be read is not waited for.
            matches!(reader.is_view_in_place(path, *generation), Ok(false))
        });
        self.views.is_empty() || is_unattended
    }

    /// Waits until all files are published, or until no process is left that publishes them.
    pub fn wait(mut self, dir: &StateDir) {
        let deadline = Instant::now() + WAIT_MAX;
        while !self.are_settled(dir) && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
