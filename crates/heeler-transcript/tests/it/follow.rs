//! Followers: every record once, in order, whatever happens to the file.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_testkit::{ProofSettings, WAIT_MAX};
use heeler_transcript::{
    FollowRestartReason, FollowStart, FollowUpdate, LockFile, LockHolder, OsDisk,
    TranscriptFaultKind, TranscriptFollower, TranscriptWriter, TranscriptWriterOptions, read_tail,
    replace_file,
};

use jiff::Timestamp;

use crate::{folder, open};

const NOW: Duration = Duration::ZERO;

#[track_caller]
fn next_text(follower: &mut TranscriptFollower) -> String {
    match follower.next(WAIT_MAX).unwrap() {
        Some(FollowUpdate::Record { record, .. }) => record.text,
        other => panic!("not a record: {other:?}"),
    }
}

fn append(path: &Utf8Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn follow(path: &Utf8Path, start: FollowStart) -> TranscriptFollower {
    let mut follower = TranscriptFollower::new();
    assert_eq!(follower.add(path, start), 0);
    follower
}

#[test]
fn records_are_told_from_the_start_that_was_asked_for() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "{\"n\":1}\n{\"n\":2}\n");
    let mut all = follow(&path, FollowStart::Beginning);
    let mut new = follow(&path, FollowStart::End);
    let mut some = follow(&path, FollowStart::Offset(read_tail(&path, 1).unwrap().start));
    assert_eq!(next_text(&mut all), r#"{"n":1}"#);
    assert_eq!(next_text(&mut all), r#"{"n":2}"#);
    assert_eq!(new.next(NOW).unwrap(), None);
    assert_eq!(next_text(&mut some), r#"{"n":2}"#);
    append(&path, "{\"n\":3}\n");
    for follower in [&mut all, &mut new, &mut some] {
        assert_eq!(next_text(follower), r#"{"n":3}"#);
        assert_eq!(follower.next(NOW).unwrap(), None);
    }
}

#[test]
fn the_end_to_start_from_is_that_of_the_moment_it_was_asked_for() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "{\"n\":1}\n{\"n\":");
    let mut follower = follow(&path, FollowStart::End);
    append(&path, "2}\n");
    assert_eq!(next_text(&mut follower), r#"{"n":2}"#);
}

#[test]
fn a_bare_tail_waits_for_its_newline() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "{\"n\"");
    let mut follower = follow(&path, FollowStart::Beginning);
    assert_eq!(follower.next(NOW).unwrap(), None);
    append(&path, ":1}");
    assert_eq!(follower.next(Duration::from_millis(20)).unwrap(), None);
    append(&path, "\n");
    assert_eq!(next_text(&mut follower), r#"{"n":1}"#);
}

#[test]
fn a_torn_tail_that_is_cut_off_is_never_told() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "{}\n{\"torn\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    let mut follower = follow(&path, FollowStart::Beginning);
    assert_eq!(next_text(&mut follower), "{}");
    assert_eq!(follower.next(NOW).unwrap(), None);
    open(&path).append(br#"{"n":2}"#).unwrap();
    assert_eq!(next_text(&mut follower), r#"{"n":2}"#);
    assert_eq!(follower.next(NOW).unwrap(), None);
}

#[test]
fn faults_are_told_between_the_records() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "\0\0{\"n\":1}\n");
    let mut follower = follow(&path, FollowStart::Beginning);
    let first = follower.next(WAIT_MAX).unwrap();
    let Some(FollowUpdate::Fault { file: 0, fault }) = first else { panic!("{first:?}") };
    assert_eq!((fault.offset, fault.len, fault.kind), (0, 2, TranscriptFaultKind::Nul));
    assert_eq!(next_text(&mut follower), r#"{"n":1}"#);
}

#[test]
fn a_file_that_does_not_exist_yet_is_waited_for() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let mut follower = follow(&path, FollowStart::End);
    assert_eq!(follower.next(NOW).unwrap(), None);
    open(&path).append(br#"{"n":1}"#).unwrap();
    assert_eq!(next_text(&mut follower), r#"{"n":1}"#);
}

#[test]
fn a_folder_that_does_not_exist_yet_is_waited_for() {
    let (_temp, folder) = folder();
    let path = folder.join("later/a.jsonl");
    let mut follower = follow(&path, FollowStart::Beginning);
    assert_eq!(follower.next(NOW).unwrap(), None);
    std::fs::create_dir(folder.join("later")).unwrap();
    append(&path, "{\"n\":1}\n");
    assert_eq!(next_text(&mut follower), r#"{"n":1}"#);
    append(&path, "{\"n\":2}\n");
    assert_eq!(next_text(&mut follower), r#"{"n":2}"#);
}

#[test]
fn a_caller_that_never_waits_gets_polled_files_too() {
    let (_temp, folder) = folder();
    let mut follower = follow(&folder.join("later/a.jsonl"), FollowStart::Beginning);
    assert_eq!(follower.next(NOW).unwrap(), None);
    std::fs::create_dir(folder.join("later")).unwrap();
    append(&folder.join("later/a.jsonl"), "{}\n");
    let started = Instant::now();
    while follower.next(NOW).unwrap().is_none() {
        assert!(started.elapsed() < WAIT_MAX, "never polled");
        std::thread::yield_now();
    }
}

#[test]
fn a_link_that_is_pointed_elsewhere_is_noticed() {
    let (_temp, folder) = folder();
    let (link, new_link) = (folder.join("link.jsonl"), folder.join("new"));
    append(&folder.join("a.jsonl"), "{\"a\":1}\n");
    append(&folder.join("b.jsonl"), "{\"b\":1}\n");
    std::os::unix::fs::symlink(folder.join("a.jsonl"), &link).unwrap();
    let mut follower = follow(&link, FollowStart::Beginning);
    assert_eq!(next_text(&mut follower), r#"{"a":1}"#);
    append(&folder.join("a.jsonl"), "{\"a\":2}\n");
    assert_eq!(next_text(&mut follower), r#"{"a":2}"#);
    std::os::unix::fs::symlink(folder.join("b.jsonl"), &new_link).unwrap();
    std::fs::rename(&new_link, &link).unwrap();
    let restarted = FollowUpdate::Restarted { file: 0, reason: FollowRestartReason::Replaced };
    assert_eq!(follower.next(WAIT_MAX).unwrap(), Some(restarted));
    assert_eq!(next_text(&mut follower), r#"{"b":1}"#);
}

#[test]
fn a_replaced_file_is_read_from_its_beginning() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "{\"n\":1}\n{\"to");
    let mut follower = follow(&path, FollowStart::Beginning);
    assert_eq!(next_text(&mut follower), r#"{"n":1}"#);
    replace_file(&heeler_transcript::OsDisk, &path, b"{\"new\":1}\n").unwrap();
    let torn = follower.next(WAIT_MAX).unwrap();
    let Some(FollowUpdate::Fault { fault, .. }) = torn else { panic!("{torn:?}") };
    assert_eq!((fault.offset, fault.kind), (8, TranscriptFaultKind::TornTail));
    let restarted = FollowUpdate::Restarted { file: 0, reason: FollowRestartReason::Replaced };
    assert_eq!(follower.next(WAIT_MAX).unwrap(), Some(restarted));
    assert_eq!(next_text(&mut follower), r#"{"new":1}"#);
    append(&path, "{\"new\":2}\n");
    assert_eq!(next_text(&mut follower), r#"{"new":2}"#);
}

#[test]
fn a_file_that_was_removed_and_comes_again_is_read_from_its_beginning() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "{\"n\":1}\n");
    let mut follower = follow(&path, FollowStart::Beginning);
    assert_eq!(next_text(&mut follower), r#"{"n":1}"#);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(follower.next(NOW).unwrap(), None);
    append(&path, "{\"n\":2}\n");
    let restarted = FollowUpdate::Restarted { file: 0, reason: FollowRestartReason::Replaced };
    assert_eq!(follower.next(WAIT_MAX).unwrap(), Some(restarted));
    assert_eq!(next_text(&mut follower), r#"{"n":2}"#);
}

#[test]
fn a_file_rewritten_in_place_is_noticed_even_if_it_is_longer() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    append(&path, "{\"n\":1}\n{\"n\":2}\n");
    for rewritten in ["{\"m\":1}\n", "{\"longer\":\"than before\"}\n{\"x\":1}\n{\"x\":2}\n"] {
        let mut follower = follow(&path, FollowStart::End);
        assert_eq!(follower.next(NOW).unwrap(), None);
        std::fs::write(&path, rewritten).unwrap();
        let restarted = FollowUpdate::Restarted { file: 0, reason: FollowRestartReason::Rewritten };
        // A write and a cut are two events, and the follower may come between them.
        let mut shown = Vec::new();
        while shown.len() < rewritten.lines().count() {
            match follower.next(WAIT_MAX).unwrap() {
                Some(FollowUpdate::Record { record, .. }) => shown.push(record.text),
                other => assert_eq!(other, Some(restarted.clone())),
            }
        }
        assert!(shown.iter().eq(rewritten.lines()), "{shown:?}");
    }
}

#[test]
fn another_thread_can_stop_it() {
    let (_temp, folder) = folder();
    let mut follower = follow(&folder.join("a.jsonl"), FollowStart::Beginning);
    let stopper = follower.stopper();
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| stopper.stop());
        assert_eq!(follower.next(Duration::MAX).unwrap(), None);
    });
    assert!(follower.is_stopped());
    assert!(started.elapsed() < WAIT_MAX);
    assert_eq!(follower.next(WAIT_MAX).unwrap(), None);
}

#[test]
fn another_thread_can_end_a_wait_and_the_follower_goes_on() {
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let mut follower = follow(&path, FollowStart::Beginning);
    let waker = follower.waker();
    std::thread::scope(|scope| {
        scope.spawn(|| waker.wake());
        assert_eq!(follower.next(Duration::MAX).unwrap(), None);
    });
    append(&path, "{\"n\":1}\n");
    follower.check_files();
    waker.wake();
    assert!(follower.next(NOW).unwrap().is_some(), "records come before the end of the wait");
    assert_eq!(follower.next(NOW).unwrap(), None);
}

#[test]
fn a_file_that_cannot_be_read_is_told_once_and_the_others_go_on() {
    let (_temp, folder) = folder();
    // A path through a file can never be opened, not even by root.
    append(&folder.join("file"), "");
    let mut follower = TranscriptFollower::new();
    follower.add(&folder.join("file/a.jsonl"), FollowStart::Beginning);
    follower.add(&folder.join("b.jsonl"), FollowStart::Beginning);
    append(&folder.join("b.jsonl"), "{\"n\":1}\n");
    let error = follower.next(WAIT_MAX).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot follow {folder}/file/a.jsonl"));
    assert_eq!(next_text(&mut follower), r#"{"n":1}"#);
    assert_eq!(follower.next(Duration::from_millis(1500)).unwrap(), None);
}

#[test]
fn proof_followers_that_start_at_any_moment_miss_nothing() {
    let proof = ProofSettings::new(100);
    let (_temp, folder) = folder();
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let lines = random.u64(1..300);
        let paths = [folder.join(format!("{round}.a")), folder.join(format!("{round}.b"))];
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(move || {
                    let mut log = TranscriptWriter::open(path, TranscriptWriterOptions::default())
                        .unwrap()
                        .writer;
                    for n in 0..lines {
                        log.append(format!("{{\"n\":{n}}}").as_bytes()).unwrap();
                    }
                });
            }
            for _ in 0..2 {
                let (paths, context) = (&paths, &context);
                let spins = random.u32(0..200_000);
                scope.spawn(move || {
                    (0..spins).for_each(|_| std::hint::spin_loop());
                    check_nothing_is_missed(paths, lines, context);
                });
            }
        });
        paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

/// Waits far less than a poll would take at the end, so events alone must be enough.
fn check_nothing_is_missed(paths: &[camino::Utf8PathBuf; 2], lines: u64, context: &str) {
    let mut follower = TranscriptFollower::new();
    for path in paths {
        follower.add(path, FollowStart::Beginning);
    }
    let mut told = [0, 0];
    while told != [lines; 2] {
        match follower.next(WAIT_MAX).unwrap() {
            Some(FollowUpdate::Record { file, record, .. }) => {
                assert_eq!(record.text, format!("{{\"n\":{}}}", told[file]), "{context}");
                told[file] += 1;
            }
            other => panic!("{context}: {other:?} after {told:?}"),
        }
    }
}

/// Every line is the last for a while, so one lost wake stops everything.
#[test]
fn proof_no_wake_is_lost_between_a_read_and_the_sleep_after_it() {
    let proof = ProofSettings::new(2000);
    let (_temp, folder) = folder();
    let path = folder.join("a.jsonl");
    let mut log = open(&path);
    let told = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = proof.random(0);
            for n in 0..proof.rounds {
                while told.load(Ordering::SeqCst) < n {
                    std::thread::yield_now();
                }
                (0..random.u32(0..2000)).for_each(|_| std::hint::spin_loop());
                log.append(format!("{{\"n\":{n}}}").as_bytes()).unwrap();
            }
        });
        let mut follower = follow(&path, FollowStart::Beginning);
        for n in 0..proof.rounds {
            let started = Instant::now();
            let text = next_text(&mut follower);
            let late = started.elapsed() > WAIT_MAX / 2;
            assert!(text == format!("{{\"n\":{n}}}") && !late, "seed {}: {text}", proof.seed);
            told.store(n + 1, Ordering::SeqCst);
        }
    });
}

