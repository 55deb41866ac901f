//! Markdown of agents as a comment on GitHub.
//!
//! GitHub shows Markdown as it is. What would act on people or programs is made ineffective: mentions,
//! commands of other bots, markup of HTML, and pictures, whose addresses are fetched. Start at
//! [`render_github`].

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag};

use crate::split_text::split_text;

/// Longest part of a text, in UTF-16 units. With its changes, a part stays below GitHub's limit of 65,536
/// characters.
const TEXT_UNITS_MAX: usize = 14_000;

/// A character without width, which keeps a name from being a mention.
const WORD_JOINER: char = '\u{2060}';

pub(crate) fn github_parts(text: &str) -> Vec<String> {
    split_text(text, TEXT_UNITS_MAX)
}

/// Returns a text of an agent as a comment.
pub fn render_github(markdown: &str) -> String {
    let code = code_ranges(markdown);
    let mut rendered = String::with_capacity(markdown.len() + markdown.len() / 16);
    let mut code = code.into_iter().peekable();
    let (mut before, mut is_line_start) = (None, true);
    for (at, c) in markdown.char_indices() {
        while code.next_if(|range| range.end <= at).is_some() {}
        let is_code = code.peek().is_some_and(|range| range.start <= at);
        let next = markdown[at + c.len_utf8()..].chars().next();
        match (c, is_code) {
            // Bots take lines that begin with a slash as commands.
            ('/', false) if is_line_start => rendered.push_str("\\/"),
            ('/', true) if is_line_start => rendered.push_str(" /"),
            ('@', false) if !before.is_some_and(char::is_alphanumeric) => {
                rendered.push('@');
                rendered.push(WORD_JOINER);
            }
            // An address in angle brackets is neither HTML nor a mention.
            ('<', false) if is_address(&markdown[at + 1..]) => rendered.push('<'),
            ('<', false) if before != Some('\\') => rendered.push_str("&lt;"),
            ('!', false) if next == Some('[') && before != Some('\\') => rendered.push_str("\\!"),
            _ => rendered.push(c),
        }
        before = Some(c);
        is_line_start = c == '\n' || is_line_start && c.is_whitespace();
    }
    rendered
}

/// Returns true for the rest of an address in angle brackets.
fn is_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let address = rest.and_then(|rest| rest.split_once('>')).map(|(address, _)| address);
    address.is_some_and(|it| !it.contains(|c: char| c.is_whitespace() || "<\"'`@".contains(c)))
}

/// Returns the ranges of code, in order and without overlaps.
fn code_ranges(markdown: &str) -> Vec<Range<usize>> {
    let options =
        Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TABLES | Options::ENABLE_TASKLISTS;
    let events = Parser::new_ext(markdown, options).into_offset_iter();
    let is_code = |(event, _): &(Event<'_>, Range<usize>)| {
        matches!(event, Event::Code(_) | Event::Start(Tag::CodeBlock(_)))
    };
    events.filter(is_code).map(|(_, range)| range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_an_agent_acts_on_people_or_programs() {
        for (markdown, expected) in [
            ("Done. **Bold** and `code`", "Done. **Bold** and `code`"),
            ("cc @ann and @acme/team", "cc @\u{2060}ann and @\u{2060}acme/team"),
            ("ann@example.com", "ann@example.com"),
            ("`@ann` and `<b>`", "`@ann` and `<b>`"),
            ("```py\n@property\n```\n@ann", "```py\n@property\n```\n@\u{2060}ann"),
            ("/merge\n  /lgtm\na/b", "\\/merge\n  \\/lgtm\na/b"),
            ("```\n/lgtm\n```", "```\n /lgtm\n```"),
            ("<img src=x> a < b \\<", "&lt;img src=x> a &lt; b \\<"),
            ("<https://a.example/x>", "<https://a.example/x>"),
            ("<https://a.example/x y> <http:a>", "&lt;https://a.example/x y> &lt;http:a>"),
            ("<!-- heeler:00 -->", "&lt;!-- heeler:00 -->"),
            ("![x](https://evil.example/?q=1)", "\\![x](https://evil.example/?q=1)"),
            ("wow! [x](y)", "wow! [x](y)"),
            (
                "| a | @b |\n|---|---|\n| `@c` | @d |",
                "| a | @\u{2060}b |\n|---|---|\n| `@c` | @\u{2060}d |",
            ),
        ] {
            assert_eq!(render_github(markdown), expected, "{markdown}");
        }
    }

    #[test]
    fn a_long_answer_is_split_below_the_limit() {
        let text = "@ann <b>\n".repeat(8_000);
        let parts = github_parts(&text);
        assert!(parts.len() > 1);
        assert!(parts.iter().all(|part| render_github(part).chars().count() < 60_000));
    }
}
