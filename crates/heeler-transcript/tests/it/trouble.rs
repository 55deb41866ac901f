//! A full or broken disk at every call that writes.

use std::sync::Arc;

use camino::Utf8Path;
use heeler_testkit::{SimDisk, SimulatedFault, WAIT_MAX};
use heeler_transcript::{
    AppendError, CopyLimit, TranscriptDurability, TranscriptFaultKind, TranscriptWriter,
    TranscriptWriterOptions, copy_prefix, replace_file, replace_files,
};

use crate::{folder, read_all, texts};

/// How long the trouble lasts.
#[derive(Debug, Clone, Copy)]
enum Lasts {
    OneCall,
    UntilHealed,
}

/// Runs `act` on a fresh folder with trouble at its first call that writes, then at its second,
/// and so on, until it makes no more calls.
fn at_every_call(prepare: impl Fn(&Utf8Path), act: impl Fn(&Arc<SimDisk>, &Utf8Path, &str)) {
    for trouble in SimulatedFault::ALL {
        for lasts in [Lasts::OneCall, Lasts::UntilHealed] {
            for call in 0.. {
                let (_temp, root) = folder();
                prepare(&root);
                let disk = Arc::new(SimDisk::new(&root));
                match lasts {
                    Lasts::OneCall => disk.fail_at(call, trouble),
                    Lasts::UntilHealed => disk.fail_from(call, trouble),
                }
                act(&disk, &root, &format!("{trouble:?} at call {call}, {lasts:?}"));
                if disk.calls() <= call {
                    break;
                }
            }
        }
    }
}

/// Appends through trouble as a runner would: an error is waited out, a dead log reopened.
struct Writer<'a> {
    disk: &'a Arc<SimDisk>,
    root: &'a Utf8Path,
    durability: TranscriptDurability,
    log: Option<TranscriptWriter>,
    acknowledged: Vec<String>,
    failures: usize,
}

impl Writer<'_> {
    fn open(&mut self) -> bool {
        if self.log.is_none() {
            let disk = Arc::clone(self.disk);
            let options = TranscriptWriterOptions { durability: self.durability, disk };
            match TranscriptWriter::open(&self.root.join("a.jsonl"), options) {
                Ok(opened) => self.log = Some(opened.writer),
                Err(_) => self.failures += 1,
            }
        }
        self.log.is_some()
    }

    fn append(&mut self, lines: &[&str], case: &str) {
        if !self.open() {
            return;
        }
        let log = self.log.as_mut().expect("it was opened");
        let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let result = log.append_all(&bytes);
        let appended = match &result {
            Ok(()) => lines.len(),
            Err(AppendError::Write { appended, .. }) => *appended,
            Err(_) => 0,
        };
        self.acknowledged.extend(lines[..appended].iter().map(|&line| line.to_owned()));
        if let Err(error) = result {
            self.failures += 1;
            let dead = !matches!(error, AppendError::Write { .. });
            let (_, faults) = read_all(log.path());
            if !matches!(error, AppendError::HalfLine { .. }) {
                assert_eq!(faults, [], "{case}: a half line remains after {error}");
            }
            assert!(
                faults.iter().all(|fault| fault.kind == TranscriptFaultKind::TornTail),
                "{case}"
            );
            if dead {
                let again = log.append(b"{}").unwrap_err();
                assert!(matches!(again, AppendError::Sync(_)), "{case}: {again}");
                self.log = None;
            }
        }
    }
}

