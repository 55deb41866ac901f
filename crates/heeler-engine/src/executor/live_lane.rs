//! The thread of the live output of chats, and the jobs that wait for it. Start at [`LiveLane`].

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_model::JobId;

use crate::thread_pool::{PoolShutdown, ThreadPool};

/// Thread of the live output, and the jobs that it has not seen yet.
#[derive(Debug)]
pub(super) struct LiveLane {
    pub(super) pool: ThreadPool,
    pub(super) waiting: Arc<Mutex<WaitingJobs>>,
}

#[derive(Debug, Default)]
pub(super) struct WaitingJobs {
    pub(super) jobs: Vec<LiveJob>,
    /// True while the thread serves jobs.
    pub(super) is_served: bool,
    /// Number of jobs that are served.
    pub(super) served: usize,
    /// Accounts of the Slack apps that get no streams. They are asked again by the next daemon.
    pub(super) without_stream: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct LiveJob {
    pub(super) job: JobId,
    /// The card, if an earlier daemon posted one.
    pub(super) card: Option<String>,
    /// True if an earlier daemon may have posted a card.
    pub(super) is_resumed: bool,
}

impl LiveLane {
    pub(super) fn new() -> io::Result<LiveLane> {
        let pool = ThreadPool::new("heeler-live", 1, PoolShutdown::Abandon)?;
        Ok(LiveLane { pool, waiting: Arc::default() })
    }
}

pub(super) fn lock(waiting: &Mutex<WaitingJobs>) -> MutexGuard<'_, WaitingJobs> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
