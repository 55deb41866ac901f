//! Client of a hub: determines the next bytes to send.
//!
//! Events are created only when the connection can take them. A client that does not read therefore
//! costs no memory; its connection is closed (see [`super::write_timeout`]).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use heeler_model::error_chain;
use heeler_query::job_feed::RowPosition;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};

use super::event::{HEARTBEAT, RETRY_DIRECTIVE, RowFormat, StreamRow, encode_event};
use super::hub::{HubUpdate, RowChunk, StreamEnd, StreamHub, TextDelta, encode_chunk};
use super::stream_count::StreamCountGuard;

/// Longest silence of a connection.
pub(crate) const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);

/// Wait after a read that failed or found nothing new.
const READ_RETRY_WAIT: Duration = Duration::from_millis(200);

/// Most text deltas sent at once.
const DELTAS_PER_EVENT_MAX: usize = 64;

/// Client of a hub.
pub(super) struct StreamSubscriber {
    hub: Arc<StreamHub>,
    format: RowFormat,
    /// Position of the next row to send.
    next: RowPosition,
    /// Line number and byte offset of `next`, after a read.
    offset: Option<(u64, u64)>,
    status: u64,
    changes: watch::Receiver<u64>,
    deltas: broadcast::Receiver<Arc<TextDelta>>,
    ending: watch::Receiver<bool>,
    _counted: StreamCountGuard,
    is_opened: bool,
    is_over: bool,
}

/// Reason for the end of a wait.
enum StreamWakeReason {
    Changed,
    Delta(Result<Arc<TextDelta>, RecvError>),
    HeartbeatDue,
    Ending,
}

impl StreamSubscriber {
    pub(super) fn new(
        hub: Arc<StreamHub>,
        form: RowFormat,
        next: RowPosition,
        ending: watch::Receiver<bool>,
        counted: StreamCountGuard,
    ) -> StreamSubscriber {
        StreamSubscriber {
            // Subscribed before the first look at the hub, so that no change is missed.
            changes: hub.subscribe_changes(),
            deltas: hub.subscribe_deltas(),
            hub,
            format: form,
            next,
            offset: None,
            status: 0,
            ending,
            _counted: counted,
            is_opened: false,
            is_over: false,
        }
    }

    /// Returns the next bytes to send; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_opened, true) {
            return Some(RETRY_DIRECTIVE);
        }
        let silent_until = Instant::now() + HEARTBEAT_EVERY;
        while !self.is_over && !*self.ending.borrow() {
            // Marked as seen before the look, so that a change during the look ends the wait.
            self.changes.borrow_and_update();
            match self.hub.next_update(self.next, self.status) {
                HubUpdate::Rows(rows) => {
                    let next = rows.last().map_or(self.next, |row| row.position.after());
                    // A failure ends the stream here, and the client reconnects for the same rows.
                    let events = encode_rows(rows, self.format).await?;
                    self.next = next;
                    return Some(events);
                }
                HubUpdate::Status(number, event) => {
                    self.status = number;
                    return Some(event);
                }
                HubUpdate::Evicted => {
                    if let Some(rows) = self.read().await {
                        return Some(rows);
                    }
                    continue;
                }
                HubUpdate::End(end) => {
                    self.is_over = true;
                    // Without the event `end` the client reconnects and gets a new hub.
                    return (end == StreamEnd::Finished).then(|| encode_event(None, "end", "{}"));
                }
                HubUpdate::NoChange => {}
            }
            match self.wait(silent_until).await {
                StreamWakeReason::Changed => {}
                StreamWakeReason::Delta(received) => {
                    if let Some(event) = self.collect_deltas(received) {
                        return Some(event);
                    }
                }
                StreamWakeReason::HeartbeatDue => return Some(HEARTBEAT),
                StreamWakeReason::Ending => return None,
            }
        }
        None
    }

    async fn wait(&mut self, silent_until: Instant) -> StreamWakeReason {
        // Changes come first, so that a row is sent before later deltas, and its own deltas are
        // dropped.
        tokio::select! {
            biased;
            changed = self.changes.changed() => match changed {
                Ok(()) => StreamWakeReason::Changed,
                Err(_) => StreamWakeReason::Ending,
            },
            received = self.deltas.recv() => StreamWakeReason::Delta(received),
            _ = self.ending.wait_for(|ending| *ending) => StreamWakeReason::Ending,
            () = sleep_until(silent_until) => StreamWakeReason::HeartbeatDue,
        }
    }

    /// Returns the pending deltas, without those of rows that the client already has.
    fn collect_deltas(&mut self, first: Result<Arc<TextDelta>, RecvError>) -> Option<Bytes> {
        let mut events = Vec::new();
        let mut received = first;
        loop {
            match received {
                Ok(delta) => {
                    let is_sent = |row: u64| RowPosition::line_start(row) < self.next;
                    if !delta.row.is_some_and(is_sent) {
                        events.push(delta.event.clone());
                    }
                }
                // The pieces are incomplete from here on; the row will have the full text.
                Err(RecvError::Lagged(_)) => events.push(encode_event(None, "lagged", "{}")),
                Err(RecvError::Closed) => break,
            }
            if events.len() >= DELTAS_PER_EVENT_MAX {
                break;
            }
            received = match self.deltas.try_recv() {
                Ok(delta) => Ok(delta),
                Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
        }
        match &mut events[..] {
            [] => None,
            [one] => Some(std::mem::take(one)),
            all => Some(Bytes::from(all.concat())),
        }
    }

    /// Reads rows that have left the hub's buffer.
    async fn read(&mut self) -> Option<Bytes> {
        let (hub, from, offset) = (Arc::clone(&self.hub), self.next, self.offset);
        let form = self.format;
        // The permit borrows the hub, and `self` changes while the permit is held.
        let waited_on = Arc::clone(&self.hub);
        // The semaphore is never closed, so the result always holds a permit.
        let _turn = waited_on.read_permits.acquire().await;
        let read = tokio::task::spawn_blocking(move || {
            let chunk = hub.read(from, offset)?;
            let events = encode_chunk(&chunk.rows, form);
            Ok::<(RowChunk, Bytes), super::hub::RowReadError>((chunk, events))
        });
        let moved = match read.await {
            Ok(Ok((chunk, events))) => {
                let is_further = chunk.next > self.next;
                (self.next, self.offset) = (self.next.max(chunk.next), chunk.offset);
                if !chunk.rows.is_empty() {
                    return Some(events);
                }
                is_further
            }
            Ok(Err(error)) => {
                tracing::warn!(reason = error_chain(&error), "cannot read rows for a client");
                false
            }
            // The server is shutting down.
            Err(_) => {
                self.is_over = true;
                true
            }
        };
        // Without the wait the caller's loop would read again at once.
        if !moved {
            tokio::time::sleep(READ_RETRY_WAIT).await;
        }
        None
    }
}

/// Returns the events of rows. HTML is rendered on a blocking thread, because text of an agent may
/// take long to render.
async fn encode_rows(rows: Vec<Arc<StreamRow>>, form: RowFormat) -> Option<Bytes> {
    let encode = move |rows: &[Arc<StreamRow>]| match rows {
        // Shares the bytes of a single row among all clients.
        [row] => row.encoded(form),
        rows => Bytes::from(rows.iter().map(|row| row.encoded(form)).collect::<Vec<_>>().concat()),
    };
    if rows.iter().all(|row| row.is_rendered(form)) {
        return Some(encode(&rows));
    }
    let encoded = tokio::task::spawn_blocking(move || encode(&rows)).await;
    encoded.inspect_err(|error| tracing::error!(%error, "a row could not be rendered")).ok()
}
