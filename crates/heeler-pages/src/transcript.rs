//! Rendering of transcript rows: of jobs, and of sessions in Claude's format.
//!
//! The parser is lenient: a row of an unknown kind is shown with its kind, never dropped. All
//! content is untrusted. Start at [`row_html`].

use heeler_model::file_edit::FileEdit;
use heeler_model::job_row::{
    ContentBlock, JobRow, JobRowKind, RowSpeaker, TurnResultRow, block_text, content_blocks,
    format_duration, summarize_tool_input, value_text,
};
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;

use crate::components::{format_usd, visible_line};
use crate::diff::edit_table;
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
    // A line that cannot be parsed is shown and not dropped.
    let Ok(row) = JobRow::parse(row_json.as_bytes()) else {
        return entry(
            number,
            "unreadable",
            "error",
            None,
            (None, None),
            html! { pre.code { (clip_text(row_json)) } },
        );
    };
    let speaker = row.speaker();
    let body = match row.kind() {
        JobRowKind::ToolCall { tool, input } => tool_call(tool, input),
        JobRowKind::ToolResult(result) => collapsible_result(result.failed, &result.output()),
        JobRowKind::TurnResult(turn) => turn_result(&turn),
        JobRowKind::Error { message, .. } => html! { p { (message) } },
        // A person's input in a job is a row of the system, but it is their text.
        JobRowKind::System { .. } if speaker == RowSpeaker::User => {
            markdown(&row.content().map(value_text).unwrap_or_default())
        }
        JobRowKind::System { .. } => html! { p { (clip_text(&row.notice_text())) } },
        JobRowKind::Assistant | JobRowKind::User | JobRowKind::Other(_) => {
            let subtype = || html! { p { (row.text("subtype").unwrap_or_default()) } };
            row.content().map_or_else(subtype, blocks)
        }
    };
    // Only calls and results share an id; other rows use the same key for something else.
    let is_call = matches!(row.kind(), JobRowKind::ToolCall { .. } | JobRowKind::ToolResult { .. });
    let call = row.call_id().or_else(|| row.text("id")).filter(|_| is_call);
    let took = match row.kind() {
        JobRowKind::ToolResult(result) => result.duration_ms,
        _ => None,
    };
    let (who, class) = (visible_line(speaker.label()), css_class(speaker));
    entry(number, &who, class, row.written_at(), (call, took), body)
}

/// Returns the content of a row as one line, for lists; empty if there is none.
pub fn row_summary(row_json: &[u8]) -> String {
    let Ok(row) = JobRow::parse(row_json) else { return String::new() };
    match row.kind() {
        JobRowKind::ToolCall { tool, input } => format!("{tool} {}", input_summary(input)),
        JobRowKind::ToolResult(result) => visible_line(&first_chars(&result.output())),
        // The agent's last message is a row of its own.
        JobRowKind::TurnResult(_) => String::new(),
        JobRowKind::Error { message, .. } => visible_line(&first_chars(message)),
        // Other system rows are technical and would hide the last message.
        JobRowKind::System { subtype } if subtype != "user_input" => String::new(),
        _ => row
            .content()
            .map(|content| first_chars(&markdown_line(&block_text(content))))
            .unwrap_or_default(),
    }
}

/// Returns speaker and plain text of a row, for search results.
pub fn row_speech(row: &Value) -> (String, String) {
    let row = JobRow::new(row.clone());
    let text = match row.kind() {
        JobRowKind::ToolCall { tool, input } => format!("{tool} {}", value_text(input)),
        JobRowKind::ToolResult(result) => result.output(),
        JobRowKind::Error { message, .. } => message.to_owned(),
        _ => {
            let subtype = || row.text("subtype").unwrap_or_default().to_owned();
            row.content().map_or_else(subtype, block_text)
        }
    };
    (visible_line(row.speaker().label()), text)
}

