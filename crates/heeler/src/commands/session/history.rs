//! Prints the messages of a session, wrapped to the screen: numbered, with one line per tool call.
//! Start at [`print()`].

use std::io;

use anstyle::{AnsiColor, Style};
use heeler_model::job_row::{
    ContentBlock, content_blocks, envelope_content, summarize_tool_input, value_text,
};
use heeler_query::messages::{is_external, is_pending};
use heeler_store::history::{ForkSafety, HistoryMessage, HistoryPage, HistoryRole, ToolCall};
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::failure::CommandResult;
use crate::output::{self, SafeText, one_line, truncate_chars};
use crate::terminal_markdown::TerminalMarkdown;
use crate::wrap::{LongWordPolicy, screen_width, truncate_with_ellipsis, wrap_text};

/// Indentation of a message's text below its heading.
const MARGIN: usize = 2;
/// Width of a tool call's line without a terminal.
const TOOL_WIDTH: usize = 160;
/// Lines of one message that are shown without `--full`.
const LINES_MAX: usize = 60;
/// Bytes of one message that are shown without `--full`.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Characters of a thought or of a failed tool's result that are shown.
const ASIDE_CHARS_MAX: usize = 200;

/// Amount of each message that is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum MessageExtent {
    /// Up to `LINES_MAX` lines and `TEXT_BYTES_MAX` bytes.
    Brief,
    Full,
}

/// Layout of messages.
pub(super) struct HistoryLayout {
    pub(super) extent: MessageExtent,
    /// Width of the screen; `None` for a file or a pipe.
    pub(super) width: Option<usize>,
    pub(super) zone: TimeZone,
    /// Layout of the agent's messages; `None` prints them as they are.
    pub(super) markdown: Option<TerminalMarkdown>,
}

impl HistoryLayout {
    /// Returns the layout for standard output.
    pub(super) fn new(extent: MessageExtent, markdown: Option<TerminalMarkdown>) -> HistoryLayout {
        HistoryLayout {
            extent,
            width: screen_width(io::stdout()),
            zone: TimeZone::system(),
            markdown,
        }
    }
}

pub(super) fn print(session: &str, past: &HistoryPage, layout: &HistoryLayout) -> CommandResult {
    for message in &past.messages {
        for line in message_lines(message, layout) {
            output::print_line(line)?;
        }
    }
    notes(session, past).iter().try_for_each(|note| Ok(output::print_note(note)?))
}

/// Returns notes on how to see more messages and on how to fork.
fn notes(session: &str, past: &HistoryPage) -> Vec<String> {
    // Pending messages come last and have no number yet.
    let pending = past.messages.iter().filter(|message| is_pending(message)).count();
    let taken = &past.messages[..past.messages.len() - pending];
    let (Some(first), Some(last)) = (taken.first(), taken.last()) else {
        return vec![format!("no messages; the session has {}", past.total)];
    };
    let mut notes = vec![format!(
        "messages {} to {} of {}",
        first.number,
        last.number,
        output::group_thousands(past.total)
    )];
    if first.number > 1 {
        notes[0] +=
            &format!("; older: heeler session show {session} --history --before {}", first.number);
    }
    let is_safe = |message: &&HistoryMessage| message.fork_safety == ForkSafety::Safe;
    // The example in the hint should work as it is, so it names a real fork point.
    if let Some(cut) = past.messages.iter().rev().find(is_safe) {
        let files = past.messages.iter().any(|message| message.snapshot.is_some());
        let files =
            if files { " (+ marks a snapshot: --workspace also forks the files)" } else { "" };
        notes.push(format!(
            "* marks possible fork points: heeler session fork {session} --at-message {}{files}",
            cut.number
        ));
    }
    if pending > 0 {
        let what = output::pluralize(pending as u64, "message");
        notes.push(format!(
            "{what} from outside Heeler: the session's next job asks what to do; --take-in imports \
             them"
        ));
    }
    notes
}

