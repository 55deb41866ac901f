//! Tests of coalesced reads: sharing, and freshness of results.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::routing::get;
use axum::{Router, middleware};
use camino::Utf8Path;
use futures_util::poll;
use heeler_engine::{Caller, DaemonHandle};
use heeler_model::AccessScope;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use super::*;

/// Value that changes, with reads that end on command.
struct CoalescerFixture {
    flights: Arc<ReadCoalescer<u64>>,
    now: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
    gate: Arc<Semaphore>,
}

impl CoalescerFixture {
    fn new() -> CoalescerFixture {
        let gate = Arc::new(Semaphore::new(0));
        CoalescerFixture {
            flights: Arc::default(),
            now: Arc::default(),
            reads: Arc::default(),
            gate,
        }
    }

    fn ask(&self, key: &str) -> SharedRead<u64> {
        let (now, reads, gate) =
            (Arc::clone(&self.now), Arc::clone(&self.reads), Arc::clone(&self.gate));
        self.flights.join(key, || async move {
            reads.fetch_add(1, Ordering::SeqCst);
            let seen = now.load(Ordering::SeqCst);
            gate.acquire().await.unwrap().forget();
            seen
        })
    }

    fn commit(&self) {
        self.now.fetch_add(1, Ordering::SeqCst);
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    fn let_end(&self, reads: usize) {
        self.gate.add_permits(reads);
    }
}

/// Polls a future until it makes no progress; returns true if it is pending.
async fn waits(one: &mut (impl Future + Unpin)) -> bool {
    // Some steps yield to other tasks.
    for _ in 0..8 {
        if poll!(&mut *one).is_ready() {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}

#[tokio::test]
async fn those_who_ask_at_once_share_a_read() {
    let record = CoalescerFixture::new();
    let mut asked = [(); 3].map(|()| record.ask("a"));
    record.let_end(1);
    for one in &mut asked {
        assert!(poll!(&mut *one).is_pending(), "others may have asked too");
    }
    record.commit();
    for one in asked {
        assert_eq!(one.await, 1, "what was committed before it began");
    }
    assert_eq!(record.reads(), 1);
}

#[tokio::test]
async fn those_who_come_while_a_read_runs_share_the_next_one_and_see_what_was_committed_before() {
    let record = CoalescerFixture::new();
    let mut first = record.ask("a");
    assert!(waits(&mut first).await);
    record.commit();
    let mut others = [(); 3].map(|()| record.ask("a"));
    for other in &mut others {
        assert!(waits(other).await);
    }
    assert_eq!(record.reads(), 1, "the next begins when the first has ended");
    record.commit();
    record.let_end(1);
    assert_eq!(first.await, 0);
    for other in &mut others {
        assert!(waits(other).await);
    }
    assert_eq!(record.reads(), 2);
    // It has begun, so it is too old for new requests.
    record.commit();
    let last = record.ask("a");
    record.let_end(2);
    for other in others {
        assert_eq!(other.await, 2);
    }
    assert_eq!((last.await, record.reads()), (3, 3));
    assert!(record.flights.lock().is_empty(), "nothing is kept");
}

#[tokio::test]
async fn whoever_comes_after_a_read_reads_anew() {
    let record = CoalescerFixture::new();
    record.let_end(2);
    assert_eq!(record.ask("a").await, 0);
    record.commit();
    assert_eq!((record.ask("a").await, record.reads()), (1, 2));
}

#[tokio::test]
async fn other_questions_wait_for_nobody() {
    let record = CoalescerFixture::new();
    let (mut one, mut other) = (record.ask("a"), record.ask("b"));
    assert!(waits(&mut one).await && waits(&mut other).await);
    assert_eq!(record.reads(), 2);
}

#[tokio::test]
async fn no_more_is_read_at_once_than_may_be_and_all_have_their_turn() {
    let record = CoalescerFixture::new();
    let mut asked: Vec<_> =
        (0..2 * CONCURRENT_READS_MAX).map(|key| record.ask(&key.to_string())).collect();
    for one in &mut asked {
        assert!(waits(one).await);
    }
    assert_eq!(record.reads(), CONCURRENT_READS_MAX as u64);
    record.let_end(asked.len());
    for one in asked {
        assert_eq!(one.await, 0);
    }
    assert_eq!(record.reads(), 2 * CONCURRENT_READS_MAX as u64);
}

#[tokio::test]
async fn a_turn_lasts_as_long_as_the_read_also_if_nobody_waits_for_it() {
    let temp = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(temp.path()).unwrap();
    let handle = DaemonHandle::scripted(|_, _| {});
    let app = crate::tests::app(folder, handle, "version: 1\nagents: []\n", Default::default());
    let (begun, (go, gone)) = (Arc::new(Semaphore::new(0)), std::sync::mpsc::channel::<()>());
    let signal = Arc::clone(&begun);
    let flights = Arc::<ReadCoalescer<bool>>::default();
    let asked = flights.join("a", || async move {
        let read = app.read(move |_| {
            signal.add_permits(1);
            // Blocks until the other end is dropped.
            gone.recv().unwrap_err();
            Ok(())
        });
        read.await.is_ok()
    });
    tokio::select! {
        _ = asked => panic!("it waits"),
        seen = begun.acquire() => drop(seen.unwrap()),
    }
    assert_eq!(flights.read_permits.available_permits(), CONCURRENT_READS_MAX - 1);
    drop(go);
    let most = u32::try_from(CONCURRENT_READS_MAX).unwrap();
    drop(flights.read_permits.acquire_many(most).await.unwrap());
}

#[tokio::test]
async fn whoever_leaves_strands_nobody() {
    let record = CoalescerFixture::new();
    let mut first = record.ask("a");
    assert!(waits(&mut first).await);
    let mut leader = record.ask("a");
    assert!(waits(&mut leader).await);
    let mut follower = record.ask("a");
    assert!(waits(&mut follower).await);
    drop((first, leader));
    record.let_end(2);
    assert_eq!(follower.await, 0);
    assert_eq!(record.reads(), 2);
    // An abandoned read does not delay others.
    let mut left = record.ask("a");
    assert!(waits(&mut left).await);
    drop(left);
    record.let_end(1);
    assert_eq!(record.ask("a").await, 0);
    assert!(record.flights.lock().is_empty());
}

#[tokio::test]
async fn questions_beyond_the_most_are_read_alone_and_those_that_were_left_make_room() {
    let record = CoalescerFixture::new();
    let mut held: Vec<_> =
        (0..COALESCED_KEYS_MAX).map(|key| record.ask(&key.to_string())).collect();
    let mut alone = [(); 2].map(|()| record.ask("one more"));
    for one in &mut alone {
        assert!(waits(one).await);
    }
    assert_eq!(record.reads(), 2, "each reads for itself");
    assert_eq!(record.flights.lock().len(), COALESCED_KEYS_MAX);
    held.pop();
    let kept = record.ask("one more");
    assert!(record.flights.lock().contains_key("one more"));
    record.let_end(COALESCED_KEYS_MAX + 2);
    assert_eq!(kept.await, 0);
    for one in held.into_iter().chain(alone) {
        assert_eq!(one.await, 0);
    }
    assert!(record.flights.lock().is_empty());
}

fn caller(scope: AccessScope) -> RequestCaller {
    RequestCaller {
        name: "ann".to_owned(),
        scope,
        engine_caller: Caller::Unknown,
        csrf_token: None,
    }
}

fn request(uri: &str, headers: &[(&str, &str)]) -> Request {
    let mut request = Request::builder().uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(caller(AccessScope::Read));
    request
}

#[test]
fn only_those_who_may_see_the_same_and_ask_the_same_share_an_answer() {
    let key = |scope, uri, accept| {
        let accept = [("accept", accept), ("if-none-match", "\"x\"")];
        coalescing_key(&caller(scope), &request(uri, &accept))
    };
    let one = key(AccessScope::Read, "/jobs?limit=1", "*/*");
    assert_eq!(one, key(AccessScope::Read, "/jobs?limit=1", "*/*"));
    for other in [
        key(AccessScope::Operate, "/jobs?limit=1", "*/*"),
        key(AccessScope::Read, "/jobs?limit=2", "*/*"),
        key(AccessScope::Read, "/runs?limit=1", "*/*"),
        key(AccessScope::Read, "/jobs?limit=1", "text/html"),
    ] {
        assert_ne!(one, other);
    }
}

/// Serves one route with coalesced reads.
fn router<F: Future<Output = Response> + Send + 'static>(
    answer: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> Router {
    let flights = Arc::<ReadCoalescer<TaggedResponse>>::default();
    Router::new()
        .route("/", get(answer))
        .layer(middleware::from_fn_with_state(flights, coalesce_reads))
}

#[tokio::test]
async fn each_is_told_by_its_own_tag_whether_it_has_the_answer() {
    let (reads, gate) = (Arc::<AtomicU64>::default(), Arc::new(Semaphore::new(0)));
    let (counted, waited) = (Arc::clone(&reads), Arc::clone(&gate));
    let router = router(move || {
        let (reads, gate) = (Arc::clone(&counted), Arc::clone(&waited));
        async move {
            reads.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.unwrap().forget();
            axum::Json(7).into_response()
        }
    });
    gate.add_permits(1);
    let first = router.clone().oneshot(request("/", &[])).await.unwrap();
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    let ask = |headers: &[(&str, &str)]| {
        let asked = router.clone().oneshot(request("/", headers));
        Box::pin(async move { asked.await.unwrap() })
    };
    let mut running = ask(&[]);
    assert!(waits(&mut running).await);
    let (mut with, mut without) = (ask(&[("if-none-match", &tag)]), ask(&[]));
    assert!(waits(&mut with).await && waits(&mut without).await);
    gate.add_permits(2);
    let (running, with, without) = tokio::join!(running, with, without);
    assert_eq!(reads.load(Ordering::SeqCst), 3, "the last two are read at once");
    let statuses = [&running, &with, &without].map(|it| it.status().as_u16());
    assert_eq!(statuses, [200, 304, 200]);
    for (response, expected) in [(with, ""), (without, "7")] {
        assert_eq!(response.headers()["etag"].to_str().unwrap(), tag);
        let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        assert_eq!(body, expected);
    }
}

#[tokio::test]
async fn what_goes_wrong_is_told_to_all_also_if_it_is_a_panic() {
    let refusing = router(|| async { ProblemDetails::not_found("nothing").into_response() });
    let panicking = router(|| async { panic!("a fault") });
    for (router, status) in [(refusing, 404), (panicking, 500)] {
        let ask = || router.clone().oneshot(request("/", &[]));
        let (one, other) = tokio::join!(ask(), ask());
        for response in [one.unwrap(), other.unwrap()] {
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert!(!response.headers().contains_key("etag"));
        }
    }
}
