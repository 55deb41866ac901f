//! Markdown of agents as Telegram's HTML.
//!
//! Only tags of a list are written, and everything else is escaped. Mentions outside of code are
//! changed so that they notify no person. Start at [`render_telegram`].

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::split_text::units;

/// A character without width, which ends a mention.
const WORD_JOINER: char = '\u{2060}';

/// A text in Telegram's HTML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedText {
    pub html: String,
    /// Length of the visible text, in UTF-16 units.
    pub units: usize,
}

/// Renders Markdown.
pub fn render_telegram(markdown: &str) -> RenderedText {
    let mut renderer = HtmlRenderer::default();
    Parser::new_ext(markdown, Options::ENABLE_STRIKETHROUGH).for_each(|event| renderer.add(event));
    renderer.finish()
}

#[derive(Default)]
struct HtmlRenderer {
    html: String,
    units: usize,
    /// Open lists, each with the number of its next item; `None` for bullets.
    lists: Vec<Option<u64>>,
    /// Length of the HTML at the beginning of the last item.
    item_start: usize,
    /// Links whose address is written after the text, or as a tag.
    links: Vec<bool>,
    in_code: bool,
}

impl HtmlRenderer {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.text(&text),
            Event::Code(code) => {
                self.tag("<code>");
                self.escaped(&code);
                self.tag("</code>");
            }
            // HTML of an agent is shown and not interpreted.
            Event::Html(text) | Event::InlineHtml(text) => self.text(&text),
            Event::SoftBreak | Event::HardBreak => self.escaped("\n"),
            Event::Rule => self.block("———\n"),
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { .. } => {
                self.blank_line();
                self.tag("<b>");
            }
            Tag::Paragraph if self.lists.is_empty() => self.blank_line(),
            Tag::Paragraph if self.html.len() != self.item_start => {
                self.new_line();
                self.escaped(&"  ".repeat(self.lists.len()));
            }
            Tag::BlockQuote(_) => {
                self.blank_line();
                self.tag("<blockquote>");
            }
            Tag::CodeBlock(kind) => {
                self.blank_line();
                self.in_code = true;
                let language = match kind {
                    CodeBlockKind::Fenced(info) => {
                        info.split([' ', ',']).next().unwrap_or_default()
                    }
                    CodeBlockKind::Indented => "",
                };
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-_#.".contains(c);
                match !language.is_empty() && language.chars().all(is_plain) {
                    true => self.tag(&format!("<pre><code class=\"language-{language}\">")),
                    false => self.tag("<pre><code>"),
                }
            }
            Tag::List(first) => {
                match self.lists.is_empty() {
                    true => self.blank_line(),
                    false => self.new_line(),
                }
                self.lists.push(*first);
            }
            Tag::Item => self.start_item(),
            Tag::Emphasis => self.tag("<i>"),
            Tag::Strong => self.tag("<b>"),
            Tag::Strikethrough => self.tag("<s>"),
            Tag::Link { dest_url, .. } => self.start_link(dest_url),
            Tag::Image { dest_url, .. } => self.start_link(dest_url),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) | TagEnd::Strong => self.tag("</b>"),
            TagEnd::BlockQuote(_) => {
                self.trim_end();
                self.tag("</blockquote>");
            }
            TagEnd::CodeBlock => {
                self.trim_end();
                self.tag("</code></pre>");
                self.in_code = false;
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::Emphasis => self.tag("</i>"),
            TagEnd::Strikethrough => self.tag("</s>"),
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    fn start_item(&mut self) {
        self.new_line();
        let depth = self.lists.len().saturating_sub(1);
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}. ", *number - 1)
            }
            _ => "• ".to_owned(),
        };
        self.escaped(&"  ".repeat(depth));
        self.escaped(&mark);
        self.item_start = self.html.len();
    }

    fn start_link(&mut self, address: &str) {
        let is_web = address.starts_with("https://") || address.starts_with("http://");
        // A link within a link, or another kind of address, is shown as text.
        let is_tag = is_web && !self.links.contains(&true);
        self.links.push(is_tag);
        if is_tag {
            let address = escape(address);
            self.tag(&format!("<a href=\"{address}\">"));
        }
    }

    fn end_link(&mut self) {
        if self.links.pop() == Some(true) {
            self.tag("</a>");
        }
    }

    fn text(&mut self, text: &str) {
        match self.in_code {
            true => self.escaped(text),
            false => self.escaped(&text.replace('@', &format!("@{WORD_JOINER}"))),
        }
    }

    fn escaped(&mut self, text: &str) {
        self.units += units(text);
        self.html.push_str(&escape(text));
    }

    fn tag(&mut self, tag: &str) {
        self.html.push_str(tag);
    }

    fn block(&mut self, text: &str) {
        self.blank_line();
        self.escaped(text);
    }

    /// Begins a line, unless the text is at the beginning of one.
    fn new_line(&mut self) {
        if !self.html.is_empty() && !self.html.ends_with('\n') {
            self.escaped("\n");
        }
    }

    fn blank_line(&mut self) {
        let is_inside = self.html.ends_with("<blockquote>");
        if self.html.is_empty() || is_inside {
            return;
        }
        self.new_line();
        if !self.html.ends_with("\n\n") {
            self.escaped("\n");
        }
    }

    fn trim_end(&mut self) {
        while self.html.ends_with('\n') {
            self.html.pop();
            self.units -= 1;
        }
    }

    fn finish(mut self) -> RenderedText {
        self.trim_end();
        RenderedText { html: self.html, units: self.units }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(markdown: &str, html: &str) {
        assert_eq!(render_telegram(markdown).html, html);
    }

    #[test]
    fn markdown_becomes_tags_of_the_list() {
        check(
            "Hello **you** and *me*, `a < b`.",
            "Hello <b>you</b> and <i>me</i>, <code>a &lt; b</code>.",
        );
        check(
            "# Title\n\nText\n\n- one\n- two\n  - deep\n\n3. x\n4. y",
            "<b>Title</b>\n\nText\n\n• one\n• two\n  • deep\n\n3. x\n4. y",
        );
        check(
            "```rust\nfn main() {}\n```",
            "<pre><code class=\"language-rust\">fn main() {}</code></pre>",
        );
        check("```\"><b>\nx\n```", "<pre><code>x</code></pre>");
        check("> quoted\n\nafter", "<blockquote>quoted</blockquote>\n\nafter");
        check(
            "[docs](https://a.example/?q=\"1\")",
            "<a href=\"https://a.example/?q=&quot;1&quot;\">docs</a>",
        );
        check("[x](javascript:alert)", "x");
        check("~~gone~~", "<s>gone</s>");
    }

    #[test]
    fn nothing_of_an_agent_is_a_tag_or_notifies_people() {
        check("<b>bold</b> & <script>", "&lt;b&gt;bold&lt;/b&gt; &amp; &lt;script&gt;");
        check("@everyone and a@b.c", "@\u{2060}everyone and a@\u{2060}b.c");
        check("`@decorator`", "<code>@decorator</code>");
        check("```\n@decorator\n```", "<pre><code>@decorator</code></pre>");
        assert_eq!(render_telegram("a **b** 👍").units, 6);
    }
}
