//! Rendering of transcript rows: of jobs, and of sessions in Claude's format.
//!
//! The parser is lenient: a row of an unknown kind is shown with its kind, never dropped. All
//! content is untrusted. Start at [`row_html`].

use heeler_model::parse_iso;
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;

use crate::components::{format_duration, format_usd, one_line};
use crate::markdown::{markdown, markdown_line};

/// Bytes of a tool's input or result that a page shows; the transcript has the rest.
pub const TOOL_BYTES_MAX: usize = 64 * 1024;

/// Characters of a tool's input in its summary line.
const SUMMARY_CHARS_MAX: usize = 140;

/// Returns a row as HTML: `<article class="entry" id="row-<number>">`. Tool calls and their results
/// carry `data-call`, which connects them.
pub fn row_html(number: u64, row_json: &str) -> String {
    row(number, row_json).into_string()
}

/// Returns a row as markup.
pub fn row(number: u64, row_json: &str) -> Markup {
    let Ok(value) = serde_json::from_str::<Value>(row_json) else {
        return entry(
            number,
            "unreadable",
            "error",
            None,
            None,
            html! { pre.code { (clip_text(row_json)) } },
        );
    };
    let kind = row_kind(&value);
    let (who, class) = row_speaker(kind, &value);
    let body = match kind {
        "tool_use" => tool_call(&value["tool_name"], &value["input"]),
        "tool_result" => tool_result(&value),
        "result" => turn_result(&value),
        "error" => html! { p { (value_text(&value["message"])) } },
        "system" if class == "you" => {
            markdown(&value_text(content(&value).unwrap_or(&Value::Null)))
        }
        "system" => system_row(&value),
        _ => {
            content(&value).map_or_else(|| html! { p { (value_text(&value["subtype"])) } }, blocks)
        }
    };
    let call = value["tool_use_id"].as_str().or_else(|| value["id"].as_str());
    let call = call.filter(|_| matches!(kind, "tool_use" | "tool_result"));
    let at = value["timestamp"].as_str().and_then(parse_iso);
    entry(number, &who, class, at, call, body)
}

/// Returns the content of a row as one line, for lists; empty if there is none.
pub fn row_summary(row_json: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(row_json) else { return String::new() };
    match row_kind(&value) {
        "tool_use" => {
            format!("{} {}", value_text(&value["tool_name"]), input_summary(&value["input"]))
        }
        "tool_result" => one_line(&first_chars(&result_text(&value))),
        "result" => String::new(),
        "error" => one_line(&first_chars(&value_text(&value["message"]))),
        "system" if value["subtype"] != "user_input" => String::new(),
        _ => content(&value)
            .map(|content| first_chars(&markdown_line(&text_of(content))))
            .unwrap_or_default(),
    }
}

/// Returns speaker and plain text of a row, for search results.
pub fn row_speech(row: &Value) -> (String, String) {
    let kind = row_kind(row);
    let text = match kind {
        "tool_use" => format!("{} {}", value_text(&row["tool_name"]), value_text(&row["input"])),
        "tool_result" => result_text(row),
        "error" => value_text(&row["message"]),
        _ => content(row).map_or_else(|| value_text(&row["subtype"]), text_of),
    };
    (row_speaker(kind, row).0, text)
}

fn row_kind(value: &Value) -> &str {
    let kind = value["type"].as_str().or_else(|| value["role"].as_str()).unwrap_or("row");
    let is_turn_result =
        kind == "tool_result" && value["subtype"].is_string() && value["tool_use_id"].is_null();
    if is_turn_result { "result" } else { kind }
}

/// Returns the speaker of a row, and its CSS class.
fn row_speaker(kind: &str, value: &Value) -> (String, &'static str) {
    let is_of_tool = || {
        let blocks = content(value).and_then(Value::as_array);
        blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"))
    };
    let is_prompt = value["subtype"] == "user_input" && value["parent_tool_use_id"].is_null();
    match kind {
        "tool_use" | "tool_result" => ("tool".to_owned(), "tool"),
        "user" if is_of_tool() => ("tool".to_owned(), "tool"),
        "user" => ("you".to_owned(), "you"),
        "system" if is_prompt => ("you".to_owned(), "you"),
        "system" => ("system".to_owned(), "system"),
        "assistant" => ("agent".to_owned(), "agent"),
        "error" => ("error".to_owned(), "error"),
        "result" => ("end of turn".to_owned(), "result"),
        other => (one_line(other), "system"),
    }
}

fn entry(
    number: u64,
    who: &str,
    class: &str,
    at: Option<Timestamp>,
    call: Option<&str>,
    body: Markup,
) -> Markup {
    let clock = |at: Timestamp| at.strftime("%H:%M:%S UTC").to_string();
    html! {
        article.entry.{ "of-" (class) } #{ "row-" (number) } data-number=(number)
            data-call=[call] data-at=[at] {
            header {
                span.who { (who) }
                @if let Some(at) = at { time data-clock datetime=(at) { (clock(at)) } }
                a.end.muted href={ "#row-" (number) } aria-label={ "Row " (number) } { (number) }
            }
            (body)
        }
    }
}

fn content(value: &Value) -> Option<&Value> {
    [&value["message"]["content"], &value["content"], &value["message"]]
        .into_iter()
        .find(|content| content.is_string() || content.is_array())
}

