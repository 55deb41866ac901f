//! Encoding of server-sent events, and positions in a stream.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use axum::body::Bytes;

/// Longest row that is sent. Of a longer row, only number and length are sent; clients read it
/// through the rows route.
pub(crate) const EVENT_BYTES_MAX: usize = 1 << 20;

/// Comment that keeps a silent connection open.
pub(super) const HEARTBEAT: Bytes = Bytes::from_static(b":\n\n");

/// First bytes of a stream: the time after which a browser reconnects.
pub(super) const RETRY_DIRECTIVE: Bytes = Bytes::from_static(b"retry: 1000\n\n");

/// Position of a row: its line, and its index in the line, in case a lost newline has joined
/// several records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct RowPosition {
    pub(crate) line: u64,
    /// Index of the record in the line.
    pub(crate) record: u32,
}

impl RowPosition {
    pub(crate) fn line_start(line: u64) -> RowPosition {
        RowPosition { line, record: 0 }
    }

    /// Returns the next possible position. Positions are only compared; there need not be a row at
    /// this one.
    pub(crate) fn after(self) -> RowPosition {
        RowPosition { line: self.line, record: self.record.saturating_add(1) }
    }
}

impl fmt::Display for RowPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.record {
            0 => write!(f, "{}", self.line),
            part => write!(f, "{}.{part}", self.line),
        }
    }
}

/// Text is not a valid event ID.
#[derive(Debug, PartialEq)]
pub(crate) struct RowPositionParseError;

impl FromStr for RowPosition {
    type Err = RowPositionParseError;

    fn from_str(text: &str) -> Result<RowPosition, RowPositionParseError> {
        let (line, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(line) || !is_number(part) {
            return Err(RowPositionParseError);
        }
        let (line, part) = (line.parse(), part.parse());
        Ok(RowPosition {
            line: line.map_err(|_| RowPositionParseError)?,
            record: part.map_err(|_| RowPositionParseError)?,
        })
    }
}

/// Encodes an event. Each line of the data becomes a `data:` line.
pub(super) fn encode_event(id: Option<&str>, name: &str, data: &str) -> Bytes {
    let mut text = String::with_capacity(data.len() + 64);
    if let Some(id) = id {
        text.extend(["id: ", id, "\n"]);
    }
    text.extend(["event: ", name, "\n"]);
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
            let data = format!("{{\"line\":{},\"bytes\":{}}}", at.line, text.len());
            let json = encode_event(Some(&id), "large", &data);
            return StreamRow { position: at, json, text: None, html: OnceLock::new() };
        }
        // In JSON a carriage return can only be whitespace; in an event it would end a line.
        let one_line = text.replace('\r', " ");
        let json = encode_event(Some(&id), "row", &one_line);
        let start = json.len() - one_line.len() - 2;
        let text = Some(start..start + one_line.len());
        StreamRow { position: at, json, text, html: OnceLock::new() }
    }

    pub(super) fn encoded(&self, form: RowFormat) -> Bytes {
        let Some(text) = self.text.clone().filter(|_| form == RowFormat::Html) else {
            return self.json.clone();
        };
        let make = || {
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

    #[test]
    fn places_are_written_and_read_and_stand_in_order() {
        for (text, place) in [("0", (0, 0)), ("12", (12, 0)), ("12.3", (12, 3))] {
            let place = RowPosition { line: place.0, record: place.1 };
            assert_eq!(text.parse(), Ok(place));
            assert_eq!(place.to_string(), text);
        }
        for text in ["", "-1", "1.", ".1", "1.x", "+1", "99999999999999999999", "1.2.3"] {
            assert_eq!(text.parse::<RowPosition>(), Err(RowPositionParseError), "{text}");
        }
        let places = ["3", "3.1", "4"].map(|text| text.parse::<RowPosition>().unwrap());
        assert!(places.is_sorted());
        assert!(places[0].after() <= places[1] && places[1].after() <= places[2]);
    }
}
