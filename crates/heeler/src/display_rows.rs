//! Formats transcript rows for people: one entry per row, from job rows or Claude's message format.
//! Start at [`DisplayRow`] for single rows, at [`RowFormatter`] for a whole transcript.
//!
//! Parsing is lenient: a row of an unknown kind is shown by its kind, never dropped.

use anstyle::{AnsiColor, Style};
use heeler_model::job_row::{
    ContentBlock, JobRow, JobRowKind, ToolResultRow, TurnResultRow, block_text, content_blocks,
    format_duration, summarize_tool_input, value_text,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::job_watch::ToolCallTracker;
use crate::output::{SafeText, format_price, one_line};
use crate::terminal_markdown::{self, TerminalMarkdown};

/// Characters of a tool's input or result that are shown; the transcript has all.
const TOOL_TEXT_CHARS_MAX: usize = 400;
/// Longest line of a tool call, in characters.
const TOOL_LINE_CHARS_MAX: usize = 160;

/// A row ready for printing.
#[derive(Debug)]
pub(crate) struct DisplayRow {
    pub(crate) at: Option<Timestamp>,
    /// Speaker: `you`, `agent`, `tool`, …
    pub(crate) speaker: String,
    /// Text; may have several lines.
    pub(crate) text: SafeText,
    /// Markdown of the agent, if that is the text.
    pub(crate) message: Option<String>,
}

/// Columns of a row's speaker.
const SPEAKER_WIDTH: usize = 11;
/// Columns before a row's text: its time, its speaker, and a blank after each.
const ROW_MARGIN: usize = 9 + SPEAKER_WIDTH + 1;
/// Least columns for markdown beside the speaker; with less, it begins below.
const MESSAGE_WIDTH_MIN: usize = 30;
/// Indentation of a message below its speaker.
const MESSAGE_MARGIN: usize = 2;

impl DisplayRow {
    /// Parses one transcript line.
    pub(crate) fn read(line: &[u8]) -> DisplayRow {
        match JobRow::parse(line) {
            Ok(row) => DisplayRow::from_row(&row),
            // An unreadable row is shown as it is: hiding it would hide that something is damaged.
            Err(_) => {
                let text = String::from_utf8_lossy(line).into_owned().into();
                DisplayRow { at: None, speaker: "unreadable".to_owned(), text, message: None }
            }
        }
    }

    fn from_row(row: &JobRow) -> DisplayRow {
        let text = match row.kind() {
            JobRowKind::ToolCall { tool, input } => tool_call(tool, input),
            JobRowKind::ToolResult(result) => tool_result(&result),
            JobRowKind::Error { message, .. } => message.to_owned(),
            JobRowKind::TurnResult(turn) => format_turn_result(&turn),
            JobRowKind::System { .. } => row.notice_text(),
            JobRowKind::Assistant | JobRowKind::User | JobRowKind::Other(_) => {
                // A row of a newer release may have no content that is known here.
                let subtype = || row.text("subtype").unwrap_or_default().to_owned();
                row.content().map_or_else(subtype, blocks)
            }
        };
        let speaker = one_line(row.speaker().label());
        let message = matches!(row.kind(), JobRowKind::Assistant).then(|| text.clone());
        DisplayRow { at: row.written_at(), speaker, text: text.into(), message }
    }

    /// Formats the row with its time of day in the given zone; continuation lines are indented.
    pub(crate) fn show(&self, zone: &TimeZone) -> SafeText {
        let start = self.start(zone);
        match self.text.is_empty() {
            true => start,
            false => self.pad(start).append(self.text.clone().indented(ROW_MARGIN)),
        }
    }

    /// Formats the row as [`DisplayRow::show`] does, with the agent's markdown laid out. `prefix` is
    /// the number of columns that the caller prints before the row.
    pub(crate) fn show_laid_out(
        &self,
        zone: &TimeZone,
        markdown: &TerminalMarkdown,
        prefix: usize,
    ) -> SafeText {
        let beside = prefix + ROW_MARGIN;
        let is_beside = terminal_markdown::width() >= beside + MESSAGE_WIDTH_MIN;
        let margin = if is_beside { beside } else { MESSAGE_MARGIN };
        let message = self.message.as_deref().unwrap_or_default();
        let lines = markdown.lines(message, margin).into_iter();
        let text = lines.reduce(|all, line| all.append("\n").append(line));
        match text.filter(|text| !text.is_empty()).map(|text| text.indented(margin)) {
            None => self.show(zone),
            Some(text) if is_beside => self.pad(self.start(zone)).append(text),
            Some(text) => self.start(zone).append(format!("\n{:margin$}", "")).append(text),
        }
    }

    /// Returns the time and the speaker.
    fn start(&self, zone: &TimeZone) -> SafeText {
        let time = match self.at {
            Some(at) => at.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string(),
            None => "--:--:--".to_owned(),
        };
        SafeText::from(time).append(" ").append(SafeText::styled(self.style(), &self.speaker))
    }

    /// Fills the column of the speaker.
    fn pad(&self, start: SafeText) -> SafeText {
        let blanks = SPEAKER_WIDTH.saturating_sub(self.speaker.chars().count()) + 1;
        start.append(" ".repeat(blanks))
    }

    fn style(&self) -> Style {
        match self.speaker.as_str() {
            "agent" => AnsiColor::Green.on_default(),
            "you" => AnsiColor::Blue.on_default(),
            "tool" => AnsiColor::Cyan.on_default(),
            "error" | "unreadable" => AnsiColor::Red.on_default(),
            _ => AnsiColor::BrightBlack.on_default(),
        }
    }
}

/// Formatter of one transcript, which prints rows as a live viewer sees them: a tool call and its
/// result are one line, and rows of a sub-agent that repeat its call are left out.
pub(crate) struct RowFormatter(ToolCallTracker);

impl RowFormatter {
    /// Creates a formatter; it may start at any row of a transcript.
    pub(crate) fn new() -> RowFormatter {
        RowFormatter(ToolCallTracker::new(0))
    }

    /// Formats the next line; a tool call is returned when it has ended.
    pub(crate) fn next_row(&mut self, line: &[u8]) -> Option<DisplayRow> {
        // The tracker knows only parsed rows; everything else is shown by itself.
        let Ok(row) = JobRow::parse(line) else { return Some(DisplayRow::read(line)) };
        let is_sub_agents = row.sub_agent_call().is_some();
        let speaker = match row.kind() {
            JobRowKind::ToolCall { .. } => "tool",
            // Rows without a call ID cannot be joined with their call.
            JobRowKind::ToolResult(_) if row.call_id().is_some() => "tool",
            JobRowKind::Assistant if is_sub_agents && row.text("content").is_some() => "sub-agent",
            JobRowKind::System { subtype } if subtype.starts_with("task_") || is_sub_agents => {
                "system"
            }
            _ => return Some(DisplayRow::from_row(&row)),
        };
        // A call gives no line until its result arrives.
        let text = self.0.format_row(&row, TOOL_LINE_CHARS_MAX)?;
        let speaker = speaker.to_owned();
        Some(DisplayRow { at: row.written_at(), speaker, text, message: None })
    }

    /// Returns the tool calls without a result.
    pub(crate) fn unfinished(&mut self, why: &str) -> Vec<DisplayRow> {
        let row = |text| DisplayRow { at: None, speaker: "tool".to_owned(), text, message: None };
        self.0.unfinished(why).into_iter().map(row).collect()
    }
}

fn blocks(content: &Value) -> String {
    let blocks = content_blocks(content).into_iter().map(block);
    blocks.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

fn block(block: ContentBlock<'_>) -> String {
    match block {
        ContentBlock::Text(text) => text.to_owned(),
        ContentBlock::Thinking(text) => format!("(thinking) {}", shortened(text)),
        ContentBlock::ToolCall { tool, input, .. } => tool_call(tool, input),
        ContentBlock::ToolResult { content, .. } => shortened(&block_text(content)),
        ContentBlock::Other(kind) => format!("[{kind}]"),
        ContentBlock::Plain(value) => value_text(value),
    }
}

fn tool_call(tool: &str, input: &Value) -> String {
    format!("{tool} {}", shortened(&summarize_tool_input(input)))
}

fn tool_result(result: &ToolResultRow<'_>) -> String {
    format!("{} {}", if result.failed { "failed:" } else { "→" }, shortened(&result.output()))
}

/// Formats the result of a turn. The agent's last message has its own row; an error has not.
fn format_turn_result(turn: &TurnResultRow<'_>) -> String {
    let turns = turn.turns.map(|turns| match turns {
        1 => ", 1 turn".to_owned(),
        turns => format!(", {turns} turns"),
    });
    let took = turn.duration_ms.map(|took| format!(", {}", format_duration(took)));
    let cost = format_price(turn.cost_usd).map(|cost| format!(", {cost}"));
    let error = turn.error.map(|error| format!(": {}", shortened(error)));
    let parts = [turns, took, cost, error].into_iter().flatten();
    format!("{}{}", turn.subtype, parts.collect::<String>())
}

fn shortened(text: &str) -> String {
    // The output of most commands ends in a newline, which is not worth a line.
    let text = text.trim_end();
    match text.char_indices().nth(TOOL_TEXT_CHARS_MAX) {
        Some((end, _)) => {
            let rest = text[end..].chars().count();
            format!("{}…[{rest} more chars]", &text[..end])
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let shown = DisplayRow::read(line.as_bytes()).show(&TimeZone::UTC).to_string();
        assert_eq!(anstream::adapter::strip_str(&shown).to_string(), expected);
    }

    #[test]
    fn job_rows_of_each_kind_read_as_sentences() {
        let at = r#""timestamp":"2024-01-19T09:00:01Z""#;
        check(
            &format!(r#"{{"type":"assistant","content":"I'll look.\nNow.",{at}}}"#),
            "09:00:01 agent       I'll look.\n                     Now.",
        );
        check(
            &format!(r#"{{"type":"tool_use","tool_name":"Bash","input":{{"command":"ls"}},{at}}}"#),
            "09:00:01 tool        Bash ls",
        );
        check(
            &format!(r#"{{"type":"tool_result","result":"a.txt","success":true,{at}}}"#),
            "09:00:01 tool        → a.txt",
        );
        check(
            &format!(r#"{{"type":"tool_result","error":"no such file","success":false,{at}}}"#),
            "09:00:01 tool        failed: no such file",
        );
        check(
            &format!(r#"{{"type":"error","message":"Rate limit","code":"429",{at}}}"#),
            "09:00:01 error       Rate limit",
        );
        check(r#"{"type":"system","subtype":"init"}"#, "--:--:-- system      init");
    }

    #[test]
    fn claude_envelopes_read_like_job_rows() {
        check(
            r#"{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"Hi"},{"type":"tool_use","name":"Read","input":{"file_path":"a"}}]}}"#,
            "--:--:-- agent       Hi\n                     Read a",
        );
        check(
            r#"{"type":"result","subtype":"success","num_turns":7,"total_cost_usd":0.13}"#,
            "--:--:-- end of turn success, 7 turns, $0.13",
        );
        check(
            r#"{"type":"tool_result","subtype":"success","result":"Hi","success":true,"num_turns":1,"duration_ms":1200,"total_cost_usd":0.05}"#,
            "--:--:-- end of turn success, 1 turn, 1.2s, $0.05",
        );
        check(
            r#"{"type":"tool_result","subtype":"error_during_execution","error":"no login","success":false}"#,
            "--:--:-- end of turn error_during_execution: no login",
        );
        check(r#"{"role":"tool","name":"view","content":"x"}"#, "--:--:-- tool        x");
    }

    #[track_caller]
    fn check_rows(rows: &[Value], expected: &[&str]) {
        let mut telling = RowFormatter::new();
        let line = |row: &Value| telling.next_row(row.to_string().as_bytes());
        let mut shown: Vec<DisplayRow> = rows.iter().filter_map(line).collect();
        shown.extend(telling.unfinished("no result yet"));
        let shown: Vec<String> = shown.iter().map(|row| row.show(&TimeZone::UTC).plain()).collect();
        assert_eq!(shown, expected);
    }

    fn system(subtype: &str, content: &str) -> Value {
        serde_json::json!({"type": "system", "subtype": subtype, "content": content})
    }

    #[test]
    fn a_transcript_reads_as_the_run_was_seen() {
        use serde_json::json;
        check_rows(
            &[
                system("user_input", "Count them."),
                json!({"type": "tool_use", "tool_name": "Bash", "tool_use_id": "1",
                    "input": {"command": "ls", "description": "Looks around"}}),
                json!({"type": "tool_result", "tool_use_id": "1", "result": "a\nb", "success": true,
                    "duration_ms": 26, "timestamp": "2024-01-19T09:00:01Z"}),
                json!({"type": "tool_use", "tool_name": "Agent", "tool_use_id": "2",
                    "input": {"description": "Count", "prompt": "How many?"}}),
                json!({"type": "system", "subtype": "task_started", "tool_use_id": "2", "content": "started"}),
                json!({"type": "system", "subtype": "user_input", "parent_tool_use_id": "2", "content": "How many?"}),
                json!({"type": "assistant", "parent_tool_use_id": "2", "content": "3"}),
                json!({"type": "system", "subtype": "task_updated", "tool_use_id": "2", "content": "task completed"}),
                json!({"type": "system", "subtype": "task_notification", "tool_use_id": "2", "content": "task completed: 3"}),
                json!({"type": "tool_result", "tool_use_id": "2", "error": "it broke", "success": false,
                    "duration_ms": 1500}),
                system(
                    "asked",
                    "the agent wants to use Write (question de03ca1e-3bc8-43f1-b418-f7403063818f)",
                ),
                system(
                    "answered",
                    "me allowed Write (question de03ca1e-3bc8-43f1-b418-f7403063818f)",
                ),
                json!({"type": "assistant", "content": "There are 3."}),
                json!({"type": "tool_use", "tool_name": "Bash", "tool_use_id": "3", "input": "sleep 9"}),
            ],
            &[
                "--:--:-- you         Count them.",
                "09:00:01 tool        ✓ Bash ls  26ms",
                "--:--:-- sub-agent   ▸ Agent Count\n                       3",
                "--:--:-- tool        ✗ Agent Count  1.5s\n                       it broke",
                "--:--:-- system      the agent wants to use Write",
                "--:--:-- system      me allowed Write",
                "--:--:-- agent       There are 3.",
                "--:--:-- tool        · Bash sleep 9 (no result yet)",
            ],
        );
    }

    #[test]
    fn a_result_whose_call_is_not_shown_names_its_tool() {
        let row = serde_json::json!({"type": "tool_result", "tool_use_id": "1", "tool_name": "Bash",
            "success": true, "duration_ms": 26});
        check_rows(&[row], &["--:--:-- tool        ✓ Bash  26ms"]);
    }

    #[test]
    fn what_a_session_was_asked_is_told_from_what_its_tools_returned() {
        check(
            r#"{"type":"user","message":{"role":"user","content":"Go."}}"#,
            "--:--:-- you         Go.",
        );
        check(
            r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","content":"done"}]}}"#,
            "--:--:-- tool        done",
        );
    }

    #[test]
    fn garbage_is_shown_as_garbage() {
        check("not json", "--:--:-- unreadable  not json");
        check(r#"{"type":"brand_new","payload":1}"#, "--:--:-- brand_new");
    }

    #[test]
    fn long_tool_output_is_cut_at_a_character() {
        let long = "é".repeat(500);
        let row =
            DisplayRow::read(format!(r#"{{"type":"tool_result","result":"{long}"}}"#).as_bytes());
        assert!(row.text.plain().ends_with("é…[100 more chars]"), "{}", row.text);
    }
}
