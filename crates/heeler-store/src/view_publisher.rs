//! The thread that publishes views of a running daemon. Start at [`ViewPublisher`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::store::Store;
use crate::views::{PublishCallback, PublishError, PublishReport, PublishTask, PublishedView};

/// Shortest interval between two publications without a waiting caller.
const PUBLISH_EVERY: Duration = Duration::from_millis(500);

/// Delay before a failed view is retried without a new signal.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// A thread that writes due views until it is dropped: those that a caller waits for at once, the
/// others at most twice a second.
///
/// Dropping it writes the views that are still due.
#[derive(Debug)]
pub struct ViewPublisher {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl ViewPublisher {
    /// Starts the thread; `clock` returns the current time.
    pub fn start(
        store: Arc<Store>,
        clock: impl Fn() -> Timestamp + Send + 'static,
    ) -> std::io::Result<ViewPublisher> {
        let thread = {
            let store = Arc::clone(&store);
            // Before the thread exists: a request that comes meanwhile waits for it.
            store.due().begin();
            std::thread::Builder::new()
                .name("heeler-views".to_owned())
                .spawn(move || keep_publishing(&store, clock))
        };
        let thread = thread.inspect_err(|_| store.due().close().call_back())?;
        Ok(ViewPublisher { store, thread: Some(thread) })
    }
}

impl Drop for ViewPublisher {
    fn drop(&mut self) {
        self.store.due().end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the publisher's thread panicked");
        }
    }
}

impl Store {
    /// Publishes certain views at once, on the publisher's thread, and then calls `done`, on that
    /// thread too. `done` must not block.
    ///
    /// It is also called if a view could not be written, and at once if no publisher runs: a view
    /// is a convenience, and the change that it shows is committed.
    pub fn publish_then(&self, views: Vec<String>, done: PublishCallback) {
        match views.is_empty() {
            true => done(),
            false => self.due().request(views, done),
        }
    }

    /// Waits until the callback of every earlier [`Store::publish_then`] was called.
    pub fn wait_for_callbacks(&self) {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let view = PublishedView::State.path();
        // The receiver lives until the end of this function.
        self.publish_then(
            vec![view],
            Box::new(move || {
                let _gone = sender.send(());
            }),
        );
        // An error means that the publisher has ended, and with it the callbacks.
        let _ended = receiver.recv();
    }
}

/// Ends the service when the thread ends, even by a panic, so that no caller waits forever.
struct PublishService<'s>(&'s Store);

impl Drop for PublishService<'_> {
    fn drop(&mut self) {
        self.0.due().close().call_back();
    }
}

fn keep_publishing(store: &Store, clock: impl Fn() -> Timestamp) {
    let _service = PublishService(store);
    let mut pause_end = Instant::now();
    let mut retry_at = Some(pause_end);
    loop {
        match store.due().next_task(pause_end, retry_at) {
            PublishTask::Requested(mut wanted) => {
                let began = Instant::now();
                let paths: Vec<String> = std::mem::take(&mut wanted.paths).into_iter().collect();
                let mut done = store.publish_some_views(&paths, clock());
                wanted.call_back();
                // Other processes that wait for the files read the record. Callers do not wait for it.
                if let Ok(report) = &mut done
                    && let Err(error) = store.record_placed_views(report)
                {
                    done = Err(error);
                }
                // The callers waited for the files. The next round makes them durable: later, because
                // the jobs that they show are just starting, and the short ones change them again.
                if pause_end < began {
                    pause_end = began + PUBLISH_EVERY;
                }
                store.due().signal();
                if !report(done) {
                    retry_at = Some(Instant::now() + RETRY_EVERY);
                }
            }
            PublishTask::AllDue => {
                let began = Instant::now();
                let is_done = report(store.publish_views(clock()));
                // The pause collects changes: a busy fleet would otherwise write its views all the
                // time.
                pause_end = began + PUBLISH_EVERY;
                // A failed view has no new signal, so it is retried by time.
                retry_at = (!is_done).then(|| Instant::now() + RETRY_EVERY);
            }
            PublishTask::Last => {
                report(store.publish_views(clock()));
                return;
            }
        }
    }
}

/// Logs what failed; returns true if nothing must be retried.
fn report(published: Result<PublishReport, PublishError>) -> bool {
    match published {
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
