//! Markdown of agents for output that scrolls by: finished blocks become lines with styles.
//!
//! The text stays untrusted after the layout, because a character reference such as `&#27;` becomes
//! a control character only there. Whoever prints a [`StyledText`] must sanitize it. Start at
//! [`MarkdownStream`].

use anstyle::{AnsiColor, Effects};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use crate::TerminalTheme;
use crate::markdown::{MARKDOWN_OPTIONS, markdown_lines, markdown_lines_with_whole_code};
use crate::text::sanitize;

/// Most bytes of unfinished blocks that are held back. Beyond it, the message is shown as it is.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// Part of a line, with its style. The text is not sanitized.
#[derive(Debug, Clone, PartialEq)]
pub struct StyledText {
    /// The text, without a newline.
    pub text: String,
    /// Style for all of it.
    pub style: anstyle::Style,
}

/// Line of laid out markdown.
pub type StyledLine = Vec<StyledText>;

/// Layout of one message, of which pieces arrive one after the other.
#[derive(Debug, Default)]
pub struct MarkdownStream {
    /// Text of unfinished blocks.
    pending: String,
    /// Length of the pending text from which its blocks are searched again. Without it, each piece of
    /// a long block would cost a parse of the whole block.
    search_from: usize,
    has_lines: bool,
    /// True once a block was too long: the rest is shown as it is.
    is_plain: bool,
}

impl MarkdownStream {
    /// Takes a piece of the message, and returns the lines of the blocks that have ended.
    pub fn push(&mut self, piece: &str, width: usize, theme: &TerminalTheme) -> Vec<StyledLine> {
        self.pending.push_str(piece);
        // A line without its end may still change what the line before it is.
        let Some(end) = self.pending.rfind('\n').map(|at| at + 1) else { return vec![] };
        if self.is_plain || self.pending.len() > PENDING_BYTES_MAX {
            self.is_plain = true;
            return self.take(end, width, theme);
        }
        if !piece.contains('\n') || self.pending.len() < self.search_from {
            return vec![];
        }
        let finished = finished_bytes(&self.pending[..end]);
        if finished == 0 {
            self.search_from = self.pending.len() + self.pending.len() / 16;
            return vec![];
        }
        self.take(finished, width, theme)
    }

    /// Returns the lines of the rest of the message, and begins another one.
    pub fn finish(&mut self, width: usize, theme: &TerminalTheme) -> Vec<StyledLine> {
        let lines = self.take(self.pending.len(), width, theme);
        *self = MarkdownStream::default();
        lines
    }

    /// Lays out the first bytes of the pending text.
    fn take(&mut self, bytes: usize, width: usize, theme: &TerminalTheme) -> Vec<StyledLine> {
        let rest = self.pending.split_off(bytes);
        let text = std::mem::replace(&mut self.pending, rest);
        self.search_from = 0;
        if self.is_plain {
            let style = anstyle::Style::new();
            let line = |line: &str| vec![StyledText { text: line.to_owned(), style }];
            return text.lines().map(line).collect();
        }
        let lines = markdown_lines_with_whole_code(&sanitize(&visible_text(&text)), width, theme);
        let mut lines: Vec<StyledLine> = lines.into_iter().map(styled_line).collect();
        // The same blank line that the layout puts between the blocks of one text.
        if self.has_lines && !lines.is_empty() {
            lines.insert(0, vec![]);
        }
        self.has_lines |= !lines.is_empty();
        lines
    }
}

/// Returns the lines of a whole message.
pub fn render_markdown(text: &str, width: usize, theme: &TerminalTheme) -> Vec<StyledLine> {
    // Code is broken at the width too, because the lines may be indented.
    let lines = markdown_lines(&sanitize(&visible_text(text)), width, theme);
    lines.into_iter().map(styled_line).collect()
}

