//! Tests of sessions in versions 1, 2 and 3, as other programs write them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::Value as Json;

use super::*;

const ONE: [&str; 4] = ["Session started", "fix the \"login\" page\nüber alles", "", "Done."];

/// Returns all files below a directory: content and modification time.
fn snapshot(folder: &Utf8Path) -> BTreeMap<Utf8PathBuf, (Vec<u8>, SystemTime)> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let written = folder.metadata().unwrap().modified().unwrap();
        for entry in folder.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let written = path.metadata().unwrap().modified().unwrap();
                files.insert(path.clone(), (std::fs::read(&path).unwrap(), written));
            }
        }
        files.insert(folder, (Vec::new(), written));
    }
    files
}

/// Returns the entries that a program that knows only version 2 reads.
#[derive(Deserialize)]
struct OldSession {
    transcript: Vec<OldEntry>,
    #[serde(default)]
    workers: Vec<Json>,
}

#[derive(Deserialize)]
struct OldEntry {
    #[serde(default)]
    content: Json,
}

impl OldSession {
    fn read(home: &SessionHomeFixture, id: &str) -> OldSession {
        serde_json::from_str(&home.read(&format!("{id}.json"))).unwrap()
    }
}

/// Continues a session like a program that knows only the array.
fn old_program_says(home: &SessionHomeFixture, id: &str, text: &str) {
    let mut json = home.json(&format!("{id}.json"));
    json["transcript"].as_array_mut().unwrap().push(entry_json(text));
    std::fs::write(home.heeler_folder().join(format!("{id}.json")), json.to_string()).unwrap();
}

fn entry_json(text: &str) -> Json {
    serde_json::json!({"role": "user", "content": text})
}

#[test]
fn a_session_that_is_only_looked_at_stays_as_it_is() {
    let home = SessionHomeFixture::with_own();
    let before = snapshot(&home.heeler_folder());
    for id in ["one", "two", "four"] {
        let session_file = home.open(id);
        said(&session_file, &ALL);
        session_file.close().unwrap();
    }
    for (path, file) in before.iter().filter(|(path, _)| path.is_file()) {
        assert_eq!(&snapshot(&home.heeler_folder())[path], file, "{path}");
    }
}

