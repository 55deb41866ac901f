//! What was said in a session, on a screen of any width: messages with their numbers, tools as one
//! line each.

use std::io;

use anstyle::{AnsiColor, Style};
use heeler_model::iso_millis;
use heeler_model::record::OUTSIDE_KEY;
use heeler_store::history::{Cut, History, HistoryMessage, Role, ToolCall};
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthChar as _;

use crate::failure::Outcome;
use crate::live::gist;
use crate::output::{self, Text, one_line, shortened};

/// What a row says of itself that no job has taken in yet.
pub(super) const NOT_TAKEN_IN: &str = "not taken in";

/// How far what is said stands from the number of its message.
const MARGIN: usize = 2;
/// The narrowest screen that text is wrapped for.
const WIDTH_MIN: usize = 20;
/// How wide the line of a tool is where nobody looks at a screen.
const TOOL_WIDTH: usize = 160;
/// How many lines of one message are shown; `--json` has all of it.
const LINES_MAX: usize = 60;
/// How much of a thought, or of what a failed tool gave, is shown.
const ASIDE_CHARS_MAX: usize = 200;

/// Prints a page of messages.
pub(super) fn print(session: &str, past: &History, as_json: bool) -> Outcome {
    if as_json {
        return Ok(output::json(&super::show::page_json(session, past))?);
    }
    let zone = TimeZone::system();
    let width = screen_width();
    for message in &past.messages {
        for line in shown(message, width, &zone) {
            output::line(line)?;
        }
    }
    notes(session, past).iter().try_for_each(|note| Ok(output::note(note)?))
}

/// Returns how wide the screen is; nothing is wrapped for a file or another program.
fn screen_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0).map(|it| it.max(WIDTH_MIN))
}

/// Says how to see more, and what to do with it.
fn notes(session: &str, past: &History) -> Vec<String> {
    let pending = past.messages.iter().filter(|message| is_pending(message)).count();
    let taken = &past.messages[..past.messages.len() - pending];
    let (Some(first), Some(last)) = (taken.first(), taken.last()) else {
        return vec![format!("no messages; the session has {}", past.total)];
    };
    let mut notes = vec![format!(
        "messages {} to {} of {}",
        first.number,
        last.number,
        output::grouped(past.total)
    )];
    if first.number > 1 {
        notes[0] +=
            &format!("; older: heeler session show {session} --history --before {}", first.number);
    }
    let is_safe = |message: &&HistoryMessage| message.cut == Cut::Safe;
    if let Some(cut) = past.messages.iter().rev().find(is_safe) {
        let files = past.messages.iter().any(|message| message.snapshot.is_some());
        let files = if files { " (--workspace where there is a +: with its files)" } else { "" };
        notes.push(format!(
            "behind a * it can be forked: heeler session fork {session} --at-message {}{files}",
            cut.number
        ));
    }
    if pending > 0 {
        let what = output::counted(pending as u64, "message");
        notes.push(format!(
            "{what} from outside: the session's next job asks what to do; --take-in makes them \
             part of it"
        ));
    }
    notes
}

/// Returns a message's lines.
fn shown(message: &HistoryMessage, width: Option<usize>, zone: &TimeZone) -> Vec<Text> {
    let room = width.map(|width| width - MARGIN);
    let mut said = Vec::new();
    let mut tools = message.tools.iter();
    for block in message.rows.iter().flat_map(blocks) {
        match block {
            Block::Said(text) => said.extend(wrapped(&text, room).into_iter().map(Text::from)),
            Block::Aside(text) => {
                let style = Style::new().dimmed();
                let text = shortened(&one_line(&text), ASIDE_CHARS_MAX);
                said.extend(wrapped(&text, room).iter().map(|line| Text::styled(style, line)));
            }
            Block::Tool => said.extend(tools.next().into_iter().flat_map(|tool| call(tool, room))),
        }
    }
    let all = said.len();
    said.truncate(LINES_MAX);
    let left_out = match (all - said.len(), message.left_out) {
        (0, 0) => None,
        (0, rows) => Some(format!("… {} not shown", output::counted(rows, "row"))),
        (lines, _) => Some(format!("… {} more: --json", output::counted(lines as u64, "line"))),
    };
    said.extend(left_out.map(|text| Text::styled(Style::new().dimmed(), &text)));
    let margin = " ".repeat(MARGIN);
    let said = said.into_iter().map(|line| match line.is_empty() {
        true => line,
        false => Text::from(margin.as_str()).then(line),
    });
    std::iter::once(heading(message, zone)).chain(said).collect()
}

