//! File changes: a unified diff as one table per file, with line numbers.
//!
//! The parser is lenient: text that is not a diff is shown unchanged. Start at [`page`].

use heeler_model::file_edit::{EditLine, FileEdit};
use heeler_model::reveal_hidden;
use heeler_query::diff::SessionDiff;
use maud::{Markup, html};

use crate::components::{activity_styles, encode_path, format_grouped, visible_line};
use crate::{DashboardSection, PageFrame};

/// Most lines of a diff on a page.
pub const LINES_MAX: usize = 5_000;

/// Most lines of a tool call's edit.
const EDIT_LINES_MAX: usize = 400;

/// Length limit of a line, in bytes.
const LINE_BYTES_MAX: usize = 4 * 1024;

/// Files that are shown expanded; further ones are collapsed.
const OPEN_FILES_MAX: usize = 20;

/// Range of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiffView {
    /// Message at which the range begins; `None` for the state before the first turn.
    pub from: Option<u64>,
    /// Message at which the range ends; `None` for the current state.
    pub to: Option<u64>,
}

pub fn page(frame: &PageFrame, view: DiffView, diff: &SessionDiff) -> Markup {
    let id = &diff.session;
    let home = encode_path("/sessions", &[id]);
    let files = parse_patch(diff.patch.as_deref().unwrap_or_default());
    let content = html! {
        (activity_styles())
        p.crumbs { a href="/sessions" { "Sessions" } " › " a.mono href=(home) { (id) } " › file changes" }
        div.head { h1 { "File changes" } span.muted { (describe_range(view)) } }
        (range_form(view, &home))
        @if let Some(note) = &diff.note { p.banner role="note" { (note) } }
        @if diff.cut { p.banner.warn role="note" { "The diff is too large: only its beginning is available." } }
        (file_list(&files))
    };
    frame.page(DashboardSection::Sessions, "File changes", content)
}

fn describe_range(view: DiffView) -> String {
    let from =
        view.from.map_or("before the first turn".to_owned(), |it| format!("after message {it}"));
    let to = view.to.map_or("now".to_owned(), |it| format!("after message {it}"));
    format!("{from} → {to}")
}

fn range_form(view: DiffView, home: &str) -> Markup {
    let text = |number: Option<u64>| number.map(|it| it.to_string());
    html! {
        form.filters action={ (home) "/diff" } role="search" aria-label="Compare other states" {
            div.field {
                label for="f-from" { "After message" }
                input #f-from name="from" type="number" min="1" placeholder="the beginning" value=[text(view.from)];
            }
            div.field {
                label for="f-to" { "Up to message" }
                input #f-to name="to" type="number" min="1" placeholder="now" value=[text(view.to)];
            }
            button.button { "Compare" }
        }
    }
}

/// File of a diff.
#[derive(Debug, Default, PartialEq)]
struct DiffFile {
    name: String,
    notes: Vec<String>,
    lines: Vec<DiffLine>,
    added: usize,
    removed: usize,
}

/// Line of a diff.
#[derive(Debug, PartialEq)]
enum DiffLine {
    Hunk(String),
    Unchanged(u64, u64, String),
    Added(u64, String),
    Removed(u64, String),
    Note(String),
}

/// Progress within a hunk: the next line number of each side, and the number of remaining lines.
#[derive(Debug, Default)]
struct DiffHunkParser {
    old: u64,
    new: u64,
    old_left: u64,
    new_left: u64,
}

impl DiffHunkParser {
    /// Parses `@@ -1,2 +3,4 @@ …`.
    fn parse_header(line: &str) -> Option<DiffHunkParser> {
        let mut words = line.strip_prefix("@@ -")?.split(' ');
        let (old, old_left) = parse_range(words.next()?)?;
        let (new, new_left) = parse_range(words.next()?.strip_prefix('+')?)?;
        Some(DiffHunkParser { old, new, old_left, new_left })
    }

    fn is_finished(&self) -> bool {
        self.old_left == 0 && self.new_left == 0
    }

