//! One client of a hub: what it is sent next.
//!
//! Nothing is made before the connection can take it, so a client that does not read costs no memory,
//! and is cut by its connection (see [`super::impatient`]).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use heeler_model::chain;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};

use super::Counted;
use super::event::{Form, HEARTBEAT, OPENING, Place, Row, event};
use super::hub::{Chunk, Delta, End, Hub, News, joined};

/// How long a connection is silent at most.
pub(crate) const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);

/// How long a client waits after a read that failed or found nothing new.
const READ_AGAIN: Duration = Duration::from_millis(200);

/// How many pieces of text go out at once.
const DELTAS_AT_ONCE: usize = 64;

/// Somebody who is sent what a hub has.
pub(super) struct Client {
    hub: Arc<Hub>,
    form: Form,
    /// The next row that is wanted.
    next: Place,
    /// Where that is in the file, after a read.
    offset: Option<(u64, u64)>,
    status: u64,
    changes: watch::Receiver<u64>,
    deltas: broadcast::Receiver<Arc<Delta>>,
    ending: watch::Receiver<bool>,
    _counted: Counted,
    is_opened: bool,
    is_over: bool,
}

/// What ended a wait.
enum Woken {
    Changed,
    Said(Result<Arc<Delta>, RecvError>),
    Silent,
    Ending,
}

impl Client {
    pub(super) fn new(
        hub: Arc<Hub>,
        form: Form,
        next: Place,
        ending: watch::Receiver<bool>,
        counted: Counted,
    ) -> Client {
        Client {
            changes: hub.changes(),
            deltas: hub.deltas(),
            hub,
            form,
            next,
            offset: None,
            status: 0,
            ending,
            _counted: counted,
            is_opened: false,
            is_over: false,
        }
    }

    /// Returns what to send next; none at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_opened, true) {
            return Some(OPENING);
        }
        let silent_until = Instant::now() + HEARTBEAT_EVERY;
        while !self.is_over && !*self.ending.borrow() {
            self.changes.borrow_and_update();
            match self.hub.news(self.next, self.status) {
                News::Rows(rows) => {
                    let next = rows.last().map_or(self.next, |row| row.at.after());
                    let events = told(rows, self.form).await?;
                    self.next = next;
                    return Some(events);
                }
                News::Status(number, event) => {
                    self.status = number;
                    return Some(event);
                }
                News::Behind => {
                    if let Some(rows) = self.read().await {
                        return Some(rows);
                    }
                    continue;
                }
                News::End(end) => {
                    self.is_over = true;
                    return (end == End::Over).then(|| event(None, "end", "{}"));
                }
                News::Nothing => {}
            }
            match self.wait(silent_until).await {
                Woken::Changed => {}
                Woken::Said(said) => {
                    if let Some(event) = self.said(said) {
                        return Some(event);
                    }
                }
                Woken::Silent => return Some(HEARTBEAT),
                Woken::Ending => return None,
            }
        }
        None
    }

    async fn wait(&mut self, silent_until: Instant) -> Woken {
        tokio::select! {
            biased;
            changed = self.changes.changed() => match changed {
                Ok(()) => Woken::Changed,
                Err(_) => Woken::Ending,
            },
            said = self.deltas.recv() => Woken::Said(said),
            _ = self.ending.wait_for(|ending| *ending) => Woken::Ending,
            () = sleep_until(silent_until) => Woken::Silent,
        }
    }

    /// Returns what is said at the moment, but for what the client has as a row already.
    fn said(&mut self, first: Result<Arc<Delta>, RecvError>) -> Option<Bytes> {
        let mut events = Vec::new();
        let mut said = first;
        loop {
            match said {
                Ok(delta) => {
                    let is_told = |row: u64| Place::of_line(row) < self.next;
                    if !delta.row.is_some_and(is_told) {
                        events.push(delta.event.clone());
                    }
                }
                Err(RecvError::Lagged(_)) => events.push(event(None, "lagged", "{}")),
                Err(RecvError::Closed) => break,
            }
            if events.len() >= DELTAS_AT_ONCE {
                break;
            }
            said = match self.deltas.try_recv() {
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

    /// Reads what the hub no longer has.
    async fn read(&mut self) -> Option<Bytes> {
        let (hub, from, offset) = (Arc::clone(&self.hub), self.next, self.offset);
        let form = self.form;
        let waited_on = Arc::clone(&self.hub);
        let _turn = waited_on.reads.acquire().await;
        let read = tokio::task::spawn_blocking(move || {
            let chunk = hub.read(from, offset)?;
            let events = joined(&chunk.rows, form);
            Ok::<(Chunk, Bytes), super::hub::ReadError>((chunk, events))
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
                tracing::warn!(reason = chain(&error), "cannot read rows for a client");
                false
            }
            // The server ends.
            Err(_) => {
                self.is_over = true;
                true
            }
        };
        if !moved {
            tokio::time::sleep(READ_AGAIN).await;
        }
        None
    }
}

/// Returns the events of rows. Elements of a page are made where that keeps nobody else waiting: an
/// agent may write what takes long to render.
async fn told(rows: Vec<Arc<Row>>, form: Form) -> Option<Bytes> {
    let told = move |rows: &[Arc<Row>]| match rows {
        // The same bytes for all.
        [row] => row.event(form),
        rows => Bytes::from(rows.iter().map(|row| row.event(form)).collect::<Vec<_>>().concat()),
    };
    if rows.iter().all(|row| row.is_made(form)) {
        return Some(told(&rows));
    }
    let made = tokio::task::spawn_blocking(move || told(&rows)).await;
    made.inspect_err(|error| tracing::error!(%error, "a row could not be rendered")).ok()
}
