//! Text editor of the input: cursor, readline keys, undo.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;

use crate::text::columns;

/// Most changes that can be undone.
const UNDO_MAX: usize = 100;

/// Longest text whose changes can be undone, because each step keeps the whole text.
const UNDO_BYTES_MAX: usize = 32 * 1024;

/// Length limit of the text; an insertion beyond it is rejected.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;

/// Display width of a tab.
pub(crate) const TAB_COLUMNS: usize = 4;

/// Text with a cursor.
#[derive(Debug, Default)]
pub(crate) struct TextEditor {
    text: String,
    /// Offset of the cursor, at a grapheme boundary.
    cursor: usize,
    /// Text that was cut last.
    last_cut: String,
    undo: Vec<(String, usize)>,
}

/// Layout of the text for a number of columns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EditorLayout {
    /// Range of the text in each row.
    pub(crate) rows: Vec<Range<usize>>,
    /// Row and column of the cursor.
    pub(crate) cursor: (usize, usize),
}

impl TextEditor {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }

    /// Replaces the text; the cursor moves to its end.
    pub(crate) fn set(&mut self, text: &str) {
        self.push_undo();
        text.clone_into(&mut self.text);
        self.cursor = self.text.len();
    }

    /// Takes the whole text.
    pub(crate) fn take(&mut self) -> String {
        self.cursor = 0;
        // Undo must not bring back a message that was sent.
        self.undo.clear();
        std::mem::take(&mut self.text)
    }

    /// Inserts at the cursor; returns false if there is no room.
    pub(crate) fn insert(&mut self, text: &str) -> bool {
        if self.text.len() + text.len() > TEXT_BYTES_MAX {
            return false;
        }
        // A word is undone as a whole.
        if text.chars().count() != 1 || text.contains(char::is_whitespace) || self.undo.is_empty() {
            self.push_undo();
        }
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
        true
    }

    /// Replaces a range; the cursor moves behind it.
    pub(crate) fn replace(&mut self, range: Range<usize>, with: &str) {
        self.push_undo();
        self.text.replace_range(range.clone(), with);
        self.cursor = range.start + with.len();
    }

    fn push_undo(&mut self) {
        let is_known = self.undo.last().is_some_and(|(text, _)| *text == self.text);
        if is_known || self.text.len() > UNDO_BYTES_MAX {
            return;
        }
        if self.undo.len() == UNDO_MAX {
            self.undo.remove(0);
        }
        self.undo.push((self.text.clone(), self.cursor));
    }

    /// Undoes the last change.
    pub(crate) fn undo(&mut self) {
        if let Some((text, cursor)) = self.undo.pop() {
            (self.text, self.cursor) = (text, cursor);
        }
    }

    fn previous_grapheme(&self) -> usize {
        let left = self.text[..self.cursor].graphemes(true).next_back();
        self.cursor - left.map_or(0, str::len)
    }

    fn next_grapheme(&self) -> usize {
        self.cursor + self.text[self.cursor..].graphemes(true).next().map_or(0, str::len)
    }

    fn word_before(&self) -> usize {
        let left = self.text[..self.cursor].trim_end_matches(|c: char| !c.is_alphanumeric());
        left.trim_end_matches(char::is_alphanumeric).len()
    }

    fn word_after(&self) -> usize {
        let right = self.text[self.cursor..].trim_start_matches(|c: char| !c.is_alphanumeric());
        let right = right.trim_start_matches(char::is_alphanumeric);
        self.text.len() - right.len()
    }

    /// Returns the start of the whitespace-separated word that Ctrl+W cuts.
    fn word_start_before(&self) -> usize {
        let left = self.text[..self.cursor].trim_end();
        // The blank may have several bytes.
        left.rfind(char::is_whitespace).map_or(0, |at| self.text.ceil_char_boundary(at + 1))
    }

    fn line_start(&self) -> usize {
        self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at)
    }

    pub(crate) fn move_cursor(&mut self, to: CursorMotion) {
        self.cursor = self.target_offset(to);
    }

    /// Deletes from the cursor to the target.
    pub(crate) fn delete(&mut self, to: CursorMotion) {
        let range = self.range(to);
        if !range.is_empty() {
            self.replace(range, "");
        }
    }

    /// Cuts from the cursor to the target; at the end of a line, cuts the line break.
    pub(crate) fn cut(&mut self, to: CursorMotion) {
        let mut range = self.range(to);
        if range.is_empty() && to == CursorMotion::LineEnd {
            range = self.range(CursorMotion::NextGrapheme);
        }
        if !range.is_empty() {
            self.last_cut = self.text[range.clone()].to_owned();
            self.replace(range, "");
        }
    }

    /// Inserts the text that was cut last.
    pub(crate) fn paste_last_cut(&mut self) {
        let cut = std::mem::take(&mut self.last_cut);
        self.insert(&cut);
        self.last_cut = cut;
    }

    fn range(&self, to: CursorMotion) -> Range<usize> {
        let to = self.target_offset(to);
        to.min(self.cursor)..to.max(self.cursor)
    }

    fn target_offset(&self, to: CursorMotion) -> usize {
        match to {
            CursorMotion::PreviousGrapheme => self.previous_grapheme(),
            CursorMotion::NextGrapheme => self.next_grapheme(),
            CursorMotion::PreviousWord => self.word_before(),
            CursorMotion::NextWord => self.word_after(),
            CursorMotion::PreviousBlank => self.word_start_before(),
            CursorMotion::LineStart => self.line_start(),
            CursorMotion::LineEnd => self.line_end(),
            CursorMotion::Start => 0,
            CursorMotion::End => self.text.len(),
        }
    }

    /// Moves the cursor one row up or down; returns false if there is no such row.
    pub(crate) fn move_cursor_row(&mut self, down: bool, width: usize) -> bool {
        let EditorLayout { rows, cursor: (row, column) } = self.rows(width);
        let to = if down { row.checked_add(1) } else { row.checked_sub(1) };
        let Some(row) = to.and_then(|to| rows.get(to)) else { return false };
        let mut at = row.start;
        let mut used = 0;
        for grapheme in self.text[row.clone()].graphemes(true) {
            // A row may be shorter than the column of the cursor.
            if used >= column || grapheme == "\n" {
                break;
            }
            used += grapheme_columns(grapheme);
            at += grapheme.len();
        }
        self.cursor = at;
        true
    }

    /// Returns the layout. A full last row is followed by an empty one for the cursor.
    pub(crate) fn rows(&self, width: usize) -> EditorLayout {
        // A width of zero would never end.
        let width = width.max(1);
        let mut rows = vec![];
        let mut cursor = (0, 0);
        let (mut start, mut used) = (0, 0);
        for (at, grapheme) in self.text.grapheme_indices(true) {
            let columns = grapheme_columns(grapheme);
            // A wide character moves to the next row as a whole.
            if grapheme != "\n" && used + columns > width && used > 0 {
                rows.push(start..at);
                (start, used) = (at, 0);
            }
            if at == self.cursor {
                cursor = (rows.len(), used);
            }
            used += columns;
            if grapheme == "\n" {
                rows.push(start..at);
                (start, used) = (at + 1, 0);
            }
        }
        if self.cursor == self.text.len() {
            if used >= width {
                rows.push(start..self.text.len());
                (start, used) = (self.text.len(), 0);
            }
            cursor = (rows.len(), used);
        }
        rows.push(start..self.text.len());
        // A line break after a full row has no column of its own.
        EditorLayout { rows, cursor: (cursor.0, cursor.1.min(width.saturating_sub(1))) }
    }
}

