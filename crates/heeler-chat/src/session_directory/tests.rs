//! Sessions are listed, found and opened by one terminal at a time.

use std::fs::File;

use super::*;
use crate::ChatSpeaker;
use crate::session_file::tests::{SessionHomeFixture, entry};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn get<'a>(listed: &'a [SessionFileSummary], id: &str) -> &'a SessionFileSummary {
    listed.iter().find(|it| it.id == id).unwrap()
}

fn touch(path: &Utf8Path, second: u64) {
    let at = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    File::options().append(true).open(path).unwrap().set_modified(at).unwrap();
}

#[test]
fn the_list_tells_what_each_session_is_about() {
    let home = SessionHomeFixture::with_foreign();
    let listed = home.directory().list().unwrap();
    let one = get(&listed, "one");
    assert_eq!(one.messages, Some(4));
    assert_eq!(one.first_message.as_deref(), Some("fix the \"login\" page"));
    assert_eq!(one.last_message.as_deref(), Some("Done."));
    assert_eq!(one.folder.as_deref(), Some(Utf8Path::new("/home/ann/site")));
    assert_eq!(one.created, Timestamp::from_millisecond(1_736_935_200_000).ok());
    let three = get(&listed, "three");
    // The count in the file is not trusted.
    assert_eq!(three.messages, Some(4));
    assert_eq!(three.first_message.as_deref(), Some("first"));
    assert_eq!(three.last_message.as_deref(), Some("last words"));
    assert!(listed.iter().all(|it| it.is_foreign && it.opened_by.is_none()));
}

#[test]
fn the_last_written_session_comes_first_and_ours_hides_the_one_it_was_copied_from() {
    let home = SessionHomeFixture::with_foreign();
    let mut session_file = home.open("two");
    session_file.append(&ChatSpeaker::Coordinator, &entry("mine")).unwrap();
    drop(session_file);
    for (at, path) in [
        (500, home.foreign().join("two.json")),
        (10, home.heeler_folder().join("two.json")),
        (40, home.heeler_folder().join("two.transcript.ndjson")),
        (20, home.foreign().join("one.json")),
        (30, home.foreign().join("three.json")),
        (5, home.foreign().join("three.transcript.ndjson")),
        (50, home.foreign().join("four.json")),
    ] {
        touch(&path, at);
    }
    let listed = home.directory().list().unwrap();
    let ids: Vec<(&str, bool)> = listed.iter().map(|it| (it.id.as_str(), it.is_foreign)).collect();
    assert_eq!(ids, [("four", true), ("two", false), ("three", true), ("one", true)]);
    assert_eq!(listed[1].updated.as_second(), 40);
}

#[test]
fn a_session_of_another_program_that_is_only_looked_at_is_not_copied() {
    let home = SessionHomeFixture::with_foreign();
    let mut session_file = home.open("two");
    session_file.save_or_defer(|about| about.agent = Some("lead".to_owned())).unwrap();
    session_file.save_changes().unwrap();
    drop(session_file);
    assert!(!home.heeler_folder().join("two.json").exists());
    let mut session_file = home.open("two");
    session_file.save_or_defer(|about| about.agent = Some("lead".to_owned())).unwrap();
    session_file.append(&ChatSpeaker::Coordinator, &entry("mine")).unwrap();
    drop(session_file);
    assert_eq!(home.open("two").state().agent(), "lead", "it is known with the first thing said");
}

