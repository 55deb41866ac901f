//! Formats tool calls, and everything else except the agent's own messages, as one line each. Start
//! at [`ToolCallTracker`].

use std::collections::HashSet;

use anstyle::{AnsiColor, Style};
use heeler_model::job_row::{
    self, JobRow, JobRowKind, ToolResultRow, block_text, summarize_tool_input,
};
use indexmap::IndexMap;
use jiff::Timestamp;

use crate::output::{self, SafeText, one_line, truncate_chars};

/// Columns of a line besides the call: symbol, duration and spaces.
const MARGIN: usize = 14;

/// Heeler's own tools, for which a separate row reports success.
const SEPARATELY_REPORTED_TOOLS: [&str; 2] =
    ["mcp__heeler-files__send_file", "mcp__heeler__report_progress"];

/// Most calls, and most sub-agents, that are tracked at once; the oldest are dropped for newer
/// ones.
const OPEN_CALLS_MAX: usize = 1024;
/// Calls without a result that are listed one by one at the end.
const UNFINISHED_MAX: usize = 20;

/// Tracker of tool calls in progress and of sub-agents.
#[derive(Default)]
pub(crate) struct ToolCallTracker {
    /// Indentation of lines; a sub-agent's lines are indented by two more columns.
    margin: usize,
    open: IndexMap<String, TrackedToolCall>,
    /// Number of dropped calls.
    dropped_calls: usize,
    /// Sub-agents by the call that started each: description and indentation.
    sub_agents: IndexMap<String, (String, usize)>,
    /// Sub-agent of the last line; its next line needs no heading.
    last_sub_agent: Option<String>,
    /// The first prompt, which the user has written.
    prompt: Option<String>,
    /// MCP servers for which a failure was reported.
    failed_mcp_servers: HashSet<String>,
}

struct TrackedToolCall {
    description: String,
    at: Option<Timestamp>,
    indent: usize,
}

impl ToolCallTracker {
    /// Creates a tracker without calls.
    pub(crate) fn new(margin: usize) -> ToolCallTracker {
        ToolCallTracker { margin, ..ToolCallTracker::default() }
    }

    /// Handles a row; returns the lines to print for it, if any.
    pub(crate) fn format_row(&mut self, row: &JobRow, width: usize) -> Option<SafeText> {
        let sub = row.sub_agent_call();
        let indent = match sub {
            None => self.margin,
            // The call may lie before the first row that was read.
            Some(sub) => self.begin_sub_agent(sub).unwrap_or(self.margin) + 2,
        };
        // Background commands are tasks too, but have no sub-agent whose lines follow.
        let is_started = matches!(row.kind(), JobRowKind::System { subtype: "task_started" })
            && row.text("subagent_type").is_some();
        let line = match row.call_id() {
            Some(call) if is_started && self.begin_sub_agent(call).is_some() => {
                return self.heading(call);
            }
            _ => self.format_line(row, indent, width)?,
        };
        // Computed after the line: a row without a line needs no heading.
        let heading = sub.and_then(|sub| self.heading(sub));
        if sub.is_none() {
            self.last_sub_agent = None;
        }
        Some(match heading {
            Some(heading) => heading.append("\n").append(line),
            None => line,
        })
    }

    /// Records that a call belongs to a sub-agent; returns the call's indentation.
    fn begin_sub_agent(&mut self, id: &str) -> Option<usize> {
        if let Some((_, indent)) = self.sub_agents.get(id) {
            return Some(*indent);
        }
        // The description is copied, because a sub-agent may go on after its call has ended.
        let call = self.open.get(id)?;
        let (what, indent) = (call.description.clone(), call.indent);
        // An agent can start any number of them, so memory needs a limit.
        if self.sub_agents.len() >= OPEN_CALLS_MAX {
            self.sub_agents.shift_remove_index(0);
        }
        self.sub_agents.insert(id.to_owned(), (what, indent));
        Some(indent)
    }

    /// Returns the heading of a sub-agent's lines, unless its own line is directly above.
    fn heading(&mut self, id: &str) -> Option<SafeText> {
        let (what, indent) = self.sub_agents.get(id)?;
        if self.last_sub_agent.as_deref() == Some(id) {
            return None;
        }
        self.last_sub_agent = Some(id.to_owned());
        Some(SafeText::styled(Style::new().dimmed(), &format!("{:indent$}▸ {what}", "")))
    }

