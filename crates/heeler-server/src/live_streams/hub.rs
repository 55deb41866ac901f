//! Hub of one followed job, session or run: buffers the newest rows and text deltas for any number
//! of clients.
//!
//! One thread feeds a hub and ends when the last client is gone. A hub keeps at most
//! [`BUFFER_ROWS_MAX`] rows and [`BUFFER_BYTES_MAX`] bytes; a client that is further behind reads
//! the file. Start at [`StreamHub`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::body::Bytes;
use camino::Utf8PathBuf;
use heeler_query::job_feed::RowPosition;
use heeler_query::{FleetReader, QueryError};
use heeler_transcript::{DiskError, NumberedLineReader};
use tokio::sync::{Semaphore, broadcast, watch};

use super::event::{RowFormat, StreamRow, encode_event};

/// Most rows in a hub's buffer.
pub(super) const BUFFER_ROWS_MAX: usize = 1024;

/// Most bytes of rows in a hub's buffer.
pub(super) const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Text deltas buffered per client; a slower client misses some and gets an event `lagged`.
const DELTAS_BUFFERED: usize = 256;

/// Bytes of a file that a client reads at once; the row that exceeds this is the last.
const CHUNK_BYTES: usize = 64 << 10;

/// Most clients of a hub that read files at the same time; the others wait, which bounds the cost.
const CONCURRENT_READS_MAX: usize = 4;

/// Most rows in one chunk.
const CHUNK_ROWS: usize = 256;

/// Source of a hub's older rows.
#[derive(Debug)]
pub(super) enum RowSource {
    /// Transcript, once its path is known.
    File(OnceLock<Utf8PathBuf>),
    /// Events of a workflow run, in the database.
    Run(Box<FleetReader>, String),
}

/// Followed job, session or run.
#[derive(Debug)]
pub(super) struct StreamHub {
    pub(super) source: RowSource,
    buffer: Mutex<RowBuffer>,
    /// Counts changes.
    changes: watch::Sender<u64>,
    deltas: broadcast::Sender<Arc<TextDelta>>,
    /// Permits for clients that read older rows.
    pub(super) read_permits: Semaphore,
}

/// Newest rows, status and end.
#[derive(Debug, Default)]
struct RowBuffer {
    rows: VecDeque<Arc<StreamRow>>,
    bytes: usize,
    /// All rows from this position on are in the buffer or not yet written.
    start: RowPosition,
    /// The position of the first row has not been determined yet.
    is_new: bool,
    status: Option<(u64, Bytes)>,
    end: Option<StreamEnd>,
}

impl RowBuffer {
    fn set_status(&mut self, json: &str) {
        let event = encode_event(None, "status", json);
        // Most commits do not concern this job, so only another status gets a new number.
        if self.status.as_ref().is_none_or(|(_, known)| *known != event) {
            let number = self.status.as_ref().map_or(0, |(number, _)| *number);
            self.status = Some((number + 1, event));
        }
    }
}

/// End of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// There will be no more rows.
    Finished,
    /// Following failed; a client that reconnects gets a new hub.
    Broken,
}

/// Part of an unfinished message.
#[derive(Debug)]
pub(super) struct TextDelta {
    /// Number of the row that will contain the text, if known.
    pub(super) row: Option<u64>,
    pub(super) event: Bytes,
}

/// Next update for a client.
#[derive(Debug)]
pub(super) enum HubUpdate {
    /// Next rows, in order.
    Rows(Vec<Arc<StreamRow>>),
    /// Current status, and its sequence number.
    Status(u64, Bytes),
    /// The next rows have left the buffer; read them from the source.
    Evicted,
    NoChange,
    /// End of the stream.
    End(StreamEnd),
}

