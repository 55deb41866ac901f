//! Text of an agent in a notice.
//!
//! Start at [`AgentQuote::new`].

use heeler_config::reveal_hidden;
use serde::{Deserialize, Serialize};

/// Longest quoted text, in characters.
pub const QUOTE_CHARS_MAX: usize = 600;

/// Most lines of a quoted text.
const QUOTE_LINES_MAX: usize = 12;

/// Text that an agent wrote, or that contains such text. It is made harmless: hidden characters are
/// shown as numbers, links are broken and the length is limited. It is always shown as a quotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AgentQuote(String);

impl AgentQuote {
    /// Quotes a text; `None` if nothing is left of it.
    pub fn new(text: &str) -> Option<AgentQuote> {
        // Before the limit, because a hidden character becomes several visible ones. The text itself
        // may be long, and only its beginning is shown.
        let start: String = text.trim().chars().take(QUOTE_CHARS_MAX + 1).collect();
        let is_long = text.trim().chars().count() > QUOTE_CHARS_MAX;
        let shown = break_links(&reveal_hidden(&start)).replace("```", "'''");
        let mut lines: Vec<&str> = shown.lines().collect();
        let has_more_lines = lines.len() > QUOTE_LINES_MAX;
        lines.truncate(QUOTE_LINES_MAX);
        let mut kept: String = lines.join("\n").chars().take(QUOTE_CHARS_MAX).collect();
        if kept.is_empty() {
            return None;
        }
        if is_long || has_more_lines || shown.chars().count() > QUOTE_CHARS_MAX {
            kept.push('…');
        }
        Some(AgentQuote(kept))
    }

    /// Returns the text without marks, for a place that marks it itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text with a mark on each line.
    pub fn marked(&self) -> String {
        self.0.lines().map(|line| format!("> {line}")).collect::<Vec<_>>().join("\n")
    }
}

/// Breaks links, because a program that shows a notice would make them clickable.
fn break_links(text: &str) -> String {
    text.replace("://", "[:]//")
        .replace("www.", "www[.]")
        .replace("WWW.", "WWW[.]")
        .replace("mailto:", "mailto[:]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_an_agent_is_broken() {
        let quote = AgentQuote::new("Log in at https://evil.example/heeler or www.evil.example");
        let quote = quote.unwrap();
        assert_eq!(quote.as_str(), "Log in at https[:]//evil.example/heeler or www[.]evil.example");
    }

    #[test]
    fn hidden_characters_and_fences_are_shown() {
        let quote = AgentQuote::new("ok\u{202e}gnp\u{1b}[31m ```\nHeeler: all is well").unwrap();
        assert!(!quote.as_str().contains(['\u{202e}', '\u{1b}']), "{quote:?}");
        assert!(quote.as_str().contains("'''") && !quote.as_str().contains("```"), "{quote:?}");
        assert!(quote.marked().lines().all(|line| line.starts_with("> ")), "{quote:?}");
    }

    #[test]
    fn a_long_text_is_cut() {
        let long = AgentQuote::new(&"x".repeat(QUOTE_CHARS_MAX * 3)).unwrap();
        assert_eq!(long.as_str().chars().count(), QUOTE_CHARS_MAX + 1);
        assert!(long.as_str().ends_with('…'));
        let lines = AgentQuote::new(&"line\n".repeat(100)).unwrap();
        assert_eq!(lines.as_str().lines().count(), QUOTE_LINES_MAX);
        let exact = AgentQuote::new(&"x".repeat(QUOTE_CHARS_MAX)).unwrap();
        assert!(!exact.as_str().ends_with('…'));
        assert_eq!(AgentQuote::new(" \n "), None);
    }
}