    fn format_line(&mut self, row: &JobRow, indent: usize, width: usize) -> Option<SafeText> {
        let fit = |text: &str| truncate_chars(&one_line(text), width.saturating_sub(indent + 2));
        let dim = Style::new().dimmed();
        let dimmed = |text: &str| SafeText::styled(dim, &format!("{:indent$}{}", "", fit(text)));
        match row.kind() {
            // Without an ID its result cannot be told from others, so it has a line of its own.
            JobRowKind::ToolCall { tool, input } if row.call_id().is_none() => {
                Some(dimmed(&format!("· {tool} {}", summarize_tool_input(input))))
            }
            JobRowKind::ToolCall { tool, input } => {
                self.begin_call(
                    row,
                    &format!("{tool} {}", summarize_tool_input(input)),
                    indent,
                    width,
                );
                // The line is printed with the result, so that parallel calls do not mix.
                None
            }
            JobRowKind::ToolResult(result) if row.call_id().is_some() => {
                self.finish_call(row, &result, indent, width)
            }
            // In full, regardless of its length: it may be the only information.
            JobRowKind::Error { message, .. } => {
                let text = one_line(message);
                Some(SafeText::styled(
                    AnsiColor::Red.on_default(),
                    &format!("{:indent$}{text}", ""),
                ))
            }
            JobRowKind::System { subtype: "init" } => self.failed_servers(row),
            JobRowKind::System { subtype: "file_sent" } => {
                let (file, caption) = describe_sent_file(row);
                // In full too: people open the path.
                let line = SafeText::from(format!("{:indent$}file {}", "", one_line(&file)));
                Some(match caption.as_str() {
                    "" => line,
                    caption => line.append("\n").append(SafeText::styled(
                        dim,
                        &format!("{:indent$}  {}", "", fit(caption)),
                    )),
                })
            }
            JobRowKind::System { subtype: "stderr" } => {
                let content = content(row);
                // Each line is cut by itself: joined, the last one, often the error, would be lost.
                let lines = content.lines().map(&dimmed);
                lines.reduce(|all, line| all.append("\n").append(line))
            }
            JobRowKind::System { subtype } => {
                self.format_system_row(row, subtype).map(|text| dimmed(&text))
            }
            // Text of a sub-agent.
            JobRowKind::Assistant => Some(dimmed(&content(row))),
            _ => None,
        }
    }

    fn begin_call(&mut self, row: &JobRow, what: &str, indent: usize, width: usize) {
        let what = truncate_chars(&one_line(what), width.saturating_sub(indent + MARGIN));
        let call = TrackedToolCall { description: what, at: row.written_at(), indent };
        if self.open.len() >= OPEN_CALLS_MAX {
            self.open.shift_remove_index(0);
            self.dropped_calls += 1;
        }
        self.open.insert(row.call_id().unwrap_or_default().to_owned(), call);
    }

