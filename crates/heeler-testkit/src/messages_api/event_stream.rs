//! A reply as a stream of prepared events, with the delays and faults of its step.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_util::io::ReaderStream;

use super::reply::CutConnection;
use super::script::ModelScriptStep;

/// Event of a stream.
pub(super) struct PreparedEvent {
    text: String,
    /// True if the event carries a piece of content, after which faults are planned.
    is_piece: bool,
}

impl PreparedEvent {
    /// Creates an event with a name.
    pub(super) fn named(name: &str, data: &Json, is_piece: bool) -> Self {
        Self { text: format!("event: {name}\ndata: {data}\n\n"), is_piece }
    }

    /// Creates an event of this text, without a name.
    pub(super) fn data(text: &str, is_piece: bool) -> Self {
        Self { text: format!("data: {text}\n\n"), is_piece }
    }

    /// Creates an event without a name.
    pub(super) fn unnamed(data: &Json, is_piece: bool) -> Self {
        Self { text: format!("data: {data}\r\n\r\n"), is_piece }
    }
}

/// Returns the reply that sends these events.
pub(super) fn stream(step: ModelScriptStep, events: Vec<PreparedEvent>) -> Response {
    let (writer, reader) = tokio::io::duplex(64 * 1024);
    let is_cut = step.drop_after.is_some();
    tokio::spawn(write_events(step, events, writer));
    let body = match is_cut {
        true => {
            Body::from_stream(ReaderStream::new(reader.chain(CutConnection { error_sent: false })))
        }
        false => Body::from_stream(ReaderStream::new(reader)),
    };
    ([("content-type", "text/event-stream")], body).into_response()
}

async fn write_events(step: ModelScriptStep, events: Vec<PreparedEvent>, mut writer: DuplexStream) {
    let mut pieces = 0;
    for event in events {
        // The client may be gone, which is no fault of the test.
        if writer.write_all(event.text.as_bytes()).await.is_err() {
            return;
        }
        if !event.is_piece {
            continue;
        }
        pieces += 1;
        if let Some(ms) = step.delay_ms {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        if step.stall_after == Some(pieces) {
            // Sleeps until the server stops.
            std::future::pending::<()>().await;
        }
        if step.drop_after == Some(pieces) {
            return;
        }
    }
}

/// Splits a text into pieces.
pub(super) fn pieces(text: &str, step: &ModelScriptStep) -> Vec<String> {
    const PIECE: usize = 64;
    let characters: Vec<char> = text.chars().collect();
    let pieces = characters.chunks(step.piece.unwrap_or(PIECE));
    pieces.map(|piece| piece.iter().collect()).collect()
}
