//! Reading a line: loose about what is in it, total about what may come.

use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::{ApiError, Assistant, Body, Init, Message, RateLimit, Retry, Task, TurnResult, User};

/// How deep a message may nest. Readers of our rows give up at 127, and rows are wrapped again.
pub const NESTING_MAX: usize = 96;

/// How many values a message may have: a line of nothing but `0,0,…` takes fifty times its size in
/// memory.
pub const VALUES_MAX: usize = 100_000;

/// The most values in a row: those of its line, and what we say of it.
pub const ROW_VALUES_MAX: usize = VALUES_MAX + 1_000;

/// How many blocks the content of a message may have: each may be a row of its own.
pub const BLOCKS_MAX: usize = 4096;

/// The longest id: ids are remembered.
pub const ID_BYTES_MAX: usize = 1024;

type Fields = Map<String, Json>;

/// Reads one line of an agent's standard output.
pub fn read_line(line: &[u8]) -> Message {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Message::of(Body::Quiet { kind: "blank".to_owned() });
    }
    if has_more_values(line, VALUES_MAX) {
        return malformed(&format!("it has more than {VALUES_MAX} values"), line);
    }
    match parse(line) {
        Ok(Json::Object(fields)) if deeper_than(fields.values(), NESTING_MAX - 1) => {
            malformed(&format!("it nests deeper than {NESTING_MAX} levels"), line)
        }
        Ok(Json::Object(fields)) => match excess(&fields) {
            Some(reason) => malformed(&reason, line),
            None => read_object(fields, line),
        },
        Ok(other) => malformed(&format!("it is {}, not an object", kind_of(&other)), line),
        Err(error) => malformed(&format!("it is not JSON ({error})"), line),
    }
}

/// Parses, and parses again what can be mended for certain: bytes that are not UTF-8, and halves of
/// surrogate pairs, which JavaScript writes when it cuts text inside a character.
fn parse(line: &[u8]) -> Result<Json, serde_json::Error> {
    serde_json::from_slice(line).or_else(|error| {
        let text = String::from_utf8_lossy(line);
        serde_json::from_str(&whole_surrogates(&text)).map_err(|_| error)
    })
}

