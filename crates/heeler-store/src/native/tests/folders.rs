//! Sessions of GitHub Copilot CLI, Kimi Code and Grok Build. The lines are those that the programs
//! write.

use super::*;

const SESSION: &str = "3dbfb607-d646-467c-83c1-508f3b7eb913";
const KIMI_SESSION: &str = "session_0ae2407b-0601-4cff-8fbb-36c697078ab2";
const PROGRAMS: [NativeProgram; 3] =
    [NativeProgram::Copilot, NativeProgram::Kimi, NativeProgram::Grok];

fn write_lines(file: &Utf8Path, lines: &[Json]) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(file, lines + "damaged\n").unwrap();
}

/// Returns an event of Copilot 1.0.102.
fn copilot_event(number: u32, kind: &str, data: Json) -> Json {
    json!({
        "type": kind, "data": data, "id": format!("event-{number}"),
        "timestamp": format!("2026-11-19T12:56:{number:02}.450Z"),
        "parentId": format!("event-{}", number.saturating_sub(1)),
    })
}

fn copilot_lines() -> Vec<Json> {
    let start = json!({ "sessionId": SESSION, "version": 1, "copilotVersion": "1.0.102",
        "context": { "cwd": "/work/a", "branch": "main" } });
    let key = format!("Fix  it with sk-ant-{}", "a".repeat(40));
    let call = json!({ "toolCallId": "c1", "name": "bash", "arguments": { "command": "ls" },
        "type": "function" });
    let denied = json!({ "toolCallId": "c1", "success": false,
        "error": { "message": "Permission denied", "code": "denied" } });
    let said = |text: &str| json!({ "messageId": "m", "content": text, "toolRequests": [] });
    let mut sub_agent = copilot_event(6, "assistant.message", said("Of a sub-agent."));
    sub_agent["agentId"] = "agent-1".into();
    vec![
        copilot_event(0, "session.start", start),
        copilot_event(
            1,
            "user.message",
            json!({ "content": key, "transformedContent": format!("<now/>{key}") }),
        ),
        copilot_event(2, "system.message", json!({ "role": "system", "content": "You are." })),
        copilot_event(3, "user.message", json!({ "content": "A skill.", "source": "skill-pdf" })),
        copilot_event(
            4,
            "assistant.message",
            json!({ "content": "I look.", "reasoningText": "Hm.", "toolRequests": [call] }),
        ),
        copilot_event(5, "tool.execution_complete", denied),
        sub_agent,
        copilot_event(7, "user.message", json!({ "content": "Taken back." })),
        copilot_event(8, "assistant.message", said("Wrong.")),
        copilot_event(
            9,
            "session.snapshot_rewind",
            json!({ "upToEventId": "event-7", "eventsRemoved": 2 }),
        ),
        copilot_event(10, "assistant.message", said("Withdrawn.")),
        copilot_event(
            11,
            "session.snapshot_rewind",
            json!({ "upToEventId": "event-10", "eventsRemoved": 1, "eventIds": ["event-10"] }),
        ),
        copilot_event(
            12,
            "session.usage_record",
            json!({ "usage": { "inputTokens": 100, "outputTokens": 20 } }),
        ),
        copilot_event(13, "assistant.message", said("Done.")),
    ]
}

fn kimi_lines() -> Vec<Json> {
    let at = 1_795_092_967_955_i64;
    let prompt = |text: &str, kind: &str| {
        json!({ "type": "context.append_message", "agentId": "main", "time": at, "message": {
            "role": "user", "content": [{ "type": "text", "text": text }], "toolCalls": [],
            "origin": { "kind": kind } } })
    };
    let event = |event: Json| json!({ "type": "context.append_loop_event", "agentId": "main", "event": event, "time": at });
    let part = |part: Json| event(json!({ "type": "content.part", "stepUuid": "s", "part": part }));
    vec![
        json!({ "type": "metadata", "protocol_version": "1.5", "created_at": at }),
        prompt("Cleared.", "user"),
        json!({ "type": "context.clear", "time": at }),
        prompt("Fix  it.", "user"),
        prompt("<system-reminder>", "injection"),
        event(json!({ "type": "step.begin", "uuid": "s", "step": 1 })),
        json!({ "type": "token_counting.measured", "length": 4, "tokens": 120, "time": at }),
        part(json!({ "type": "think", "think": "Hm." })),
        part(json!({ "type": "text", "text": "I look." })),
        event(json!({ "type": "tool.call", "toolCallId": "c1", "name": "Bash",
            "args": { "command": "ls" } })),
        event(json!({ "type": "tool.result", "toolCallId": "c1",
            "result": { "output": "no such file", "isError": true } })),
        event(json!({ "type": "step.end", "uuid": "s" })),
        prompt("Taken back.", "user"),
        part(json!({ "type": "text", "text": "Wrong." })),
        json!({ "type": "context.undo", "count": 1, "time": at }),
        // The program was killed in this reply.
        part(json!({ "type": "text", "text": "Done." })),
    ]
}

