//! Tool calls and everything else that is not the agent's own words, as one line each.

use anstyle::{AnsiColor, Style};
use heeler_model::from_iso;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::Value as Json;

use super::asks::gist;
use crate::output::{self, Text, one_line, shortened};

/// What a line has besides the call: the sign, the time, spaces.
const MARGIN: usize = 14;

/// How many calls are followed at once; the oldest are given up for newer ones.
const OPEN_CALLS_MAX: usize = 1024;
/// How many calls without a result are told one by one at the end.
const UNFINISHED_MAX: usize = 20;

/// The tool calls that are under way.
pub(crate) struct Tools {
    /// How far lines are indented; those of a sub-agent are two columns further.
    margin: usize,
    open: IndexMap<String, Call>,
    /// How many were given up.
    given_up: usize,
    /// Whether the prompt, which whoever watches has written, was passed over.
    prompted: bool,
}

struct Call {
    what: String,
    at: Option<Timestamp>,
    indent: usize,
}

impl Tools {
    /// Begins where no call is under way.
    pub(crate) fn new(margin: usize) -> Tools {
        Tools { margin, open: IndexMap::new(), given_up: 0, prompted: false }
    }

    /// Takes a row and returns the line that it becomes, if it becomes one now.
    pub(crate) fn row(&mut self, row: &Json, width: usize) -> Option<Text> {
        let indent = self.margin + if row["parent_tool_use_id"].is_null() { 0 } else { 2 };
        let fit = |text: &str| shortened(&one_line(text), width.saturating_sub(indent + 2));
        match row["type"].as_str()? {
            "tool_use" => {
                let what = format!("{} {}", plain(&row["tool_name"]), gist(&row["input"]));
                let what = shortened(&one_line(&what), width.saturating_sub(indent + MARGIN));
                let call = Call { what, at: time(row), indent };
                if self.open.len() >= OPEN_CALLS_MAX {
                    self.open.shift_remove_index(0);
                    self.given_up += 1;
                }
                self.open.insert(plain(&row["tool_use_id"]), call);
                None
            }
            "tool_result" if row["tool_use_id"].is_string() => Some(self.ended(row, indent, width)),
            // Whole, however long: it may be all that is known.
            "error" => {
                let text = one_line(&plain(&row["message"]));
                let text = format!("{:1$}{text}", "", self.margin);
                Some(Text::styled(AnsiColor::Red.on_default(), &text))
            }
            "system" => self.system(row).map(|text| {
                Text::styled(Style::new().dimmed(), &format!("{:indent$}{}", "", fit(&text)))
            }),
            // Words of a sub-agent.
            "assistant" => {
                let text = fit(&plain(&row["content"]));
                Some(Text::styled(Style::new().dimmed(), &format!("{:indent$}{text}", "")))
            }
            _ => None,
        }
    }

    /// Returns what is under way, for the status.
    pub(crate) fn current(&self) -> Option<String> {
        let (_, call) = self.open.last()?;
        let others = match self.open.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!("{}{others}", call.what))
    }

    /// Returns the calls that have no result, and why in a word.
    pub(crate) fn unfinished(&mut self, why: &str) -> Vec<Text> {
        let (dim, margin) = (Style::new().dimmed(), self.margin);
        let line = |call: Call| {
            Text::styled(dim, &format!("{:1$}· {2} ({why})", "", call.indent, call.what))
        };
        let more = self.open.len().saturating_sub(UNFINISHED_MAX) + self.given_up;
        let open = self.open.drain(..).take(UNFINISHED_MAX);
        let mut lines: Vec<Text> = open.map(|(_, call)| line(call)).collect();
        if more > 0 {
            lines
                .push(Text::styled(dim, &format!("{:margin$}· and {more} more calls ({why})", "")));
        }
        lines
    }

    fn ended(&mut self, row: &Json, indent: usize, width: usize) -> Text {
        let call = self.open.shift_remove(&plain(&row["tool_use_id"]));
        let what = match &call {
            Some(call) => call.what.clone(),
            None => one_line(&plain(&row["tool_name"])),
        };
        let took = row["duration_ms"].as_i64().or_else(|| {
            let took = time(row)?.duration_since(call.as_ref()?.at?).as_millis();
            i64::try_from(took).ok().filter(|took| *took >= 0)
        });
        let took = took.map(|took| format!("  {}", output::duration(took))).unwrap_or_default();
        let dim = Style::new().dimmed();
        if row["success"] != Json::Bool(false) {
            let sign = Text::styled(AnsiColor::Green.on_default(), &format!("{:indent$}✓ ", ""));
            return sign.then(what).then(Text::styled(dim, &took));
        }
        let sign = Text::styled(AnsiColor::Red.on_default(), &format!("{:indent$}✗ ", ""));
        let why = one_line(&plain(&row["error"]));
        let why = shortened(&why, width.saturating_sub(indent + 4));
        let line = sign.then(what).then(Text::styled(dim, &took));
        match why.is_empty() {
            true => line,
            false => {
                line.then("\n").then(Text::styled(dim, &format!("{:1$}{why}", "", indent + 2)))
            }
        }
    }

    fn system(&mut self, row: &Json) -> Option<String> {
        let content = plain(&row["content"]);
        match row["subtype"].as_str().unwrap_or_default() {
            "init" => None,
            "user_input" if !row["parent_tool_use_id"].is_null() => None,
            "user_input" if !self.prompted => {
                self.prompted = true;
                None
            }
            "user_input" => Some(format!("› {content}")),
            "api_retry" => {
                let (attempt, most) = (&row["attempt"], &row["max_retries"]);
                let why = plain(&row["error"]);
                Some(format!("the API failed ({why}); trying again, {attempt} of {most}"))
            }
            // A sub-agent's call says how it went; a background task has nothing but this.
            "task_notification" if !self.open.contains_key(&plain(&row["tool_use_id"])) => {
                Some(content)
            }
            subtype if subtype.starts_with("task_") => None,
            "warning" => Some(format!("warning: {content}")),
            // Told by the question itself, or by the call that came to nothing.
            "asked" | "answered" | "denied" | "permission_denied" => None,
            _ if content.is_empty() => None,
            _ => Some(content),
        }
    }
}

