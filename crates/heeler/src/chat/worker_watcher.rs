//! Watches the workers of a conversation, and reports them whenever one changes. Start at
//! [`WorkerWatcher`].

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heeler_chat::{ChatFleetEvent, ChatWorkerInfo};
use heeler_model::JobId;
use heeler_query::workers::{WorkerDetails, list_workers};
use heeler_store::{StateDir, StoreReader};
use heeler_transcript::{FollowStopper, FollowWaker, TranscriptFollower};

use super::job_facts::load_job_facts;

/// Shortest time between two reads of the workers: a busy fleet commits hundreds of times a second.
const READ_INTERVAL: Duration = Duration::from_millis(200);

/// Longest wait for a commit. The time of the next one is unknown; it only bounds the wait.
const COMMIT_WAIT: Duration = Duration::from_secs(3600);

/// Thread that watches the workers of a conversation's jobs.
pub(super) struct WorkerWatcher {
    dir: StateDir,
    events: SyncSender<ChatFleetEvent>,
    jobs: Arc<Mutex<Vec<JobId>>>,
    /// Handles of the watching thread, once it has started.
    thread: Option<(FollowWaker, FollowStopper)>,
}

impl WorkerWatcher {
    /// Creates a watcher without jobs; its thread starts with the first
    /// [`WorkerWatcher::watch_jobs`].
    pub(super) fn new(dir: StateDir, sender: SyncSender<ChatFleetEvent>) -> WorkerWatcher {
        WorkerWatcher { dir, events: sender, jobs: Arc::default(), thread: None }
    }

    /// Watches the workers of these jobs, instead of those given before.
    pub(super) fn watch_jobs(&mut self, jobs: &[JobId]) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = jobs.to_vec();
        if let Some((waker, _)) = &self.thread {
            return waker.wake();
        }
        // It follows no transcript: the writer of the state announces each commit by this file.
        let mut commits = TranscriptFollower::new();
        commits.watch_file(&self.dir.lock());
        self.thread = Some((commits.waker(), commits.stopper()));
        let (dir, sender) = (self.dir.clone(), self.events.clone());
        let jobs = Arc::clone(&self.jobs);
        std::thread::spawn(move || {
            let mut last = Vec::new();
            while !commits.is_stopped() {
                commits.take_watched_change();
                let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // An unreadable state is no change: the workers shown last stay.
                if let Some(now) = load_workers(&dir, &jobs).filter(|now| *now != last) {
                    last.clone_from(&now);
                    if sender.send(ChatFleetEvent::Workers(now)).is_err() {
                        return;
                    }
                }
                // An error concerns a transcript, and there is none.
                let _woken = commits.next(COMMIT_WAIT);
                std::thread::sleep(READ_INTERVAL);
            }
        });
    }
}

impl Drop for WorkerWatcher {
    fn drop(&mut self) {
        if let Some((_, stopper)) = &self.thread {
            stopper.stop();
        }
    }
}

/// Returns the recorded workers, or `None` if they cannot be read now.
fn load_workers(dir: &StateDir, jobs: &[JobId]) -> Option<Vec<ChatWorkerInfo>> {
    if jobs.is_empty() {
        return Some(Vec::new());
    }
    let reader = StoreReader::open(dir).ok()?;
    let to_info = |worker: WorkerDetails| ChatWorkerInfo {
        task: worker.first_prompt().to_owned(),
        jobs: worker.jobs.iter().map(|job| load_job_facts(&reader, job)).collect(),
        name: worker.name,
    };
    Some(list_workers(&reader, jobs).ok()?.into_iter().map(to_info).collect())
}
