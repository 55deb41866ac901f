//! Layout of markdown from agents for a terminal.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use crate::TerminalTheme;
use crate::highlight::highlight_code;
use crate::markdown_table::MarkdownTable;
use crate::text::{LineBreakMode, TextFlow, truncate_to_width, width as width_of};

/// Deepest level of lists and quotes that is indented.
// Deeper levels of hostile text would leave no room for the text.
const DEPTH_MAX: usize = 8;

/// Extensions of markdown that are understood.
pub(crate) const MARKDOWN_OPTIONS: Options =
    Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);

/// Lays out text, which must be sanitized already.
pub(crate) fn markdown_lines(
    text: &str,
    width: usize,
    theme: &TerminalTheme,
) -> Vec<Line<'static>> {
    lay_out(text, MarkdownLayout::new(width, theme))
}

/// Lays out text as [`markdown_lines`] does, but does not break lines of code: the terminal breaks
/// them, and joins them again when they are copied.
pub(crate) fn markdown_lines_with_whole_code(
    text: &str,
    width: usize,
    theme: &TerminalTheme,
) -> Vec<Line<'static>> {
    let code_width = usize::MAX;
    lay_out(text, MarkdownLayout { code_width, ..MarkdownLayout::new(width, theme) })
}

fn lay_out(text: &str, mut page: MarkdownLayout<'_>) -> Vec<Line<'static>> {
    for event in Parser::new_ext(text, MARKDOWN_OPTIONS) {
        page.event(event);
    }
    page.flush();
    page.lines
}

struct MarkdownLayout<'t> {
    width: usize,
    /// Width at which lines of code are broken.
    code_width: usize,
    theme: &'t TerminalTheme,
    lines: Vec<Line<'static>>,
    /// Content of the open block.
    spans: Vec<Span<'static>>,
    styles: Vec<Style>,
    /// Lists and quotes around the block, outermost first.
    containers: Vec<MarkdownContainer>,
    /// Marker of the innermost list item, for its first line.
    item_marker: Option<String>,
    /// The next block needs a blank line before it.
    needs_blank_line: bool,
    /// Language of the open code block; empty if it names none.
    code_block: Option<String>,
    links: Vec<(String, usize)>,
    table: Option<MarkdownTable>,
}

enum MarkdownContainer {
    Quote,
    /// With the next number, and the width of the marker.
    List(Option<u64>, usize),
}

