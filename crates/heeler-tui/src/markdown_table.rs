//! Layout of a table: columns are aligned as the table says, and cells wrap within their column.

use pulldown_cmark::Alignment;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::TerminalTheme;
use crate::text::{LineBreakMode, TextFlow, width as width_of};

/// Space between two columns.
const SEPARATOR: &str = " │ ";

/// Narrowest column in which words are wrapped. A table that needs narrower ones is shown without
/// columns.
const COLUMN_MIN: usize = 6;

/// Table of a message, with its header as the first row.
pub(crate) struct MarkdownTable {
    pub(crate) alignments: Vec<Alignment>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl MarkdownTable {
    /// Lays out the table between the margins of a flow.
    pub(crate) fn push_lines(
        &self,
        flow: &TextFlow,
        theme: &TerminalTheme,
        lines: &mut Vec<Line<'static>>,
    ) {
        let margin: usize = flow.rest_margin.iter().map(|span| width_of(&span.content)).sum();
        let widths = self.column_widths(flow.width.saturating_sub(margin));
        let mut is_first = true;
        for (number, row) in self.rows.iter().enumerate() {
            let style = if number == 0 { theme.heading } else { Style::new() };
            let Some(widths) = &widths else {
                // Too narrow for columns: the row wraps as text.
                let text = Span::styled(row.join(SEPARATOR), style);
                flow.push_lines(&[text], lines);
                continue;
            };
            for text in self.row_lines(row, widths) {
                let margin = if is_first { &flow.first_margin } else { &flow.rest_margin };
                is_first = false;
                let mut spans = margin.clone();
                spans.push(Span::styled(text, style));
                lines.push(Line::from(spans));
            }
        }
    }

    /// Returns the widths of the columns; `None` if there is no room for columns. The widest columns
    /// give way first.
    fn column_widths(&self, room: usize) -> Option<Vec<usize>> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let natural = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            cells.map(String::as_str).map(width_of).max().unwrap_or_default()
        };
        let mut widths: Vec<usize> = (0..columns).map(natural).collect();
        let room = room.checked_sub(width_of(SEPARATOR) * columns.saturating_sub(1))?;
        let mut total: usize = widths.iter().sum();
        while total > room {
            let next = widths.iter().copied().filter(|width| *width > COLUMN_MIN).max()?;
            // All columns of this width shrink to the next smaller one, or as far as needed.
            let count = widths.iter().filter(|width| **width == next).count();
            let below = widths.iter().copied().filter(|width| *width < next).max();
            let floor = below.unwrap_or(COLUMN_MIN).max(COLUMN_MIN);
            let cut = (next - floor).min((total - room).div_ceil(count));
            let widest = widths.iter_mut().filter(|width| **width == next);
            widest.for_each(|width| *width -= cut);
            total -= cut * count;
        }
        Some(widths)
    }

    /// Returns the lines of a row.
    fn row_lines(&self, row: &[String], widths: &[usize]) -> Vec<String> {
        let wrap = |(at, cell): (usize, &String)| -> Vec<String> {
            let flow = TextFlow {
                first_margin: vec![],
                rest_margin: vec![],
                width: widths[at],
                breaks: LineBreakMode::Words,
            };
            let mut lines = vec![];
            flow.push_lines(&[Span::raw(cell.clone())], &mut lines);
            lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
        };
        let cells: Vec<Vec<String>> = row.iter().enumerate().map(wrap).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1);
        let line = |number: usize| {
            let texts = cells.iter().enumerate().map(|(at, cell)| {
                let text = cell.get(number).map_or("", String::as_str);
                self.align(at, text, widths[at])
            });
            texts.collect::<Vec<_>>().join(SEPARATOR).trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }

    fn align(&self, column: usize, text: &str, width: usize) -> String {
        let blank = width.saturating_sub(width_of(text));
        let before = match self.alignments.get(column) {
            Some(Alignment::Right) => blank,
            Some(Alignment::Center) => blank / 2,
            _ => 0,
        };
        format!("{}{text}{}", " ".repeat(before), " ".repeat(blank - before))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use crate::TerminalTheme;
    use crate::markdown::markdown_lines;

    #[track_caller]
    fn check(text: &str, width: usize, expected: Expect) {
        let lines = markdown_lines(text, width, &TerminalTheme::plain());
        let lines: Vec<String> =
            lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect();
        expected.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn columns_are_aligned_as_the_table_says() {
        check(
            "| file | lines | state |\n|:---|---:|:---:|\n| a.rs | 7 | ok |\n| long.rs | 1200 | failed |\n\nafter",
            40,
            expect![[r#"
                file    │ lines │ state
                a.rs    │     7 │   ok
                long.rs │  1200 │ failed

                after"#]],
        );
    }

    #[test]
    fn cells_wrap_within_their_column_and_a_tiny_window_has_no_columns() {
        let table = "| name | what |\n|---|---|\n| a | the first thing of all |\n| long name | x |\n\nafter";
        check(
            table,
            22,
            expect![[r#"
                name      │ what
                a         │ the first
                          │ thing of
                          │ all
                long name │ x

                after"#]],
        );
        check(
            table,
            9,
            expect![[r#"
                name │
                what
                a │ the
                first
                thing of
                all
                long name
                │ x

                after"#]],
        );
    }

    #[test]
    fn no_table_breaks_the_layout() {
        for width in 0..40 {
            for text in ["| |\n|---|\n", "|a|b|c|\n|-|-|-|\n|日本語日本語|x\n", "|a|\n|-|\n"]
            {
                markdown_lines(text, width, &TerminalTheme::dark());
            }
        }
    }
}
