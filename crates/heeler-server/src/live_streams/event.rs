//! Encoding of server-sent events.

use std::sync::OnceLock;

use axum::body::Bytes;
use heeler_query::job_feed::RowPosition;

/// Longest row that is sent. Of a longer row, only number and length are sent; clients read it
/// through the rows route.
pub(crate) const EVENT_BYTES_MAX: usize = 1 << 20;

/// Comment that keeps a silent connection open.
pub(super) const HEARTBEAT: Bytes = Bytes::from_static(b":\n\n");

/// First bytes of a stream: the time after which a browser reconnects.
pub(super) const RETRY_DIRECTIVE: Bytes = Bytes::from_static(b"retry: 1000\n\n");

/// Encodes an event. Each line of the data becomes a `data:` line.
pub(super) fn encode_event(id: Option<&str>, name: &str, data: &str) -> Bytes {
    let mut text = String::with_capacity(data.len() + 64);
    if let Some(id) = id {
        text.extend(["id: ", id, "\n"]);
    }
    text.extend(["event: ", name, "\n"]);
    // In an event a lone carriage return ends a line too.
    for line in data.split('\n').flat_map(|line| line.trim_end_matches('\r').split('\r')) {
        text.extend(["data: ", line, "\n"]);
    }
    text.push('\n');
    Bytes::from(text)
}

/// Format of streamed rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowFormat {
    /// Unchanged JSON.
    Json,
    /// HTML element for the dashboard.
    Html,
}

/// Row with its encoded events, which are created once for all clients.
#[derive(Debug)]
pub(super) struct StreamRow {
    pub(super) position: RowPosition,
    json: Bytes,
    /// Range of the row's text in `json`.
    text: Option<std::ops::Range<usize>>,
    html: OnceLock<Bytes>,
}

impl StreamRow {
    pub(super) fn new(at: RowPosition, text: &str) -> StreamRow {
        let id = at.to_string();
        if text.len() > EVENT_BYTES_MAX {
            // With the number a client can read the row as a range.
            let data = format!("{{\"line\":{},\"bytes\":{}}}", at.line, text.len());
            let json = encode_event(Some(&id), "large", &data);
            return StreamRow { position: at, json, text: None, html: OnceLock::new() };
        }
        // In JSON a carriage return can only be whitespace; in an event it would end a line.
        let one_line = text.replace('\r', " ");
        let json = encode_event(Some(&id), "row", &one_line);
        // The event ends with two line feeds, which follow the text.
        let start = json.len() - one_line.len() - 2;
        let text = Some(start..start + one_line.len());
        StreamRow { position: at, json, text, html: OnceLock::new() }
    }

    pub(super) fn encoded(&self, form: RowFormat) -> Bytes {
        // A row that is too large has no text here, so it is sent alike in both formats.
        let Some(text) = self.text.clone().filter(|_| form == RowFormat::Html) else {
            return self.json.clone();
        };
        let make = || {
            // The range was taken from a `str`, so nothing is replaced.
            let text = String::from_utf8_lossy(&self.json[text]);
            let html = heeler_pages::transcript::row_html(self.position.line, &text);
            encode_event(Some(&self.position.to_string()), "row", &html)
        };
        self.html.get_or_init(make).clone()
    }

    /// Returns true if the event exists already or costs nothing to create.
    pub(super) fn is_rendered(&self, form: RowFormat) -> bool {
        form == RowFormat::Json || self.text.is_none() || self.html.get().is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.json.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_one_event_whatever_is_in_it() {
        let row = StreamRow::new(RowPosition { line: 7, record: 0 }, "{\"a\":\r\"ü\"}");
        assert_eq!(row.encoded(RowFormat::Json), "id: 7\nevent: row\ndata: {\"a\": \"ü\"}\n\n");
        assert!(row.is_rendered(RowFormat::Json) && !row.is_rendered(RowFormat::Html));
        let html = row.encoded(RowFormat::Html);
        assert!(row.is_rendered(RowFormat::Html));
        assert!(html.starts_with(b"id: 7\nevent: row\ndata: <"), "{html:?}");
        assert_eq!(
            encode_event(None, "x", "a\nb\r\nc\rd"),
            "event: x\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
        );
    }

    #[test]
    fn of_a_row_that_is_too_long_its_place_and_length_are_told() {
        let text = format!("{{\"a\":\"{}\"}}", "x".repeat(EVENT_BYTES_MAX));
        let row = StreamRow::new(RowPosition { line: 2, record: 1 }, &text);
        let told =
            format!("id: 2.1\nevent: large\ndata: {{\"line\":2,\"bytes\":{}}}\n\n", text.len());
        assert_eq!(row.encoded(RowFormat::Json), told);
        assert_eq!(row.encoded(RowFormat::Html), told);
    }
}
