//! Cell of a transcript on the screen, with only the data needed to show it.

use heeler_chat::{ConversationEntry, EntryRole};
use heeler_model::file_edit::{EditLine, FileEdit, PATCH_KEY};
use heeler_model::job_row::{format_duration, summarize_tool_input};
use jiff::Timestamp;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::Value as Json;

use crate::TerminalTheme;
use crate::highlight::{highlight_diff, highlight_known_code};
use crate::text::{LineBreakMode, TextFlow, byte_prefix, one_line, sanitize, truncate_to_width};
use crate::{markdown, text};

/// Bytes of a message that are kept; the file has the rest.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a tool's input, and of its result, that are kept.
const TOOL_BYTES_MAX: usize = 16 * 1024;
/// Bytes of the one-line summary of a tool's input.
const SUMMARY_BYTES_MAX: usize = 512;
/// Lines of an edit that a folded call shows.
const EDIT_LINES_FOLDED: usize = 12;
/// Lines of an edit that are kept.
const EDIT_LINES_MAX: usize = 500;
/// Lines of a message of the person from which it is folded, and those that are shown then.
const USER_LINES_MAX: usize = 14;
const USER_LINES_FOLDED: usize = 8;
/// Items of a to-do list that are shown.
const TODO_ITEMS_MAX: usize = 50;
/// Smallest width of a second column beside a wide first one.
const COLUMN_MIN: usize = 24;
/// Most lines of a cell.
const LINES_MAX: usize = 2000;

/// Cell of a transcript.
#[derive(Debug)]
pub(crate) enum TranscriptCell {
    /// Message of the person.
    User(String),
    /// Message of the agent.
    Agent(String),
    /// Message of the program, as part of the conversation.
    System(String),
    /// Message of another role: name and text.
    Other(String, String),
    /// Tool call.
    Tool(Box<ToolCallCell>),
    /// Message of the program, outside of the conversation.
    Notice(String),
    /// Unified diff, outside of the conversation.
    Diff(String),
    /// Error message.
    Failed(String),
}

/// Tool call, with its result if known.
#[derive(Debug)]
pub(crate) struct ToolCallCell {
    name: String,
    summary: String,
    args: String,
    /// File of an edit.
    path: String,
    /// Lines of an edit.
    edit: Vec<EditRow>,
    /// Items of the agent's to-do list, with their states.
    todos: Vec<(TodoState, String)>,
    at: Option<Timestamp>,
    outcome: Option<ToolResultCell>,
}

/// Line of an edit.
#[derive(Debug)]
struct EditRow {
    sign: EditSign,
    /// Number in the file, if known.
    number: Option<u64>,
    text: String,
}

/// Kind of a line of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EditSign {
    Unchanged,
    Removed,
    Added,
    /// Lines between two changed places, which are not shown.
    Gap,
}

/// State of an item of the agent's to-do list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TodoState {
    Open,
    Current,
    Done,
}

/// Result of a tool call.
#[derive(Debug)]
pub(crate) struct ToolResultCell {
    text: String,
    failed: bool,
    took_ms: Option<i64>,
    at: Option<Timestamp>,
}

impl TranscriptCell {
    /// Creates the cell for an entry.
    pub(crate) fn of(entry: &ConversationEntry) -> TranscriptCell {
        // Sanitized once, when the cell is created, so that no layout can forget it.
        let message =
            || truncate_bytes(&sanitize(&content_text(&entry.content)), MESSAGE_BYTES_MAX);
        match &entry.role {
            EntryRole::User => TranscriptCell::User(message()),
            EntryRole::Assistant => TranscriptCell::Agent(message()),
            EntryRole::System => TranscriptCell::System(message()),
            EntryRole::Other(who) => TranscriptCell::Other(one_line(who), message()),
            EntryRole::Tool => TranscriptCell::Tool(Box::new(ToolCallCell::of(entry))),
        }
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let base = size_of::<TranscriptCell>();
        base + match self {
            TranscriptCell::User(text)
            | TranscriptCell::Agent(text)
            | TranscriptCell::System(text)
            | TranscriptCell::Notice(text)
            | TranscriptCell::Diff(text)
            | TranscriptCell::Failed(text) => text.len(),
            TranscriptCell::Other(who, text) => who.len() + text.len(),
            TranscriptCell::Tool(call) => {
                let outcome = call.outcome.as_ref().map_or(0, |outcome| outcome.text.len());
                size_of::<ToolCallCell>()
                    + call.name.len()
                    + call.summary.len()
                    + call.args.len()
                    + call.path.len()
                    + call.edit.iter().map(|row| size_of_val(row) + row.text.len()).sum::<usize>()
                    + call.todos.iter().map(|(_, text)| text.len()).sum::<usize>()
                    + outcome
            }
        }
    }

