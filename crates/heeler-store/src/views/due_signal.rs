//! Tasks of the publisher's thread: due views, views that callers wait for, and the end.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Called once the files of a request are in place, or could not be written.
pub type PublishCallback = Box<dyn FnOnce() + Send>;

/// Next task of the publisher.
pub(crate) enum PublishTask {
    /// Publish these views at once, then call the callbacks.
    Requested(PublishRequests),
    /// Publish every due view.
    AllDue,
    /// Publish every due view for the last time.
    Last,
}

/// Views that callers wait for.
#[derive(Default)]
pub(crate) struct PublishRequests {
    pub(crate) paths: BTreeSet<String>,
    pub(crate) callbacks: Vec<PublishCallback>,
}

impl PublishRequests {
    pub(crate) fn call_back(&mut self) {
        std::mem::take(&mut self.callbacks).into_iter().for_each(|done| done());
    }
}

/// Signal to the publisher that a view is due.
#[derive(Default)]
pub(crate) struct DueSignal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    is_due: bool,
    /// True while a publisher takes requests.
    is_served: bool,
    is_ending: bool,
    requests: PublishRequests,
}

impl std::fmt::Debug for DueSignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DueSignal").field("is_due", &self.lock().is_due).finish_non_exhaustive()
    }
}

impl DueSignal {
    pub(crate) fn signal(&self) {
        self.lock().is_due = true;
        self.changed.notify_all();
    }

    /// Asks for the publication of certain views. If no publisher runs, no view will be written, so
    /// the callback is called at once.
    pub(crate) fn request(&self, paths: Vec<String>, done: PublishCallback) {
        let mut state = self.lock();
        if !state.is_served {
            drop(state);
            return done();
        }
        state.requests.paths.extend(paths);
        state.requests.callbacks.push(done);
        drop(state);
        self.changed.notify_all();
    }

    /// Begins to take requests.
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        (state.is_served, state.is_ending) = (true, false);
    }

    /// Makes the publisher end.
    pub(crate) fn end(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
    }

    /// Takes no more requests; returns those that came since the last task.
    pub(crate) fn close(&self) -> PublishRequests {
        let mut state = self.lock();
        state.is_served = false;
        std::mem::take(&mut state.requests)
    }

    /// Waits for the next task. Due views that nobody waits for are collected until `pause_end`;
    /// at `retry_at` they are published without a new signal.
    pub(crate) fn next_task(&self, pause_end: Instant, retry_at: Option<Instant>) -> PublishTask {
        let mut state = self.lock();
        loop {
            if !state.requests.callbacks.is_empty() {
                return PublishTask::Requested(std::mem::take(&mut state.requests));
            }
            if state.is_ending {
                return PublishTask::Last;
            }
            let wake_at = if state.is_due { Some(pause_end) } else { retry_at };
            let now = Instant::now();
            if wake_at.is_some_and(|at| at <= now) {
                state.is_due = false;
                return PublishTask::AllDue;
            }
            state = match wake_at {
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
