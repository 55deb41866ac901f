//! Transcript rows as people read them: one entry a row, in job form or in Claude's envelope.
//!
//! Reads loosely: a row of an unknown kind is shown by its kind, never dropped.

use anstyle::{AnsiColor, Style};
use heeler_model::from_iso;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::output::{Text, duration, harmless, one_line, price};

/// How much of a tool's input or result is shown; the whole is in the transcript.
const TOOL_TEXT_CHARS_MAX: usize = 400;

/// A row ready for the screen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// When it was written.
    pub(crate) at: Option<Timestamp>,
    /// Who speaks: `assistant`, `tool`, …
    pub(crate) who: String,
    /// What is said; may have several lines.
    pub(crate) text: String,
}

impl Row {
    /// Reads one transcript line.
    pub(crate) fn read(line: &[u8]) -> Row {
        match serde_json::from_slice::<Value>(line) {
            Ok(value) => Row::from_value(&value),
            Err(_) => {
                let text = harmless(&String::from_utf8_lossy(line));
                Row { at: None, who: "unreadable".to_owned(), text }
            }
        }
    }

    fn from_value(value: &Value) -> Row {
        let at = value["timestamp"].as_str().and_then(from_iso);
        let kind = value["type"].as_str().or(value["role"].as_str()).unwrap_or("row");
        let kind = if is_turn_result(value) { "result" } else { kind };
        let text = match kind {
            "tool_use" => tool_use(&value["tool_name"], &value["input"]),
            "tool_result" => tool_result(value),
            "error" => plain(&value["message"]),
            "result" => result(value),
            _ => match message(value) {
                Some(content) => blocks(content),
                None => plain(&value["subtype"]),
            },
        };
        let who = match kind {
            "tool_use" | "tool_result" => "tool",
            kind => kind,
        };
        Row { at, who: one_line(who), text: harmless(&text) }
    }

    /// Returns the row with its time of day in the given zone, continuation lines indented.
    pub(crate) fn show(&self, zone: &TimeZone) -> Text {
        let time = match self.at {
            Some(at) => at.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string(),
            None => "--:--:--".to_owned(),
        };
        let start = Text::from(time).then(" ");
        let indent = format!("\n{:21}", "");
        match self.text.trim_end() {
            "" => start.then(Text::styled(self.style(), &self.who)),
            text => {
                let who = Text::styled(self.style(), &format!("{:<11}", self.who));
                start.then(who).then(" ").then(text.replace('\n', &indent))
            }
        }
    }

    fn style(&self) -> Style {
        match self.who.as_str() {
            "assistant" => AnsiColor::Green.on_default(),
            "user" => AnsiColor::Blue.on_default(),
            "tool" => AnsiColor::Cyan.on_default(),
            "error" | "unreadable" => AnsiColor::Red.on_default(),
            _ => AnsiColor::BrightBlack.on_default(),
        }
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
    let input = match input {
        Value::Object(fields) if fields.len() == 1 => fields.values().map(plain).collect(),
        other => plain(other),
    };
    format!("{} {}", plain(name), shortened(&input))
}

fn tool_result(value: &Value) -> String {
    let text = match &value["error"] {
        Value::Null => blocks(&value["result"]),
        error => plain(error),
    };
    let failed = value["success"] == Value::Bool(false);
    format!("{} {}", if failed { "failed:" } else { "→" }, shortened(&text))
}

/// Says whether a job row is the result of a turn: a tool's has the call that it answers.
fn is_turn_result(value: &Value) -> bool {
    value["type"] == "tool_result" && value["subtype"].is_string() && value["tool_use_id"].is_null()
}

/// Says how a turn ended. What the agent said last is a row of its own; an error is not.
fn result(value: &Value) -> String {
    let turns = value["num_turns"].as_i64().map(|turns| match turns {
        1 => ", 1 turn".to_owned(),
        turns => format!(", {turns} turns"),
    });
    let took = value["duration_ms"].as_i64().map(|took| format!(", {}", duration(took)));
    let cost = price(value["total_cost_usd"].as_f64()).map(|cost| format!(", {cost}"));
    let error = value["error"].as_str().filter(|error| !error.is_empty());
    let error = error.map(|error| format!(": {}", shortened(error)));
    let parts = [turns, took, cost, error].into_iter().flatten();
    plain(&value["subtype"]) + &parts.collect::<String>()
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
        let shown = Row::read(line.as_bytes()).show(&TimeZone::UTC).to_string();
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

    #[test]
    fn garbage_is_shown_as_garbage() {
        check("not json", "--:--:-- unreadable  not json");
        check(r#"{"type":"brand_new","payload":1}"#, "--:--:-- brand_new");
    }

    #[test]
    fn long_tool_output_is_cut_at_a_character() {
        let long = "é".repeat(500);
        let row = Row::read(format!(r#"{{"type":"tool_result","result":"{long}"}}"#).as_bytes());
        assert!(row.text.ends_with("é…[100 more chars]"), "{}", row.text);
    }
}
