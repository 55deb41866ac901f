//! Conversion of messages to rows.

use super::*;
use crate::message::{TurnResult, parse_line};
use crate::run::ErrorClass;
use std::time::Duration;

const PROMPT: Uuid = uuid::uuid!("00000000-0000-4000-8000-000000000001");

/// Recorder with a clock that advances by a second with each event.
struct RecorderFixture {
    recorder: TranscriptRecorder,
    now: Timestamp,
}

impl RecorderFixture {
    fn new() -> RecorderFixture {
        let session = "s".parse().unwrap();
        let recorder = TranscriptRecorder::new(session, "/srv".into());
        RecorderFixture { recorder, now: "2024-01-19T09:00:00Z".parse().unwrap() }
    }

    fn tick(&mut self) -> Timestamp {
        self.now += Duration::from_secs(1);
        self.now
    }

    fn line(&mut self, line: &str) -> RecordedRows {
        let now = self.tick();
        self.recorder.record_message(parse_line(line.as_bytes()), now)
    }

    /// Returns the only job row of a line.
    #[track_caller]
    fn job_row(&mut self, line: &str) -> Json {
        let mut rows = self.line(line).job;
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.remove(0)
    }
}

#[test]
fn a_result_is_paired_with_its_call_by_id() {
    let mut session = RecorderFixture::new();
    session.line(
        r#"{"type":"assistant","message":{"content":[
        {"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}},
        {"type":"tool_use","id":"t2","name":"Read","input":{}}]}}"#,
    );
    let second = session.job_row(
        r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t2","content":"b"}]}}"#,
    );
    assert_eq!((&second["tool_name"], &second["duration_ms"]), (&json!("Read"), &json!(1000)));
    let first = session.job_row(
        r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"a"},{"type":"image"}],"is_error":true}]}}"#,
    );
    assert_eq!((&first["tool_name"], &first["duration_ms"]), (&json!("Bash"), &json!(2000)));
    assert_eq!((&first["success"], &first["error"]), (&json!(false), &json!("a\n[image]")));
    assert_eq!(first.get("result"), None);
    let stray = session.job_row(
        r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"a"}]}}"#,
    );
    assert_eq!((stray.get("tool_name"), stray.get("duration_ms")), (None, None));
    assert_eq!((&stray["success"], &stray["result"]), (&json!(true), &json!("a")));
}

#[test]
fn the_patch_of_an_edit_stays_with_its_result() {
    let mut session = RecorderFixture::new();
    let mut result = |patch: &Json| {
        let line = json!({"type": "user", "tool_use_result": {"structuredPatch": patch, "originalFile": "x"},
            "message": {"content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}});
        session.job_row(&line.to_string()).get("patch").cloned()
    };
    let hunk =
        json!({"oldStart": 3, "oldLines": 1, "newStart": 3, "newLines": 1, "lines": ["-a", "+b"]});
    let kept = json!([{"oldStart": 3, "newStart": 3, "lines": ["-a", "+b"]}]);
    assert_eq!(result(&json!([hunk])), Some(kept));
    // A new file has none, and a long one would make the row long.
    assert_eq!(result(&json!([])), None);
    assert_eq!(result(&json!([{"lines": ["+a".repeat(10_000)]}])), None);
    assert_eq!(result(&json!("text")), None);
}

#[test]
fn a_call_takes_no_time_while_it_waits_for_a_person() {
    let mut session = RecorderFixture::new();
    session.line(
        r#"{"type":"assistant","message":{"content":[
        {"type":"tool_use","id":"t1","name":"Write","input":{}},
        {"type":"tool_use","id":"t2","name":"Write","input":{}},
        {"type":"tool_use","id":"t3","name":"mcp__heeler__ask_human","input":{}},
        {"type":"tool_use","id":"t4","name":"Bash","input":{}}]}}"#,
    );
    let asked = session.tick();
    let mut answer = |tool: &str| {
        let answered = session.tick();
        session.recorder.exclude_wait(tool, asked, answered);
    };
    // The first answer comes after a second, the last one after three.
    answer("Write");
    answer("Write");
    answer("ask_human");
    // The clock was set back.
    session.recorder.exclude_wait("Bash", session.now, asked);
    let mut took = |id: &str| {
        let block = json!({"type": "tool_result", "tool_use_id": id, "content": "ok"});
        let line = json!({"type": "user", "message": {"content": [block]}}).to_string();
        session.job_row(&line)["duration_ms"].clone()
    };
    assert_eq!(took("t1"), 4000, "of 5 s");
    assert_eq!(took("t2"), 4000, "of 6 s");
    assert_eq!(took("t3"), 4000, "of 7 s");
    assert_eq!(took("t4"), 8000);
}

