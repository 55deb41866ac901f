//! Power loss at any moment: every state that the disk may be left in is opened again.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_testkit::{CrashState, SimDisk};
use heeler_transcript::{
    CopyLimit, DiskBackend, DiskError, PlacedFiles, TranscriptDurability, TranscriptWriter,
    TranscriptWriterOptions, copy_prefix, create_folder, place_files, replace_file, replace_files,
    sync_files,
};

use crate::{folder, open, read_all, texts};

const LINES: [&str; 4] =
    [r#"{"n":0}"#, r#"{"n":1}"#, r#"{"n":2,"text":"longer than the others"}"#, r#"{"n":3}"#];

fn start(prepare: impl Fn(&Utf8Path)) -> (tempfile::TempDir, camino::Utf8PathBuf, Arc<SimDisk>) {
    let (temp, root) = folder();
    prepare(&root);
    let disk = Arc::new(SimDisk::new(&root));
    (temp, root, disk)
}

fn options(disk: &Arc<SimDisk>, durability: TranscriptDurability) -> TranscriptWriterOptions {
    TranscriptWriterOptions { durability, disk: Arc::clone(disk) as _ }
}

/// The marks are the numbers of lines that were promised to survive.
fn check_log(crash: &CrashState) {
    let path = crash.root.join("a.jsonl");
    let after = crash.after;
    if !path.exists() {
        assert!(crash.marks.is_empty(), "the log is gone after {after} operations");
        return;
    }
    let promised: Vec<&str> =
        crash.marks.iter().map(|&n| LINES[usize::try_from(n).unwrap()]).collect();
    // Before the repair, and after it.
    for _ in 0..2 {
        let (records, _) = read_all(&path);
        let found = texts(&records);
        assert!(found.starts_with(&promised), "after {after}: {promised:?} became {found:?}");
        assert!(found.iter().all(|text| LINES.contains(text)), "after {after}: {found:?}");
        drop(open(&path));
    }
    let (_, faults_before) = read_all(&path);
    open(&path).append(b"{}").unwrap();
    let (records, faults) = read_all(&path);
    assert_eq!(records.last().unwrap().text, "{}", "after {after}");
    assert_eq!(faults, faults_before, "the append is not clean after {after} operations");
}

#[test]
fn proof_power_loss_costs_no_line_that_was_acknowledged_per_event() {
    let (_temp, root, disk) = start(|_| ());
    let path = root.join("a.jsonl");
    let mut log =
        TranscriptWriter::open(&path, options(&disk, TranscriptDurability::Event)).unwrap().writer;
    for (n, line) in (0..).zip(&LINES[..2]) {
        log.append(line.as_bytes()).unwrap();
        disk.mark(n);
    }
    drop(log);
    let mut log =
        TranscriptWriter::open(&path, options(&disk, TranscriptDurability::Event)).unwrap().writer;
    log.append_all(&[LINES[2].as_bytes(), LINES[3].as_bytes()]).unwrap();
    disk.mark(2);
    disk.mark(3);
    drop(log);
    let states = disk.crashes(&mut check_log);
    assert!(states > 30, "only {states} states");
}

#[test]
fn proof_power_loss_costs_only_unsynced_lines_with_interval_sync() {
    let (_temp, root, disk) = start(|_| ());
    let path = root.join("a.jsonl");
    let mut log = TranscriptWriter::open(&path, options(&disk, TranscriptDurability::Interval))
        .unwrap()
        .writer;
    log.append(LINES[0].as_bytes()).unwrap();
    log.append(LINES[1].as_bytes()).unwrap();
    log.sync().unwrap();
    disk.mark(0);
    disk.mark(1);
    log.append(LINES[2].as_bytes()).unwrap();
    log.append(LINES[3].as_bytes()).unwrap();
    drop(log);
    disk.mark(2);
    disk.mark(3);
    let states = disk.crashes(&mut check_log);
    assert!(states > 30, "only {states} states");
}

#[test]
fn proof_what_a_killed_writer_left_unsynced_is_synced_by_the_next_open() {
    let (_temp, root, disk) = start(|_| ());
    let path = root.join("a.jsonl");
    // As a writer killed before any sync leaves it: created and written, nothing else.
    let file = disk.create(&path).unwrap();
    disk.write(&file, format!("{}\n", LINES[0]).as_bytes()).unwrap();
    let mut log =
        TranscriptWriter::open(&path, options(&disk, TranscriptDurability::Event)).unwrap().writer;
    disk.mark(0);
    log.append(LINES[1].as_bytes()).unwrap();
    disk.mark(1);
    drop(log);
    disk.crashes(&mut check_log);
}

#[test]
fn proof_power_loss_during_a_repair_loses_no_byte() {
    let torn = b"{\"n\":1,\"te";
    let (_temp, root, disk) = start(|root| {
        let bytes = [LINES[0].as_bytes(), b"\n", torn].concat();
        std::fs::write(root.join("a.jsonl"), bytes).unwrap();
    });
    disk.mark(0);
    let path = root.join("a.jsonl");
    let mut log =
        TranscriptWriter::open(&path, options(&disk, TranscriptDurability::Event)).unwrap().writer;
    log.append(LINES[1].as_bytes()).unwrap();
    disk.mark(1);
    drop(log);
    let states = disk.crashes(&mut |crash| {
        let log = std::fs::read(crash.root.join("a.jsonl")).unwrap();
        let kept = std::fs::read(crash.root.join("a.jsonl.torn.8")).unwrap_or_default();
        assert!(log.ends_with(torn) || kept == torn, "lost after {}", crash.after);
        check_log(crash);
    });
    assert!(states > 10, "only {states} states");
}

#[test]
fn proof_power_loss_during_a_replacement_leaves_the_old_view_or_the_new_one() {
    let (_temp, root, disk) = start(|root| std::fs::write(root.join("view"), "old").unwrap());
    for (mark, text) in (1..).zip(["first", "second"]) {
        replace_file(disk.as_ref(), &root.join("view"), text.as_bytes()).unwrap();
        disk.mark(mark);
    }
    let states = disk.crashes(&mut |crash| {
        let found = std::fs::read_to_string(crash.root.join("view")).unwrap();
        let allowed = match crash.marks.len() {
            0 => &["old", "first"][..],
            1 => &["first", "second"],
            _ => &["second"],
        };
        assert!(allowed.contains(&found.as_str()), "{found:?} after {}", crash.after);
    });
    assert!(states > 10, "only {states} states");
}

#[test]
fn proof_power_loss_during_many_replacements_leaves_each_file_old_or_new() {
    let names = ["a/one", "a/two", "b/three"];
    let (_temp, root, disk) = start(|root| {
        for name in names {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), "old").unwrap();
        }
    });
    let files = names.map(|name| (root.join(name), b"new".to_vec()));
    replace_files(disk.as_ref(), &files, &|_| Ok(())).into_iter().for_each(Result::unwrap);
    disk.mark(1);
    let states = disk.crashes(&mut |crash| {
        for name in names {
            let found = std::fs::read_to_string(crash.root.join(name)).unwrap();
            let is_new = found == "new";
            assert!(is_new || found == "old", "{name}: {found:?} after {}", crash.after);
            assert!(is_new || crash.marks.is_empty(), "{name} lost after {}", crash.after);
        }
    });
    assert!(states > 10, "only {states} states");
}