    /// Returns true if the cell has a text, which is in lower case.
    pub(crate) fn contains(&self, pattern: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(pattern);
        match self {
            TranscriptCell::User(text)
            | TranscriptCell::Agent(text)
            | TranscriptCell::System(text)
            | TranscriptCell::Notice(text)
            | TranscriptCell::Diff(text)
            | TranscriptCell::Failed(text)
            | TranscriptCell::Other(_, text) => has(text),
            TranscriptCell::Tool(call) => {
                has(&call.name)
                    || has(&call.args)
                    || call.outcome.as_ref().is_some_and(|outcome| has(&outcome.text))
            }
        }
    }

    /// Lays out the cell.
    pub(crate) fn lines(
        &self,
        width: usize,
        unfolded: bool,
        theme: &TerminalTheme,
    ) -> Vec<Line<'static>> {
        let mut lines = match self {
            TranscriptCell::User(text) => user_lines(text, width, unfolded, theme),
            TranscriptCell::Agent(text) => agent_lines(text, width, theme),
            TranscriptCell::System(text) => plain_lines("  ", text, theme.dim, width),
            TranscriptCell::Other(who, text) => {
                message_lines(&format!("{who}: "), text, Style::new(), width)
            }
            TranscriptCell::Notice(text) => notice_lines(text, width),
            TranscriptCell::Diff(text) => diff_lines(text, width, theme),
            TranscriptCell::Failed(text) => plain_lines("! ", text, theme.bad, width),
            TranscriptCell::Tool(call) => call.lines(width, unfolded, theme),
        };
        markdown::truncate_lines(&mut lines, LINES_MAX, width, theme);
        lines
    }
}

/// Returns the lines of an edit.
fn edit_rows(edit: &FileEdit<'_>) -> Vec<EditRow> {
    let row = |(number, line): (Option<u64>, EditLine<'_>)| {
        let (sign, text) = match line {
            EditLine::Unchanged(text) => (EditSign::Unchanged, text),
            EditLine::Removed(text) => (EditSign::Removed, text),
            EditLine::Added(text) => (EditSign::Added, text),
        };
        // Indentation matters in code, so it is kept.
        let text = sanitize(byte_prefix(text, SUMMARY_BYTES_MAX).0).replace('\n', " ");
        EditRow { sign, number, text: text.replace('\t', "    ") }
    };
    let mut rows: Vec<EditRow> = Vec::new();
    for hunk in &edit.hunks {
        if !rows.is_empty() {
            rows.push(EditRow { sign: EditSign::Gap, number: None, text: "⋯".to_owned() });
        }
        let left = EDIT_LINES_MAX.saturating_sub(rows.len());
        rows.extend(hunk.numbered_lines().take(left).map(row));
    }
    rows
}

/// Returns the items of a to-do list, if the tool sets one.
fn todo_items(tool: &str, input: &Json) -> Vec<(TodoState, String)> {
    let items = input["todos"].as_array().filter(|_| tool == "TodoWrite");
    let item = |item: &Json| {
        let state = match item["status"].as_str().unwrap_or_default() {
            "completed" => TodoState::Done,
            "in_progress" => TodoState::Current,
            _ => TodoState::Open,
        };
        let text = byte_prefix(item["content"].as_str().unwrap_or_default(), SUMMARY_BYTES_MAX).0;
        (state, one_line(text))
    };
    items.into_iter().flatten().take(TODO_ITEMS_MAX).map(item).collect()
}