/// Rows read from the source for one client.
#[derive(Debug)]
pub(super) struct RowChunk {
    pub(super) rows: Vec<StreamRow>,
    /// Position after the last row.
    pub(super) next: RowPosition,
    /// Line number and byte offset at which to continue.
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
        // The lock is free by now, because woken clients take it at once.
        self.changes.send_modify(|count| *count += 1);
    }

    /// Sets the position of the first row that will be added; earlier rows are in the file.
    pub(super) fn begin_at(&self, start: RowPosition) {
        self.update(|ring| (ring.start, ring.is_new) = (start, false));
    }

    /// Appends a row and evicts old ones.
    pub(super) fn add(&self, row: StreamRow) {
        self.update(|ring| {
            ring.bytes += row.len();
            ring.rows.push_back(Arc::new(row));
            // A row of the greatest size exceeds the limit alone; then clients read it from the
            // file.
            while ring.rows.len() > BUFFER_ROWS_MAX || ring.bytes > BUFFER_BYTES_MAX {
                let Some(evicted) = ring.rows.pop_front() else { break };
                ring.bytes -= evicted.len();
                ring.start = evicted.position.after();
            }
        });
    }

    /// Sets the status, as JSON.
    pub(super) fn set_status(&self, json: &str) {
        self.update(|ring| ring.set_status(json));
    }

    /// Marks the end, after the last row was added.
    pub(super) fn finish(&self, status: &str) {
        self.update(|ring| {
            ring.set_status(status);
            ring.end = Some(StreamEnd::Finished);
        });
    }

    /// Marks that following failed.
    pub(super) fn mark_broken(&self) {
        self.update(|ring| ring.end = Some(StreamEnd::Broken));
    }

    pub(super) fn is_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lock().end == Some(StreamEnd::Broken)
    }

    /// Sends a text delta to all subscribed clients.
    pub(super) fn send_delta(&self, delta: TextDelta) {
        // Fails only if there are no subscribers.
        drop(self.deltas.send(Arc::new(delta)));
    }

    pub(super) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn subscribe_deltas(&self) -> broadcast::Receiver<Arc<TextDelta>> {
        self.deltas.subscribe()
    }

    /// Returns the next update for a client that wants rows from a position on and has seen a
    /// status number.
    pub(super) fn next_update(&self, from: RowPosition, status: u64) -> HubUpdate {
        let ring = self.lock();
        // Clients that reconnect get the remaining rows from the next hub.
        if ring.end == Some(StreamEnd::Broken) {
            return HubUpdate::End(StreamEnd::Broken);
        }
        // While the job runs, its status does not wait for rows that a slow client has yet to read.
        if let Some((number, event)) = &ring.status
            && *number != status
            && ring.end.is_none()
        {
            return HubUpdate::Status(*number, event.clone());
        }
        // As long as the start is unknown, no row can be known to be missing.
        if !ring.is_new && from < ring.start {
            return HubUpdate::Evicted;
        }
        // Rows are added in the order of their positions.
        let first = ring.rows.partition_point(|row| row.position < from);
        let rows: Vec<Arc<StreamRow>> =
            ring.rows.iter().skip(first).take(CHUNK_ROWS).cloned().collect();
        match (rows.is_empty(), &ring.status, ring.end) {
            (false, ..) => HubUpdate::Rows(rows),
            // The final status is sent after the last row.
            (true, Some((number, event)), Some(_)) if *number != status => {
                HubUpdate::Status(*number, event.clone())
            }
            (true, _, Some(end)) => HubUpdate::End(end),
            (true, ..) => HubUpdate::NoChange,
        }
    }

    /// Reads rows for a client that is behind; `offset` is a line number and its byte offset, if
    /// known.
    pub(super) fn read(
        &self,
        from: RowPosition,
        offset: Option<(u64, u64)>,
    ) -> Result<RowChunk, RowReadError> {
        match &self.source {
            RowSource::File(path) => match path.get() {
                Some(path) => Ok(read_file(path, from, offset)?),
                // The job has not started, so it has no file yet.
                None => Ok(RowChunk { rows: Vec::new(), next: from, offset: None }),
            },
            RowSource::Run(records, run) => {
                // The query takes the last number that was seen, `from` is the next one.
                let events =
                    records.workflow_run_events(run, from.line.saturating_sub(1), CHUNK_ROWS)?;
                let rows: Vec<StreamRow> = events.iter().map(row_from_event).collect();
                let next = rows.last().map_or(from, |row| row.position.after());
                Ok(RowChunk { rows, next, offset: None })
            }
        }
    }
}

/// Returns the row for an event of a workflow run.
pub(super) fn row_from_event(event: &heeler_query::live_updates::WorkflowRunEvent) -> StreamRow {
    let text = serde_json::to_string(event).expect("an event is JSON");
    StreamRow::new(RowPosition::line_start(event.number), &text)
}

/// Failure to read rows.
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
    // The offset belongs to one line, and the client may have continued in the buffer since.
    let mut lines = match offset.filter(|(line, _)| *line == from.line) {
        Some((line, offset)) => NumberedLineReader::open_at(path, line, offset)?,
        None => NumberedLineReader::open(path, from.line)?,
    };
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let mut next = from;
    while bytes < CHUNK_BYTES && rows.len() < CHUNK_ROWS {
        let Some(line) = lines.next_line()? else { break };
        // A lost newline may have joined several records in one line.
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

/// Concatenates the events of rows, in order.
pub(super) fn encode_chunk(rows: &[StreamRow], form: RowFormat) -> Bytes {
    let events: Vec<Bytes> = rows.iter().map(|row| row.encoded(form)).collect();
    Bytes::from(events.concat())
}
