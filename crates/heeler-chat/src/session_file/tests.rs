//! Tests of session files in every format.

mod crash;
mod edges;
mod forms;
mod long;

use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::session_directory::SessionDirectory;
use crate::{EntryRole, EntrySource};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const ALL: ChatSpeaker = ChatSpeaker::Coordinator;

/// Directories of a person.
pub(crate) struct SessionHomeFixture {
    _temp: tempfile::TempDir,
    pub(crate) root: Utf8PathBuf,
}

impl SessionHomeFixture {
    pub(crate) fn new() -> SessionHomeFixture {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::try_from(temp.path().to_owned()).unwrap();
        SessionHomeFixture { _temp: temp, root }
    }

    /// Copies sessions of every version into Heeler's directory.
    pub(crate) fn with_own() -> SessionHomeFixture {
        let home = SessionHomeFixture::new();
        plant(&home.heeler_folder());
        home
    }

    /// Copies sessions of every version into the other program's directory.
    pub(crate) fn with_foreign() -> SessionHomeFixture {
        let home = SessionHomeFixture::new();
        plant(&home.foreign());
        home
    }

    pub(crate) fn heeler_folder(&self) -> Utf8PathBuf {
        self.root.join("heeler/sessions")
    }

    pub(crate) fn foreign(&self) -> Utf8PathBuf {
        self.root.join("fleet/sessions")
    }

    pub(crate) fn directory(&self) -> SessionDirectory {
        directory(&self.root)
    }

    pub(crate) fn open(&self, id: &str) -> SessionFile {
        self.directory().open(id, NOW, OldFormatPolicy::Migrate).unwrap().session_file
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.heeler_folder().join(name)).unwrap()
    }

    fn json(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }
}

pub(crate) fn directory(root: &Utf8Path) -> SessionDirectory {
    SessionDirectory::new(root.join("heeler/sessions"), vec![root.join("fleet/sessions")])
}

fn plant(folder: &Utf8Path) {
    let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for from in ["", "two.workers", "three.workers"] {
        std::fs::create_dir_all(folder.join(from)).unwrap();
        for entry in fixtures.join(from).read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            if path.is_file() {
                let name = path.file_name().unwrap();
                std::fs::write(folder.join(from).join(name), std::fs::read(&path).unwrap())
                    .unwrap();
            }
        }
    }
}

pub(crate) fn entry(text: &str) -> ConversationEntry {
    ConversationEntry::new(EntryRole::User, text, NOW)
}

/// Returns all entries of a transcript, read from its end in pages of two.
pub(crate) fn said(session_file: &SessionFile, of: &ChatSpeaker) -> Vec<String> {
    let (mut texts, mut cursor) = (Vec::new(), None);
    loop {
        let page = session_file.entries_before(of, cursor, 2).unwrap();
        assert!(page.entries.len() <= 2);
        texts.splice(0..0, page.entries.iter().map(ConversationEntry::text));
        if !page.has_more {
            return texts;
        }
        cursor = Some(page.cursor);
    }
}

fn worker(name: &str) -> ChatSpeaker {
    ChatSpeaker::Worker(name.to_owned())
}

fn from_row(text: &str, job: &str, row: u64) -> ConversationEntry {
    let source = EntrySource { job: job.parse().unwrap(), row };
    ConversationEntry { source: Some(source), ..entry(text) }
}

