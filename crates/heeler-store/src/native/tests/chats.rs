//! Sessions of Qwen Code and Gemini CLI. The lines are those that the programs write.

use super::*;

const SESSION: &str = "b536dfa6-5b32-4c50-9b26-7c1ae6e223a7";

fn write_lines(file: &Utf8Path, lines: &[Json]) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(file, lines + "damaged\n").unwrap();
}

/// Returns a line of Qwen Code 0.24.4 with the number of the line before it.
fn qwen_line(number: u32, parent: Option<u32>, kind: &str, parts: Json) -> Json {
    let provenance = if kind == "user" { "real_user" } else { kind };
    json!({
        "uuid": format!("line-{number}"), "parentUuid": parent.map(|it| format!("line-{it}")),
        "sessionId": SESSION, "timestamp": format!("2026-11-18T15:29:{number:02}.000Z"),
        "type": kind, "provenance": provenance, "cwd": "/work/a", "version": "0.24.4",
        "message": { "role": "user", "parts": parts },
        "usageMetadata": { "totalTokenCount": 100 + number },
    })
}

fn qwen_lines() -> Vec<Json> {
    let key = format!("Fix  it with sk-ant-{}", "a".repeat(40));
    let call = json!({ "functionCall": { "id": "c1", "name": "run_shell_command",
        "args": { "command": "ls" } } });
    let failed = json!({ "functionResponse": { "id": "c1", "name": "run_shell_command",
        "response": { "error": "[Operation Cancelled]" } } });
    let mut note = qwen_line(2, Some(1), "user", json!([{ "text": "a note" }]));
    note["provenance"] = "system".into();
    vec![
        qwen_line(1, None, "user", json!([{ "text": key }])),
        note,
        qwen_line(3, Some(2), "system", Json::Null),
        qwen_line(
            4,
            Some(3),
            "assistant",
            json!([{ "text": "Hm.", "thought": true },
            { "text": "I look." }, call]),
        ),
        qwen_line(5, Some(4), "tool_result", json!([failed])),
        qwen_line(6, Some(5), "assistant", json!([{ "text": "Wrong." }])),
        // The person went back, so the last reply is on another branch.
        qwen_line(7, Some(5), "assistant", json!([{ "text": "Done." }])),
        json!(["no object"]),
    ]
}

fn gemini_lines() -> Vec<Json> {
    let at = "2026-11-18T15:58:00.865Z";
    let user = |id: &str, text: &str| json!({ "id": id, "timestamp": at, "type": "user", "content": [{ "text": text }] });
    let said = |id: &str, text: &str, calls: Json| {
        json!({ "id": id, "timestamp": at, "type": "gemini", "content": text,
            "thoughts": [{ "subject": "Plan", "description": "Hm." }], "toolCalls": calls,
            "tokens": { "total": 120 } })
    };
    let calls = json!([{ "id": "c1", "name": "run_shell_command", "args": { "command": "ls" },
        "result": [{ "functionResponse": { "id": "c1", "response": { "output": "a.txt" } } }],
        "status": "success" }]);
    vec![
        json!({ "sessionId": SESSION, "projectHash": "x", "startTime": at, "kind": "main" }),
        json!({ "$set": { "messages": [user("0", "<session_context>\nfiles")] } }),
        user("1", "Fix  it."),
        json!({ "$set": { "lastUpdated": at } }),
        // The message is completed by a later line.
        said("2", "I look.", Json::Null),
        said("2", "I look.", calls),
        json!({ "id": "r", "timestamp": at, "type": "user",
            "content": [{ "functionResponse": { "id": "c1" } }] }),
        user("3", "Taken back."),
        said("4", "Wrong.", Json::Null),
        json!({ "$rewindTo": "3" }),
        json!({ "id": "i", "timestamp": at, "type": "info", "content": "a note" }),
        said("5", "Done.", Json::Null),
    ]
}

