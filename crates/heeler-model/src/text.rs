//! Text that people read: errors with their causes, and what strangers wrote.

use std::error::Error;

/// Returns an error with its causes, as one text. A cause that the text names already is not repeated.
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

/// Says whether a character could steer a terminal or turn the order of what is read around it:
/// control characters (line breaks and tabs are fine) and the bidirectional overrides.
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
