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
    let bytes = path.metadata().map_err(failed)?.len();
    let mut records = ReverseRecordReader::open(path);
    let next_older = || {
        while let Some(record) = records.next_record()? {
            if let Some(entry) = NativeChainEntry::parse(&record.text) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    };
    let lines_after = |offset| {
        let records = TranscriptScanner::open_at(path, offset)?.records();
        Ok(records.map(|record| Ok(record?.text)))
    };
    Ok(compare_with_position(left, bytes, lines_after, next_older)?.added)
}