/// Returns true if an entry is the result of a tool call, not the call.
pub(crate) fn is_outcome(entry: &ConversationEntry) -> bool {
    // The call has the input, and the result only has the id of the call.
    entry.role == EntryRole::Tool && entry.args.is_none() && entry.call.is_some()
}

impl ToolCallCell {
    fn of(entry: &ConversationEntry) -> ToolCallCell {
        let name = entry.name.as_deref().map(one_line).unwrap_or_default();
        let args = entry.args.as_ref().unwrap_or(&Json::Null);
        let mut call = ToolCallCell {
            name: if name.is_empty() { "tool".to_owned() } else { name },
            summary: byte_prefix(&one_line(&summarize_tool_input(args)), SUMMARY_BYTES_MAX)
                .0
                .to_owned(),
            args: truncate_bytes(&sanitize(&format_fields(args)), TOOL_BYTES_MAX),
            path: byte_prefix(args["file_path"].as_str().unwrap_or_default(), SUMMARY_BYTES_MAX)
                .0
                .to_owned(),
            edit: FileEdit::of(entry.name.as_deref().unwrap_or_default(), args)
                .map(|edit| edit_rows(&edit))
                .unwrap_or_default(),
            todos: todo_items(entry.name.as_deref().unwrap_or_default(), args),
            at: entry.at,
            outcome: None,
        };
        if !call.todos.is_empty() {
            let done = call.todos.iter().filter(|(state, _)| *state == TodoState::Done).count();
            call.summary = format!("{done} of {} done", call.todos.len());
        }
        // A result without its call is shown as a call of its own.
        if entry.args.is_none() && !entry.content.is_null() {
            call.set_outcome(entry);
        }
        call
    }

    /// Adds the result of the call.
    pub(crate) fn set_outcome(&mut self, entry: &ConversationEntry) {
        // The agent knows the place in the file, which its input does not name.
        let patch = entry.other.get(PATCH_KEY).filter(|_| !self.edit.is_empty());
        if let Some(edit) = patch.and_then(|patch| FileEdit::of_patch(&self.path, patch)) {
            self.edit = edit_rows(&edit);
        }
        self.outcome = Some(ToolResultCell {
            text: truncate_bytes(&sanitize(&content_text(&entry.content)), TOOL_BYTES_MAX),
            // Both keys are part of the format of session files.
            failed: entry.other.get("isError") == Some(&Json::Bool(true)),
            took_ms: entry.other.get("durationMs").and_then(Json::as_i64),
            at: entry.at,
        });
    }