fn grok_lines() -> Vec<Json> {
    let user =
        |text: &str| json!({ "type": "user", "content": [{ "type": "text", "text": text }] });
    let mut prompt = user("<user_query>\nFix  it.\n</user_query>");
    prompt["prompt_index"] = 0.into();
    vec![
        json!({ "type": "system", "content": "You are." }),
        user("<user_info>"),
        prompt,
        json!({ "type": "reasoning", "id": "",
            "summary": [{ "type": "summary_text", "text": "Hm." }] }),
        json!({ "type": "assistant", "content": "I look.", "tool_calls": [{ "id": "c1",
            "name": "run_terminal_command", "arguments": "{\"command\": \"ls\"}" }] }),
        json!({ "type": "tool_result", "tool_call_id": "c1", "content": "exit: 0\n" }),
        json!({ "type": "assistant", "content": "Done." }),
    ]
}

/// Returns the file with the messages of a session.
fn messages_file(program: NativeProgram, folder: &Utf8Path) -> Utf8PathBuf {
    match program {
        NativeProgram::Copilot => folder.join(SESSION).join("events.jsonl"),
        NativeProgram::Kimi => {
            folder.join("wd_a_1").join(KIMI_SESSION).join("agents/main/wire.jsonl")
        }
        _ => folder.join("%2Fwork%2Fa").join(SESSION).join("chat_history.jsonl"),
    }
}

fn lines_of(program: NativeProgram) -> Vec<Json> {
    match program {
        NativeProgram::Copilot => copilot_lines(),
        NativeProgram::Kimi => kimi_lines(),
        _ => grok_lines(),
    }
}

fn id_of(program: NativeProgram) -> &'static str {
    if program == NativeProgram::Kimi { KIMI_SESSION } else { SESSION }
}

/// Writes a session of each program; returns their folders.
fn write_sessions(home: &Utf8Path) -> [NativeFolder; 3] {
    PROGRAMS.map(|program| {
        let env = |name: &str| (name == "HOME").then_some(home.as_str());
        let folder = program.folder(env, Utf8Path::new("/")).unwrap();
        let file = messages_file(program, &folder.path);
        write_lines(&file, &lines_of(program));
        let describe = |path: Utf8PathBuf, value: Json| {
            std::fs::write(path, value.to_string()).unwrap();
        };
        let beside = |up: usize, name: &str| file.ancestors().nth(up).unwrap().join(name);
        match program {
            NativeProgram::Kimi => describe(beside(3, "state.json"), json!({ "cwd": "/work/a" })),
            NativeProgram::Grok => describe(
                beside(1, "summary.json"),
                json!({ "info": { "id": SESSION, "cwd": "/work/a" }, "session_kind": "headless",
                    "created_at": "2026-11-19T12:56:11.640616586Z",
                    "last_active_at": "2026-11-19T12:56:12Z" }),
            ),
            _ => {}
        }
        folder
    })
}

fn contents(session: &NativeSession) -> Vec<Json> {
    let mut text = String::new();
    let mut rows = NativeRows::open(session, DisplayRedactor::new(&[])).unwrap();
    io::Read::read_to_string(&mut rows, &mut text).unwrap();
    let rows: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = rows.last().unwrap();
    let expected = (&json!(session.id), &json!(session.program.as_str()));
    assert_eq!((&last["nativeSessionId"], &last["nativeAgent"]), expected);
    rows[..rows.len() - 1].iter().map(|row| row["message"]["content"].clone()).collect()
}

#[test]
fn sessions_in_folders_are_listed_and_found() {
    let temp = tempfile::tempdir().unwrap();
    let home = Utf8Path::from_path(temp.path()).unwrap();
    let folders = write_sessions(home);
    for folder in &folders {
        // An empty folder, and a link, are not sessions.
        std::fs::create_dir_all(folder.path.join("empty/empty")).unwrap();
        std::os::unix::fs::symlink(home, folder.path.join("link")).unwrap();
    }
    let page = list(&folders, &NativeSessionFilter::default(), 9).unwrap();
    assert_eq!((page.total, page.unreadable.len()), (3, 0), "{page:?}");
    let here = |cwd: &str| NativeSessionFilter { cwd: Some(cwd.into()), ..Default::default() };
    assert_eq!(list(&folders, &here("/work/a"), 9).unwrap().total, 3);
    assert_eq!(list(&folders, &here("/work/b"), 9).unwrap().total, 0);
    for folder in &folders {
        let id = id_of(folder.program);
        let found = find(folder, &id[..12]).unwrap();
        assert_eq!(found.qualified_id(), format!("{}:{id}", folder.program));
        assert_eq!(NativeProgram::split_id(&found.qualified_id()), (folder.program, id));
        assert_eq!(found.cwd.as_deref(), Some(Utf8Path::new("/work/a")));
        assert_eq!(found.messages, 3, "{found:?}");
        assert!(found.title.as_deref().is_some_and(|it| it.starts_with("Fix it")), "{found:?}");
        assert!(found.first_at.is_some() && found.last_at.is_some(), "{found:?}");
        let expected = if folder.program == NativeProgram::Grok { 0 } else { 120 };
        assert_eq!(found.tokens, expected, "{found:?}");
    }
}

