//! The workers of a conversation, told whenever one of them is where it was not before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heeler_chat::{Happened, WorkerFacts};
use heeler_model::JobId;
use heeler_query::workers::{Worker, workers};
use heeler_store::{Reader, StateDir};

use super::fleet::facts;

/// How often the record is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Whose workers are watched.
pub(super) struct Watched {
    dir: StateDir,
    tell: SyncSender<Happened>,
    jobs: Arc<Mutex<Vec<JobId>>>,
    ended: Arc<AtomicBool>,
    is_watching: bool,
}

impl Watched {
    /// Watches nobody's yet.
    pub(super) fn new(dir: StateDir, tell: SyncSender<Happened>) -> Watched {
        let (jobs, ended) = (Arc::default(), Arc::default());
        Watched { dir, tell, jobs, ended, is_watching: false }
    }

    /// Watches the workers of these jobs.
    pub(super) fn set(&mut self, jobs: &[JobId]) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = jobs.to_vec();
        if std::mem::replace(&mut self.is_watching, true) {
            return;
        }
        let (dir, tell) = (self.dir.clone(), self.tell.clone());
        let (jobs, ended) = (Arc::clone(&self.jobs), Arc::clone(&self.ended));
        std::thread::spawn(move || {
            let mut last = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(now) = look(&dir, &jobs).filter(|now| *now != last) {
                    last.clone_from(&now);
                    if tell.send(Happened::Workers(now)).is_err() {
                        return;
                    }
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Returns what is on record of the workers; `None` if it cannot be read now.
fn look(dir: &StateDir, jobs: &[JobId]) -> Option<Vec<WorkerFacts>> {
    if jobs.is_empty() {
        return Some(Vec::new());
    }
    let reader = Reader::open(dir).ok()?;
    let told = |worker: Worker| WorkerFacts {
        task: worker.task().to_owned(),
        jobs: worker.jobs.iter().map(|job| facts(&reader, job)).collect(),
        name: worker.name,
    };
    Some(workers(&reader, jobs).ok()?.into_iter().map(told).collect())
}
