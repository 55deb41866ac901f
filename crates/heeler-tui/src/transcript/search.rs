//! Search in the loaded part of a transcript, newest match first.

use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::{ScrollPosition, TranscriptWidget};
use crate::TerminalTheme;

/// Direction of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchDirection {
    Older,
    Newer,
}

/// Open search in a transcript.
#[derive(Debug, Default)]
pub(crate) struct TranscriptSearch {
    pub(crate) pattern: String,
    /// Number of the cell that was found last.
    cell: Option<i64>,
    is_missing: bool,
}

impl TranscriptSearch {
    /// Returns the prompt of the search.
    pub(crate) fn prompt(&self) -> String {
        let state = match self.is_missing {
            true => " · not above; /search searches the whole session",
            false => " · ↑ older · ↓ newer · Esc ends",
        };
        format!("find: {}{state}", self.pattern)
    }

    /// Searches from the end again, after the pattern was changed.
    pub(crate) fn restart(&mut self, transcript: &mut TranscriptWidget, theme: &TerminalTheme) {
        self.cell = None;
        self.find(transcript, SearchDirection::Older, theme);
    }

    /// Scrolls to the next match. Without one, the position stays.
    pub(crate) fn find(
        &mut self,
        transcript: &mut TranscriptWidget,
        direction: SearchDirection,
        theme: &TerminalTheme,
    ) {
        if self.pattern.is_empty() {
            self.is_missing = false;
            return;
        }
        let found = transcript.find_cell(&self.pattern.to_lowercase(), self.cell, direction);
        self.is_missing = found.is_none();
        if let Some(cell) = found {
            self.cell = Some(cell);
            transcript.show_match(cell, &self.pattern.to_lowercase(), theme);
        }
    }
}

impl TranscriptWidget {
    /// Returns the number of the next cell with a text, which is in lower case.
    fn find_cell(
        &self,
        pattern: &str,
        from: Option<i64>,
        direction: SearchDirection,
    ) -> Option<i64> {
        let numbered =
            self.cells.iter().enumerate().map(|(at, held)| (self.first + at as i64, held));
        let matching = |(_, held): &(i64, &super::HeldCell)| held.cell.contains(pattern);
        match direction {
            SearchDirection::Older => {
                let is_older = |(number, _): &(i64, _)| from.is_none_or(|from| *number < from);
                numbered.rev().filter(is_older).find(matching)
            }
            SearchDirection::Newer => {
                let is_newer = |(number, _): &(i64, _)| from.is_some_and(|from| *number > from);
                numbered.filter(is_newer).find(matching)
            }
        }
        .map(|(number, _)| number)
    }

    /// Scrolls so that the first line with a match is near the top.
    fn show_match(&mut self, cell: i64, pattern: &str, theme: &TerminalTheme) {
        let Some(at) = super::cell_index(cell, self.first) else { return };
        let lines = self.layout_cell(at, theme);
        // A match that wraps, or that is folded, has no line of its own.
        let line = lines.iter().position(|line| line.to_string().to_lowercase().contains(pattern));
        self.position = ScrollPosition::At { cell, line: line.unwrap_or_default() };
    }
}

/// Marks the matches in a line.
pub(crate) fn mark_matches(line: &mut Line<'static>, pattern: &str) {
    let text = line.to_string();
    let lower = text.to_lowercase();
    // Some letters have another length in lower case, and then positions would not fit.
    if pattern.is_empty() || lower.len() != text.len() {
        return;
    }
    let pattern = pattern.to_lowercase();
    let matches: Vec<(usize, usize)> =
        lower.match_indices(&pattern).map(|(at, found)| (at, at + found.len())).collect();
    if matches.is_empty() {
        return;
    }
    let mut marked = vec![];
    let mut start = 0;
    for span in std::mem::take(&mut line.spans) {
        let end = start + span.content.len();
        let mut edges: Vec<usize> = matches.iter().flat_map(|(from, to)| [*from, *to]).collect();
        edges.retain(|at| (start..end).contains(at));
        edges.push(end);
        let mut from = start;
        for edge in edges {
            // An edge inside of a character cannot be marked.
            let Some(part) = span.content.get(from - start..edge - start) else { continue };
            if !part.is_empty() {
                let is_match = matches.iter().any(|(first, last)| *first <= from && from < *last);
                let style = match is_match {
                    true => span.style.add_modifier(Modifier::REVERSED),
                    false => span.style,
                };
                marked.push(Span::styled(part.to_owned(), style));
            }
            from = edge;
        }
        start = end;
    }
    line.spans = marked;
}

#[cfg(test)]
mod tests {
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn matches_are_marked_across_spans_and_nothing_else() {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut line = Line::from(vec![
            Span::raw("one Tw"),
            Span::styled("o three two", bold),
            Span::raw("!"),
        ]);
        mark_matches(&mut line, "two");
        let marked: Vec<&str> = line
            .spans
            .iter()
            .filter(|span| span.style.add_modifier.contains(Modifier::REVERSED))
            .map(|span| span.content.as_ref())
            .collect();
        assert_eq!(marked, ["Tw", "o", "two"]);
        assert_eq!(line.to_string(), "one Two three two!");
        let mut strange = Line::from("İ x");
        mark_matches(&mut strange, "x");
        assert_eq!(strange.to_string(), "İ x");
    }
}
