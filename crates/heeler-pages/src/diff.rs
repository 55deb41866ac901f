//! What changed in files: a unified diff, a table for each file, with the numbers of its lines.
//!
//! Reads loosely: what is no diff is shown as text. Start at [`page`].

use heeler_query::diff::SessionDiff;
use maud::{Markup, html};

use crate::parts::{grouped, one_line, path, work_styles};
use crate::{Frame, Section};

/// How many lines of a diff a page shows.
pub const LINES_MAX: usize = 5_000;

/// How much of a line is shown.
const LINE_BYTES_MAX: usize = 4 * 1024;

/// Of more files than this only the names are open.
const OPEN_FILES_MAX: usize = 20;

/// Which states are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiffView {
    /// The message that it begins at; before the first turn if left out.
    pub from: Option<u64>,
    /// The message that it ends at; what is there now if left out.
    pub to: Option<u64>,
}

/// Returns the page.
pub fn page(frame: &Frame, view: DiffView, diff: &SessionDiff) -> Markup {
    let id = &diff.session;
    let home = path("/sessions", &[id]);
    let files = parse(diff.patch.as_deref().unwrap_or_default());
    let content = html! {
        (work_styles())
        p.crumbs { a href="/sessions" { "Sessions" } " › " a.mono href=(home) { (id) } " › changes" }
        div.head { h1 { "Changes of files" } span.muted { (span_of(view)) } }
        (choice(view, &home))
        @if let Some(note) = &diff.note { p.banner role="note" { (note) } }
        @if diff.cut { p.banner.warn role="note" { "The difference is too large: only its beginning was compared." } }
        (table_of(&files))
    };
    frame.page(Section::Sessions, "Changes of files", content)
}

fn span_of(view: DiffView) -> String {
    let from =
        view.from.map_or("before the first turn".to_owned(), |it| format!("after message {it}"));
    let to = view.to.map_or("now".to_owned(), |it| format!("after message {it}"));
    format!("{from} → {to}")
}

