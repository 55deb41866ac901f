//! Job rows: the simplified form for people and scripts, derived from session rows.
//!
//! Start at [`TranscriptRecorder::job_rows`].

use jiff::Timestamp;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::truncation::{
    JOB_SHORT_BYTES_MAX, JOB_TEXT_BYTES_MAX, json_size, truncate_input, truncate_text,
};
use super::{
    FAILURE_KEY, INTERRUPTION_KEY, OpenToolCall, RowFields, TranscriptRecorder, insert_bounded,
};
use crate::file_edit::PATCH_KEY;
use crate::message::{INTERRUPTED_TEXT, content_text};

/// Fields of a system row that job rows keep besides the content. Session rows have all fields.
const SYSTEM_KEYS: [&str; 24] = [
    "agent",
    "agent_version",
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

/// Largest patch of an edit that a row keeps.
const PATCH_BYTES_MAX: usize = 16 * 1024;

/// Prefixes of Claude's texts for an interrupt, and for a tool that an interrupt ended.
const USER_INTERRUPTION_PREFIXES: [&str; 2] =
    ["[Request interrupted by user", "The user doesn't want to proceed with this tool use"];

/// Fields of a turn result that job rows keep besides the text.
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

/// Subtype of a row about tasks that an agent added, and the most tasks it lists.
const TASKS_ADDED: &str = "tasks_added";
const TASKS_ADDED_MAX: usize = 100;

/// Most failed MCP servers that a row lists.
const MCP_FAILED_MAX: usize = 32;

/// Token counts that a row keeps.
const USAGE_KEYS: [&str; 4] =
    ["input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];

impl TranscriptRecorder {
    /// Returns the job rows of a session row, and remembers state for later rows.
    pub(super) fn job_rows(&mut self, row: &Json, at: Timestamp) -> Vec<Json> {
        // Counted for every row, so that replaying a transcript gives the same numbers.
        let begins = self.message_counter.count_row(row);
        let mut rows = JobRowBuilder::new(row);
        match string_field(row, "type") {
            // Before the API error below: Heeler's failure rows have that mark too.
            Some("assistant") if row[FAILURE_KEY].is_object() => {
                rows.push(failure_row(row, self.reported_error.as_deref()));
            }
            Some("assistant") if is_true(&row["isApiErrorMessage"]) => {
                self.reported_error = Some(content_text(&row["message"]["content"]));
                rows.push(error_row(row));
            }
            Some("assistant") => {
                // The agent continued, so its earlier error is not the reason of a failure.
                self.reported_error = None;
                self.assistant_rows(row, begins, at, &mut rows);
            }
            Some("user") => self.user_rows(row, at, &mut rows),
            Some("result") => {
                self.reported_error = is_true(&row["is_error"]).then(|| turn_result_text(row));
                self.estimate_tokens_from_result(row);
                rows.push(result_row(row));
            }
            Some("system") => rows.push(system_row(row)),
            _ => {}
        }
        rows.rows
    }

    fn assistant_rows(
        &mut self,
        row: &Json,
        begins: bool,
        at: Timestamp,
        rows: &mut JobRowBuilder,
    ) {
        let message = &row["message"];
        let is_main = row["parent_tool_use_id"].is_null();
        let mut usage = self.unreported_usage(message);
        let has_usage = usage.is_some();
        // A sub-agent has a context of its own.
        if is_main {
            self.estimate_tokens(message, begins);
        }
        for part in content_parts(&message["content"]) {
            match part {
                ContentPart::Text(said) => rows.push_text(&said, &mut usage),
                ContentPart::ToolCall(block) => rows.push(self.tool_use_row(block, at)),
                ContentPart::ToolResult(block) => rows.push(self.tool_result_row(block, None, at)),
            }
        }
        // Only if a row took the usage; otherwise a later row of the message still needs it.
        if has_usage && usage.is_none() {
            self.usage_reported_for = message["id"].as_str().map(str::to_owned);
        }
    }

    /// Returns a message's usage unless an earlier row of the same message carries it.
    fn unreported_usage(&self, message: &Json) -> Option<Json> {
        let id = message["id"].as_str();
        let is_told = id.is_some() && id == self.usage_reported_for.as_deref();
        if is_told { None } else { usage(&message["usage"]) }
    }

    fn user_rows(&mut self, row: &Json, at: Timestamp, rows: &mut JobRowBuilder) {
        let message = &row["message"];
        let why = string_field(&row[INTERRUPTION_KEY], "message");
        if row["parent_tool_use_id"].is_null() {
            // Tool results are sent to the model as well, and count before the API reports them.
            self.estimate_tokens(message, false);
        }
        let mut told = String::new();
        let mut patch = reported_patch(row);
        for block in blocks(&message["content"]) {
            match block_kind(block) {
                "tool_result" => {
                    let mut result = self.tool_result_row(block, why, at);
                    // Claude reports each result in a message of its own.
                    if let Some(patch) = patch.take() {
                        result.insert(PATCH_KEY.to_owned(), patch);
                    }
                    rows.push(result);
                }
                "text" => append_line(&mut told, block_text(block)),
                kind => append_line(&mut told, &format!("[{kind}]")),
            }
        }
        // Claude attributes the interruption to the user, which would mislead the reader.
        if let Some(why) = why.filter(|_| is_user_interruption(&told)) {
            rows.push(row_fields([
                ("type", "system".into()),
                ("subtype", "interrupted".into()),
                ("content", interruption_text(why).into()),
            ]));
        } else if !told.is_empty() {
            let mut told = row_fields([
                ("type", "system".into()),
                ("subtype", "user_input".into()),
                ("content", truncate_text(&told, JOB_TEXT_BYTES_MAX).into()),
            ]);
            // Claude adds such messages itself, for example after a background task.
            if is_true(&row["isSynthetic"]) {
                told.insert("synthetic".to_owned(), true.into());
            }
            rows.push(told);
        }
    }

    fn tool_use_row(&mut self, block: &Json, at: Timestamp) -> RowFields {
        let tool = block["name"].as_str().unwrap_or_default();
        if let Some(id) = block["id"].as_str() {
            insert_bounded(
                &mut self.open_calls,
                id,
                OpenToolCall { tool: truncate_short(tool), at, waited_ms: 0 },
            );
        }
        row_fields([
            ("type", "tool_use".into()),
            ("tool_name", truncate_short(tool).into()),
            ("tool_use_id", block["id"].as_str().map(truncate_short).into()),
            ("input", truncate_input(&block["input"])),
        ])
    }

    /// Builds the row of a tool result. `why` is Heeler's reason for an interrupt that Claude
    /// attributes to the user.
    fn tool_result_row(&mut self, block: &Json, why: Option<&str>, at: Timestamp) -> RowFields {
        let id = block["tool_use_id"].as_str();
        let call = id.and_then(|id| self.open_calls.shift_remove(id));
        if let Some(id) = id {
            // A sub-agent ends with the result of the call that began it.
            self.last_of_sub_agent.shift_remove(id);
        }
        let failed = is_true(&block["is_error"]);
        let text = result_text(&block["content"]);
        let text = match why.filter(|_| is_user_interruption(&text)) {
            Some(why) => interruption_text(why),
            None => truncate_text(&text, JOB_TEXT_BYTES_MAX).into(),
        };
        let mut row = row_fields([
            ("type", "tool_result".into()),
            ("tool_use_id", id.map(truncate_short).into()),
            (if failed { "error" } else { "result" }, text.into()),
            ("success", (!failed).into()),
        ]);
        if let Some(OpenToolCall { tool, at: called_at, waited_ms }) = call {
            row.insert("tool_name".to_owned(), tool.into());
            let millis = at.as_millisecond().saturating_sub(called_at.as_millisecond());
            let millis = millis.saturating_sub(waited_ms);
            // A clock that was set back must not give a negative duration.
            row.insert("duration_ms".to_owned(), millis.max(0).into());
        }
        row
    }

    /// Takes the API's token count of a turn with a single reply. For several, only a sum is known.
    fn estimate_tokens_from_result(&mut self, row: &Json) {
        let sent = tokens_sent(&row["usage"]);
        // With several requests the usage is their sum, which is larger than the context.
        if sent > 0 && row["num_turns"] == 1 && row["subtype"] == "success" {
            let said = row["usage"]["output_tokens"].as_u64().unwrap_or(0);
            self.tokens = sent.saturating_add(said);
        }
    }

    /// Estimates the context size: tokens of the last API request, plus a quarter token for each
    /// byte added since.
    fn estimate_tokens(&mut self, message: &Json, begins: bool) {
        if begins {
            match tokens_sent(&message["usage"]) {
                // Some replies have no usage; the estimate then goes on from the last known size.
                0 => {}
                context => self.tokens = context,
            }
        }
        // Four bytes per token is the usual ratio for English text and code.
        let said = json_size(&message["content"]) as u64 / 4;
        self.tokens = self.tokens.saturating_add(said);
    }
}

/// Returns the patch that Claude reports of an edit, with its line numbers; `None` for other results,
/// and for a patch that is too long for a row.
fn reported_patch(row: &Json) -> Option<Json> {
    let hunks = row["toolUseResult"]["structuredPatch"].as_array()?;
    let hunk = |hunk: &Json| {
        json!({
            "oldStart": hunk["oldStart"], "newStart": hunk["newStart"], "lines": hunk["lines"],
        })
    };
    let patch: Vec<Json> = hunks.iter().map(hunk).collect();
    let patch = Json::Array(patch);
    (!hunks.is_empty() && json_size(&patch) <= PATCH_BYTES_MAX).then_some(patch)
}

/// Returns the number of tokens sent to the API, including cached ones.
fn tokens_sent(usage: &Json) -> u64 {
    let sent = |key: &str| usage[key].as_u64().unwrap_or(0);
    let read = sent("input_tokens").saturating_add(sent("cache_read_input_tokens"));
    read.saturating_add(sent("cache_creation_input_tokens"))
}

/// Job rows of one session row. Each has the shared fields and its own ID.
struct JobRowBuilder {
    uuid: Option<Uuid>,
    shared: RowFields,
    rows: Vec<Json>,
}

impl JobRowBuilder {
    fn new(row: &Json) -> JobRowBuilder {
        let mut shared = RowFields::new();
        for key in ["timestamp", "parent_tool_use_id"] {
            if let Some(value) = string_field(row, key) {
                shared.insert(key.to_owned(), truncate_short(value).into());
            }
        }
        let uuid = string_field(row, "uuid").and_then(|uuid| Uuid::try_parse(uuid).ok());
        // Rows from elsewhere may lack an ID; their job rows then have none either.
        JobRowBuilder { uuid, shared, rows: Vec::new() }
    }

    fn push(&mut self, mut row: RowFields) {
        let uuid = self.uuid.map(|uuid| nth_uuid(uuid, self.rows.len()).to_string());
        row.insert("uuid".to_owned(), uuid.into());
        row.extend(self.shared.clone());
        self.rows.push(Json::Object(row));
    }

    /// Adds a text row. The first such row carries the usage.
    fn push_text(&mut self, said: &str, usage: &mut Option<Json>) {
        let content = truncate_text(said, JOB_TEXT_BYTES_MAX);
        let mut row = row_fields([("type", "assistant".into()), ("content", content.into())]);
        if let Some(usage) = usage.take() {
            row.insert("usage".to_owned(), usage);
        }
        self.push(row);
    }
}

/// Part of an assistant message that becomes one job row.
enum ContentPart<'r> {
    /// Consecutive texts, joined.
    Text(String),
    ToolCall(&'r Json),
    ToolResult(&'r Json),
}

/// Splits an assistant message into the parts that become job rows, in order.
fn content_parts(content: &Json) -> Vec<ContentPart<'_>> {
    let mut parts = Vec::new();
    let mut said = String::new();
    for block in blocks(content) {
        let part = match block_kind(block) {
            // Thoughts are in the session transcript; job rows are what the agent said and did.
            "thinking" | "redacted_thinking" => continue,
            "tool_use" | "server_tool_use" | "mcp_tool_use" => ContentPart::ToolCall(block),
            // Server tools have results of their own types, such as `web_search_tool_result`.
            kind if kind.ends_with("tool_result") => ContentPart::ToolResult(block),
            "text" => {
                append_line(&mut said, block_text(block));
                continue;
            }
            // A block of a kind that is not known yet should at least be visible.
            kind => {
                append_line(&mut said, &format!("[{kind}]"));
                continue;
            }
        };
        parts.extend(take_text(&mut said));
        parts.push(part);
    }
    parts.extend(take_text(&mut said));
    parts
}

fn take_text<'r>(said: &mut String) -> Option<ContentPart<'r>> {
    (!said.is_empty()).then(|| ContentPart::Text(std::mem::take(said)))
}

/// Returns the full text of a job row, which holds at most [`JOB_TEXT_BYTES_MAX`] bytes of it.
///
/// Returns `None` if the job row was not derived from this session row, or is not text of the
/// agent.
pub fn full_text(session_row: &Json, job_row: Uuid) -> Option<String> {
    let uuid = string_field(session_row, "uuid").and_then(|uuid| Uuid::try_parse(uuid).ok())?;
    match string_field(session_row, "type")? {
        "result" => (uuid == job_row).then(|| turn_result_text(session_row)),
        "assistant" => {
            let parts = content_parts(&session_row["message"]["content"]).into_iter().enumerate();
            let mut own = parts.filter(|(number, _)| nth_uuid(uuid, *number) == job_row);
            match own.next()? {
                (_, ContentPart::Text(said)) => Some(said),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the ID of the n-th job row of a session row. The first one has the session row's ID.
pub fn nth_uuid(uuid: Uuid, n: usize) -> Uuid {
    match n {
        0 => uuid,
        // Computed, so that a replay after a crash gives the same IDs.
        n => uuid::Builder::from_custom_bytes(uuid.as_u128().wrapping_add(n as u128).to_be_bytes())
            .into_uuid(),
    }
}

fn error_row(row: &Json) -> RowFields {
    let message = content_text(&row["message"]["content"]);
    let code = string_field(row, "error").or_else(|| string_field(row, "api_error_type"));
    let mut error = row_fields([
        ("type", "error".into()),
        ("message", truncate_text(&message, JOB_TEXT_BYTES_MAX).into()),
        ("code", code.map(truncate_short).into()),
    ]);
    if let Some(stack) = string_field(row, "stack") {
        let stack = truncate_text(stack, JOB_TEXT_BYTES_MAX);
        error.insert("stack".to_owned(), stack.into());
    }
    if row["api_error_status"].is_number() {
        error.insert("status".to_owned(), row["api_error_status"].clone());
    }
    error
}

fn failure_row(row: &Json, told: Option<&str>) -> RowFields {
    let failure = &row[FAILURE_KEY];
    let mut error = error_row(row);
    error.insert("code".to_owned(), failure["class"].clone());
    for key in ["recoverable", "retry_after_ms", "resets_at", "messages_received", "cure"] {
        error.insert(key.to_owned(), failure[key].clone());
    }
    // The agent's own error row has the same text already; the class and advice say more.
    if let (Some(class), Some(cure)) =
        (string_field(failure, "class"), string_field(failure, "cure"))
        && told.map(str::trim) == string_field(failure, "message")
    {
        error.insert("message".to_owned(), truncate_short(&format!("{class}: {cure}")).into());
    }
    error
}

/// Returns true if a text of Claude says that the user stopped something.
fn is_user_interruption(text: &str) -> bool {
    USER_INTERRUPTION_PREFIXES.iter().any(|words| text.starts_with(words))
}

fn interruption_text(why: &str) -> String {
    truncate_text(&format!("interrupted: {why}"), JOB_TEXT_BYTES_MAX).into()
}

/// Returns the text of a turn result.
fn turn_result_text(row: &Json) -> String {
    match (&row["result"], string_field(row, "terminal_reason")) {
        (Json::String(text), _) => text.clone(),
        // The agent's own text for this case is meant for its developers.
        (_, Some("aborted_streaming" | "aborted_tools")) => INTERRUPTED_TEXT.to_owned(),
        _ => content_text(&row["errors"]),
    }
}

fn result_row(row: &Json) -> RowFields {
    let failed = is_true(&row["is_error"]);
    let said = turn_result_text(row);
    let said = truncate_text(&said, JOB_TEXT_BYTES_MAX);
    let mut result = row_fields([
        ("type", "tool_result".into()),
        ("subtype", truncate_short(string_field(row, "subtype").unwrap_or_default()).into()),
        (if failed { "error" } else { "result" }, said.into()),
        ("success", (!failed).into()),
    ]);
    copy_scalars(row, &RESULT_KEYS, &mut result);
    if let Some(usage) = usage(&row["usage"]) {
        result.insert("usage".to_owned(), usage);
    }
    result
}

fn system_row(row: &Json) -> RowFields {
    let mut system = row_fields([
        ("type", "system".into()),
        ("subtype", truncate_short(string_field(row, "subtype").unwrap_or_default()).into()),
    ]);
    let content = string_field(row, "content").or_else(|| string_field(row, "message"));
    if let Some(content) = content {
        system.insert("content".to_owned(), truncate_text(content, JOB_TEXT_BYTES_MAX).into());
    }
    copy_scalars(row, &SYSTEM_KEYS, &mut system);
    let failed: Vec<Json> = failed_servers(row).map(|name| truncate_short(name).into()).collect();
    if !failed.is_empty() {
        system.insert("mcp_failed".to_owned(), failed.into());
    }
    if row["subtype"] == TASKS_ADDED {
        let tasks = row["tasks"].as_array().into_iter().flatten().filter_map(Json::as_str);
        let tasks: Vec<Json> =
            tasks.take(TASKS_ADDED_MAX).map(|task| truncate_short(task).into()).collect();
        system.insert("tasks".to_owned(), tasks.into());
    }
    system
}

/// Returns the MCP servers that an `init` row reports as failed.
fn failed_servers(init: &Json) -> impl Iterator<Item = &str> {
    let servers = init["mcp_servers"].as_array().into_iter().flatten();
    let failed = servers.filter(|server| server["status"] == "failed");
    failed.filter_map(|server| server["name"].as_str()).take(MCP_FAILED_MAX)
}

fn copy_scalars(from: &Json, keys: &[&str], to: &mut RowFields) {
    for &key in keys {
        let kept = match &from[key] {
            // Only scalars: a nested value may be of any size.
            Json::String(text) => truncate_short(text).into(),
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
    let counts: RowFields = counts.collect();
    (!counts.is_empty()).then_some(Json::Object(counts))
}

/// Returns the content as blocks. A string is a single block.
fn blocks(content: &Json) -> &[Json] {
    match content {
        Json::Array(blocks) => blocks,
        // A message without content has no blocks.
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
            "text" => append_line(&mut text, block_text(block)),
            // A block without a type is shown as it is, since any of its keys may hold the text.
            "unknown block" => append_line(&mut text, &block.to_string()),
            kind => append_line(&mut text, &format!("[{kind}]")),
        }
    }
    text
}

fn append_line(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

fn truncate_short(text: &str) -> String {
    truncate_text(text, JOB_SHORT_BYTES_MAX).into_owned()
}

fn string_field<'r>(row: &'r Json, key: &str) -> Option<&'r str> {
    row[key].as_str()
}

fn is_true(value: &Json) -> bool {
    *value == Json::Bool(true)
}

fn row_fields<const N: usize>(pairs: [(&str, Json); N]) -> RowFields {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
