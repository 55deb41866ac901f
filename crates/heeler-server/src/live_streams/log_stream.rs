//! Stream of the daemon's log, line by line, across log rotation.

use std::io;

use axum::body::Bytes;
use camino::Utf8PathBuf;
use heeler_engine::logs::{LOG_POLL_INTERVAL, LogCursor, LogLineReader};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::event::{HEARTBEAT, RETRY_DIRECTIVE, encode_event};
use super::stream_count::StreamCountGuard;
use super::subscriber::HEARTBEAT_EVERY;

/// Client of the log stream.
pub(super) struct LogStreamReader {
    path: Utf8PathBuf,
    /// Position to start after.
    cursor: Option<LogCursor>,
    last: usize,
    lines: Option<LogLineReader>,
    ending: watch::Receiver<bool>,
    _counted: [StreamCountGuard; 2],
    is_opened: bool,
}

impl LogStreamReader {
    pub(super) fn new(
        path: Utf8PathBuf,
        cursor: Option<LogCursor>,
        last: usize,
        ending: watch::Receiver<bool>,
        counted: [StreamCountGuard; 2],
    ) -> LogStreamReader {
        LogStreamReader {
            path,
            cursor,
            last,
            lines: None,
            ending,
            _counted: counted,
            is_opened: false,
        }
    }

    /// Returns the next bytes to send; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_opened, true) {
            return Some(RETRY_DIRECTIVE);
        }
        let silent_until = Instant::now() + HEARTBEAT_EVERY;
        while !*self.ending.borrow() {
            match self.read().await {
                Ok(events) if events.is_empty() => {}
                Ok(events) => return Some(events),
                Err(error) => {
                    tracing::debug!(%error, "cannot read the log for a client");
                    // The client reconnects with the ID of its last line.
                    return None;
                }
            }
            if Instant::now() >= silent_until {
                return Some(HEARTBEAT);
            }
            tokio::select! {
                _ = self.ending.wait_for(|ending| *ending) => return None,
                () = sleep(LOG_POLL_INTERVAL) => {}
            }
        }
        None
    }

    async fn read(&mut self) -> io::Result<Bytes> {
        let (path, cursor, last) = (self.path.clone(), self.cursor.take(), self.last);
        // If the read fails, the stream ends, so the reader need not come back.
        let lines = self.lines.take();
        let read = tokio::task::spawn_blocking(move || {
            let mut text = Vec::new();
            let mut lines = match (lines, cursor) {
                (Some(lines), _) => lines,
                (None, None) => LogLineReader::last(&path, last)?,
                (None, Some(cursor)) => match LogLineReader::after(&path, &cursor)? {
                    Some(lines) => lines,
                    None => {
                        // The file of the cursor was rotated away, so the client misses lines.
                        text.push(encode_event(None, "lagged", "{}"));
                        LogLineReader::last(&path, last)?
                    }
                },
            };
            for (cursor, line) in lines.read_more()? {
                text.push(encode_event(Some(&cursor.to_string()), "line", &line));
            }
            Ok::<_, io::Error>((lines, Bytes::from(text.concat())))
        });
        let (lines, events) = read.await.map_err(io::Error::other)??;
        self.lines = Some(lines);
        Ok(events)
    }
}