fn choice(view: DiffView, home: &str) -> Markup {
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

/// A file of a diff.
#[derive(Debug, Default, PartialEq)]
struct File {
    name: String,
    notes: Vec<String>,
    lines: Vec<Line>,
    added: usize,
    removed: usize,
}

/// A line of a diff.
#[derive(Debug, PartialEq)]
enum Line {
    Hunk(String),
    Same(u64, u64, String),
    Added(u64, String),
    Removed(u64, String),
    Remark(String),
}

/// How far a hunk has come: the next line of each side, and how many of each are to come.
#[derive(Debug, Default)]
struct Hunk {
    old: u64,
    new: u64,
    old_left: u64,
    new_left: u64,
}

impl Hunk {
    /// Reads `@@ -1,2 +3,4 @@ …`.
    fn read(line: &str) -> Option<Hunk> {
        let mut words = line.strip_prefix("@@ -")?.split(' ');
        let (old, old_left) = pair(words.next()?)?;
        let (new, new_left) = pair(words.next()?.strip_prefix('+')?)?;
        Some(Hunk { old, new, old_left, new_left })
    }

    fn is_over(&self) -> bool {
        self.old_left == 0 && self.new_left == 0
    }

    fn take(&mut self, line: &str) -> Option<Line> {
        let text = |line: &str| shown(line.get(1..).unwrap_or_default());
        let taken = match line.as_bytes().first() {
            Some(b'+') if self.new_left > 0 => Line::Added(self.new, text(line)),
            Some(b'-') if self.old_left > 0 => Line::Removed(self.old, text(line)),
            Some(b' ') | None => Line::Same(self.old, self.new, text(line)),
            Some(b'\\') => return Some(Line::Remark(shown(line.trim_start_matches('\\').trim()))),
            _ => return None,
        };
        if !matches!(taken, Line::Added(..)) {
            (self.old, self.old_left) = (self.old + 1, self.old_left.saturating_sub(1));
        }
        if !matches!(taken, Line::Removed(..)) {
            (self.new, self.new_left) = (self.new + 1, self.new_left.saturating_sub(1));
        }
        Some(taken)
    }
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let (first, count) = text.split_once(',').unwrap_or((text, "1"));
    Some((first.parse().ok()?, count.parse().ok()?))
}

fn shown(line: &str) -> String {
    match line.len() > LINE_BYTES_MAX {
        true => format!("{}…", &line[..line.floor_char_boundary(LINE_BYTES_MAX)]),
        false => line.to_owned(),
    }
}

/// Reads a unified diff as git writes it.
fn parse(patch: &str) -> Vec<File> {
    let mut files: Vec<File> = Vec::new();
    let mut hunk = Hunk::default();
    for line in patch.lines() {
        if hunk.is_over() && line.starts_with("diff --git ") {
            files.push(File { name: name_of(line), ..File::default() });
            continue;
        }
        if files.is_empty() {
            files.push(File::default());
        }
        let file = files.last_mut().expect("one was added above");
        let is_remark = line.starts_with('\\');
        if (!hunk.is_over() || is_remark)
            && let Some(taken) = hunk.take(line)
        {
            file.added += usize::from(matches!(taken, Line::Added(..)));
            file.removed += usize::from(matches!(taken, Line::Removed(..)));
            file.lines.push(taken);
            continue;
        }
        match Hunk::read(line) {
            Some(begun) => {
                hunk = begun;
                file.lines.push(Line::Hunk(shown(line)));
            }
            None => header(file, line),
        }
    }
    files
}

/// Takes a line before the first hunk.
fn header(file: &mut File, line: &str) {
    let told = [
        "new file",
        "deleted file",
        "old mode",
        "new mode",
        "rename ",
        "copy ",
        "Binary ",
        "similarity ",
    ];
    if let Some(name) = line.strip_prefix("+++ b/") {
        file.name = name.trim_end_matches('\t').to_owned();
    } else if told.iter().any(|start| line.starts_with(start)) || file.name.is_empty() {
        file.notes.push(shown(line));
    }
}

/// Returns the name in `diff --git a/NAME b/NAME`; both are the same length unless it was renamed.
fn name_of(line: &str) -> String {
    let both = line.trim_start_matches("diff --git ");
    let half = both.get(..both.len() / 2).unwrap_or(both);
    let name = half.trim_matches('"').strip_prefix("a/").unwrap_or(both);
    name.to_owned()
}

/// Returns the lines of each file that are shown: the first ones of all.
fn shown_of(files: &[File]) -> Vec<&[Line]> {
    let mut left = LINES_MAX;
    let each = files.iter().map(|file| {
        let count = file.lines.len().min(left);
        left -= count;
        &file.lines[..count]
    });
    each.collect()
}

fn table_of(files: &[File]) -> Markup {
    if files.is_empty() {
        return html! { section.card { p.empty { "Nothing has changed." } } };
    }
    let total: usize = files.iter().map(|file| file.lines.len()).sum();
    let (added, removed) =
        files.iter().fold((0, 0), |sum, it| (sum.0 + it.added, sum.1 + it.removed));
    let shown = shown_of(files);
    html! {
        @if total > LINES_MAX {
            p.banner.warn role="note" {
                "These are " (grouped(total as i64)) " lines; the first " (grouped(LINES_MAX as i64)) " are shown. "
                code { "heeler session diff" } " prints them all."
            }
        }
        section.card aria-labelledby="h-files" {
            header {
                h2 #h-files { (files.len()) @if files.len() == 1 { " file" } @else { " files" } }
                span.added { "+" (grouped(added as i64)) } span.removed { "−" (grouped(removed as i64)) }
            }
            @for (number, (file, lines)) in files.iter().zip(shown).enumerate() {
                (file_of(file, lines, number, number < OPEN_FILES_MAX && !lines.is_empty()))
            }
        }
    }
}

fn file_of(file: &File, lines: &[Line], number: usize, is_open: bool) -> Markup {
    html! {
        details.file id={ "file-" (number) } open[is_open] {
            summary data-row {
                code { (one_line(&file.name)) }
                span.added.nowrap { "+" (file.added) } span.removed.nowrap { "−" (file.removed) }
            }
            @for note in &file.notes { p.note.pad { (note) } }
            @if lines.len() < file.lines.len() { p.note.pad { (file.lines.len() - lines.len()) " lines are left out." } }
            @if !lines.is_empty() {
                div.diff tabindex="0" role="group" aria-label={ "Changes of " (one_line(&file.name)) } {
                    table {
                        thead.visually-hidden { tr {
                            th scope="col" { "Before" } th scope="col" { "After" }
                            th scope="col" { "Change" } th scope="col" { "Line" }
                        } }
                        tbody { @for line in lines { (line_of(line)) } }
                    }
                }
            }
        }
    }
}

fn line_of(line: &Line) -> Markup {
    html! {
        @match line {
            Line::Hunk(text) => tr.hunk { td.no {} td.no {} td.sign {} td.text { (text) } },
            Line::Remark(text) => tr.hunk { td.no {} td.no {} td.sign {} td.text { (text) } },
            Line::Same(old, new, text) => tr { td.no { (old) } td.no { (new) } td.sign {} td.text { (text) } },
            Line::Added(new, text) => tr.add { td.no {} td.no { (new) } td.sign { "+" } td.text { (text) } },
            Line::Removed(old, text) => tr.del { td.no { (old) } td.no {} td.sign { "−" } td.text { (text) } },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "diff --git a/a b.txt b/a b.txt\nindex 1..2 100644\n--- a/a b.txt\t\n+++ b/a b.txt\t\n@@ -1,3 +1,3 @@ fn\n one\n-two\n+2\n three\n\\ No newline at end of file\ndiff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+--- a/x\ndiff --git a/p.png b/p.png\nBinary files a/p.png and b/p.png differ\n";

    #[test]
    fn each_file_of_a_diff_has_its_lines_with_their_numbers() {
        let files = parse(PATCH);
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["a b.txt", "n", "p.png"]);
        let text = str::to_owned;
        assert_eq!(
            files[0].lines,
            [
                Line::Hunk(text("@@ -1,3 +1,3 @@ fn")),
                Line::Same(1, 1, text("one")),
                Line::Removed(2, text("two")),
                Line::Added(2, text("2")),
                Line::Same(3, 3, text("three")),
                Line::Remark(text("No newline at end of file")),
            ]
        );
        assert_eq!(files[1].lines[1], Line::Added(1, text("--- a/x")));
        assert_eq!((files[1].added, files[1].removed), (1, 0));
        assert_eq!(files[2].notes, ["Binary files a/p.png and b/p.png differ"]);
    }

    #[test]
    fn a_diff_that_is_too_long_is_cut_and_says_so() {
        let mut patch =
            format!("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,{} @@\n", LINES_MAX + 10);
        patch += &"+a\n".repeat(LINES_MAX + 10);
        let html = table_of(&parse(&patch)).into_string();
        assert_eq!(html.matches("<tr class=\"add\"").count(), LINES_MAX - 1);
        assert!(html.contains("11 lines are left out"), "{}", &html[..600]);
    }

    #[test]
    fn what_stands_in_files_and_their_names_is_no_markup() {
        let patch = "diff --git a/<img> b/<img>\n+++ b/<img src=x>\n@@ -0,0 +1 @@\n+<script>alert(1)</script>\nnoise <b>\n";
        let html = table_of(&parse(patch)).into_string();
        assert!(
            !html.contains("<script") && !html.contains("<img") && !html.contains("<b>"),
            "{html}"
        );
    }

    #[test]
    fn what_is_no_diff_is_shown_as_it_is() {
        let files = parse("warning: something\n@@ -x\n");
        assert_eq!(files[0].notes, ["warning: something", "@@ -x"]);
    }
}