fn message_lines(message: &HistoryMessage, layout: &HistoryLayout) -> Vec<SafeText> {
    let room = layout.width.map(|width| width - MARGIN);
    let wrapped = |text: &str| wrap_text(text, room, LongWordPolicy::Break);
    let is_full = layout.extent == MessageExtent::Full;
    // People's prompts are shown as they were typed.
    let markdown = layout.markdown.filter(|_| message.role == HistoryRole::Assistant);
    let mut bytes_left = if is_full { usize::MAX } else { TEXT_BYTES_MAX };
    let mut bytes_cut = 0;
    let mut shown_lines = Vec::new();
    // The calls are in the order of their blocks, so they are matched by position.
    let mut tools = message.tools.iter();
    for block in message.rows.iter().flat_map(blocks) {
        match block {
            HistoryBlock::Text(text) => {
                // One line may have megabytes, so bytes are limited before wrapping.
                let kept = &text[..text.floor_char_boundary(bytes_left)];
                (bytes_left, bytes_cut) =
                    (bytes_left - kept.len(), bytes_cut + text.len() - kept.len());
                match markdown {
                    Some(markdown) => shown_lines.extend(markdown.lines(kept, MARGIN)),
                    None => shown_lines.extend(wrapped(kept).into_iter().map(SafeText::from)),
                }
            }
            HistoryBlock::Thinking(text) => {
                let style = Style::new().dimmed();
                let text = truncate_chars(&one_line(&text), ASIDE_CHARS_MAX);
                shown_lines.extend(wrapped(&text).iter().map(|line| SafeText::styled(style, line)));
            }
            HistoryBlock::Tool => {
                shown_lines
                    .extend(tools.next().into_iter().flat_map(|tool| tool_call_lines(tool, room)));
            }
        }
    }
    for error in &message.errors {
        let text = truncate_chars(&format!("error: {}", one_line(error)), ASIDE_CHARS_MAX);
        let style = AnsiColor::Red.on_default();
        shown_lines.extend(wrapped(&text).iter().map(|line| SafeText::styled(style, line)));
    }
    let lines_max = if is_full { usize::MAX } else { LINES_MAX };
    // Lines are counted after wrapping, as the reader sees them.
    let left = shown_lines.split_off(shown_lines.len().min(lines_max));
    let left_out = truncation_note(message, &left, bytes_cut);
    shown_lines.extend(left_out.map(|text| SafeText::styled(Style::new().dimmed(), &text)));
    let margin = " ".repeat(MARGIN);
    let shown_lines = shown_lines.into_iter().map(|line| match line.is_empty() {
        true => line,
        // An empty line needs no margin: trailing blanks would be copied with the text.
        false => SafeText::from(margin.as_str()).append(line),
    });
    std::iter::once(heading(message, &layout.zone)).chain(shown_lines).collect()
}

/// Returns a note on the part of a message that is not shown, and the options that show it.
fn truncation_note(
    message: &HistoryMessage,
    lines: &[SafeText],
    bytes_cut: usize,
) -> Option<String> {
    let rest = match (lines.len(), bytes_cut, message.left_out) {
        (0, 0, 0) => return None,
        (0, 0, rows) => return Some(format!("… {} not shown", output::pluralize(rows, "row"))),
        (lines, 0, _) => output::pluralize(lines as u64, "line"),
        (_, cut, _) => {
            let of_lines: usize = lines.iter().map(|line| line.plain().len()).sum();
            output::format_size((cut + of_lines) as u64)
        }
    };
    Some(format!("… {rest} more: --full -n 1 --before {}", message.number + 1))
}

fn heading(message: &HistoryMessage, zone: &TimeZone) -> SafeText {
    let (who, style) = match message.role {
        HistoryRole::User => ("you", AnsiColor::Blue.on_default()),
        HistoryRole::Assistant => ("agent", AnsiColor::Green.on_default()),
    };
    let fork_symbol = match (message.fork_safety, &message.snapshot) {
        (ForkSafety::Safe, Some(_)) => " *+",
        (ForkSafety::Safe, None) => " *",
        (ForkSafety::Unsafe(_), _) => "",
    };
    let at = message.at.map(|at| at.to_zoned(zone.clone()).strftime(" %H:%M:%S").to_string());
    // Only messages of Heeler's transcript have a number.
    let number = if is_pending(message) { "-".to_owned() } else { message.number.to_string() };
    let number = SafeText::styled(Style::new().bold(), &number);
    let line =
        number.append(" ").append(SafeText::styled(style, who)).append(at.unwrap_or_default());
    let line = line.append(SafeText::styled(Style::new().bold(), fork_symbol));
    let yellow = |text| SafeText::styled(AnsiColor::Yellow.on_default(), text);
    let line = match (is_pending(message), is_external(message)) {
        (true, _) => return line.append(yellow(" from outside Heeler, not imported yet")),
        (false, true) => line.append(yellow(" from outside Heeler")),
        (false, false) => line,
    };
    match message.in_context {
        true => line,
        false => line.append(yellow(" not in context")),
    }
}

/// One part of a message.
enum HistoryBlock {
    Text(String),
    /// The agent's thoughts, which are not part of its answer.
    Thinking(String),
    Tool,
}

fn blocks(row: &Value) -> Vec<HistoryBlock> {
    let block = |block: ContentBlock<'_>| match block {
        ContentBlock::Text(text) => HistoryBlock::Text(text.to_owned()),
        ContentBlock::Thinking(text) => HistoryBlock::Thinking(format!("(thinking) {text}")),
        ContentBlock::ToolCall { .. } => HistoryBlock::Tool,
        // The result is shown with its call, so here it is only mentioned.
        ContentBlock::ToolResult { .. } => HistoryBlock::Thinking("[tool_result]".to_owned()),
        ContentBlock::Other(kind) => HistoryBlock::Thinking(format!("[{kind}]")),
        ContentBlock::Plain(value) => HistoryBlock::Text(value_text(value)),
    };
    content_blocks(envelope_content(row)).into_iter().map(block).collect()
}