    /// Describes the current call, for the status line.
    pub(crate) fn current_call(&self) -> Option<String> {
        let (_, call) = self.open.last()?;
        let others = match self.open.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!("{}{others}", call.description))
    }

    /// Returns lines for the calls without a result, with the reason.
    pub(crate) fn unfinished(&mut self, why: &str) -> Vec<SafeText> {
        let (dim, margin) = (Style::new().dimmed(), self.margin);
        let line = |call: TrackedToolCall| {
            SafeText::styled(dim, &format!("{:1$}· {2} ({why})", "", call.indent, call.description))
        };
        let more = self.open.len().saturating_sub(UNFINISHED_MAX) + self.dropped_calls;
        let open = self.open.drain(..).take(UNFINISHED_MAX);
        let mut lines: Vec<SafeText> = open.map(|(_, call)| line(call)).collect();
        if more > 0 {
            lines.push(SafeText::styled(
                dim,
                &format!("{:margin$}· and {more} more calls ({why})", ""),
            ));
        }
        lines
    }

    fn finish_call(
        &mut self,
        row: &JobRow,
        result: &ToolResultRow<'_>,
        indent: usize,
        width: usize,
    ) -> Option<SafeText> {
        // The order of the others stays, so that the status line names the newest call.
        let call = self.open.shift_remove(row.call_id().unwrap_or_default());
        let tool = result.tool.unwrap_or_default();
        // A separate row reports the success of these tools.
        if !result.failed && SEPARATELY_REPORTED_TOOLS.contains(&tool) {
            return None;
        }
        let what = match &call {
            Some(call) => call.description.clone(),
            None => one_line(tool),
        };
        let took = result.duration_ms.or_else(|| {
            let took = row.written_at()?.duration_since(call.as_ref()?.at?).as_millis();
            // The clock may have been set back between the two rows.
            i64::try_from(took).ok().filter(|took| *took >= 0)
        });
        let took =
            took.map(|took| format!("  {}", job_row::format_duration(took))).unwrap_or_default();
        let dim = Style::new().dimmed();
        if !result.failed {
            let sign =
                SafeText::styled(AnsiColor::Green.on_default(), &format!("{:indent$}✓ ", ""));
            return Some(sign.append(what).append(SafeText::styled(dim, &took)));
        }
        let sign = SafeText::styled(AnsiColor::Red.on_default(), &format!("{:indent$}✗ ", ""));
        let why = one_line(row.text("error").unwrap_or_default());
        let why = truncate_chars(&why, width.saturating_sub(indent + 4));
        let line = sign.append(what).append(SafeText::styled(dim, &took));
        Some(match why.is_empty() {
            true => line,
            false => line
                .append("\n")
                .append(SafeText::styled(dim, &format!("{:1$}{why}", "", indent + 2))),
        })
    }

    /// Warns about unusable MCP servers, each once: every turn lists them again.
    fn failed_servers(&mut self, row: &JobRow) -> Option<SafeText> {
        let servers = row.texts("mcp_failed").map(str::to_owned);
        let new: Vec<String> =
            servers.filter(|name| self.failed_mcp_servers.insert(name.clone())).collect();
        let names = new.join(", ");
        let text = match new.len() {
            0 => return None,
            1 => format!("MCP server {names} failed; the agent works without its tools"),
            _ => format!("MCP servers {names} failed; the agent works without their tools"),
        };
        let text = format!("{:1$}warning: {2}", "", self.margin, one_line(&text));
        Some(SafeText::styled(AnsiColor::Yellow.on_default(), &text))
    }

    fn format_system_row(&mut self, row: &JobRow, subtype: &str) -> Option<String> {
        let content = content(row);
        match subtype {
            // The prompt of a sub-agent is the input of its call, which has a line.
            "user_input" if row.sub_agent_call().is_some() => None,
            // A restarted agent receives the same prompt again.
            "user_input" => match &self.prompt {
                // The user has typed the first prompt, and needs no echo of it.
                Some(prompt) if *prompt != content => Some(format!("› {content}")),
                Some(_) => None,
                None => {
                    self.prompt = Some(content);
                    None
                }
            },
            // The result of a sub-agent's call is printed anyway; a background task has only this
            // row.
            "task_notification" if !self.open.contains_key(row.call_id().unwrap_or_default()) => {
                Some(content)
            }
            subtype if subtype.starts_with("task_") => None,
            "warning" => Some(format!("warning: {content}")),
            "command" => Some(format!("$ {content}")),
            // The question itself, or the failed call, is printed instead.
            "asked" | "answered" | "denied" | "permission_denied" => None,
            _ if content.is_empty() => None,
            _ => Some(content),
        }
    }
}

/// Returns the name, size and path of a sent file, and the agent's remark on it.
fn describe_sent_file(row: &JobRow) -> (String, String) {
    let content = content(row);
    let fields = (row.text("name"), row.number("bytes"), row.text("path"));
    let (Some(name), Some(bytes), Some(path)) = fields else { return (content, String::new()) };
    let caption = content.strip_prefix(&format!("{name} ({bytes} bytes) is in {path}: "));
    let file = format!("{name} ({}) → {path}", output::format_size(bytes));
    (file, caption.unwrap_or_default().to_owned())
}

/// Returns true if a row reports a request that was denied because there was no one to ask, not by
/// a rule: by the runner in an unattended run, or by Claude, which then gives no reason.
pub(crate) fn is_unattended_denial(row: &JobRow, attended: bool) -> bool {
    match row.kind() {
        JobRowKind::System { subtype: "denied" } => !attended,
        JobRowKind::System { subtype: "permission_denied" } => {
            row.text("decision_reason_type").is_none()
        }
        _ => false,
    }
}

