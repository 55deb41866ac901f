//! What is followed for any number of clients at once: the newest rows, and the words before them.
//!
//! One thread feeds a hub and ends when nobody holds it any more. A hub keeps no more than
//! [`RING_ROWS`] and [`RING_BYTES`]: whoever is further behind reads the file. Start at [`Hub`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::body::Bytes;
use camino::Utf8PathBuf;
use heeler_query::{QueryError, Records};
use heeler_transcript::{DiskError, Numbered};
use tokio::sync::{Semaphore, broadcast, watch};

use super::event::{Form, Place, Row, event};

/// How many rows a hub keeps.
pub(super) const RING_ROWS: usize = 1024;

/// How many bytes of rows a hub keeps.
pub(super) const RING_BYTES: usize = 1 << 20;

/// How many pieces of text wait for a client; one that is slower misses some and is told.
const DELTAS_KEPT: usize = 256;

/// How much of a file a client that is behind reads at once: it ends with the row that passes this.
const CHUNK_BYTES: usize = 64 << 10;

/// How many clients of a hub read at once; the others wait, so that many who come at once cost no more.
const READS_AT_ONCE: usize = 4;

/// How many rows a client is given at once.
const CHUNK_ROWS: usize = 256;

/// Where a hub's older rows are.
#[derive(Debug)]
pub(super) enum Source {
    /// In a transcript, once it is known which.
    File(OnceLock<Utf8PathBuf>),
    /// In the record, as the events of a run of a workflow.
    Run(Records, String),
}

/// One thing that is followed.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) source: Source,
    ring: Mutex<Ring>,
    /// Counts what has changed.
    changes: watch::Sender<u64>,
    deltas: broadcast::Sender<Arc<Delta>>,
    /// Whose turn it is to read.
    pub(super) reads: Semaphore,
}

/// The newest rows, and where the thing is.
#[derive(Debug, Default)]
struct Ring {
    rows: VecDeque<Arc<Row>>,
    bytes: usize,
    /// Every row from here on is in the ring, or still to come.
    start: Place,
    /// Nobody has looked yet where the rows begin.
    is_new: bool,
    status: Option<(u64, Bytes)>,
    end: Option<End>,
}

impl Ring {
    fn set_status(&mut self, json: &str) {
        let event = event(None, "status", json);
        if self.status.as_ref().is_none_or(|(_, known)| *known != event) {
            let number = self.status.as_ref().map_or(0, |(number, _)| *number);
            self.status = Some((number + 1, event));
        }
    }
}

/// How a hub has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// There will be no more rows.
    Over,
    /// It cannot be followed any more; whoever connects again begins a new one.
    Broken,
}

/// A piece of text that is still being said.
#[derive(Debug)]
pub(super) struct Delta {
    /// The row that follows it, if that is known.
    pub(super) row: Option<u64>,
    pub(super) event: Bytes,
}

/// What a hub has for a client.
#[derive(Debug)]
pub(super) enum News {
    /// These, in order.
    Rows(Vec<Arc<Row>>),
    /// Where the thing is now, and the number of that news.
    Status(u64, Bytes),
    /// Rows that are no longer here.
    Behind,
    /// Nothing, for now.
    Nothing,
    /// Nothing, ever.
    End(End),
}

/// Rows that were read for one client.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) rows: Vec<Row>,
    /// Everything before it was read.
    pub(super) next: Place,
    /// Where in the file that is, to go on from.
    pub(super) offset: Option<(u64, u64)>,
}

impl Hub {
    pub(super) fn new(source: Source) -> Hub {
        let ring = Mutex::new(Ring { is_new: true, ..Ring::default() });
        Hub {
            source,
            ring,
            changes: watch::Sender::new(0),
            deltas: broadcast::Sender::new(DELTAS_KEPT),
            reads: Semaphore::new(READS_AT_ONCE),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Ring)) {
        change(&mut self.lock());
        self.changes.send_modify(|count| *count += 1);
    }

    /// Says where the rows begin that will be added; earlier ones are in the file.
    pub(super) fn begin_at(&self, start: Place) {
        self.change(|ring| (ring.start, ring.is_new) = (start, false));
    }

    /// Adds the next row.
    pub(super) fn add(&self, row: Row) {
        self.change(|ring| {
            ring.bytes += row.len();
            ring.rows.push_back(Arc::new(row));
            while ring.rows.len() > RING_ROWS || ring.bytes > RING_BYTES {
                let Some(gone) = ring.rows.pop_front() else { break };
                ring.bytes -= gone.len();
                ring.start = gone.at.after();
            }
        });
    }

