use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, sync_channel};

use camino::Utf8Path;
use heeler_model::run::PROTOCOL;
use heeler_testkit::WAIT_MAX;

use super::*;
use crate::thread_pool::{PoolShutdown, ThreadPool};

type ExchangeOutcome = Result<ControlReplyBody, ControlError>;

struct LoopFixture {
    temp: tempfile::TempDir,
    control: Option<ControlLoop>,
    pool: ThreadPool,
}

impl LoopFixture {
    fn new() -> LoopFixture {
        let pool = ThreadPool::new("test", 1, PoolShutdown::Finish).unwrap();
        let control = Some(ControlLoop::start(pool.queue()).unwrap());
        LoopFixture { temp: tempfile::tempdir().unwrap(), control, pool }
    }

    fn socket(&self, name: &str) -> Utf8PathBuf {
        Utf8Path::from_path(self.temp.path()).unwrap().join(name)
    }

    /// Returns a socket that accepts no connections.
    fn hung_socket(&self, name: &str) -> (Utf8PathBuf, UnixListener) {
        let socket = self.socket(name);
        (socket.clone(), UnixListener::bind(&socket).unwrap())
    }

    fn send(
        &self,
        lane: ControlLane,
        socket: &Utf8Path,
        timeout: Duration,
    ) -> Receiver<ExchangeOutcome> {
        let (tell, told) = sync_channel(1);
        self.control.as_ref().unwrap().queue().send(ControlExchange {
            lane,
            socket: socket.to_owned(),
            folder: "/".into(),
            protocol: PROTOCOL,
            op: ControlOperation::Status,
            timeout,
            done: Box::new(move |outcome| drop(tell.send(outcome))),
        });
        told
    }
}

/// Replies to one request, after other lines.
fn reply(listener: &UnixListener) {
    let (mut stream, _) = listener.accept().unwrap();
    BufReader::new(&stream).read_line(&mut String::new()).unwrap();
    stream.write_all(b"{\"event\":\"lagged\"}\n{\"protocol\":1,\"id\":7,").unwrap();
    stream.write_all(b"\"reply\":\"done\"}\n").unwrap();
    stream.write_all(b"{\"protocol\":1,\"id\":1,\"reply\":\"done\"}\n").unwrap();
}

#[track_caller]
fn assert_done(outcome: &Receiver<ExchangeOutcome>) {
    let outcome = outcome.recv_timeout(WAIT_MAX);
    assert!(matches!(outcome, Ok(Ok(ControlReplyBody::Done))), "{outcome:?}");
}

#[track_caller]
fn assert_late(outcome: &Receiver<ExchangeOutcome>) {
    let outcome = outcome.recv_timeout(WAIT_MAX);
    let Ok(Err(ControlError::Io { source, .. })) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(source.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn runners_that_hang_do_not_delay_a_request_to_another() {
    let place = LoopFixture::new();
    let hung: Vec<_> = (0..100).map(|n| place.hung_socket(&format!("hung{n}"))).collect();
    let lost: Vec<_> =
        hung.iter().map(|(socket, _)| place.send(ControlLane::Cancel, socket, WAIT_MAX)).collect();
    let (socket, listener) = place.hung_socket("awake");
    let told = place.send(ControlLane::Cancel, &socket, WAIT_MAX);
    reply(&listener);
    assert_done(&told);
    assert!(lost.iter().all(|told| told.try_recv().is_err()), "the others still wait");
}

#[test]
fn a_full_lane_delays_its_own_requests_and_no_other_lane() {
    let place = LoopFixture::new();
    let (hung, _listener) = place.hung_socket("hung");
    let short = Duration::from_millis(300);
    let lost: Vec<_> = (0..CONNECTIONS_PER_LANE_MAX)
        .map(|_| place.send(ControlLane::Message, &hung, short))
        .collect();
    let (socket, listener) = place.hung_socket("awake");
    let later = place.send(ControlLane::Message, &socket, WAIT_MAX);
    let cancel = place.send(ControlLane::Cancel, &socket, WAIT_MAX);
    reply(&listener);
    assert_done(&cancel);
    assert!(later.try_recv().is_err(), "it waits for a connection");
    reply(&listener);
    assert_done(&later);
    lost.iter().for_each(assert_late);
}

#[test]
fn a_runner_with_a_full_backlog_is_tried_until_the_deadline() {
    let place = LoopFixture::new();
    let (socket, listener) = place.hung_socket("hung");
    rustix::net::listen(&listener, 0).unwrap();
    let first = place.send(ControlLane::Cancel, &socket, WAIT_MAX);
    // The backlog holds one connection more than its size.
    let second = place.send(ControlLane::Cancel, &socket, WAIT_MAX);
    let late = place.send(ControlLane::Cancel, &socket, Duration::from_millis(100));
    assert_late(&late);
    reply(&listener);
    reply(&listener);
    assert_done(&first);
    assert_done(&second);
}

#[test]
fn a_runner_that_talks_without_a_reply_is_given_up_at_the_deadline() {
    let place = LoopFixture::new();
    let (socket, listener) = place.hung_socket("talks");
    let told = place.send(ControlLane::Message, &socket, Duration::from_millis(200));
    let talking = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Ends when the connection is closed.
        while stream.write_all(b"{\"event\":\"lagged\"}\n").is_ok() {}
    });
    assert_late(&told);
    talking.join().unwrap();
}

#[test]
fn a_runner_that_is_gone_is_reported_as_such() {
    let place = LoopFixture::new();
    let told = place.send(ControlLane::Cancel, &place.socket("nowhere"), WAIT_MAX);
    let outcome = told.recv_timeout(WAIT_MAX).unwrap();
    assert!(matches!(outcome, Err(ControlError::Gone { .. })), "{outcome:?}");
}

#[test]
fn delayed_work_is_done_in_time_and_not_before() {
    let place = LoopFixture::new();
    let (tell, told) = sync_channel(1);
    let (began, delay) = (Instant::now(), Duration::from_millis(50));
    let queue = place.control.as_ref().unwrap().queue();
    queue.submit_after(delay, move || tell.send(Instant::now()).unwrap());
    assert!(told.recv_timeout(WAIT_MAX).unwrap() >= began + delay);
}

#[test]
fn at_the_end_the_outcome_of_a_sent_request_is_unknown() {
    let mut place = LoopFixture::new();
    let (socket, listener) = place.hung_socket("hung");
    let sent = place.send(ControlLane::Message, &socket, WAIT_MAX);
    let (stream, _) = listener.accept().unwrap();
    BufReader::new(&stream).read_line(&mut String::new()).unwrap();
    let queue = place.control.as_ref().unwrap().queue();
    place.control = None;
    let outcome = sent.recv_timeout(WAIT_MAX).unwrap();
    let Err(ControlError::Io { source, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(source.to_string(), "the daemon ended before it answered");
    let dropped = std::sync::Arc::new(());
    let own = std::sync::Arc::clone(&dropped);
    queue.submit_after(Duration::ZERO, move || drop(own));
    assert_eq!(std::sync::Arc::strong_count(&dropped), 1, "later work is dropped");
    drop(place.pool);
}
