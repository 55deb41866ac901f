//! Native sessions of programs besides Claude Code, in bundles.

use heeler_transcript::fault;

use super::*;
use crate::native::{
    NativeFolder, NativeProgram, NativeSessionHeader, PortableNativeSession, find_portable,
};

const NATIVE_ID: &str = "00000000-0000-4000-8000-000000000007";
const THEIR_DIRECTORY: &str = "/home/them/app";
const ROLLOUT: &str = "rollout-2026-11-19T12-56-11-00000000-0000-4000-8000-000000000007.jsonl";
const CHAT: &str = "session-2026-11-19T12-56-00000000.jsonl";

/// Programs of which a bundle carries the native session.
const PROGRAMS: [NativeProgram; 6] = [
    NativeProgram::Codex,
    NativeProgram::Qwen,
    NativeProgram::Gemini,
    NativeProgram::Copilot,
    NativeProgram::Kimi,
    NativeProgram::Grok,
];

fn folder_in(home: &Utf8Path, program: NativeProgram) -> NativeFolder {
    let env = |name: &str| (name == "HOME").then_some(home.as_str());
    program.folder(env, Utf8Path::new("/")).unwrap()
}

/// Returns the lines of a session that was made in a directory.
fn lines_of(program: NativeProgram, directory: &str) -> Vec<Json> {
    let said = |text: &str| json!({ "text": text, "cwd": directory, "float": 1.5 });
    match program {
        NativeProgram::Codex => vec![
            json!({ "type": "session_meta", "payload": { "id": NATIVE_ID, "cwd": directory,
                "originator": "heeler" } }),
            json!({ "type": "response_item", "payload": { "content": [said(directory)] } }),
            json!({ "type": "turn_context", "payload": { "cwd": directory, "model": "m" } }),
        ],
        NativeProgram::Qwen => vec![
            json!({ "uuid": "a", "cwd": directory, "message": { "parts": [said(directory)] } }),
            json!({ "uuid": "b", "cwd": "/elsewhere", "message": {} }),
        ],
        NativeProgram::Gemini => vec![
            json!({ "sessionId": NATIVE_ID, "projectHash": "x", "kind": "main" }),
            json!({ "id": "1", "type": "user", "content": [said(directory)] }),
        ],
        NativeProgram::Copilot => vec![
            json!({ "type": "session.start", "data": { "context": {
                "cwd": directory, "gitRoot": directory, "branch": "main" } } }),
            json!({ "type": "user.message", "data": said(directory) }),
        ],
        NativeProgram::Kimi => vec![
            json!({ "type": "config.update", "cwd": directory }),
            json!({ "type": "context.append_message", "message": said(directory) }),
        ],
        _ => vec![json!({ "type": "user", "content": [said(directory)] })],
    }
}