    fn parse_line(&mut self, line: &str) -> Option<DiffLine> {
        // The first byte is the sign. A line that starts with another character has none.
        let text = |line: &str| clip_line(line.get(1..).unwrap_or_default());
        let parsed = match line.as_bytes().first() {
            // A `+` after the end of the hunk is not part of it.
            Some(b'+') if self.new_left > 0 => DiffLine::Added(self.new, text(line)),
            Some(b'-') if self.old_left > 0 => DiffLine::Removed(self.old, text(line)),
            // An empty line is an unchanged empty line whose space was stripped.
            Some(b' ') | None => DiffLine::Unchanged(self.old, self.new, text(line)),
            // Git's remark about a missing newline counts for neither side.
            Some(b'\\') => {
                return Some(DiffLine::Note(clip_line(line.trim_start_matches('\\').trim())));
            }
            _ => return None,
        };
        if !matches!(parsed, DiffLine::Added(..)) {
            (self.old, self.old_left) = (self.old + 1, self.old_left.saturating_sub(1));
        }
        if !matches!(parsed, DiffLine::Removed(..)) {
            (self.new, self.new_left) = (self.new + 1, self.new_left.saturating_sub(1));
        }
        Some(parsed)
    }
}

fn parse_range(text: &str) -> Option<(u64, u64)> {
    // A range of one line has no count.
    let (first, count) = text.split_once(',').unwrap_or((text, "1"));
    Some((first.parse().ok()?, count.parse().ok()?))
}

fn clip_line(line: &str) -> String {
    match line.len() > LINE_BYTES_MAX {
        // Minified files have lines of megabytes.
        true => format!("{}…", &line[..line.floor_char_boundary(LINE_BYTES_MAX)]),
        false => line.to_owned(),
    }
}

/// Parses a unified diff as git writes it.
fn parse_patch(patch: &str) -> Vec<DiffFile> {
    let mut files: Vec<DiffFile> = Vec::new();
    let mut hunk = DiffHunkParser::default();
    for line in patch.lines() {
        // Inside a hunk such a line is content of the file.
        if hunk.is_finished() && line.starts_with("diff --git ") {
            files.push(DiffFile { name: file_name(line), ..DiffFile::default() });
            continue;
        }
        // Text before the first file is shown as notes of a file without a name.
        if files.is_empty() {
            files.push(DiffFile::default());
        }
        let file = files.last_mut().expect("one was added above");
        // The remark may follow the last line of a hunk.
        let is_remark = line.starts_with('\\');
        if (!hunk.is_finished() || is_remark)
            && let Some(parsed) = hunk.parse_line(line)
        {
            file.added += usize::from(matches!(parsed, DiffLine::Added(..)));
            file.removed += usize::from(matches!(parsed, DiffLine::Removed(..)));
            file.lines.push(parsed);
            continue;
        }
        match DiffHunkParser::parse_header(line) {
            Some(header) => {
                hunk = header;
                file.lines.push(DiffLine::Hunk(clip_line(line)));
            }
            None => parse_file_header(file, line),
        }
    }
    files
}

/// Handles a line before the first hunk of a file.
fn parse_file_header(file: &mut DiffFile, line: &str) {
    let note_prefixes = [
        "new file",
        "deleted file",
        "old mode",
        "new mode",
        "rename ",
        "copy ",
        "Binary ",
        "similarity ",
    ];
    // This name is exact, also for a renamed file.
    if let Some(name) = line.strip_prefix("+++ b/") {
        // Git ends a name that contains spaces with a tab.
        file.name = name.trim_end_matches('\t').to_owned();
    } else if note_prefixes.iter().any(|start| line.starts_with(start)) || file.name.is_empty() {
        file.notes.push(clip_line(line));
    }
}

/// Returns the name in `diff --git a/NAME b/NAME`; both have the same length unless the file was
/// renamed.
fn file_name(line: &str) -> String {
    let both = line.trim_start_matches("diff --git ");
    // A name with spaces cannot be split at a space.
    let half = both.get(..both.len() / 2).unwrap_or(both);
    let name = half.trim_matches('"').strip_prefix("a/").unwrap_or(both);
    name.to_owned()
}

/// Returns the lines of each file that are shown: the first [`LINES_MAX`] in total.
fn visible_lines(files: &[DiffFile]) -> Vec<&[DiffLine]> {
    let mut left = LINES_MAX;
    let each = files.iter().map(|file| {
        let count = file.lines.len().min(left);
        // Later files are listed without lines, so that their names are still visible.
        left -= count;
        &file.lines[..count]
    });
    each.collect()
}