fn mode(path: &Utf8Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_entry_is_in_its_file_when_it_was_appended() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    let id = session_file.id().to_owned();
    let turn = Uuid::from_u128(7);
    session_file.append(&ALL, &ConversationEntry { turn: Some(turn), ..entry("hello") }).unwrap();
    session_file.append(&worker("coder-1"), &entry("hello yourself")).unwrap();
    assert_eq!(
        home.read(&format!("{id}.transcript.ndjson")),
        format!(
            "{{\"role\":\"user\",\"content\":\"hello\",\"at\":\"1970-01-01T00:00:00Z\",\"turn\":\"{turn}\"}}\n"
        )
    );
    assert!(home.read(&format!("{id}.workers/coder-1.ndjson")).contains("hello yourself"));
    // Simulates a kill: nothing was saved.
    drop(session_file);
    let session_file = home.open(&id);
    assert_eq!(said(&session_file, &ALL), ["hello"]);
    assert_eq!(session_file.entries_before(&ALL, None, 1).unwrap().entries[0].turn, Some(turn));
    assert_eq!(session_file.state().workers[0].name, "coder-1");
    assert_eq!(said(&session_file, &worker("coder-1")), ["hello yourself"]);
    assert_eq!(said(&session_file, &worker("nobody")), [""; 0]);
}

#[test]
fn all_files_are_the_owners_alone() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    let id = session_file.id().to_owned();
    session_file.append(&ALL, &entry("a")).unwrap();
    session_file.append(&worker("coder-1"), &entry("b")).unwrap();
    session_file.close().unwrap();
    for name in ["json", "transcript.ndjson", "workers/coder-1.ndjson", "lock"] {
        assert_eq!(mode(&home.heeler_folder().join(format!("{id}.{name}"))), 0o600, "{name}");
    }
    for folder in [home.heeler_folder(), home.heeler_folder().join(format!("{id}.workers"))] {
        assert_eq!(mode(&folder), 0o700, "{folder}");
    }
}

#[test]
fn what_is_known_of_a_session_comes_back() {
    let home = SessionHomeFixture::new();
    let new = ConversationState { agent: Some("coder".to_owned()), ..ConversationState::default() };
    let mut session_file = home.directory().create(new, NOW).unwrap();
    let id = session_file.id().to_owned();
    session_file.append(&worker("coder-1"), &entry("b")).unwrap();
    session_file
        .save(|about| {
            about.folder = Some("/home/ann".into());
            about.session = Some("5f2a".parse().unwrap());
            let job = Some("job-2026-11-15-a1b2c3".parse().unwrap());
            about.turns.push(crate::ConversationTurn {
                turn: Uuid::from_u128(1),
                job,
                by_loop: None,
                task: None,
            });
            about.tasks.push(crate::ConversationTask {
                text: "tidy".to_owned(),
                done: false,
                added_by: None,
            });
            about.workers[0].task = Some("build".to_owned());
            about.workers[0].jobs.push("job-2026-11-15-d4e5f6".parse().unwrap());
            about.other.insert("later".to_owned(), true.into());
        })
        .unwrap();
    let facts = |about: &ConversationState| {
        let workers: Vec<_> =
            about.workers.iter().map(|it| (it.to_roster_entry(), it.file.clone())).collect();
        (ConversationState { workers: Vec::new(), ..about.clone() }, workers)
    };
    let known = facts(session_file.state());
    assert_eq!(known.0.created_at, Some(NOW));
    session_file.close().unwrap();
    assert_eq!(facts(home.open(&id).state()), known);
}

#[test]
fn the_count_is_right_after_a_kill_and_only_what_came_since_is_counted() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    let id = session_file.id().to_owned();
    let file = format!("{id}.json");
    for text in ["a", "b"] {
        session_file.append(&ALL, &entry(text)).unwrap();
    }
    session_file.save(|_| ()).unwrap();
    assert_eq!(home.json(&file)["msgCount"], 2);
    session_file.append(&ALL, &entry("c")).unwrap();
    drop(session_file);
    assert_eq!(home.json(&file)["msgCount"], 2);
    assert_eq!(home.directory().list().unwrap()[0].messages, Some(3));
    let mut session_file = home.open(&id);
    session_file.append(&ALL, &entry("d")).unwrap();
    session_file.close().unwrap();
    assert_eq!(home.json(&file)["msgCount"], 4);
    // A known count is not computed again: this one is wrong, and stays.
    let text = home.read(&file).replace("\"entries\": 4", "\"entries\": 40");
    std::fs::write(home.heeler_folder().join(&file), text).unwrap();
    assert_eq!(home.directory().list().unwrap()[0].messages, Some(40));
    // Unless the file was replaced.
    std::fs::write(home.heeler_folder().join(format!("{id}.transcript.ndjson")), "{}\n").unwrap();
    assert_eq!(home.directory().list().unwrap()[0].messages, Some(1));
    home.open(&id).save(|_| ()).unwrap();
    assert_eq!(home.json(&file)["msgCount"], 1);
}

