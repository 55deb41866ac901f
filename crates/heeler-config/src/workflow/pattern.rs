//! Regular expressions in workflow files. Matching takes linear time for every pattern.

use std::fmt;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

/// Longest pattern, in characters; the same as Last Light's.
pub const PATTERN_CHARS_MAX: usize = 200;

/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Case-insensitive regular expression.
#[derive(Clone)]
pub struct WorkflowPattern {
    text: String,
    regex: Regex,
}

impl WorkflowPattern {
    /// Parses a pattern, or returns the reason why it is invalid.
    pub fn parse(text: &str) -> Result<WorkflowPattern, String> {
        if text.chars().count() > PATTERN_CHARS_MAX {
            return Err(format!("it is longer than {PATTERN_CHARS_MAX} characters"));
        }
        // A short pattern with large repetitions can still compile to gigabytes.
        let limited = Regex::config().nfa_size_limit(Some(PATTERN_BYTES_MAX));
        let built = Regex::builder()
            .configure(limited)
            .syntax(syntax::Config::new().case_insensitive(true))
            .build(text);
        match built {
            Ok(regex) => Ok(WorkflowPattern { text: text.to_owned(), regex }),
            Err(error) => Err(match error.syntax_error() {
                // The message shows the pattern first; only its last line has the reason.
                Some(syntax) => {
                    let told = syntax.to_string();
                    let last = told.lines().last().unwrap_or_default();
                    last.trim_start_matches("error: ").to_owned()
                }
                None => "it is too large".to_owned(),
            }),
        }
    }

    /// Returns a pattern that matches only this literal text.
    pub(super) fn literal(text: &str) -> Option<WorkflowPattern> {
        // A backslash before a letter or digit would give it a meaning.
        let is_plain = |c: char| c.is_alphanumeric() || c.is_whitespace() || !c.is_ascii();
        let escape = |c: char| if is_plain(c) { c.to_string() } else { format!("\\{c}") };
        let escaped: String = text.chars().map(escape).collect();
        WorkflowPattern::parse(&escaped).ok()
    }

    /// Returns true if the pattern matches anywhere in a text.
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

impl fmt::Debug for WorkflowPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkflowPattern({:?})", self.text)
    }
}