/// Returns the line of a tool call, and its error, if any.
fn tool_call_lines(tool: &ToolCall, room: Option<usize>) -> Vec<SafeText> {
    let room = room.unwrap_or(TOOL_WIDTH);
    let (sign, style) = match &tool.result {
        None => ("·", AnsiColor::BrightBlack.on_default()),
        Some(result) if result.is_error => ("✗", AnsiColor::Red.on_default()),
        Some(_) => ("✓", AnsiColor::Cyan.on_default()),
    };
    let words = one_line(&format!("{} {}", tool.name, summarize_tool_input(&tool.input)));
    let line = truncate_with_ellipsis(&words, room.saturating_sub(2));
    let mut lines = vec![SafeText::styled(style, sign).append(" ").append(line)];
    // Only errors: the output of a successful call is rarely of interest, and often long.
    if let Some(result) = tool.result.as_ref().filter(|result| result.is_error) {
        let text = match &result.content {
            Value::String(text) => text.clone(),
            Value::Array(items) => {
                items.iter().filter_map(|item| item["text"].as_str()).collect::<Vec<_>>().join(" ")
            }
            other => other.to_string(),
        };
        let text = truncate_chars(&one_line(&text), ASIDE_CHARS_MAX);
        lines.push(
            SafeText::from("  ").append(truncate_with_ellipsis(&text, room.saturating_sub(2))),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use heeler_model::recorder::EXTERNAL_KEY;
    use heeler_query::messages::MessageDetails;
    use heeler_store::history::ToolResult;
    use serde_json::json;

    use super::*;
    use crate::wrap::text_width;

    fn message(content: Value) -> HistoryMessage {
        HistoryMessage {
            number: 42,
            role: HistoryRole::Assistant,
            uuid: None,
            at: Some("2026-11-15T10:00:01Z".parse().unwrap()),
            rows: vec![json!({"message": {"content": content}})],
            tools: Vec::new(),
            errors: Vec::new(),
            left_out: 0,
            fork_safety: ForkSafety::Safe,
            in_context: true,
            snapshot: None,
        }
    }

    fn layout(extent: MessageExtent, width: Option<usize>) -> HistoryLayout {
        HistoryLayout { extent, width, zone: TimeZone::UTC, markdown: None }
    }

    #[track_caller]
    fn check(message: &HistoryMessage, width: Option<usize>, expected: Expect) {
        let lines = message_lines(message, &layout(MessageExtent::Brief, width));
        let lines: Vec<String> = lines.iter().map(SafeText::plain).collect();
        if let Some(width) = width {
            assert!(lines.iter().all(|line| text_width(line) <= width), "{lines:?}");
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
                42 agent 10:00:01 *
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
        (one.role, one.in_context, one.fork_safety) =
            (HistoryRole::User, false, ForkSafety::Unsafe("no"));
        check(
            &one,
            Some(40),
            expect![[r#"
                42 you 10:00:01 not in context
                  Go.\u{202e}
            "#]],
        );
    }

    #[test]
    fn what_was_said_outside_is_marked_and_has_a_number_only_once_it_is_taken_in() {
        let mut one = message("By hand.".into());
        one.rows[0][EXTERNAL_KEY] = "not taken in".into();
        one.fork_safety = ForkSafety::Unsafe("it is not taken in yet");
        check(
            &one,
            None,
            expect![[r#"
                - agent 10:00:01 from outside Heeler, not imported yet
                  By hand.
            "#]],
        );
        let details = MessageDetails::of(&one);
        assert_eq!((details.number, details.taken_in), (None, false));
        one.rows[0][EXTERNAL_KEY] = true.into();
        check(
            &one,
            None,
            expect![[r#"
                42 agent 10:00:01 from outside Heeler
                  By hand.
            "#]],
        );
    }

    #[test]
    fn of_a_long_message_the_beginning_is_shown_and_how_to_see_the_rest() {
        let plain = |message: &HistoryMessage, extent: MessageExtent, width: Option<usize>| {
            let lines = message_lines(message, &layout(extent, width));
            lines.iter().map(SafeText::plain).collect::<Vec<_>>()
        };
        let long = message("a\n".repeat(LINES_MAX + 2).into());
        let lines = plain(&long, MessageExtent::Brief, None);
        assert_eq!(lines.len(), LINES_MAX + 2);
        assert_eq!(lines.last().unwrap(), "  … 2 lines more: --full -n 1 --before 43");
        assert_eq!(plain(&long, MessageExtent::Full, None).len(), LINES_MAX + 3);
        // On one line, and where a character of several bytes is in the way.
        let text = format!("a{}", "é".repeat(1_500_000));
        let large = message(text.clone().into());
        let lines = plain(&large, MessageExtent::Brief, None);
        assert_eq!(lines[1].trim_start().len(), TEXT_BYTES_MAX - 1);
        assert_eq!(lines[2], "  … 2.93 MB more: --full -n 1 --before 43");
        let lines = plain(&large, MessageExtent::Brief, Some(40));
        assert_eq!(lines.len(), LINES_MAX + 2);
        assert_eq!(lines.last().unwrap(), "  … 3.00 MB more: --full -n 1 --before 43");
        assert_eq!(plain(&large, MessageExtent::Full, None)[1].trim_start(), text);
        assert_eq!(plain(&large, MessageExtent::Full, Some(40)).len(), 1_500_001 / 38 + 2);
    }
}
