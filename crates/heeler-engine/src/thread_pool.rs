//! A few threads that do what would keep the dispatcher waiting: starting runners, settling runs.
//!
//! Work is done in the order in which it comes. What waits is bounded by what the dispatcher lets
//! run at once, so handing over never blocks.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

type PoolTask = Box<dyn FnOnce() + Send>;

/// Threads that share a queue of work. Dropping them waits until all of it is done.
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

    /// Hands work over.
    pub(crate) fn submit(&self, work: impl FnOnce() + Send + 'static) {
        let queue = self.queue.as_ref().expect("only drop takes the queue");
        queue.send(Box::new(work)).expect("the threads live as long as the queue");
    }
}

fn run_worker(work: &Mutex<Receiver<PoolTask>>) {
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(next) = next else { return };
        // One piece of work must not take the others with it.
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
