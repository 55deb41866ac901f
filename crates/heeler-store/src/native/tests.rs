//! Sessions of claude's own: found, listed, read.

mod chats;
mod folders;

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

    fn folder(&self) -> NativeFolder {
        NativeFolder { program: NativeProgram::Claude, path: self.root.clone() }
    }

    fn list(&self, filter: &NativeSessionFilter, limit: usize) -> Vec<String> {
        let page = list(&[self.folder()], filter, limit).unwrap();
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
        let found = find(&projects.folder(), id.as_str()).unwrap();
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
    let found = find(&projects.folder(), &id.as_str()[..8]).unwrap();
    assert_eq!((found.messages, found.tokens, found.is_estimate), (2, 115, false));
    assert_eq!(found.cwd.as_deref(), Some(Utf8Path::new("/work/a")));
    assert_eq!(found.first_at, Some("2026-11-15T10:00:07Z".parse().unwrap()));
    assert_eq!((found.last_at, found.last_entry), (found.first_at, Some(Uuid::from_u128(2))));
    assert_eq!(found.git_branch.as_deref(), Some("main"));
    assert_eq!(found.bytes, std::fs::metadata(&found.path).unwrap().len());
    let past = load_history(&found.path, Some(&found.path), None, 9).unwrap();
    assert_eq!(past.total, found.messages);
    let ambiguous = find(&projects.folder(), "00000").unwrap_err();
    assert!(matches!(ambiguous, NativeSessionError::Ambiguous { .. }), "{ambiguous}");
    for id in ["", "x", "../x"] {
        let error = find(&projects.folder(), id).unwrap_err();
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
    let page = list(&[projects.folder()], &NativeSessionFilter::default(), 5).unwrap();
    let [brief] = page.sessions.as_slice() else { panic!("{page:?}") };
    assert!(brief.is_estimate);
    assert_eq!((brief.tokens, brief.last_entry), (900, Some(Uuid::from_u128(9))));
    assert_eq!(brief.git_branch.as_deref(), Some("next"));
    assert_eq!(brief.last_at, Some("2026-11-15T11:00:00Z".parse().unwrap()));
    let whole = find(&projects.folder(), id.as_str()).unwrap();
    assert_eq!((whole.messages, whole.tokens, whole.last_entry), (3, 900, brief.last_entry));
}

#[test]
fn what_the_program_put_there_is_no_title() {
    let projects = ProjectsFixture::new();
    projects.session("/work/a", 1, "<command-name>/clear</command-name>", 7);
    assert_eq!(projects.list(&NativeSessionFilter::default(), 5), [""]);
}

/// Writes a rollout of Codex; returns the folder of its sessions.
fn write_rollout(root: &Utf8Path, id: Uuid, client: &str, at: u64) -> NativeFolder {
    let line = |kind: &str, payload: Json| json!({"timestamp": "2026-11-15T10:00:00.000Z", "type": kind, "payload": payload});
    let item = |payload: Json| line("response_item", payload);
    let message = |role: &str, text: &str| {
        item(json!({"type": "message", "role": role, "content": [{"type": "text", "text": text}]}))
    };
    let marked = json!({"type": "message", "role": "user", "content": [{"text": "# Own note"}],
        "internal_chat_message_metadata_passthrough": {"content_item_kinds": ["environment"]}});
    let header = json!({"id": id, "cwd": "/work/a", "cli_version": "0.166.0",
        "originator": client, "git": {"branch": "main"}});
    let usage = json!({"type": "token_count", "info": {"last_token_usage": {"total_tokens": 42}}});
    let key = format!("sk-proj-{}", "a1B2".repeat(10));
    let rows = [
        line("session_meta", header),
        line("session_meta", json!({"cwd": "/work/source", "cli_version": "0"})),
        message("developer", "You are Codex."),
        message("user", "<environment_context>"),
        item(marked),
        message("user", &format!("Fix  it with {key}")),
        item(json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]})),
        item(json!({"type": "function_call", "name": "exec", "call_id": "c1",
            "arguments": "{\"cmd\":\"ls\"}"})),
        item(json!({"type": "function_call_output", "call_id": "c1", "output": "a.txt"})),
        item(json!({"type": "custom_tool_call", "name": "patch", "call_id": "c2", "input": "***"})),
        item(json!({"type": "custom_tool_call_output", "call_id": "c2",
            "output": [{"type": "input_text", "text": "done"}]})),
        line("event_msg", usage),
        message("assistant", "Done."),
        json!(["no object"]),
    ];
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let folder = root.join("sessions");
    let day = folder.join("2026/11/15");
    std::fs::create_dir_all(&day).unwrap();
    let path = day.join(format!("rollout-2026-11-15T10-00-00-{id}.jsonl"));
    std::fs::write(&path, lines + "damaged\n").unwrap();
    let file = std::fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at)).unwrap();
    NativeFolder { program: NativeProgram::Codex, path: folder }
}