/// Returns the number of bytes at the start of whole lines whose blocks no further line can change.
fn finished_bytes(text: &str) -> usize {
    let (mut depth, mut last, mut closes) = (0_usize, 0, false);
    for (event, range) in Parser::new_ext(text, MARKDOWN_OPTIONS).into_offset_iter() {
        if depth == 0 {
            last = range.start;
            closes = is_closed(&event, &text[range.start..]);
        }
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    // All blocks before the last one have ended.
    if closes { text.len() } else { text[..last].rfind('\n').map_or(0, |at| at + 1) }
}

/// Returns true if the last block of a text has ended. The block begins with this event.
fn is_closed(event: &Event<'_>, block: &str) -> bool {
    match event {
        Event::Start(Tag::Heading { .. } | Tag::Paragraph | Tag::Table(_)) => {
            block.ends_with("\n\n")
        }
        Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => {
            let first = block.trim_start();
            let Some(fence) = first.chars().next().filter(|it| matches!(it, '`' | '~')) else {
                return false;
            };
            let is_fence = |letter: &char| *letter == fence;
            let opening = first.chars().take_while(is_fence).count();
            let mut lines = block.trim_end().lines();
            let (first, last) = (lines.next(), lines.next_back().map(str::trim));
            first.is_some()
                && last.is_some_and(|last| {
                    last.len() >= opening && last.chars().all(|letter| letter == fence)
                })
        }
        Event::Rule => true,
        _ => false,
    }
}

/// Returns the text with definitions of links made visible. A definition has no line of its own, and
/// the link that uses it may be in a part that was laid out before.
fn visible_text(text: &str) -> String {
    let parser = Parser::new_ext(text, MARKDOWN_OPTIONS);
    let mut starts: Vec<usize> = parser
        .reference_definitions()
        .iter()
        .map(|(_, definition)| definition.span.start)
        .collect();
    starts.sort_unstable();
    let mut shown = text.to_owned();
    for start in starts.into_iter().rev() {
        shown.insert(start, '\\');
    }
    shown
}

fn styled_line(line: Line<'static>) -> StyledLine {
    let base = line.style;
    let spans = line.spans.into_iter().map(|span| StyledText {
        style: terminal_style(base.patch(span.style)),
        text: span.content.into_owned(),
    });
    // An empty margin needs no style.
    spans.filter(|part| !part.text.is_empty()).collect()
}

/// Returns a style of the screen as a style of output that scrolls.
fn terminal_style(style: Style) -> anstyle::Style {
    let effects = [
        (Modifier::BOLD, Effects::BOLD),
        (Modifier::DIM, Effects::DIMMED),
        (Modifier::ITALIC, Effects::ITALIC),
        (Modifier::UNDERLINED, Effects::UNDERLINE),
        (Modifier::REVERSED, Effects::INVERT),
        (Modifier::CROSSED_OUT, Effects::STRIKETHROUGH),
    ];
    let effects =
        effects.into_iter().filter(|(modifier, _)| style.add_modifier.contains(*modifier));
    let effects = effects.fold(Effects::new(), |all, (_, effect)| all | effect);
    let colour = style.fg.and_then(terminal_colour).map(anstyle::Color::Ansi);
    anstyle::Style::new().effects(effects).fg_color(colour)
}

/// Returns a colour of a theme; themes have only these.
fn terminal_colour(colour: Color) -> Option<AnsiColor> {
    Some(match colour {
        Color::Black => AnsiColor::Black,
        Color::Red => AnsiColor::Red,
        Color::Green => AnsiColor::Green,
        Color::Yellow => AnsiColor::Yellow,
        Color::Blue => AnsiColor::Blue,
        Color::Magenta => AnsiColor::Magenta,
        Color::Cyan => AnsiColor::Cyan,
        Color::Gray => AnsiColor::White,
        Color::DarkGray => AnsiColor::BrightBlack,
        Color::LightRed => AnsiColor::BrightRed,
        Color::LightGreen => AnsiColor::BrightGreen,
        Color::LightYellow => AnsiColor::BrightYellow,
        Color::LightBlue => AnsiColor::BrightBlue,
        Color::LightMagenta => AnsiColor::BrightMagenta,
        Color::LightCyan => AnsiColor::BrightCyan,
        Color::White => AnsiColor::BrightWhite,
        Color::Reset | Color::Rgb(..) | Color::Indexed(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "# Plan\nFirst *this*,\nthen that.\n\n- one\n\n- two\n  - deep\n\n  more of two\n\n1. a\n2. b\n\n\
        | file | lines |\n|---|---:|\n| a.rs | 12 |\n\n```rust\nfn a() {\n\n    b();\n}\n```\n> said\nso\n\n---\n\
        Setext\n======\n<b>x</b>\n\n~~~\n```\n~~~\nThe end, without a newline";

    fn texts(lines: &[StyledLine]) -> Vec<String> {
        let text = |line: &StyledLine| line.iter().map(|part| part.text.as_str()).collect();
        lines.iter().map(text).collect()
    }

    /// Lays out a message that arrives in pieces of so many characters.
    fn in_pieces(message: &str, length: usize, width: usize) -> Vec<String> {
        let (mut stream, theme) = (MarkdownStream::default(), TerminalTheme::dark());
        let letters: Vec<char> = message.chars().collect();
        let mut lines = vec![];
        for piece in letters.chunks(length) {
            let piece: String = piece.iter().collect();
            lines.extend(stream.push(&piece, width, &theme));
        }
        lines.extend(stream.finish(width, &theme));
        texts(&lines)
    }

    #[test]
    fn pieces_of_any_length_give_the_lines_of_the_whole() {
        for width in [45, 80] {
            let whole = in_pieces(MESSAGE, usize::MAX, width);
            assert_eq!(whole, texts(&render_markdown(MESSAGE, width, &TerminalTheme::dark())));
            for length in [1, 2, 3, 7, 50] {
                assert_eq!(in_pieces(MESSAGE, length, width), whole, "{length} {width}");
            }
        }
    }

    #[test]
    fn a_block_is_shown_when_it_has_ended() {
        let (mut stream, theme) = (MarkdownStream::default(), TerminalTheme::plain());
        let mut push = |piece: &str| texts(&stream.push(piece, 45, &theme));
        assert!(push("One ").is_empty());
        assert!(push("line.\n").is_empty(), "it may go on");
        assert_eq!(push("\n"), ["One line."]);
        assert!(push("```sh\nls\n\n").is_empty());
        assert!(push("``").is_empty());
        assert_eq!(push("`\n"), ["", "  sh", "  ls"]);
        assert!(push("- a\n\n").is_empty());
        assert_eq!(push("End\n"), ["", "• a"]);
        assert_eq!(texts(&stream.finish(45, &theme)), ["", "End"]);
        assert!(stream.finish(45, &theme).is_empty());
    }

    #[test]
    fn text_is_wrapped_and_code_is_left_to_the_terminal() {
        let long = "word ".repeat(30);
        let code = "x".repeat(100);
        let lines = in_pieces(&format!("{long}\n\n    {code}\n"), 9, 45);
        assert!(lines.iter().all(|line| line.len() <= 45 || line.trim() == code), "{lines:?}");
        assert!(lines.iter().any(|line| line.trim() == code), "it can be copied: {lines:?}");
    }

    #[test]
    fn no_text_is_lost_to_a_definition_of_a_link() {
        let lines = in_pieces("[a]\n\n[a]: https://x.y \"t\"\n\n[b]: <z>\n", 4, 80);
        assert_eq!(lines, ["[a]", "", "[a]: https://x.y \"t\"", "", "[b]: <z>"]);
    }

    #[test]
    fn a_block_that_never_ends_is_shown_as_it_is() {
        let line = "x".repeat(1000);
        let many = format!("```\n{}", format!("{line}\n").repeat(1100));
        let lines = in_pieces(&many, 100_000, 80);
        assert_eq!(lines.iter().filter(|shown| **shown == line).count(), 1100);
    }

    #[test]
    fn hostile_text_breaks_nothing() {
        for text in
            ["\u{0}", "&#27;[2J", "```\u{1b}\n", "> ".repeat(5000).as_str(), "|\n|-|\n|", "\r\r\n"]
        {
            for length in [1, 3, 1000] {
                in_pieces(text, length, 45);
            }
        }
    }
}
