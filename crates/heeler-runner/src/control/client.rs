//! One client of the control socket.
//!
//! Two halves that never wait for the run: one reads requests, one at a time; the other writes the
//! lines in the client's [`ControlClientOutbox`]. Start at [`serve_client`].

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_model::run::{
    ControlEvent, ControlReply, ControlReplyBody, ControlRequest, PROTOCOL, PROTOCOL_MIN,
    is_readable_protocol,
};
use memchr::memchr;
use rustix::process::Pid;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc};

use super::{ControlPeer, PendingControlRequest, encode_event, encode_line};

/// Length limit of a request; a longer one is refused and its client disconnected.
pub(crate) const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Limit on bytes queued for a client that does not read; events beyond it are dropped for that
/// client.
pub(crate) const CLIENT_BYTES_MAX: usize = 1 << 20;

const READ_BYTES: usize = 4 << 10;

/// Lines queued for a client.
#[derive(Debug, Default)]
pub(super) struct ControlClientOutbox {
    state: Mutex<ControlClientOutboxState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ControlClientOutboxState {
    lines: VecDeque<Arc<[u8]>>,
    bytes: usize,
    /// Events were dropped; reported once everything before the gap is written.
    lagging: bool,
    /// A request has no reply yet.
    reply_pending: bool,
    /// The client is gone, or no more events follow: close once everything is written.
    closing: bool,
    /// The client's tasks have ended.
    closed: bool,
}

impl ControlClientOutbox {
    fn lock_state(&self) -> MutexGuard<'_, ControlClientOutboxState> {
        // Nothing panics while the lock is held, so poisoning can be ignored.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update<T>(&self, change: impl FnOnce(&mut ControlClientOutboxState) -> T) -> T {
        let result = change(&mut self.lock_state());
        // Both halves of the connection may be waiting for this change.
        self.changed.notify_waiters();
        result
    }

    /// Replies to the one open request. A reply is never dropped.
    pub(super) fn reply(&self, line: &Arc<[u8]>) {
        self.update(|waiting| {
            waiting.reply_pending = false;
            waiting.push(line);
        });
    }

    /// Queues an event if it fits; returns true while the client is connected.
    pub(super) fn send_event(&self, line: &Arc<[u8]>) -> bool {
        self.update(|waiting| {
            // After a gap no event may follow before the gap is reported, even if it would fit.
            if waiting.lagging || waiting.bytes + line.len() > CLIENT_BYTES_MAX {
                waiting.lagging = true;
            } else {
                waiting.push(line);
            }
            !waiting.closed && !waiting.closing
        })
    }

    /// Queues the last event, preceded by a report of dropped events, if any.
    pub(super) fn send_last_event(&self, line: &Arc<[u8]>) {
        self.update(|waiting| {
            if std::mem::take(&mut waiting.lagging) {
                // The limit does not apply to the last event, so the client learns of the gap
                // first.
                waiting.push(&encode_event(&ControlEvent::Lagged));
            }
            waiting.push(line);
            waiting.closing = true;
        });
    }

    /// Closes the connection once everything is written.
    pub(super) fn close(&self) {
        self.update(|waiting| waiting.closing = true);
    }

    /// Waits until everything is written or the client is gone.
    pub(super) async fn wait_closed(&self) {
        self.wait_for(|waiting| waiting.closed.then_some(())).await;
    }

    /// Returns the next line to write; `None` if none will follow.
    async fn next(&self) -> Option<Arc<[u8]>> {
        self.wait_for(|waiting| match waiting.pop() {
            Some(line) => Some(Some(line)),
            // A client may close its sending half and still wait for the reply.
            None if waiting.closing && !waiting.reply_pending => Some(None),
            None => None,
        })
        .await
    }

    /// Waits until the next request may be read.
    async fn wait_request_allowed(&self) {
        let may = |waiting: &mut ControlClientOutboxState| {
            // A client that sends but never reads could otherwise fill the memory with replies.
            !waiting.reply_pending && waiting.bytes < CLIENT_BYTES_MAX
        };
        self.wait_for(|waiting| may(waiting).then_some(())).await;
    }

    /// Waits until `look` returns a value. Cancel-safe.
    async fn wait_for<T>(
        &self,
        mut look: impl FnMut(&mut ControlClientOutboxState) -> Option<T>,
    ) -> T {
        loop {
            // The wait begins before the look, so that a change in between is not missed.
            let changed = self.changed.notified();
            if let Some(found) = look(&mut self.lock_state()) {
                return found;
            }
            changed.await;
        }
    }
}

impl ControlClientOutboxState {
    fn push(&mut self, line: &Arc<[u8]>) {
        self.bytes += line.len();
        self.lines.push_back(Arc::clone(line));
    }

    fn pop(&mut self) -> Option<Arc<[u8]>> {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
            return Some(line);
        }
        std::mem::take(&mut self.lagging).then(|| encode_event(&ControlEvent::Lagged))
    }
}