#[test]
fn messages_of_sessions_in_folders_become_rows_as_they_are_now() {
    let temp = tempfile::tempdir().unwrap();
    let folders = write_sessions(Utf8Path::from_path(temp.path()).unwrap());
    for folder in &folders {
        let session = find(folder, id_of(folder.program)).unwrap();
        let (prompt, tool, result, is_error) = match folder.program {
            NativeProgram::Copilot => ("Fix  it with [secret]", "bash", "Permission denied", true),
            NativeProgram::Kimi => ("Fix  it.", "Bash", "no such file", true),
            _ => ("Fix  it.", "run_terminal_command", "exit: 0\n", false),
        };
        assert_eq!(
            contents(&session),
            [
                json!(prompt),
                json!([{ "type": "thinking", "thinking": "Hm." },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "c1", "name": tool,
                        "input": { "command": "ls" } }]),
                json!([{ "type": "tool_result", "tool_use_id": "c1", "content": result,
                    "is_error": is_error }]),
                json!([{ "type": "text", "text": "Done." }]),
            ],
            "{}",
            folder.program
        );
    }
}

/// Values of wrong types, records that take back too much, and bytes that are no text.
#[test]
fn damaged_sessions_in_folders_are_survived() {
    let temp = tempfile::tempdir().unwrap();
    let folders = write_sessions(Utf8Path::from_path(temp.path()).unwrap());
    let wrong = [
        json!({ "type": "session.snapshot_rewind", "data": { "upToEventId": "unknown" } }),
        json!({ "type": "session.snapshot_rewind", "data": { "eventIds": [1, null, {}] } }),
        json!({ "type": "session.snapshot_rewind", "data": 5 }),
        json!({ "type": "assistant.message", "id": 5, "data": { "content": [],
            "toolRequests": [1, null, { "toolCallId": 5 }] } }),
        json!({ "type": "tool.execution_complete", "data": { "toolCallId": null } }),
        json!({ "type": "context.undo", "count": u64::MAX }),
        json!({ "type": "context.undo", "count": -1 }),
        json!({ "type": "context.append_message", "message": 5, "time": i64::MAX }),
        json!({ "type": "context.append_loop_event", "event": { "type": "tool.result" } }),
        json!({ "type": "assistant", "content": 5, "tool_calls": [{ "id": "c2",
            "arguments": "{" }, null] }),
        json!({ "type": "user", "prompt_index": 0, "content": "<user_query>" }),
        json!({ "type": {} }),
    ];
    for folder in &folders {
        let file = messages_file(folder.program, &folder.path);
        let mut lines = lines_of(folder.program);
        lines.extend(wrong.clone());
        write_lines(&file, &lines);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.extend(b"\xff\xfe\x00\n{\"type\":\"\xff\"}\n{");
        std::fs::write(&file, bytes).unwrap();
        let session = find(folder, id_of(folder.program)).unwrap();
        // Kimi's last record takes everything back.
        let is_empty = contents(&session).is_empty();
        assert_eq!(is_empty, folder.program == NativeProgram::Kimi, "{}", folder.program);
    }
}

#[test]
fn a_file_that_cannot_be_a_session_is_listed_with_the_reason() {
    let temp = tempfile::tempdir().unwrap();
    let home = Utf8Path::from_path(temp.path()).unwrap();
    let folders = write_sessions(home);
    let elsewhere = home.join("elsewhere");
    write_lines(&elsewhere.join("wire.jsonl"), &kimi_lines());
    for folder in &folders {
        let file = messages_file(folder.program, &folder.path);
        let reasons = |expected: &str| {
            let page = list(std::slice::from_ref(folder), &NativeSessionFilter::default(), 9);
            let page = page.unwrap();
            assert_eq!((page.total, page.sessions.len()), (1, 0), "{page:?}");
            let reason = page.unreadable[0].source.to_string();
            assert!(reason.contains(expected), "{reason}");
            let error = find(folder, id_of(folder.program)).unwrap_err();
            let error = heeler_model::error_chain(&error);
            assert!(error.contains(expected), "{error}");
        };
        std::fs::write(&file, "no record\n\n5\n").unwrap();
        reasons("no line of it is a record");
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("wire.jsonl"), &file).unwrap();
        reasons("it is a symbolic link");
        if folder.program == NativeProgram::Kimi {
            let main = file.parent().unwrap();
            std::fs::remove_dir_all(main).unwrap();
            std::os::unix::fs::symlink(&elsewhere, main).unwrap();
            reasons("links are not followed");
        }
    }
}

#[test]
fn sessions_of_grok_for_its_sub_agents_are_not_listed() {
    let temp = tempfile::tempdir().unwrap();
    let [_, _, grok] = write_sessions(Utf8Path::from_path(temp.path()).unwrap());
    let summary = messages_file(grok.program, &grok.path).with_file_name("summary.json");
    std::fs::write(summary, json!({ "session_kind": "subagent" }).to_string()).unwrap();
    assert_eq!(list(&[grok], &NativeSessionFilter::default(), 9).unwrap().total, 0);
}
