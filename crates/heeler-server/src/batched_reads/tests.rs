//! Tests of batched reads: sharing, freshness, failures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::join_all;

use super::*;

/// Longest wait for a reply that must come.
const WAIT_MAX: Duration = Duration::from_secs(60);

type Numbers = Arc<BatchedReads<u64, u64>>;

fn numbers(readers_max: usize) -> Numbers {
    Arc::new(BatchedReads::new(readers_max))
}

/// Replies to each query with its double.
fn reply_all(batch: ReadBatch<u64, u64>) {
    for (query, waiters) in batch {
        waiters.reply(2 * query);
    }
}

fn is_idle(reads: &Numbers) -> bool {
    let waiting = reads.lock();
    waiting.readers == 0 && waiting.order.is_empty() && waiting.waiters.is_empty()
}

/// Waits until all readers have ended; they do so after the last reply.
async fn until_idle(reads: &Numbers) {
    while !is_idle(reads) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn those_who_wait_at_once_are_read_in_few_batches() {
    let (reads, batches) = (numbers(1), Arc::new(AtomicU64::default()));
    let count = 3 * BATCH_MAX as u64;
    let replies = (0..count).map(|query| {
        let batches = Arc::clone(&batches);
        reads.read(query, move |batch: ReadBatch<u64, u64>| {
            assert!(batch.len() <= BATCH_MAX);
            batches.fetch_add(1, Ordering::SeqCst);
            reply_all(batch);
        })
    });
    let replies = join_all(replies).await;
    assert_eq!(replies, (0..count).map(|query| Some(2 * query)).collect::<Vec<_>>());
    assert_eq!(batches.load(Ordering::SeqCst), 3, "one hand-over for each full batch");
    until_idle(&reads).await;
}

#[tokio::test]
async fn identical_requests_share_a_read_and_none_is_older_than_its_request() {
    let (reads, now) = (numbers(2), Arc::new(AtomicU64::new(1)));
    let (begun, begins) = mpsc::channel();
    let (release, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let read = {
        let now = Arc::clone(&now);
        move |batch: ReadBatch<u64, u64>| {
            let seen = now.load(Ordering::SeqCst);
            begun.send(batch.len()).unwrap();
            gate.lock().unwrap().recv().unwrap();
            batch.into_iter().for_each(|(_, waiters)| waiters.reply(seen));
        }
    };
    let ask = || {
        let (reads, read) = (Arc::clone(&reads), read.clone());
        tokio::spawn(async move { reads.read(7, read).await })
    };
    let early = [ask(), ask(), ask()];
    let begins = Arc::new(Mutex::new(begins));
    let begun = || {
        let begins = Arc::clone(&begins);
        tokio::task::spawn_blocking(move || begins.lock().unwrap().recv().unwrap())
    };
    assert_eq!(begun().await.unwrap(), 1, "three requests are one query");
    now.store(2, Ordering::SeqCst);
    let late = ask();
    release.send(()).unwrap();
    for one in early {
        assert_eq!(one.await.unwrap(), Some(1));
    }
    assert_eq!(begun().await.unwrap(), 1);
    release.send(()).unwrap();
    assert_eq!(late.await.unwrap(), Some(2), "it asked after the change");
    until_idle(&reads).await;
}

#[tokio::test]
async fn several_queries_do_not_wait_for_a_slow_batch() {
    let reads = numbers(2);
    let (begun, begins) = mpsc::channel();
    let (release, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    // Only the batch of query 0 waits.
    let read = move |batch: ReadBatch<u64, u64>| {
        if batch.iter().any(|(query, _)| *query == 0) {
            begun.send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
        }
        reply_all(batch);
    };
    let ask = |query: u64| {
        let (reads, read) = (Arc::clone(&reads), read.clone());
        tokio::spawn(async move { reads.read(query, read).await })
    };
    let slow = ask(0);
    tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
    let quick = tokio::time::timeout(WAIT_MAX, join_all([ask(1), ask(2)])).await;
    let quick: Vec<_> = quick.expect("they do not wait").into_iter().map(Result::unwrap).collect();
    assert_eq!(quick, [Some(2), Some(4)]);
    assert!(!slow.is_finished());
    release.send(()).unwrap();
    assert_eq!(slow.await.unwrap(), Some(0));
    until_idle(&reads).await;
}

#[tokio::test]
async fn a_panic_fails_its_requests_and_no_later_ones() {
    let reads = numbers(1);
    let fails = |_: ReadBatch<u64, u64>| panic!("for the test");
    assert_eq!(reads.read(1, fails).await, None);
    until_idle(&reads).await;
    assert_eq!(reads.read(1, reply_all).await, Some(2));
}

#[tokio::test]
async fn a_query_is_abandoned_when_all_its_clients_are_gone() {
    let (gone, stays) = (oneshot::channel::<u64>(), oneshot::channel::<u64>());
    let alone = oneshot::channel::<u64>();
    let waiters = ReadWaiters(vec![gone.0, stays.0]);
    drop((gone.1, alone.1));
    assert!(!waiters.is_abandoned());
    assert!(ReadWaiters(vec![alone.0]).is_abandoned());
    waiters.reply(5);
    assert_eq!(stays.1.await, Ok(5));
}