fn content(row: &JobRow) -> String {
    row.content().map(block_text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn a_commands_complaints_are_told_line_by_line_and_what_is_run_once() {
        let row = |subtype: &str, text: &str| json!({"type": "system", "subtype": subtype, "content": text});
        check(
            &[row("command", "make test\nmake all"), row("stderr", "oh\nno")],
            &["  $ make test make all", "  oh\n  no"],
        );
    }

    #[track_caller]
    fn check(rows: &[Json], expected: &[&str]) {
        let mut tools = ToolCallTracker::new(2);
        let mut lines: Vec<SafeText> =
            rows.iter().filter_map(|row| tools.format_row(&JobRow::new(row.clone()), 60)).collect();
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
    fn a_call_without_an_id_has_a_line_of_its_own_in_its_place() {
        let row = json!({"type": "tool_use", "tool_name": "Bash", "input": "node scripts/x.js"});
        check(&[row], &["  · Bash node scripts/x.js"]);
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
        let row = |subtype: &str| json!({"type": "system", "subtype": subtype, "content": "x"});
        assert!(is_unattended_denial(&JobRow::new(row("denied")), false));
        assert!(
            !is_unattended_denial(&JobRow::new(row("denied")), true),
            "somebody was there, who had no time for it"
        );
        assert!(is_unattended_denial(&JobRow::new(row("permission_denied")), false));
        let mut by_rule = row("permission_denied");
        by_rule["decision_reason_type"] = "rule".into();
        assert!(!is_unattended_denial(&JobRow::new(by_rule), false));
        assert!(!is_unattended_denial(&JobRow::new(row("user_input")), false));
        assert!(!is_unattended_denial(
            &JobRow::new(json!({"type": "assistant", "subtype": "denied"})),
            false
        ));
    }

    fn sub_agent(id: &str, task: &str) -> [Json; 2] {
        [
            json!({"type": "tool_use", "tool_name": "Agent", "tool_use_id": id,
                "input": {"description": task}}),
            json!({"type": "system", "subtype": "task_started", "subagent_type": "x",
                "tool_use_id": id, "content": "sub-agent started"}),
        ]
    }

    #[test]
    fn a_sub_agent_is_told_when_it_starts_and_its_lines_stand_below() {
        let of = |sub: &str, mut row: Json| {
            row["parent_tool_use_id"] = sub.into();
            row
        };
        let message = |text: &str| json!({"type": "assistant", "content": text});
        let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "success": true, "duration_ms": 5});
        let [one, one_starts] = sub_agent("1", "Look");
        let [two, two_starts] = sub_agent("2", "Listen");
        check(
            &[
                one,
                one_starts,
                of("1", call("a", json!({"command": "ls"}))),
                of("1", result("a")),
                of("1", message("It is here.")),
                two,
                two_starts,
                of("2", message("Hush.")),
                // Back to the first: it is said whose line this is.
                of("1", message("Found.")),
                result("1"),
                result("2"),
            ],
            &[
                "  ▸ Agent Look",
                "    ✓ Bash ls  5ms",
                "    It is here.",
                "  ▸ Agent Listen",
                "    Hush.",
                "  ▸ Agent Look\n    Found.",
                "  ✓ Agent Look  5ms",
                "  ✓ Agent Listen  5ms",
            ],
        );
    }

    #[test]
    fn a_sub_agent_that_works_on_after_its_call_has_ended_keeps_its_heading() {
        let [call, starts] = sub_agent("1", "Look");
        check(
            &[
                call,
                starts,
                json!({"type": "tool_result", "tool_use_id": "1", "success": true, "duration_ms": 5}),
                json!({"type": "assistant", "content": "Still at it.", "parent_tool_use_id": "1"}),
            ],
            &["  ▸ Agent Look", "  ✓ Agent Look  5ms", "  ▸ Agent Look\n    Still at it."],
        );
    }

    #[test]
    fn an_mcp_server_that_failed_is_told_once() {
        let init = json!({"type": "system", "subtype": "init", "content": "turn started",
            "mcp_failed": ["web"]});
        let expected = "  warning: MCP server web failed; the agent works without its tools";
        check(&[init.clone(), init], &[expected]);
    }

    #[test]
    fn a_file_that_is_handed_over_is_one_line() {
        let call = |kind: &str| {
            json!({"type": kind, "tool_name": SEPARATELY_REPORTED_TOOLS[0], "tool_use_id": "1", "success": true,
                "input": {"file_path": "a.txt"}})
        };
        let row = |message: &str| {
            let content = format!("a.txt (2000 bytes) is in /files/7-a.txt{message}");
            json!({"type": "system", "subtype": "file_sent", "name": "a.txt", "bytes": 2000,
                "path": "/files/7-a.txt", "content": content})
        };
        let without = json!({"type": "system", "subtype": "file_sent", "content": "some file"});
        check(
            &[call("tool_use"), row(""), call("tool_result"), row(": as you asked"), without],
            &[
                "  file a.txt (2.00 kB) → /files/7-a.txt",
                "  file a.txt (2.00 kB) → /files/7-a.txt\n    as you asked",
                "  file some file",
            ],
        );
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
        let input = |text| json!({"type": "system", "subtype": "user_input", "content": text});
        // An agent that is started once more is asked the same again.
        check(&[input("first"), input("and then"), input("first")], &["  › and then"]);
    }

    #[test]
    fn long_and_hostile_text_becomes_one_harmless_line() {
        let long = format!("\u{1b}[2J{}", "x".repeat(100));
        check(
            &[
                call("1", json!({"command": long})),
                json!({"type": "tool_result", "tool_use_id": "1", "success": true, "duration_ms": 1}),
            ],
            &[&format!("  ✓ Bash \\u{{1b}}[2J{}…  1ms", "x".repeat(30))],
        );
    }
}