    fn lines(&self, width: usize, unfolded: bool, theme: &TerminalTheme) -> Vec<Line<'static>> {
        let (sign, style) = match &self.outcome {
            None => ("· ", theme.dim),
            Some(outcome) if outcome.failed => ("✗ ", theme.bad),
            Some(_) => ("✓ ", theme.good),
        };
        let took =
            self.took_ms().map(|took| format!("  {}", format_duration(took))).unwrap_or_default();
        let name = truncate_to_width(&self.name, width.saturating_sub(4));
        let room = width.saturating_sub(4 + text::width(&name) + 1 + text::width(&took));
        let summary = truncate_to_width(&self.summary, room);
        let bold = Style::new().add_modifier(ratatui::style::Modifier::BOLD);
        let mut lines = vec![Line::from(vec![
            Span::styled(format!("  {sign}"), style),
            Span::styled(name, bold),
            Span::raw(format!(" {summary}")),
            Span::styled(took, theme.dim),
        ])];
        let outcome = self.outcome.as_ref();
        // Before the edit, the question shows it; a failed edit changed nothing.
        if outcome.is_some_and(|outcome| !outcome.failed) {
            self.push_edit(&mut lines, width, unfolded, theme);
        }
        lines.extend(self.todos.iter().map(|(state, text)| todo_line(*state, text, width, theme)));
        if unfolded {
            if self.edit.is_empty() && self.todos.is_empty() {
                lines.extend(plain_lines("    ", &self.args, theme.dim, width));
            }
            lines.extend(
                outcome
                    .into_iter()
                    .flat_map(|outcome| plain_lines("    → ", &outcome.text, Style::new(), width)),
            );
        // A failure is shown without unfolding, because the person may have to act.
        } else if let Some(outcome) =
            outcome.filter(|outcome| outcome.failed && !outcome.text.is_empty())
        {
            let why = truncate_to_width(
                &one_line(byte_prefix(&outcome.text, SUMMARY_BYTES_MAX).0),
                width.saturating_sub(4),
            );
            lines.push(Line::styled(format!("    {why}"), theme.dim));
        }
        lines
    }

    /// Lays out the lines of an edit; the first ones if the call is folded.
    fn push_edit(
        &self,
        lines: &mut Vec<Line<'static>>,
        width: usize,
        unfolded: bool,
        theme: &TerminalTheme,
    ) {
        let count = if unfolded { self.edit.len() } else { EDIT_LINES_FOLDED };
        let language = self.path.rsplit_once('.').map_or("", |(_, extension)| extension);
        for row in self.edit.iter().take(count) {
            let (sign, style) = match row.sign {
                EditSign::Unchanged | EditSign::Gap => (' ', theme.dim),
                EditSign::Removed => ('-', theme.bad),
                EditSign::Added => ('+', theme.good),
            };
            let margin = match row.number {
                Some(number) => format!("{number:>7} {sign} "),
                None => format!("    {sign} "),
            };
            let blank = " ".repeat(text::width(&margin));
            // Folded lines are cut, so that an edit takes a known number of rows.
            let room = if unfolded { usize::MAX } else { width.saturating_sub(blank.len()) };
            let text = truncate_to_width(&row.text, room);
            // What is gone is not read as code any more.
            let code = (row.sign == EditSign::Added || row.sign == EditSign::Unchanged)
                .then(|| highlight_known_code(&text, language, theme))
                .flatten();
            TextFlow {
                first_margin: vec![Span::styled(margin, style)],
                rest_margin: vec![Span::raw(blank)],
                width,
                breaks: LineBreakMode::Anywhere,
            }
            .push_lines(&code.unwrap_or_else(|| vec![Span::styled(text, style)]), lines);
        }
        let more = self.edit.len().saturating_sub(count);
        if more > 0 {
            lines.push(Line::styled(format!("      … {more} more lines (Ctrl+O)"), theme.dim));
        }
    }

    fn took_ms(&self) -> Option<i64> {
        let outcome = self.outcome.as_ref()?;
        outcome.took_ms.or_else(|| {
            // Files of other programs have no duration, but both times.
            let took = outcome.at?.duration_since(self.at?).as_millis();
            // A result without a call has no known duration.
            i64::try_from(took).ok().filter(|took| *took > 0)
        })
    }
}

/// Lays out an item of a to-do list.
fn todo_line(state: TodoState, text: &str, width: usize, theme: &TerminalTheme) -> Line<'static> {
    let bold = Style::new().add_modifier(ratatui::style::Modifier::BOLD);
    let (sign, style) = match state {
        TodoState::Open => ("    · ", Style::new()),
        TodoState::Current => ("    ▸ ", bold),
        TodoState::Done => ("    ✓ ", theme.dim),
    };
    let text = truncate_to_width(text, width.saturating_sub(text::width(sign)));
    Line::styled(format!("{sign}{text}"), style)
}

/// Lays out a message of the person. A long one, such as a paste, is folded.
fn user_lines(
    text: &str,
    width: usize,
    unfolded: bool,
    theme: &TerminalTheme,
) -> Vec<Line<'static>> {
    let mut lines = message_lines("› ", text, theme.user, width);
    // The first line is blank.
    if !unfolded && lines.len() > 1 + USER_LINES_MAX {
        let more = lines.len() - 1 - USER_LINES_FOLDED;
        lines.truncate(1 + USER_LINES_FOLDED);
        let more = truncate_to_width(&format!("  … {more} more lines (Ctrl+O)"), width);
        lines.push(Line::styled(more, theme.dim));
    }
    lines
}

