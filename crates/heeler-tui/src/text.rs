//! Untrusted text: sanitizing, and fitting to a width.

pub(crate) use heeler_model::one_line;
use ratatui::buffer::CellWidth as _;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation as _;

/// Replacement of a tab.
const TAB: &str = "    ";

/// Returns text without terminal control characters; tabs become spaces.
pub(crate) fn sanitize(text: &str) -> String {
    // A bare carriage return would move the cursor to the start of the line.
    let lines = text.replace("\r\n", "\n").replace('\r', "\n");
    heeler_model::sanitize(&lines).replace('\t', TAB)
}

/// Returns text with hidden characters written as numbers: a person must see exactly what they
/// allow.
pub(crate) fn reveal_hidden(text: &str) -> String {
    heeler_model::reveal_hidden(text).replace('\t', TAB)
}

/// Returns the display width of a text without line breaks.
pub(crate) fn width(text: &str) -> usize {
    // By grapheme, because a sequence such as a flag is one symbol on the screen.
    text.graphemes(true).map(columns).sum()
}

/// Returns the display width of a grapheme; 0 if it cannot be shown.
pub(crate) fn columns(grapheme: &str) -> usize {
    match grapheme.as_bytes() {
        [byte] => usize::from(!byte.is_ascii_control()),
        _ if grapheme.contains(char::is_control) => 0,
        _ => usize::from(grapheme.cell_width()),
    }
}

