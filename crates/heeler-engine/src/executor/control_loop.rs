//! Sends requests to the control sockets of runs without ever blocking, in one thread.
//!
//! Every connection is non-blocking and has a deadline, so a runner that hangs costs a file
//! descriptor until then, and no thread: requests to other runs pass it. Each [`ControlLane`] has its
//! own limit of connections; further requests of the lane wait in order. The outcome of a request is
//! handled by a pool, because it may access the disk or wait for the dispatcher. Start at
//! [`ControlLoop`].

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::run::{ControlOperation, ControlReplyBody};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::SocketFlags;

use super::limits::CONNECTIONS_PER_LANE_MAX;
use crate::thread_pool::{PoolQueue, PoolTask};
use heeler_control::{ControlError, LINE_BYTES_MAX, connect_to_socket, parse_reply, request_line};

/// Delay before a runner with a full backlog is tried again.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);

/// The number of a connection's only request.
const REQUEST_ID: u64 = 1;

/// Bytes read at a time.
const READ_BYTES: usize = 16 << 10;

/// Number of reads before other connections have their turn.
const READS_PER_TURN: usize = 16;

/// Kind of a request. Requests of one kind do not take connections from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ControlLane {
    Cancel,
    Answer,
    Message,
}

/// Receives the outcome of a request.
type ExchangeCallback = Box<dyn FnOnce(Result<ControlReplyBody, ControlError>) + Send>;

/// A request to a run.
pub(super) struct ControlExchange {
    pub(super) lane: ControlLane,
    pub(super) socket: Utf8PathBuf,
    /// Directory of the run.
    pub(super) folder: Utf8PathBuf,
    /// Protocol version of the runner.
    pub(super) protocol: u32,
    pub(super) op: ControlOperation,
    /// Time limit from the connection to the reply.
    pub(super) timeout: Duration,
    /// Called on a thread of the pool.
    pub(super) done: ExchangeCallback,
}

/// Owner of the thread.
#[derive(Debug)]
pub(super) struct ControlLoop {
    queue: ControlQueue,
    thread: Option<JoinHandle<()>>,
}

/// Handle for sending requests.
#[derive(Debug, Clone)]
pub(super) struct ControlQueue {
    shared: Arc<ControlLoopShared>,
}

#[derive(Debug)]
struct ControlLoopShared {
    /// Wakes the thread.
    wake: OwnedFd,
    inbox: Mutex<ControlInbox>,
    completions: PoolQueue,
}

/// New work for the thread.
#[derive(Default)]
struct ControlInbox {
    is_closed: bool,
    exchanges: Vec<ControlExchange>,
    timers: Vec<(Instant, PoolTask)>,
}

impl ControlLoop {
    /// Starts the thread. Outcomes are handled by `completions`.
    pub(super) fn start(completions: PoolQueue) -> io::Result<ControlLoop> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(ControlLoopShared { wake, inbox: Mutex::default(), completions });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("heeler-control".to_owned())
            .spawn(move || ControlConnections::default().run(&own))?;
        Ok(ControlLoop { queue: ControlQueue { shared }, thread: Some(thread) })
    }

    pub(super) fn queue(&self) -> ControlQueue {
        self.queue.clone()
    }
}

impl Drop for ControlLoop {
    fn drop(&mut self) {
        // The flag is set under the lock, so no request is accepted after the thread has ended.
        self.queue.shared.lock().is_closed = true;
        self.queue.shared.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that talks to runners had panicked");
        }
    }
}

impl ControlQueue {
    /// Sends a request. Never blocks. Once the loop is dropped, the request is dropped too.
    pub(super) fn send(&self, exchange: ControlExchange) {
        let mut inbox = self.shared.lock();
        if inbox.is_closed {
            // Dropping a request may call its reply, which must not happen under the lock.
            drop(inbox);
            return drop(exchange);
        }
        inbox.exchanges.push(exchange);
        drop(inbox);
        self.shared.wake();
    }