#[test]
fn a_session_that_cannot_be_opened_is_listed_with_its_fault() {
    let home = SessionHomeFixture::with_own();
    let write =
        |name: &str, text: &str| std::fs::write(home.heeler_folder().join(name), text).unwrap();
    write("broken.json", "{\"id\":");
    write("newer.json", "{\"schemaVersion\":4}");
    write("odd.json", "{\"transcript\":{}}");
    write("list.json", "[]");
    std::fs::create_dir(home.heeler_folder().join("folder.json")).unwrap();
    std::os::unix::fs::symlink("one.json", home.heeler_folder().join("link.json")).unwrap();
    write(".one.json.tmp.0123456789abcdef", "{}");
    let listed = home.directory().list().unwrap();
    assert_eq!(listed.len(), 4 + 6);
    let fault = |id: &str| get(&listed, id).fault.clone().unwrap_or_default();
    assert!(fault("broken").starts_with("it is no JSON object: EOF"), "{}", fault("broken"));
    assert_eq!(fault("newer"), "its schemaVersion is 4; 1 to 3 are known");
    assert!(fault("odd").starts_with("its `transcript` cannot be read"), "{}", fault("odd"));
    assert!(fault("list").starts_with("it is no JSON object"), "{}", fault("list"));
    assert_eq!(fault("folder"), "it is not a file");
    assert!(fault("link").contains("symbolic link"), "{}", fault("link"));
    for id in ["broken", "newer", "odd", "list", "folder", "link"] {
        let error = home.directory().open(id, NOW, OldFormatPolicy::Migrate).unwrap_err();
        assert!(matches!(error, SessionDirectoryError::Faulty { .. }), "{id}: {error}");
    }
    let bytes = std::fs::read(home.heeler_folder().join("newer.json")).unwrap();
    assert_eq!(bytes, b"{\"schemaVersion\":4}");
}

#[test]
fn a_list_looks_only_at_the_ends_of_long_transcripts() {
    let home = SessionHomeFixture::with_own();
    home.open("one").save(|_| ()).unwrap();
    // Too large to be read: a sparse terabyte after the counted part.
    let path = home.heeler_folder().join("one.transcript.ndjson");
    let file = File::options().write(true).open(&path).unwrap();
    let end = 1 << 40;
    let line = b"\n{\"role\":\"assistant\",\"content\":\"at the end\"}\n";
    std::os::unix::fs::FileExt::write_all_at(&file, line, end).unwrap();
    let listed = home.directory().list().unwrap();
    let one = get(&listed, "one");
    assert_eq!((one.messages, one.fault.as_deref()), (None, None));
    assert_eq!(one.first_message.as_deref(), Some("fix the \"login\" page"));
    assert_eq!(one.last_message.as_deref(), Some("at the end"));
    // Counted up to there, the number is known.
    let json = std::fs::read_to_string(home.heeler_folder().join("one.json")).unwrap();
    let counted = "\"bytes\": ";
    let at = json.find(counted).unwrap() + counted.len();
    let digits = json[at..].find(',').unwrap();
    let end = end + line.len() as u64;
    let json = format!("{}{end}{}", &json[..at], &json[at + digits..]);
    std::fs::write(home.heeler_folder().join("one.json"), json).unwrap();
    assert_eq!(get(&home.directory().list().unwrap(), "one").messages, Some(4));
    // It can also be opened at its end.
    let session_file = home.open("one");
    let page = session_file.entries_before(&ChatSpeaker::Coordinator, None, 1).unwrap();
    assert_eq!((page.entries[0].text().as_str(), page.has_more), ("at the end", true));
}

#[test]
fn a_session_is_found_by_a_beginning_that_is_no_others() {
    let home = SessionHomeFixture::with_own();
    let directory = home.directory();
    assert_eq!(directory.find("one").unwrap().id, "one");
    assert_eq!(directory.find("on").unwrap().id, "one");
    let said = |id: &str| directory.find(id).unwrap_err().to_string();
    assert_eq!(said("t"), "several sessions begin with `t`: three, two; give more of the id");
    assert_eq!(said("thre3"), "there is no session `thre3`; did you mean `three`?");
    assert_eq!(said("zzz"), "there is no session `zzz`");
    for id in ["", "../one", "a/b", "..", ".one"] {
        assert!(
            matches!(
                directory.find(id),
                Err(SessionDirectoryError::SessionFile(SessionFileError::Name(_)))
            ),
            "{id}"
        );
    }
    for n in 0..7 {
        std::fs::write(home.heeler_folder().join(format!("m-{n}.json")), "{}").unwrap();
    }
    assert!(said("m-").contains("m-0, m-1, m-2, m-3, m-4, …;"), "{}", said("m-"));
    // A complete ID takes precedence over prefixes.
    std::fs::write(home.heeler_folder().join("one-more.json"), "{}").unwrap();
    assert_eq!(directory.find("one").unwrap().id, "one");
}

