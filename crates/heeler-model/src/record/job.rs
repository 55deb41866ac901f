//! Job rows: the normal form that people and scripts read, derived from session rows.

use jiff::Timestamp;
use serde_json::Value as Json;
use uuid::Uuid;

use super::cut::{JOB_SHORT_BYTES_MAX, JOB_TEXT_BYTES_MAX, cut, cut_input, size};
use super::{FAILURE_KEY, Fields, INTERRUPTION_KEY, OpenCall, Recorder, insert_bounded};
use crate::message::{INTERRUPTED, text_of};

/// What of a system row the job log keeps beside its content. The rest is in the session log.
const SYSTEM_KEYS: [&str; 22] = [
    "attempt",
    "bytes",
    "claude_code_version",
    "decision_reason_type",
    "description",
    "elapsed_time_seconds",
    "error",
    "error_status",
    "last_tool_name",
    "level",
    "max_retries",
    "model",
    "name",
    "number",
    "path",
    "permissionMode",
    "retry_delay_ms",
    "status",
    "subagent_type",
    "task_id",
    "tool_name",
    "tool_use_id",
];

/// How what Claude says of an interrupt begins, and of a tool that the interrupt ended.
const STOPPED_BY_USER: [&str; 2] =
    ["[Request interrupted by user", "The user doesn't want to proceed with this tool use"];

/// What of a turn's end the job log keeps beside its text.
const RESULT_KEYS: [&str; 8] = [
    "api_error_status",
    "duration_api_ms",
    "duration_ms",
    "is_error",
    "num_turns",
    "stop_reason",
    "terminal_reason",
    "total_cost_usd",
];

/// The row of tasks that an agent added, and how many it names.
const TASKS_ADDED: &str = "tasks_added";
const TASKS_ADDED_MAX: usize = 100;

/// How many failed MCP servers a row names.
const MCP_FAILED_MAX: usize = 32;

