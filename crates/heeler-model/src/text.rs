//! Text for people: error chains, and untrusted text with visible control characters.

use std::error::Error;

use heeler_config::is_terminal_control;

/// Formats an error with its causes. A cause that the text already contains is not repeated.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many errors repeat their cause in their own text.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Returns text that cannot control a terminal: the characters of [`is_terminal_control`] are
/// written as numbers. Only colours are removed, because they hold no text. Agents print untrusted
/// text.
///
/// Text that a person approves or compares is shown by [`heeler_config::reveal_hidden`] instead.
pub fn sanitize(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\u{1b}' => colour_length(rest),
            // Before a newline, a carriage return has no effect.
            '\r' if rest.starts_with("\r\n") => c.len_utf8(),
            _ => 0,
        };
        match length {
            0 if is_terminal_control(c) => shown.extend(c.escape_unicode()),
            0 => shown.push(c),
            _ => {}
        }
        rest = &rest[length.max(c.len_utf8())..];
    }
    shown
}

/// Returns the length of the sequence at the start of a text if it only sets colours, else 0.
fn colour_length(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("\u{1b}[") else { return 0 };
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == ';' || c == ':'));
    end.filter(|end| rest[*end..].starts_with('m'))
        .map_or(0, |end| text.len() - rest.len() + end + 1)
}

/// Sanitizes the text and joins it to one line.
pub fn one_line(text: &str) -> String {
    // Carriage returns separate words too, though a terminal must not get them.
    sanitize(&text.replace('\r', "\n")).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct NestedError(&'static str, Option<Box<NestedError>>);

    impl fmt::Display for NestedError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for NestedError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn text_of_an_agent_cannot_control_a_terminal() {
        assert_eq!(
            sanitize("\x1b[31mred\x1b[0m\x1b]0;title\x07\u{9b}2J\u{202e}\tx\r\ny"),
            "red\\u{1b}]0;title\\u{7}\\u{9b}2J\\u{202e}\tx\ny"
        );
        assert_eq!(one_line(" a\n\tb\rc\u{7} "), "a b c\\u{7}");
        // Nothing but a colour is removed, however it looks.
        for text in ["\x1b[31", "\x1b[31x", "\x1b[m\x1b[0;38:5m", "\x1b", "\x1b[\x1b[m"] {
            let shown = sanitize(text);
            assert!(!shown.contains('\x1b'), "{shown}");
        }
        assert_eq!(sanitize("a\x1b[31 ; rm\x1b[0;38:5mb"), "a\\u{1b}[31 ; rmb");
    }

    #[test]
    fn every_cause_is_told_once() {
        let cause = |text, cause| Some(Box::new(NestedError(text, cause)));
        let error = NestedError("cannot read x", cause("cannot read", cause("no such file", None)));
        assert_eq!(error_chain(&error), "cannot read x: no such file");
    }
}