/// Lays out a unified diff.
fn diff_lines(text: &str, width: usize, theme: &TerminalTheme) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    let margin = || vec![Span::raw("  ")];
    TextFlow {
        first_margin: margin(),
        rest_margin: margin(),
        width,
        breaks: LineBreakMode::Anywhere,
    }
    .push_lines(&highlight_diff(text.trim_end(), theme), &mut lines);
    lines
}

/// Lays out a message of the agent.
pub(crate) fn agent_lines(text: &str, width: usize, theme: &TerminalTheme) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    let rendered = markdown::markdown_lines(text, width.saturating_sub(2), theme);
    // Markdown may render as nothing, such as unused link definitions.
    if rendered.is_empty() {
        lines.extend(plain_lines("● ", text, Style::new(), width));
    }
    for (at, mut line) in rendered.into_iter().enumerate() {
        line.spans.insert(0, Span::raw(if at == 0 { "● " } else { "  " }));
        lines.push(line);
    }
    lines
}

/// Lays out a message, with a blank line before it.
fn message_lines(sign: &str, text: &str, style: Style, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    lines.extend(plain_lines(sign, text, style, width));
    lines
}

/// Lays out a notice. The second column of a line, separated by two or more spaces, wraps below
/// itself, or moves to separate lines if there is no room beside the first.
fn notice_lines(text: &str, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    for line in text.trim_end().lines() {
        let (head, rest) = split_columns(line);
        let column = text::width(line) - text::width(rest);
        // A column that takes a third of the width still leaves room for text.
        let is_beside = rest.is_empty() || column * 3 <= width || column + COLUMN_MIN <= width;
        let first = if is_beside { line } else { head };
        let hang = if is_beside && !rest.is_empty() { column } else { 0 };
        text_flow("  ", hang, width).push_lines(&[Span::raw(first.to_owned())], &mut lines);
        if !is_beside {
            text_flow("      ", 0, width).push_lines(&[Span::raw(rest.to_owned())], &mut lines);
        }
    }
    lines
}

/// Splits a line at its first gap of two or more spaces.
fn split_columns(line: &str) -> (&str, &str) {
    let indent = line.len() - line.trim_start().len();
    match line[indent..].find("  ") {
        Some(gap) => (&line[..indent + gap], line[indent + gap..].trim_start()),
        None => (line, ""),
    }
}

fn text_flow(sign: &str, hang: usize, width: usize) -> TextFlow {
    // In a narrow window, lines begin at the edge.
    let sign = if text::width(sign) * 3 <= width { sign } else { "" };
    let rest = vec![Span::raw(format!("{sign}{}", " ".repeat(hang)))];
    TextFlow {
        first_margin: vec![Span::raw(sign.to_owned())],
        rest_margin: rest,
        width,
        breaks: LineBreakMode::Words,
    }
}

fn plain_lines(sign: &str, text: &str, style: Style, width: usize) -> Vec<Line<'static>> {
    // In a narrow window, lines begin at the edge.
    let indent = Some(text::width(sign)).filter(|indent| indent * 3 <= width).unwrap_or(0);
    let flow = TextFlow {
        first_margin: vec![Span::styled(sign.to_owned(), style)],
        rest_margin: vec![Span::raw(" ".repeat(indent))],
        width,
        breaks: LineBreakMode::Words,
    };
    let mut lines = vec![];
    if !text.is_empty() {
        flow.push_lines(&[Span::styled(text.trim_end().to_owned(), style)], &mut lines);
    }
    lines
}

