//! Sessions of claude's own: found, listed, read.

use serde_json::json;

use super::*;
use crate::history::load_history;

struct ProjectsFixture {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
}

impl ProjectsFixture {
    fn new() -> ProjectsFixture {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().join("projects")).unwrap();
        ProjectsFixture { root, _temp: temp }
    }

    /// Writes a session of one turn, used at this second.
    fn session(&self, cwd: &str, number: u128, prompt: &str, at: u64) -> AgentSessionId {
        let id = Uuid::from_u128(number << 96);
        let entry = |kind: &str, uuid: u128, parent: Option<u128>, message: Json| {
            json!({"parentUuid": parent.map(Uuid::from_u128), "isSidechain": false, "type": kind,
                "message": message, "uuid": Uuid::from_u128(uuid), "cwd": cwd, "sessionId": id,
                "timestamp": format!("2026-11-15T10:00:{:02}Z", at % 60), "version": "2.1.325",
                "gitBranch": "main"})
        };
        let usage = json!({"input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 5});
        let rows = [
            json!({"type": "mode", "mode": "default"}),
            entry("user", 1, None, json!({"role": "user", "content": prompt})),
            entry(
                "assistant",
                2,
                Some(1),
                json!({"role": "assistant", "id": "m", "usage": usage,
                "content": [{"type": "text", "text": "Done."}]}),
            ),
        ];
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        let path = self.root.join(project_slug(Utf8Path::new(cwd))).join(format!("{id}.jsonl"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, lines).unwrap();
        let file = std::fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at)).unwrap();
        id.to_string().parse().unwrap()
    }

    fn list(&self, filter: &NativeSessionFilter, limit: usize) -> Vec<String> {
        let page = list(&self.root, filter, limit).unwrap();
        page.sessions.into_iter().map(|session| session.title.unwrap_or_default()).collect()
    }
}

use serde_json::Value as Json;

#[test]
fn a_directory_that_is_not_a_full_path_is_not_believed() {
    let projects = ProjectsFixture::new();
    for (number, cwd, expected) in
        [(1, "/work/a", Some("/work/a")), (2, "../a", None), (3, "work", None)]
    {
        let id = projects.session(cwd, number, "Go.", 1000);
        let found = find(&projects.root, id.as_str()).unwrap();
        assert_eq!(found.cwd.as_deref().map(Utf8Path::as_str), expected, "{cwd}");
    }
}

#[test]
fn sessions_are_listed_last_used_first_by_directory_and_in_pages() {
    let projects = ProjectsFixture::new();
    assert_eq!(projects.list(&NativeSessionFilter::default(), 9), Vec::<String>::new());
    projects.session("/work/a", 1, "Fix  the\ntests.", 1000);
    let b = projects.session("/work/b", 2, "Write docs.", 3000);
    projects.session("/work/a", 3, "Go.", 2000);
    // Other files in the directory are not sessions.
    std::fs::write(projects.root.join("-work-a/agent-1234.jsonl"), "{}\n").unwrap();
    std::fs::write(projects.root.join("notes.txt"), "").unwrap();
    let all = NativeSessionFilter::default();
    assert_eq!(projects.list(&all, 9), ["Write docs.", "Go.", "Fix the tests."]);
    assert_eq!(projects.list(&NativeSessionFilter { before: Some(b), ..all.clone() }, 1), ["Go."]);
    let here = NativeSessionFilter { cwd: Some("/work/a".into()), ..all.clone() };
    assert_eq!(projects.list(&here, 9), ["Go.", "Fix the tests."]);
    let since = Some(Timestamp::from_second(1500).unwrap());
    assert_eq!(projects.list(&NativeSessionFilter { since, ..all }, 9), ["Write docs.", "Go."]);
}

#[test]
fn a_session_is_found_by_a_beginning_of_its_id_and_told_with_all_that_a_record_needs() {
    let projects = ProjectsFixture::new();
    let id = projects.session("/work/a", 0xabc, "Go.", 7);
    projects.session("/work/a", 0xabd, "Go.", 8);
    let found = find(&projects.root, &id.as_str()[..8]).unwrap();
    assert_eq!((found.messages, found.tokens, found.is_estimate), (2, 115, false));
    assert_eq!(found.cwd.as_deref(), Some(Utf8Path::new("/work/a")));
    assert_eq!(found.first_at, Some("2026-11-15T10:00:07Z".parse().unwrap()));
    assert_eq!((found.last_at, found.last_entry), (found.first_at, Some(Uuid::from_u128(2))));
    assert_eq!(found.git_branch.as_deref(), Some("main"));
    assert_eq!(found.bytes, std::fs::metadata(&found.path).unwrap().len());
    let past = load_history(&found.path, Some(&found.path), None, 9).unwrap();
    assert_eq!(past.total, found.messages);
    let ambiguous = find(&projects.root, "00000").unwrap_err();
    assert!(matches!(ambiguous, NativeSessionError::Ambiguous { .. }), "{ambiguous}");
    for id in ["", "x", "../x"] {
        let error = find(&projects.root, id).unwrap_err();
        assert!(matches!(error, NativeSessionError::Unknown { .. }), "{error}");
    }
}

#[test]
fn of_a_large_file_the_beginning_and_the_end_are_read() {
    let projects = ProjectsFixture::new();
    let id = projects.session("/work/a", 1, "Go.", 7);
    let path = projects.root.join("-work-a").join(format!("{id}.jsonl"));
    let mut text = std::fs::read_to_string(&path).unwrap();
    let filler = json!({"type": "api-request-blob", "text": "x".repeat(100_000)});
    (0..30).for_each(|_| text += &format!("{filler}\n"));
    let last = json!({"type": "assistant", "uuid": Uuid::from_u128(9), "gitBranch": "next",
        "timestamp": "2026-11-15T11:00:00Z", "message": {"usage": {"input_tokens": 900}}});
    text += &format!("{last}\n{{\"type\":\"torn");
    std::fs::write(&path, text).unwrap();
    let page = list(&projects.root, &NativeSessionFilter::default(), 5).unwrap();
    let [brief] = page.sessions.as_slice() else { panic!("{page:?}") };
    assert!(brief.is_estimate);
    assert_eq!((brief.tokens, brief.last_entry), (900, Some(Uuid::from_u128(9))));
    assert_eq!(brief.git_branch.as_deref(), Some("next"));
    assert_eq!(brief.last_at, Some("2026-11-15T11:00:00Z".parse().unwrap()));
    let whole = find(&projects.root, id.as_str()).unwrap();
    assert_eq!((whole.messages, whole.tokens, whole.last_entry), (3, 900, brief.last_entry));
}

#[test]
fn what_the_program_put_there_is_no_title() {
    let projects = ProjectsFixture::new();
    projects.session("/work/a", 1, "<command-name>/clear</command-name>", 7);
    assert_eq!(projects.list(&NativeSessionFilter::default(), 5), [""]);
}