/// Writes a session of each program; returns their folders.
fn write_sessions(root: &Utf8Path) -> [NativeFolder; 2] {
    let qwen = root.join(".qwen/projects");
    write_lines(&qwen.join(format!("-work-a/chats/{SESSION}.jsonl")), &qwen_lines());
    let gemini = root.join(".gemini/tmp");
    write_lines(&gemini.join("a/chats/session-2026-11-18T15-57-b536dfa6.jsonl"), &gemini_lines());
    std::fs::write(gemini.join("a/.project_root"), "/work/a").unwrap();
    [(NativeProgram::Qwen, qwen), (NativeProgram::Gemini, gemini)]
        .map(|(program, path)| NativeFolder { program, path })
}

fn contents(session: &NativeSession) -> Vec<Json> {
    let mut text = String::new();
    let mut rows = NativeRows::open(session, DisplayRedactor::new(&[])).unwrap();
    io::Read::read_to_string(&mut rows, &mut text).unwrap();
    let rows: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = rows.last().unwrap();
    let expected = (&json!(SESSION), &json!(session.program.as_str()));
    assert_eq!((&last["nativeSessionId"], &last["nativeAgent"]), expected);
    rows[..rows.len() - 1].iter().map(|row| row["message"]["content"].clone()).collect()
}

#[test]
fn sessions_of_qwen_and_gemini_are_listed_and_found() {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(temp.path()).unwrap();
    let folders = write_sessions(root);
    for folder in &folders {
        // Other files, links and sessions of sub-agents are not sessions of a person.
        let chats = folder.path.join("b/chats");
        write_lines(&chats.join("session-x.jsonl"), &[json!({ "sessionId": "no id" })]);
        let id = Uuid::from_u128(1).to_string();
        let sub_agent = json!({ "sessionId": id, "kind": "subagent" });
        write_lines(&chats.join("session-y.jsonl"), &[sub_agent]);
        std::os::unix::fs::symlink(root, chats.join(format!("{SESSION}.jsonl"))).unwrap();
        std::os::unix::fs::symlink(folder.path.join("b"), folder.path.join("link")).unwrap();
    }
    let page = list(&folders, &NativeSessionFilter::default(), 9).unwrap();
    assert_eq!((page.total, page.unreadable.len()), (2, 0));
    let here = |cwd: &str| NativeSessionFilter { cwd: Some(cwd.into()), ..Default::default() };
    assert_eq!(list(&folders, &here("/work/a"), 9).unwrap().total, 2);
    assert_eq!(list(&folders, &here("/work/b"), 9).unwrap().total, 0);
    for folder in &folders {
        let found = find(folder, &SESSION[..8]).unwrap();
        assert_eq!(found.qualified_id(), format!("{}:{SESSION}", folder.program));
        assert_eq!(found.cwd.as_deref(), Some(Utf8Path::new("/work/a")));
        assert_eq!(found.messages, 3, "{found:?}");
        assert!(found.title.as_deref().is_some_and(|it| it.starts_with("Fix it")), "{found:?}");
        assert!(found.first_at.is_some() && !found.is_estimate && !found.is_heelers);
        let expected = if folder.program == NativeProgram::Qwen { 107 } else { 120 };
        assert_eq!(found.tokens, expected);
        let error = find(folder, "ffff").unwrap_err();
        assert!(error.to_string().contains("has no session"), "{error}");
    }
}

#[test]
fn messages_of_qwen_become_rows_without_secrets_and_other_branches() {
    let temp = tempfile::tempdir().unwrap();
    let [qwen, _] = write_sessions(Utf8Path::from_path(temp.path()).unwrap());
    let session = find(&qwen, SESSION).unwrap();
    assert_eq!(session.version.as_deref(), Some("0.24.4"));
    assert_eq!(
        contents(&session),
        [
            json!("Fix  it with [secret]"),
            json!([{ "type": "thinking", "thinking": "Hm." },
                { "type": "text", "text": "I look." },
                { "type": "tool_use", "id": "c1", "name": "run_shell_command",
                    "input": { "command": "ls" } }]),
            json!([{ "type": "tool_result", "tool_use_id": "c1",
                "content": "[Operation Cancelled]", "is_error": true }]),
            json!([{ "type": "text", "text": "Done." }]),
        ]
    );
}

