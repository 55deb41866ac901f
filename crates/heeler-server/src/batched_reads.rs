//! Reads of many requests in batches, on threads that may wait for the disk.
//!
//! A hand-over to another thread costs more than reading a page of a list. So one hand-over serves
//! all requests that are waiting. Identical requests share one read if they arrive before it begins;
//! no reply is older than its request. Start at [`BatchedReads`].

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Most queries of one batch. Further ones are read by another thread meanwhile.
const BATCH_MAX: usize = 16;

/// Queries of one batch, each with the requests that wait for its reply.
pub(crate) type ReadBatch<Q, R> = VecDeque<(Q, ReadWaiters<R>)>;

/// Requests that wait for the reply to one query.
#[derive(Debug)]
pub(crate) struct ReadWaiters<R>(Vec<oneshot::Sender<R>>);

impl<R: Clone> ReadWaiters<R> {
    /// Returns true if all clients have disconnected.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.iter().all(oneshot::Sender::is_closed)
    }

    pub(crate) fn reply(mut self, reply: R) {
        let last = self.0.pop();
        for waiter in self.0 {
            // The client may have disconnected.
            drop(waiter.send(reply.clone()));
        }
        drop(last.map(|waiter| waiter.send(reply)));
    }
}

/// Queries that wait for a reader.
#[derive(Debug)]
pub(crate) struct BatchedReads<Q, R> {
    waiting: Mutex<WaitingReads<Q, R>>,
    /// Most batches that are read at the same time.
    readers_max: usize,
}

#[derive(Debug)]
struct WaitingReads<Q, R> {
    /// Queries in the order of their first requests.
    order: VecDeque<Q>,
    waiters: HashMap<Q, ReadWaiters<R>>,
    /// Tasks that read batches. Each ends when it finds no query.
    readers: usize,
}

impl<Q, R> BatchedReads<Q, R>
where
    Q: Clone + Eq + Hash + Send + 'static,
    R: Clone + Send + 'static,
{
    pub(crate) fn new(readers_max: usize) -> BatchedReads<Q, R> {
        let waiting = WaitingReads { order: VecDeque::new(), waiters: HashMap::new(), readers: 0 };
        BatchedReads { waiting: Mutex::new(waiting), readers_max }
    }

    /// Reads `query` with the next batch. `read` is called on a thread that may wait; it must reply
    /// to each query. Returns `None` if it has not.
    pub(crate) async fn read<F>(self: &Arc<Self>, query: Q, read: F) -> Option<R>
    where
        F: Fn(ReadBatch<Q, R>) + Clone + Send + 'static,
    {
        let (waiter, reply) = oneshot::channel();
        let needs_reader = {
            let mut waiting = self.lock();
            match waiting.waiters.get_mut(&query) {
                Some(waiters) => waiters.0.push(waiter),
                None => {
                    waiting.order.push_back(query.clone());
                    waiting.waiters.insert(query, ReadWaiters(vec![waiter]));
                }
            }
            // Several queries do not wait for a batch that takes long. A single one does, because a
            // second reader would take identical requests apart.
            let needs_reader = waiting.readers == 0
                || (waiting.order.len() > 1 && waiting.readers < self.readers_max);
            waiting.readers += usize::from(needs_reader);
            needs_reader
        };
        if needs_reader {
            self.start_reader(read);
        }
        reply.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, WaitingReads<Q, R>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a reader that is counted already. It is no part of a request, so a client that
    /// disconnects does not end the reads of others.
    fn start_reader<F>(self: &Arc<Self>, read: F)
    where
        F: Fn(ReadBatch<Q, R>) + Clone + Send + 'static,
    {
        tokio::spawn(Arc::clone(self).read_batches(read));
    }

    async fn read_batches<F>(self: Arc<Self>, read: F)
    where
        F: Fn(ReadBatch<Q, R>) + Clone + Send + 'static,
    {
        loop {
            // Lets requests that are already scheduled join the batch.
            tokio::task::yield_now().await;
            let Some((batch, needs_another)) = self.take_batch() else { return };
            if needs_another {
                self.start_reader(read.clone());
            }
            let read = read.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || read(batch)).await {
                // The requests of this batch find their channels closed.
                tracing::error!(%error, "a query panicked");
            }
        }
    }

    /// Takes a batch, and counts another reader if one is needed for the rest. Without a query,
    /// the caller no longer counts as a reader.
    fn take_batch(&self) -> Option<(ReadBatch<Q, R>, bool)> {
        let mut waiting = self.lock();
        let count = waiting.order.len().min(BATCH_MAX);
        // Both in one locked step: a request that comes later starts a reader again.
        if count == 0 {
            waiting.readers -= 1;
            return None;
        }
        let mut batch = VecDeque::with_capacity(count);
        for _ in 0..count {
            let Some(query) = waiting.order.pop_front() else { break };
            let Some(waiters) = waiting.waiters.remove(&query) else { continue };
            batch.push_back((query, waiters));
        }
        let needs_another = !waiting.order.is_empty() && waiting.readers < self.readers_max;
        waiting.readers += usize::from(needs_another);
        Some((batch, needs_another))
    }
}

#[cfg(test)]
mod tests;