    /// Submits work to the pool after a delay. Never blocks.
    pub(super) fn submit_after(&self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        let work: PoolTask = Box::new(work);
        let mut inbox = self.shared.lock();
        if inbox.is_closed {
            // Dropping work may call a reply, which must not happen under the lock.
            drop(inbox);
            return drop(work);
        }
        inbox.timers.push((Instant::now() + delay, work));
        drop(inbox);
        self.shared.wake();
    }
}

impl ControlLoopShared {
    fn lock(&self) -> MutexGuard<'_, ControlInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It fails only if the counter is full, and then the thread is awake.
        let _counted = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn complete(&self, done: ExchangeCallback, outcome: Result<ControlReplyBody, ControlError>) {
        self.completions.submit(move || done(outcome));
    }
}

/// State of the thread.
#[derive(Default)]
struct ControlConnections {
    waiting: VecDeque<ControlExchange>,
    active: Vec<ActiveExchange>,
    timers: Vec<(Instant, PoolTask)>,
}

impl ControlConnections {
    fn run(mut self, shared: &ControlLoopShared) {
        loop {
            let mut inbox = shared.lock();
            if inbox.is_closed {
                drop(inbox);
                return self.abandon(shared);
            }
            self.waiting.extend(inbox.exchanges.drain(..));
            self.timers.append(&mut inbox.timers);
            drop(inbox);
            self.submit_due_timers(shared);
            self.connect_waiting();
            self.advance(shared);
            self.wait_for_events(shared);
        }
    }

    fn submit_due_timers(&mut self, shared: &ControlLoopShared) {
        let now = Instant::now();
        for (_, work) in self.timers.extract_if(.., |(at, _)| *at <= now) {
            shared.completions.submit_task(work);
        }
    }

    /// Connects requests in order, as far as the limits of their lanes allow.
    fn connect_waiting(&mut self) {
        // Lanes are independent, so a full one must not stop the requests behind it.
        for exchange in std::mem::take(&mut self.waiting) {
            let of_lane = self.active.iter().filter(|it| it.lane == exchange.lane).count();
            if of_lane < CONNECTIONS_PER_LANE_MAX {
                self.active.push(ActiveExchange::new(exchange));
            } else {
                self.waiting.push_back(exchange);
            }
        }
    }

    /// Does for each connection what can be done without waiting.
    fn advance(&mut self, shared: &ControlLoopShared) {
        let now = Instant::now();
        let mut ended = Vec::new();
        self.active.retain_mut(|exchange| match exchange.advance(now) {
            None => true,
            Some(outcome) => {
                ended.extend(exchange.done.take().map(|done| (done, outcome)));
                false
            }
        });
        // The next turn connects waiting requests; without a wake-up it would wait for an event.
        let has_room = !ended.is_empty() && !self.waiting.is_empty();
        for (done, outcome) in ended {
            shared.complete(done, outcome);
        }
        if has_room {
            shared.wake();
        }
    }

    fn wait_for_events(&self, shared: &ControlLoopShared) {
        let now = Instant::now();
        let times = self.active.iter().map(|it| it.wake_at(now));
        let next = times.chain(self.timers.iter().map(|(at, _)| *at)).min();
        let wait = next.map(|at| at.saturating_duration_since(now));
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut events = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        events.extend(self.active.iter().filter_map(ActiveExchange::poll_descriptor));
        // An interrupted wait is repeated by the loop.
        let _count = poll(&mut events, wait.as_ref());
        // The counter is reset, because poll would otherwise return immediately forever.
        let _counted = rustix::io::read(&shared.wake, &mut [0; 8]);
    }

    /// Ends: requests that were sent have an unknown outcome, the others are dropped.
    fn abandon(self, shared: &ControlLoopShared) {
        for mut exchange in self.active {
            let reason = io::Error::other("the daemon ended before it answered");
            let outcome = Err(exchange.io_error("hear", reason));
            if let Some(done) = exchange.done.take().filter(|_| exchange.sent > 0) {
                shared.complete(done, outcome);
            }
        }
    }
}