/// Returns the content as text: a string, the text of a list of blocks, or the JSON.
fn content_text(content: &Json) -> String {
    match content {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        // A list with other blocks, such as images, is shown as JSON and not in part.
        Json::Array(blocks) if blocks.iter().all(|block| block["text"].is_string()) => {
            let texts = blocks.iter().filter_map(|block| block["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

/// Returns a tool's input, one field per line.
fn format_fields(input: &Json) -> String {
    match input {
        Json::Object(fields) => {
            let field = |(name, it): (&String, &Json)| format!("{name}: {}", format_value(it));
            fields.iter().map(field).collect::<Vec<_>>().join("\n")
        }
        Json::Null => String::new(),
        other => format_value(other),
    }
}

pub(crate) fn format_value(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn truncate_bytes(text: &str, bytes_max: usize) -> String {
    match byte_prefix(text, bytes_max) {
        (text, true) => text.to_owned(),
        (start, false) => {
            let more = text.len() - start.len();
            format!("{start}\n… {more} more bytes; /export writes them all")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(entry: &ConversationEntry, unfolded: bool) -> Vec<String> {
        let lines = TranscriptCell::of(entry).lines(30, unfolded, &TerminalTheme::plain());
        lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
    }

    fn said(role: EntryRole, content: Json) -> ConversationEntry {
        let mut entry = ConversationEntry::new(role, "", Timestamp::UNIX_EPOCH);
        entry.content = content;
        entry
    }

    #[test]
    fn whatever_another_program_has_put_there_is_shown() {
        let blocks = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(shown(&said(EntryRole::User, blocks), false), ["", "› a", "  b"]);
        assert_eq!(shown(&said(EntryRole::System, json!({"n": 1})), false), ["  {\"n\":1}"]);
        assert_eq!(shown(&said(EntryRole::Assistant, json!("[a]: b")), false), ["", "● [a]: b"]);
        assert_eq!(shown(&said(EntryRole::Tool, json!("x")), false), ["  ✓ tool"]);
    }

    #[test]
    fn an_edit_is_shown_as_lines_that_go_and_come() {
        let mut call = said(EntryRole::Tool, Json::Null);
        call.name = Some("Edit".to_owned());
        call.args = Some(
            json!({"file_path": "a.rs", "old_string": "one\n\ttwo", "new_string": "one\n\t2"}),
        );
        assert_eq!(shown(&call, false), ["  · Edit a.rs"], "it is not done yet");
        let shown = |call: &ConversationEntry, unfolded: bool| -> Vec<String> {
            let TranscriptCell::Tool(mut cell) = TranscriptCell::of(call) else { panic!("a call") };
            cell.set_outcome(&said(EntryRole::Tool, json!("done")));
            let lines = cell.lines(30, unfolded, &TerminalTheme::plain());
            lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
        };
        let lines = shown(&call, false);
        assert_eq!(lines[0], "  ✓ Edit a.rs");
        assert_eq!(lines[1..].len(), 3, "{lines:?}");
        assert!(lines[1].ends_with("one") && lines[2].starts_with("    - "), "{lines:?}");
        assert!(lines[3].starts_with("    + ") && lines[3].ends_with('2'), "{lines:?}");
        // A long one is folded, and Ctrl+O shows the rest.
        let long: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        call.name = Some("Write".to_owned());
        call.args = Some(json!({"file_path": "a.rs", "content": long.join("\n")}));
        let lines = shown(&call, false);
        assert_eq!(lines.len(), 1 + EDIT_LINES_FOLDED + 1);
        assert!(lines.last().unwrap().contains("8 more lines"), "{lines:?}");
        assert!(shown(&call, true).iter().any(|line| line == "    + 19"));
    }

    #[test]
    fn an_edit_with_a_patch_has_line_numbers_and_colours() {
        let mut call = said(EntryRole::Tool, Json::Null);
        call.name = Some("Edit".to_owned());
        call.args = Some(
            json!({"file_path": "src/a.rs", "old_string": "let x = 1;", "new_string": "let x = 2;"}),
        );
        let mut result = said(EntryRole::Tool, json!("done"));
        let hunk = |start: u64, lines: &[&str]| json!({"oldStart": start, "newStart": start, "lines": lines});
        let first = hunk(41, &[" fn a() {", "-    let x = 1;", "+    let x = 2;\u{1b}[2J"]);
        let patch = json!([first, hunk(99, &["+}"])]);
        result.other.insert(PATCH_KEY.to_owned(), patch);
        let TranscriptCell::Tool(mut cell) = TranscriptCell::of(&call) else { panic!("a call") };
        cell.set_outcome(&result);
        let lines = cell.lines(40, false, &TerminalTheme::dark());
        let texts: Vec<String> = lines[1..].iter().map(Line::to_string).collect();
        assert_eq!(
            texts,
            [
                "     41   fn a() {",
                "     42 -     let x = 1;",
                "     42 +     let x = 2;\\u{1b}[2J",
                "      ⋯",
                "     99 + }",
            ]
        );
        let keyword = |line: &Line<'_>| line.spans.iter().any(|span| span.content == "let");
        assert!(keyword(&lines[3]) && !keyword(&lines[2]), "new code is highlighted: {lines:?}");
        // Nothing is lost if the patch is of no use.
        result.other.insert(PATCH_KEY.to_owned(), json!({"x": 1}));
        let TranscriptCell::Tool(mut cell) = TranscriptCell::of(&call) else { panic!("a call") };
        cell.set_outcome(&result);
        assert_eq!(cell.lines(40, false, &TerminalTheme::plain()).len(), 3);
    }

    #[test]
    fn a_long_message_of_the_person_is_folded() {
        let paste = (1..=40).map(|number| format!("line {number}\n")).collect::<String>();
        let lines = shown(&said(EntryRole::User, json!(paste)), false);
        assert_eq!(lines.len(), 1 + USER_LINES_FOLDED + 1);
        assert_eq!(lines[1], "› line 1");
        assert_eq!(lines.last().unwrap(), "  … 32 more lines (Ctrl+O)");
        assert_eq!(shown(&said(EntryRole::User, json!(paste)), true).len(), 41);
    }

    #[test]
    fn a_todo_list_shows_what_is_done_and_what_is_next() {
        let mut call = said(EntryRole::Tool, Json::Null);
        call.name = Some("TodoWrite".to_owned());
        call.args = Some(json!({"todos": [
            {"content": "read", "status": "completed"},
            {"content": "write\x1b[2J", "status": "in_progress"},
            {"content": "test", "status": "pending"}, 7,
        ]}));
        let lines = shown(&call, false);
        assert_eq!(lines[0], "  · TodoWrite 1 of 4 done");
        assert_eq!(lines[1], "    ✓ read");
        assert!(lines[2].starts_with("    ▸ write") && !lines[2].contains('\x1b'), "{lines:?}");
        assert_eq!(lines[3], "    · test");
    }

    #[test]
    fn a_failed_edit_shows_its_error_only() {
        let mut call = said(EntryRole::Tool, Json::Null);
        call.name = Some("Edit".to_owned());
        call.args = Some(json!({"file_path": "a", "old_string": "x", "new_string": "y"}));
        let mut result = said(EntryRole::Tool, json!("no such text"));
        result.other.insert("isError".to_owned(), json!(true));
        let TranscriptCell::Tool(mut cell) = TranscriptCell::of(&call) else { panic!("a call") };
        cell.set_outcome(&result);
        let lines: Vec<String> =
            cell.lines(30, false, &TerminalTheme::plain()).iter().map(Line::to_string).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].contains("no such text"), "{lines:?}");
    }

    #[test]
    fn what_is_too_long_is_cut_and_that_is_told() {
        let long = said(EntryRole::System, json!("x".repeat(MESSAGE_BYTES_MAX + 5)));
        assert!(TranscriptCell::of(&long).bytes() < MESSAGE_BYTES_MAX + 200);
        let lines = shown(&said(EntryRole::User, json!("y\n".repeat(LINES_MAX + 50))), true);
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert!(lines[LINES_MAX].starts_with("… "), "{}", lines[LINES_MAX]);
        let mut call = said(EntryRole::Tool, Json::Null);
        call.args = Some(json!({"command": "z".repeat(TOOL_BYTES_MAX + 5)}));
        assert!(TranscriptCell::of(&call).bytes() < TOOL_BYTES_MAX + SUMMARY_BYTES_MAX + 500);
        assert_eq!(shown(&call, false), ["  · tool zzzzzzzzzzzzzzzzzzzz…"]);
        assert!(shown(&call, true).last().unwrap().ends_with("them all"));
    }
}