#[test]
fn a_session_is_open_in_one_place_at_a_time() {
    let home = SessionHomeFixture::with_foreign();
    let session_file = home.open("one");
    let refused =
        home.directory().open("one", NOW, OldFormatPolicy::Migrate).unwrap_err().to_string();
    let pid = std::process::id();
    assert_eq!(
        refused,
        format!(
            "session `one` is open in `heeler chat`, process {pid}, since 1970-01-01T00:00:00.000Z; \
             leave it there first"
        )
    );
    let listed = home.directory().list().unwrap();
    assert!(get(&listed, "one").opened_by.as_ref().unwrap().contains(&pid.to_string()));
    assert_eq!(get(&listed, "two").opened_by, None);
    drop(home.open("two"));
    drop(session_file);
    home.open("one").close().unwrap();
}

#[test]
fn without_any_folder_there_are_no_sessions() {
    let home = SessionHomeFixture::new();
    assert_eq!(home.directory().list().unwrap(), []);
    assert!(!home.heeler_folder().exists());
    // An unreadable directory of another program does not hide the person's own sessions.
    std::fs::create_dir_all(home.root.join("fleet")).unwrap();
    std::fs::write(home.foreign(), "no folder").unwrap();
    let session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    let listed = home.directory().list().unwrap();
    assert_eq!((listed[0].id.as_str(), listed[0].messages), (session_file.id(), Some(0)));
}

#[test]
fn a_session_file_that_is_too_long_for_a_list_is_listed_without_a_look() {
    let home = SessionHomeFixture::with_own();
    let path = home.heeler_folder().join("one.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let max = usize::try_from(summary::METADATA_BYTES_MAX).unwrap();
    let pad = |len: usize| {
        std::fs::write(&path, text.clone() + &" ".repeat(len - text.len())).unwrap();
    };
    pad(max);
    assert_eq!(get(&home.directory().list().unwrap(), "one").messages, Some(4));
    pad(max + 1);
    let listed = home.directory().list().unwrap();
    let one = get(&listed, "one");
    assert_eq!((one.messages, &one.first_message, &one.fault), (None, &None, &None));
    assert!(one.updated > NOW);
    assert_eq!(
        home.open("one").entries_before(&ChatSpeaker::Coordinator, None, 9).unwrap().entries.len(),
        4
    );
}

#[test]
fn the_session_of_a_job_is_found_while_it_is_open_among_those_written_last() {
    let home = SessionHomeFixture::with_foreign();
    let job = |number: usize| -> JobId { format!("job-2026-01-02-a{number:05}").parse().unwrap() };
    let mut session_files = Vec::new();
    for number in 0..=JOB_LOOKUP_SESSIONS_MAX {
        let asked = crate::ConversationTurn {
            turn: Uuid::new_v4(),
            job: Some(job(number)),
            by_loop: None,
            task: None,
        };
        let agent = Some(number.to_string());
        let about = ConversationState { agent, turns: vec![asked], ..ConversationState::default() };
        let session_file = home.directory().create(about, NOW).unwrap();
        touch(&home.heeler_folder().join(format!("{}.json", session_file.id())), number as u64);
        session_files.push(session_file);
    }
    let found = |number| {
        home.directory().state_for_job(&job(number)).unwrap().and_then(|about| about.agent)
    };
    assert_eq!(found(JOB_LOOKUP_SESSIONS_MAX), Some(JOB_LOOKUP_SESSIONS_MAX.to_string()));
    assert_eq!(found(1), Some("1".to_owned()));
    assert_eq!(found(0), None, "others were written since");
    assert_eq!(found(JOB_LOOKUP_SESSIONS_MAX + 1), None);
}