/// A request with its connection.
struct ActiveExchange {
    lane: ControlLane,
    socket: Utf8PathBuf,
    folder: Utf8PathBuf,
    /// `None` while the backlog of the runner is full.
    stream: Option<UnixStream>,
    outgoing: Vec<u8>,
    /// Number of bytes of `outgoing` that are sent.
    sent: usize,
    incoming: Vec<u8>,
    timeout: Duration,
    deadline: Instant,
    done: Option<ExchangeCallback>,
}

impl ActiveExchange {
    fn new(exchange: ControlExchange) -> ActiveExchange {
        let ControlExchange { lane, socket, folder, protocol, op, timeout, done } = exchange;
        ActiveExchange {
            lane,
            socket,
            folder,
            stream: None,
            outgoing: request_line(protocol, REQUEST_ID, op),
            sent: 0,
            incoming: Vec::new(),
            timeout,
            // The time begins here, so waiting in the lane does not use it up.
            deadline: Instant::now() + timeout,
            done: Some(done),
        }
    }

    /// Returns the outcome, once there is one.
    fn advance(&mut self, now: Instant) -> Option<Result<ControlReplyBody, ControlError>> {
        // Bytes come before the deadline: a reply that has arrived in time counts.
        match self.exchange_bytes() {
            Ok(None) if now >= self.deadline => {
                Some(Err(self.io_error("hear", io::ErrorKind::TimedOut.into())))
            }
            Ok(None) => None,
            Ok(Some(reply)) => Some(Ok(reply)),
            Err(error) => Some(Err(error)),
        }
    }

    fn exchange_bytes(&mut self) -> Result<Option<ControlReplyBody>, ControlError> {
        if self.stream.is_none() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match connect_to_socket(&self.socket, &self.folder, flags, self.timeout) {
                Ok(stream) => self.stream = Some(stream),
                // The backlog is full. The deadline ends this if the runner never accepts.
                Err(ControlError::Io { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        self.write().map_err(|source| self.io_error("ask", source))?;
        self.read()
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while self.sent < self.outgoing.len() {
            match stream.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Option<ControlReplyBody>, ControlError> {
        let mut bytes = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            let Some(stream) = &mut self.stream else { return Ok(None) };
            let read = match stream.read(&mut bytes) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read,
            };
            let count = read.map_err(|source| self.io_error("hear", source))?;
            if let Some(reply) = self.find_reply(&bytes[..count])? {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Adds bytes to the incomplete line, and returns the reply if they complete it.
    fn find_reply(&mut self, bytes: &[u8]) -> Result<Option<ControlReplyBody>, ControlError> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.incoming.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.incoming);
                if let Some(reply) = parse_reply(&line, REQUEST_ID, &self.socket) {
                    return reply.map(Some);
                }
            }
        }
        // The limit bounds the memory that a faulty runner can use.
        if self.incoming.len() as u64 >= LINE_BYTES_MAX {
            let reason = format!("it sent more than {LINE_BYTES_MAX} bytes in one line");
            let reason = io::Error::new(io::ErrorKind::InvalidData, reason);
            return Err(self.io_error("hear", reason));
        }
        Ok(None)
    }

    fn wake_at(&self, now: Instant) -> Instant {
        match self.stream {
            Some(_) => self.deadline,
            // There is no descriptor to poll yet, so the next attempt needs a time.
            None => self.deadline.min(now + RECONNECT_DELAY),
        }
    }

    fn poll_descriptor(&self) -> Option<PollFd<'_>> {
        let is_sent = self.sent == self.outgoing.len();
        // The socket is polled for writing only while something is left, or poll would spin.
        let events = if is_sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        Some(PollFd::new(self.stream.as_ref()?, events))
    }

    fn io_error(&self, attempt: &'static str, source: io::Error) -> ControlError {
        ControlError::Io { attempt, socket: self.socket.clone(), source }
    }
}

impl std::fmt::Debug for ControlInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlInbox")
            .field("exchanges", &self.exchanges.len())
            .field("timers", &self.timers.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
