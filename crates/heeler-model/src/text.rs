//! Text for people: error chains, and detection of control characters in untrusted text.

use std::error::Error;

/// Formats an error with its causes. A cause that the text already contains is not repeated.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Returns true if a character could control a terminal or reorder the text around it: control
/// characters except newline and tab, and the bidirectional overrides.
pub fn is_terminal_control(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    }
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
    fn every_cause_is_told_once() {
        let cause = |text, cause| Some(Box::new(NestedError(text, cause)));
        let error = NestedError("cannot read x", cause("cannot read", cause("no such file", None)));
        assert_eq!(error_chain(&error), "cannot read x: no such file");
    }
}