/// Replaces every escaped half of a surrogate pair that lacks its other half.
fn whole_surrogates(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        whole.push_str(before);
        let (kept, len) = match (surrogate(escape), escape.get(6..).and_then(surrogate)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => (&escape[..12], 12),
            (Some(_), _) => ("\\ufffd", 6),
            (None, _) => {
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

/// Reads a row of a log. One with more values than a row of ours can have is none: it came with
/// somebody else's state, and its values would take many times its room.
pub fn read_row(text: &str) -> Option<Json> {
    if has_more_values(text.as_bytes(), ROW_VALUES_MAX) {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// Says so without making the values.
fn has_more_values(line: &[u8], most: usize) -> bool {
    // Each value but the first has a byte before it that begins or divides.
    if line.len() <= most {
        return false;
    }
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for &byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count > most
}

/// Says what a message has too much of.
fn excess(fields: &Fields) -> Option<String> {
    let message = fields.get("message").unwrap_or(&Json::Null);
    let content = message.get("content").or_else(|| fields.get("content"));
    let (blocks, tasks) = (list(content), list(fields.get("tasks")));
    if blocks.len() > BLOCKS_MAX {
        return Some(format!("it has more than {BLOCKS_MAX} blocks"));
    }
    let is_long =
        |id: Option<&Json>| id.and_then(Json::as_str).is_some_and(|id| id.len() > ID_BYTES_MAX);
    let of_line = ID_KEYS.iter().any(|key| is_long(fields.get(*key)));
    let within = |value: &Json| ID_KEYS.iter().any(|key| is_long(value.get(*key)));
    let too_long = of_line || within(message) || blocks.iter().chain(tasks).any(within);
    too_long.then(|| format!("it has an id of more than {ID_BYTES_MAX} bytes"))
}

fn list(value: Option<&Json>) -> &[Json] {
    value.and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// Where ids stand, in a line, in its message, and in blocks and tasks of it.
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

fn deeper_than<'j>(values: impl IntoIterator<Item = &'j Json>, left: usize) -> bool {
    values.into_iter().any(|value| match value {
        Json::Array(items) => left == 0 || deeper_than(items, left - 1),
        Json::Object(fields) => left == 0 || deeper_than(fields.values(), left - 1),
        _ => false,
    })
}

fn kind_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

fn malformed(reason: &str, line: &[u8]) -> Message {
    let (reason, text) = (reason.to_owned(), lossy(line));
    Message::of(Body::Malformed { reason, text })
}

/// Returns a line as text. It is cut when it is recorded, after its secrets are taken out.
fn lossy(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().to_owned()
}

fn read_object(mut fields: Fields, line: &[u8]) -> Message {
    let kind = take_text(&mut fields, "type").unwrap_or_default();
    let uuid = take_text(&mut fields, "uuid").and_then(|text| Uuid::try_parse(&text).ok());
    let session = take_text(&mut fields, "session_id");
    let parent_tool_use_id = take_text(&mut fields, "parent_tool_use_id");
    let body = match kind.as_str() {
        "system" => read_system(&mut fields),
        "assistant" => read_assistant(&mut fields),
        "user" => read_user(&mut fields),
        "stream_event" => read_stream_event(&mut fields),
        "result" => Body::Result(Box::new(read_result(&fields))),
        "tool_use" => read_tool_use(&mut fields),
        "tool_result" => read_tool_result(&mut fields),
        "error" => read_error(&fields),
        "rate_limit_event" => Body::RateLimit(read_rate_limit(&fields)),
        "command_lifecycle" => Body::Lifecycle {
            command: text(&fields, "command_uuid").unwrap_or_default(),
            state: text(&fields, "state").unwrap_or_default(),
        },
        "tool_progress" | "auth_status" => Body::System { subtype: kind },
        "transcript_mirror" | "keep_alive" => Body::Quiet { kind },
        _ => Body::Unknown { kind, text: lossy(line) },
    };
    Message { uuid, session, parent_tool_use_id, body, fields }
}

fn read_system(fields: &mut Fields) -> Body {
    let subtype = take_text(fields, "subtype").unwrap_or_default();
    match subtype.as_str() {
        "init" => Body::Init(Init {
            version: text(fields, "claude_code_version"),
            model: text(fields, "model"),
        }),
        "api_retry" => Body::Retry(Retry {
            attempt: number(fields, "attempt"),
            max_retries: number(fields, "max_retries"),
            delay_ms: number(fields, "retry_delay_ms"),
            status: number(fields, "error_status"),
            error: text(fields, "error"),
        }),
        "task_started" | "task_progress" | "task_updated" | "task_notification" => {
            Body::Task(read_task(fields, subtype))
        }
        "background_tasks_changed" => Body::Background { running: running(fields) },
        "status"
        | "thinking_tokens"
        | "ui_invalidate"
        | "session_state_changed"
        | "session_title_changed" => Body::Quiet { kind: subtype },
        _ => Body::System { subtype },
    }
}

fn read_task(fields: &Fields, subtype: String) -> Task {
    let patched = fields.get("patch").and_then(|patch| patch["status"].as_str());
    Task {
        subtype,
        id: text(fields, "task_id").unwrap_or_default(),
        kind: text(fields, "task_type"),
        background: flag(fields, "is_backgrounded"),
        status: text(fields, "status").or_else(|| patched.map(str::to_owned)),
    }
}

fn running(fields: &Fields) -> Vec<String> {
    let Some(Json::Array(tasks)) = fields.get("tasks") else { return Vec::new() };
    tasks.iter().filter_map(|task| task["task_id"].as_str()).map(str::to_owned).collect()
}

fn read_assistant(fields: &mut Fields) -> Body {
    let failed = flag(fields, "is_api_error_message") || flag(fields, "isApiErrorMessage");
    let code = text(fields, "error");
    let api_error = (failed || code.is_some()).then(|| ApiError {
        code,
        kind: text(fields, "api_error_type"),
        status: number(fields, "api_error_status"),
    });
    Body::Assistant(Assistant { message: take_message(fields, "assistant"), api_error })
}

fn read_user(fields: &mut Fields) -> Body {
    let replay = flag(fields, "isReplay");
    let synthetic = flag(fields, "isSynthetic");
    Body::User(User { message: take_message(fields, "user"), replay, synthetic })
}

/// Takes the API's message: nested as it is now, or spread over the line as it once was.
fn take_message(fields: &mut Fields, role: &str) -> Fields {
    let mut message = match fields.shift_remove("message") {
        Some(Json::Object(message)) => message,
        Some(Json::String(content)) => Fields::from_iter([("content".to_owned(), content.into())]),
        _ => Fields::new(),
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

fn read_stream_event(fields: &mut Fields) -> Body {
    let Some(Json::Object(mut event)) = fields.shift_remove("event") else {
        return Body::Quiet { kind: "stream_event".to_owned() };
    };
    if let Some(Json::Object(delta)) = event.get_mut("delta")
        && delta.get("type").is_some_and(|kind| kind == "text_delta")
        && let Some(text) = take_text(delta, "text")
    {
        return Body::Delta { text };
    }
    Body::Quiet { kind: "stream_event".to_owned() }
}

fn read_result(fields: &Fields) -> TurnResult {
    let errors = match fields.get("errors") {
        Some(Json::Array(errors)) => {
            errors.iter().filter_map(Json::as_str).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let subtype = text(fields, "subtype").unwrap_or_default();
    let is_error = match fields.get("is_error") {
        Some(Json::Bool(is_error)) => *is_error,
        // Only what is older than the flag lacks it.
        _ => subtype.starts_with("error") || !errors.is_empty(),
    };
    TurnResult {
        subtype,
        is_error,
        text: text(fields, "result"),
        errors,
        stop_reason: text(fields, "stop_reason"),
        terminal_reason: text(fields, "terminal_reason"),
        api_error_status: number(fields, "api_error_status"),
        api_error_type: text(fields, "api_error_type"),
        num_turns: number(fields, "num_turns").and_then(|turns| i64::try_from(turns).ok()),
        queued_turns: number(fields, "queued_turn_count").unwrap_or(0),
    }
}

/// Reads a tool call that stands by itself, as old versions wrote it.
fn read_tool_use(fields: &mut Fields) -> Body {
    let mut block = Fields::new();
    block.insert("type".to_owned(), "tool_use".into());
    block.insert("id".to_owned(), take_first(fields, &["tool_use_id", "id"]));
    block.insert("name".to_owned(), take_first(fields, &["tool_name", "name"]));
    block.insert("input".to_owned(), take_first(fields, &["input"]));
    Body::Assistant(Assistant { message: message_of("assistant", block), api_error: None })
}

/// Reads a tool result that stands by itself, as old versions wrote it.
fn read_tool_result(fields: &mut Fields) -> Body {
    let failed = flag(fields, "is_error")
        || fields.get("success").is_some_and(|success| success == false)
        || fields.get("error").is_some_and(|error| !error.is_null());
    let content = match take_first(fields, &["result", "content"]) {
        Json::Null => take_first(fields, &["error"]),
        content => content,
    };
    let mut block = Fields::new();
    block.insert("type".to_owned(), "tool_result".into());
    block.insert("tool_use_id".to_owned(), take_first(fields, &["tool_use_id", "id"]));
    block.insert("content".to_owned(), content);
    block.insert("is_error".to_owned(), failed.into());
    Body::User(User { message: message_of("user", block), ..User::default() })
}

fn message_of(role: &str, block: Fields) -> Fields {
    let content = Json::Array(vec![Json::Object(block)]);
    Fields::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content)])
}

fn read_error(fields: &Fields) -> Body {
    let nested = |key: &str| fields.get("error").and_then(|error| error[key].as_str());
    let message = text(fields, "message")
        .or_else(|| text(fields, "error"))
        .or_else(|| nested("message").map(str::to_owned))
        .or_else(|| text(fields, "content"))
        .unwrap_or_else(|| "the agent reported an error without saying which".to_owned());
    let code = text(fields, "code").or_else(|| nested("type").map(str::to_owned));
    Body::Error { message, code }
}

fn read_rate_limit(fields: &Fields) -> RateLimit {
    let Some(info) = fields.get("rate_limit_info") else { return RateLimit::default() };
    RateLimit {
        status: info["status"].as_str().map(str::to_owned),
        resets_at: info["resetsAt"].as_i64(),
    }
}

fn take_text(fields: &mut Fields, key: &str) -> Option<String> {
    match fields.shift_remove(key) {
        Some(Json::String(text)) => Some(text),
        _ => None,
    }
}

/// Takes the first of some fields that is there and not null; the others are dropped.
fn take_first(fields: &mut Fields, keys: &[&str]) -> Json {
    let found = keys.iter().filter_map(|key| fields.shift_remove(*key));
    found.fold(Json::Null, |kept, value| if kept.is_null() { value } else { kept })
}

fn text(fields: &Fields, key: &str) -> Option<String> {
    fields.get(key).and_then(Json::as_str).map(str::to_owned)
}

fn flag(fields: &Fields, key: &str) -> bool {
    fields.get(key) == Some(&Json::Bool(true))
}

/// Reads a count; some versions write whole numbers as decimals.
fn number(fields: &Fields, key: &str) -> Option<u64> {
    let value = fields.get(key)?;
    // `as` saturates, which is right for a count: negative is none, huge is huge.
    value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n.round() as u64))
}
