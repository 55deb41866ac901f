//! What takes long is done beside, by a thread of its own. Start at [`StoppableThread`].

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// How many bytes of files are gone through while somebody waits; with more it is done beside.
pub(crate) const WAIT_BYTES_MAX: u64 = 16 << 20;

/// Something that is done beside. Whoever lets it go stops it, and waits until it has stopped.
#[derive(Debug)]
pub(crate) struct StoppableThread<T> {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> StoppableThread<T> {
    /// Begins it. It should look now and then whether it is stopped.
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

    /// Waits for what comes of it.
    pub(crate) fn join(mut self) -> T {
        let thread = self.thread.take().expect("only this and the drop take it");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> Drop for StoppableThread<T> {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let _stopped = self.thread.take().map(JoinHandle::join);
    }
}

/// Reads until somebody says stop.
pub(crate) struct StoppableReader<'a, R>(pub(crate) R, pub(crate) &'a AtomicBool);

impl<R: io::Read> io::Read for StoppableReader<'_, R> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(io::Error::other("the copy was stopped")),
            false => self.0.read(block),
        }
    }
}
