//! The snapshots that a log notes, from its beginning on.

use camino::Utf8Path;
use heeler_transcript::{Entry, Scan};
use memchr::memmem;

use super::marks::{PartOf, read_snapshot, snapshot_row};
use super::{HistoryError, SnapshotNote};

/// What every row of a snapshot holds, so that no other row need be parsed.
const NEEDLE: &str = "\"snapshot\"";

/// Lists the snapshots that a log notes, oldest first.
pub fn snapshots(log: &Utf8Path) -> Result<Vec<SnapshotNote>, HistoryError> {
    let needle = memmem::Finder::new(NEEDLE);
    let mut found = Vec::new();
    for entry in Scan::open(log)? {
        let Entry::Record(record) = entry? else { continue };
        if needle.find(record.text.as_bytes()).is_none() {
            continue;
        }
        let Some(row) = snapshot_row(&record.text) else { continue };
        if matches!(PartOf::read(&row), PartOf::Snapshot) {
            found.extend(read_snapshot(&row["snapshot"]));
        }
    }
    Ok(found)
}