#[test]
fn sessions_of_codex_are_listed_among_those_of_claude_and_found() {
    let projects = ProjectsFixture::new();
    projects.session("/work/a", 1, "Older.", 1000);
    projects.session("/work/b", 2, "Newer.", 3000);
    let root = projects.root.parent().unwrap();
    let id = Uuid::from_u128(7 << 96);
    let codex = write_rollout(root, id, "codex_cli_rs", 2000);
    write_rollout(root, Uuid::from_u128(8 << 96), "heeler", 500);
    std::os::unix::fs::symlink(root, codex.path.join("2027")).unwrap();
    std::fs::write(codex.path.join("2026/11/15/rollout-x.jsonl"), "").unwrap();
    let folders = [projects.folder(), codex.clone()];
    let listed = |filter: &NativeSessionFilter| {
        let page = list(&folders, filter, 9).unwrap();
        let ids = page.sessions.iter().map(NativeSession::qualified_id);
        let id = |id: String| id.trim_end_matches("0000-0000-0000-000000000000").to_owned();
        ids.map(id).collect::<Vec<String>>()
    };
    let all = NativeSessionFilter::default();
    let expected = ["00000002-", "codex:00000007-", "00000001-", "codex:00000008-"];
    assert_eq!(listed(&all), expected.map(str::to_owned).to_vec());
    let here = NativeSessionFilter { cwd: Some("/work/a".into()), ..all.clone() };
    assert_eq!(listed(&here), expected[1..].iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
    let after =
        NativeSessionFilter { before: Some(id.to_string().parse().unwrap()), ..all.clone() };
    assert_eq!(listed(&after).len(), 2);
    let gone = NativeSessionFilter { before: Some("gone".parse().unwrap()), ..all };
    let error = list(&folders, &gone, 9).unwrap_err();
    assert!(matches!(error, NativeSessionError::UnknownPosition { .. }), "{error}");

    let found = find(&codex, "00000007").unwrap();
    assert_eq!((found.messages, found.tokens, found.is_heelers), (5, 42, false));
    assert_eq!(found.cwd.as_deref(), Some(Utf8Path::new("/work/a")));
    assert_eq!(found.git_branch.as_deref(), Some("main"));
    assert_eq!(found.version.as_deref(), Some("0.166.0"));
    assert!(found.title.as_deref().is_some_and(|title| title.starts_with("Fix it with")));
    assert!(find(&codex, "00000008").unwrap().is_heelers);
    let error = find(&codex, "00000001").unwrap_err();
    assert!(error.to_string().contains("codex has no session"), "{error}");
}

#[test]
fn messages_of_codex_become_rows_without_secrets() {
    let temp = tempfile::tempdir().unwrap();
    let id = Uuid::from_u128(7 << 96);
    let folder = write_rollout(Utf8Path::from_path(temp.path()).unwrap(), id, "codex", 1000);
    let session = find(&folder, &id.to_string()).unwrap();
    let mut text = String::new();
    let mut rows = NativeRows::open(&session, DisplayRedactor::new(&[])).unwrap();
    io::Read::read_to_string(&mut rows, &mut text).unwrap();
    let rows: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let contents: Vec<String> =
        rows.iter().map(|row| row["message"]["content"].to_string()).collect();
    assert_eq!(
        contents,
        [
            r#""Fix  it with [secret]""#,
            r#"[{"type":"thinking","thinking":"Hm."}]"#,
            r#"[{"type":"tool_use","id":"c1","name":"exec","input":{"cmd":"ls"}}]"#,
            r#"[{"type":"tool_result","tool_use_id":"c1","content":"a.txt"}]"#,
            r#"[{"type":"tool_use","id":"c2","name":"patch","input":{"input":"***"}}]"#,
            r#"[{"type":"tool_result","tool_use_id":"c2","content":"done"}]"#,
            r#"[{"type":"text","text":"Done."}]"#,
            "null",
        ]
    );
    let last = rows.last().unwrap();
    assert_eq!((&last["nativeSessionId"], &last["nativeAgent"]), (&json!(id), &json!("codex")));
    assert!(rows[..7].iter().all(|row| row["uuid"].is_string() && row["timestamp"].is_string()));
}

#[test]
fn a_session_is_named_with_its_program() {
    for (name, expected) in [
        ("abc", (NativeProgram::Claude, "abc")),
        ("claude:abc", (NativeProgram::Claude, "abc")),
        ("codex:abc", (NativeProgram::Codex, "abc")),
        ("qwen:abc", (NativeProgram::Qwen, "abc")),
        ("gemini:abc", (NativeProgram::Gemini, "abc")),
        ("codex", (NativeProgram::Claude, "codex")),
        ("other:abc", (NativeProgram::Claude, "other:abc")),
    ] {
        assert_eq!(NativeProgram::split_id(name), expected, "{name}");
    }
    let env = |name: &str| (name == "HOME").then_some("/home/u");
    let folder = NativeProgram::Codex.folder(env, Utf8Path::new("/work")).unwrap();
    assert_eq!(folder.path, "/home/u/.codex/sessions");
    let env = |name: &str| (name == "CODEX_HOME").then_some("own");
    let folder = NativeProgram::Codex.folder(env, Utf8Path::new("/work")).unwrap();
    assert_eq!(folder.path, "/work/own/sessions");
    assert_eq!(native_folders(env, Utf8Path::new("/work")).len(), 1);
    let folder = |program: NativeProgram, variable: &str| {
        let env = |name: &str| (name == variable).then_some("/own");
        program.folder(env, Utf8Path::new("/work")).unwrap().path
    };
    assert_eq!(folder(NativeProgram::Qwen, "HOME"), "/own/.qwen/projects");
    assert_eq!(folder(NativeProgram::Qwen, "QWEN_HOME"), "/own/projects");
    assert_eq!(folder(NativeProgram::Gemini, "HOME"), "/own/.gemini/tmp");
    assert_eq!(folder(NativeProgram::Gemini, "GEMINI_CLI_HOME"), "/own/.gemini/tmp");
}

/// Writes one file of a thread of Codex, and returns its length.
fn write_part(folder: &Utf8Path, name: &str, lines: &[Json]) -> usize {
    let day = folder.join("2026/11/18");
    std::fs::create_dir_all(&day).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(day.join(format!("rollout-2026-11-18T12-00-00-{name}.jsonl")), &text).unwrap();
    text.len()
}

fn rollout_header(thread: Uuid, base: Option<(Uuid, usize)>) -> Json {
    let base = base.map(|(id, end)| json!({"thread_id": id, "end_byte_offset": end}));
    json!({"type": "session_meta", "payload": {"id": thread, "cwd": "/work/a", "history_base": base}})
}

fn rollout_turn(text: &str) -> Vec<Json> {
    let said = |role: &str, text: String| {
        json!({"type": "response_item", "payload": {"type": "message", "role": role,
            "content": [{"type": "text", "text": text}]}})
    };
    vec![said("user", text.to_owned()), said("assistant", format!("re: {text}"))]
}

fn prompts(folder: &NativeFolder, id: Uuid) -> Vec<String> {
    let session = find(folder, &id.to_string()).unwrap();
    let mut text = String::new();
    let mut rows = NativeRows::open(&session, DisplayRedactor::new(&[])).unwrap();
    io::Read::read_to_string(&mut rows, &mut text).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let prompts: Vec<String> =
        rows.filter_map(|row| row["message"]["content"].as_str().map(str::to_owned)).collect();
    assert_eq!(session.messages, prompts.len() as u64 * 2, "{prompts:?}");
    prompts
}

/// Codex 0.166.0 continues a reverted thread and a fork in new files.
#[test]
fn turns_that_codex_reverted_are_not_read() {
    let temp = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(temp.path()).unwrap().join("sessions");
    let folder = NativeFolder { program: NativeProgram::Codex, path: path.clone() };
    let [thread, second, fork, lost] = [1, 2, 3, 4].map(|id: u128| Uuid::from_u128(id << 96));
    let kept = [vec![rollout_header(thread, None)], rollout_turn("one")].concat();
    let end = kept.iter().map(|line| line.to_string().len() + 1).sum();
    let all = [kept, rollout_turn("two"), rollout_turn("three")].concat();
    write_part(&path, &thread.to_string(), &all);
    assert_eq!(prompts(&folder, thread), ["one", "two", "three"]);

    let header = vec![rollout_header(thread, Some((thread, end)))];
    let length =
        write_part(&path, &format!("{thread}_{second}"), &[header, rollout_turn("four")].concat());
    assert_eq!(prompts(&folder, thread), ["one", "four"]);
    let header = vec![rollout_header(fork, Some((second, length)))];
    write_part(&path, &fork.to_string(), &[header, rollout_turn("five")].concat());
    assert_eq!(prompts(&folder, fork), ["one", "four", "five"]);
    let listed = list(std::slice::from_ref(&folder), &NativeSessionFilter::default(), 9).unwrap();
    let mut listed: Vec<_> =
        listed.sessions.iter().map(|it| (it.id.to_string(), it.title.clone().unwrap())).collect();
    listed.sort();
    let one = || "one".to_owned();
    assert_eq!(listed, [(thread.to_string(), one()), (fork.to_string(), one())]);

    // A history of which a part is missing is refused, and so is a circle.
    for base in [Uuid::from_u128(9), lost] {
        write_part(&path, &lost.to_string(), &[rollout_header(lost, Some((base, 10)))]);
        let error = find(&folder, &lost.to_string()).unwrap_err();
        assert!(error.to_string().contains("cannot read"), "{error}");
    }
}

/// Older versions of Codex record in the same file how many turns were taken back.
#[test]
fn turns_that_were_taken_back_in_a_file_are_not_read() {
    let temp = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(temp.path()).unwrap().join("sessions");
    let folder = NativeFolder { program: NativeProgram::Codex, path: path.clone() };
    let thread = Uuid::from_u128(1 << 96);
    let back = |turns: Json| {
        let event = json!({"type": "thread_rolled_back", "num_turns": turns});
        vec![json!({"type": "event_msg", "payload": event})]
    };
    for (turns, expected) in [
        (json!(0), &["one", "two", "three", "four"][..]),
        (json!(1), &["one", "two", "four"]),
        (json!(2), &["one", "four"]),
        (json!(u64::MAX), &["four"]),
        (json!("x"), &["one", "two", "three", "four"]),
    ] {
        let lines = [
            vec![rollout_header(thread, None)],
            rollout_turn("one"),
            rollout_turn("two"),
            rollout_turn("three"),
            back(turns),
            rollout_turn("four"),
        ];
        write_part(&path, &thread.to_string(), &lines.concat());
        assert_eq!(prompts(&folder, thread), expected);
    }
}

#[test]
fn the_native_session_of_the_last_run_is_read_from_the_row_that_records_it() {
    let temp = tempfile::tempdir().unwrap();
    let log = Utf8Path::from_path(temp.path()).unwrap().join("log.jsonl");
    let opened = |rows: &[Json]| {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(&log, lines).unwrap();
        let opened = last_opened(&log).unwrap();
        opened.map(|(agent, id)| format!("{agent}:{id}"))
    };
    let row = heeler_model::native_session_row;
    // An agent may write such a row as text.
    let forged = json!({"type": "user", "message": {"content": row("codex", "forged")},
        "nativeSessionId": "forged", "nativeAgent": "codex"});
    assert_eq!(opened(std::slice::from_ref(&forged)), None);
    let found = opened(&[row("codex", "one"), row("gemini", "two"), forged]);
    assert_eq!(found.as_deref(), Some("gemini:two"));
    assert_eq!(opened(&[row("codex", "one"), row("codex", "../../evil")]), None);
}
