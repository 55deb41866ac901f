//! Signal that a view is due.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

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
    pub(crate) fn wait(&self, most: Duration) {
        let is_due = self.is_due.lock().unwrap_or_else(PoisonError::into_inner);
        // A signal that was sent before the wait is still set, so none is lost.
        let waited = self.changed.wait_timeout_while(is_due, most, |is_due| !*is_due);
        let (mut is_due, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_due = false;
    }
}