#[test]
fn messages_of_gemini_become_rows_as_they_are_now() {
    let temp = tempfile::tempdir().unwrap();
    let [_, gemini] = write_sessions(Utf8Path::from_path(temp.path()).unwrap());
    let thought = json!({ "type": "thinking", "thinking": "Plan\nHm." });
    assert_eq!(
        contents(&find(&gemini, SESSION).unwrap()),
        [
            json!("Fix  it."),
            json!([thought, { "type": "text", "text": "I look." },
                { "type": "tool_use", "id": "c1", "name": "run_shell_command",
                    "input": { "command": "ls" } }]),
            json!([{ "type": "tool_result", "tool_use_id": "c1", "content": "a.txt",
                "is_error": false }]),
            json!([thought, { "type": "text", "text": "Done." }]),
        ]
    );
}

/// Lines that name each other, values of wrong types, and bytes that are no text.
#[test]
fn damaged_sessions_are_survived() {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(temp.path()).unwrap();
    let circle = [
        qwen_line(1, Some(2), "user", json!([{ "text": "one" }])),
        qwen_line(2, Some(1), "assistant", json!([{ "text": "two" }])),
    ];
    let wrong = [
        json!({ "uuid": 1, "parentUuid": [], "type": {}, "message": "x", "timestamp": 5 }),
        json!({ "uuid": "a", "type": "assistant", "message": { "parts": [1, null, {
            "functionCall": { "id": 5 } }, { "functionCall": { "id": "c" } }] } }),
        json!({ "sessionId": SESSION, "id": "a", "type": "gemini", "content": 5,
            "thoughts": [null, 1], "toolCalls": [null, { "id": "c", "result": 5 }] }),
        json!({ "$set": 5 }),
        json!({ "$set": { "messages": [null, 5, { "id": 5 }] } }),
        json!({ "$rewindTo": "unknown" }),
    ];
    for lines in [&circle[..], &wrong[..], &[]] {
        for (program, name) in [
            (NativeProgram::Qwen, format!("{SESSION}.jsonl")),
            (NativeProgram::Gemini, "session-z.jsonl".to_owned()),
        ] {
            let folder = NativeFolder { program, path: root.join(program.as_str()) };
            let file = folder.path.join("p/chats").join(name);
            let header = json!({ "sessionId": SESSION, "kind": "main" });
            write_lines(&file, &[&[header], lines].concat());
            let mut bytes = std::fs::read(&file).unwrap();
            bytes.extend(b"\xff\xfe\x00\n{\"uuid\":\"\xff\"}\n{");
            std::fs::write(&file, bytes).unwrap();
            let session = find(&folder, SESSION).unwrap();
            contents(&session);
        }
    }
}

#[test]
fn a_session_that_is_too_large_is_listed_and_not_read() {
    let temp = tempfile::tempdir().unwrap();
    let [qwen, gemini] = write_sessions(Utf8Path::from_path(temp.path()).unwrap());
    for folder in [qwen, gemini] {
        let found = find(&folder, SESSION).unwrap();
        let file = std::fs::File::options().append(true).open(&found.path).unwrap();
        // A sparse file of this size takes no space.
        file.set_len(crate::native::chat_history::CHAT_BYTES_MAX + 1).unwrap();
        let page = list(std::slice::from_ref(&folder), &NativeSessionFilter::default(), 9).unwrap();
        let listed = &page.sessions[0];
        assert!(listed.is_estimate && listed.title.is_some(), "{listed:?}");
        let error = find(&folder, SESSION).unwrap_err();
        let error = heeler_model::error_chain(&error);
        assert!(error.contains("larger than 64 MiB"), "{error}");
        let refused = NativeRows::open(listed, DisplayRedactor::new(&[])).err();
        assert!(refused.is_some());
    }
}
