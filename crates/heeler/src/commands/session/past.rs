//! What was said in a session, on a screen of any width: messages with their numbers, tools as one
//! line each.

use std::io;

use anstyle::{AnsiColor, Style};
use heeler_query::messages::{is_from_outside, is_pending};
use heeler_store::history::{Cut, History, HistoryMessage, Role, ToolCall};
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::failure::Outcome;
use crate::live::gist;
use crate::output::{self, Text, one_line, shortened};
use crate::wrap::{LongWord, fitted, screen_width, wrapped};

/// How far what is said stands from the number of its message.
const MARGIN: usize = 2;
/// How wide the line of a tool is where nobody looks at a screen.
const TOOL_WIDTH: usize = 160;
/// How many lines of one message are shown without `--full`.
const LINES_MAX: usize = 60;
/// How much text of one message is shown without `--full`.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// How much of a thought, or of what a failed tool gave, is shown.
const ASIDE_CHARS_MAX: usize = 200;

/// How much of each message is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Extent {
    /// As much as a person reads of it.
    Brief,
    /// All of it.
    Full,
}

/// Prints a page of messages.
pub(super) fn print(session: &str, past: &History, extent: Extent) -> Outcome {
    let (zone, width) = (TimeZone::system(), screen_width(io::stdout()));
    for message in &past.messages {
        for line in shown(message, extent, width, &zone) {
            output::line(line)?;
        }
    }
    notes(session, past).iter().try_for_each(|note| Ok(output::note(note)?))
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
fn shown(
    message: &HistoryMessage,
    extent: Extent,
    width: Option<usize>,
    zone: &TimeZone,
) -> Vec<Text> {
    let room = width.map(|width| width - MARGIN);
    let wrapped = |text: &str| wrapped(text, room, LongWord::Break);
    let is_full = extent == Extent::Full;
    let mut bytes_left = if is_full { usize::MAX } else { TEXT_BYTES_MAX };
    let mut bytes_cut = 0;
    let mut said = Vec::new();
    let mut tools = message.tools.iter();
    for block in message.rows.iter().flat_map(blocks) {
        match block {
            Block::Said(text) => {
                let kept = &text[..text.floor_char_boundary(bytes_left)];
                (bytes_left, bytes_cut) =
                    (bytes_left - kept.len(), bytes_cut + text.len() - kept.len());
                said.extend(wrapped(kept).into_iter().map(Text::from));
            }
            Block::Aside(text) => {
                let style = Style::new().dimmed();
                let text = shortened(&one_line(&text), ASIDE_CHARS_MAX);
                said.extend(wrapped(&text).iter().map(|line| Text::styled(style, line)));
            }
            Block::Tool => said.extend(tools.next().into_iter().flat_map(|tool| call(tool, room))),
        }
    }
    let lines_max = if is_full { usize::MAX } else { LINES_MAX };
    let left = said.split_off(said.len().min(lines_max));
    let left_out = left_out(message, &left, bytes_cut);
    said.extend(left_out.map(|text| Text::styled(Style::new().dimmed(), &text)));
    let margin = " ".repeat(MARGIN);
    let said = said.into_iter().map(|line| match line.is_empty() {
        true => line,
        false => Text::from(margin.as_str()).then(line),
    });
    std::iter::once(heading(message, zone)).chain(said).collect()
}

/// Says how much of a message is not shown, and how to see it.
fn left_out(message: &HistoryMessage, lines: &[Text], bytes_cut: usize) -> Option<String> {
    let rest = match (lines.len(), bytes_cut, message.left_out) {
        (0, 0, 0) => return None,
        (0, 0, rows) => return Some(format!("… {} not shown", output::counted(rows, "row"))),
        (lines, 0, _) => output::counted(lines as u64, "line"),
        (_, cut, _) => {
            let of_lines: usize = lines.iter().map(|line| line.plain().len()).sum();
            output::size((cut + of_lines) as u64)
        }
    };
    Some(format!("… {rest} more: --full -n 1 --before {}", message.number + 1))
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

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use heeler_model::record::OUTSIDE_KEY;
    use heeler_query::messages::MessageItem;
    use heeler_store::history::ToolResult;
    use serde_json::json;

    use super::*;
    use crate::wrap::wide;

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
        let lines = shown(message, Extent::Brief, width, &TimeZone::UTC);
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
    }

    #[test]
    fn what_was_said_outside_is_marked_and_has_a_number_only_once_it_is_taken_in() {
        let mut one = message("By hand.".into());
        one.rows[0][OUTSIDE_KEY] = "not taken in".into();
        one.cut = Cut::Unsafe("it is not taken in yet");
        check(
            &one,
            None,
            expect![[r#"
                - assistant 10:00:01 from outside, not taken in yet
                  By hand.
            "#]],
        );
        let told = MessageItem::of(&one);
        assert_eq!((told.number, told.taken_in), (None, false));
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
    fn of_a_long_message_the_beginning_is_shown_and_how_to_see_the_rest() {
        let plain = |message: &HistoryMessage, extent: Extent, width: Option<usize>| {
            let lines = shown(message, extent, width, &TimeZone::UTC);
            lines.iter().map(Text::plain).collect::<Vec<_>>()
        };
        let long = message("a\n".repeat(LINES_MAX + 2).into());
        let lines = plain(&long, Extent::Brief, None);
        assert_eq!(lines.len(), LINES_MAX + 2);
        assert_eq!(lines.last().unwrap(), "  … 2 lines more: --full -n 1 --before 43");
        assert_eq!(plain(&long, Extent::Full, None).len(), LINES_MAX + 3);
        // On one line, and where a character of several bytes is in the way.
        let text = format!("a{}", "é".repeat(1_500_000));
        let large = message(text.clone().into());
        let lines = plain(&large, Extent::Brief, None);
        assert_eq!(lines[1].trim_start().len(), TEXT_BYTES_MAX - 1);
        assert_eq!(lines[2], "  … 2.93 MB more: --full -n 1 --before 43");
        let lines = plain(&large, Extent::Brief, Some(40));
        assert_eq!(lines.len(), LINES_MAX + 2);
        assert_eq!(lines.last().unwrap(), "  … 3.00 MB more: --full -n 1 --before 43");
        assert_eq!(plain(&large, Extent::Full, None)[1].trim_start(), text);
        assert_eq!(plain(&large, Extent::Full, Some(40)).len(), 1_500_001 / 38 + 2);
    }
}
