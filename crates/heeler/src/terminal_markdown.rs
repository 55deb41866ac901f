//! Markdown of agents on a terminal. Elsewhere their text is printed as it is, because programs read
//! it there. Start at [`TerminalMarkdown`].

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};

use heeler_tui::{MarkdownStream, StyledLine, TerminalTheme, render_markdown};

use crate::chat;
use crate::output::{SafeText, sanitize};
use crate::wrap::screen_width;

/// Width of a terminal that does not tell its width, such as a serial line.
const WIDTH: usize = 80;

/// Layout of messages for standard output, which is a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TerminalMarkdown {
    theme: TerminalTheme,
}

impl TerminalMarkdown {
    /// Returns the layout; `None` if standard output is no terminal, or one without styles.
    pub(crate) fn find(env: &BTreeMap<String, String>) -> Option<TerminalMarkdown> {
        let has_styles = env.get("TERM").is_some_and(|term| term != "dumb");
        let is_shown = has_styles && io::stdout().is_terminal();
        is_shown.then(|| TerminalMarkdown { theme: chat::theme(env) })
    }

    /// Lays out a message that will be indented by so many columns.
    pub(crate) fn lines(&self, text: &str, margin: usize) -> Vec<SafeText> {
        let width = width().saturating_sub(margin).max(1);
        render_markdown(text, width, &self.theme).iter().map(safe_line).collect()
    }

    /// Lays out a piece of a message that arrives in pieces.
    pub(crate) fn push(&self, stream: &mut MarkdownStream, piece: &str) -> Vec<SafeText> {
        stream.push(piece, width(), &self.theme).iter().map(safe_line).collect()
    }

    /// Lays out the rest of that message.
    pub(crate) fn finish(&self, stream: &mut MarkdownStream) -> Vec<SafeText> {
        stream.finish(width(), &self.theme).iter().map(safe_line).collect()
    }
}

/// Returns the width of the terminal, which may change at any time.
pub(crate) fn width() -> usize {
    screen_width(io::stdout()).unwrap_or(WIDTH)
}

/// Returns a line that cannot control the terminal. Character references of the agent's text have
/// become characters only in the layout, so each part is sanitized after it.
fn safe_line(line: &StyledLine) -> SafeText {
    let part = |all: SafeText, part: &heeler_tui::StyledText| {
        // A newline would let a part pose as a line of its own.
        let text = sanitize(&part.text).replace('\n', " ");
        all.append(SafeText::styled(part.style, &text))
    };
    line.iter().fold(SafeText::default(), part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_reference_stands_for_cannot_control_the_terminal() {
        let markdown = TerminalMarkdown { theme: TerminalTheme::dark() };
        let evil = "a&#27;[2J **b&#x9b;c** [d](&#27;]0;t&#7;) `\u{1b}[31m` &#x202e;e\n\n| &#27;c |\n|---|\n| &#13;x |\n\n\
            ```&#27;\n\u{1b}]52;c;x\u{7}\n```\n";
        let mut stream = MarkdownStream::default();
        let mut lines = markdown.push(&mut stream, evil);
        lines.extend(markdown.finish(&mut stream));
        lines.extend(markdown.lines(evil, 2));
        for line in &lines {
            let text = line.to_string();
            // Only styles of the layout are left, which end with `m`.
            let plain = crate::output::strip_colours(&text);
            assert!(!plain.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
        }
        let all: String = lines.iter().map(SafeText::plain).collect();
        assert!(all.contains("a\\u{1b}[2J") && all.contains("\\u{9b}c"), "{all}");
    }
}
