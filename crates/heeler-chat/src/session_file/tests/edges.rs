//! Tests of file ends after a kill, and of names of the maximum length.

use super::*;
use crate::SessionDirectoryError;
use heeler_transcript::ID_BYTES_MAX;

#[test]
fn a_tail_that_was_cut_anywhere_costs_only_the_entry_that_was_not_whole() {
    let last = r#"{"role":"user","content":"schön — 日本 🐕","turn":"6f1c0d9e-1111-4222-8333-444455556666"}"#;
    for cut in 1..last.len() {
        let home = SessionHomeFixture::with_own();
        let path = home.heeler_folder().join("three.transcript.ndjson");
        let whole = br#"{"role":"user","content":"before"}"#;
        let bytes = [&whole[..], b"\n", &last.as_bytes()[..cut]].concat();
        std::fs::write(&path, bytes).unwrap();
        let opened = home.directory().open("three", NOW, OldFormatPolicy::Migrate).unwrap();
        assert!(opened.warnings.iter().any(|it| it.contains("incomplete entry")), "{cut}");
        let mut session_file = opened.session_file;
        session_file.append(&ALL, &entry("after")).unwrap();
        assert_eq!(said(&session_file, &ALL), ["before", "after"], "{cut}");
    }
}

#[test]
fn an_id_and_a_worker_as_long_as_may_be_keep_all_their_files() {
    let (home, id) = (SessionHomeFixture::new(), "i".repeat(ID_BYTES_MAX));
    let name = "w".repeat(ID_BYTES_MAX);
    std::fs::create_dir_all(home.foreign()).unwrap();
    let file = home.foreign().join(format!("{id}.json"));
    std::fs::write(file, r#"{"transcript":[{"role":"user","content":"one"}]}"#).unwrap();
    let mut session_file = home.open(&id);
    session_file.append(&ALL, &entry("two")).unwrap();
    session_file.append(&worker(&name), &entry("mine")).unwrap();
    session_file.close().unwrap();
    let opened = home.directory().open(&id, NOW, OldFormatPolicy::Migrate).unwrap();
    assert_eq!(opened.warnings, Vec::<String>::new());
    assert_eq!(said(&opened.session_file, &ALL), ["one", "two"]);
    assert_eq!(said(&opened.session_file, &worker(&name)), ["mine"]);
}

#[test]
fn an_id_or_a_worker_that_is_too_long_is_refused_before_anything_is_written() {
    let (home, id) = (SessionHomeFixture::with_own(), "i".repeat(ID_BYTES_MAX + 1));
    let list = || {
        let mut names: Vec<String> = home
            .heeler_folder()
            .read_dir_utf8()
            .unwrap()
            .map(|it| it.unwrap().file_name().to_owned())
            .collect();
        names.sort();
        names
    };
    let before = list();
    let error = home.directory().open(&id, NOW, OldFormatPolicy::Migrate).unwrap_err();
    assert!(
        matches!(error, SessionDirectoryError::SessionFile(SessionFileError::Name(_))),
        "{error}"
    );
    assert_eq!(list(), before);
    let mut session_file = home.open("three");
    let before = list();
    let error = session_file.append(&worker(&id), &entry("x")).unwrap_err();
    assert!(matches!(error, SessionFileError::Name(_)), "{error}");
    assert_eq!(list(), before);
}
