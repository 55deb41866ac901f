//! Number of open streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a client until it is dropped.
pub(super) struct StreamCountGuard(Arc<AtomicUsize>);

impl StreamCountGuard {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> StreamCountGuard {
        count.fetch_add(1, Ordering::SeqCst);
        StreamCountGuard(Arc::clone(count))
    }
}

impl Drop for StreamCountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