/// Writes a session as its program does; returns the file with the messages.
fn write_session(folder: &NativeFolder, directory: &Utf8Path) -> Utf8PathBuf {
    let write = |path: &str, text: String| {
        let path = folder.path.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let lines = lines_of(folder.program, directory.as_str());
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    match folder.program {
        NativeProgram::Codex => write(&format!("2026/11/19/{ROLLOUT}"), lines),
        NativeProgram::Qwen => write(&format!("project/chats/{NATIVE_ID}.jsonl"), lines),
        NativeProgram::Gemini => {
            write("project/.project_root", directory.to_string());
            write(&format!("project/chats/{CHAT}"), lines)
        }
        NativeProgram::Copilot => write(&format!("{NATIVE_ID}/events.jsonl"), lines),
        NativeProgram::Kimi => {
            let session = folder.path.join(format!("wd/{NATIVE_ID}"));
            let state = json!({ "cwd": directory, "title": "A title", "agents": {
                "main": { "homedir": session.join("agents/main"), "type": "main" },
                "other": { "homedir": "/elsewhere" } }, "secret": "/etc/passwd" });
            write(&format!("wd/{NATIVE_ID}/state.json"), state.to_string());
            write(&format!("wd/{NATIVE_ID}/agents/main/wire.jsonl"), lines)
        }
        _ => {
            let summary = json!({ "info": { "id": NATIVE_ID, "cwd": directory },
                "session_kind": "headless", "git_root": "/home/them", "roots": ["~/.ssh", "a"] });
            write(&format!("project/{NATIVE_ID}/summary.json"), summary.to_string());
            write(&format!("project/{NATIVE_ID}/chat_history.jsonl"), lines)
        }
    }
}

/// Finds the session of a program as an export does.
fn find(folder: &NativeFolder, directory: &str) -> PortableNativeSession {
    let id = NATIVE_ID.parse().unwrap();
    find_portable(folder, &id, &[Utf8Path::new(directory)]).unwrap()
}

fn export_native(there: &BundleTestHost, native: Option<&PortableNativeSession>) -> Vec<u8> {
    let (log, _) = there.files(b"{\"type\":\"user\"}\n", b"");
    let mut out = Vec::new();
    let contents = BundleContents {
        session: &session(),
        jobs: &[],
        log: Some(&log),
        native_file: None,
        native_session: native,
        workspace: Vec::new(),
        redactor: &SecretRedactor::new(&["hunter2hunter2".to_owned()]),
    };
    write(contents, &mut out).unwrap();
    out
}

/// Exports the session of a program from one home.
fn exported(there: &BundleTestHost, program: NativeProgram) -> Vec<u8> {
    let folder = folder_in(&there.path("their-home"), program);
    write_session(&folder, Utf8Path::new(THEIR_DIRECTORY));
    export_native(there, Some(&find(&folder, THEIR_DIRECTORY)))
}

fn install(
    here: &BundleTestHost,
    bundle: &SessionBundle,
    folder: &NativeFolder,
) -> Result<InstalledBundle, BundleInstallError> {
    let cwd = here.path("our-work");
    let to = BundleDestination { cwd: &cwd, native_projects: None, native_folder: Some(folder) };
    install_bundle(&here.dir, bundle, &to)
}

fn lines_in(path: &Utf8Path) -> Vec<Json> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn sessions_of_each_program_are_placed_where_it_looks_with_the_directory_of_this_machine() {
    for program in PROGRAMS {
        let (there, here) = (BundleTestHost::new(), BundleTestHost::new());
        let bytes = exported(&there, program);
        let document: Json = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&document["version"], &document["own"]), (&json!(2), &Json::Null));
        assert_eq!(document["native"][0]["program"], program.as_str());
        assert!(document["sums"]["native"]["lines"].as_u64() > Some(1));
        let bundle = here.bundle(&bytes).unwrap();
        let folder = folder_in(&here.path("our-home"), program);
        let placed = install(&here, &bundle, &folder).unwrap().native_path.unwrap();
        assert!(placed.starts_with(&folder.path), "{placed}");

        // The program records and names the new directory, and its messages are as they were.
        let cwd = here.path("our-work");
        let found = find(&folder, cwd.as_str());
        assert_eq!((&found.path, &found.header.directory), (&placed, &cwd));
        let text = json!({ "text": THEIR_DIRECTORY, "cwd": THEIR_DIRECTORY, "float": 1.5 });
        let lines = lines_in(&placed);
        let says = |line: &Json| line.to_string().contains(&text.to_string());
        assert!(lines.iter().any(says), "{lines:#?}");
        let expected = lines_of(program, cwd.as_str());
        let same = lines.iter().zip(&expected).filter(|(one, other)| one == other).count();
        assert_eq!(lines.len(), expected.len());
        let with_paths_in_messages = lines.iter().filter(|line| says(line)).count();
        assert_eq!(same + with_paths_in_messages, lines.len(), "{lines:#?}");

        // Placed again, as after a crash.
        install(&here, &bundle, &folder).unwrap();
        // An agent of another program gets the messages as text only.
        let other = PROGRAMS.into_iter().find(|other| *other != program).unwrap();
        let other = folder_in(&here.path("our-home"), other);
        assert_eq!(install(&here, &bundle, &other).unwrap().native_path, None);
    }
}

#[test]
fn folders_are_named_as_the_programs_do() {
    let places = [
        (NativeProgram::Codex, format!("2026/11/19/{ROLLOUT}")),
        (NativeProgram::Qwen, format!("PROJECT/chats/{NATIVE_ID}.jsonl")),
        (NativeProgram::Gemini, format!("our-work/chats/{CHAT}")),
        (NativeProgram::Copilot, format!("{NATIVE_ID}/events.jsonl")),
        (NativeProgram::Grok, format!("ENCODED/{NATIVE_ID}/chat_history.jsonl")),
    ];
    for (program, place) in places {
        let (there, here) = (BundleTestHost::new(), BundleTestHost::new());
        let bundle = here.bundle(&exported(&there, program)).unwrap();
        let folder = folder_in(&here.path("our-home"), program);
        let placed = install(&here, &bundle, &folder).unwrap().native_path.unwrap();
        let cwd = here.path("our-work");
        let place = place
            .replace("PROJECT", &heeler_model::project_slug(&cwd))
            .replace("ENCODED", &cwd.as_str().replace('/', "%2F"));
        assert_eq!(placed, folder.path.join(place));
    }
}

