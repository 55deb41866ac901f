//! Views: YAML and JSON files for people and scripts, made from the database.
//!
//! A view is never authoritative, with two documented exceptions: a `status` reset by hand in
//! `state.yaml`, and a deleted `sessions/<agent>.json`. Unknown keys are preserved. Start at
//! [`PublishedView`] for the list of views, and at `publish::publish` for how they are written.

mod hand_edits;
mod publish;
mod render;
mod temp_files;
mod view_node;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heeler_model::{AgentName, JobId, SessionId};
use jiff::Timestamp;

pub(crate) use hand_edits::apply_hand_edits;
pub use hand_edits::{HandEdits, StatusEdit};
pub use publish::{PublishError, PublishReport, ViewFailure, sha256_hex};
pub(crate) use publish::{hex, publish};
pub use render::render_view;
pub(crate) use temp_files::remove_temp_files;
pub(crate) use view_node::ViewFormat;

use crate::store::Store;

/// Shortest interval between two publications.
const PUBLISH_EVERY: Duration = Duration::from_millis(500);

/// Delay before a failed view is retried without a new signal.
const RETRY_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishedView {
    /// `state.yaml`
    State,
    /// `jobs/<job-id>.yaml`
    Job(JobId),
    /// `sessions/<agent>.json`: the session that the agent's next job continues.
    AgentSession(AgentName),
    /// `sessions/<sess-id>.json` and its `.context`
    Session(SessionId),
}

impl PublishedView {
    /// Returns the file's path, relative to the state directory.
    pub fn path(&self) -> String {
        match self {
            PublishedView::State => "state.yaml".to_owned(),
            PublishedView::Job(id) => format!("jobs/{id}.yaml"),
            PublishedView::AgentSession(agent) => format!("sessions/{agent}.json"),
            PublishedView::Session(id) => format!("sessions/{id}.json"),
        }
    }

    pub fn from_path(path: &str) -> Option<PublishedView> {
        if path == "state.yaml" {
            return Some(PublishedView::State);
        }
        if let Some(id) = path.strip_prefix("jobs/").and_then(|name| name.strip_suffix(".yaml")) {
            return id.parse().ok().map(PublishedView::Job);
        }
        let name = path.strip_prefix("sessions/")?.strip_suffix(".json")?;
        // Agent names that look like a session id are not allowed.
        let session = name.parse().map(PublishedView::Session);
        session.ok().or_else(|| name.parse().ok().map(PublishedView::AgentSession))
    }
}

impl fmt::Display for PublishedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.path())
    }
}

/// Signal to the publisher that a view is due.
#[derive(Debug, Default)]
pub(crate) struct DueSignal {
    is_due: Mutex<bool>,
    changed: Condvar,
}

impl DueSignal {
    pub(crate) fn signal(&self) {
        *self.is_due.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until a view is due or `most` has passed, and resets the signal.
    fn wait(&self, most: Duration) {
        let is_due = self.is_due.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_due, most, |is_due| !*is_due);
        let (mut is_due, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_due = false;
    }
}

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
        self.is_ending.store(true, Ordering::SeqCst);
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
        let is_last = is_ending.load(Ordering::SeqCst);
        let started = Instant::now();
        let is_done = publish_and_report(store, clock());
        if is_last {
            return;
        }
        ended.wait(PUBLISH_EVERY.saturating_sub(started.elapsed()));
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
