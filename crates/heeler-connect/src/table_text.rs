//! Tables of Markdown as text with aligned columns, for platforms that show none.
//!
//! Start at [`align_tables`].

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Widest table that is shown with aligned columns, in characters.
const WIDTH_MAX: usize = 100;

/// Text between two columns.
const COLUMN_GAP: &str = " | ";

/// A table with the place of its source.
struct TextTable {
    source: Range<usize>,
    /// Cells by row. The first row has the headings.
    rows: Vec<Vec<String>>,
}

/// Replaces tables by code blocks with aligned columns. Tables that are too wide, and those in lists and
/// quotes, stay as they are.
pub(crate) fn align_tables(markdown: &str) -> String {
    let (mut text, mut copied) = (String::new(), 0);
    for table in find_tables(markdown) {
        let widths = table.widths();
        if table_width(&widths) > WIDTH_MAX {
            continue;
        }
        text.push_str(&markdown[copied..table.source.start]);
        text.push_str(&table.render(&widths));
        if markdown[table.source.clone()].ends_with('\n') {
            text.push('\n');
        }
        copied = table.source.end;
    }
    text.push_str(&markdown[copied..]);
    text
}

/// Returns true if a text has a table that is too wide to be shown with aligned columns.
pub fn has_wide_table(markdown: &str) -> bool {
    find_tables(markdown).iter().any(|table| table_width(&table.widths()) > WIDTH_MAX)
}

/// Finds the tables outside of other blocks.
fn find_tables(markdown: &str) -> Vec<TextTable> {
    // Most texts have none.
    if !markdown.contains('|') {
        return Vec::new();
    }
    let (mut tables, mut depth): (Vec<TextTable>, usize) = (Vec::new(), 0);
    let mut is_in_table = false;
    for (event, source) in Parser::new_ext(markdown, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Table(_)) if depth == 0 => {
                is_in_table = true;
                tables.push(TextTable { source, rows: Vec::new() });
            }
            Event::End(TagEnd::Table) if is_in_table => is_in_table = false,
            Event::Start(tag) if is_in_table => {
                if let Some(table) = tables.last_mut() {
                    table.start(&tag);
                }
            }
            Event::Text(text) | Event::Code(text) if is_in_table => {
                if let Some(cell) = tables.last_mut().and_then(TextTable::last_cell) {
                    // It cannot end the code block.
                    cell.push_str(&text.replace('`', "'"));
                }
            }
            Event::End(_) if is_in_table => {}
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    tables
}

impl TextTable {
    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::TableHead | Tag::TableRow => self.rows.push(Vec::new()),
            Tag::TableCell => {
                if let Some(row) = self.rows.last_mut() {
                    row.push(String::new());
                }
            }
            _ => {}
        }
    }

    fn last_cell(&mut self) -> Option<&mut String> {
        self.rows.last_mut()?.last_mut()
    }

    /// Returns the widths of the columns, in characters.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            for (place, cell) in row.iter().enumerate() {
                let width = cell.chars().count();
                match widths.get_mut(place) {
                    Some(widest) => *widest = width.max(*widest),
                    None => widths.push(width),
                }
            }
        }
        widths
    }

    fn render(&self, widths: &[usize]) -> String {
        let mut text = "```\n".to_owned();
        for (number, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(widths);
            let cells: Vec<String> =
                cells.map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
            text.push_str(cells.join(COLUMN_GAP).trim_end());
            text.push('\n');
            if number == 0 {
                let line: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                text.push_str(&line.join("-+-"));
                text.push('\n');
            }
        }
        text.push_str("```");
        text
    }
}

fn table_width(widths: &[usize]) -> usize {
    let gaps = widths.len().saturating_sub(1) * COLUMN_GAP.len();
    widths.iter().fold(gaps, |sum, width| sum.saturating_add(*width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_a_code_block_with_aligned_columns() {
        let text =
            "Costs:\n\n| agent | `usd` |\n|---|--:|\n| coder | 1.20 |\n| a *b* | |\n\nThat is all.";
        let expected =
            "Costs:\n\n```\nagent | usd\n------+-----\ncoder | 1.20\na b   |\n```\n\nThat is all.";
        assert_eq!(align_tables(text), expected);
        assert!(!has_wide_table(text));
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        let wide = format!("| a | b |\n|---|---|\n| {} | c |\n", "x".repeat(WIDTH_MAX));
        assert!(has_wide_table(&wide));
        for text in
            ["", "a | b", "```\n| a |\n|---|\n```", "- x\n\n  | a |\n  |---|\n", wide.as_str()]
        {
            assert_eq!(align_tables(text), text);
        }
        // Neither a cell nor the table can end the code block.
        assert!(!align_tables("| ``` |\n|---|\n").trim_matches(['`', '\n']).contains("```"));
    }
}
