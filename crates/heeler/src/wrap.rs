//! Wraps text to a screen of any width, between words. Start at [`wrap_text`].
//!
//! Nothing here prints. Text to be copied (commands, paths, IDs) is left for the terminal to wrap,
//! which joins it again when it is copied.

use std::os::fd::AsFd;

use unicode_width::UnicodeWidthChar as _;

use crate::output::sanitize;

/// Narrowest screen that text is wrapped for.
const WIDTH_MIN: usize = 20;

/// Handling of a word that is longer than a line.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LongWordPolicy {
    /// Break it at the end of the line.
    Break,
    /// Keep it whole, on a line of its own.
    Keep,
}

/// Returns the width of the screen; `None` for a file or a pipe.
pub(crate) fn screen_width(out: impl AsFd) -> Option<usize> {
    // Only a terminal has a window size, so this also tells files and pipes apart.
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0).map(|it| it.max(WIDTH_MIN))
}

/// Returns the width of a text in columns.
pub(crate) fn text_width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Returns the number of bytes of the text that fit into this width.
fn fitting_bytes(text: &str, columns: usize) -> usize {
    let mut used = 0;
    let too_far = |(_, c): &(usize, char)| {
        used += c.width().unwrap_or(0);
        used > columns
    };
    text.char_indices().find(too_far).map_or(text.len(), |(at, _)| at)
}

/// Cuts a line to this width, with an ellipsis if it was longer.
pub(crate) fn truncate_with_ellipsis(text: &str, columns: usize) -> String {
    match fitting_bytes(text, columns) < text.len() {
        true => format!("{}…", &text[..fitting_bytes(text, columns.saturating_sub(1))]),
        false => text.to_owned(),
    }
}

/// Breaks text into lines of at most this width, between words where possible.
pub(crate) fn wrap_text(text: &str, columns: Option<usize>, long: LongWordPolicy) -> Vec<String> {
    // The width of a tab depends on its column, which is unknown here.
    let text = sanitize(text).replace('\t', "    ");
    let mut lines = Vec::new();
    for line in text.trim_end().lines() {
        let mut rest = line.trim_end();
        while let Some(room) =
            columns.map(|it| fitting_bytes(rest, it)).filter(|&it| it < rest.len())
        {
            let (kept, left) = rest.split_at(break_at(rest, room, long));
            lines.push(kept.trim_end().to_owned());
            // The space at which a line was broken would indent the next one.
            rest = left.trim_start();
        }
        // Empty lines separate paragraphs and are kept.
        if !rest.is_empty() || line.trim().is_empty() {
            lines.push(rest.to_owned());
        }
    }
    lines
}

/// Returns the position at which to break a line, of which `room` bytes fit.
fn break_at(line: &str, room: usize, long: LongWordPolicy) -> usize {
    // A space directly after the last column is a good place too.
    let next = line[room..].starts_with(' ');
    let space = if next { Some(room) } else { line[..room].rfind(' ') };
    // A break within the indentation would give an empty line, and no progress.
    match space.filter(|&at| !line[..at].trim().is_empty()) {
        Some(space) => space,
        None if long == LongWordPolicy::Keep => {
            let word = line.len() - line.trim_start().len();
            line[word..].find(' ').map_or(line.len(), |at| word + at)
        }
        // At least one character per line, even if it is wider than the line.
        None => room.max(line.chars().next().map_or(0, char::len_utf8)),
    }
}

/// Column at which a value starts next to its name.
pub(crate) const VALUE_INDENT: usize = 14;
/// Indentation of a value below its name.
const BELOW_INDENT: usize = 2;

/// Returns the lines of a value next to its name, or below it if there is no room. The first line
/// follows the name, which is not included.
pub(crate) fn wrap_beside_name(value: &str, columns: Option<usize>) -> Vec<String> {
    let longest = value.split_whitespace().map(text_width).max().unwrap_or(0);
    let indented = |lines: Vec<String>, by: usize| {
        lines.into_iter().map(move |line| format!("{:by$}{line}", ""))
    };
    match columns {
        // An ID or path that does not fit beside its name must stay whole, so it goes below.
        Some(columns) if longest > columns.saturating_sub(VALUE_INDENT) => {
            let lines = wrap_text(value, Some(columns - BELOW_INDENT), LongWordPolicy::Keep);
            std::iter::once(String::new()).chain(indented(lines, BELOW_INDENT)).collect()
        }
        _ => {
            let room = columns.map(|columns| columns - VALUE_INDENT);
            let mut lines = wrap_text(value, room, LongWordPolicy::Keep).into_iter();
            let first = lines.next().unwrap_or_default();
            std::iter::once(first).chain(indented(lines.collect(), VALUE_INDENT)).collect()
        }
    }
}

/// Returns the lines of a note. A command in it that does not fit gets a line of its own,
/// unwrapped.
pub(crate) fn wrap_remark(text: &str, columns: Option<usize>) -> Vec<String> {
    let is_long = columns.is_some_and(|columns| text_width(text) > columns);
    // A command that is broken by a newline could not be copied.
    match text.find(" heeler ").filter(|_| is_long) {
        Some(at) => {
            let mut lines = wrap_text(&text[..at], columns, LongWordPolicy::Keep);
            lines.push(text[at + 1..].to_owned());
            lines
        }
        None => wrap_text(text, columns, LongWordPolicy::Keep),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_wrapped_where_no_screen_is() {
        let text = "word ".repeat(100);
        assert_eq!(wrap_text(&text, None, LongWordPolicy::Break).len(), 1);
        assert_eq!(wrap_beside_name(&text, None).len(), 1);
        assert_eq!(wrap_remark(&text, None).len(), 1);
    }

    #[test]
    fn a_word_that_is_too_long_is_broken_or_has_a_line_of_its_own() {
        assert_eq!(wrap_text(&"x".repeat(100), Some(30), LongWordPolicy::Break).len(), 4);
        assert_eq!(wrap_text("日本", Some(1), LongWordPolicy::Break), ["日", "本"]);
        let lines = wrap_text("see /a/long/path/of/ours there", Some(10), LongWordPolicy::Keep);
        assert_eq!(lines, ["see", "/a/long/path/of/ours", "there"]);
        assert_eq!(
            wrap_text("  日本日本日本 x", Some(6), LongWordPolicy::Keep),
            ["  日本日本日本", "x"]
        );
    }

    #[test]
    fn a_value_stands_beside_its_name_or_below_it() {
        assert_eq!(wrap_beside_name("two words", Some(40)), ["two words"]);
        let long = "it takes its history over when it begins";
        let lines = wrap_beside_name(long, Some(40));
        assert_eq!(lines, ["it takes its history over", "              when it begins"]);
        let id = "c2bcf146-ae3f-41f8-9f9e-f5477594b66c";
        assert_eq!(wrap_beside_name(id, Some(40)), [String::new(), format!("  {id}")]);
        assert_eq!(wrap_beside_name("a\nb", None), ["a", "              b"]);
        assert_eq!(wrap_beside_name("", Some(40)), [""]);
    }

    #[test]
    fn a_command_in_a_remark_is_left_whole() {
        let text = "messages 1 to 2 of 40; older: heeler session show sess-1a2b3c4d --before 1";
        assert_eq!(wrap_remark(text, Some(100)), [text]);
        let lines = wrap_remark(text, Some(24));
        let command = "heeler session show sess-1a2b3c4d --before 1";
        assert_eq!(lines, ["messages 1 to 2 of 40;", "older:", command]);
        assert_eq!(wrap_remark("no command at all", Some(20)), ["no command at all"]);
    }
}