/// Returns the beginning of a text that fits, with `…` if it was shortened.
pub(crate) fn truncate_to_width(text: &str, columns_max: usize) -> String {
    // A grapheme is never wider than its bytes, so short text needs no counting.
    if text.len() <= columns_max || width(text) <= columns_max {
        return text.to_owned();
    }
    let mut taken = 0;
    let mut shown = String::new();
    for grapheme in text.graphemes(true) {
        taken += columns(grapheme);
        // One column is left for the ellipsis.
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

/// Returns the longest prefix within a number of bytes; the flag is true if it is the whole text.
pub(crate) fn byte_prefix(text: &str, bytes_max: usize) -> (&str, bool) {
    let end = text.floor_char_boundary(bytes_max.min(text.len()));
    (&text[..end], end == text.len())
}

/// Positions at which a line may be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineBreakMode {
    /// Between words, without the whitespace there; within a word only if it exceeds a line.
    Words,
    /// Anywhere; whitespace is kept.
    Anywhere,
}

/// Lays out text between margins.
#[derive(Debug, Clone)]
pub(crate) struct TextFlow {
    /// Margin of the first line.
    pub(crate) first_margin: Vec<Span<'static>>,
    /// Margin of further lines.
    pub(crate) rest_margin: Vec<Span<'static>>,
    /// Total columns.
    pub(crate) width: usize,
    pub(crate) breaks: LineBreakMode,
}

impl TextFlow {
    /// Lays out text in which `\n` ends a line.
    pub(crate) fn push_lines(&self, spans: &[Span<'_>], out: &mut Vec<Line<'static>>) {
        let before = out.len();
        let mut line = vec![];
        for glyph in spans.iter().flat_map(glyphs) {
            if glyph.text == "\n" {
                self.push_wrapped_line(&line, before, out);
                line.clear();
            } else {
                line.push(glyph);
            }
        }
        self.push_wrapped_line(&line, before, out);
    }

    /// Wraps one line of text; `before` is the number of lines before the text.
    fn push_wrapped_line(
        &self,
        glyphs: &[StyledGlyph<'_>],
        before: usize,
        out: &mut Vec<Line<'static>>,
    ) {
        let mut left = glyphs;
        loop {
            let margin = if out.len() == before { &self.first_margin } else { &self.rest_margin };
            // At least one column, or a narrow window would never end a line.
            let room = self.width.saturating_sub(margin_width(margin)).max(1);
            let (taken, next) = self.split_line(left, room);
            out.push(build_line(margin, &left[..taken], room));
            left = &left[next..];
            if left.is_empty() {
                return;
            }
        }
    }

    /// Returns the number of glyphs on the next line, and the start of the following one.
    fn split_line(&self, glyphs: &[StyledGlyph<'_>], room: usize) -> (usize, usize) {
        let mut used = 0;
        // Possible end of the line, and the start of the next one.
        let mut fits = None;
        for (at, glyph) in glyphs.iter().enumerate() {
            let is_blank = self.breaks == LineBreakMode::Words && glyph.text == " ";
            used += glyph.columns;
            if is_blank {
                // Spaces at the start of a line are its indent.
                if at > 0 && glyphs[at - 1].text != " " {
                    let blanks = glyphs[at..].iter().take_while(|glyph| glyph.text == " ");
                    fits = Some((at, at + blanks.count()));
                }
                continue;
            }
            if used > room {
                // A word that is longer than the line is broken.
                let (end, next) = fits.unwrap_or((at.max(1), at.max(1)));
                return (end, next.max(1));
            }
            // Languages without blanks use wide characters, and may be broken after any of them.
            let breaks_after = glyph.columns > 1 || self.breaks == LineBreakMode::Anywhere;
            let combining_follows = glyphs.get(at + 1).is_some_and(|next| next.columns == 0);
            // A mark without width belongs to the character before it.
            if breaks_after && !combining_follows {
                fits = Some((at + 1, at + 1));
            }
        }
        (glyphs.len(), glyphs.len())
    }
}

#[derive(Clone, Copy)]
struct StyledGlyph<'a> {
    text: &'a str,
    columns: usize,
    style: Style,
}

fn glyphs<'a>(span: &'a Span<'_>) -> impl Iterator<Item = StyledGlyph<'a>> {
    let style = span.style;
    span.content.graphemes(true).map(move |text| StyledGlyph {
        text,
        columns: columns(text),
        style,
    })
}

fn margin_width(margin: &[Span<'static>]) -> usize {
    margin.iter().map(|span| width(&span.content)).sum()
}

fn build_line(margin: &[Span<'static>], glyphs: &[StyledGlyph<'_>], room: usize) -> Line<'static> {
    let mut spans: Vec<Span<'static>> = margin.to_vec();
    let mut text = String::new();
    let mut style = Style::new();
    for glyph in glyphs {
        if glyph.style != style && !text.is_empty() {
            spans.push(Span::styled(std::mem::take(&mut text), style));
        }
        style = glyph.style;
        // A glyph wider than a line is replaced by one that fits.
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
    fn check(text: &str, width: usize, breaks: LineBreakMode, expected: &[&str]) {
        let flow = TextFlow {
            first_margin: vec!["- ".into()],
            rest_margin: vec!["  ".into()],
            width,
            breaks,
        };
        let mut lines = vec![];
        flow.push_lines(&[Span::raw(text)], &mut lines);
        let lines: Vec<String> = lines.iter().map(Line::to_string).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn words_are_kept_whole_where_a_line_has_room_for_them() {
        check("one two three", 9, LineBreakMode::Words, &["- one two", "  three"]);
        check("one   two", 5, LineBreakMode::Words, &["- one", "  two"]);
        check("abcdefgh ij", 6, LineBreakMode::Words, &["- abcd", "  efgh", "  ij"]);
        check("a\n\n  b", 8, LineBreakMode::Words, &["- a", "  ", "    b"]);
        check("a b", 0, LineBreakMode::Words, &["- a", "  b"]);
        check("a  b", 5, LineBreakMode::Anywhere, &["- a  ", "  b"]);
    }

    #[test]
    fn wide_characters_and_marks_are_never_split() {
        check("日本語です", 6, LineBreakMode::Words, &["- 日本", "  語で", "  す"]);
        check("日本", 3, LineBreakMode::Words, &["- �", "  �"]);
        check(
            "e\u{301}e\u{301}e\u{301}",
            4,
            LineBreakMode::Words,
            &["- e\u{301}e\u{301}", "  e\u{301}"],
        );
        let family = "👨\u{200d}👩\u{200d}👧";
        check(
            &format!("{family}{family}"),
            4,
            LineBreakMode::Words,
            &[&format!("- {family}"), &format!("  {family}")],
        );
    }

    #[test]
    fn text_that_steers_a_terminal_or_hides_is_made_visible() {
        assert_eq!(
            sanitize("\x1b[31mred\x1b[0m\x1b]0;title\x07\u{9b}2J\u{202e}\tx\r\ny"),
            "red\\u{1b}]0;title\\u{7}\\u{9b}2J\\u{202e}    x\ny"
        );
        assert_eq!(one_line(" a\n\tb "), "a b");
        assert_eq!(reveal_hidden("a\u{200b}b\x1b[m\n"), "a\\u{200b}b\\u{1b}[m\n");
        assert_eq!(truncate_to_width("日本語", 5), "日本…");
        assert_eq!(truncate_to_width("日本語", 4), "日…");
        assert_eq!(truncate_to_width("abc", 0), "");
    }
}
