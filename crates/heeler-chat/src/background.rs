//! Background threads for long operations. Start at [`StoppableThread`].

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// File bytes that are processed while the person waits; more are processed in the background.
pub(crate) const WAIT_BYTES_MAX: u64 = 16 << 20;

/// Background operation. Dropping it stops the thread and waits for its end.
#[derive(Debug)]
pub(crate) struct StoppableThread<T> {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

/// Operation that returns a message to show at the end, or the reason for its failure.
pub(crate) type BackgroundTask = StoppableThread<Result<String, String>>;

impl<T: Send + 'static> StoppableThread<T> {
    /// Starts the operation. It should check the flag from time to time.
    pub(crate) fn start(
        work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> StoppableThread<T> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        StoppableThread { is_stopped, thread: Some(std::thread::spawn(move || work(&stopped))) }
    }
}

impl<T> StoppableThread<T> {
    pub(crate) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the result.
    pub(crate) fn join(mut self) -> T {
        let thread = self.thread.take().expect("only this and the drop take it");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> Drop for StoppableThread<T> {
    fn drop(&mut self) {
        // The flag guards no other data, so no stronger order is needed.
        self.is_stopped.store(true, Ordering::Relaxed);
        // A panic of an operation that nobody waits for is ignored.
        let _stopped = self.thread.take().map(JoinHandle::join);
    }
}

/// Reader that fails once the flag is set.
pub(crate) struct StoppableReader<'a, R>(pub(crate) R, pub(crate) &'a AtomicBool);

impl<R: io::Read> io::Read for StoppableReader<'_, R> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(io::Error::other("the copy was stopped")),
            false => self.0.read(block),
        }
    }
}