#[test]
fn blocks_of_one_message_become_rows_in_order_with_ids_that_follow() {
    let mut session = RecorderFixture::new();
    let rows = session.line(
        r#"{"type":"assistant","uuid":"87dcdcdb-ec25-4808-a8c8-19a1104717c5",
        "message":{"id":"m","usage":{"input_tokens":9},"content":[
        {"type":"thinking","thinking":"hm"},{"type":"text","text":"a"},{"type":"text","text":"b"},
        {"type":"tool_use","id":"t","name":"Bash","input":"ls"},{"type":"text","text":"c"}]}}"#,
    );
    assert_eq!(rows.session.len(), 1);
    let kinds: Vec<_> = rows.job.iter().map(|row| row["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["assistant", "tool_use", "assistant"]);
    assert_eq!(rows.job[0]["content"], "a\nb");
    assert_eq!(rows.job[0]["usage"], json!({"input_tokens": 9}));
    assert_eq!(rows.job[2].get("usage"), None, "told once");
    assert_eq!(rows.job[0]["uuid"], rows.session[0]["uuid"]);
    assert_eq!(rows.job[1]["uuid"], "87dcdcdb-ec25-8808-a8c8-19a1104717c6");
    assert_eq!(rows.job[2]["uuid"], "87dcdcdb-ec25-8808-a8c8-19a1104717c7");
}

#[test]
fn thinking_stays_in_the_session_log() {
    let mut session = RecorderFixture::new();
    let rows = session.line(
        r#"{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"hm"}]}}"#,
    );
    assert_eq!((rows.session.len(), rows.job.len()), (1, 0));
}

#[test]
fn large_results_are_cut_in_the_job_log_only() {
    let mut session = RecorderFixture::new();
    let text = "é".repeat(JOB_TEXT_BYTES_MAX);
    let line = json!({"type": "user", "message": {"content": [
        {"type": "tool_result", "tool_use_id": "t", "content": text}]}});
    let rows = session.line(&line.to_string());
    assert_eq!(rows.session[0]["message"]["content"][0]["content"], text);
    let cut = rows.job[0]["result"].as_str().unwrap();
    assert_eq!(cut, format!("{}…[truncated 32768 chars]", "é".repeat(JOB_TEXT_BYTES_MAX / 2)));
}

#[test]
fn the_whole_of_a_cut_text_is_found_in_the_row_that_it_came_of() {
    let mut session = RecorderFixture::new();
    let long = |letter: &str| letter.repeat(JOB_TEXT_BYTES_MAX + 1);
    let blocks = json!([
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": long("a")},
        {"type": "tool_use", "id": "t", "name": "Read", "input": {}},
        {"type": "text", "text": long("b")},
        {"type": "text", "text": "c"},
    ]);
    let line = json!({"type": "assistant", "message": {"content": blocks}});
    let said = session.line(&line.to_string());
    let line =
        json!({"type": "result", "subtype": "success", "is_error": false, "result": long("d")});
    let ended = session.line(&line.to_string());
    let whole = |row: &Json, of: &Json| {
        crate::recorder::full_text(of, row["uuid"].as_str().unwrap().parse().unwrap())
    };
    let [first, call, second] = &said.job[..] else { panic!("{:#?}", said.job) };
    assert_eq!(whole(first, &said.session[0]), Some(long("a")));
    assert_eq!(whole(call, &said.session[0]), None, "it is no text");
    assert_eq!(whole(second, &said.session[0]), Some(format!("{}\nc", long("b"))));
    assert_eq!(whole(&ended.job[0], &ended.session[0]), Some(long("d")));
    assert_eq!(whole(first, &ended.session[0]), None, "it came of another row");
}

#[test]
fn an_mcp_server_that_failed_is_named_in_the_job_row() {
    let mut session = RecorderFixture::new();
    let servers =
        json!([{"name": "web", "status": "failed"}, {"name": "ok", "status": "connected"}]);
    let line = json!({"type": "system", "subtype": "init", "mcp_servers": servers});
    assert_eq!(session.job_row(&line.to_string())["mcp_failed"], json!(["web"]));
}

#[test]
fn a_large_input_keeps_its_shape_with_its_texts_cut() {
    let mut session = RecorderFixture::new();
    let line = |input: Json| {
        json!({"type": "assistant", "message": {"content": [
            {"type": "tool_use", "id": "t", "name": "Write", "input": input}]}})
        .to_string()
    };
    let text = "x".repeat(1_000_000);
    let row = session.job_row(&line(json!({"file_path": "a.txt", "content": text})));
    assert_eq!(row["input"]["file_path"], "a.txt");
    assert!(row["input"]["content"].as_str().unwrap().ends_with("x…[truncated 991808 chars]"));
    let many = json!({"list": vec![7; 50_000]});
    let row = session.job_row(&line(many));
    let input = row["input"].as_str().unwrap();
    assert!(input.starts_with(r#"{"list":[7,7"#) && input.ends_with(" chars]"), "{}", input.len());
}

#[test]
fn a_prompt_that_the_agent_repeats_is_recorded_once() {
    let mut session = RecorderFixture::new();
    let now = session.tick();
    let rows = session.recorder.record_prompt(PROMPT, "do it", now);
    assert_eq!(rows.session[0]["message"], json!({"role": "user", "content": "do it"}));
    assert_eq!(rows.job[0]["subtype"], "user_input");
    let replay = format!(
        r#"{{"type":"user","uuid":"{PROMPT}","isReplay":true,"message":{{"content":"do it"}}}}"#
    );
    assert_eq!(session.line(&replay), RecordedRows::default());
    let other = r#"{"type":"user","uuid":"00000000-0000-4000-8000-000000000002","isReplay":true,"message":{"content":"more"}}"#;
    assert_eq!(session.job_row(other)["content"], "more");
    assert_eq!(session.recorder.messages(), 2);
}

#[test]
fn rows_continue_the_chain_that_was_there_and_sub_agents_have_their_own() {
    let last = uuid::uuid!("00000000-0000-4000-8000-00000000000f");
    let mut session = RecorderFixture::new();
    session.recorder.replay_row(&json!({"type": "user", "uuid": last}));
    let said = |id: u8, sub: &str| {
        format!(
            r#"{{"type":"assistant","uuid":"00000000-0000-4000-8000-{id:012}","parent_tool_use_id":{sub},"content":"x"}}"#
        )
    };
    let mut parents = Vec::new();
    for line in
        [said(1, "null"), said(2, "\"t\""), said(3, "\"t\""), said(4, "null"), said(4, "null")]
    {
        let row = session.line(&line).session.remove(0);
        parents.push((row["parentUuid"].clone(), row["isSidechain"].clone()));
    }
    let id = |n: u8| json!(format!("00000000-0000-4000-8000-{n:012}"));
    assert_eq!(parents[0], (json!(last.to_string()), json!(false)));
    assert_eq!(parents[1], (Json::Null, json!(true)));
    assert_eq!(parents[2], (id(2), json!(true)));
    assert_eq!(parents[3], (id(1), json!(false)));
    assert_eq!(parents[4], (id(4), json!(false)), "a repeated id is replaced: no circle");
    assert_eq!(session.recorder.messages(), 3, "what a sub-agent says is not counted");
}

#[test]
fn a_failure_is_told_with_its_cure_and_is_not_part_of_the_conversation() {
    let mut session = RecorderFixture::new();
    let now = session.tick();
    session.recorder.record_prompt(PROMPT, "do it", now);
    let error = RunError::new(ErrorClass::Stalled, "the agent said nothing for 60 s");
    let now = session.tick();
    let rows = session.recorder.record_failure(&error, ExitReason::Error, now);
    assert_eq!(rows.session[0]["type"], "assistant");
    assert_eq!(rows.session[0]["isApiErrorMessage"], true);
    assert_eq!(rows.job[0]["type"], "error");
    assert_eq!(rows.job[0]["message"], "the agent said nothing for 60 s");
    assert_eq!(rows.job[0]["code"], "stalled");
    assert_eq!(rows.job[0]["cure"], error.cure);
    let next = session.line(r#"{"type":"assistant","content":"back"}"#);
    assert_eq!(next.session[0]["parentUuid"], PROMPT.to_string());
    assert_eq!(session.recorder.messages(), 2);
}

#[test]
fn a_failure_that_the_agent_told_itself_is_not_told_again_but_named_with_its_cure() {
    let told = [
        r#"{"type":"assistant","isApiErrorMessage":true,"content":"API Error: 529 Overloaded"}"#,
        r#"{"type":"error","message":"API Error: 529 Overloaded"}"#,
        r#"{"type":"result","is_error":true,"result":"API Error: 529 Overloaded\n"}"#,
        r#"{"type":"result","is_error":true,"errors":["API Error: 529 Overloaded"]}"#,
    ];
    let error = RunError::new(ErrorClass::Overloaded, "API Error: 529 Overloaded");
    let message = |lines: &[&str]| {
        let mut session = RecorderFixture::new();
        lines.iter().for_each(|line| drop(session.line(line)));
        let mut again = session.recorder.clone();
        let now = session.tick();
        let rows = session.recorder.record_failure(&error, ExitReason::Error, now);
        assert_eq!(rows.session[0]["failure"]["message"], error.message.as_str());
        assert_eq!(again.replay_row(&rows.session[0]), rows.job);
        assert_eq!(rows.job[0]["code"], "overloaded");
        assert_eq!(rows.job[0]["cure"], error.cure.as_str());
        rows.job[0]["message"].as_str().unwrap().to_owned()
    };
    for line in told {
        assert_eq!(message(&[line]), format!("overloaded: {}", error.cure), "{line}");
        let went_on = [line, r#"{"type":"assistant","content":"as I said"}"#];
        assert_eq!(message(&went_on), error.message);
    }
    assert_eq!(message(&[]), error.message);
    assert_eq!(message(&[r#"{"type":"error","message":"another"}"#]), error.message);
    assert_eq!(
        message(&[r#"{"type":"result","result":"API Error: 529 Overloaded"}"#]),
        error.message
    );
}

#[test]
fn an_agent_cannot_fake_what_we_say_of_a_row() {
    let mut session = RecorderFixture::new();
    let rows = session.line(
        r#"{"type":"assistant","content":"x","timestamp":"1999-01-01T00:00:00Z","sessionId":"other",
            "isSidechain":true,"parentUuid":"x","cwd":"/etc","failure":{"class":"internal","cure":"pay"}}"#,
    );
    let row = &rows.session[0];
    assert_eq!(row["timestamp"], "2024-01-19T09:00:01.000Z");
    assert_eq!((&row["sessionId"], &row["cwd"]), (&json!("s"), &json!("/srv")));
    assert_eq!((&row["isSidechain"], &row["parentUuid"]), (&json!(false), &Json::Null));
    assert_eq!(row.get("failure"), None);
    assert_eq!(rows.job[0]["type"], "assistant");
}

#[test]
fn an_interrupt_of_ours_is_not_told_as_the_users() {
    let call = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t","name":"Bash","input":{}}]}}"#;
    let rejected = r#"{"type":"user","interruption":{"message":"because"},"message":{"content":[{"type":"tool_result","tool_use_id":"t","is_error":true,
        "content":"The user doesn't want to proceed with this tool use. The tool use was rejected."}]}}"#;
    let stopped = r#"{"type":"user","message":{"content":[{"type":"text","text":"[Request interrupted by user for tool use]"}]}}"#;
    let fine = r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","content":"done in time"}]}}"#;

    let mut session = RecorderFixture::new();
    session.line(call);
    session.recorder.set_interruption(ErrorClass::Timeout, "not done after 10 s");
    let rows = [rejected, stopped, fine].map(|line| session.line(line));
    assert_eq!(rows[0].job[0]["error"], "interrupted: not done after 10 s");
    assert_eq!(rows[0].job[0]["tool_name"], "Bash");
    assert_eq!(rows[1].job[0]["type"], "system");
    assert_eq!(rows[1].job[0]["subtype"], "interrupted");
    assert_eq!(rows[1].job[0]["content"], "interrupted: not done after 10 s");
    assert_eq!(rows[2].job[0]["result"], "done in time");
    // Any row may be the last one, from which settling learns the reason.
    for rows in &rows {
        assert_eq!(rows.session[0]["interruption"]["class"], "timeout");
    }
    // Recorded rows stay, and replaying them gives the same job rows.
    let said = &rows[1].session[0]["message"]["content"][0]["text"];
    assert_eq!(said, "[Request interrupted by user for tool use]");
    let mut again = RecorderFixture::new();
    again.line(call);
    for rows in &rows {
        assert_eq!(again.recorder.replay_row(&rows.session[0]), rows.job);
    }

    // Without an interrupt by Heeler it was the user, regardless of the agent's fields.
    let mut session = RecorderFixture::new();
    session.line(call);
    let row = session.job_row(rejected);
    assert!(row["error"].as_str().unwrap().starts_with("The user doesn't want"), "{row}");
    assert_eq!(session.job_row(stopped)["subtype"], "user_input");
}

#[test]
fn notes_and_warnings_are_system_rows_in_both_logs() {
    let mut session = RecorderFixture::new();
    let now = session.tick();
    let rows = session.recorder.record_note("session", "new session, as requested", now);
    assert_eq!(rows.session[0]["content"], "new session, as requested");
    assert_eq!(rows.job[0]["content"], "new session, as requested");
    assert_eq!(rows.job[0]["uuid"], rows.session[0]["uuid"]);
    let row = session.job_row("Segmentation fault");
    assert_eq!((&row["type"], &row["subtype"]), (&json!("system"), &json!("warning")));
    let content = row["content"].as_str().unwrap();
    assert!(content.starts_with("unreadable line, it is not JSON"), "{content}");
    assert!(content.ends_with(": Segmentation fault"), "{content}");
    let row = session.job_row(r#"{"type":"control_request","request":{}}"#);
    assert_eq!(
        row["content"],
        r#"unknown message of type `control_request`: {"type":"control_request","request":{}}"#
    );
}

#[test]
fn a_fork_says_what_it_has_its_history_from() {
    let mut session = RecorderFixture::new();
    let prompt = uuid::uuid!("de03ca1e-3bc8-43f1-b418-f7403063818f");
    let now = session.tick();
    session.recorder.record_prompt(prompt, "Go.", now);
    let (source, id) = ("theirs".parse().unwrap(), "ours".parse().unwrap());
    let start = SessionStart::Fork { source, id, at: None };
    let rows = session.recorder.record_session_start(&start, "a branch, as asked", now);
    assert_eq!(rows.session[0]["subtype"], "session");
    let from = json!({"sessionId": "theirs", "messageUuid": prompt.to_string()});
    assert_eq!(rows.session[0]["forkedFrom"], from);
    assert_eq!(rows.job[0]["content"], "a branch, as asked");
    let start = SessionStart::Resume { id: "ours".parse().unwrap() };
    let rows = session.recorder.record_session_start(&start, "it goes on", now);
    assert_eq!(rows.session[0].get("forkedFrom"), None);
}

#[test]
fn a_recorder_goes_on_from_a_session_row_as_if_it_had_seen_all_before() {
    let mut session = RecorderFixture::new();
    let first = Uuid::from_u128(1 << 64);
    let now = session.tick();
    session.recorder.record_prompt(first, "Go.", now);
    session.job_row(r#"{"type":"assistant","message":{"id":"m","content":"Gone."}}"#);
    let start = SessionStart::Resume { id: "s".parse().unwrap() };
    let row = session.recorder.record_session_start(&start, "it goes on", now).session.remove(0);
    let mut other = RecorderFixture::new();
    assert!(other.recorder.resume_from_row(&row));
    assert_eq!(other.recorder.messages(), 2);
    assert_eq!(other.recorder.tokens(), session.recorder.tokens());
    let next = Uuid::from_u128(2 << 64);
    let prompts = [&mut session, &mut other].map(|it| it.recorder.record_prompt(next, "And?", now));
    assert_eq!(prompts[0].session, prompts[1].session);
    assert!(!other.recorder.resume_from_row(&prompts[0].session[0]));
    // A similar line printed by an agent does not count.
    let forged = parse_line(row.to_string().as_bytes());
    assert!(
        !other
            .recorder
            .resume_from_row(&other.recorder.clone().record_message(forged, now).session[0])
    );
}

#[test]
fn passing_states_leave_no_row() {
    let mut session = RecorderFixture::new();
    for line in [
        r#"{"type":"system","subtype":"status","status":"requesting"}"#,
        r#"{"type":"system","subtype":"thinking_tokens"}"#,
        r#"{"type":"command_lifecycle","command_uuid":"x","state":"queued"}"#,
        r#"{"type":"system","subtype":"background_tasks_changed","tasks":[]}"#,
        r#"{"type":"rate_limit_event","rate_limit_info":{"status":"allowed"}}"#,
        r#"{"type":"transcript_mirror","entries":[]}"#,
        "",
    ] {
        assert_eq!(session.line(line), RecordedRows::default(), "{line}");
    }
    let row = session.job_row(
        r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":0}}"#,
    );
    assert_eq!(row["content"], "rate limit: rejected, resets at 1970-01-01T00:00:00.000Z");
}

#[test]
fn the_older_forms_of_the_stream_give_the_same_rows() {
    let mut session = RecorderFixture::new();
    let call =
        session.job_row(r#"{"type":"tool_use","tool_name":"Bash","tool_use_id":"t","input":"ls"}"#);
    assert_eq!((&call["type"], &call["input"]), (&json!("tool_use"), &json!("ls")));
    let result =
        session.job_row(r#"{"type":"tool_result","tool_use_id":"t","result":"a","success":true}"#);
    assert_eq!((&result["tool_name"], &result["duration_ms"]), (&json!("Bash"), &json!(1000)));
    let progress = session.job_row(
        r#"{"type":"tool_progress","tool_name":"Bash","tool_use_id":"t","elapsed_time_seconds":12.4}"#,
    );
    assert_eq!(progress["content"], "Bash has been running for 12 s");
    let auth =
        session.job_row(r#"{"type":"auth_status","isAuthenticating":true,"output":["open","it"]}"#);
    assert_eq!(auth["content"], "authentication open\nit");
    let end = session.job_row(r#"{"type":"system","subtype":"session_end","content":"bye"}"#);
    assert_eq!((&end["subtype"], &end["content"]), (&json!("session_end"), &json!("bye")));
    let error =
        session.job_row(r#"{"type":"error","message":"gone","code":"EPIPE","stack":"at x"}"#);
    assert_eq!((&error["message"], &error["code"]), (&json!("gone"), &json!("EPIPE")));
    assert_eq!(error["stack"], "at x");
}

#[test]
fn a_result_that_a_runtime_made_up_is_recorded_like_one_that_was_read() {
    let result = TurnResult {
        subtype: "error_during_execution".to_owned(),
        is_error: true,
        errors: vec!["the command exited with code 3".to_owned()],
        ..TurnResult::default()
    };
    let mut session = RecorderFixture::new();
    let now = session.tick();
    let rows = session
        .recorder
        .record_message(AgentMessage::from_body(MessageBody::Result(Box::new(result))), now);
    assert_eq!(rows.session[0]["errors"], json!(["the command exited with code 3"]));
    assert_eq!(rows.job[0]["error"], "the command exited with code 3");
    assert_eq!(rows.job[0]["success"], false);
}

#[test]
fn only_so_many_open_calls_are_remembered() {
    let mut session = RecorderFixture::new();
    for n in 0..=OPEN_CALLS_MAX {
        session.line(&format!(r#"{{"type":"tool_use","tool_name":"Bash","tool_use_id":"t{n}"}}"#));
    }
    let forgotten = session.job_row(r#"{"type":"tool_result","tool_use_id":"t0","result":"a"}"#);
    assert_eq!(forgotten.get("tool_name"), None);
    let known = session.job_row(r#"{"type":"tool_result","tool_use_id":"t1","result":"a"}"#);
    assert_eq!(known["tool_name"], "Bash");
}

#[test]
fn minted_ids_differ_between_runs_of_a_session_and_between_rows() {
    let mut first = RecorderFixture::new();
    let mut second = RecorderFixture::new();
    second.now += Duration::from_millis(1);
    let mut ids = Vec::new();
    for session in [&mut first, &mut second] {
        for _ in 0..3 {
            let row = session.line("garbage").session.remove(0);
            ids.push(row["uuid"].as_str().unwrap().to_owned());
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6);
}

#[test]
fn usage_is_told_by_the_first_row_of_a_message_that_has_it_and_words() {
    let mut session = RecorderFixture::new();
    let thought = r#"{"type":"assistant","message":{"id":"m","content":[{"type":"thinking"}]}}"#;
    assert!(session.line(thought).job.is_empty());
    let said =
        r#"{"type":"assistant","message":{"id":"m","content":"hi","usage":{"input_tokens":7}}}"#;
    assert_eq!(session.job_row(said)["usage"], json!({"input_tokens": 7}));
    assert_eq!(session.job_row(said).get("usage"), None, "told already");
}

#[test]
fn the_context_is_estimated_by_what_the_api_was_sent_and_what_was_said_since() {
    let mut session = RecorderFixture::new();
    session.line(
        r#"{"type":"assistant","message":{"id":"m","content":"","usage":
        {"input_tokens":10,"cache_read_input_tokens":2000,"cache_creation_input_tokens":100}}}"#,
    );
    let said = session.recorder.tokens();
    assert_eq!(said, 2110);
    let text = "x".repeat(4000);
    session.line(&format!(r#"{{"type":"user","message":{{"content":"{text}"}}}}"#));
    assert_eq!(session.recorder.tokens(), said + 1000);
}

#[test]
fn the_context_is_what_the_api_counted_where_a_turn_was_one_reply() {
    let mut session = RecorderFixture::new();
    let usage = r#"{"input_tokens":10,"cache_read_input_tokens":2000,"cache_creation_input_tokens":100,"output_tokens":OUT}"#;
    let said = format!(
        r#"{{"type":"assistant","message":{{"id":"m","content":"{}","usage":{}}}}}"#,
        "x".repeat(400),
        usage.replace("OUT", "1")
    );
    session.line(&said);
    assert_eq!(session.recorder.tokens(), 2110 + 100);
    let result = |turns: u32| {
        let usage = usage.replace("OUT", "77");
        format!(
            r#"{{"type":"result","subtype":"success","is_error":false,"num_turns":{turns},"usage":{usage}}}"#
        )
    };
    session.line(&result(2));
    assert_eq!(session.recorder.tokens(), 2210, "the sum of two replies tells of none");
    session.line(&result(1));
    assert_eq!(session.recorder.tokens(), 2110 + 77);
}

#[test]
fn what_is_remembered_of_calls_is_bounded_in_count_and_bytes() {
    let mut recorder = RecorderFixture::new().recorder;
    let long = "i".repeat(ID_BYTES_MAX);
    for number in 0..2 * OPEN_CALLS_MAX {
        let id = format!("{number:08}{}", &long[8..]);
        for id in [id.clone(), id + "x"] {
            let block = json!({"type": "tool_use", "id": id, "name": "n".repeat(10_000)});
            let message = json!({"content": [block]});
            let row = json!({"type": "assistant", "uuid": PROMPT, "message": message, "parent_tool_use_id": id});
            recorder.replay_row(&row);
        }
    }
    assert_eq!(recorder.open_calls.len(), OPEN_CALLS_MAX);
    assert_eq!(recorder.last_of_sub_agent.len(), OPEN_CALLS_MAX);
    assert!(recorder.open_calls.keys().all(|id| id.len() == ID_BYTES_MAX));
    let names = recorder.open_calls.values().map(|call| call.tool.len());
    assert!(names.max().unwrap() < 2 * JOB_SHORT_BYTES_MAX);
}

#[test]
fn rows_of_strangers_can_be_replayed() {
    let mut recorder = RecorderFixture::new().recorder;
    for row in [
        json!(null),
        json!([]),
        json!({}),
        json!({"type": "user"}),
        json!({"type": "assistant", "message": 7}),
    ] {
        recorder.replay_row(&row);
    }
    assert_eq!(recorder.messages(), 0);
}

#[test]
fn a_line_that_is_no_message_is_remembered_by_a_bounded_beginning() {
    let mut session = RecorderFixture::new();
    let mut kept = |line: &str| {
        let row = session.job_row(line);
        let (_, text) = row["content"].as_str().unwrap().split_once("): ").unwrap();
        text.to_owned()
    };
    let text = kept(&"é".repeat(1_000_000));
    assert_eq!(text.chars().count(), MALFORMED_CHARS_MAX + 1);
    assert!(text.ends_with("é…"));
    let exactly = "x".repeat(MALFORMED_CHARS_MAX);
    assert_eq!(kept(&exactly), exactly);
    assert_eq!(kept("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
}

/// At every truncation, a secret may extend across the cut.
#[test]
fn no_cut_leaves_half_of_a_secret_in_a_redacted_message() {
    const SECRET: &str = "canary-0123456789abcdefghijklmnopqrstuvwxyz";
    let redactor = crate::redact::SecretRedactor::new(&[SECRET.to_owned()]);
    let limits = [
        MALFORMED_CHARS_MAX,
        JOB_SHORT_BYTES_MAX,
        JOB_TEXT_BYTES_MAX / 8,
        JOB_TEXT_BYTES_MAX,
        2048,
    ];
    let more = "y".repeat(JOB_TEXT_BYTES_MAX);
    for across in limits {
        let text = format!("{}{SECRET} and more", "x".repeat(across - 20));
        for line in [
            json!({"type": "assistant", "message": {"content": text}}),
            json!({"type": "tool_use", "tool_name": text, "tool_use_id": "t", "input": {"a": text, "b": more}}),
            json!({"type": "tool_use", "tool_name": "x", "input": [text, more]}),
            json!({"type": "tool_result", "tool_use_id": "t", "result": text}),
            json!({"type": "user", "message": {"content": text}}),
            json!({"type": "system", "subtype": text, "content": text}),
            json!({"type": "result", "result": text, "stop_reason": text}),
            json!({"type": "error", "message": text, "code": text}),
            json!({"type": "mystery", "text": text}),
            json!([text]),
        ] {
            let mut message = parse_line(line.to_string().as_bytes());
            message.redact(&redactor);
            let mut tally = crate::outcome::RunOutcomeBuilder::new();
            tally.add_message(&message);
            let end = crate::outcome::AgentProcessExit::Disk { reason: String::new() };
            let judged = format!("{:?}", tally.conclude(&end));
            let mut session = RecorderFixture::new();
            let now = session.tick();
            let rows = session.recorder.record_message(message, now);
            let rows = format!("{judged}{}{}", json!(rows.session), json!(rows.job));
            assert!(!rows.contains("canary"), "{across} {}", &line.to_string()[..60]);
        }
    }
}
