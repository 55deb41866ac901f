//! Parsing of an agent's output lines: lenient about content, and total over all inputs.
//!
//! Start at [`parse_line`].

use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::{
    AgentMessage, ApiError, ApiRetry, AssistantMessage, MessageBody, RateLimit, SubagentTask,
    TurnInit, TurnResult, UserMessage,
};

/// Deepest nesting of a message. Readers of rows give up at 127 levels, and rows add levels.
pub const NESTING_MAX: usize = 96;

/// Most values in a message. A line that consists of `0,0,…` takes fifty times its size in memory.
pub const VALUES_MAX: usize = 100_000;

/// Most values in a row: those of its line and those that Heeler adds.
pub const ROW_VALUES_MAX: usize = VALUES_MAX + 1_000;

/// Most content blocks in a message. Each block may become a row.
pub const BLOCKS_MAX: usize = 4096;

/// Longest ID, in bytes. IDs are kept in memory.
pub const ID_BYTES_MAX: usize = 1024;

/// Fields of a line.
type MessageFields = Map<String, Json>;

/// Parses one line of an agent's standard output.
pub fn parse_line(line: &[u8]) -> AgentMessage {
    match parse_object(line) {
        Ok(fields) => match find_limit_violation(&fields) {
            Some(reason) => malformed(&reason, line),
            None => read_object(fields, line),
        },
        Err(message) => *message,
    }
}

/// Parses a line that must be a JSON object of any protocol, within the limits of a message. The
/// error is the message to record instead.
pub fn parse_object(line: &[u8]) -> Result<Map<String, Json>, Box<AgentMessage>> {
    if line.iter().all(u8::is_ascii_whitespace) {
        let blank = MessageBody::Ignored { kind: "blank".to_owned() };
        return Err(Box::new(AgentMessage::from_body(blank)));
    }
    let fault = |reason: &str| Err(Box::new(malformed(reason, line)));
    // Before parsing: the parsed form may take fifty times the memory of the line.
    if has_more_values(line, VALUES_MAX) {
        return fault(&format!("it has more than {VALUES_MAX} values"));
    }
    match parse_json(line) {
        // One level less, because the fields of the line are a level themselves.
        Ok(Json::Object(fields)) if is_deeper_than(fields.values(), NESTING_MAX - 1) => {
            fault(&format!("it nests deeper than {NESTING_MAX} levels"))
        }
        Ok(Json::Object(fields)) => Ok(fields),
        Ok(other) => fault(&format!("it is {}, not an object", json_kind(&other))),
        // The error is that of the original line, as a person would look for it there.
        Err(error) => fault(&format!("it is not JSON ({error})")),
    }
}

/// Builds a message from fields in the form of Claude's stream, for a runtime that translates
/// another protocol. Fields that exceed the limits of a message give a malformed one.
pub fn message_from_fields(fields: Map<String, Json>) -> AgentMessage {
    let is_too_deep = is_deeper_than(fields.values(), NESTING_MAX - 1);
    let reason = match is_too_deep {
        true => Some(format!("it nests deeper than {NESTING_MAX} levels")),
        false => find_limit_violation(&fields),
    };
    match reason {
        Some(reason) => malformed(&reason, Json::Object(fields).to_string().as_bytes()),
        None => read_object(fields, b""),
    }
}

/// Parses JSON. On failure, repairs the errors that have one certain repair and tries again: bytes
/// that are not UTF-8, and lone surrogates, which JavaScript writes when it cuts text inside a
/// character.
fn parse_json(line: &[u8]) -> Result<Json, serde_json::Error> {
    serde_json::from_slice(line).or_else(|error| {
        let text = String::from_utf8_lossy(line);
        // The repaired text is only tried; its own error would point to bytes that do not exist.
        serde_json::from_str(&replace_lone_surrogates(&text)).map_err(|_| error)
    })
}

/// Replaces every escaped surrogate that lacks its other half.
fn replace_lone_surrogates(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        whole.push_str(before);
        let (kept, len) = match (surrogate(escape), escape.get(6..).and_then(surrogate)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => (&escape[..12], 12),
            (Some(_), _) => ("\\ufffd", 6),
            (None, _) => {
                // An escape is two characters at least, and the second one may be wide.
                let len = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
                (&escape[..len], len)
            }
        };
        whole.push_str(kept);
        rest = &escape[len..];
    }
    whole + rest
}

fn surrogate(escape: &str) -> Option<u32> {
    let digits = escape.strip_prefix("\\u")?.get(..4)?;
    let unit = u32::from_str_radix(digits, 16).ok()?;
    (0xD800..=0xDFFF).contains(&unit).then_some(unit)
}

