//! Repetition of a fetch of missed webhook deliveries.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Delay after a fetch that was not complete.
const FETCH_RETRY_DELAY: Duration = Duration::from_secs(5 * 60);

/// Time of the next fetch, if the last one was not complete.
#[derive(Debug, Default)]
pub(super) struct DeliveryFetch {
    retry_at: Mutex<Option<Instant>>,
}

impl DeliveryFetch {
    pub(super) fn retry_at(&self) -> Option<Instant> {
        *self.retry_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a fetch is due, and forgets it.
    pub(super) fn take_due(&self, now: Instant) -> bool {
        let mut retry_at = self.retry_at.lock().unwrap_or_else(PoisonError::into_inner);
        retry_at.take_if(|at| *at <= now).is_some()
    }

    pub(super) fn retry_later(&self) {
        let at = Instant::now() + FETCH_RETRY_DELAY;
        *self.retry_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }
}
