//! What is followed for any number of clients at once: the newest rows, and the words before them.
//!
//! One thread feeds a hub and ends when nobody holds it any more. A hub keeps no more than
//! [`BUFFER_ROWS_MAX`] and [`BUFFER_BYTES_MAX`]: whoever is further behind reads the file. Start at [`StreamHub`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::body::Bytes;
use camino::Utf8PathBuf;
use heeler_query::{FleetReader, QueryError};
use heeler_transcript::{DiskError, NumberedLineReader};
use tokio::sync::{Semaphore, broadcast, watch};

use super::event::{RowFormat, RowPosition, StreamRow, encode_event};

/// How many rows a hub keeps.
pub(super) const BUFFER_ROWS_MAX: usize = 1024;

/// How many bytes of rows a hub keeps.
pub(super) const BUFFER_BYTES_MAX: usize = 1 << 20;

/// How many pieces of text wait for a client; one that is slower misses some and is told.
const DELTAS_BUFFERED: usize = 256;

/// How much of a file a client that is behind reads at once: it ends with the row that passes this.
const CHUNK_BYTES: usize = 64 << 10;

/// How many clients of a hub read at once; the others wait, so that many who come at once cost no more.
const CONCURRENT_READS_MAX: usize = 4;

/// How many rows a client is given at once.
const CHUNK_ROWS: usize = 256;

/// Where a hub's older rows are.
#[derive(Debug)]
pub(super) enum RowSource {
    /// In a transcript, once it is known which.
    File(OnceLock<Utf8PathBuf>),
    /// In the record, as the events of a run of a workflow.
    Run(FleetReader, String),
}

/// One thing that is followed.
#[derive(Debug)]
pub(super) struct StreamHub {
    pub(super) source: RowSource,
    buffer: Mutex<RowBuffer>,
    /// Counts what has changed.
    changes: watch::Sender<u64>,
    deltas: broadcast::Sender<Arc<TextDelta>>,
    /// Whose turn it is to read.
    pub(super) read_permits: Semaphore,
}

/// The newest rows, and where the thing is.
#[derive(Debug, Default)]
struct RowBuffer {
    rows: VecDeque<Arc<StreamRow>>,
    bytes: usize,
    /// Every row from here on is in the ring, or still to come.
    start: RowPosition,
    /// Nobody has looked yet where the rows begin.
    is_new: bool,
    status: Option<(u64, Bytes)>,
    end: Option<StreamEnd>,
}

impl RowBuffer {
    fn set_status(&mut self, json: &str) {
        let event = encode_event(None, "status", json);
        if self.status.as_ref().is_none_or(|(_, known)| *known != event) {
            let number = self.status.as_ref().map_or(0, |(number, _)| *number);
            self.status = Some((number + 1, event));
        }
    }
}

/// How a hub has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// There will be no more rows.
    Finished,
    /// It cannot be followed any more; whoever connects again begins a new one.
    Broken,
}

/// A piece of text that is still being said.
#[derive(Debug)]
pub(super) struct TextDelta {
    /// The row that follows it, if that is known.
    pub(super) row: Option<u64>,
    pub(super) event: Bytes,
}

/// What a hub has for a client.
#[derive(Debug)]
pub(super) enum HubUpdate {
    /// These, in order.
    Rows(Vec<Arc<StreamRow>>),
    /// Where the thing is now, and the number of that news.
    Status(u64, Bytes),
    /// Rows that are no longer here.
    Evicted,
    /// Nothing, for now.
    NoChange,
    /// Nothing, ever.
    End(StreamEnd),
}

/// Rows that were read for one client.
#[derive(Debug)]
pub(super) struct RowChunk {
    pub(super) rows: Vec<StreamRow>,
    /// Everything before it was read.
    pub(super) next: RowPosition,
    /// Where in the file that is, to go on from.
    pub(super) offset: Option<(u64, u64)>,
}

impl StreamHub {
    pub(super) fn new(source: RowSource) -> StreamHub {
        let ring = Mutex::new(RowBuffer { is_new: true, ..RowBuffer::default() });
        StreamHub {
            source,
            buffer: ring,
            changes: watch::Sender::new(0),
            deltas: broadcast::Sender::new(DELTAS_BUFFERED),
            read_permits: Semaphore::new(CONCURRENT_READS_MAX),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RowBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut RowBuffer)) {
        change(&mut self.lock());
        self.changes.send_modify(|count| *count += 1);
    }

    /// Says where the rows begin that will be added; earlier ones are in the file.
    pub(super) fn begin_at(&self, start: RowPosition) {
        self.update(|ring| (ring.start, ring.is_new) = (start, false));
    }

    /// Adds the next row.
    pub(super) fn add(&self, row: StreamRow) {
        self.update(|ring| {
            ring.bytes += row.len();
            ring.rows.push_back(Arc::new(row));
            while ring.rows.len() > BUFFER_ROWS_MAX || ring.bytes > BUFFER_BYTES_MAX {
                let Some(gone) = ring.rows.pop_front() else { break };
                ring.bytes -= gone.len();
                ring.start = gone.position.after();
            }
        });
    }