/// Target of a cursor motion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CursorMotion {
    PreviousGrapheme,
    NextGrapheme,
    PreviousWord,
    NextWord,
    PreviousBlank,
    LineStart,
    LineEnd,
    Start,
    End,
}

/// Returns the display width of a grapheme in the editor.
pub(crate) fn grapheme_columns(grapheme: &str) -> usize {
    match grapheme {
        "\t" => TAB_COLUMNS,
        "\n" => 0,
        grapheme => columns(grapheme),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies `does` to a text in which `|` marks the cursor.
    #[track_caller]
    fn check(before: &str, does: impl Fn(&mut TextEditor), after: &str) {
        let at = before.find('|').unwrap();
        let mut editor = TextEditor::default();
        editor.insert(&before.replace('|', ""));
        editor.cursor = at;
        does(&mut editor);
        let (left, right) = editor.text.split_at(editor.cursor);
        assert_eq!(format!("{left}|{right}"), after);
    }

    #[test]
    fn keys_do_what_readline_does() {
        check("one two|", |it| it.cut(CursorMotion::PreviousBlank), "one |");
        check("a/b.c|", |it| it.delete(CursorMotion::PreviousWord), "a/b.|");
        check("|foo-bar", |it| it.move_cursor(CursorMotion::NextWord), "foo|-bar");
        check("a\nb|c\nd", |it| it.move_cursor(CursorMotion::LineStart), "a\n|bc\nd");
        check("a\nb|c\nd", |it| it.cut(CursorMotion::LineEnd), "a\nb|\nd");
        check("ab|\nd", |it| it.cut(CursorMotion::LineEnd), "ab|d");
        check("a|\u{301}b", |it| assert!(it.insert("x")), "ax|\u{301}b");
        check("日本|", |it| it.delete(CursorMotion::PreviousGrapheme), "日|");
        check("e\u{301}|", |it| it.delete(CursorMotion::PreviousGrapheme), "|");
        check(
            "one two|",
            |it| {
                it.cut(CursorMotion::PreviousWord);
                it.paste_last_cut();
                it.paste_last_cut();
            },
            "one twotwo|",
        );
        check(
            "x|",
            |it| {
                it.insert("ab");
                it.undo();
            },
            "x|",
        );
    }

    #[test]
    fn rows_are_as_wide_as_there_is_room_and_the_cursor_moves_between_them() {
        check("abcdef|", |it| assert!(it.move_cursor_row(false, 4)), "ab|cdef");
        check("ab|cdef", |it| assert!(!it.move_cursor_row(false, 4)), "ab|cdef");
        check("abc|\nd", |it| assert!(it.move_cursor_row(true, 9)), "abc\nd|");
        let mut editor = TextEditor::default();
        editor.set("日本語\n\tx");
        assert_eq!(
            editor.rows(4),
            EditorLayout { rows: vec![0..6, 6..9, 10..11, 11..12], cursor: (3, 1) }
        );
        editor.set("abcd");
        assert_eq!(editor.rows(4), EditorLayout { rows: vec![0..4, 4..4], cursor: (1, 0) });
        assert_eq!(editor.rows(0).rows.len(), 5);
    }

    #[test]
    fn a_text_has_an_end() {
        let mut editor = TextEditor::default();
        assert!(editor.insert(&"x".repeat(TEXT_BYTES_MAX)));
        assert!(!editor.insert("y"));
    }
}