fn css_class(speaker: RowSpeaker<'_>) -> &'static str {
    match speaker {
        RowSpeaker::User => "you",
        RowSpeaker::Agent => "agent",
        RowSpeaker::Tool => "tool",
        RowSpeaker::Error => "error",
        RowSpeaker::TurnEnd => "result",
        RowSpeaker::Command | RowSpeaker::Stderr | RowSpeaker::System | RowSpeaker::Other(_) => {
            "system"
        }
    }
}

fn entry(
    number: u64,
    speaker: &str,
    class: &str,
    at: Option<Timestamp>,
    (call, took_ms): (Option<&str>, Option<i64>),
    body: Markup,
) -> Markup {
    // In UTC, because a page without scripts does not know the viewer's zone.
    let clock = |at: Timestamp| at.strftime("%H:%M:%S UTC").to_string();
    html! {
        article.entry.{ "of-" (class) } #{ "row-" (number) } data-number=(number)
            data-call=[call] data-at=[at] data-took=[took_ms] {
            header {
                span.who { (speaker) }
                @if let Some(at) = at { time data-clock datetime=(at) { (clock(at)) } }
                a.end.muted href={ "#row-" (number) } aria-label={ "Row " (number) } { (number) }
            }
            (body)
        }
    }
}

fn blocks(content: &Value) -> Markup {
    html! { @for one in content_blocks(content) { (block(one)) } }
}

fn block(block: ContentBlock<'_>) -> Markup {
    match block {
        ContentBlock::Text(text) => markdown(text),
        ContentBlock::Thinking(text) => html! {
            details.tool {
                summary { span.muted { "thinking" } }
                pre.code { (clip_text(text)) }
            }
        },
        ContentBlock::ToolCall { tool, input, .. } => tool_call(tool, input),
        ContentBlock::ToolResult { failed, content, .. } => {
            collapsible_result(failed, &block_text(content))
        }
        // A block of a newer version is named, not dropped.
        ContentBlock::Other(kind) => html! { p.muted { "[" (visible_line(kind)) "]" } },
        ContentBlock::Plain(value) => html! { p { (value_text(value)) } },
    }
}

/// Renders the blocks of a message, each tool call with its result.
pub(crate) fn message_blocks<'a>(
    content: &[Value],
    result_of: impl Fn(&str) -> Option<(bool, &'a Value)>,
) -> Markup {
    let result = |one: &ContentBlock<'_>| match one {
        ContentBlock::ToolCall { id: Some(id), .. } => result_of(id),
        _ => None,
    };
    html! {
        @for one in content.iter().map(ContentBlock::parse) {
            (block(one))
            @if let Some((is_error, given)) = result(&one) {
                (collapsible_result(is_error, &block_text(given)))
            }
        }
    }
}

fn tool_call(tool: &str, input: &Value) -> Markup {
    if let Some(edit) = FileEdit::of(tool, input) {
        return file_edit(tool, &edit);
    }
    let whole = match input {
        // A text is shown as it is, without JSON quotes.
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    html! {
        details.tool {
            summary {
                strong { (visible_line(tool)) } " "
                code.cut { (input_summary(input)) }
            }
            pre.code { (clip_text(&whole)) }
        }
    }
}

/// Renders an edit, expanded: it is what readers look for.
fn file_edit(tool: &str, edit: &FileEdit<'_>) -> Markup {
    let (added, removed) = edit.counts();
    html! {
        details.tool open {
            summary {
                strong { (visible_line(tool)) } " "
                code.cut { (visible_line(&first_chars(edit.path))) } " "
                span.added.nowrap { "+" (added) } " " span.removed.nowrap { "−" (removed) }
            }
            (edit_table(edit))
        }
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
        // A failure is expanded, because the reader looks for it.
        details.tool open[failed] {
            summary {
                (word) " "
                code.cut { (visible_line(&first_chars(text))) }
                @if lines > 1 { span.muted.nowrap.end { (lines) " lines" } }
            }
            pre.code { (clip_text(text)) }
        }
    }
}

/// Renders the end of a turn. The agent's last message is a separate row; an error is not.
fn turn_result(turn: &TurnResultRow<'_>) -> Markup {
    html! {
        p {
            @if turn.error.is_some() { span.failed { "failed" } } @else { (visible_line(turn.subtype)) }
            @if let Some(turns) = turn.turns { " · " (turns) @if turns == 1 { " turn" } @else { " turns" } }
            @if let Some(took) = turn.duration_ms { " · " (format_duration(took)) }
            @if let Some(cost) = turn.cost_usd { " · " (format_usd(cost)) }
        }
        @if let Some(error) = turn.error { p.failed { (clip_text(error)) } }
    }
}

/// Returns the essential part of a tool's input as one line.
fn input_summary(input: &Value) -> String {
    visible_line(&first_chars(&summarize_tool_input(input)))
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