#[test]
fn the_last_row_of_a_job_is_found_however_far_back_it_is() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    let id = session_file.id().to_owned();
    session_file.append(&ALL, &from_row("a", "job-1", 3)).unwrap();
    session_file.append(&ALL, &from_row("b", "job-1", 7)).unwrap();
    session_file.append(&worker("w"), &from_row("c", "job-1", 90)).unwrap();
    for row in 0..2_000 {
        // They mention the other job, but do not belong to it.
        session_file.append(&ALL, &from_row("job-1 and job-10", "job-10", row)).unwrap();
    }
    let check = |session_file: &SessionFile| {
        let last = |of: &ChatSpeaker, job: &str| {
            session_file.last_recorded_row(of, &job.parse().unwrap()).unwrap()
        };
        assert_eq!(last(&ALL, "job-1"), Some(7));
        assert_eq!(last(&ALL, "job-10"), Some(1_999));
        assert_eq!(last(&worker("w"), "job-1"), Some(90));
        assert_eq!(last(&worker("w"), "job-10"), None);
        assert_eq!(last(&worker("none"), "job-1"), None);
        assert_eq!(last(&ALL, "job"), None);
    };
    check(&session_file);
    drop(session_file);
    check(&home.open(&id));
}

#[test]
fn a_job_without_a_row_is_not_looked_for_before_the_words_that_it_was_asked_with() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    let turn = Uuid::from_u128(7);
    let job = || "job-1".parse::<JobId>().unwrap();
    // An impossible row: it shows how far back the search goes.
    session_file.append(&ALL, &from_row("before", "job-1", 3)).unwrap();
    session_file.append(&ALL, &ConversationEntry { turn: Some(turn), ..entry("asked") }).unwrap();
    session_file.append(&ALL, &entry("after")).unwrap();
    session_file
        .save(|about| {
            about.turns.push(crate::ConversationTurn {
                turn,
                job: Some(job()),
                by_loop: None,
                task: None,
            });
        })
        .unwrap();
    let id = session_file.id().to_owned();
    drop(session_file);
    let mut session_file = home.open(&id);
    assert_eq!(session_file.last_recorded_row(&ALL, &job()).unwrap(), None);
    session_file.save(|about| about.turns.clear()).unwrap();
    assert_eq!(session_file.last_recorded_row(&ALL, &job()).unwrap(), Some(3));
}

#[test]
fn pages_go_from_the_tail_to_the_beginning_while_others_come() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    assert_eq!(said(&session_file, &ALL), [""; 0]);
    (0..5).for_each(|n| session_file.append(&ALL, &entry(&n.to_string())).unwrap());
    let texts = |page: &EntryPage| {
        page.entries.iter().map(ConversationEntry::text).collect::<Vec<_>>().join(" ")
    };
    let tail = session_file.entries_before(&ALL, None, 2).unwrap();
    assert_eq!((texts(&tail).as_str(), tail.has_more), ("3 4", true));
    session_file.append(&ALL, &entry("5")).unwrap();
    let middle = session_file.entries_before(&ALL, Some(tail.cursor), 2).unwrap();
    assert_eq!((texts(&middle).as_str(), middle.has_more), ("1 2", true));
    let head = session_file.entries_before(&ALL, Some(middle.cursor), 2).unwrap();
    assert_eq!((texts(&head).as_str(), head.has_more), ("0", false));
}

