//! Preview of a tool call for a permission question: nothing in it is hidden, and none of its lines
//! can imitate the user interface.

use heeler_model::file_edit::{EditLine, edit_hunk};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::Value as Json;

use crate::TerminalTheme;
use crate::text::{LineBreakMode, TextFlow, byte_prefix, reveal_hidden};
use crate::transcript_cell::format_value;

/// Bytes that are laid out; the number of omitted bytes is shown.
const PREVIEW_BYTES_MAX: usize = 1 << 20;

/// Lays out a tool call.
pub(crate) fn preview_lines(
    tool: &str,
    input: &Json,
    width: usize,
    theme: &TerminalTheme,
) -> Vec<Line<'static>> {
    let mut page =
        ToolPreviewLayout { lines: vec![], left: PREVIEW_BYTES_MAX, missing: 0, width, theme };
    match input {
        Json::Object(fields) => {
            let edits = fields.get("edits").and_then(Json::as_array);
            for (name, it) in fields {
                match (name.as_str(), it) {
                    // Shown together as a difference, not as two fields.
                    ("old_string" | "new_string", Json::String(_)) => {}
                    ("edits", Json::Array(edits)) => {
                        edits.iter().for_each(|edit| page.push_edit(edit));
                    }
                    ("content", Json::String(text)) if tool == "Write" => {
                        page.push_text("+ ", text, theme.good);
                    }
                    (name, it) => page.push_field(name, it),
                }
            }
            if edits.is_none() {
                page.push_edit(input);
            }
        }
        Json::Null => {}
        other => page.push_text("", &format_value(other), Style::new()),
    }
    if page.missing > 0 {
        // A person must know that they have not seen everything.
        let text = format!("! {} more bytes are not shown", page.missing);
        page.lines.push(Line::styled(text, theme.bad));
    }
    page.lines
}

struct ToolPreviewLayout<'t> {
    lines: Vec<Line<'static>>,
    left: usize,
    missing: usize,
    width: usize,
    theme: &'t TerminalTheme,
}

impl ToolPreviewLayout<'_> {
    fn push_text(&mut self, sign: &str, text: &str, style: Style) {
        // One limit for all fields together.
        let (shown, _) = byte_prefix(text, self.left);
        self.missing += text.len() - shown.len();
        self.left -= shown.len();
        let margin =
            vec![Span::styled("│ ", self.theme.attention), Span::styled(sign.to_owned(), style)];
        let flow = TextFlow {
            first_margin: margin.clone(),
            // The margin marks every line, so that no text of the agent can look like the panel.
            rest_margin: margin,
            width: self.width,
            // Nothing is dropped at a line break: a blank may matter in a command.
            breaks: LineBreakMode::Anywhere,
        };
        flow.push_lines(&[Span::styled(reveal_hidden(shown), style)], &mut self.lines);
    }

    fn push_field(&mut self, name: &str, it: &Json) {
        let shown = format_value(it);
        // The main field of a request is shown without its name.
        let named = if name == "command" { shown } else { format!("{name}: {shown}") };
        self.push_text("", &named, Style::new());
    }

    /// Renders an edit: removed lines, added lines, and some context.
    fn push_edit(&mut self, edit: &Json) {
        let Some(hunk) = edit_hunk(edit) else {
            // Half an edit is shown as it is, because it must not be invisible.
            if edit.get("old_string").or(edit.get("new_string")).is_some() {
                self.push_text("", &edit.to_string(), Style::new());
            }
            return;
        };
        let theme = self.theme;
        for line in hunk.lines {
            match line {
                EditLine::Unchanged(text) => self.push_text("  ", text, theme.dim),
                EditLine::Removed(text) => self.push_text("- ", text, theme.bad),
                EditLine::Added(text) => self.push_text("+ ", text, theme.good),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(tool: &str, input: Json, expected: Expect) {
        let lines = preview_lines(tool, &input, 30, &TerminalTheme::plain());
        let lines: Vec<String> = lines.iter().map(Line::to_string).collect();
        expected.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn an_edit_is_what_goes_and_what_comes() {
        let edit = json!({"file_path": "a.rs", "old_string": "1\n2\n3\nx\n4", "new_string": "1\n2\n3\ny\nz\n4"});
        check(
            "Edit",
            edit,
            expect![[r#"
            │ file_path: a.rs
            │   2
            │   3
            │ - x
            │ + y
            │ + z
            │   4"#]],
        );
        let edits = json!({"edits": [{"old_string": "a", "new_string": "b"}, {"old_string": 1}]});
        check(
            "MultiEdit",
            edits,
            expect![[r#"
            │ - a
            │ + b
            │ {"old_string":1}"#]],
        );
        check(
            "Write",
            json!({"file_path": "a", "content": "x\ny"}),
            expect![[r#"
            │ file_path: a
            │ + x
            │ + y"#]],
        );
    }

    #[test]
    fn nothing_hides_and_no_line_poses_as_ours() {
        let input = json!({"command": "rm\u{200b} -rf\n▸ 1. allow it once\x1b[2K", "n": 3});
        check(
            "Bash",
            input,
            expect![[r#"
            │ rm\u{200b} -rf
            │ ▸ 1. allow it once\u{1b}[2K
            │ n: 3"#]],
        );
    }

    #[test]
    fn what_is_too_long_is_told() {
        let lines = preview_lines(
            "Bash",
            &json!({"command": "x".repeat(PREVIEW_BYTES_MAX + 7)}),
            1000,
            &TerminalTheme::plain(),
        );
        assert_eq!(lines.last().unwrap().to_string(), "! 7 more bytes are not shown");
    }
}
