//! Equal questions that are asked at once are read once.
//!
//! A flight is one read and all who wait for it. Whoever comes may join one only while it has not
//! begun: as long as one is under way, all who come wait together for the next. So every answer has
//! all that was on record when it was asked for, and nothing outlives its read: this is no cache.
//! Start at [`ReadCoalescer`].

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::ACCEPT;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::etag::{IfNoneMatchTags, TaggedResponse};
use crate::caller::{AccessScope, RequestCaller};
use crate::problem::ProblemDetails;

/// Of how many different questions those who ask them are kept together; all others read alone.
pub(crate) const COALESCED_KEYS_MAX: usize = 256;

type SharedRead<T> = Shared<BoxFuture<'static, T>>;
type WeakSharedRead<T> = WeakShared<BoxFuture<'static, T>>;

/// How many reads are under way at once: as many as readers of the database are kept open, so that
/// none is opened for one question.
const CONCURRENT_READS_MAX: usize = 8;

tokio::task_local! {
    static READ_PERMIT: Option<Arc<OwnedSemaphorePermit>>;
}

/// Returns the turn of the read that asks, for work that goes on when all who wait for it have left.
pub(crate) fn current_read_permit() -> Option<Arc<OwnedSemaphorePermit>> {
    READ_PERMIT.try_with(Clone::clone).ok().flatten()
}

/// The reads that are under way, and those that come next.
#[derive(Debug)]
pub(crate) struct ReadCoalescer<T: Clone> {
    reads: Mutex<HashMap<String, CoalescedReads<T>>>,
    /// Whose turn it is to read.
    read_permits: Arc<Semaphore>,
}

/// The flights of one question. Only those who wait hold them, so one that nobody waits for is gone.
#[derive(Debug)]
struct CoalescedReads<T: Clone> {
    running: Option<WeakSharedRead<T>>,
    queued: Option<WeakSharedRead<T>>,
}

impl<T: Clone> Default for ReadCoalescer<T> {
    fn default() -> ReadCoalescer<T> {
        ReadCoalescer {
            reads: Mutex::default(),
            read_permits: Arc::new(Semaphore::new(CONCURRENT_READS_MAX)),
        }
    }
}

fn upgrade_read<T: Clone>(flight: Option<&WeakSharedRead<T>>) -> Option<SharedRead<T>> {
    flight.and_then(WeakSharedRead::upgrade)
}

impl<T: Clone + Send + Sync + 'static> ReadCoalescer<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, CoalescedReads<T>>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the next read of what `key` asks for; it is `read` if there is none to join. Whoever
    /// waits drives it, so it goes on when the one who brought it leaves. `read` must not panic.
    pub(crate) fn join<F>(self: &Arc<Self>, key: &str, read: impl FnOnce() -> F) -> SharedRead<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut of = self.lock();
        let pair = of.get(key);
        if let Some(next) = pair.and_then(|pair| upgrade_read(pair.queued.as_ref())) {
            return next;
        }
        let is_kept = pair.is_some() || make_room(&mut of);
        let before = of.get(key).and_then(|pair| upgrade_read(pair.running.as_ref()));
        let (flights, own, read) = (Arc::clone(self), key.to_owned(), read());
        let flight = async move {
            if let Some(before) = before {
                before.await;
            }
            let turn = Arc::clone(&flights.read_permits).acquire_owned().await.ok().map(Arc::new);
            // Whoever has asked by now comes along. A task of its own waits for its turn among all
            // others; a yield of this one would be over when the next of those who wait looks at it.
            let _turn_of_others = tokio::spawn(tokio::task::yield_now()).await;
            if is_kept {
                flights.mark_running(&own);
            }
            let told = READ_PERMIT.scope(turn, read).await;
            if is_kept {
                flights.remove_finished(&own);
            }
            told
        };
        let flight = flight.boxed().shared();
        if is_kept {
            let pair =
                of.entry(key.to_owned()).or_insert(CoalescedReads { running: None, queued: None });
            pair.queued = flight.downgrade();
        }
        flight
    }

    /// From now on nobody joins the flight that was the next.
    fn mark_running(&self, key: &str) {
        if let Some(pair) = self.lock().get_mut(key) {
            pair.running = pair.queued.take();
        }
    }

    /// Forgets a flight that has ended.
    fn remove_finished(&self, key: &str) {
        let mut of = self.lock();
        let Some(pair) = of.get_mut(key) else { return };
        pair.running = None;
        if upgrade_read(pair.queued.as_ref()).is_none() {
            of.remove(key);
        }
    }
}

fn make_room<T: Clone>(of: &mut HashMap<String, CoalescedReads<T>>) -> bool {
    if of.len() >= COALESCED_KEYS_MAX {
        of.retain(|_, pair| {
            [&pair.running, &pair.queued].into_iter().any(|it| upgrade_read(it.as_ref()).is_some())
        });
    }
    of.len() < COALESCED_KEYS_MAX
}

/// Answers equal requests of those who may see the same by one read, and refuses those who may not
/// read. For routes whose reply is whole,
/// and goes by nothing of a request but what is in [`coalescing_key`].
pub(crate) async fn coalesce_reads(
    State(flights): State<Arc<ReadCoalescer<TaggedResponse>>>,
    request: Request,
    next: Next,
) -> Result<Response, ProblemDetails> {
    let caller = RequestCaller::from_extensions(request.extensions())?;
    caller.require_scope(AccessScope::Read)?;
    if request.method() != Method::GET {
        return Ok(next.run(request).await);
    }
    let known = IfNoneMatchTags::from_headers(request.headers());
    let key = coalescing_key(caller, &request);
    let flight = flights.join(&key, || async move {
        let told =
            AssertUnwindSafe(async { TaggedResponse::buffer(next.run(request).await).await });
        match told.catch_unwind().await {
            Ok(told) => told,
            Err(_) => {
                tracing::error!("an answer panicked");
                let problem =
                    ProblemDetails::internal_error("this is a fault of heeler; its log tells more");
                TaggedResponse::buffer(problem.into_response()).await
            }
        }
    });
    Ok(flight.await.into_response_for(&known))
}

/// Returns what tells questions apart: what the caller may, what they ask, and what they take.
fn coalescing_key(caller: &RequestCaller, request: &Request) -> String {
    let asked = request.uri().path_and_query().map_or("", |it| it.as_str());
    let mut key = format!("{} {asked}", caller.scope);
    for accept in request.headers().get_all(ACCEPT) {
        key.push('\n');
        key.push_str(&String::from_utf8_lossy(accept.as_bytes()));
    }
    key
}

#[cfg(test)]
mod tests;
