//! The snapshots that a log notes, from its beginning on.

use camino::Utf8Path;
use heeler_model::AgentSessionId;
use heeler_transcript::{TranscriptEntry, TranscriptScanner};
use memchr::memmem;

use super::segments::{RowRelation, is_initial_snapshot, read_snapshot, snapshot_row};
use super::{HistoryError, TranscriptSnapshot};

/// What every row of a snapshot holds, so that no other row need be parsed.
const NEEDLE: &str = "\"snapshot\"";

/// A snapshot that a log notes.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptSnapshotEntry {
    /// What it is.
    pub snapshot: TranscriptSnapshot,
    /// For one that was taken before the first turn of a session: which session. The log of a fork
    /// has that of its source too.
    pub initial_session: Option<AgentSessionId>,
}

/// Lists the snapshots that a log notes, oldest first.
pub fn snapshots(log: &Utf8Path) -> Result<Vec<TranscriptSnapshotEntry>, HistoryError> {
    let needle = memmem::Finder::new(NEEDLE);
    let mut found = Vec::new();
    for entry in TranscriptScanner::open(log)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        if needle.find(record.text.as_bytes()).is_none() {
            continue;
        }
        let Some(row) = snapshot_row(&record.text) else { continue };
        if !matches!(RowRelation::read(&row), RowRelation::Snapshot) {
            continue;
        }
        let begins = row["sessionId"].as_str().and_then(|id| id.parse().ok());
        let begins = begins.filter(|_| is_initial_snapshot(&row));
        let note = read_snapshot(&row["snapshot"]);
        found.extend(
            note.map(|note| TranscriptSnapshotEntry { snapshot: note, initial_session: begins }),
        );
    }
    Ok(found)
}
