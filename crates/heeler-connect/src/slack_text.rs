//! Markdown of agents as Slack's own markup, and that markup as plain text.
//!
//! `&`, `<` and `>` are escaped, so no text of an agent is a mention or a link of Slack. Start at
//! [`render_slack`] and [`plain_text`].

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A character without width, which keeps three backticks from ending a code block.
const WORD_JOINER: char = '\u{2060}';

/// Renders Markdown.
pub fn render_slack(markdown: &str) -> String {
    let mut renderer = SlackRenderer::default();
    Parser::new_ext(markdown, Options::ENABLE_STRIKETHROUGH).for_each(|event| renderer.add(event));
    renderer.text.trim_end().to_owned()
}

#[derive(Default)]
struct SlackRenderer {
    text: String,
    /// Open lists, each with the number of its next item; `None` for bullets.
    lists: Vec<Option<u64>>,
    /// Length of the text at the beginning of the last item.
    item_start: usize,
    /// Open links; false for those that are shown as text.
    links: Vec<bool>,
    in_quote: bool,
    in_code: bool,
}

impl SlackRenderer {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.push(&text),
            Event::Code(code) => {
                self.text.push('`');
                // Slack has no form for a backtick in code.
                self.push(&code.replace('`', "'"));
                self.text.push('`');
            }
            Event::SoftBreak | Event::HardBreak => self.line_break(),
            Event::Rule => {
                self.blank_line();
                self.text.push_str("———\n");
            }
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { .. } => {
                self.blank_line();
                self.text.push('*');
            }
            Tag::Paragraph if self.lists.is_empty() => {
                self.blank_line();
                if self.in_quote {
                    self.text.push_str("> ");
                }
            }
            Tag::Paragraph if self.text.len() != self.item_start => {
                self.new_line();
                self.text.push_str(&"    ".repeat(self.lists.len()));
            }
            Tag::BlockQuote(_) => {
                self.blank_line();
                self.in_quote = true;
            }
            Tag::CodeBlock(_) => {
                self.blank_line();
                self.in_code = true;
                // Slack would show the language as a part of the code.
                self.text.push_str("```\n");
            }
            Tag::List(first) => {
                match self.lists.is_empty() {
                    true => self.blank_line(),
                    false => self.new_line(),
                }
                self.lists.push(*first);
            }
            Tag::Item => self.start_item(),
            Tag::Emphasis => self.text.push('_'),
            Tag::Strong => self.text.push('*'),
            Tag::Strikethrough => self.text.push('~'),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.start_link(dest_url),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) | TagEnd::Strong => self.text.push('*'),
            TagEnd::Emphasis => self.text.push('_'),
            TagEnd::Strikethrough => self.text.push('~'),
            TagEnd::BlockQuote(_) => self.in_quote = false,
            TagEnd::CodeBlock => {
                self.in_code = false;
                self.new_line();
                self.text.push_str("```");
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    fn start_item(&mut self) {
        self.new_line();
        let depth = self.lists.len().saturating_sub(1);
        self.text.push_str(&"    ".repeat(depth));
        match self.lists.last_mut() {
            Some(Some(number)) => {
                self.text.push_str(&format!("{number}. "));
                *number += 1;
            }
            _ => self.text.push_str("• "),
        }
        self.item_start = self.text.len();
    }

    fn start_link(&mut self, address: &str) {
        let is_web = address.starts_with("https://") || address.starts_with("http://");
        // These characters would end the address.
        let is_plain = !address.contains(['|', '>', '<', ' ']);
        let is_link = is_web && is_plain && !self.links.contains(&true);
        self.links.push(is_link);
        if is_link {
            let address = escape(address);
            self.text.push_str(&format!("<{address}|"));
        }
    }

    fn end_link(&mut self) {
        if self.links.pop() == Some(true) {
            self.text.push('>');
        }
    }

    fn push(&mut self, text: &str) {
        let text = match (self.in_code, self.links.contains(&true)) {
            (true, _) => text.replace("```", &format!("``{WORD_JOINER}`")),
            // A bar in the text of a link would begin another one.
            (false, true) => text.replace('|', "¦"),
            (false, false) => text.to_owned(),
        };
        self.text.push_str(&escape(&text));
    }

    fn line_break(&mut self) {
        self.text.push('\n');
        if self.in_quote {
            self.text.push_str("> ");
        }
    }

    fn new_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    fn blank_line(&mut self) {
        self.new_line();
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }
}

