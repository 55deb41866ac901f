//! Full text of long messages: a job's transcript holds only the beginning of a long text, the
//! session's transcript holds all of it. Start at [`FullTextReader`].

use std::borrow::Cow;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::message::parse_row;
use heeler_model::recorder::{JOB_TEXT_BYTES_MAX, full_text};
use heeler_transcript::{PageBoundary, TranscriptEntry, TranscriptScanner, read_range};
use serde_json::Value as Json;
use uuid::Uuid;

/// Position in the session's transcript. Both transcripts have the same order, so it only advances.
#[derive(Debug, Default)]
pub(crate) struct FullTextReader {
    log: Utf8PathBuf,
    offset: u64,
}

impl FullTextReader {
    /// Returns a text of a job row of the run in this folder: in full, unless its session row is
    /// gone.
    pub(crate) fn text<'r>(&mut self, folder: &Utf8Path, row: &'r Json, key: &str) -> Cow<'r, str> {
        let text = row[key].as_str().unwrap_or_default();
        let is_cut = text.len() > JOB_TEXT_BYTES_MAX;
        let whole = if is_cut { self.find(folder, &row["uuid"]) } else { None };
        whole.map_or(Cow::Borrowed(text), Cow::Owned)
    }

    fn find(&mut self, folder: &Utf8Path, uuid: &Json) -> Option<String> {
        let uuid = Uuid::try_parse(uuid.as_str()?).ok()?;
        let started = heeler_engine::read_started_file(folder).ok()?;
        // An agent that lost its session continues in another one.
        if self.log != started.session_log {
            let (log, earlier) = (started.session_log, started.session_rows_before);
            let offset = read_range(&log, PageBoundary::Line(earlier), 0).ok()?.end;
            *self = FullTextReader { log, offset };
        }
        for entry in TranscriptScanner::open_at(&self.log, self.offset).ok()? {
            let Ok(TranscriptEntry::Record(record)) = entry else { continue };
            let Some(row) = parse_row(&record.text) else { continue };
            if let Some(text) = full_text(&row, uuid) {
                self.offset = record.offset;
                return Some(text);
            }
        }
        None
    }
}
