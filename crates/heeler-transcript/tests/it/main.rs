//! Transcripts on real files, real processes and simulated disks.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod copy;
mod follow;
mod kill;
mod log;
mod page;
mod power;
mod properties;
mod reader;
mod search;
mod trouble;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{
    TranscriptEntry, TranscriptFault, TranscriptRecord, TranscriptScanner, TranscriptWriter,
    TranscriptWriterOptions,
};
use tempfile::TempDir;

/// A folder that is gone when the test ends.
fn folder() -> (TempDir, Utf8PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::try_from(temp.path().to_owned()).unwrap();
    (temp, path)
}

fn open(path: &Utf8Path) -> TranscriptWriter {
    TranscriptWriter::open(path, TranscriptWriterOptions::default()).unwrap().writer
}

/// Every record and fault of the file.
fn read_all(path: &Utf8Path) -> (Vec<TranscriptRecord>, Vec<TranscriptFault>) {
    let (mut records, mut faults) = (Vec::new(), Vec::new());
    for entry in TranscriptScanner::open(path).unwrap() {
        match entry.unwrap() {
            TranscriptEntry::Record(record) => records.push(record),
            TranscriptEntry::Fault(fault) => faults.push(fault),
        }
    }
    (records, faults)
}

fn texts(records: &[TranscriptRecord]) -> Vec<&str> {
    records.iter().map(|record| record.text.as_str()).collect()
}