#[test]
fn version_1_is_read_and_raised_with_every_field_as_it_was() {
    let home = SessionHomeFixture::with_own();
    let before = home.json("one.json");
    let mut session_file = home.open("one");
    assert_eq!(said(&session_file, &ALL), ONE);
    session_file.append(&ALL, &entry("more")).unwrap();
    let all: Vec<&str> = ONE.into_iter().chain(["more"]).collect();
    assert_eq!(said(&session_file, &ALL), all);
    session_file.close().unwrap();
    let lines = home.read("one.transcript.ndjson");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(
        lines[..4],
        [
            r#"{"role":"system","content":"Session started","ts":1736935200000}"#,
            r#"{"role":"user","content":"fix the \"login\" page\n\u00fcber alles","seen":0.10000000000000000001}"#,
            r#"{"role":"tool","name":"view","args":{"path":"src/ä b.ts","lines":[1,2]}}"#,
            r#"{"role":"assistant","content":"Done.","usage":{"tokens":18446744073709551616}}"#,
        ]
    );
    let after = home.json("one.json");
    assert_eq!(after["schemaVersion"], 3);
    assert_eq!(after["msgCount"], 5);
    assert_eq!(after["transcriptPath"], "one.transcript.ndjson");
    assert_eq!(after["transcript"], Json::Array(Vec::new()));
    for key in ["id", "createdAt", "cwd", "fleet", "heat", "zuletzt"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    let text = home.read("one.json");
    assert!(text.contains("12345678901234567890.50") && text.contains("\"heat\": 1e3"), "{text}");
    assert_eq!(said(&home.open("one"), &ALL), all);
    let old = OldSession::read(&home, "one");
    assert!(old.transcript.is_empty() && old.workers.is_empty());
}

#[test]
fn version_2_keeps_workers_and_skips_those_whose_files_could_be_anywhere() {
    let home = SessionHomeFixture::with_own();
    let roster = home.json("two.json")["workers"].as_array().unwrap().clone();
    let OpenedSessionFile { mut session_file, warnings } =
        home.directory().open("two", NOW, OldFormatPolicy::Migrate).unwrap();
    let path = home.heeler_folder().join("two.workers/lost.ndjson");
    assert_eq!(
        warnings,
        [
            "worker `absolute`: transcript path `/etc/passwd`: it is an absolute path",
            "worker `upward`: transcript path `../one.json`: it contains `..`",
            "worker `nested`: transcript path `deep/er.ndjson`: it contains a path separator",
            "worker `windows`: transcript path `..\\one.ndjson`: it contains `..`",
            "worker 8: it is no object",
            &format!("worker `lost`: {path} is missing"),
        ]
    );
    let names: Vec<&str> = session_file.state().workers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["scout", "builder", "lost"]);
    assert_eq!(said(&session_file, &ALL), ["go", "ok"]);
    assert_eq!(said(&session_file, &worker("scout")), ["Worker spawned", "Reading src/index.ts…"]);
    assert_eq!(said(&session_file, &worker("lost")), [""; 0]);
    for name in ["scout", "builder", "lost"] {
        session_file.append(&worker(name), &entry("again")).unwrap();
    }
    session_file.close().unwrap();
    let after = home.json("two.json")["workers"].as_array().unwrap().clone();
    assert_eq!(after.len(), roster.len());
    for entry in &roster {
        assert!(after.contains(entry), "{entry} is gone from {after:?}");
    }
    // The torn tail is kept in another file, and the entry without a newline got one.
    let scout = home.read("two.workers/scout.ndjson");
    assert_eq!((scout.lines().count(), scout.contains("\"vi")), (3, false));
    let torn = scout.len() - scout.lines().last().unwrap().len() - 1;
    let torn = home.read(&format!("two.workers/scout.ndjson.torn.{torn}"));
    assert_eq!(torn, r#"{"role":"tool","name":"vi"#);
    let session_file = home.open("two");
    assert_eq!(said(&session_file, &worker("builder")), ["Worker spawned", "built", "again"]);
    assert_eq!(OldSession::read(&home, "two").workers.len(), 8);
}

#[test]
fn version_3_is_read_from_its_file_and_its_torn_tail_is_kept_beside() {
    let home = SessionHomeFixture::with_own();
    let OpenedSessionFile { mut session_file, warnings } =
        home.directory().open("three", NOW, OldFormatPolicy::Migrate).unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("28 bytes of an incomplete entry"), "{warnings:?}");
    let texts = ["first", r#"[{"type":"text","text":"parts"}]"#, "nobody said it", "last words"];
    assert_eq!(said(&session_file, &ALL), texts);
    assert_eq!(said(&session_file, &worker("unlisted")), ["nobody lists me"]);
    session_file.append(&ALL, &entry("next")).unwrap();
    session_file.close().unwrap();
    let json = home.json("three.json");
    assert_eq!((&json["msgCount"], &json["theme"]), (&5.into(), &"dark".into()));
    assert_eq!(json["workers"][0]["agentId"], "unlisted");
    let lines = home.read("three.transcript.ndjson");
    assert!(lines.starts_with("{\"role\":\"user\",\"content\":\"first\",\"at\":17}\n"), "{lines}");
}

#[test]
fn version_3_may_still_have_its_transcript_inline() {
    let home = SessionHomeFixture::with_own();
    let mut session_file = home.open("four");
    assert_eq!(said(&session_file, &ALL), ["still inline"]);
    session_file.append(&ALL, &entry("next")).unwrap();
    drop(session_file);
    assert_eq!(said(&home.open("four"), &ALL), ["still inline", "next"]);
}

#[test]
fn an_array_that_an_import_has_copied_is_not_there_twice() {
    let home = SessionHomeFixture::with_own();
    let line = "{\"content\": \"still inline\", \"role\": \"user\"}\n";
    std::fs::write(home.heeler_folder().join("four.transcript.ndjson"), line).unwrap();
    assert_eq!(
        home.directory().list().unwrap().iter().find(|it| it.id == "four").unwrap().messages,
        Some(1)
    );
    let mut session_file = home.open("four");
    assert_eq!(said(&session_file, &ALL), ["still inline"]);
    session_file.append(&ALL, &entry("next")).unwrap();
    session_file.close().unwrap();
    assert_eq!(said(&home.open("four"), &ALL), ["still inline", "next"]);
    assert_eq!(home.json("four.json")["transcript"], Json::Array(Vec::new()));
}

#[test]
fn what_an_older_program_said_afterwards_comes_after() {
    let home = SessionHomeFixture::with_own();
    home.open("four").save(|_| ()).unwrap();
    old_program_says(&home, "four", "old");
    old_program_says(&home, "four", "older");
    let listed = home.directory().list().unwrap();
    let listed = listed.iter().find(|it| it.id == "four").unwrap();
    assert_eq!((listed.messages, listed.last_message.as_deref()), (Some(3), Some("older")));
    let mut session_file = home.open("four");
    assert_eq!(said(&session_file, &ALL), ["still inline", "old", "older"]);
    // A cursor from before the migration stays valid.
    let tail = session_file.entries_before(&ALL, None, 1).unwrap();
    session_file.append(&ALL, &entry("new")).unwrap();
    let before: Vec<String> = session_file
        .entries_before(&ALL, Some(tail.cursor), 5)
        .unwrap()
        .entries
        .iter()
        .map(ConversationEntry::text)
        .collect();
    assert_eq!(before, ["still inline", "old"]);
    assert_eq!(said(&session_file, &ALL), ["still inline", "old", "older", "new"]);
    session_file.close().unwrap();
    assert_eq!(said(&home.open("four"), &ALL), ["still inline", "old", "older", "new"]);
}

#[test]
fn marks_and_walks_go_over_the_seam_between_file_and_array() {
    let home = SessionHomeFixture::with_own();
    home.open("four").save(|_| ()).unwrap();
    for text in ["b", "c", "d"] {
        old_program_says(&home, "four", text);
    }
    let all = ["still inline", "b", "c", "d"];
    let mut session_file = home.open("four");
    // Killed during the migration: a part of the array is in the file, and counts once.
    let path = home.heeler_folder().join("four.transcript.ndjson");
    let seam = session_file.inline_boundary.unwrap();
    session_file.metadata.state.adopting = Some(seam);
    session_file.write_metadata_with(InlineTranscriptUpdate::Keep).unwrap();
    drop(session_file);
    let part = format!("{}{}\n", home.read("four.transcript.ndjson"), entry_json("b"));
    std::fs::write(&path, part).unwrap();
    let mut session_file = home.open("four");
    let check = |session_file: &SessionFile, all: &[&str]| {
        let mut walked = Vec::new();
        let walk = |entry: ConversationEntry, _| {
            walked.push(entry.text());
            true
        };
        session_file.contents(&ALL).unwrap().for_each_entry(walk).unwrap();
        assert_eq!(walked, all);
        assert_eq!(said(session_file, &ALL), all);
    };
    let texts = |session_file: &SessionFile, cursor: EntryCursor| {
        let page = session_file.entries_before(&ALL, Some(cursor), 9).unwrap();
        page.entries.iter().map(ConversationEntry::text).collect::<Vec<_>>()
    };
    check(&session_file, &all);
    let start = session_file.entries_before(&ALL, None, 9).unwrap().cursor;
    let marks: Vec<EntryCursor> =
        (0..=4).map(|n| session_file.cursor_after(&ALL, start, n).unwrap()).collect();
    for (n, cursor) in marks.iter().enumerate() {
        assert_eq!(texts(&session_file, *cursor), all[..n], "{n}");
    }
    let listed = home.directory().list().unwrap();
    assert_eq!(listed.iter().find(|it| it.id == "four").unwrap().messages, Some(4));
    session_file.append(&ALL, &entry("e")).unwrap();
    check(&session_file, &["still inline", "b", "c", "d", "e"]);
    for (n, cursor) in marks.iter().enumerate() {
        assert_eq!(texts(&session_file, *cursor), all[..n], "{n}, after it moved");
        assert_eq!(
            texts(&session_file, session_file.cursor_after(&ALL, *cursor, 1).unwrap()).len(),
            n + 1
        );
    }
}

#[test]
fn a_session_that_is_to_keep_its_form_goes_on_in_older_programs_and_here() {
    let home = SessionHomeFixture::with_own();
    let keep = || home.directory().open("one", NOW, OldFormatPolicy::Keep).unwrap().session_file;
    let mut session_file = keep();
    session_file.append(&ALL, &entry("from here")).unwrap();
    drop(session_file);
    // Nothing was saved: the array is behind, but nothing is lost.
    assert_eq!(said(&keep(), &ALL).len(), 5);
    let mut session_file = keep();
    session_file.append(&ALL, &entry("from here again")).unwrap();
    session_file.close().unwrap();
    let json = home.json("one.json");
    assert_eq!(json.get("schemaVersion"), None);
    assert_eq!(json.get("msgCount"), None);
    let old = OldSession::read(&home, "one");
    let texts: Vec<&str> =
        old.transcript.iter().filter_map(|entry| entry.content.as_str()).collect();
    assert_eq!(texts[2..], ["Done.", "from here", "from here again"]);
    old_program_says(&home, "one", "from there");
    let mut session_file = keep();
    assert_eq!(said(&session_file, &ALL)[5..], ["from here again", "from there"]);
    session_file.append(&ALL, &entry("last")).unwrap();
    session_file.close().unwrap();
    assert_eq!(OldSession::read(&home, "one").transcript.len(), 8);
    // Once migration is allowed, it happens.
    home.open("one").save(|_| ()).unwrap();
    assert_eq!(home.json("one.json")["schemaVersion"], 3);
    assert_eq!(OldSession::read(&home, "one").transcript.len(), 0);
    assert_eq!(
        said(&home.open("one"), &ALL)[4..],
        ["from here", "from here again", "from there", "last"]
    );
}

#[test]
fn another_programs_session_is_copied_with_the_first_thing_written_and_never_touched() {
    let home = SessionHomeFixture::with_foreign();
    let before = snapshot(&home.foreign());
    let listed = home.directory().list().unwrap();
    assert_eq!(listed.len(), 4);
    assert!(listed.iter().all(|it| it.is_foreign && it.fault.is_none()), "{listed:?}");
    for id in ["one", "two", "three", "four"] {
        let mut session_file = home.open(id);
        let (texts, scout) = (said(&session_file, &ALL), said(&session_file, &worker("scout")));
        assert!(
            !home.heeler_folder().join(format!("{id}.json")).exists(),
            "{id} was only looked at"
        );
        session_file.append(&ALL, &entry("mine")).unwrap();
        drop(session_file);
        let session_file = home.open(id);
        let all: Vec<String> = texts.into_iter().chain(["mine".to_owned()]).collect();
        assert_eq!(said(&session_file, &ALL), all, "{id}");
        assert_eq!(said(&session_file, &worker("scout")), scout, "{id}");
        for path in snapshot(&home.heeler_folder()).keys() {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode(path), expected, "{path}");
        }
    }
    assert_eq!(snapshot(&home.foreign()), before);
    assert!(home.directory().list().unwrap().iter().all(|it| !it.is_foreign));
    let saved = home.json("two.json");
    assert_eq!((&saved["goal"], saved["workers"].as_array().unwrap().len()), (&"tidy".into(), 8));
}

