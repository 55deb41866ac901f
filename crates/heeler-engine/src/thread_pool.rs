//! A small thread pool for work that would block the dispatcher: starting runners, settling runs.
//!
//! Work is executed in order. The dispatcher's concurrency limits bound the queue, so submitting
//! never blocks. Start at [`ThreadPool`].

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

type PoolTask = Box<dyn FnOnce() + Send>;

/// Threads that share a queue. Dropping the pool waits until the queue is empty.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    queue: Option<Sender<PoolTask>>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// Starts `size` threads.
    pub(crate) fn new(name: &str, size: usize) -> io::Result<ThreadPool> {
        let (queue, work) = channel();
        let work: Arc<Mutex<Receiver<PoolTask>>> = Arc::new(Mutex::new(work));
        let one = |_| {
            let work = Arc::clone(&work);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run_worker(&work))
        };
        let threads = (0..size).map(one).collect::<io::Result<_>>()?;
        Ok(ThreadPool { queue: Some(queue), threads })
    }

    /// Queues work.
    pub(crate) fn submit(&self, work: impl FnOnce() + Send + 'static) {
        let queue = self.queue.as_ref().expect("only drop takes the queue");
        queue.send(Box::new(work)).expect("the threads live as long as the queue");
    }
}

fn run_worker(work: &Mutex<Receiver<PoolTask>>) {
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(next) = next else { return };
        // A panic must not end the thread.
        if catch_unwind(AssertUnwindSafe(next)).is_err() {
            tracing::error!("a piece of the daemon's work panicked");
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}
