//! Formats transcript rows for people: one entry per row, from job rows or Claude's message format.
//! Start at [`DisplayRow`] for single rows, at [`RowFormatter`] for a whole transcript.
//!
//! Parsing is lenient: a row of an unknown kind is shown by its kind, never dropped.

use anstyle::{AnsiColor, Style};
use heeler_model::parse_iso;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::job_watch::{ToolCallTracker, summarize_input};
use crate::output::{SafeText, format_duration, format_price, one_line};

/// Characters of a tool's input or result that are shown; the transcript has all.
const TOOL_TEXT_CHARS_MAX: usize = 400;
/// Longest line of a tool call, in characters.
const TOOL_LINE_CHARS_MAX: usize = 160;

/// A row ready for printing.
#[derive(Debug)]
pub(crate) struct DisplayRow {
    pub(crate) at: Option<Timestamp>,
    /// Speaker: `you`, `assistant`, `tool`, …
    pub(crate) speaker: String,
    /// Text; may have several lines.
    pub(crate) text: SafeText,
}

impl DisplayRow {
    /// Parses one transcript line.
    pub(crate) fn read(line: &[u8]) -> DisplayRow {
        match serde_json::from_slice::<Value>(line) {
            Ok(value) => DisplayRow::from_value(&value),
            Err(_) => {
                let text = String::from_utf8_lossy(line).into_owned().into();
                DisplayRow { at: None, speaker: "unreadable".to_owned(), text }
            }
        }
    }

    fn from_value(value: &Value) -> DisplayRow {
        let kind = value["type"].as_str().or(value["role"].as_str()).unwrap_or("row");
        let kind = if is_turn_result(value) { "result" } else { kind };
        let text = match kind {
            "tool_use" => tool_use(&value["tool_name"], &value["input"]),
            "tool_result" => tool_result(value),
            "error" => plain(&value["message"]),
            "result" => format_turn_result(value),
            "system" => format_system_row(value),
            _ => message(value).map(blocks).unwrap_or_else(|| plain(&value["subtype"])),
        };
        let who = match kind {
            "tool_use" | "tool_result" => "tool",
            "user" if is_tool_result(value) => "tool",
            "user" => "you",
            "system" if is_prompt(value) => "you",
            "system" if value["subtype"] == "command" => "$",
            "system" if value["subtype"] == "stderr" => "stderr",
            kind => kind,
        };
        DisplayRow { at: time(value), speaker: one_line(who), text: text.into() }
    }

    /// Formats the row with its time of day in the given zone; continuation lines are indented.
    pub(crate) fn show(&self, zone: &TimeZone) -> SafeText {
        let time = match self.at {
            Some(at) => at.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string(),
            None => "--:--:--".to_owned(),
        };
        let start = SafeText::from(time).append(" ");
        match self.text.is_empty() {
            true => start.append(SafeText::styled(self.style(), &self.speaker)),
            false => {
                let who = SafeText::styled(self.style(), &format!("{:<11}", self.speaker));
                start.append(who).append(" ").append(self.text.clone().indented(21))
            }
        }
    }

    fn style(&self) -> Style {
        match self.speaker.as_str() {
            "assistant" => AnsiColor::Green.on_default(),
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
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            return Some(DisplayRow::read(line));
        };
        let is_sub_agents = !value["parent_tool_use_id"].is_null();
        let subtype = value["subtype"].as_str().unwrap_or_default();
        let who = match value["type"].as_str() {
            Some("tool_use") => "tool",
            Some("tool_result") if value["tool_use_id"].is_string() => "tool",
            Some("assistant") if is_sub_agents && value["content"].is_string() => "sub-agent",
            Some("system") if subtype.starts_with("task_") || is_sub_agents => "system",
            _ => return Some(DisplayRow::from_value(&value)),
        };
        let text = self.0.format_row(&value, TOOL_LINE_CHARS_MAX)?;
        Some(DisplayRow { at: time(&value), speaker: who.to_owned(), text })
    }