#[test]
fn the_last_entry_of_another_program_is_shown_though_it_lacks_its_newline() {
    let home = SessionHomeFixture::with_foreign();
    let path = home.foreign().join("three.transcript.ndjson");
    std::fs::write(&path, "{\"role\":\"user\",\"content\":\"whole\"}").unwrap();
    let mut session_file = home.open("three");
    assert_eq!(said(&session_file, &ALL), ["whole"]);
    session_file.append(&ALL, &entry("mine")).unwrap();
    assert_eq!(said(&session_file, &ALL), ["whole", "mine"]);
}

#[test]
fn what_a_copy_that_was_cut_off_left_is_used_or_kept() {
    let home = SessionHomeFixture::with_foreign();
    std::fs::create_dir_all(home.heeler_folder()).unwrap();
    let copy = home.heeler_folder().join("three.transcript.ndjson");
    std::fs::copy(home.foreign().join("three.transcript.ndjson"), &copy).unwrap();
    std::fs::create_dir_all(home.heeler_folder().join("three.workers")).unwrap();
    std::fs::write(home.heeler_folder().join("three.workers/unlisted.ndjson"), "{\"other\":1}\n")
        .unwrap();
    let mut session_file = home.open("three");
    session_file.append(&ALL, &entry("mine")).unwrap();
    assert_eq!(said(&session_file, &ALL).len(), 5);
    assert_eq!(said(&session_file, &worker("unlisted")), ["nobody lists me"]);
    assert!(!home.heeler_folder().join("three.transcript.ndjson.left.1").exists());
    assert_eq!(home.read("three.workers/unlisted.ndjson.left.1"), "{\"other\":1}\n");
}

