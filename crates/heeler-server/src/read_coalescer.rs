//! Coalescing of identical concurrent reads.
//!
//! Requests for the same key share one read if they arrive before it begins. Requests that arrive
//! while it runs wait together for the next one. So no reply is older than its request, and no
//! result outlives its read: this is not a cache. Start at [`ReadCoalescer`].

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

/// Most keys whose reads are coalesced; further reads run separately.
pub(crate) const COALESCED_KEYS_MAX: usize = 256;

type SharedRead<T> = Shared<BoxFuture<'static, T>>;
type WeakSharedRead<T> = WeakShared<BoxFuture<'static, T>>;

/// Most concurrent reads: as many as database readers are kept open, so that none is opened for one
/// request.
const CONCURRENT_READS_MAX: usize = 8;

tokio::task_local! {
    static READ_PERMIT: Option<Arc<OwnedSemaphorePermit>>;
}

/// Returns the permit of the current read, for work that continues after all waiting requests are
/// gone.
pub(crate) fn current_read_permit() -> Option<Arc<OwnedSemaphorePermit>> {
    READ_PERMIT.try_with(Clone::clone).ok().flatten()
}

/// Running and queued reads.
#[derive(Debug)]
pub(crate) struct ReadCoalescer<T: Clone> {
    reads: Mutex<HashMap<String, CoalescedReads<T>>>,
    /// Permits for running reads.
    read_permits: Arc<Semaphore>,
}

/// Reads of one key. Only waiting requests hold them, so an abandoned read disappears.
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

    /// Joins the queued read for `key`, or queues `read`. The waiting requests drive the read, so
    /// it continues when the request that queued it is gone. `read` must not panic.
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
        // The new read waits for the running one, so that at most one read per key runs.
        let before = of.get(key).and_then(|pair| upgrade_read(pair.running.as_ref()));
        // `read` only builds a future here; it runs after the lock is released.
        let (flights, own_key, read) = (Arc::clone(self), key.to_owned(), read());
        let flight = async move {
            if let Some(before) = before {
                before.await;
            }
            // The semaphore is never closed, so this is always a permit.
            let permit = Arc::clone(&flights.read_permits).acquire_owned().await.ok().map(Arc::new);
            // Lets requests that are already scheduled join. A spawned task is queued behind them;
            // a yield of this future would end as soon as another waiting request polls it.
            let _turn_of_others = tokio::spawn(tokio::task::yield_now()).await;
            // From here on the read may miss a new commit, so no later request may join it.
            if is_kept {
                flights.mark_running(&own_key);
            }
            let reply = READ_PERMIT.scope(permit, read).await;
            if is_kept {
                flights.remove_finished(&own_key);
            }
            reply
        };
        let flight = flight.boxed().shared();
        if is_kept {
            let pair =
                of.entry(key.to_owned()).or_insert(CoalescedReads { running: None, queued: None });
            pair.queued = flight.downgrade();
        }
        flight
    }

    /// Marks the queued read as running, so that later requests do not join it.
    fn mark_running(&self, key: &str) {
        if let Some(pair) = self.lock().get_mut(key) {
            pair.running = pair.queued.take();
        }
    }

    /// Removes a finished read.
    fn remove_finished(&self, key: &str) {
        let mut of = self.lock();
        let Some(pair) = of.get_mut(key) else { return };
        pair.running = None;
        // A queued read still needs the entry.
        if upgrade_read(pair.queued.as_ref()).is_none() {
            of.remove(key);
        }
    }
}

fn make_room<T: Clone>(of: &mut HashMap<String, CoalescedReads<T>>) -> bool {
    // Reads whose requests are all gone leave their entries behind.
    if of.len() >= COALESCED_KEYS_MAX {
        of.retain(|_, pair| {
            [&pair.running, &pair.queued].into_iter().any(|it| upgrade_read(it.as_ref()).is_some())
        });
    }
    of.len() < COALESCED_KEYS_MAX
}

/// Serves identical requests of callers with the same scope by one read, and refuses callers
/// without the scope `read`.
///
/// Only for routes whose reply is complete and depends only on the parts of the request in
/// [`coalescing_key`].
pub(crate) async fn coalesce_reads(
    State(flights): State<Arc<ReadCoalescer<TaggedResponse>>>,
    request: Request,
    next: Next,
) -> Result<Response, ProblemDetails> {
    let caller = RequestCaller::from_extensions(request.extensions())?;
    // This layer takes the place of the one that checks the scope on other routes.
    caller.require_scope(AccessScope::Read)?;
    // The reply to a HEAD request has no body that could be shared.
    if request.method() != Method::GET {
        return Ok(next.run(request).await);
    }
    // Each request has its own tags, so they stay out of the shared read.
    let known = IfNoneMatchTags::from_headers(request.headers());
    let key = coalescing_key(caller, &request);
    let flight = flights.join(&key, || async move {
        // A panic of a shared future would reach every request that waits for it.
        let reply =
            AssertUnwindSafe(async { TaggedResponse::buffer(next.run(request).await).await });
        match reply.catch_unwind().await {
            Ok(reply) => reply,
            Err(_) => {
                tracing::error!("a handler panicked");
                let problem =
                    ProblemDetails::internal_error("internal error of heeler; see its log");
                TaggedResponse::buffer(problem.into_response()).await
            }
        }
    });
    Ok(flight.await.into_response_for(&known))
}

/// Returns the key of a request: scope of the caller, path with query, and `Accept` header.
fn coalescing_key(caller: &RequestCaller, request: &Request) -> String {
    let path = request.uri().path_and_query().map_or("", |it| it.as_str());
    // A reply may depend on the scope, so callers of another scope have a read of their own.
    let mut key = format!("{} {path}", caller.scope);
    for accept in request.headers().get_all(ACCEPT) {
        key.push('\n');
        key.push_str(&String::from_utf8_lossy(accept.as_bytes()));
    }
    key
}

#[cfg(test)]
mod tests;