/// The token counts that a row keeps.
const USAGE_KEYS: [&str; 4] =
    ["input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];

impl Recorder {
    /// Returns the job rows of a session row, and remembers what later ones need of it.
    pub(super) fn job_rows(&mut self, row: &Json, at: Timestamp) -> Vec<Json> {
        let begins = self.count.row(row);
        let mut rows = JobRows::new(row);
        match text(row, "type") {
            Some("assistant") if row[FAILURE_KEY].is_object() => {
                rows.push(failure_row(row, self.told_error.as_deref()));
            }
            Some("assistant") if is_true(&row["isApiErrorMessage"]) => {
                self.told_error = Some(text_of(&row["message"]["content"]));
                rows.push(error_row(row));
            }
            Some("assistant") => {
                self.told_error = None;
                self.assistant_rows(row, begins, at, &mut rows);
            }
            Some("user") => self.user_rows(row, at, &mut rows),
            Some("result") => {
                self.told_error = is_true(&row["is_error"]).then(|| result_said(row));
                self.weigh_result(row);
                rows.push(result_row(row));
            }
            Some("system") => rows.push(system_row(row)),
            _ => {}
        }
        rows.rows
    }

    fn assistant_rows(&mut self, row: &Json, begins: bool, at: Timestamp, rows: &mut JobRows) {
        let message = &row["message"];
        let is_main = row["parent_tool_use_id"].is_null();
        let mut usage = self.fresh_usage(message);
        let has_usage = usage.is_some();
        if is_main {
            self.weigh(message, begins);
        }
        for part in parts(&message["content"]) {
            match part {
                Part::Said(said) => rows.say(&said, &mut usage),
                Part::Call(block) => rows.push(self.tool_use_row(block, at)),
                Part::Result(block) => rows.push(self.tool_result_row(block, None, at)),
            }
        }
        if has_usage && usage.is_none() {
            self.usage_told_of = message["id"].as_str().map(str::to_owned);
        }
    }

    /// Returns a message's usage unless a row of the same message may have told it.
    fn fresh_usage(&self, message: &Json) -> Option<Json> {
        let id = message["id"].as_str();
        let is_told = id.is_some() && id == self.usage_told_of.as_deref();
        if is_told { None } else { usage(&message["usage"]) }
    }

    fn user_rows(&mut self, row: &Json, at: Timestamp, rows: &mut JobRows) {
        let message = &row["message"];
        let why = text(&row[INTERRUPTION_KEY], "message");
        if row["parent_tool_use_id"].is_null() {
            self.weigh(message, false);
        }
        let mut told = String::new();
        for block in blocks(&message["content"]) {
            match block_kind(block) {
                "tool_result" => rows.push(self.tool_result_row(block, why, at)),
                "text" => join(&mut told, block_text(block)),
                kind => join(&mut told, &format!("[{kind}]")),
            }
        }
        if let Some(why) = why.filter(|_| is_of_user(&told)) {
            rows.push(fields([
                ("type", "system".into()),
                ("subtype", "interrupted".into()),
                ("content", interrupted(why).into()),
            ]));
        } else if !told.is_empty() {
            let mut told = fields([
                ("type", "system".into()),
                ("subtype", "user_input".into()),
                ("content", cut(&told, JOB_TEXT_BYTES_MAX).into()),
            ]);
            if is_true(&row["isSynthetic"]) {
                told.insert("synthetic".to_owned(), true.into());
            }
            rows.push(told);
        }
    }

    fn tool_use_row(&mut self, block: &Json, at: Timestamp) -> Fields {
        let tool = block["name"].as_str().unwrap_or_default();
        if let Some(id) = block["id"].as_str() {
            insert_bounded(&mut self.calls, id, OpenCall { tool: short(tool), at });
        }
        fields([
            ("type", "tool_use".into()),
            ("tool_name", short(tool).into()),
            ("tool_use_id", block["id"].as_str().map(short).into()),
            ("input", cut_input(&block["input"])),
        ])
    }

    /// `why` is why we interrupted the agent, where its words blame the user.
    fn tool_result_row(&mut self, block: &Json, why: Option<&str>, at: Timestamp) -> Fields {
        let id = block["tool_use_id"].as_str();
        let call = id.and_then(|id| self.calls.shift_remove(id));
        if let Some(id) = id {
            self.last_of_sub_agent.shift_remove(id);
        }
        let failed = is_true(&block["is_error"]);
        let text = result_text(&block["content"]);
        let text = match why.filter(|_| is_of_user(&text)) {
            Some(why) => interrupted(why),
            None => cut(&text, JOB_TEXT_BYTES_MAX).into(),
        };
        let mut row = fields([
            ("type", "tool_result".into()),
            ("tool_use_id", id.map(short).into()),
            (if failed { "error" } else { "result" }, text.into()),
            ("success", (!failed).into()),
        ]);
        if let Some(OpenCall { tool, at: asked_at }) = call {
            row.insert("tool_name".to_owned(), tool.into());
            let millis = at.as_millisecond().saturating_sub(asked_at.as_millisecond());
            row.insert("duration_ms".to_owned(), millis.max(0).into());
        }
        row
    }

    /// Takes what the API counted, where a turn was one reply: of several, a result has only the sum.
    fn weigh_result(&mut self, row: &Json) {
        let sent = tokens_sent(&row["usage"]);
        if sent > 0 && row["num_turns"] == 1 && row["subtype"] == "success" {
            let said = row["usage"]["output_tokens"].as_u64().unwrap_or(0);
            self.tokens = sent.saturating_add(said);
        }
    }

    /// Estimates the context: what the API was last sent, and a quarter of a token for each byte
    /// that was said since.
    fn weigh(&mut self, message: &Json, begins: bool) {
        if begins {
            match tokens_sent(&message["usage"]) {
                0 => {}
                context => self.tokens = context,
            }
        }
        let said = size(&message["content"]) as u64 / 4;
        self.tokens = self.tokens.saturating_add(said);
    }
}

/// Returns how many tokens the API was sent, cached ones included.
fn tokens_sent(usage: &Json) -> u64 {
    let sent = |key: &str| usage[key].as_u64().unwrap_or(0);
    let read = sent("input_tokens").saturating_add(sent("cache_read_input_tokens"));
    read.saturating_add(sent("cache_creation_input_tokens"))
}

/// The job rows of one session row, each with what they share and an id of its own.
struct JobRows {
    uuid: Option<Uuid>,
    shared: Fields,
    rows: Vec<Json>,
}

impl JobRows {
    fn new(row: &Json) -> JobRows {
        let mut shared = Fields::new();
        for key in ["timestamp", "parent_tool_use_id"] {
            if let Some(value) = text(row, key) {
                shared.insert(key.to_owned(), short(value).into());
            }
        }
        let uuid = text(row, "uuid").and_then(|uuid| Uuid::try_parse(uuid).ok());
        JobRows { uuid, shared, rows: Vec::new() }
    }

    fn push(&mut self, mut row: Fields) {
        let uuid = self.uuid.map(|uuid| nth_uuid(uuid, self.rows.len()).to_string());
        row.insert("uuid".to_owned(), uuid.into());
        row.extend(self.shared.clone());
        self.rows.push(Json::Object(row));
    }

    /// Adds what was said; the first such row carries the usage.
    fn say(&mut self, said: &str, usage: &mut Option<Json>) {
        let content = cut(said, JOB_TEXT_BYTES_MAX);
        let mut row = fields([("type", "assistant".into()), ("content", content.into())]);
        if let Some(usage) = usage.take() {
            row.insert("usage".to_owned(), usage);
        }
        self.push(row);
    }
}

/// What becomes one job row of an assistant message.
enum Part<'r> {
    /// Texts that stand together.
    Said(String),
    Call(&'r Json),
    Result(&'r Json),
}

/// Returns what the job rows of an assistant message are made of, in their order.
fn parts(content: &Json) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut said = String::new();
    for block in blocks(content) {
        let part = match block_kind(block) {
            "thinking" | "redacted_thinking" => continue,
            "tool_use" | "server_tool_use" | "mcp_tool_use" => Part::Call(block),
            kind if kind.ends_with("tool_result") => Part::Result(block),
            "text" => {
                join(&mut said, block_text(block));
                continue;
            }
            kind => {
                join(&mut said, &format!("[{kind}]"));
                continue;
            }
        };
        parts.extend(take_said(&mut said));
        parts.push(part);
    }
    parts.extend(take_said(&mut said));
    parts
}

fn take_said<'r>(said: &mut String) -> Option<Part<'r>> {
    (!said.is_empty()).then(|| Part::Said(std::mem::take(said)))
}

/// Returns the whole text of a job row, which has at most [`JOB_TEXT_BYTES_MAX`] bytes of it, from
/// the session row that it came of; none if it came of another row, or is no text of the agent.
pub fn whole_text(session_row: &Json, job_row: Uuid) -> Option<String> {
    let uuid = text(session_row, "uuid").and_then(|uuid| Uuid::try_parse(uuid).ok())?;
    match text(session_row, "type")? {
        "result" => (uuid == job_row).then(|| result_said(session_row)),
        "assistant" => {
            let parts = parts(&session_row["message"]["content"]).into_iter().enumerate();
            let mut own = parts.filter(|(number, _)| nth_uuid(uuid, *number) == job_row);
            match own.next()? {
                (_, Part::Said(said)) => Some(said),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the id of the n-th job row of a session row: the first one has the row's own.
pub fn nth_uuid(uuid: Uuid, n: usize) -> Uuid {
    match n {
        0 => uuid,
        n => uuid::Builder::from_custom_bytes(uuid.as_u128().wrapping_add(n as u128).to_be_bytes())
            .into_uuid(),
    }
}

fn error_row(row: &Json) -> Fields {
    let message = text_of(&row["message"]["content"]);
    let code = text(row, "error").or_else(|| text(row, "api_error_type"));
    let mut error = fields([
        ("type", "error".into()),
        ("message", cut(&message, JOB_TEXT_BYTES_MAX).into()),
        ("code", code.map(short).into()),
    ]);
    if row["api_error_status"].is_number() {
        error.insert("status".to_owned(), row["api_error_status"].clone());
    }
    error
}

fn failure_row(row: &Json, told: Option<&str>) -> Fields {
    let failure = &row[FAILURE_KEY];
    let mut error = error_row(row);
    error.insert("code".to_owned(), failure["class"].clone());
    for key in ["recoverable", "retry_after_ms", "resets_at", "messages_received", "cure"] {
        error.insert(key.to_owned(), failure[key].clone());
    }
    if let (Some(class), Some(cure)) = (text(failure, "class"), text(failure, "cure"))
        && told.map(str::trim) == text(failure, "message")
    {
        error.insert("message".to_owned(), short(&format!("{class}: {cure}")).into());
    }
    error
}

/// Says whether a text tells that the user stopped something.
fn is_of_user(text: &str) -> bool {
    STOPPED_BY_USER.iter().any(|words| text.starts_with(words))
}

fn interrupted(why: &str) -> String {
    cut(&format!("interrupted: {why}"), JOB_TEXT_BYTES_MAX).into()
}

/// Returns what a turn's end says.
fn result_said(row: &Json) -> String {
    match (&row["result"], text(row, "terminal_reason")) {
        (Json::String(text), _) => text.clone(),
        // What the agent calls it then is for its makers.
        (_, Some("aborted_streaming" | "aborted_tools")) => INTERRUPTED.to_owned(),
        _ => text_of(&row["errors"]),
    }
}

fn result_row(row: &Json) -> Fields {
    let failed = is_true(&row["is_error"]);
    let said = result_said(row);
    let said = cut(&said, JOB_TEXT_BYTES_MAX);
    let mut result = fields([
        ("type", "tool_result".into()),
        ("subtype", short(text(row, "subtype").unwrap_or_default()).into()),
        (if failed { "error" } else { "result" }, said.into()),
        ("success", (!failed).into()),
    ]);
    copy_scalars(row, &RESULT_KEYS, &mut result);
    if let Some(usage) = usage(&row["usage"]) {
        result.insert("usage".to_owned(), usage);
    }
    result
}

fn system_row(row: &Json) -> Fields {
    let mut system = fields([
        ("type", "system".into()),
        ("subtype", short(text(row, "subtype").unwrap_or_default()).into()),
    ]);
    let content = text(row, "content").or_else(|| text(row, "message"));
    if let Some(content) = content {
        system.insert("content".to_owned(), cut(content, JOB_TEXT_BYTES_MAX).into());
    }
    copy_scalars(row, &SYSTEM_KEYS, &mut system);
    let failed: Vec<Json> = failed_servers(row).map(|name| short(name).into()).collect();
    if !failed.is_empty() {
        system.insert("mcp_failed".to_owned(), failed.into());
    }
    if row["subtype"] == TASKS_ADDED {
        let tasks = row["tasks"].as_array().into_iter().flatten().filter_map(Json::as_str);
        let tasks: Vec<Json> = tasks.take(TASKS_ADDED_MAX).map(|task| short(task).into()).collect();
        system.insert("tasks".to_owned(), tasks.into());
    }
    system
}

/// Returns the MCP servers that an `init` row says could not be used.
fn failed_servers(init: &Json) -> impl Iterator<Item = &str> {
    let servers = init["mcp_servers"].as_array().into_iter().flatten();
    let failed = servers.filter(|server| server["status"] == "failed");
    failed.filter_map(|server| server["name"].as_str()).take(MCP_FAILED_MAX)
}

fn copy_scalars(from: &Json, keys: &[&str], to: &mut Fields) {
    for &key in keys {
        let kept = match &from[key] {
            Json::String(text) => short(text).into(),
            value @ (Json::Number(_) | Json::Bool(_)) => value.clone(),
            _ => continue,
        };
        to.insert(key.to_owned(), kept);
    }
}

fn usage(usage: &Json) -> Option<Json> {
    let counts = USAGE_KEYS.iter().filter_map(|&key| {
        let count = usage[key].as_u64()?;
        Some((key.to_owned(), count.into()))
    });
    let counts: Fields = counts.collect();
    (!counts.is_empty()).then_some(Json::Object(counts))
}

/// Returns the content as blocks; a string is one block of itself.
fn blocks(content: &Json) -> &[Json] {
    match content {
        Json::Array(blocks) => blocks,
        Json::Null => &[],
        other => std::slice::from_ref(other),
    }
}

fn block_kind(block: &Json) -> &str {
    match block {
        Json::String(_) => "text",
        block => block["type"].as_str().unwrap_or("unknown block"),
    }
}

fn block_text(block: &Json) -> &str {
    match block {
        Json::String(text) => text,
        block => block["text"].as_str().unwrap_or_default(),
    }
}

fn result_text(content: &Json) -> String {
    let mut text = String::new();
    for block in blocks(content) {
        match block_kind(block) {
            "text" => join(&mut text, block_text(block)),
            "unknown block" => join(&mut text, &block.to_string()),
            kind => join(&mut text, &format!("[{kind}]")),
        }
    }
    text
}

fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

fn short(text: &str) -> String {
    cut(text, JOB_SHORT_BYTES_MAX).into_owned()
}

fn text<'r>(row: &'r Json, key: &str) -> Option<&'r str> {
    row[key].as_str()
}

fn is_true(value: &Json) -> bool {
    *value == Json::Bool(true)
}

fn fields<const N: usize>(pairs: [(&str, Json); N]) -> Fields {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