fn file_list(files: &[DiffFile]) -> Markup {
    if files.is_empty() {
        return html! { section.card { p.empty { "No changes." } } };
    }
    let total: usize = files.iter().map(|file| file.lines.len()).sum();
    let (added, removed) =
        files.iter().fold((0, 0), |sum, it| (sum.0 + it.added, sum.1 + it.removed));
    let shown = visible_lines(files);
    html! {
        @if total > LINES_MAX {
            p.banner.warn role="note" {
                "The diff has " (format_grouped(total as i64)) " lines; the first " (format_grouped(LINES_MAX as i64)) " are shown. "
                code { "heeler session diff" } " prints them all."
            }
        }
        section.card aria-labelledby="h-files" {
            header {
                h2 #h-files { (files.len()) @if files.len() == 1 { " file" } @else { " files" } }
                span.added { "+" (format_grouped(added as i64)) } span.removed { "−" (format_grouped(removed as i64)) }
            }
            @for (number, (file, lines)) in files.iter().zip(shown).enumerate() {
                (file_section(file, lines, number, number < OPEN_FILES_MAX && !lines.is_empty()))
            }
        }
    }
}

fn file_section(file: &DiffFile, lines: &[DiffLine], number: usize, is_open: bool) -> Markup {
    html! {
        details.file id={ "file-" (number) } open[is_open] {
            summary data-row {
                code { (visible_line(&file.name)) }
                span.added.nowrap { "+" (file.added) } span.removed.nowrap { "−" (file.removed) }
            }
            @for note in &file.notes { p.note.pad { (note) } }
            @if lines.len() < file.lines.len() { p.note.pad { (file.lines.len() - lines.len()) " lines are left out." } }
            @if !lines.is_empty() {
                div.diff tabindex="0" role="group" aria-label={ "Changes to " (visible_line(&file.name)) } {
                    table {
                        thead.visually-hidden { tr {
                            th scope="col" { "Before" } th scope="col" { "After" }
                            th scope="col" { "Change" } th scope="col" { "Line" }
                        } }
                        tbody { @for line in lines { (line_row(line)) } }
                    }
                }
            }
        }
    }
}

fn line_row(line: &DiffLine) -> Markup {
    html! {
        @match line {
            DiffLine::Hunk(text) => tr.hunk { td.no {} td.no {} td.sign {} td.text { (text) } },
            DiffLine::Note(text) => tr.hunk { td.no {} td.no {} td.sign {} td.text { (text) } },
            DiffLine::Unchanged(old, new, text) => tr { td.no { (old) } td.no { (new) } td.sign {} td.text { (text) } },
            DiffLine::Added(new, text) => tr.add { td.no {} td.no { (new) } td.sign { "+" } td.text { (text) } },
            DiffLine::Removed(old, text) => tr.del { td.no { (old) } td.no {} td.sign { "−" } td.text { (text) } },
        }
    }
}

/// Returns true if [`edit_table`] leaves nothing out.
pub(crate) fn shows_everything(edit: &FileEdit<'_>) -> bool {
    let is_short = |line: &EditLine<'_>| match line {
        EditLine::Unchanged(text) | EditLine::Removed(text) | EditLine::Added(text) => {
            text.len() <= LINE_BYTES_MAX
        }
    };
    let lines = || edit.hunks.iter().flat_map(|hunk| &hunk.lines);
    lines().count() <= EDIT_LINES_MAX && lines().all(is_short)
}

/// Renders the edit of a tool call. Hidden characters are made visible, because a person may be about
/// to approve it. Lines beyond the limit are counted, not shown.
pub(crate) fn edit_table(edit: &FileEdit<'_>) -> Markup {
    let total: usize = edit.hunks.iter().map(|hunk| hunk.lines.len()).sum();
    let mut left = EDIT_LINES_MAX;
    html! {
        div.diff tabindex="0" role="group" aria-label={ "Changes to " (visible_line(edit.path)) } {
            table {
                thead.visually-hidden { tr { th scope="col" { "Change" } th scope="col" { "Line" } } }
                tbody {
                    @for (number, hunk) in edit.hunks.iter().enumerate() {
                        @if number > 0 { tr.hunk { td.sign {} td.text { "⋯" } } }
                        @let shown = hunk.lines.len().min(left);
                        @for line in &hunk.lines[..shown] { (edit_row(*line)) }
                        ({ left -= shown; "" })
                    }
                }
            }
        }
        @if total > EDIT_LINES_MAX { p.note { (total - EDIT_LINES_MAX) " lines are left out." } }
    }
}