#[test]
fn a_watched_file_ends_the_wait_with_each_change() {
    let (_temp, folder) = folder();
    let (path, log) = (folder.join("state.lock"), folder.join("a.jsonl"));
    let mut follower = follow(&log, FollowStart::Beginning);
    assert!(!follower.take_watched_change(), "no file is watched");
    follower.watch_file(&path);
    assert!(follower.take_watched_change() && !follower.take_watched_change());

    // The file appears, its holder changes the state, and another file gets its name.
    let holder = LockHolder::this_process("test", Timestamp::UNIX_EPOCH);
    let lock = LockFile::acquire(&path, &holder, NOW).unwrap();
    assert_eq!(follower.next(WAIT_MAX).unwrap(), None);
    while follower.take_watched_change() {
        assert_eq!(follower.next(Duration::from_millis(50)).unwrap(), None);
    }
    lock.announce_change();
    assert_eq!(follower.next(WAIT_MAX).unwrap(), None);
    assert!(follower.has_watched_change() && follower.take_watched_change());
    replace_file(&OsDisk, &path, b"{}").unwrap();
    assert_eq!(follower.next(WAIT_MAX).unwrap(), None);
    assert!(follower.take_watched_change());
    append(&path, "more");
    assert_eq!(follower.next(WAIT_MAX).unwrap(), None);
    assert!(follower.take_watched_change());

    // Records of a transcript come first, and none is lost.
    append(&path, "more");
    append(&log, "{\"n\":1}\n");
    while follower.next(WAIT_MAX).unwrap().is_none() {}
}
