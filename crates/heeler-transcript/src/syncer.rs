//! The background sync: one thread per process that syncs each dirty transcript within a second.
//!
//! It only knows since when each transcript is dirty. A failed sync stops that transcript and no
//! other. Start at [`schedule_sync`].

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::writer::SyncedFile;

/// Time that a transcript may be dirty before its sync starts; the sync itself has the rest of a
/// second.
const SYNC_AFTER: Duration = Duration::from_millis(500);

/// Dirty transcripts, the longest-waiting first.
#[derive(Default)]
struct SyncQueue {
    waiting: Mutex<VecDeque<(Instant, Weak<SyncedFile>)>>,
    added: Condvar,
}

static QUEUE: OnceLock<Option<Arc<SyncQueue>>> = OnceLock::new();

/// Schedules a sync of the transcript; returns false if this process cannot start a thread.
///
/// Must be called once when the transcript becomes dirty, not for every line.
pub(crate) fn schedule_sync(core: &Arc<SyncedFile>) -> bool {
    // Started by the first dirty transcript, so that readers have no such thread.
    let Some(queue) = QUEUE.get_or_init(start) else { return false };
    let due = Instant::now() + SYNC_AFTER;
    let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    // All entries wait the same time, so the order of arrival is the order of due times.
    waiting.push_back((due, Arc::downgrade(core)));
    queue.added.notify_one();
    true
}

fn start() -> Option<Arc<SyncQueue>> {
    let queue = Arc::new(SyncQueue::default());
    let of_thread = Arc::clone(&queue);
    let builder = thread::Builder::new().name("transcript-sync".to_owned());
    builder.spawn(move || of_thread.run()).ok()?;
    Some(queue)
}

impl SyncQueue {
    fn run(&self) -> ! {
        loop {
            let (due, core) = self.take();
            // Sleeping for the first entry delays no other, because later entries are due later.
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A closed transcript was synced when it was closed, so the queue need not keep it
            // alive.
            if let Some(core) = core.upgrade() {
                // The transcript remembers a failure and reports it at its next append.
                drop(core.sync());
            }
        }
    }

    fn take(&self) -> (Instant, Weak<SyncedFile>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(first) = waiting.pop_front() {
                return first;
            }
            waiting = self.added.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