fn edit_row(line: EditLine<'_>) -> Markup {
    let shown = |text: &str| reveal_hidden(&clip_line(text));
    html! {
        @match line {
            EditLine::Unchanged(text) => tr { td.sign {} td.text { (shown(text)) } },
            EditLine::Added(text) => tr.add { td.sign { "+" } td.text { (shown(text)) } },
            EditLine::Removed(text) => tr.del { td.sign { "−" } td.text { (shown(text)) } },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "diff --git a/a b.txt b/a b.txt\nindex 1..2 100644\n--- a/a b.txt\t\n+++ b/a b.txt\t\n@@ -1,3 +1,3 @@ fn\n one\n-two\n+2\n three\n\\ No newline at end of file\ndiff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+--- a/x\ndiff --git a/p.png b/p.png\nBinary files a/p.png and b/p.png differ\n";

    #[test]
    fn each_file_of_a_diff_has_its_lines_with_their_numbers() {
        let files = parse_patch(PATCH);
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["a b.txt", "n", "p.png"]);
        let text = str::to_owned;
        assert_eq!(
            files[0].lines,
            [
                DiffLine::Hunk(text("@@ -1,3 +1,3 @@ fn")),
                DiffLine::Unchanged(1, 1, text("one")),
                DiffLine::Removed(2, text("two")),
                DiffLine::Added(2, text("2")),
                DiffLine::Unchanged(3, 3, text("three")),
                DiffLine::Note(text("No newline at end of file")),
            ]
        );
        assert_eq!(files[1].lines[1], DiffLine::Added(1, text("--- a/x")));
        assert_eq!((files[1].added, files[1].removed), (1, 0));
        assert_eq!(files[2].notes, ["Binary files a/p.png and b/p.png differ"]);
    }

    #[test]
    fn a_diff_that_is_too_long_is_cut_and_says_so() {
        let mut patch =
            format!("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,{} @@\n", LINES_MAX + 10);
        patch += &"+a\n".repeat(LINES_MAX + 10);
        let html = file_list(&parse_patch(&patch)).into_string();
        assert_eq!(html.matches("<tr class=\"add\"").count(), LINES_MAX - 1);
        assert!(html.contains("11 lines are left out"), "{}", &html[..600]);
    }

    #[test]
    fn what_stands_in_files_and_their_names_is_no_markup() {
        let patch = "diff --git a/<img> b/<img>\n+++ b/<img src=x>\n@@ -0,0 +1 @@\n+<script>alert(1)</script>\nnoise <b>\n";
        let html = file_list(&parse_patch(patch)).into_string();
        assert!(
            !html.contains("<script") && !html.contains("<img") && !html.contains("<b>"),
            "{html}"
        );
    }

    #[test]
    fn an_edit_of_a_tool_hides_nothing_and_is_no_markup() {
        let input = serde_json::json!({
            "file_path": "a<b>.txt", "old_string": "<i>one\u{200b}</i>", "new_string": "two",
        });
        let html = edit_table(&FileEdit::of("Edit", &input).unwrap()).into_string();
        assert!(html.contains("&lt;i&gt;one\\u{200b}&lt;/i&gt;"), "{html}");
        assert!(html.contains("<tr class=\"add\">") && !html.contains("<i>"), "{html}");
        let long =
            serde_json::json!({"file_path": "a", "content": "x\n".repeat(EDIT_LINES_MAX + 3)});
        let html = edit_table(&FileEdit::of("Write", &long).unwrap()).into_string();
        assert!(html.contains("3 lines are left out"));
        assert!(!shows_everything(&FileEdit::of("Write", &long).unwrap()));
        let wide = serde_json::json!({"file_path": "a", "content": "x".repeat(LINE_BYTES_MAX + 1)});
        assert!(!shows_everything(&FileEdit::of("Write", &wide).unwrap()));
        assert!(shows_everything(&FileEdit::of("Edit", &input).unwrap()));
        assert_eq!(html.matches("<tr class=\"add\"").count(), EDIT_LINES_MAX);
    }

    #[test]
    fn what_is_no_diff_is_shown_as_it_is() {
        let files = parse_patch("warning: something\n@@ -x\n");
        assert_eq!(files[0].notes, ["warning: something", "@@ -x"]);
    }
}