/// Parses a row of a transcript. Returns `None` if it has more values than Heeler writes: such a
/// row came with imported state, and would take many times its size in memory.
pub fn parse_row(text: &str) -> Option<Json> {
    if has_more_values(text.as_bytes(), ROW_VALUES_MAX) {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// Returns true if a line has more than `most` values. Does not build the values.
fn has_more_values(line: &[u8], most: usize) -> bool {
    // Every value except the first follows a `,`, `[` or `{`, so a short line cannot have too many.
    if line.len() <= most {
        return false;
    }
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for &byte in line {
        match byte {
            _ if escaped => escaped = false,
            // A backslash outside of a string is invalid and escapes nothing.
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count > most
}

/// Returns a description of the limit that a message exceeds, if any.
fn find_limit_violation(fields: &MessageFields) -> Option<String> {
    let message = fields.get("message").unwrap_or(&Json::Null);
    // Older versions have the content at the top level.
    let content = message.get("content").or_else(|| fields.get("content"));
    let (blocks, tasks) = (list(content), list(fields.get("tasks")));
    if blocks.len() > BLOCKS_MAX {
        return Some(format!("it has more than {BLOCKS_MAX} blocks"));
    }
    let is_long =
        |id: Option<&Json>| id.and_then(Json::as_str).is_some_and(|id| id.len() > ID_BYTES_MAX);
    // IDs become keys in memory and parts of rows, so none may be huge.
    let of_line = ID_KEYS.iter().any(|key| is_long(fields.get(*key)));
    let within = |value: &Json| ID_KEYS.iter().any(|key| is_long(value.get(*key)));
    let too_long = of_line || within(message) || blocks.iter().chain(tasks).any(within);
    too_long.then(|| format!("it has an id of more than {ID_BYTES_MAX} bytes"))
}

fn list(value: Option<&Json>) -> &[Json] {
    value.and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// Keys that hold IDs in a line, its message, and their blocks and tasks.
const ID_KEYS: [&str; 8] = [
    "command_uuid",
    "id",
    "parent_tool_use_id",
    "request_id",
    "session_id",
    "task_id",
    "tool_use_id",
    "uuid",
];

fn is_deeper_than<'j>(values: impl IntoIterator<Item = &'j Json>, left: usize) -> bool {
    values.into_iter().any(|value| match value {
        // The limit is checked before the descent, so the recursion itself is bounded.
        Json::Array(items) => left == 0 || is_deeper_than(items, left - 1),
        Json::Object(fields) => left == 0 || is_deeper_than(fields.values(), left - 1),
        _ => false,
    })
}

fn json_kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

fn malformed(reason: &str, line: &[u8]) -> AgentMessage {
    let (reason, text) = (reason.to_owned(), lossy_text(line));
    AgentMessage::from_body(MessageBody::Malformed { reason, text })
}

/// Returns a line as text. The recorder truncates it, after secrets are redacted.
fn lossy_text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().to_owned()
}

fn read_object(mut fields: MessageFields, line: &[u8]) -> AgentMessage {
    let kind = take_text(&mut fields, "type").unwrap_or_default();
    // An invalid ID is dropped; the recorder then mints one.
    let uuid = take_text(&mut fields, "uuid").and_then(|text| Uuid::try_parse(&text).ok());
    let session = take_text(&mut fields, "session_id");
    let parent_tool_use_id = take_text(&mut fields, "parent_tool_use_id");
    let body = match kind.as_str() {
        "system" => read_system(&mut fields),
        "assistant" => read_assistant(&mut fields),
        "user" => read_user(&mut fields),
        "stream_event" => read_stream_event(&mut fields),
        "result" => MessageBody::Result(Box::new(read_result(&fields))),
        "tool_use" => read_tool_use(&mut fields),
        "tool_result" => read_tool_result(&mut fields),
        "error" => read_error(&fields),
        "rate_limit_event" => MessageBody::RateLimit(read_rate_limit(&fields)),
        "command_lifecycle" => MessageBody::CommandLifecycle {
            command: string_field(&fields, "command_uuid").unwrap_or_default(),
            state: string_field(&fields, "state").unwrap_or_default(),
        },
        "tool_progress" | "auth_status" => MessageBody::System { subtype: kind },
        // The runtime handles these itself, or they only keep the connection open.
        "transcript_mirror" | "keep_alive" => MessageBody::Ignored { kind },
        // A later version of Claude may add types; the line is shown rather than lost.
        _ => MessageBody::Unknown { kind, text: lossy_text(line) },
    };
    AgentMessage { uuid, session, parent_tool_use_id, body, fields }
}

fn read_system(fields: &mut MessageFields) -> MessageBody {
    let subtype = take_text(fields, "subtype").unwrap_or_default();
    match subtype.as_str() {
        "init" => MessageBody::Init(TurnInit {
            version: string_field(fields, "claude_code_version")
                .or_else(|| string_field(fields, "agent_version")),
            model: string_field(fields, "model"),
        }),
        "api_retry" => MessageBody::Retry(ApiRetry {
            attempt: count_field(fields, "attempt"),
            max_retries: count_field(fields, "max_retries"),
            delay_ms: count_field(fields, "retry_delay_ms"),
            status: count_field(fields, "error_status"),
            error: string_field(fields, "error"),
        }),
        "task_started" | "task_progress" | "task_updated" | "task_notification" => {
            MessageBody::Task(read_task(fields, subtype))
        }
        "background_tasks_changed" => {
            MessageBody::BackgroundTasks { running: running_task_ids(fields) }
        }
        "status"
        | "thinking_tokens"
        | "ui_invalidate"
        | "session_state_changed"
        // These change often and say nothing that a transcript needs.
        | "session_title_changed" => MessageBody::Ignored { kind: subtype },
        _ => MessageBody::System { subtype },
    }
}

fn read_task(fields: &MessageFields, subtype: String) -> SubagentTask {
    let patched = fields.get("patch").and_then(|patch| patch["status"].as_str());
    SubagentTask {
        subtype,
        id: string_field(fields, "task_id").unwrap_or_default(),
        kind: string_field(fields, "task_type"),
        background: bool_field(fields, "is_backgrounded"),
        // An update carries its status in a patch, other messages carry it directly.
        status: string_field(fields, "status").or_else(|| patched.map(str::to_owned)),
    }
}

fn running_task_ids(fields: &MessageFields) -> Vec<String> {
    let Some(Json::Array(tasks)) = fields.get("tasks") else { return Vec::new() };
    tasks.iter().filter_map(|task| task["task_id"].as_str()).map(str::to_owned).collect()
}

fn read_assistant(fields: &mut MessageFields) -> MessageBody {
    let failed =
        // The stream and the session file spell the key differently.
        bool_field(fields, "is_api_error_message") || bool_field(fields, "isApiErrorMessage");
    let code = string_field(fields, "error");
    let api_error = (failed || code.is_some()).then(|| ApiError {
        code,
        kind: string_field(fields, "api_error_type"),
        status: count_field(fields, "api_error_status"),
    });
    MessageBody::Assistant(AssistantMessage {
        message: take_message(fields, "assistant"),
        api_error,
    })
}

fn read_user(fields: &mut MessageFields) -> MessageBody {
    let replay = bool_field(fields, "isReplay");
    let synthetic = bool_field(fields, "isSynthetic");
    MessageBody::User(UserMessage { message: take_message(fields, "user"), replay, synthetic })
}

/// Takes the API message: nested in current versions, spread over the line in older ones.
fn take_message(fields: &mut MessageFields, role: &str) -> MessageFields {
    let mut message = match fields.shift_remove("message") {
        Some(Json::Object(message)) => message,
        Some(Json::String(content)) => {
            MessageFields::from_iter([("content".to_owned(), content.into())])
        }
        _ => MessageFields::new(),
    };
    if !message.contains_key("content")
        && let Some(content) = fields.shift_remove("content")
    {
        message.insert("content".to_owned(), content);
    }
    for key in ["id", "model", "usage"] {
        if !message.contains_key(key)
            && let Some(value) = fields.shift_remove(key)
        {
            message.insert(key.to_owned(), value);
        }
    }
    if !message.contains_key("role") {
        message.insert("role".to_owned(), role.into());
    }
    message
}

fn read_stream_event(fields: &mut MessageFields) -> MessageBody {
    let Some(Json::Object(mut event)) = fields.shift_remove("event") else {
        return MessageBody::Ignored { kind: "stream_event".to_owned() };
    };
    if let Some(Json::Object(delta)) = event.get_mut("delta")
        // Other deltas are parts of tool inputs and thoughts, which are not streamed to people.
        && delta.get("type").is_some_and(|kind| kind == "text_delta")
        && let Some(text) = take_text(delta, "text")
    {
        return MessageBody::Delta { text };
    }
    MessageBody::Ignored { kind: "stream_event".to_owned() }
}

fn read_result(fields: &MessageFields) -> TurnResult {
    let errors = match fields.get("errors") {
        Some(Json::Array(errors)) => {
            errors.iter().filter_map(Json::as_str).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let subtype = string_field(fields, "subtype").unwrap_or_default();
    let is_error = match fields.get("is_error") {
        Some(Json::Bool(is_error)) => *is_error,
        // Only versions older than the flag omit it.
        _ => subtype.starts_with("error") || !errors.is_empty(),
    };
    TurnResult {
        subtype,
        is_error,
        text: string_field(fields, "result"),
        errors,
        stop_reason: string_field(fields, "stop_reason"),
        terminal_reason: string_field(fields, "terminal_reason"),
        api_error_status: count_field(fields, "api_error_status"),
        api_error_type: string_field(fields, "api_error_type"),
        // A count that does not fit is as good as unknown.
        num_turns: count_field(fields, "num_turns").and_then(|turns| i64::try_from(turns).ok()),
        denied_calls: read_denied_calls(fields),
        queued_turns: count_field(fields, "queued_turn_count").unwrap_or(0),
    }
}

fn read_denied_calls(fields: &MessageFields) -> Vec<(String, String)> {
    let denied = fields.get("permission_denials").and_then(Json::as_array);
    let text = |call: &Json, key: &str| call[key].as_str().map(str::to_owned);
    let call = |call: &Json| Some((text(call, "tool_use_id")?, text(call, "tool_name")?));
    denied.into_iter().flatten().filter_map(call).collect()
}

/// Reads a standalone tool call, as older versions wrote it.
fn read_tool_use(fields: &mut MessageFields) -> MessageBody {
    let mut block = MessageFields::new();
    block.insert("type".to_owned(), "tool_use".into());
    block.insert("id".to_owned(), take_first(fields, &["tool_use_id", "id"]));
    block.insert("name".to_owned(), take_first(fields, &["tool_name", "name"]));
    block.insert("input".to_owned(), take_first(fields, &["input"]));
    MessageBody::Assistant(AssistantMessage {
        message: message_with_block("assistant", block),
        api_error: None,
    })
}

/// Reads a standalone tool result, as older versions wrote it.
fn read_tool_result(fields: &mut MessageFields) -> MessageBody {
    let failed = bool_field(fields, "is_error")
        // Older versions report failure in one of three ways.
        || fields.get("success").is_some_and(|success| success == false)
        || fields.get("error").is_some_and(|error| !error.is_null());
    let content = match take_first(fields, &["result", "content"]) {
        Json::Null => take_first(fields, &["error"]),
        content => content,
    };
    let mut block = MessageFields::new();
    block.insert("type".to_owned(), "tool_result".into());
    block.insert("tool_use_id".to_owned(), take_first(fields, &["tool_use_id", "id"]));
    block.insert("content".to_owned(), content);
    block.insert("is_error".to_owned(), failed.into());
    MessageBody::User(UserMessage {
        message: message_with_block("user", block),
        ..UserMessage::default()
    })
}

fn message_with_block(role: &str, block: MessageFields) -> MessageFields {
    let content = Json::Array(vec![Json::Object(block)]);
    MessageFields::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content)])
}

fn read_error(fields: &MessageFields) -> MessageBody {
    let nested = |key: &str| fields.get("error").and_then(|error| error[key].as_str());
    let message = string_field(fields, "message")
        .or_else(|| string_field(fields, "error"))
        .or_else(|| nested("message").map(str::to_owned))
        .or_else(|| string_field(fields, "content"))
        .unwrap_or_else(|| "the agent reported an error without saying which".to_owned());
    let code = string_field(fields, "code").or_else(|| nested("type").map(str::to_owned));
    MessageBody::Error { message, code }
}

fn read_rate_limit(fields: &MessageFields) -> RateLimit {
    let Some(info) = fields.get("rate_limit_info") else { return RateLimit::default() };
    RateLimit {
        status: info["status"].as_str().map(str::to_owned),
        resets_at: info["resetsAt"].as_i64(),
        is_overage: info["isUsingOverage"] == true,
    }
}

fn take_text(fields: &mut MessageFields, key: &str) -> Option<String> {
    match fields.shift_remove(key) {
        Some(Json::String(text)) => Some(text),
        _ => None,
    }
}

/// Takes the first of several fields that is present and not null. The others are dropped.
fn take_first(fields: &mut MessageFields, keys: &[&str]) -> Json {
    let found = keys.iter().filter_map(|key| fields.shift_remove(*key));
    found.fold(Json::Null, |kept, value| if kept.is_null() { value } else { kept })
}

fn string_field(fields: &MessageFields, key: &str) -> Option<String> {
    fields.get(key).and_then(Json::as_str).map(str::to_owned)
}

fn bool_field(fields: &MessageFields, key: &str) -> bool {
    fields.get(key) == Some(&Json::Bool(true))
}

/// Reads a count. Some versions write whole numbers as decimals.
fn count_field(fields: &MessageFields, key: &str) -> Option<u64> {
    let value = fields.get(key)?;
    // `as` saturates, which is right for a count: negative is none, huge is huge.
    value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n.round() as u64))
}
