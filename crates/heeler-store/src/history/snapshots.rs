//! The snapshots that a transcript records, from its start.
//!
//! Start at [`snapshots`].

use camino::Utf8Path;
use heeler_model::AgentSessionId;
use heeler_transcript::{TranscriptEntry, TranscriptScanner};
use memchr::memmem;

use super::message::{HistoryError, TranscriptSnapshot};
use super::segments::{RowRelation, is_initial_snapshot, read_snapshot, snapshot_row};

/// Text that every snapshot row contains, so that no other row is parsed.
const NEEDLE: &str = "\"snapshot\"";

/// A snapshot that a transcript records.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptSnapshotEntry {
    pub snapshot: TranscriptSnapshot,
    /// Session of a snapshot taken before the session's first turn. A fork's transcript also
    /// contains that of its source.
    pub initial_session: Option<AgentSessionId>,
}

/// Lists the snapshots that a transcript records, oldest first.
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
        let begins = row.text("sessionId").and_then(|id| id.parse().ok());
        let begins = begins.filter(|_| is_initial_snapshot(&row));
        let note = read_snapshot(&row.as_json()["snapshot"]);
        found.extend(
            note.map(|note| TranscriptSnapshotEntry { snapshot: note, initial_session: begins }),
        );
    }
    Ok(found)
}