#[test]
fn a_description_keeps_no_path_of_the_other_machine() {
    let describe = |program, name: &str| {
        let (there, here) = (BundleTestHost::new(), BundleTestHost::new());
        let bundle = here.bundle(&exported(&there, program)).unwrap();
        let folder = folder_in(&here.path("our-home"), program);
        let placed = install(&here, &bundle, &folder).unwrap().native_path.unwrap();
        let session = placed.ancestors().find(|it| it.file_name() == Some(NATIVE_ID)).unwrap();
        let text = std::fs::read_to_string(session.join(name)).unwrap();
        let main = session.join("agents/main");
        (serde_json::from_str::<Json>(&text).unwrap(), here.path("our-work"), main)
    };
    let (state, cwd, main) = describe(NativeProgram::Kimi, "state.json");
    let expected = json!({ "cwd": cwd, "title": "A title",
        "agents": { "main": { "homedir": main, "type": "main" } } });
    assert_eq!(state, expected);
    let (summary, cwd, _) = describe(NativeProgram::Grok, "summary.json");
    let expected = json!({ "info": { "id": NATIVE_ID, "cwd": cwd }, "session_kind": "headless",
        "roots": ["a"] });
    assert_eq!(summary, expected);
}

#[test]
fn an_import_that_is_cut_off_leaves_no_half_session_and_can_be_repeated() {
    for program in PROGRAMS {
        let there = BundleTestHost::new();
        let bytes = exported(&there, program);
        let mut faults = 0;
        loop {
            let here = BundleTestHost::new();
            let bundle = here.bundle(&bytes).unwrap();
            let folder = folder_in(&here.path("our-home"), program);
            fault::fail_after(faults);
            let first = install(&here, &bundle, &folder).map(drop);
            fault::never_fail();
            let cwd = here.path("our-work");
            let id = NATIVE_ID.parse().unwrap();
            // It is absent or complete.
            if let Ok(found) = find_portable(&folder, &id, &[&cwd]) {
                assert_eq!(lines_in(&found.path).len(), lines_of(program, "/").len());
            }
            let log = StateDir::session_log_relative(&cwd, &session().agent_session_id.unwrap());
            assert!(
                !here.dir.root().join(log).exists() || find_portable(&folder, &id, &[&cwd]).is_ok()
            );
            install(&here, &bundle, &folder).unwrap();
            find(&folder, cwd.as_str());
            if first.is_ok() {
                break;
            }
            faults += 1;
        }
        assert!(faults >= 2, "{program}: the faults were met");
    }
}

#[test]
fn no_file_of_a_program_is_changed_and_no_link_followed() {
    for program in PROGRAMS {
        let (there, here) = (BundleTestHost::new(), BundleTestHost::new());
        let bundle = here.bundle(&exported(&there, program)).unwrap();
        let folder = folder_in(&here.path("our-home"), program);
        let placed = install(&here, &bundle, &folder).unwrap().native_path.unwrap();
        let mut longer = std::fs::read(&placed).unwrap();
        longer.extend(b"{}\n");
        std::fs::write(&placed, &longer).unwrap();
        let error = install(&here, &bundle, &folder).unwrap_err();
        assert!(
            matches!(&error, BundleInstallError::Exists { path } if *path == placed),
            "{error}"
        );
        assert_eq!(std::fs::read(&placed).unwrap(), longer);

        std::fs::remove_file(&placed).unwrap();
        let outside = here.path("outside.jsonl");
        std::os::unix::fs::symlink(&outside, &placed).unwrap();
        let error = heeler_model::error_chain(&install(&here, &bundle, &folder).unwrap_err());
        assert!(error.contains("is a symbolic link"), "{error}");
        std::fs::remove_dir_all(&folder.path).unwrap();
        std::fs::create_dir(here.path("outside")).unwrap();
        std::os::unix::fs::symlink(here.path("outside"), &folder.path).unwrap();
        let error = heeler_model::error_chain(&install(&here, &bundle, &folder).unwrap_err());
        assert!(error.contains("is a symbolic link"), "{error}");
        assert!(!outside.exists());
        assert_eq!(std::fs::read_dir(here.path("outside")).unwrap().count(), 0);
    }
}

#[test]
fn names_in_a_bundle_cannot_leave_the_folder() {
    let there = BundleTestHost::new();
    let (messages, _) = there.files(b"{}\n", b"");
    let names = [
        (NativeProgram::Codex, "../../evil.jsonl"),
        (
            NativeProgram::Codex,
            "rollout-2026-11-19T12-56-11-00000000-0000-4000-8000-000000000008.jsonl",
        ),
        (
            NativeProgram::Codex,
            "rollout-../../../.T12-56-11-00000000-0000-4000-8000-000000000007.jsonl",
        ),
        (NativeProgram::Gemini, "session-/../../evil.jsonl"),
        (NativeProgram::Gemini, "evil.jsonl"),
        (NativeProgram::Claude, "evil.jsonl"),
    ];
    for (program, name) in names {
        let header = NativeSessionHeader {
            program,
            id: NATIVE_ID.parse().unwrap(),
            name: name.to_owned(),
            directory: THEIR_DIRECTORY.into(),
            description: None,
        };
        let native = PortableNativeSession { path: messages.clone(), header };
        let here = BundleTestHost::new();
        let bundle = here.bundle(&export_native(&there, Some(&native))).unwrap();
        let folder = folder_in(&here.path("our-home"), program);
        let error = heeler_model::error_chain(&install(&here, &bundle, &folder).unwrap_err());
        assert!(error.contains("is not that of a session of"), "{error}");
        assert!(!here.path("our-home").exists(), "nothing is written");
    }
}