/// Says whether a row tells of a request that was denied because nobody could be asked: by the
/// runner, by a scripted agent, or by Claude itself. A denial by a rule is not one.
pub(crate) fn asked_nobody(row: &Json) -> bool {
    let says = |words: &str| row["content"].as_str().is_some_and(|text| text.contains(words));
    match row["subtype"].as_str().filter(|_| row["type"] == "system") {
        Some("denied") => says("nobody attends this run"),
        Some("permission_denied") => says("Nobody can be asked") || says("you haven't granted"),
        _ => false,
    }
}

fn time(row: &Json) -> Option<Timestamp> {
    row["timestamp"].as_str().and_then(from_iso)
}

fn plain(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(rows: &[Json], expected: &[&str]) {
        let mut tools = Tools::new(2);
        let mut lines: Vec<Text> = rows.iter().filter_map(|row| tools.row(row, 60)).collect();
        lines.extend(tools.unfinished("no result"));
        let plain: Vec<String> = lines
            .iter()
            .map(|line| anstream::adapter::strip_str(&line.to_string()).to_string())
            .collect();
        assert_eq!(plain, expected);
    }

    fn call(id: &str, input: Json) -> Json {
        json!({"type": "tool_use", "tool_name": "Bash", "tool_use_id": id, "input": input})
    }

    #[test]
    fn a_call_and_its_result_are_one_line() {
        check(
            &[
                call("1", json!({"command": "ls -la", "description": "List"})),
                call("2", json!({"command": "cargo\ntest"})),
                json!({"type": "tool_result", "tool_use_id": "2", "success": false,
                    "error": "exit code 101", "duration_ms": 61_000}),
                json!({"type": "tool_result", "tool_use_id": "1", "success": true,
                    "result": "x", "duration_ms": 320}),
            ],
            &["  ✗ Bash cargo test  1m 01s\n    exit code 101", "  ✓ Bash ls -la  320ms"],
        );
    }

    #[test]
    fn how_long_a_call_took_that_does_not_say_so_is_told_by_the_times_of_its_rows() {
        let at = |mut row: Json, at: &str| {
            row["timestamp"] = at.into();
            row
        };
        let ended = json!({"type": "tool_result", "tool_use_id": "1", "success": true});
        check(
            &[
                at(call("1", json!("ls")), "2024-01-19T09:00:01Z"),
                at(ended, "2024-01-19T09:00:03Z"),
            ],
            &["  ✓ Bash ls  2.0s"],
        );
    }

    #[test]
    fn an_error_is_never_cut() {
        let long = "word ".repeat(100);
        let row = json!({"type": "error", "message": long});
        check(&[row], &[&format!("  {}", long.trim_end())]);
    }

    #[test]
    fn requests_that_nobody_could_be_asked_about_are_told_from_those_that_a_rule_denied() {
        let row = |subtype: &str, content: &str| {
            asked_nobody(&json!({"type": "system", "subtype": subtype, "content": content}))
        };
        assert!(row("denied", "Write was denied: nobody attends this run, so nobody can allow it"));
        assert!(row("permission_denied", "Write was not allowed: …, but you haven't granted …"));
        assert!(!row("permission_denied", "Permission to use Write has been denied"));
        assert!(!row("denied", "Write was denied: too many questions are open"));
        assert!(!row("user_input", "nobody attends this run"));
    }

    #[test]
    fn a_call_without_a_result_is_told_at_the_end() {
        check(&[call("1", json!({"command": "sleep 9"}))], &["  · Bash sleep 9 (no result)"]);
    }

    #[test]
    fn of_many_calls_without_a_result_some_are_told_and_the_rest_counted() {
        let rows: Vec<Json> =
            (0..2000).map(|id| call(&id.to_string(), json!({"command": "x"}))).collect();
        let mut expected = vec!["  · Bash x (no result)"; UNFINISHED_MAX];
        expected.push("  · and 1980 more calls (no result)");
        check(&rows, &expected);
    }

    #[test]
    fn the_prompt_is_not_repeated_and_later_messages_are_shown() {
        let told = |text| json!({"type": "system", "subtype": "user_input", "content": text});
        check(&[told("first"), told("and then")], &["  › and then"]);
    }

    #[test]
    fn long_and_hostile_text_becomes_one_harmless_line() {
        let long = format!("\u{1b}[2J{}", "x".repeat(100));
        check(
            &[
                call("1", json!({"command": long})),
                json!({"type": "tool_result", "tool_use_id": "1", "success": true, "duration_ms": 1}),
            ],
            &[&format!("  ✓ Bash {}…  1ms", "x".repeat(39))],
        );
    }
}
