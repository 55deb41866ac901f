//! Equal questions that are asked at once are read once.
//!
//! A flight is one read and all who wait for it. Whoever comes may join one only while it has not
//! begun: as long as one is under way, all who come wait together for the next. So every answer has
//! all that was on record when it was asked for, and nothing outlives its read: this is no cache.
//! Start at [`Flights`].

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

use crate::api::tag::{Known, Tagged};
use crate::caller::{Caller, Scope};
use crate::problem::Problem;

/// Of how many different questions those who ask them are kept together; all others read alone.
pub(crate) const FLIGHTS_MAX: usize = 256;

type Flight<T> = Shared<BoxFuture<'static, T>>;
type WeakFlight<T> = WeakShared<BoxFuture<'static, T>>;

/// How many reads are under way at once: as many as readers of the database are kept open, so that
/// none is opened for one question.
const READS_AT_ONCE: usize = 8;

tokio::task_local! {
    static TURN: Option<Arc<OwnedSemaphorePermit>>;
}

/// Returns the turn of the read that asks, for work that goes on when all who wait for it have left.
pub(crate) fn turn() -> Option<Arc<OwnedSemaphorePermit>> {
    TURN.try_with(Clone::clone).ok().flatten()
}

/// The reads that are under way, and those that come next.
#[derive(Debug)]
pub(crate) struct Flights<T: Clone> {
    of: Mutex<HashMap<String, Pair<T>>>,
    /// Whose turn it is to read.
    turns: Arc<Semaphore>,
}

/// The flights of one question. Only those who wait hold them, so one that nobody waits for is gone.
#[derive(Debug)]
struct Pair<T: Clone> {
    begun: Option<WeakFlight<T>>,
    next: Option<WeakFlight<T>>,
}

impl<T: Clone> Default for Flights<T> {
    fn default() -> Flights<T> {
        Flights { of: Mutex::default(), turns: Arc::new(Semaphore::new(READS_AT_ONCE)) }
    }
}

fn alive<T: Clone>(flight: Option<&WeakFlight<T>>) -> Option<Flight<T>> {
    flight.and_then(WeakFlight::upgrade)
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pair<T>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the next read of what `key` asks for; it is `read` if there is none to join. Whoever
    /// waits drives it, so it goes on when the one who brought it leaves. `read` must not panic.
    pub(crate) fn join<F>(self: &Arc<Self>, key: &str, read: impl FnOnce() -> F) -> Flight<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut of = self.lock();
        let pair = of.get(key);
        if let Some(next) = pair.and_then(|pair| alive(pair.next.as_ref())) {
            return next;
        }
        let is_kept = pair.is_some() || has_room(&mut of);
        let before = of.get(key).and_then(|pair| alive(pair.begun.as_ref()));
        let (flights, own, read) = (Arc::clone(self), key.to_owned(), read());
        let flight = async move {
            if let Some(before) = before {
                before.await;
            }
            let turn = Arc::clone(&flights.turns).acquire_owned().await.ok().map(Arc::new);
            // Whoever has asked by now comes along. A task of its own waits for its turn among all
            // others; a yield of this one would be over when the next of those who wait looks at it.
            let _turn_of_others = tokio::spawn(tokio::task::yield_now()).await;
            if is_kept {
                flights.begins(&own);
            }
            let told = TURN.scope(turn, read).await;
            if is_kept {
                flights.ended(&own);
            }
            told
        };
        let flight = flight.boxed().shared();
        if is_kept {
            let pair = of.entry(key.to_owned()).or_insert(Pair { begun: None, next: None });
            pair.next = flight.downgrade();
        }
        flight
    }

    /// From now on nobody joins the flight that was the next.
    fn begins(&self, key: &str) {
        if let Some(pair) = self.lock().get_mut(key) {
            pair.begun = pair.next.take();
        }
    }

    /// Forgets a flight that has ended.
    fn ended(&self, key: &str) {
        let mut of = self.lock();
        let Some(pair) = of.get_mut(key) else { return };
        pair.begun = None;
        if alive(pair.next.as_ref()).is_none() {
            of.remove(key);
        }
    }
}

fn has_room<T: Clone>(of: &mut HashMap<String, Pair<T>>) -> bool {
    if of.len() >= FLIGHTS_MAX {
        of.retain(|_, pair| {
            [&pair.begun, &pair.next].into_iter().any(|it| alive(it.as_ref()).is_some())
        });
    }
    of.len() < FLIGHTS_MAX
}

/// Answers equal requests of those who may see the same by one read, and refuses those who may not
/// read. For routes whose reply is whole,
/// and goes by nothing of a request but what is in [`key_of`].
pub(crate) async fn shared(
    State(flights): State<Arc<Flights<Tagged>>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let caller = Caller::in_request(request.extensions())?;
    caller.needs(Scope::Read)?;
    if request.method() != Method::GET {
        return Ok(next.run(request).await);
    }
    let known = Known::of(request.headers());
    let key = key_of(caller, &request);
    let flight = flights.join(&key, || async move {
        let told = AssertUnwindSafe(async { Tagged::of(next.run(request).await).await });
        match told.catch_unwind().await {
            Ok(told) => told,
            Err(_) => {
                tracing::error!("an answer panicked");
                let problem = Problem::trouble("this is a fault of heeler; its log tells more");
                Tagged::of(problem.into_response()).await
            }
        }
    });
    Ok(flight.await.reply(&known))
}

/// Returns what tells questions apart: what the caller may, what they ask, and what they take.
fn key_of(caller: &Caller, request: &Request) -> String {
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