    /// Returns the tool calls without a result.
    pub(crate) fn unfinished(&mut self, why: &str) -> Vec<DisplayRow> {
        let row = |text| DisplayRow { at: None, speaker: "tool".to_owned(), text };
        self.0.unfinished(why).into_iter().map(row).collect()
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    value["timestamp"].as_str().and_then(parse_iso)
}

/// Returns true if a job row is the prompt.
fn is_prompt(value: &Value) -> bool {
    value["subtype"] == "user_input" && value["parent_tool_use_id"].is_null()
}

/// Returns true if a user row holds tool results.
fn is_tool_result(value: &Value) -> bool {
    let blocks = message(value).and_then(Value::as_array);
    blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"))
}

/// Formats a system row. Question IDs, which only programs need, are removed.
fn format_system_row(value: &Value) -> String {
    let text = message(value).map(blocks).unwrap_or_else(|| plain(&value["subtype"]));
    match value["subtype"].as_str() {
        Some("asked" | "answered" | "denied" | "withdrawn") => {
            text.rsplit_once(" (question ").map_or(text.as_str(), |(told, _)| told).to_owned()
        }
        _ => text,
    }
}

fn message(value: &Value) -> Option<&Value> {
    [&value["message"]["content"], &value["content"], &value["message"]]
        .into_iter()
        .find(|content| content.is_string() || content.is_array())
}

fn blocks(content: &Value) -> String {
    let Value::Array(blocks) = content else { return plain(content) };
    blocks.iter().map(block).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

fn block(block: &Value) -> String {
    match block["type"].as_str() {
        Some("text") => plain(&block["text"]),
        Some("thinking") => format!("(thinking) {}", shortened(&plain(&block["thinking"]))),
        Some("tool_use") => tool_use(&block["name"], &block["input"]),
        Some("tool_result") => shortened(&blocks(&block["content"])),
        Some(other) => format!("[{other}]"),
        None => plain(block),
    }
}

fn tool_use(name: &Value, input: &Value) -> String {
    format!("{} {}", plain(name), shortened(&summarize_input(input)))
}

fn tool_result(value: &Value) -> String {
    let text = match &value["error"] {
        Value::Null => blocks(&value["result"]),
        error => plain(error),
    };
    let failed = value["success"] == Value::Bool(false);
    format!("{} {}", if failed { "failed:" } else { "→" }, shortened(&text))
}

/// Returns true if a job row is a turn's result; a tool's result names its call.
fn is_turn_result(value: &Value) -> bool {
    value["type"] == "tool_result" && value["subtype"].is_string() && value["tool_use_id"].is_null()
}

/// Formats the result of a turn. The agent's last message has its own row; an error has not.
fn format_turn_result(value: &Value) -> String {
    let turns = value["num_turns"].as_i64().map(|turns| match turns {
        1 => ", 1 turn".to_owned(),
        turns => format!(", {turns} turns"),
    });
    let took = value["duration_ms"].as_i64().map(|took| format!(", {}", format_duration(took)));
    let cost = format_price(value["total_cost_usd"].as_f64()).map(|cost| format!(", {cost}"));
    let error = value["error"].as_str().filter(|error| !error.is_empty());
    let error = error.map(|error| format!(": {}", shortened(error)));
    let parts = [turns, took, cost, error].into_iter().flatten();
    format!("{}{}", plain(&value["subtype"]), parts.collect::<String>())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn shortened(text: &str) -> String {
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
            "09:00:01 assistant   I'll look.\n                     Now.",
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
            "--:--:-- assistant   Hi\n                     Read a",
        );
        check(
            r#"{"type":"result","subtype":"success","num_turns":7,"total_cost_usd":0.13}"#,
            "--:--:-- result      success, 7 turns, $0.1300",
        );
        check(
            r#"{"type":"tool_result","subtype":"success","result":"Hi","success":true,"num_turns":1,"duration_ms":1200,"total_cost_usd":0.05}"#,
            "--:--:-- result      success, 1 turn, 1.2s, $0.0500",
        );
        check(
            r#"{"type":"tool_result","subtype":"error_during_execution","error":"no login","success":false}"#,
            "--:--:-- result      error_during_execution: no login",
        );
        check(r#"{"role":"tool","name":"view","content":"x"}"#, "--:--:-- tool        x");
    }

    #[track_caller]
    fn told(rows: &[Value], expected: &[&str]) {
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
        told(
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
                "--:--:-- assistant   There are 3.",
                "--:--:-- tool        · Bash sleep 9 (no result yet)",
            ],
        );
    }

    #[test]
    fn a_result_whose_call_is_not_shown_names_its_tool() {
        let row = serde_json::json!({"type": "tool_result", "tool_use_id": "1", "tool_name": "Bash",
            "success": true, "duration_ms": 26});
        told(&[row], &["--:--:-- tool        ✓ Bash  26ms"]);
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