#[test]
fn proof_placed_files_are_durable_once_they_are_synced() {
    check_placed_files(&|_, _, placed| placed.sync());
}

#[test]
fn proof_placed_files_are_durable_once_they_are_synced_by_name() {
    check_placed_files(&|disk, files, placed| {
        placed.leave_unsynced().into_iter().for_each(Result::unwrap);
        let paths: Vec<_> = files.iter().map(|(path, _)| path.clone()).collect();
        sync_files(disk, &paths)
    });
}

type SyncStep = dyn Fn(
    &dyn DiskBackend,
    &[(Utf8PathBuf, Vec<u8>)],
    PlacedFiles<'_>,
) -> Vec<Result<(), DiskError>>;

fn check_placed_files(sync: &SyncStep) {
    let (_temp, root, disk) = start(|root| {
        std::fs::write(root.join("kept"), "old").unwrap();
        std::fs::write(root.join("own"), "old").unwrap();
    });
    let files = ["kept", "own", "new"].map(|name| (root.join(name), b"next".to_vec()));
    let placed = place_files(disk.as_ref(), &files, &|number| number == 0, &|_| Ok(()));
    for (path, bytes) in &files {
        assert_eq!(std::fs::read(path).unwrap(), *bytes, "{path} has its bytes before the sync");
    }
    sync(disk.as_ref(), &files, placed).into_iter().for_each(Result::unwrap);
    disk.mark(1);
    let states = disk.crashes(&mut |crash| {
        let found = |name: &str| std::fs::read_to_string(crash.root.join(name));
        let kept = found("kept").unwrap();
        assert!(["old", "next"].contains(&kept.as_str()), "{kept:?} after {}", crash.after);
        if crash.marks.is_empty() {
            return;
        }
        for name in ["kept", "own", "new"] {
            assert_eq!(found(name).unwrap(), "next", "{name} after {}", crash.after);
        }
    });
    assert!(states > 10, "only {states} states");
}

#[test]
fn proof_power_loss_never_leaves_half_a_result() {
    let (_temp, root, disk) = start(|_| ());
    let run = root.join("runs/run-1");
    create_folder(disk.as_ref(), &run).unwrap();
    disk.mark(0);
    replace_file(disk.as_ref(), &run.join("result.json"), br#"{"ok":true}"#).unwrap();
    disk.mark(1);
    let states = disk.crashes(&mut |crash| {
        let run = crash.root.join("runs/run-1");
        assert!(crash.marks.is_empty() || run.is_dir(), "after {}", crash.after);
        match std::fs::read(run.join("result.json")) {
            Ok(found) => assert_eq!(found, br#"{"ok":true}"#, "after {}", crash.after),
            Err(_) => assert!(crash.marks.len() < 2, "lost after {}", crash.after),
        }
    });
    assert!(states > 10, "only {states} states");
}

#[test]
fn proof_power_loss_never_leaves_half_a_copy() {
    let (_temp, root, disk) = start(|root| {
        std::fs::write(root.join("a.jsonl"), LINES.join("\n") + "\n").unwrap();
    });
    let copy = root.join("b.jsonl");
    copy_prefix(disk.as_ref(), &root.join("a.jsonl"), &copy, CopyLimit::Line(2)).unwrap();
    disk.mark(0);
    disk.crashes(&mut |crash| match std::fs::read_to_string(crash.root.join("b.jsonl")) {
        Ok(found) => assert_eq!(found, LINES[..2].join("\n") + "\n", "after {}", crash.after),
        Err(_) => assert!(crash.marks.is_empty(), "lost after {}", crash.after),
    });
}

#[test]
fn proof_a_folder_whose_creator_was_killed_survives_once_it_is_asked_for_again() {
    let (_temp, root, disk) = start(|_| ());
    disk.create_folder(&root.join("jobs")).unwrap();
    create_folder(disk.as_ref(), &root.join("jobs")).unwrap();
    disk.mark(0);
    disk.crashes(&mut |crash| {
        assert!(crash.marks.is_empty() || crash.root.join("jobs").is_dir(), "{crash:?}");
    });
}