fn heading(message: &HistoryMessage, zone: &TimeZone) -> Text {
    let (who, style) = match message.role {
        Role::User => ("you", AnsiColor::Blue.on_default()),
        Role::Assistant => ("assistant", AnsiColor::Green.on_default()),
    };
    let mark = match (message.cut, &message.snapshot) {
        (Cut::Safe, Some(_)) => " *+",
        (Cut::Safe, None) => " *",
        (Cut::Unsafe(_), _) => "",
    };
    let at = message.at.map(|at| at.to_zoned(zone.clone()).strftime(" %H:%M:%S").to_string());
    // Only what is in our log has a number.
    let number = if is_pending(message) { "-".to_owned() } else { message.number.to_string() };
    let number = Text::styled(Style::new().bold(), &number);
    let line = number.then(" ").then(Text::styled(style, who)).then(at.unwrap_or_default());
    let line = line.then(Text::styled(Style::new().bold(), mark));
    let yellow = |text| Text::styled(AnsiColor::Yellow.on_default(), text);
    let line = match (is_pending(message), is_from_outside(message)) {
        (true, _) => return line.then(yellow(" from outside, not taken in yet")),
        (false, true) => line.then(yellow(" from outside")),
        (false, false) => line,
    };
    match message.in_context {
        true => line,
        false => line.then(yellow(" not in context")),
    }
}

/// Says whether somebody said it who went on with the session by themselves.
fn is_from_outside(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[OUTSIDE_KEY] == Value::Bool(true))
}

/// Says whether it was said outside and is in the agent's own file only.
fn is_pending(message: &HistoryMessage) -> bool {
    message.rows.first().is_some_and(|row| row[OUTSIDE_KEY] == NOT_TAKEN_IN)
}

/// A part of what was said.
enum Block {
    Said(String),
    /// Not said to anybody.
    Aside(String),
    Tool,
}

fn blocks(row: &Value) -> Vec<Block> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let block = |block: &Value| match block["type"].as_str() {
        Some("text") => Block::Said(text(&block["text"])),
        Some("thinking") => Block::Aside(format!("(thinking) {}", text(&block["thinking"]))),
        Some("tool_use") => Block::Tool,
        Some(other) => Block::Aside(format!("[{other}]")),
        None => Block::Said(block.as_str().map_or_else(|| block.to_string(), str::to_owned)),
    };
    match &row["message"]["content"] {
        Value::Array(items) => items.iter().map(block).collect(),
        content => vec![Block::Said(text(content))],
    }
}

/// Returns the line of a tool call, and what went wrong.
fn call(tool: &ToolCall, room: Option<usize>) -> Vec<Text> {
    let room = room.unwrap_or(TOOL_WIDTH);
    let (sign, style) = match &tool.result {
        None => ("·", AnsiColor::BrightBlack.on_default()),
        Some(result) if result.is_error => ("✗", AnsiColor::Red.on_default()),
        Some(_) => ("✓", AnsiColor::Cyan.on_default()),
    };
    let words = one_line(&format!("{} {}", tool.name, gist(&tool.input)));
    let line = fitted(&words, room.saturating_sub(2));
    let mut lines = vec![Text::styled(style, sign).then(" ").then(line)];
    if let Some(result) = tool.result.as_ref().filter(|result| result.is_error) {
        let text = match &result.content {
            Value::String(text) => text.clone(),
            Value::Array(items) => {
                items.iter().filter_map(|item| item["text"].as_str()).collect::<Vec<_>>().join(" ")
            }
            other => other.to_string(),
        };
        let text = shortened(&one_line(&text), ASIDE_CHARS_MAX);
        lines.push(Text::from("  ").then(fitted(&text, room.saturating_sub(2))));
    }
    lines
}

/// Cuts a line to so many columns, with an ellipsis where something was cut.
fn fitted(text: &str, columns: usize) -> String {
    match wide(text) > columns {
        true => format!("{}…", &text[..fitting(text, columns.saturating_sub(1))]),
        false => text.to_owned(),
    }
}