#[test]
fn a_transcript_path_that_is_not_the_sessions_own_is_not_used() {
    let home = SessionHomeFixture::with_own();
    for (path, reason) in [
        ("/etc/passwd", "it is an absolute path"),
        ("../three.ndjson", "it contains `..`"),
        ("one.transcript.ndjson", "it is not named after the session"),
        ("three.json", "it does not end in `.ndjson`"),
    ] {
        let text = format!("{{\"schemaVersion\":3,\"transcriptPath\":\"{path}\"}}");
        std::fs::write(home.heeler_folder().join("three.json"), text).unwrap();
        let OpenedSessionFile { session_file, warnings } =
            home.directory().open("three", NOW, OldFormatPolicy::Migrate).unwrap();
        let warning = format!("transcriptPath `{path}` is not used: {reason}");
        assert!(warnings.contains(&warning), "{warnings:?}");
        assert_eq!(said(&session_file, &ALL).len(), 4);
    }
    std::fs::rename(
        home.heeler_folder().join("three.transcript.ndjson"),
        home.heeler_folder().join("three.b.ndjson"),
    )
    .unwrap();
    let text = "{\"schemaVersion\":3,\"transcriptPath\":\"three.b.ndjson\"}";
    std::fs::write(home.heeler_folder().join("three.json"), text).unwrap();
    let mut session_file = home.open("three");
    session_file.append(&ALL, &entry("more")).unwrap();
    assert_eq!(said(&session_file, &ALL).len(), 5);
    assert!(!home.heeler_folder().join("three.transcript.ndjson").exists());
}

#[test]
fn an_array_that_would_be_too_long_stays_as_it_is() {
    let home = SessionHomeFixture::with_own();
    let mut session_file =
        home.directory().open("one", NOW, OldFormatPolicy::Keep).unwrap().session_file;
    session_file.append(&ALL, &entry("more")).unwrap();
    let len = home.heeler_folder().join("one.transcript.ndjson").metadata().unwrap().len();
    assert!(
        matches!(session_file.inline_lines(len).unwrap(), InlineTranscriptUpdate::Replace(lines) if lines.len() == 5)
    );
    let inline = session_file.inline_lines(len - 1).unwrap();
    assert!(matches!(inline, InlineTranscriptUpdate::Keep));
    session_file.write_metadata_with(inline).unwrap();
    drop(session_file);
    assert_eq!(OldSession::read(&home, "one").transcript.len(), 4);
    assert_eq!(said(&home.open("one"), &ALL).len(), 5);
}