fn check_appends(durability: TranscriptDurability, prepare: impl Fn(&Utf8Path)) {
    at_every_call(prepare, |disk, root, case| {
        let log = None;
        let mut writer =
            Writer { disk, root, durability, log, acknowledged: Vec::new(), failures: 0 };
        writer.append(&[r#"{"n":1}"#], case);
        writer.append(&[r#"{"n":2}"#, r#"{"n":3}"#, r#"{"n":4}"#], case);
        if let Some(log) = &mut writer.log
            && log.sync().is_err()
        {
            writer.failures += 1;
            writer.log = None;
        }
        disk.clear_faults();
        let failed = writer.failures;
        writer.append(&[r#"{"n":5}"#], case);
        writer.append(&[r#"{"n":6}"#], case);
        assert_eq!(writer.failures, failed, "{case}: appending does not go on");
        let (records, faults) = read_all(&root.join("a.jsonl"));
        assert_eq!(faults, [], "{case}");
        let mut found = texts(&records).into_iter();
        for line in &writer.acknowledged {
            assert!(found.any(|text| text == line), "{case}: {line} is lost or out of order");
        }
    });
}

#[test]
fn proof_trouble_at_any_call_loses_no_acknowledged_line_and_leaves_no_half_line() {
    check_appends(TranscriptDurability::Event, |_| ());
    check_appends(TranscriptDurability::Interval, |_| ());
}

#[test]
fn proof_trouble_at_any_call_of_a_repair_loses_no_byte() {
    let torn = |root: &Utf8Path| std::fs::write(root.join("a.jsonl"), "{}\n{\"torn").unwrap();
    check_appends(TranscriptDurability::Event, torn);
    check_appends(TranscriptDurability::Interval, torn);
    at_every_call(torn, |disk, root, case| {
        let options = TranscriptWriterOptions {
            durability: TranscriptDurability::Event,
            disk: Arc::clone(disk) as _,
        };
        drop(TranscriptWriter::open(&root.join("a.jsonl"), options));
        let log = std::fs::read(root.join("a.jsonl")).unwrap();
        let kept = std::fs::read(root.join("a.jsonl.torn.3")).unwrap_or_default();
        assert!(log.ends_with(b"{\"torn") || kept == b"{\"torn", "{case}");
        assert!(log.starts_with(b"{}\n"), "{case}");
    });
}

#[test]
fn proof_trouble_at_any_call_of_a_replacement_leaves_the_old_file_or_the_new_one() {
    let old = |root: &Utf8Path| std::fs::write(root.join("view.yaml"), "old").unwrap();
    at_every_call(old, |disk, root, case| {
        let path = root.join("view.yaml");
        let result = replace_file(disk.as_ref(), &path, b"new content");
        let found = std::fs::read(&path).unwrap();
        assert!(found == b"old" || found == b"new content", "{case}: {found:?}");
        assert!(result.is_err() || found == b"new content", "{case}");
        disk.clear_faults();
        replace_file(disk.as_ref(), &path, b"newer").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"newer", "{case}");
    });
}

#[test]
fn proof_trouble_at_any_call_of_many_replacements_is_told_for_the_files_it_concerns() {
    let names = ["one", "two", "three"];
    let old = |root: &Utf8Path| {
        names.iter().for_each(|name| std::fs::write(root.join(name), "old").unwrap());
    };
    at_every_call(old, |disk, root, case| {
        let files = names.map(|name| (root.join(name), b"new".to_vec()));
        let results = replace_files(disk.as_ref(), &files, &|_| Ok(()));
        for ((path, _), result) in files.iter().zip(results) {
            let found = std::fs::read(path).unwrap();
            assert!(found == b"old" || found == b"new", "{case}: {found:?}");
            assert!(result.is_err() || found == b"new", "{case}");
        }
        disk.clear_faults();
        replace_files(disk.as_ref(), &files, &|_| Ok(())).into_iter().for_each(Result::unwrap);
    });
}

#[test]
fn a_failed_replacement_leaves_no_temp_file() {
    for call in 0..4 {
        let (_temp, root) = folder();
        let disk = SimDisk::new(&root);
        disk.fail_at(call, SimulatedFault::Full);
        replace_file(&disk, &root.join("result.json"), b"{}").unwrap_err();
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0, "call {call}");
    }
}

#[test]
fn proof_trouble_at_any_call_of_a_copy_leaves_no_half_copy() {
    let source = |root: &Utf8Path| std::fs::write(root.join("a.jsonl"), "{}\n{}\n{}\n").unwrap();
    at_every_call(source, |disk, root, case| {
        let copy = root.join("b.jsonl");
        let result = copy_prefix(disk.as_ref(), &root.join("a.jsonl"), &copy, CopyLimit::Line(2));
        match std::fs::read(&copy) {
            Ok(found) => assert_eq!(found, b"{}\n{}\n", "{case}"),
            Err(_) => assert!(result.is_err(), "{case}"),
        }
    });
}

#[test]
fn a_failed_sync_is_not_retried_and_the_log_takes_no_more_lines() {
    let (_temp, root) = folder();
    let disk = Arc::new(SimDisk::new(&root));
    let options = TranscriptWriterOptions {
        durability: TranscriptDurability::Event,
        disk: Arc::clone(&disk) as _,
    };
    let mut log = TranscriptWriter::open(&root.join("a.jsonl"), options).unwrap().writer;
    disk.fail_at(disk.calls() + 1, SimulatedFault::Broken);
    let error = log.append(b"{}").unwrap_err();
    assert!(error.to_string().starts_with("cannot sync transcript"), "{error}");
    let calls = disk.calls();
    let error = log.append(b"{}").unwrap_err();
    assert!(error.to_string().contains("accepts no more lines because a sync failed"), "{error}");
    log.sync().unwrap_err();
    drop(log);
    assert_eq!(disk.calls(), calls, "something was tried again");
}

#[test]
fn a_failed_background_sync_stops_the_log() {
    let (_temp, root) = folder();
    let disk = Arc::new(SimDisk::new(&root));
    let options = TranscriptWriterOptions {
        durability: TranscriptDurability::Interval,
        disk: Arc::clone(&disk) as _,
    };
    let mut log = TranscriptWriter::open(&root.join("a.jsonl"), options).unwrap().writer;
    let before = disk.calls();
    disk.fail_at(before + 1, SimulatedFault::Broken);
    log.append(b"{}").unwrap();
    let started = std::time::Instant::now();
    while disk.calls() < before + 2 {
        assert!(started.elapsed() < WAIT_MAX, "no background sync came");
        std::thread::yield_now();
    }
    let error = loop {
        // The call is counted a moment before its failure is known.
        if let Err(error) = log.append(b"{}") {
            break error;
        }
    };
    assert!(error.to_string().contains("accepts no more lines because a sync failed"), "{error}");
}

#[test]
fn dirty_logs_are_synced_without_being_asked() {
    let (_temp, root) = folder();
    let disk = Arc::new(SimDisk::new(&root));
    let mut logs: Vec<TranscriptWriter> = (0..3)
        .map(|n| {
            let options = TranscriptWriterOptions {
                durability: TranscriptDurability::Interval,
                disk: Arc::clone(&disk) as _,
            };
            TranscriptWriter::open(&root.join(format!("{n}.jsonl")), options).unwrap().writer
        })
        .collect();
    // The second time, the logs have been synced before.
    for _ in 0..2 {
        let before = disk.calls();
        let started = std::time::Instant::now();
        for log in &mut logs {
            log.append(b"{}").unwrap();
            log.append(b"{}").unwrap();
        }
        // Six writes, and one sync for each log.
        while disk.calls() < before + 9 {
            // The sync is due after half a second; a busy machine may be late.
            assert!(started.elapsed() < WAIT_MAX, "no sync came");
            std::thread::yield_now();
        }
    }
}

#[test]
fn whole_lines_of_a_short_write_stay_since_readers_may_have_seen_them() {
    let (_temp, root) = folder();
    let path = root.join("a.jsonl");
    let disk = Arc::new(SimDisk::new(&root));
    let options = TranscriptWriterOptions {
        durability: TranscriptDurability::Event,
        disk: Arc::clone(&disk) as _,
    };
    let mut log = TranscriptWriter::open(&path, options).unwrap().writer;
    disk.fail_at(disk.calls(), SimulatedFault::Short);
    // Half of the write is the first two lines and a part of the third.
    let lines: [&[u8]; 5] = [b"{\"n\":0}", b"{\"n\":1}", b"{\"n\":2}", b"{\"n\":3}", b"{\"n\":4}"];
    let error = log.append_all(&lines).unwrap_err();
    let AppendError::Write { appended, source, .. } = error else { panic!("{error}") };
    assert_eq!(appended, 2);
    assert_eq!(source.to_string(), "only 20 of 40 bytes were written; the disk may be full");
    assert_eq!(std::fs::read(&path).unwrap(), b"{\"n\":0}\n{\"n\":1}\n");
    log.append_all(&lines[appended..]).unwrap();
    assert_eq!(read_all(&path).0.len(), 5);
}

#[test]
fn what_another_process_wrote_is_not_cut_off() {
    let (_temp, root) = folder();
    let path = root.join("a.jsonl");
    let disk = Arc::new(SimDisk::new(&root));
    let options = TranscriptWriterOptions {
        durability: TranscriptDurability::Interval,
        disk: Arc::clone(&disk) as _,
    };
    let mut log = TranscriptWriter::open(&path, options).unwrap().writer;
    log.append(b"{}").unwrap();
    // Someone who does not ask for the lock.
    std::fs::write(&path, "{}\n{}\n").unwrap();
    disk.fail_at(disk.calls(), SimulatedFault::Torn);
    let error = log.append(b"{\"mine\":1}").unwrap_err();
    assert!(matches!(error, AppendError::HalfLine { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"{}\n{}\n{\"min");
}
