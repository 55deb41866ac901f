//! The thread that publishes views of a running daemon. Start at [`ViewPublisher`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::store::Store;
use crate::views::DueSignal;

/// Shortest interval between two publications.
const PUBLISH_EVERY: Duration = Duration::from_millis(500);

/// Delay before a failed view is retried without a new signal.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// A thread that writes due views, at most twice a second, until it is dropped.
///
/// Dropping it writes the views that are still due.
#[derive(Debug)]
pub struct ViewPublisher {
    store: Arc<Store>,
    is_ending: Arc<AtomicBool>,
    end_signal: Arc<DueSignal>,
    thread: Option<JoinHandle<()>>,
}

impl ViewPublisher {
    /// Starts the thread; `clock` returns the current time.
    pub fn start(
        store: Arc<Store>,
        clock: impl Fn() -> Timestamp + Send + 'static,
    ) -> std::io::Result<ViewPublisher> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(DueSignal::default());
        let thread = {
            let (store, is_ending, ended) =
                (Arc::clone(&store), Arc::clone(&is_ending), Arc::clone(&ended));
            std::thread::Builder::new()
                .name("heeler-views".to_owned())
                .spawn(move || keep_publishing(&store, &is_ending, &ended, clock))?
        };
        Ok(ViewPublisher { store, is_ending, end_signal: ended, thread: Some(thread) })
    }
}

impl Drop for ViewPublisher {
    fn drop(&mut self) {
        // Set before the signals, so that the thread sees it when it wakes.
        self.is_ending.store(true, Ordering::SeqCst);
        // The thread may be in either wait.
        self.end_signal.signal();
        self.store.due().signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the publisher's thread panicked");
        }
    }
}

fn keep_publishing(
    store: &Store,
    is_ending: &AtomicBool,
    ended: &DueSignal,
    clock: impl Fn() -> Timestamp,
) {
    loop {
        // Read before the publication, so that the last round covers every earlier change.
        let is_last = is_ending.load(Ordering::SeqCst);
        let started = Instant::now();
        let is_done = publish_and_report(store, clock());
        if is_last {
            return;
        }
        // The pause collects changes: a busy fleet would otherwise write its views all the time.
        ended.wait(PUBLISH_EVERY.saturating_sub(started.elapsed()));
        // A failed view has no new signal, so it is retried by time.
        store.due().wait(if is_done { Duration::MAX } else { RETRY_EVERY });
    }
}

/// Publishes; returns true if nothing must be retried.
fn publish_and_report(store: &Store, now: Timestamp) -> bool {
    match store.publish_views(now) {
        Ok(report) => {
            for failure in &report.failed {
                tracing::warn!(view = failure.path, error = failure.reason, "view not written");
            }
            report.failed.is_empty()
        }
        Err(error) => {
            tracing::warn!(%error, "views not written");
            false
        }
    }
}
