//! Text of others, made harmless and fitted to a width.

use heeler_model::steers_terminal;
use ratatui::buffer::CellWidth as _;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation as _;

/// How wide a tab is shown.
const TAB: &str = "    ";

/// Returns text without anything that could steer a terminal; tabs are spaces.
pub(crate) fn harmless(text: &str) -> String {
    let lines = text.replace("\r\n", "\n").replace('\r', "\n");
    let stripped = anstream::adapter::strip_str(&lines).to_string();
    let mut shown = String::with_capacity(stripped.len());
    for c in stripped.chars() {
        match c {
            '\t' => shown.push_str(TAB),
            c if steers_terminal(c) => {}
            c => shown.push(c),
        }
    }
    shown
}

/// Returns text on one line, harmless.
pub(crate) fn one_line(text: &str) -> String {
    harmless(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns text in which nothing hides: whoever allows something must see what it is.
pub(crate) fn open_text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push(c),
            '\t' => shown.push_str(TAB),
            c if hides(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

fn hides(c: char) -> bool {
    let is_blank = c != ' ' && c.is_whitespace();
    let is_blank = is_blank || matches!(c, '\u{ad}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}');
    is_blank || steers_terminal(c) || width(c.encode_utf8(&mut [0; 4])) == 0
}

/// Returns how many columns a text without line breaks takes.
pub(crate) fn width(text: &str) -> usize {
    text.graphemes(true).map(columns).sum()
}

/// Returns how many columns a grapheme takes; none where it cannot be shown.
pub(crate) fn columns(grapheme: &str) -> usize {
    match grapheme.contains(char::is_control) {
        true => 0,
        false => usize::from(grapheme.cell_width()),
    }
}

/// Returns the beginning of a text that fits, with `…` where something is missing.
pub(crate) fn shortened(text: &str, columns_max: usize) -> String {
    // No grapheme of one byte is wider than a column: short text needs no counting.
    if text.len() <= columns_max || width(text) <= columns_max {
        return text.to_owned();
    }
    let mut taken = 0;
    let mut shown = String::new();
    for grapheme in text.graphemes(true) {
        taken += columns(grapheme);
        if taken + 1 > columns_max {
            break;
        }
        shown.push_str(grapheme);
    }
    if columns_max > 0 {
        shown.push('…');
    }
    shown
}

/// Returns the longest beginning of at most so many bytes, and whether that is all.
pub(crate) fn beginning(text: &str, bytes_max: usize) -> (&str, bool) {
    let end = text.floor_char_boundary(bytes_max.min(text.len()));
    (&text[..end], end == text.len())
}

/// Where a line may be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Break {
    /// Between words, which swallows the blanks there; within one only if it fills a line.
    Words,
    /// Anywhere: blanks count.
    Anywhere,
}

/// Lays out text between margins.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Begins the first line.
    pub(crate) first: Vec<Span<'static>>,
    /// Begins every further line.
    pub(crate) rest: Vec<Span<'static>>,
    /// How many columns there are.
    pub(crate) width: usize,
    /// Where lines are broken.
    pub(crate) breaks: Break,
}

impl Flow {
    /// Lays out text in which `\n` ends a line.
    pub(crate) fn lines(&self, spans: &[Span<'_>], out: &mut Vec<Line<'static>>) {
        let glyphs: Vec<Glyph<'_>> = spans.iter().flat_map(glyphs).collect();
        let mut is_first = true;
        for line in glyphs.split(|glyph| glyph.text == "\n") {
            let mut left = line;
            loop {
                let margin = if is_first { &self.first } else { &self.rest };
                let room = self.width.saturating_sub(margin_width(margin)).max(1);
                let (taken, next) = self.cut(left, room);
                out.push(line_of(margin, &left[..taken], room));
                is_first = false;
                left = &left[next..];
                if left.is_empty() {
                    break;
                }
            }
        }
    }

    /// Returns how many glyphs are on the next line, and where the one after begins.
    fn cut(&self, glyphs: &[Glyph<'_>], room: usize) -> (usize, usize) {
        let mut used = 0;
        // Where the line may end, and where the next begins then.
        let mut fits = None;
        for (at, glyph) in glyphs.iter().enumerate() {
            let is_blank = self.breaks == Break::Words && glyph.text == " ";
            used += glyph.columns;
            if is_blank {
                let next = at + glyphs[at..].iter().take_while(|glyph| glyph.text == " ").count();
                // Blanks that begin a line are its indent.
                if at > 0 && glyphs[at - 1].text != " " {
                    fits = Some((at, next));
                }
                continue;
            }
            if used > room {
                let (end, next) = fits.unwrap_or((at.max(1), at.max(1)));
                return (end, next.max(1));
            }
            let breaks_after = glyph.columns > 1 || self.breaks == Break::Anywhere;
            let mark_follows = glyphs.get(at + 1).is_some_and(|next| next.columns == 0);
            if breaks_after && !mark_follows {
                fits = Some((at + 1, at + 1));
            }
        }
        (glyphs.len(), glyphs.len())
    }
}

#[derive(Clone, Copy)]
struct Glyph<'a> {
    text: &'a str,
    columns: usize,
    style: Style,
}

fn glyphs<'a>(span: &'a Span<'_>) -> impl Iterator<Item = Glyph<'a>> {
    let style = span.style;
    span.content.graphemes(true).map(move |text| Glyph { text, columns: columns(text), style })
}

fn margin_width(margin: &[Span<'static>]) -> usize {
    margin.iter().map(|span| width(&span.content)).sum()
}

fn line_of(margin: &[Span<'static>], glyphs: &[Glyph<'_>], room: usize) -> Line<'static> {
    let mut spans: Vec<Span<'static>> = margin.to_vec();
    let mut text = String::new();
    let mut style = Style::new();
    for glyph in glyphs {
        if glyph.style != style && !text.is_empty() {
            spans.push(Span::styled(std::mem::take(&mut text), style));
        }
        style = glyph.style;
        // One that no line has room for stands there as one that does.
        text.push_str(if glyph.columns > room { "�" } else { glyph.text });
    }
    if !text.is_empty() {
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, width: usize, breaks: Break, expected: &[&str]) {
        let flow = Flow { first: vec!["- ".into()], rest: vec!["  ".into()], width, breaks };
        let mut lines = vec![];
        flow.lines(&[Span::raw(text)], &mut lines);
        let lines: Vec<String> = lines.iter().map(Line::to_string).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn words_are_kept_whole_where_a_line_has_room_for_them() {
        check("one two three", 9, Break::Words, &["- one two", "  three"]);
        check("one   two", 5, Break::Words, &["- one", "  two"]);
        check("abcdefgh ij", 6, Break::Words, &["- abcd", "  efgh", "  ij"]);
        check("a\n\n  b", 8, Break::Words, &["- a", "  ", "    b"]);
        check("a b", 0, Break::Words, &["- a", "  b"]);
        check("a  b", 5, Break::Anywhere, &["- a  ", "  b"]);
    }

    #[test]
    fn wide_characters_and_marks_are_never_split() {
        check("日本語です", 6, Break::Words, &["- 日本", "  語で", "  す"]);
        check("日本", 3, Break::Words, &["- �", "  �"]);
        check("e\u{301}e\u{301}e\u{301}", 4, Break::Words, &["- e\u{301}e\u{301}", "  e\u{301}"]);
        let family = "👨\u{200d}👩\u{200d}👧";
        check(
            &format!("{family}{family}"),
            4,
            Break::Words,
            &[&format!("- {family}"), &format!("  {family}")],
        );
    }

    #[test]
    fn what_steers_a_terminal_is_gone_and_what_hides_is_told() {
        assert_eq!(
            harmless("\x1b[31mred\x1b[0m\x1b]0;title\x07\u{9b}2J\u{202e}\tx\r\ny"),
            "red2J    x\ny"
        );
        assert_eq!(one_line(" a\n\tb "), "a b");
        assert_eq!(open_text("a\u{200b}b\x1b[m\n"), "a\\u{200b}b\\u{1b}[m\n");
        assert_eq!(shortened("日本語", 5), "日本…");
        assert_eq!(shortened("日本語", 4), "日…");
        assert_eq!(shortened("abc", 0), "");
    }
}