#[test]
fn a_native_part_that_is_changed_or_of_another_version_is_refused() {
    let here = BundleTestHost::new();
    let bytes = exported(&here, NativeProgram::Qwen);
    let text = String::from_utf8(bytes).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        here.bundle(text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
    };
    let old = changed("\"version\":2", "\"version\":1");
    assert!(old.contains("is not the sums"), "{old}");
    let program = changed("\"program\":\"qwen\"", "\"program\":\"none\"");
    assert!(program.contains("is not an entry"), "{program}");
    let id = changed(&format!("\"id\":\"{NATIVE_ID}\""), "\"id\":\"../evil\"");
    assert!(id.contains("is not an entry"), "{id}");
    let message = changed("\"uuid\":\"b\"", "\"uuid\":\"c\"");
    assert!(message.contains("its part `native`"), "{message}");
    // A description is limited, and so is its line.
    let folder = folder_in(&here.path("their-home"), NativeProgram::Qwen);
    let mut native = find(&folder, THEIR_DIRECTORY);
    native.header.description = Some("x".repeat(256 << 10).into());
    let error = here.bundle(&export_native(&here, Some(&native))).unwrap_err();
    assert!(error.to_string().contains("is not an entry"), "{error}");
    native.header.description = None;
    native.header.name = "x".repeat(NATIVE_HEADER_BYTES_MAX);
    let error = here.bundle(&export_native(&here, Some(&native))).unwrap_err();
    assert!(error.to_string().contains("is not an entry"), "{error}");
}

#[test]
fn a_bundle_without_a_native_session_is_read_by_earlier_releases() {
    let here = BundleTestHost::new();
    let text = String::from_utf8(export_native(&here, None)).unwrap();
    assert!(text.starts_with("{\"format\":\"heeler-session\",\"version\":1,\n"), "{text}");
    assert!(!text.contains("\"native\":"), "{text}");
    let bundle = here.bundle(text.as_bytes()).unwrap();
    let folder = folder_in(&here.path("our-home"), NativeProgram::Codex);
    assert_eq!(install(&here, &bundle, &folder).unwrap().native_path, None);
}

#[test]
fn a_session_that_is_not_exported_has_a_reason() {
    let here = BundleTestHost::new();
    let refused = |folder: &NativeFolder, directory: &str| {
        let id = NATIVE_ID.parse().unwrap();
        let refused = find_portable(folder, &id, &[Utf8Path::new(directory)]);
        heeler_model::error_chain(&refused.unwrap_err())
    };
    for program in PROGRAMS {
        let folder = folder_in(&here.path("home"), program);
        assert!(refused(&folder, THEIR_DIRECTORY).contains("no longer has its session"));
        let file = write_session(&folder, Utf8Path::new(THEIR_DIRECTORY));
        // An agent can report the ID of a person's session.
        assert!(refused(&folder, "/home/them").contains("was not made in the directory"));
        find(&folder, THEIR_DIRECTORY);
        if program == NativeProgram::Codex {
            let base = Uuid::from_u128(9);
            let source = ROLLOUT.replace(NATIVE_ID, &base.to_string());
            std::fs::write(file.with_file_name(source), "{\"type\":\"session_meta\"}\n").unwrap();
            let header = json!({ "type": "session_meta", "payload": { "id": NATIVE_ID,
                "cwd": THEIR_DIRECTORY,
                "history_base": { "thread_id": base, "end_byte_offset": 9 } } });
            std::fs::write(&file, format!("{header}\n")).unwrap();
            assert!(refused(&folder, THEIR_DIRECTORY).contains("in several files"));
        }
    }
}

#[test]
fn secrets_are_in_no_native_part() {
    let here = BundleTestHost::new();
    let folder = folder_in(&here.path("their-home"), NativeProgram::Qwen);
    let file = write_session(&folder, Utf8Path::new(THEIR_DIRECTORY));
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"text\":\"it is hunter2hunter2\"}\n");
    std::fs::write(&file, text).unwrap();
    let mut native = find(&folder, THEIR_DIRECTORY);
    native.header.description = Some(json!({ "title": "hunter2hunter2" }));
    let bytes = export_native(&here, Some(&native));
    assert!(!String::from_utf8(bytes.clone()).unwrap().contains("hunter2"));
    here.bundle(&bytes).unwrap();
}