fn blocks(content: &Value) -> Markup {
    let Value::Array(blocks) = content else { return markdown(&value_text(content)) };
    html! { @for one in blocks { (block(one)) } }
}

fn block(block: &Value) -> Markup {
    match block["type"].as_str() {
        Some("text") => markdown(&value_text(&block["text"])),
        Some("thinking") => html! {
            details.tool {
                summary { span.muted { "thinking" } }
                pre.code { (clip_text(&value_text(&block["thinking"]))) }
            }
        },
        Some("tool_use") => tool_call(&block["name"], &block["input"]),
        Some("tool_result") => {
            let is_error = block["is_error"] == Value::Bool(true);
            collapsible_result(is_error, &text_of(&block["content"]))
        }
        Some(other) => html! { p.muted { "[" (one_line(other)) "]" } },
        None => html! { p { (value_text(block)) } },
    }
}

/// Renders the blocks of a message, each tool call with its result.
pub(crate) fn message_blocks<'a>(
    content: &[Value],
    result_of: impl Fn(&str) -> Option<(bool, &'a Value)>,
) -> Markup {
    html! {
        @for one in content {
            (block(one))
            @if let Some((is_error, given)) = one["id"].as_str().and_then(&result_of) {
                (collapsible_result(is_error, &text_of(given)))
            }
        }
    }
}

fn tool_call(name: &Value, input: &Value) -> Markup {
    let whole = match input {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    html! {
        details.tool {
            summary {
                strong { (one_line(&value_text(name))) } " "
                code.cut { (input_summary(input)) }
            }
            pre.code { (clip_text(&whole)) }
        }
    }
}

fn tool_result(value: &Value) -> Markup {
    collapsible_result(value["success"] == Value::Bool(false), &result_text(value))
}

fn result_text(value: &Value) -> String {
    match &value["error"] {
        Value::Null => text_of(&value["result"]),
        error => value_text(error),
    }
}

/// Renders a tool result, collapsed, with its first line as the summary.
fn collapsible_result(failed: bool, text: &str) -> Markup {
    let text = text.trim_end();
    let word = if failed {
        html! { span.failed { "failed" } }
    } else {
        html! { "result" }
    };
    if text.is_empty() {
        return html! { p.small.muted { (word) ": empty" } };
    }
    let lines = text.lines().count();
    html! {
        details.tool open[failed] {
            summary {
                (word) " "
                code.cut { (one_line(&first_chars(text))) }
                @if lines > 1 { span.muted.nowrap.end { (lines) " lines" } }
            }
            pre.code { (clip_text(text)) }
        }
    }
}

/// Renders the end of a turn. The agent's last message is a separate row; an error is not.
fn turn_result(value: &Value) -> Markup {
    let turns = value["num_turns"].as_i64();
    let took = value["duration_ms"].as_f64();
    let cost = value["total_cost_usd"].as_f64();
    let error = value["error"].as_str().filter(|error| !error.is_empty());
    html! {
        p {
            @if error.is_some() { span.failed { "failed" } } @else { (one_line(&value_text(&value["subtype"]))) }
            @if let Some(turns) = turns { " · " (turns) @if turns == 1 { " turn" } @else { " turns" } }
            @if let Some(took) = took { " · " (format_duration(took / 1_000.0)) }
            @if let Some(cost) = cost { " · " (format_usd(cost)) }
        }
        @if let Some(error) = error { p.failed { (clip_text(error)) } }
    }
}

/// Renders a system row. IDs of questions are removed; only programs need them.
fn system_row(value: &Value) -> Markup {
    let text = content(value).map_or_else(|| value_text(&value["subtype"]), text_of);
    let text = match value["subtype"].as_str() {
        Some("asked" | "answered" | "denied" | "withdrawn") => {
            text.rsplit_once(" (question ").map_or(text.as_str(), |(told, _)| told)
        }
        _ => &text,
    };
    html! { p { (clip_text(text)) } }
}

fn text_of(content: &Value) -> String {
    let Value::Array(blocks) = content else { return value_text(content) };
    let text = |block: &Value| match block["type"].as_str() {
        Some("text") => value_text(&block["text"]),
        Some("tool_use") => {
            format!("{} {}", value_text(&block["name"]), input_summary(&block["input"]))
        }
        Some("tool_result") => text_of(&block["content"]),
        Some(other) => format!("[{other}]"),
        None => value_text(block),
    };
    blocks.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// Returns the essential part of a tool's input as one line: a well-known field, or the JSON.
fn input_summary(input: &Value) -> String {
    let keys = ["command", "file_path", "path", "pattern", "url", "query", "description", "prompt"];
    let text = match input {
        Value::Object(map) => {
            let known = keys.iter().find_map(|key| map.get(*key)?.as_str());
            let known = known.or_else(|| map.get("questions")?[0]["question"].as_str());
            known.map_or_else(|| input.to_string(), str::to_owned)
        }
        other => value_text(other),
    };
    one_line(&first_chars(&text))
}

fn first_chars(text: &str) -> String {
    match text.char_indices().nth(SUMMARY_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn clip_text(text: &str) -> String {
    if text.len() <= TOOL_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(TOOL_BYTES_MAX);
    format!("{}\n… [{} more bytes are in the transcript]", &text[..end], text.len() - end)
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
