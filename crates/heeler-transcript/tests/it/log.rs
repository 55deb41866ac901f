//! The writer: what it appends, refuses and repairs.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use camino::Utf8Path;
use heeler_testkit::{DiskHook, HookedDisk};
use heeler_transcript::{
    AppendError, DiskBackend as _, LINE_BYTES_MAX, OsDisk, TailRepair, TranscriptDurability,
    TranscriptOpenError, TranscriptWriter, TranscriptWriterOptions,
};

use crate::{folder, open, read_all, texts};

#[test]
fn appended_lines_are_read_back_in_order() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    let mut log = open(&path);
    log.append(br#"{"n":1}"#).unwrap();
    log.append_all(&[br#"{"n":2}"#, br#"{"n":3}"#]).unwrap();
    assert_eq!(log.end(), 24);
    log.close().unwrap();
    let mut log = open(&path);
    log.append(br#"{"n":4}"#).unwrap();
    let (records, faults) = read_all(&path);
    assert_eq!(texts(&records), [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#, r#"{"n":4}"#]);
    assert_eq!(faults, []);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn no_lines_at_all_are_appended_without_a_trace() {
    let (_temp, folder) = folder();
    let mut log = open(&folder.join("job.jsonl"));
    log.append_all(&[]).unwrap();
    assert_eq!(log.end(), 0);
}

#[test]
fn a_batch_larger_than_one_write_is_appended_whole() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    let line = format!(r#"{{"text":"{}"}}"#, "x".repeat(1_500_000));
    open(&path).append_all(&[line.as_bytes(); 7]).unwrap();
    assert_eq!(texts(&read_all(&path).0), [line.as_str(); 7]);
}

#[test]
fn lines_that_readers_would_not_show_are_refused_before_anything_is_written() {
    let (_temp, folder) = folder();
    let mut log = open(&folder.join("job.jsonl"));
    for bad in
        [&b"{}\n"[..], b"{}\n{}", b"", b" ", b"[]", b"{}{}", b"{", b"{}\0", b"{\"a\":\"\xff\"}"]
    {
        let error = log.append_all(&[b"{}", bad]).unwrap_err();
        assert!(matches!(error, AppendError::NotARecord { .. }), "{bad:?}: {error}");
    }
    assert_eq!(log.end(), 0);
}

#[test]
fn the_longest_line_is_taken_and_a_longer_one_refused() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    let mut log = open(&path);
    let mut line = vec![b' '; LINE_BYTES_MAX + 1];
    line[..2].copy_from_slice(b"{}");
    let error = log.append(&line).unwrap_err();
    assert!(matches!(error, AppendError::TooLong { .. }), "{error}");
    log.append(&line[..LINE_BYTES_MAX]).unwrap();
    assert_eq!(texts(&read_all(&path).0), ["{}"]);
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    let mut first = open(&path);
    first.append(b"{}").unwrap();
    let error = TranscriptWriter::open(&path, TranscriptWriterOptions::default()).unwrap_err();
    assert!(matches!(error, TranscriptOpenError::Busy { .. }), "{error}");
    // The background sync still knows the log; its lock goes with the log all the same.
    drop(first);
    open(&path).append(b"{}").unwrap();
    assert_eq!(texts(&read_all(&path).0), ["{}", "{}"]);
}

#[test]
fn a_folder_in_place_of_the_file_is_refused() {
    let (_temp, folder) = folder();
    let error = TranscriptWriter::open(&folder, TranscriptWriterOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open {folder}"));
}

#[test]
fn a_dangling_link_is_refused() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    std::os::unix::fs::symlink(folder.join("missing/file"), &path).unwrap();
    let error = TranscriptWriter::open(&path, TranscriptWriterOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open {path}"));
}

#[test]
fn a_torn_tail_is_cut_before_the_first_append_and_kept_beside() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    std::fs::write(&path, "{\"n\":1}\n{\"n\":").unwrap();
    let opened = TranscriptWriter::open(&path, TranscriptWriterOptions::default()).unwrap();
    let kept = folder.join("job.jsonl.torn.8");
    assert_eq!(
        opened.repair,
        Some(TailRepair::TornTailMoved { offset: 8, len: 5, saved_to: kept.clone() })
    );
    let mut log = opened.writer;
    log.append(br#"{"n":2}"#).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"{\"n\":1}\n{\"n\":2}\n");
    assert_eq!(std::fs::read(&kept).unwrap(), b"{\"n\":");
}

#[test]
fn bytes_kept_by_an_earlier_repair_are_not_overwritten() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    for torn in ["{\"first", "\0\0\0"] {
        std::fs::write(&path, torn).unwrap();
        drop(open(&path));
    }
    assert_eq!(std::fs::read(folder.join("job.jsonl.torn.0")).unwrap(), b"{\"first");
    assert_eq!(std::fs::read(folder.join("job.jsonl.torn.0.1")).unwrap(), b"\0\0\0");
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[test]
fn a_whole_record_without_its_newline_is_completed() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    std::fs::write(&path, "{\"n\":1}\n{\"n\":2}").unwrap();
    let opened = TranscriptWriter::open(&path, TranscriptWriterOptions::default()).unwrap();
    assert_eq!(opened.repair, Some(TailRepair::NewlineAdded { offset: 8 }));
    assert_eq!(std::fs::read(&path).unwrap(), b"{\"n\":1}\n{\"n\":2}\n");
}

#[test]
fn a_large_torn_tail_is_kept_whole() {
    let (_temp, folder) = folder();
    let path = folder.join("job.jsonl");
    let torn: Vec<u8> = (0..300_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    std::fs::write(&path, [b"{}\n", &torn[..]].concat()).unwrap();
    drop(open(&path));
    assert_eq!(std::fs::read(folder.join("job.jsonl.torn.3")).unwrap(), torn);
    assert_eq!(std::fs::read(&path).unwrap(), b"{}\n");
}

#[test]
fn both_durabilities_write_the_same_bytes() {
    let (_temp, folder) = folder();
    for durability in [TranscriptDurability::Event, TranscriptDurability::Interval] {
        let path = folder.join(format!("{durability:?}"));
        let options = TranscriptWriterOptions { durability, ..TranscriptWriterOptions::default() };
        let mut log = TranscriptWriter::open(&path, options).unwrap().writer;
        log.append(b"{}").unwrap();
        log.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"{}\n");
    }
}

/// A disk on which a new file is replaced by another before its creator can lock it.
#[derive(Debug, Default)]
struct Swapping {
    swapped: AtomicBool,
}

impl DiskHook for Swapping {
    fn after_create(&self, path: &Utf8Path) -> io::Result<()> {
        if !self.swapped.swap(true, Ordering::SeqCst) {
            OsDisk.remove(path)?;
            drop(OsDisk.create(path)?);
        }
        Ok(())
    }
}

#[test]
fn a_lock_on_a_file_that_lost_its_name_is_not_trusted() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let options = TranscriptWriterOptions {
        disk: Arc::new(HookedDisk::<Swapping>::default()),
        ..TranscriptWriterOptions::default()
    };
    let mut log = TranscriptWriter::open(&path, options).unwrap().writer;
    let error = TranscriptWriter::open(&path, TranscriptWriterOptions::default()).unwrap_err();
    assert!(matches!(error, TranscriptOpenError::Busy { .. }), "{error}");
    log.append(b"{}").unwrap();
    assert_eq!(texts(&read_all(&path).0), ["{}"]);
}