impl<'t> MarkdownLayout<'t> {
    fn new(width: usize, theme: &'t TerminalTheme) -> MarkdownLayout<'t> {
        MarkdownLayout {
            width,
            code_width: width,
            theme,
            lines: vec![],
            spans: vec![],
            styles: vec![Style::new()],
            containers: vec![],
            item_marker: None,
            needs_blank_line: false,
            code_block: None,
            links: vec![],
            table: None,
        }
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.push_text(&text, self.style()),
            Event::Code(text) => {
                let style = self.style().patch(self.theme.code);
                self.push_text(&format!("`{text}`"), style);
            }
            // HTML is shown as text, because a terminal cannot render it.
            Event::Html(text) | Event::InlineHtml(text) => self.push_text(&text, self.style()),
            Event::SoftBreak | Event::HardBreak => self.push_text("\n", self.style()),
            Event::Rule => {
                self.flush();
                self.begin_block();
                let rule = "─".repeat(self.width.min(40));
                self.lines.push(Line::styled(rule, self.theme.dim));
                self.needs_blank_line = true;
            }
            Event::TaskListMarker(done) => {
                self.push_text(if done { "[x] " } else { "[ ] " }, self.style());
            }
            _ => {}
        }
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn push_text(&mut self, text: &str, style: Style) {
        // Text of a table is collected first: the widths depend on all rows.
        match self.table.as_mut().and_then(|table| table.rows.last_mut()?.last_mut()) {
            Some(cell) => cell.push_str(text),
            None => self.spans.push(Span::styled(text.to_owned(), style)),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } => self.push_style(self.theme.heading),
            Tag::Emphasis => self.push_style(Style::new().add_modifier(Modifier::ITALIC)),
            Tag::Strong => self.push_style(Style::new().add_modifier(Modifier::BOLD)),
            Tag::Strikethrough => {
                self.push_style(Style::new().add_modifier(Modifier::CROSSED_OUT));
            }
            Tag::BlockQuote(_) => {
                self.flush();
                self.containers.push(MarkdownContainer::Quote);
            }
            Tag::List(first) => {
                self.flush();
                // The width is set by the first item, when its marker is known.
                self.containers.push(MarkdownContainer::List(first, 2));
            }
            Tag::Item => self.start_item(),
            Tag::CodeBlock(kind) => {
                self.flush();
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code_block = Some(language.clone());
                if !language.is_empty() {
                    self.begin_block();
                    let language = self.margin_line(&language);
                    self.lines.push(language);
                }
            }
            Tag::Link { dest_url, .. } => {
                self.links.push((dest_url.into_string(), self.span_count()));
            }
            Tag::Image { dest_url, .. } => {
                self.push_text("image: ", self.theme.dim);
                // No text before it: the description of an image follows as text.
                self.links.push((dest_url.into_string(), usize::MAX));
            }
            Tag::Table(alignments) => {
                self.flush();
                self.table = Some(MarkdownTable { alignments, rows: vec![] });
            }
            Tag::TableHead | Tag::TableRow => {
                self.table.iter_mut().for_each(|table| table.rows.push(vec![]));
            }
            Tag::TableCell => {
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(String::new());
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.flush();
                self.needs_blank_line = true;
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Paragraph | TagEnd::HtmlBlock => {
                self.flush();
                // Items of a list follow each other without blank lines.
                self.needs_blank_line = !self.in_list();
            }
            TagEnd::BlockQuote(_) | TagEnd::List(_) => {
                self.flush();
                self.containers.pop();
                self.needs_blank_line = !self.in_list();
            }
            TagEnd::Item => {
                // An empty item still shows its marker.
                if self.item_marker.is_some() && self.spans.is_empty() {
                    self.push_text("", Style::new());
                }
                self.flush();
            }
            TagEnd::CodeBlock => {
                self.flush();
                self.code_block = None;
                self.needs_blank_line = !self.in_list();
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            TagEnd::Table => {
                self.end_table();
                self.needs_blank_line = !self.in_list();
            }
            _ => {}
        }
    }

    fn push_style(&mut self, style: Style) {
        self.styles.push(self.style().patch(style));
    }

    /// Returns true inside a list. Only the innermost levels are checked: hostile text may be very
    /// deep.
    fn in_list(&self) -> bool {
        let mut container = self.containers.iter().rev().take(DEPTH_MAX);
        container.any(|container| matches!(container, MarkdownContainer::List(..)))
    }

    fn start_item(&mut self) {
        self.flush();
        let Some(MarkdownContainer::List(number, indent)) = self.containers.last_mut() else {
            return;
        };
        let marker = match number {
            Some(number) => {
                let marker = format!("{number}. ");
                *number += 1;
                marker
            }
            None => "• ".to_owned(),
        };
        *indent = width_of(&marker);
        self.item_marker = Some(marker);
    }

    /// Returns the number of spans in this block, to find the text of a link later.
    fn span_count(&self) -> usize {
        self.spans.len()
    }

    /// Appends the URL of a link, unless its text is the URL.
    fn end_link(&mut self) {
        let Some((url, from)) = self.links.pop() else { return };
        let link_text = self.spans.get(from..).unwrap_or_default();
        let link_text: String = link_text.iter().map(|span| span.content.as_ref()).collect();
        // The address is shown, because a link's text may pretend to lead elsewhere.
        if link_text != url && !url.is_empty() {
            self.push_text(&format!(" ({url})"), self.theme.dim);
        }
    }

    /// Lays out the open block.
    fn flush(&mut self) {
        if self.spans.is_empty() {
            return;
        }
        self.begin_block();
        let mut spans = std::mem::take(&mut self.spans);
        let (mut breaks, mut width) = (LineBreakMode::Words, self.width);
        if let Some(language) = &self.code_block {
            // Code is broken anywhere, so that no character of it is dropped.
            (breaks, width) = (LineBreakMode::Anywhere, self.code_width);
            let code: String = spans.iter().map(|span| span.content.as_ref()).collect();
            spans = highlight_code(code.trim_end_matches('\n'), language, self.theme);
        }
        let (first, rest) = self.margins();
        TextFlow { first_margin: first, rest_margin: rest, width, breaks }
            .push_lines(&spans, &mut self.lines);
    }

    fn begin_block(&mut self) {
        if std::mem::take(&mut self.needs_blank_line) && !self.lines.is_empty() {
            self.lines.push(Line::default());
        }
    }

    /// Returns the margins of the first and the further lines of a block.
    fn margins(&mut self) -> (Vec<Span<'static>>, Vec<Span<'static>>) {
        let mut rest = String::new();
        for container in self.containers.iter().take(DEPTH_MAX) {
            match container {
                MarkdownContainer::Quote => rest.push_str("│ "),
                MarkdownContainer::List(_, indent) => {
                    rest.extend(std::iter::repeat_n(' ', *indent));
                }
            }
        }
        let mut first = rest.clone();
        if let Some(marker) = self.item_marker.take() {
            // The marker takes the place of the indent, so that further lines align with the text.
            let blanks = first.len() - first.trim_end_matches(' ').len();
            first.truncate(first.len() - blanks.min(width_of(&marker)));
            first.push_str(&marker);
        }
        if self.code_block.is_some() {
            rest.push_str("  ");
            first.push_str("  ");
        }
        let margin = |text: String| vec![Span::styled(text, self.theme.dim)];
        (margin(first), margin(rest))
    }

    fn margin_line(&mut self, text: &str) -> Line<'static> {
        let (mut spans, _) = self.margins();
        spans.push(Span::styled(text.to_owned(), self.theme.dim));
        Line::from(spans)
    }

    fn end_table(&mut self) {
        let Some(table) = self.table.take() else { return };
        self.begin_block();
        let (first_margin, rest_margin) = self.margins();
        let flow =
            TextFlow { first_margin, rest_margin, width: self.width, breaks: LineBreakMode::Words };
        table.push_lines(&flow, self.theme, &mut self.lines);
    }
}

/// Truncates lines to a limit, and adds a line with the number of omitted ones.
pub(crate) fn truncate_lines(
    lines: &mut Vec<Line<'static>>,
    max: usize,
    width: usize,
    theme: &TerminalTheme,
) {
    if lines.len() > max {
        let more = lines.len() - max;
        lines.truncate(max);
        let more =
            truncate_to_width(&format!("… {more} more lines; /export writes them all"), width);
        lines.push(Line::styled(more, theme.dim));
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(text: &str, width: usize, expected: Expect) {
        let lines = markdown_lines(text, width, &TerminalTheme::plain());
        let lines: Vec<String> =
            lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect();
        expected.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn blocks_are_apart_and_lists_are_indented() {
        check(
            "# Title\nText with `code`, *soft* and **loud**\nnext line.\n\n- one item that is long\n  - inner\n- [x] two\n\n3. three\n4. four\n\n> said\n> so\n\n---\nend",
            22,
            expect![[r#"
                Title

                Text with `code`, soft
                and loud
                next line.

                • one item that is
                  long
                  • inner
                • [x] two

                3. three
                4. four

                │ said
                │ so

                ──────────────────────

                end"#]],
        );
    }

    #[test]
    fn code_keeps_its_blanks_and_its_language() {
        check(
            "see:\n```rust\nfn main() {\n    let x = 1;\n\n}\n```\nok",
            16,
            expect![[r#"
            see:

              rust
              fn main() {
                  let x = 1;

              }

            ok"#]],
        );
    }

    #[test]
    fn links_say_where_they_go_once() {
        check(
            "[docs](https://a.b/c) <https://x.y> ![pic](p.png) a<b>c</b>",
            80,
            expect!["docs (https://a.b/c) https://x.y image: pic (p.png) a<b>c</b>"],
        );
    }

    #[test]
    fn no_depth_and_no_width_breaks_it() {
        let deep = format!("{}x\n{}- y", "> ".repeat(50_000), "  ".repeat(50));
        for width in [0, 1, 2, 3, 20] {
            assert!(!markdown_lines(&deep, width, &TerminalTheme::dark()).is_empty());
        }
    }
}