fn wide(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Returns how many bytes of the text fit into so many columns.
fn fitting(text: &str, columns: usize) -> usize {
    let mut used = 0;
    let too_far = |(_, c): &(usize, char)| {
        used += c.width().unwrap_or(0);
        used > columns
    };
    text.char_indices().find(too_far).map_or(text.len(), |(at, _)| at)
}

/// Breaks text into lines of at most so many columns, between words where that is possible.
fn wrapped(text: &str, columns: Option<usize>) -> Vec<String> {
    let text = output::harmless(text).replace('\t', "    ");
    let mut lines = Vec::new();
    for line in text.trim_end().lines() {
        let mut rest = line.trim_end();
        while let Some(columns) = columns.filter(|&columns| wide(rest) > columns) {
            let room = fitting(rest, columns).max(rest.chars().next().map_or(0, char::len_utf8));
            // A space just behind the last column is a good place too.
            let next = rest[room..].starts_with(' ');
            let space = if next { Some(room) } else { rest[..room].rfind(' ') };
            let space = space.filter(|&at| !rest[..at].trim().is_empty());
            let (kept, left) = rest.split_at(space.unwrap_or(room));
            lines.push(kept.trim_end().to_owned());
            rest = left.trim_start();
        }
        if !rest.is_empty() || line.trim().is_empty() {
            lines.push(rest.to_owned());
        }
    }
    lines
}

/// Returns a message as JSON.
pub(super) fn to_json(message: &HistoryMessage) -> Value {
    let content: Vec<Value> = message
        .rows
        .iter()
        .flat_map(|row| match &row["message"]["content"] {
            Value::Array(blocks) => blocks.clone(),
            text => vec![json!({ "type": "text", "text": text })],
        })
        .collect();
    let why = match message.cut {
        Cut::Safe => None,
        Cut::Unsafe(why) => Some(why),
    };
    json!({
        "number": (!is_pending(message)).then_some(message.number),
        "role": message.role,
        "uuid": message.uuid,
        "timestamp": message.at.map(iso_millis),
        "content": content,
        "tools": message.tools,
        "safeCut": why.is_none(),
        "whyUnsafe": why,
        "inContext": message.in_context,
        "fromOutside": is_from_outside(message) || is_pending(message),
        "takenIn": !is_pending(message),
        "snapshot": message.snapshot,
        "rowsLeftOut": message.left_out,
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use heeler_store::history::ToolResult;

    use super::*;

    fn message(content: Value) -> HistoryMessage {
        HistoryMessage {
            number: 42,
            role: Role::Assistant,
            uuid: None,
            at: Some("2026-11-15T10:00:01Z".parse().unwrap()),
            rows: vec![json!({"message": {"content": content}})],
            tools: Vec::new(),
            left_out: 0,
            cut: Cut::Safe,
            in_context: true,
            snapshot: None,
        }
    }

    #[track_caller]
    fn check(message: &HistoryMessage, width: Option<usize>, expected: Expect) {
        let lines = shown(message, width, &TimeZone::UTC);
        let lines: Vec<String> = lines.iter().map(Text::plain).collect();
        if let Some(width) = width {
            assert!(lines.iter().all(|line| wide(line) <= width), "{lines:?}");
        }
        expected.assert_eq(&(lines.join("\n") + "\n"));
    }

    #[test]
    fn text_is_wrapped_between_words_and_tools_take_a_line_each() {
        let call = |name: &str, input: Value, result: Option<(&str, bool)>| ToolCall {
            id: None,
            name: name.to_owned(),
            input,
            result: result
                .map(|(content, is_error)| ToolResult { content: content.into(), is_error }),
        };
        let mut message = message(json!([
            {"type": "thinking", "thinking": "Where is\nit?"},
            {"type": "text", "text": "I'll look for it in the folder of tests first.\n\n  日本語日本語日本語日本語日本語日本語日本語"},
            {"type": "tool_use"}, {"type": "tool_use"}, {"type": "tool_use"}, {"type": "image"},
        ]));
        message.tools = vec![
            call(
                "Bash",
                json!({"command": "cargo nextest run -p heeler-store"}),
                Some(("ok", false)),
            ),
            call(
                "Edit",
                json!({"file_path": "a"}),
                Some(("no such\nfile or directory, as it seems", true)),
            ),
            call("Read", Value::Null, None),
        ];
        check(
            &message,
            Some(40),
            expect![[r#"
                42 assistant 10:00:01 *
                  (thinking) Where is it?
                  I'll look for it in the folder of
                  tests first.

                    日本語日本語日本語日本語日本語日本語
                  日本語
                  ✓ Bash cargo nextest run -p heeler-st…
                  ✗ Edit a
                    no such file or directory, as it se…
                  · Read
                  [image]
            "#]],
        );
    }

    #[test]
    fn what_is_not_remembered_and_what_is_left_out_is_said() {
        let mut one = message("Go.\u{1b}[31m\u{202e}".into());
        (one.role, one.in_context, one.cut) = (Role::User, false, Cut::Unsafe("no"));
        check(
            &one,
            Some(40),
            expect![[r#"
                42 you 10:00:01 not in context
                  Go.
            "#]],
        );
        let long = message("a\n".repeat(LINES_MAX + 2).into());
        let lines = shown(&long, None, &TimeZone::UTC);
        assert_eq!(lines.len(), LINES_MAX + 2);
        assert_eq!(lines.last().unwrap().plain(), "  … 2 lines more: --json");
    }

    #[test]
    fn what_was_said_outside_is_marked_and_has_a_number_only_once_it_is_taken_in() {
        let mut one = message("By hand.".into());
        one.rows[0][OUTSIDE_KEY] = NOT_TAKEN_IN.into();
        one.cut = Cut::Unsafe("it is not taken in yet");
        check(
            &one,
            None,
            expect![[r#"
                - assistant 10:00:01 from outside, not taken in yet
                  By hand.
            "#]],
        );
        let json = to_json(&one);
        assert_eq!((&json["number"], &json["takenIn"]), (&Value::Null, &false.into()));
        one.rows[0][OUTSIDE_KEY] = true.into();
        check(
            &one,
            None,
            expect![[r#"
                42 assistant 10:00:01 from outside
                  By hand.
            "#]],
        );
    }

    #[test]
    fn nothing_is_wrapped_where_no_screen_is() {
        let text = "word ".repeat(100);
        assert_eq!(wrapped(&text, None).len(), 1);
        assert_eq!(wrapped(&"x".repeat(100), Some(30)).len(), 4);
        assert_eq!(wrapped("日本", Some(1)), ["日", "本"]);
    }
}