    /// Says where the thing is now.
    pub(super) fn set_status(&self, json: &str) {
        self.update(|ring| ring.set_status(json));
    }

    /// Says how it ended, after the last row was added.
    pub(super) fn finish(&self, status: &str) {
        self.update(|ring| {
            ring.set_status(status);
            ring.end = Some(StreamEnd::Finished);
        });
    }

    /// Says that it cannot be followed any more.
    pub(super) fn mark_broken(&self) {
        self.update(|ring| ring.end = Some(StreamEnd::Broken));
    }

    pub(super) fn is_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lock().end == Some(StreamEnd::Broken)
    }

    /// Tells a piece of text to whoever listens.
    pub(super) fn send_delta(&self, delta: TextDelta) {
        // Nobody need listen.
        drop(self.deltas.send(Arc::new(delta)));
    }

    pub(super) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn subscribe_deltas(&self) -> broadcast::Receiver<Arc<TextDelta>> {
        self.deltas.subscribe()
    }

    /// Returns what there is for a client who wants the rows from a place on and knows a status.
    pub(super) fn next_update(&self, from: RowPosition, status: u64) -> HubUpdate {
        let ring = self.lock();
        if ring.end == Some(StreamEnd::Broken) {
            return HubUpdate::End(StreamEnd::Broken);
        }
        if let Some((number, event)) = &ring.status
            && *number != status
            && ring.end.is_none()
        {
            return HubUpdate::Status(*number, event.clone());
        }
        if !ring.is_new && from < ring.start {
            return HubUpdate::Evicted;
        }
        let first = ring.rows.partition_point(|row| row.position < from);
        let rows: Vec<Arc<StreamRow>> =
            ring.rows.iter().skip(first).take(CHUNK_ROWS).cloned().collect();
        match (rows.is_empty(), &ring.status, ring.end) {
            (false, ..) => HubUpdate::Rows(rows),
            // How it ended is told when its last row was.
            (true, Some((number, event)), Some(_)) if *number != status => {
                HubUpdate::Status(*number, event.clone())
            }
            (true, _, Some(end)) => HubUpdate::End(end),
            (true, ..) => HubUpdate::NoChange,
        }
    }

    /// Reads rows for a client who is behind; `offset` is a line and where it begins, if that is known.
    pub(super) fn read(
        &self,
        from: RowPosition,
        offset: Option<(u64, u64)>,
    ) -> Result<RowChunk, RowReadError> {
        match &self.source {
            RowSource::File(path) => match path.get() {
                Some(path) => Ok(read_file(path, from, offset)?),
                None => Ok(RowChunk { rows: Vec::new(), next: from, offset: None }),
            },
            RowSource::Run(records, run) => {
                let events =
                    records.workflow_run_events(run, from.line.saturating_sub(1), CHUNK_ROWS)?;
                let rows: Vec<StreamRow> = events.iter().map(row_from_event).collect();
                let next = rows.last().map_or(from, |row| row.position.after());
                Ok(RowChunk { rows, next, offset: None })
            }
        }
    }
}

/// Makes a row of an event of a run.
pub(super) fn row_from_event(event: &heeler_query::live_updates::WorkflowRunEvent) -> StreamRow {
    let text = serde_json::to_string(event).expect("an event is JSON");
    StreamRow::new(RowPosition::line_start(event.number), &text)
}

/// Why rows cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowReadError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Query(#[from] QueryError),
}

fn read_file(
    path: &camino::Utf8Path,
    from: RowPosition,
    offset: Option<(u64, u64)>,
) -> Result<RowChunk, DiskError> {
    let mut lines = match offset.filter(|(line, _)| *line == from.line) {
        Some((line, offset)) => NumberedLineReader::open_at(path, line, offset)?,
        None => NumberedLineReader::open(path, from.line)?,
    };
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let mut next = from;
    while bytes < CHUNK_BYTES && rows.len() < CHUNK_ROWS {
        let Some(line) = lines.next_line()? else { break };
        for (part, record) in (0..).zip(&line.records) {
            let at = RowPosition { line: line.number, record: part };
            if at >= from {
                let row = StreamRow::new(at, &record.text);
                bytes += row.len();
                rows.push(row);
            }
        }
        next = next.max(RowPosition::line_start(line.number + 1));
    }
    Ok(RowChunk { rows, next, offset: Some((lines.number(), lines.offset())) })
}

/// Returns the events of rows, in order, as one piece.
pub(super) fn encode_chunk(rows: &[StreamRow], form: RowFormat) -> Bytes {
    let events: Vec<Bytes> = rows.iter().map(|row| row.encoded(form)).collect();
    Bytes::from(events.concat())
}
