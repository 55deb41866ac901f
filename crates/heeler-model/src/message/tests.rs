//! Parsing of lines.

use super::*;
use crate::redact::SecretRedactor;

fn body(line: &str) -> MessageBody {
    parse_line(line.as_bytes()).body
}

fn assistant(line: &str) -> AssistantMessage {
    match body(line) {
        MessageBody::Assistant(said) => said,
        other => panic!("{other:?}"),
    }
}

fn user(line: &str) -> UserMessage {
    match body(line) {
        MessageBody::User(told) => told,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn malformed(line: &[u8]) -> (String, String) {
    match parse_line(line).body {
        MessageBody::Malformed { reason, text } => (reason, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_envelope_is_taken_off_and_the_rest_is_kept() {
    let line = r#"{"uuid":"87dcdcdb-ec25-4808-a8c8-19a1104717c5","message":{"id":"m","content":"hi"},
        "parent_tool_use_id":"toolu_1","session_id":"s","type":"assistant","brand_new":[1]}"#;
    let message = parse_line(line.as_bytes());
    assert_eq!(message.uuid, Some(uuid::uuid!("87dcdcdb-ec25-4808-a8c8-19a1104717c5")));
    assert_eq!(message.session.as_deref(), Some("s"));
    assert_eq!(message.parent_tool_use_id.as_deref(), Some("toolu_1"));
    assert_eq!(Json::Object(message.fields), json!({"brand_new": [1]}));
    let MessageBody::Assistant(said) = message.body else { panic!("{:?}", message.body) };
    assert_eq!(
        Json::Object(said.message),
        json!({"id": "m", "content": "hi", "role": "assistant"})
    );
}

#[test]
fn content_is_found_nested_at_the_top_or_as_a_bare_string() {
    for line in [
        r#"{"type":"assistant","message":{"content":"hi"}}"#,
        r#"{"type":"assistant","content":"hi"}"#,
        r#"{"type":"assistant","message":"hi"}"#,
        r#"{"type":"assistant","message":null,"content":"hi"}"#,
    ] {
        assert_eq!(assistant(line).message["content"], "hi", "{line}");
    }
    let spread = r#"{"type":"assistant","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":3}}"#;
    assert_eq!(assistant(spread).message["usage"]["input_tokens"], 3);
    assert_eq!(user(r#"{"type":"user","content":"go on"}"#).message["content"], "go on");
}

#[test]
fn tool_calls_that_stand_by_themselves_become_blocks() {
    let said =
        assistant(r#"{"type":"tool_use","tool_name":"Bash","tool_use_id":"t1","input":"ls -la"}"#);
    let block = json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": "ls -la"});
    assert_eq!(said.message["content"], json!([block]));

    let told = user(r#"{"type":"tool_result","tool_use_id":"t1","result":"a","success":true}"#);
    let block =
        json!({"type": "tool_result", "tool_use_id": "t1", "content": "a", "is_error": false});
    assert_eq!(told.message["content"], json!([block]));

    let failed = user(r#"{"type":"tool_result","tool_use_id":"t1","success":false,"error":"no"}"#);
    assert_eq!(failed.message["content"][0]["content"], "no");
    assert_eq!(failed.message["content"][0]["is_error"], true);
}

#[test]
fn success_is_judged_by_its_flag_and_only_without_one_by_its_words() {
    let is_error = |line: &str| match body(line) {
        MessageBody::Result(result) => result.is_error,
        other => panic!("{other:?}"),
    };
    assert!(is_error(r#"{"type":"result","subtype":"success","is_error":true}"#));
    assert!(!is_error(r#"{"type":"result","subtype":"error_odd","is_error":false}"#));
    assert!(is_error(r#"{"type":"result","subtype":"error_max_turns"}"#));
    assert!(is_error(r#"{"type":"result","subtype":"success","errors":["x"]}"#));
    assert!(!is_error(r#"{"type":"result","subtype":"success","result":"ok"}"#));
}

#[test]
fn counts_that_are_written_as_decimals_are_read() {
    let line = r#"{"type":"system","subtype":"api_retry","attempt":1,"retry_delay_ms":523.7,"error_status":null}"#;
    let MessageBody::Retry(retry) = body(line) else { panic!() };
    assert_eq!((retry.attempt, retry.delay_ms, retry.status), (Some(1), Some(524), None));
}

#[test]
fn only_text_deltas_are_deltas() {
    let delta = |delta: &str| {
        body(&format!(
            r#"{{"type":"stream_event","event":{{"type":"content_block_delta","delta":{delta}}}}}"#
        ))
    };
    let text = MessageBody::Delta { text: "hel".to_owned() };
    assert_eq!(delta(r#"{"type":"text_delta","text":"hel"}"#), text);
    let quiet = MessageBody::Ignored { kind: "stream_event".to_owned() };
    assert_eq!(delta(r#"{"type":"thinking_delta","thinking":"hm"}"#), quiet);
    assert_eq!(delta(r#"{"type":"input_json_delta","partial_json":"{"}"#), quiet);
    assert_eq!(delta("null"), quiet);
    assert_eq!(body(r#"{"type":"stream_event"}"#), quiet);
}

#[test]
fn tasks_and_limits_are_read() {
    let line = r#"{"type":"system","subtype":"task_updated","task_id":"b1","patch":{"status":"completed"}}"#;
    let MessageBody::Task(task) = body(line) else { panic!() };
    assert_eq!((task.id.as_str(), task.status.as_deref()), ("b1", Some("completed")));
    let line =
        r#"{"type":"system","subtype":"background_tasks_changed","tasks":[{"task_id":"b1"}]}"#;
    assert_eq!(body(line), MessageBody::BackgroundTasks { running: vec!["b1".to_owned()] });
    let line = r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1794703704}}"#;
    let MessageBody::RateLimit(limit) = body(line) else { panic!() };
    assert_eq!((limit.status.as_deref(), limit.resets_at), (Some("rejected"), Some(1794703704)));
}

#[test]
fn errors_are_understood_in_each_of_their_forms() {
    for line in [
        r#"{"type":"error","message":"no","code":"x"}"#,
        r#"{"type":"error","error":{"type":"x","message":"no"}}"#,
        r#"{"type":"error","error":"no","code":"x"}"#,
    ] {
        let expected = MessageBody::Error { message: "no".to_owned(), code: Some("x".to_owned()) };
        assert_eq!(body(line), expected, "{line}");
    }
    assert!(matches!(body(r#"{"type":"error"}"#), MessageBody::Error { .. }));
}

#[test]
fn what_is_not_an_object_says_what_it_is() {
    assert_eq!(malformed(b"null").0, "it is null, not an object");
    assert_eq!(malformed(b" 42 ").0, "it is a number, not an object");
    assert_eq!(malformed(b"[{}]").0, "it is a list, not an object");
    assert_eq!(malformed(b"\"x\"").0, "it is a string, not an object");
    let (reason, text) = malformed(b"Warning: no stdin\x1b[31m data\x00");
    assert!(reason.starts_with("it is not JSON ("), "{reason}");
    assert_eq!(text, "Warning: no stdin\u{1b}[31m data\0");
}

#[test]
fn blank_lines_are_nothing() {
    for line in ["", " ", "\t\r\n"] {
        assert_eq!(body(line), MessageBody::Ignored { kind: "blank".to_owned() });
    }
}

#[test]
fn unknown_and_control_messages_are_kept_with_their_line() {
    for kind in ["brand_new", "control_request", "control_response", "control_cancel_request"] {
        let line = format!(r#"{{"type":"{kind}","x":1}}"#);
        assert_eq!(body(&line), MessageBody::Unknown { kind: kind.to_owned(), text: line });
    }
    assert!(matches!(body("{}"), MessageBody::Unknown { kind, .. } if kind.is_empty()));
    assert!(matches!(body(r#"{"type":7}"#), MessageBody::Unknown { .. }));
}

#[test]
fn nesting_is_refused_beyond_its_limit_and_never_overflows() {
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"type":"tool_use","input":{open}{close}}}"#)
    };
    assert!(matches!(body(&nested(NESTING_MAX - 1)), MessageBody::Assistant(_)));
    assert_eq!(malformed(nested(NESTING_MAX).as_bytes()).0, "it nests deeper than 96 levels");
    assert!(malformed(nested(90_000).as_bytes()).0.starts_with("it is not JSON"));
}

#[test]
fn a_message_of_too_many_values_is_refused_before_they_are_made() {
    let numbers = |count: usize| {
        // A line, its input and the numbers in it are values too.
        let zeros = vec!["0"; count - 3].join(",");
        format!(r#"{{"type":"tool_use","input":[{zeros}]}}"#)
    };
    assert!(matches!(body(&numbers(VALUES_MAX)), MessageBody::Assistant(_)));
    assert_eq!(malformed(numbers(VALUES_MAX + 1).as_bytes()).0, "it has more than 100000 values");
    let text = r#"a\",[{"#.repeat(VALUES_MAX);
    assert!(matches!(
        body(&format!(r#"{{"type":"tool_use","input":"{text}"}}"#)),
        MessageBody::Assistant(_)
    ));
}

#[test]
fn a_message_of_too_many_blocks_is_refused() {
    let blocks = |count: usize| vec![r#"{"type":"tool_use"}"#; count].join(",");
    for content in [
        "{\"type\":\"assistant\",\"message\":{\"content\":[@]}}",
        "{\"type\":\"user\",\"content\":[@]}",
    ] {
        let line = |count| content.replace('@', &blocks(count));
        assert!(!matches!(body(&line(BLOCKS_MAX)), MessageBody::Malformed { .. }));
        let (reason, _) = malformed(line(BLOCKS_MAX + 1).as_bytes());
        assert_eq!(reason, "it has more than 4096 blocks");
    }
}

#[test]
fn an_id_that_is_too_long_to_be_remembered_is_refused_wherever_it_stands() {
    for line in [
        r#"{"type":"assistant","parent_tool_use_id":"@"}"#,
        r#"{"type":"assistant","message":{"id":"@"}}"#,
        r#"{"type":"assistant","message":{"content":[{"type":"text"},{"type":"tool_use","id":"@"}]}}"#,
        r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"@"}]}}"#,
        r#"{"type":"tool_use","tool_use_id":"@"}"#,
        r#"{"type":"system","subtype":"task_started","task_id":"@"}"#,
        r#"{"type":"system","subtype":"background_tasks_changed","tasks":[{"task_id":"@"}]}"#,
        r#"{"type":"control_request","request_id":"@"}"#,
    ] {
        let with = |bytes: usize| line.replace('@', &"i".repeat(bytes));
        assert!(!matches!(body(&with(ID_BYTES_MAX)), MessageBody::Malformed { .. }), "{line}");
        let (reason, _) = malformed(with(ID_BYTES_MAX + 1).as_bytes());
        assert_eq!(reason, "it has an id of more than 1024 bytes", "{line}");
    }
}

#[test]
fn halves_of_characters_and_bytes_that_are_no_text_do_not_cost_the_message() {
    let said = |line: &[u8]| match parse_line(line).body {
        MessageBody::Assistant(said) => said.message["content"].as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    };
    let line = |text: &str| format!(r#"{{"type":"assistant","content":"{text}"}}"#);
    assert_eq!(said(line(r"cut \ud83d").as_bytes()), "cut \u{FFFD}");
    assert_eq!(said(line(r"cut \udE00 \ud83d\ude00").as_bytes()), "cut \u{FFFD} 😀");
    assert_eq!(said(line(r"\ud83d\ud83d\ude00").as_bytes()), "\u{FFFD}😀");
    assert_eq!(said(line(r"\\ud83d is text, \ud83d").as_bytes()), "\\ud83d is text, \u{FFFD}");
    assert_eq!(said(b"{\"type\":\"assistant\",\"content\":\"a\xFFb\"}"), "a\u{FFFD}b");
}

#[test]
fn the_last_of_two_equal_keys_counts() {
    assert_eq!(
        assistant(r#"{"type":"user","type":"assistant","content":"a","content":"b"}"#).message["content"],
        "b"
    );
}

#[test]
fn an_id_that_is_none_is_no_id() {
    let message = parse_line(br#"{"type":"assistant","uuid":"not one","session_id":7}"#);
    assert_eq!((message.uuid, message.session), (None, None));
}

/// Lines of every kind, with `@` wherever an agent may put a secret.
const OF_EVERY_KIND: [&str; 22] = [
    r#"{"type":"system","subtype":"init","claude_code_version":"@","model":"@","cwd":"@","@":[{"@":"@"}]}"#,
    r#"{"type":"system","subtype":"api_retry","error":"@"}"#,
    r#"{"type":"system","subtype":"task_started","task_id":"@","task_type":"@","status":"@"}"#,
    r#"{"type":"system","subtype":"background_tasks_changed","tasks":[{"task_id":"@"}]}"#,
    r#"{"type":"system","subtype":"@"}"#,
    r#"{"type":"assistant","parent_tool_use_id":"@","session_id":"@","message":{"id":"@","content":[{"type":"text","text":"@"}]}}"#,
    r#"{"type":"assistant","error":"@","api_error_type":"@","message":"@"}"#,
    r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"@","content":"@"}]},"toolUseResult":"@"}"#,
    r#"{"type":"result","subtype":"@","result":"@","stop_reason":"@","terminal_reason":"@","api_error_type":"@","errors":["@"],"modelUsage":{"@":{}}}"#,
    r#"{"type":"tool_use","tool_name":"@","tool_use_id":"@","input":"@"}"#,
    r#"{"type":"tool_result","tool_use_id":"@","result":{"x":"@"}}"#,
    r#"{"type":"error","message":"@","code":"@"}"#,
    r#"{"type":"error","error":{"message":"@","type":"@"}}"#,
    r#"{"type":"rate_limit_event","rate_limit_info":{"status":"@"}}"#,
    r#"{"type":"command_lifecycle","command_uuid":"@","state":"@"}"#,
    r#"{"type":"tool_progress","tool_name":"@"}"#,
    r#"{"type":"keep_alive","x":"@"}"#,
    r#"{"type":"@","x":"@"}"#,
    r#"{"type":"control_request","request_id":"@"}"#,
    r#"{"type":"mystery","a":"@"#,
    "@",
    r#"["@"]"#,
];

#[test]
fn a_redacted_message_of_any_kind_holds_no_secret() {
    const SECRET: &str = "canary-0123456789";
    let redactor = SecretRedactor::new(&[SECRET.to_owned()]);
    for line in OF_EVERY_KIND {
        let mut message = parse_line(line.replace('@', SECRET).as_bytes());
        let before = format!("{message:?}");
        assert!(before.contains(SECRET), "{line}");
        message.redact(&redactor);
        let after = format!("{message:?}");
        assert!(!after.contains(SECRET), "{after}");
        let mut left = parse_line(line.replace('@', SECRET).as_bytes());
        left.redact(&SecretRedactor::new(&[]));
        assert_eq!(format!("{left:?}"), before);
    }
}

#[test]
fn an_id_that_is_a_secret_in_another_spelling_is_no_id() {
    let secret = "87DCDCDBEC254808A8C819A1104717C5".to_owned();
    let line = r#"{"type":"assistant","uuid":"87DCDCDBEC254808A8C819A1104717C5"}"#;
    let mut message = parse_line(line.as_bytes());
    message.redact(&SecretRedactor::new(&["another secret".to_owned()]));
    assert!(message.uuid.is_some());
    message.redact(&SecretRedactor::new(&[secret]));
    assert_eq!(message.uuid, None);
}

#[test]
fn a_row_has_room_for_what_we_say_of_a_line_and_for_no_more() {
    let numbers = |count: usize| format!("[{}0]", "0,".repeat(count - 2));
    assert!(parse_row(&numbers(ROW_VALUES_MAX)).is_some());
    assert_eq!(parse_row(&numbers(ROW_VALUES_MAX + 1)), None);
    assert_eq!(parse_row("{"), None);
}
