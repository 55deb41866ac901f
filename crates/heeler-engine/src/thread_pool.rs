//! A thread pool for work that would block the dispatcher: starting runners, settling runs, clones.
//!
//! Work is started in the order in which it was submitted. Submitting never blocks and never
//! refuses: each kind of work has its own limit, which is claimed before the work is submitted (see
//! `executor/limits.rs`), so the queue is as long as those limits together. Start at [`ThreadPool`].

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub(crate) type PoolTask = Box<dyn FnOnce() + Send>;

/// Treatment of unfinished work when a pool is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolShutdown {
    /// Do all of it and wait.
    Finish,
    /// Drop queued work and leave active work to its threads, which end with the process. For work
    /// that may take minutes, can be repeated and has a time limit of its own.
    Abandon,
}

/// Owner of threads that share a queue.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    queue: PoolQueue,
    shutdown: PoolShutdown,
}

/// Handle for submitting work to a pool.
#[derive(Debug, Clone)]
pub(crate) struct PoolQueue {
    shared: Arc<PoolShared>,
}

#[derive(Debug)]
struct PoolShared {
    name: &'static str,
    size: usize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    waiting: VecDeque<PoolTask>,
    /// Threads that wait for work.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_closed: bool,
}

impl ThreadPool {
    /// Creates a pool of at most `size` threads. The first starts now, the others with the first
    /// work that finds no idle thread.
    pub(crate) fn new(
        name: &'static str,
        size: usize,
        shutdown: PoolShutdown,
    ) -> io::Result<ThreadPool> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(PoolShared { name, size, state, changed });
        let first = PoolShared::start_thread(&shared)?;
        shared.lock().threads.push(first);
        Ok(ThreadPool { queue: PoolQueue { shared }, shutdown })
    }

    pub(crate) fn queue(&self) -> PoolQueue {
        self.queue.clone()
    }

    pub(crate) fn submit(&self, work: impl FnOnce() + Send + 'static) {
        self.queue.submit(work);
    }

    /// Keeps every thread busy until the returned guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> std::sync::mpsc::SyncSender<()> {
        let (guard, released) = std::sync::mpsc::sync_channel::<()>(1);
        let released = Arc::new(Mutex::new(released));
        for _ in 0..self.queue.shared.size {
            let released = Arc::clone(&released);
            self.submit(move || {
                let _ended = released.lock().unwrap_or_else(PoisonError::into_inner).recv();
            });
        }
        guard
    }
}

impl PoolQueue {
    /// Queues work. Once the pool is dropped, the work is dropped too.
    pub(crate) fn submit(&self, work: impl FnOnce() + Send + 'static) {
        self.submit_task(Box::new(work));
    }

    pub(crate) fn submit_task(&self, work: PoolTask) {
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.is_closed {
            // Dropping work may send a reply: not under the lock.
            drop(state);
            return drop(work);
        }
        state.waiting.push_back(work);
        // Idle threads may already be needed for work that was submitted before.
        if state.waiting.len() > state.idle && state.threads.len() < shared.size {
            match PoolShared::start_thread(shared) {
                Ok(thread) => state.threads.push(thread),
                // The threads that exist do the work later.
                Err(error) => tracing::warn!(pool = shared.name, %error, "cannot start a thread"),
            }
        }
        shared.changed.notify_one();
    }
}

impl PoolShared {
    fn start_thread(shared: &Arc<PoolShared>) -> io::Result<JoinHandle<()>> {
        let own = Arc::clone(shared);
        std::thread::Builder::new().name(shared.name.to_owned()).spawn(move || own.run_worker())
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_worker(&self) {
        while let Some(work) = self.next_task() {
            // A panic must not end the thread.
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                tracing::error!(pool = self.name, "a piece of the daemon's work panicked");
            }
        }
    }

    /// Waits for work; returns `None` once the pool is closed and empty.
    fn next_task(&self) -> Option<PoolTask> {
        let mut state = self.lock();
        loop {
            // Queued work is done even if the pool is closed; an abandoned queue is empty then.
            if let Some(work) = state.waiting.pop_front() {
                return Some(work);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let shared = &self.queue.shared;
        let mut state = shared.lock();
        state.is_closed = true;
        let threads = std::mem::take(&mut state.threads);
        let active = threads.len() - state.idle;
        let dropped = match self.shutdown {
            PoolShutdown::Finish => VecDeque::new(),
            PoolShutdown::Abandon => std::mem::take(&mut state.waiting),
        };
        // Threads need the lock to end, and dropping work may send replies.
        drop(state);
        shared.changed.notify_all();
        if self.shutdown == PoolShutdown::Finish {
            threads.into_iter().for_each(|thread| drop(thread.join()));
        } else if active > 0 || !dropped.is_empty() {
            let (pool, queued) = (shared.name, dropped.len());
            tracing::info!(pool, active, queued, "work is left to the next daemon");
        }
    }
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolState")
            .field("waiting", &self.waiting.len())
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pool_has_no_more_threads_than_its_size() {
        let pool = ThreadPool::new("test", 3, PoolShutdown::Finish).unwrap();
        let (at_once, met) = (Arc::new(Barrier::new(4)), Arc::new(Barrier::new(4)));
        for _ in 0..3 {
            let (at_once, met) = (Arc::clone(&at_once), Arc::clone(&met));
            pool.submit(move || {
                at_once.wait();
                met.wait();
            });
        }
        at_once.wait();
        let (tell, told) = sync_channel(10);
        (0..10).for_each(|number| {
            let tell = tell.clone();
            pool.submit(move || tell.send(number).unwrap());
        });
        assert_eq!(pool.queue.shared.lock().threads.len(), 3);
        assert!(told.try_recv().is_err(), "every thread is busy");
        met.wait();
        let mut done: Vec<i32> = (0..10).map(|_| told.recv_timeout(LONG).unwrap()).collect();
        done.sort_unstable();
        assert_eq!(done, Vec::from_iter(0..10));
    }

    #[test]
    fn one_thread_works_in_order_and_survives_a_panic() {
        let pool = ThreadPool::new("test", 1, PoolShutdown::Finish).unwrap();
        let (tell, told) = sync_channel(3);
        for number in 0..4 {
            let tell = tell.clone();
            pool.submit(move || match number {
                1 => panic!("this piece of work does"),
                _ => tell.send(number).unwrap(),
            });
        }
        drop(pool);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [0, 2, 3], "dropping it does the rest");
    }

    #[test]
    fn a_pool_of_long_work_is_dropped_without_waiting_for_it() {
        let pool = ThreadPool::new("test", 1, PoolShutdown::Abandon).unwrap();
        let (begin, begun) = sync_channel(1);
        let (tell, told) = sync_channel::<()>(1);
        pool.submit(move || {
            begin.send(()).unwrap();
            let _ended = told.recv();
        });
        begun.recv_timeout(LONG).unwrap();
        let queued = Arc::new(());
        let (own, queue) = (Arc::clone(&queued), pool.queue());
        pool.submit(move || drop(own));
        drop(pool);
        assert_eq!(Arc::strong_count(&queued), 1, "queued work is dropped");
        let own = Arc::clone(&queued);
        queue.submit(move || drop(own));
        assert_eq!(Arc::strong_count(&queued), 1, "and so is later work");
        drop(tell);
    }
}