/// Returns a text that a person wrote, without Slack's markup of links and mentions.
pub(crate) fn plain_text(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('<') {
        plain.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(end) = rest.find('>') else {
            plain.push('<');
            continue;
        };
        let (target, label) = rest[..end].split_once('|').unwrap_or((&rest[..end], ""));
        match (target.chars().next(), label) {
            (Some('@'), _) => plain.push_str(target),
            (Some('#'), "") => plain.push_str(target),
            (Some('#'), label) => plain.push_str(&format!("#{label}")),
            (Some('!'), "") => plain.push_str(&target.replacen('!', "@", 1)),
            (Some('!'), label) => plain.push_str(label),
            // Slack makes a link of each address that a person writes.
            (_, label) if label.is_empty() || target.ends_with(label) => plain.push_str(target),
            (_, label) => plain.push_str(&format!("{label} ({target})")),
        }
        rest = &rest[end + 1..];
    }
    plain.push_str(rest);
    plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(markdown: &str, text: &str) {
        assert_eq!(render_slack(markdown), text);
    }

    #[test]
    fn markdown_becomes_the_markup_of_slack() {
        check("Hello **you** and *me*, `a < b`.", "Hello *you* and _me_, `a &lt; b`.");
        check(
            "# Title\n\nText\n\n- one\n- two\n  - deep\n\n3. x\n4. y",
            "*Title*\n\nText\n\n• one\n• two\n    • deep\n\n3. x\n4. y",
        );
        check("```rust\nfn main() {}\n```\n\nafter", "```\nfn main() {}\n```\n\nafter");
        check("> quoted\n> twice\n\nafter", "> quoted\n> twice\n\nafter");
        check("[docs|x](https://a.example/b)", "<https://a.example/b|docs¦x>");
        check("[x](javascript:alert)", "x");
        check("~~gone~~", "~gone~");
        check("- one\n\n  more\n  - deep\n\n  last", "• one\n    more\n    • deep\n    last");
    }

    #[test]
    fn no_text_of_an_agent_is_a_mention() {
        check(
            "<!channel> <@U123> & <https://x.example|y>",
            "&lt;!channel&gt; &lt;@U123&gt; &amp; &lt;https://x.example|y&gt;",
        );
        check("```\n<!everyone>\n```", "```\n&lt;!everyone&gt;\n```");
    }

    #[test]
    fn no_code_ends_its_block() {
        check("~~~\n```\n<!here>\n~~~", "```\n``\u{2060}`\n&lt;!here&gt;\n```");
        check("``a`b``", "`a'b`");
    }

    #[test]
    fn a_text_of_a_person_has_no_markup() {
        for (text, plain) in [
            ("a &lt;b&gt; &amp;amp; c", "a <b> &amp; c"),
            ("see <https://a.example/x?a=1&amp;b=2>", "see https://a.example/x?a=1&b=2"),
            ("see <https://a.example|the docs>", "see the docs (https://a.example)"),
            ("<http://a.example|a.example>", "http://a.example"),
            ("<@U123> and <@U9|ann> in <#C1|general> <#C2>", "@U123 and @U9 in #general #C2"),
            ("<!here> <!subteam^S1|@team>", "@here @team"),
            ("1 < 2", "1 < 2"),
            ("<", "<"),
            ("<>", ""),
        ] {
            assert_eq!(plain_text(text), plain, "{text}");
        }
    }
}
