//! Rows on a disk that fails at any call.

use std::sync::Arc;

use heeler_testkit::{SimDisk, SimulatedFault};
use heeler_transcript::TranscriptDurability;
use jiff::Timestamp;
use serde_json::json;

use super::*;

struct TranscriptWriterFixture {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    disk: Arc<SimDisk>,
}

fn writer_fixture() -> TranscriptWriterFixture {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::try_from(temp.path().to_owned()).unwrap();
    let disk = Arc::new(SimDisk::new(&root));
    TranscriptWriterFixture { _temp: temp, root, disk }
}

impl TranscriptWriterFixture {
    fn open(&self) -> RunTranscriptWriter {
        let options = TranscriptWriterOptions {
            durability: TranscriptDurability::Event,
            disk: self.disk.clone(),
        };
        let redactor = SecretRedactor::new(&["hunter2hunter2".to_owned()]);
        let run = RunId::mint(Timestamp::UNIX_EPOCH, [1; 10]);
        let (session, job) = (self.root.join("a/session.jsonl"), self.root.join("b/job.jsonl"));
        RunTranscriptWriter::open(&session, &job, &options, &redactor, run).unwrap()
    }

    fn read(&self, name: &str) -> Vec<u64> {
        let text = std::fs::read_to_string(self.root.join(name)).unwrap();
        let row = |line: &str| serde_json::from_str::<Json>(line).unwrap();
        text.lines().map(|line| row(line)["number"].as_u64().unwrap()).collect()
    }
}

fn rows(number: u64) -> RecordedRows {
    let row = json!({"number": number, "text": "it is hunter2hunter2"});
    RecordedRows { session: vec![row.clone()], job: vec![row], deltas: Vec::new() }
}

/// Writes rows, tries again whatever fails, and returns how many calls the disk got.
fn write(place: &TranscriptWriterFixture, mut journal: RunTranscriptWriter) -> usize {
    const ROWS: u64 = 4;
    let mut told = Vec::new();
    for number in 0..ROWS {
        journal.push(rows(number));
        let mut tries = 0;
        while journal.flush(&mut |at, row| told.push((at, row.to_vec()))).is_err() {
            tries += 1;
            assert!(tries < 100, "the disk is well again, but the journal is not");
            if tries == 3 {
                place.disk.clear_faults();
            }
        }
        assert!(journal.is_flushed());
        assert_eq!(journal.take_skipped_reason(), None);
    }
    let calls = place.disk.calls();
    let expect: Vec<u64> = (0..ROWS).collect();
    assert_eq!(place.read("a/session.jsonl"), expect);
    assert_eq!(place.read("b/job.jsonl"), expect);
    let numbers: Vec<u64> = told.iter().map(|(at, _)| *at).collect();
    assert_eq!(numbers, expect, "each row is told once");
    calls
}

#[test]
fn whatever_call_fails_every_row_is_written_once_in_order() {
    let without_trouble = {
        let place = writer_fixture();
        let journal = place.open();
        let opened = place.disk.calls();
        write(&place, journal) - opened
    };
    for trouble in SimulatedFault::ALL {
        for call in 0..without_trouble {
            for lasting in [false, true] {
                let place = writer_fixture();
                let journal = place.open();
                let call = place.disk.calls() + call;
                if lasting {
                    place.disk.fail_from(call, trouble);
                } else {
                    place.disk.fail_at(call, trouble);
                }
                write(&place, journal);
            }
        }
    }
}

#[test]
fn no_row_holds_a_secret_and_the_sessions_rows_name_the_run() {
    let place = writer_fixture();
    let mut journal = place.open();
    journal.push(rows(0));
    journal
        .flush(&mut |_, row| assert!(String::from_utf8_lossy(row).contains("[secret]")))
        .unwrap();
    for (name, names_the_run) in [("a/session.jsonl", true), ("b/job.jsonl", false)] {
        let text = std::fs::read_to_string(place.root.join(name)).unwrap();
        assert!(text.contains("it is [secret]") && !text.contains("hunter2"), "{text}");
        assert_eq!(text.contains(RUN_KEY), names_the_run);
    }
}

#[test]
fn a_row_that_no_log_can_hold_is_left_out_and_said() {
    let place = writer_fixture();
    let mut journal = place.open();
    journal.push(RecordedRows {
        session: vec![json!([])],
        job: vec![json!("x")],
        deltas: Vec::new(),
    });
    journal.push(rows(1));
    journal.flush(&mut |_, _| {}).unwrap();
    assert!(journal.take_skipped_reason().is_some());
    assert_eq!(place.read("a/session.jsonl"), [1]);
    assert_eq!(place.read("b/job.jsonl"), [1]);
}
