//! Watches the workers of a conversation, and reports them whenever one changes. Start at
//! [`WorkerWatcher`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heeler_chat::{ChatFleetEvent, ChatWorkerInfo};
use heeler_model::JobId;
use heeler_query::workers::{WorkerDetails, list_workers};
use heeler_store::{StateDir, StoreReader};

use super::job_facts::load_job_facts;

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Thread that watches the workers of a conversation's jobs.
pub(super) struct WorkerWatcher {
    dir: StateDir,
    events: SyncSender<ChatFleetEvent>,
    jobs: Arc<Mutex<Vec<JobId>>>,
    is_stopped: Arc<AtomicBool>,
    is_watching: bool,
}

impl WorkerWatcher {
    /// Creates a watcher without jobs; its thread starts with the first
    /// [`WorkerWatcher::watch_jobs`].
    pub(super) fn new(dir: StateDir, sender: SyncSender<ChatFleetEvent>) -> WorkerWatcher {
        let (jobs, ended) = (Arc::default(), Arc::default());
        WorkerWatcher { dir, events: sender, jobs, is_stopped: ended, is_watching: false }
    }

    /// Watches the workers of these jobs, instead of those given before.
    pub(super) fn watch_jobs(&mut self, jobs: &[JobId]) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = jobs.to_vec();
        // The running thread reads the new list at its next poll.
        if std::mem::replace(&mut self.is_watching, true) {
            return;
        }
        let (dir, sender) = (self.dir.clone(), self.events.clone());
        let (jobs, ended) = (Arc::clone(&self.jobs), Arc::clone(&self.is_stopped));
        std::thread::spawn(move || {
            let mut last = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // An unreadable state is no change: the workers shown last stay.
                if let Some(now) = load_workers(&dir, &jobs).filter(|now| *now != last) {
                    last.clone_from(&now);
                    if sender.send(ChatFleetEvent::Workers(now)).is_err() {
                        return;
                    }
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        });
    }
}

impl Drop for WorkerWatcher {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
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