#[test]
fn more_workers_may_speak_than_files_are_kept_open() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    for round in 0..2 {
        for n in 0..WORKER_LOGS_MAX + 3 {
            session_file.append(&worker(&format!("w-{n}")), &entry(&round.to_string())).unwrap();
            assert!(session_file.workers.len() <= WORKER_LOGS_MAX);
        }
    }
    for n in 0..WORKER_LOGS_MAX + 3 {
        assert_eq!(said(&session_file, &worker(&format!("w-{n}"))), ["0", "1"]);
    }
}

#[test]
fn a_worker_whose_name_is_no_file_name_is_refused() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    for name in ["../x", "a/b", "", "."] {
        assert!(matches!(
            session_file.append(&worker(name), &entry("x")),
            Err(SessionFileError::Name(_))
        ));
        assert!(
            matches!(
                session_file.entries_before(&worker(name), None, 1),
                Err(SessionFileError::Name(_))
            ),
            "{name}"
        );
    }
}

#[test]
fn links_in_place_of_files_are_not_followed() {
    let home = SessionHomeFixture::with_own();
    let secret = home.root.join("secret");
    std::fs::write(&secret, "{\"role\":\"user\",\"content\":\"secret\"}\n").unwrap();
    let link = |name: &str| {
        let path = home.heeler_folder().join(name);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, path).unwrap();
    };
    link("two.workers/scout.ndjson");
    let opened = home.directory().open("two", NOW, OldFormatPolicy::Migrate).unwrap();
    assert!(opened.warnings.iter().any(|it| it.contains("`scout`") && it.contains("link")));
    assert!(!opened.session_file.state().workers.iter().any(|it| it.name == "scout"));
    let mut session_file = opened.session_file;
    assert!(matches!(
        session_file.append(&worker("scout"), &entry("x")),
        Err(SessionFileError::Name(_))
    ));
    session_file.save(|_| ()).unwrap();
    let roster = home.json("two.json")["workers"].as_array().unwrap().clone();
    assert!(roster.iter().any(|it| it["agentId"] == "scout"), "the entry is gone: {roster:?}");
    link("three.transcript.ndjson");
    let refused = home.directory().open("three", NOW, OldFormatPolicy::Migrate).unwrap_err();
    assert!(refused.to_string().contains("symbolic link"), "{refused}");
    link("one.json");
    let refused = home.directory().open("one", NOW, OldFormatPolicy::Migrate).unwrap_err();
    assert!(refused.to_string().contains("symbolic link"), "{refused}");
    assert_eq!(std::fs::read_to_string(&secret).unwrap().lines().count(), 1);
}

#[test]
fn an_entry_that_was_written_although_that_failed_is_not_there_twice() {
    let home = SessionHomeFixture::new();
    let mut session_file = home.directory().create(ConversationState::default(), NOW).unwrap();
    session_file.append(&ALL, &entry("a")).unwrap();
    // As after a write whose sync failed.
    let line = serde_json::to_string(&entry("a")).unwrap();
    session_file.log = None;
    session_file.unacknowledged = Some((ALL, line.clone()));
    session_file.append(&ALL, &entry("a")).unwrap();
    assert_eq!(said(&session_file, &ALL), ["a"]);
    // The same text again is a new entry.
    session_file.append(&ALL, &entry("a")).unwrap();
    assert_eq!(said(&session_file, &ALL), ["a", "a"]);
    // As after a write that was cut off.
    session_file.unacknowledged = Some((ALL, serde_json::to_string(&entry("b")).unwrap()));
    session_file.append(&ALL, &entry("b")).unwrap();
    session_file.unacknowledged = Some((worker("w"), line));
    session_file.append(&ALL, &entry("a")).unwrap();
    assert_eq!(said(&session_file, &ALL), ["a", "a", "b", "a"]);
    session_file.close().unwrap();
    assert_eq!(home.directory().list().unwrap()[0].messages, Some(4));
}