/// Serves one client until it disconnects or the run ends.
pub(super) async fn serve_client(
    stream: UnixStream,
    peer: ControlPeer,
    requests: mpsc::Sender<PendingControlRequest>,
) {
    // The kernel names the process that connected; the client itself could claim anything.
    let pid = stream.peer_cred().ok().and_then(|peer| Pid::from_raw(peer.pid()?));
    let (input, output) = stream.into_split();
    let outbox = Arc::new(ControlClientOutbox::default());
    let reading = async {
        read_requests(input, (pid, &peer), &outbox, requests).await;
        outbox.close();
        // Pending lines are still written after the client stops sending.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = reading => {}
        () = write_lines(output, &outbox) => {}
    }
    outbox.update(|waiting| {
        waiting.closed = true;
        // The list of subscribers may keep the outbox alive, but its lines have no reader any more.
        waiting.lines.clear();
    });
}

async fn write_lines(mut output: OwnedWriteHalf, outbox: &ControlClientOutbox) {
    while let Some(line) = outbox.next().await {
        if output.write_all(&line).await.is_err() {
            return;
        }
        // A request may be waiting for room in the outbox.
        outbox.changed.notify_waiters();
    }
}

async fn read_requests(
    mut input: OwnedReadHalf,
    (pid, peer): (Option<Pid>, &ControlPeer),
    outbox: &Arc<ControlClientOutbox>,
    requests: mpsc::Sender<PendingControlRequest>,
) {
    let mut buffer = Vec::new();
    loop {
        outbox.wait_request_allowed().await;
        let request = match read_line(&mut input, &mut buffer).await {
            Ok(Some(line)) => parse_request(&line),
            // An incomplete last line is dropped, because its sender is gone.
            Ok(None) | Err(_) => return,
        };
        match request {
            Ok(ControlRequest { id, op, .. }) => {
                // The next request is read only after this reply, so a client cannot flood the run.
                outbox.update(|waiting| waiting.reply_pending = true);
                let (peer, client) = (peer.clone(), Arc::clone(outbox));
                let request = PendingControlRequest { op, pid, peer, id, client };
                if requests.send(request).await.is_err() {
                    return;
                }
            }
            Err(ControlRequestRefusal { id, reason, fatal }) => {
                outbox.reply(&refusal_line(id, reason));
                // After a line that is too long, the start of the next one is unknown.
                if fatal {
                    return;
                }
            }
        }
    }
}

/// Returns the next line, at most one byte longer than allowed; `None` at the end.
async fn read_line(input: &mut OwnedReadHalf, buffer: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let mut scanned = 0;
    loop {
        if let Some(at) = memchr(b'\n', &buffer[scanned..]) {
            let rest = buffer.split_off(scanned + at + 1);
            let mut line = std::mem::replace(buffer, rest);
            line.pop();
            return Ok(Some(line));
        }
        // The scanned part holds no newline, so it is not searched again.
        scanned = buffer.len();
        if scanned > REQUEST_BYTES_MAX {
            return Ok(Some(std::mem::take(buffer)));
        }
        buffer.reserve(READ_BYTES);
        if input.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Reason that a line is not a valid request.
struct ControlRequestRefusal {
    /// Zero if the line has no ID.
    id: u64,
    reason: String,
    /// Following lines cannot be parsed either.
    fatal: bool,
}

fn parse_request(line: &[u8]) -> Result<ControlRequest, ControlRequestRefusal> {
    /// Fields that every protocol version has.
    #[derive(Deserialize)]
    struct ControlRequestHead {
        #[serde(default)]
        protocol: u32,
        #[serde(default)]
        id: u64,
    }
    if line.len() > REQUEST_BYTES_MAX {
        let reason = format!("a request has at most {REQUEST_BYTES_MAX} bytes");
        return Err(ControlRequestRefusal { id: 0, reason, fatal: true });
    }
    // The head is parsed first: a request of another version may differ in everything else.
    let head: ControlRequestHead =
        serde_json::from_slice(line).map_err(|error| ControlRequestRefusal {
            id: 0,
            reason: format!("the line is not a request: {error}"),
            fatal: false,
        })?;
    let refusal = |reason| ControlRequestRefusal { id: head.id, reason, fatal: false };
    if !is_readable_protocol(head.protocol) {
        return Err(refusal(format!(
            "this run reads protocol {PROTOCOL_MIN} to {PROTOCOL}, the request is of protocol {}",
            head.protocol
        )));
    }
    serde_json::from_slice(line)
        .map_err(|error| refusal(format!("the request cannot be understood: {error}")))
}

fn refusal_line(id: u64, reason: String) -> Arc<[u8]> {
    encode_line(&ControlReply {
        protocol: PROTOCOL,
        id,
        body: ControlReplyBody::Refused { reason },
    })
}

/// Sends the reason to a client above the limit, if that is possible without waiting.
pub(super) fn reject_client(stream: UnixStream) {
    // The socket of a new client is empty, so it usually accepts the reason at once.
    let reason = format!("{} clients are connected already", super::CLIENTS_MAX);
    drop(stream.try_write(&refusal_line(0, reason)));
}
