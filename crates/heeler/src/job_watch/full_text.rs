//! Full text of long messages: a job's transcript holds only the beginning of a long text, the
//! session's transcript holds all of it. Start at [`FullTextReader`].

use std::borrow::Cow;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::job_row::JobRow;
use heeler_model::message::parse_row;
use heeler_model::recorder::{JOB_TEXT_BYTES_MAX, full_text};
use heeler_transcript::{PageBoundary, TranscriptEntry, TranscriptScanner, read_range};
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
    pub(crate) fn text<'r>(
        &mut self,
        folder: &Utf8Path,
        row: &'r JobRow,
        key: &str,
    ) -> Cow<'r, str> {
        let text = row.text(key).unwrap_or_default();
        // The recorder appends a mark to a cut text, which makes it longer than the limit.
        let is_cut = text.len() > JOB_TEXT_BYTES_MAX;
        let whole = row.uuid().filter(|_| is_cut).and_then(|uuid| self.find(folder, uuid));
        whole.map_or(Cow::Borrowed(text), Cow::Owned)
    }

    fn find(&mut self, folder: &Utf8Path, uuid: Uuid) -> Option<String> {
        let started = heeler_engine::read_started_file(folder).ok()?;
        // An agent that lost its session continues in another one.
        if self.log != started.session_log {
            let (log, earlier) = (started.session_log, started.session_rows_before);
            // Earlier runs of a long session need not be searched.
            let offset = read_range(&log, PageBoundary::Line(earlier), 0).ok()?.end;
            *self = FullTextReader { log, offset };
        }
        for entry in TranscriptScanner::open_at(&self.log, self.offset).ok()? {
            // A damaged line must not hide the ones after it.
            let Ok(TranscriptEntry::Record(record)) = entry else { continue };
            let Some(row) = parse_row(&record.text) else { continue };
            if let Some(text) = full_text(&row, uuid) {
                // Not behind it: one session row may be the source of several job rows.
                self.offset = record.offset;
                return Some(text);
            }
        }
        None
    }
}
