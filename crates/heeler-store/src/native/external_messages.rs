//! Messages that a native session received outside Heeler.

use camino::Utf8Path;
use heeler_model::NativeSessionPosition;
use heeler_model::native_chain::{NativeChainEntry, compare_with_position};
use heeler_transcript::{DiskError, ReverseRecordReader, TranscriptScanner};
use serde_json::Value;

/// Returns the messages that a native session received outside Heeler since the last run, oldest
/// first.
pub fn read_external_messages(
    path: &Utf8Path,
    left: &NativeSessionPosition,
) -> Result<Vec<Value>, DiskError> {
    let failed = |source| DiskError { action: "look at", path: path.to_owned(), source };
    // Read before the entries, so that messages which arrive during the read are not missed.
    let bytes = path.metadata().map_err(failed)?.len();
    let mut records = ReverseRecordReader::open(path);
    // Lines without an id are no part of the chain.
    let next_older = || {
        while let Some(record) = records.next_record()? {
            if let Some(entry) = NativeChainEntry::parse(&record.text) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    };
    // Only the part after the known position is read, however long the session is.
    let lines_after = |offset| {
        let records = TranscriptScanner::open_at(path, offset)?.records();
        Ok(records.map(|record| Ok(record?.text)))
    };
    Ok(compare_with_position(left, bytes, lines_after, next_older)?.added)
}
