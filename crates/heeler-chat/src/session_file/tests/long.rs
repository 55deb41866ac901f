//! Tests of long operations: they run in the background, and leaving loses nothing.

use super::*;
use crate::background::WAIT_BYTES_MAX;

/// Writes a transcript of at least this many bytes; returns the number of entries.
fn lengthen(path: &Utf8Path, bytes: u64) -> u64 {
    let line = format!("{{\"role\":\"user\",\"content\":\"{}\"}}\n", "x".repeat(4000));
    let lines = bytes / line.len() as u64 + 1;
    std::fs::write(path, line.repeat(usize::try_from(lines).unwrap())).unwrap();
    lines
}

/// Waits until the session can be written.
fn prepared(session_file: &mut SessionFile) {
    while session_file.prepare_writing().unwrap().is_some() {
        std::thread::yield_now();
    }
}

#[test]
fn a_long_transcript_is_counted_beside_and_the_file_keeps_its_count_until_then() {
    let home = SessionHomeFixture::with_own();
    let lines = lengthen(&home.heeler_folder().join("three.transcript.ndjson"), COUNT_BYTES_MAX);
    let claimed = home.json("three.json")["msgCount"].clone();
    let mut session_file = home.open("three");
    session_file.append(&ALL, &entry("more")).unwrap();
    session_file.save(|_| ()).unwrap();
    let counting = session_file.counting.take().unwrap();
    assert_eq!(home.json("three.json")["msgCount"], claimed);
    session_file.counting = Some(counting);
    while !session_file.counting.as_ref().unwrap().is_finished() {
        std::thread::yield_now();
    }
    session_file.append(&ALL, &entry("and more")).unwrap();
    session_file.close().unwrap();
    assert_eq!(home.json("three.json")["msgCount"], lines + 2);
}

#[test]
fn a_large_session_of_another_program_is_copied_beside_and_then_written() {
    let home = SessionHomeFixture::with_foreign();
    let path = home.foreign().join("three.transcript.ndjson");
    lengthen(&path, WAIT_BYTES_MAX);
    let before = std::fs::read(&path).unwrap();
    let mut session_file = home.open("three");
    assert!(session_file.prepare_writing().unwrap() > Some(WAIT_BYTES_MAX));
    prepared(&mut session_file);
    assert_eq!(session_file.prepare_writing().unwrap(), None);
    session_file.append(&ALL, &entry("mine")).unwrap();
    let ours = std::fs::read(home.heeler_folder().join("three.transcript.ndjson")).unwrap();
    assert!(ours.starts_with(&before) && ours.len() > before.len());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let last = session_file.entries_before(&ALL, None, 1).unwrap().entries.remove(0);
    assert_eq!(last.text(), "mine");
}

#[test]
fn a_small_session_of_another_program_needs_no_preparing() {
    let home = SessionHomeFixture::with_foreign();
    let mut session_file = home.open("three");
    assert_eq!(session_file.prepare_writing().unwrap(), None);
    assert!(!home.heeler_folder().join("three.transcript.ndjson").exists(), "nothing was written");
}

#[test]
fn whoever_leaves_while_it_is_copied_leaves_no_half_copy_and_comes_back_to_the_same() {
    let home = SessionHomeFixture::with_foreign();
    lengthen(&home.foreign().join("three.transcript.ndjson"), WAIT_BYTES_MAX);
    let mut session_file = home.open("three");
    session_file.prepare_writing().unwrap();
    session_file.close().unwrap();
    let names =
        home.heeler_folder().read_dir_utf8().unwrap().map(|it| it.unwrap().file_name().to_owned());
    let left: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
    assert_eq!(left, Vec::<String>::new());
    assert!(!home.heeler_folder().join("three.json").exists(), "it is the other program's still");
    let mut session_file = home.open("three");
    prepared(&mut session_file);
    session_file.append(&ALL, &entry("mine")).unwrap();
    assert_eq!(session_file.entries_before(&ALL, None, 1).unwrap().entries[0].text(), "mine");
}