    /// Says where the thing is now.
    pub(super) fn set_status(&self, json: &str) {
        self.change(|ring| ring.set_status(json));
    }

    /// Says how it ended, after the last row was added.
    pub(super) fn finish(&self, status: &str) {
        self.change(|ring| {
            ring.set_status(status);
            ring.end = Some(End::Over);
        });
    }

    /// Says that it cannot be followed any more.
    pub(super) fn give_up(&self) {
        self.change(|ring| ring.end = Some(End::Broken));
    }

    pub(super) fn is_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lock().end == Some(End::Broken)
    }

    /// Tells a piece of text to whoever listens.
    pub(super) fn say(&self, delta: Delta) {
        // Nobody need listen.
        drop(self.deltas.send(Arc::new(delta)));
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn deltas(&self) -> broadcast::Receiver<Arc<Delta>> {
        self.deltas.subscribe()
    }

    /// Returns what there is for a client who wants the rows from a place on and knows a status.
    pub(super) fn news(&self, from: Place, status: u64) -> News {
        let ring = self.lock();
        if ring.end == Some(End::Broken) {
            return News::End(End::Broken);
        }
        if let Some((number, event)) = &ring.status
            && *number != status
            && ring.end.is_none()
        {
            return News::Status(*number, event.clone());
        }
        if !ring.is_new && from < ring.start {
            return News::Behind;
        }
        let first = ring.rows.partition_point(|row| row.at < from);
        let rows: Vec<Arc<Row>> = ring.rows.iter().skip(first).take(CHUNK_ROWS).cloned().collect();
        match (rows.is_empty(), &ring.status, ring.end) {
            (false, ..) => News::Rows(rows),
            // How it ended is told when its last row was.
            (true, Some((number, event)), Some(_)) if *number != status => {
                News::Status(*number, event.clone())
            }
            (true, _, Some(end)) => News::End(end),
            (true, ..) => News::Nothing,
        }
    }

    /// Reads rows for a client who is behind; `offset` is a line and where it begins, if that is known.
    pub(super) fn read(&self, from: Place, offset: Option<(u64, u64)>) -> Result<Chunk, ReadError> {
        match &self.source {
            Source::File(path) => match path.get() {
                Some(path) => Ok(read_file(path, from, offset)?),
                None => Ok(Chunk { rows: Vec::new(), next: from, offset: None }),
            },
            Source::Run(records, run) => {
                let events = records.run_events(run, from.line.saturating_sub(1), CHUNK_ROWS)?;
                let rows: Vec<Row> = events.iter().map(row_of_event).collect();
                let next = rows.last().map_or(from, |row| row.at.after());
                Ok(Chunk { rows, next, offset: None })
            }
        }
    }
}

/// Makes a row of an event of a run.
pub(super) fn row_of_event(event: &heeler_query::live::RunEvent) -> Row {
    let text = serde_json::to_string(event).expect("an event is JSON");
    Row::new(Place::of_line(event.number), &text)
}

/// Why rows cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Query(#[from] QueryError),
}

fn read_file(
    path: &camino::Utf8Path,
    from: Place,
    offset: Option<(u64, u64)>,
) -> Result<Chunk, DiskError> {
    let mut lines = match offset.filter(|(line, _)| *line == from.line) {
        Some((line, offset)) => Numbered::open_at(path, line, offset)?,
        None => Numbered::open(path, from.line)?,
    };
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let mut next = from;
    while bytes < CHUNK_BYTES && rows.len() < CHUNK_ROWS {
        let Some(line) = lines.next_line()? else { break };
        for (part, record) in (0..).zip(&line.records) {
            let at = Place { line: line.number, part };
            if at >= from {
                let row = Row::new(at, &record.text);
                bytes += row.len();
                rows.push(row);
            }
        }
        next = next.max(Place::of_line(line.number + 1));
    }
    Ok(Chunk { rows, next, offset: Some((lines.number(), lines.offset())) })
}

/// Returns the events of rows, in order, as one piece.
pub(super) fn joined(rows: &[Row], form: Form) -> Bytes {
    let events: Vec<Bytes> = rows.iter().map(|row| row.event(form)).collect();
    Bytes::from(events.concat())
}
