//! Text for people: error chains, and untrusted text without control characters.

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

/// Removes everything that could control a terminal: escape sequences, and the characters of
/// [`is_terminal_control`]. Agents print untrusted text.
pub fn sanitize(text: &str) -> String {
    let stripped = anstream::adapter::strip_str(text).to_string();
    stripped.chars().filter(|c| !is_terminal_control(*c)).collect()
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
            "red2J\tx\ny"
        );
        assert_eq!(one_line(" a\n\tb\rc\u{7} "), "a b c");
    }

    #[test]
    fn every_cause_is_told_once() {
        let cause = |text, cause| Some(Box::new(NestedError(text, cause)));
        let error = NestedError("cannot read x", cause("cannot read", cause("no such file", None)));
        assert_eq!(error_chain(&error), "cannot read x: no such file");
    }
}
