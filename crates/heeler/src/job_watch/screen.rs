//! Output of a watched job: the agent's messages on stdout, everything else on stderr, and a status
//! line at the bottom of a terminal. Start at [`WatchScreen`].
//!
//! The terminal's modes are never changed, so there is nothing to restore if the process is killed.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::Style;
use heeler_tui::MarkdownStream;
use unicode_width::UnicodeWidthStr as _;

use crate::failure::CommandResult;
use crate::output::{SPINNER_FRAMES, SafeText, one_line, sanitize, truncate_to_width, width};
use crate::terminal_markdown::TerminalMarkdown;

/// Amount of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputMode {
    All,
    /// Nothing; the caller prints the outcome.
    Nothing,
}

/// Output of a watched job.
pub(crate) struct WatchScreen {
    show: OutputMode,
    /// True if text is printed piece by piece.
    streams: bool,
    /// Layout of messages; `None` prints them as they are.
    markdown: Option<TerminalMarkdown>,
    /// Layout of the message that arrives in pieces.
    message: MarkdownStream,
    /// True if there is a status line.
    has_status: bool,
    /// True once stdout is closed.
    closed: bool,
    /// True if the current line holds text without a newline.
    is_line_open: bool,
    /// Width of the status on the current line; 0 if there is none.
    drawn: usize,
    /// Pieces printed of a row that has not arrived yet.
    pieces_shown: String,
    spinner_frame: usize,
}

impl WatchScreen {
    pub(crate) fn new(
        show: OutputMode,
        term: Option<&str>,
        markdown: Option<TerminalMarkdown>,
    ) -> WatchScreen {
        let all = show == OutputMode::All;
        // A terminal without escape sequences gets plain lines only.
        let moves = term.is_some_and(|term| term != "dumb");
        WatchScreen {
            show,
            // A pipe gets whole rows: only a person gains from seeing pieces early.
            streams: all && io::stdout().is_terminal(),
            markdown: markdown.filter(|_| all),
            message: MarkdownStream::default(),
            has_status: all && moves && io::stderr().is_terminal(),
            closed: false,
            is_line_open: false,
            drawn: 0,
            pieces_shown: String::new(),
            spinner_frame: 0,
        }
    }

    /// Prints a piece of text; its row follows.
    pub(crate) fn print_piece(&mut self, piece: &str) -> CommandResult {
        if self.streams {
            self.pieces_shown.push_str(piece);
            self.write_piece(piece)?;
        }
        Ok(())
    }

    /// Prints the text of a row, except the pieces printed already.
    pub(crate) fn print_text(&mut self, text: &str) -> CommandResult {
        // Pieces belong to one row only, whether they fit it or not.
        let said = std::mem::take(&mut self.pieces_shown);
        match text.strip_prefix(said.as_str()) {
            Some(rest) => self.write_piece(rest)?,
            // The pieces belong to another text; print the whole row.
            None => {
                self.end_line()?;
                self.message = MarkdownStream::default();
                self.write_piece(text)?;
            }
        }
        self.end_message()?;
        self.end_line()
    }

    /// Forgets the printed pieces, because some were lost.
    pub(crate) fn discard_pieces(&mut self) {
        self.pieces_shown.clear();
        self.message = MarkdownStream::default();
    }

    /// Prints a line about the agent's actions.
    pub(crate) fn line(&mut self, text: SafeText) -> CommandResult {
        if self.show == OutputMode::Nothing {
            return Ok(());
        }
        self.end_line()?;
        self.erase();
        // Ignore write errors: the terminal is gone, and the run continues.
        drop(writeln!(anstream::stderr().lock(), "{text}"));
        Ok(())
    }

    /// Prints a remark of Heeler's own, dimmed.
    pub(crate) fn remark(&mut self, text: &str) -> CommandResult {
        self.line(SafeText::styled(Style::new().dimmed(), text))
    }

    /// Prints a prompt for a line of input.
    pub(crate) fn prompt(&mut self, text: &str) -> CommandResult {
        self.end_line()?;
        self.erase();
        let mut out = anstream::stderr().lock();
        drop(write!(out, "{}", SafeText::from(text)).and_then(|()| out.flush()));
        Ok(())
    }

    /// Draws the status line, unless text is on the current line. On a narrow terminal the activity
    /// is shortened before the figures.
    pub(crate) fn status(&mut self, doing: &str, figures: &str) {
        // The status would be appended to unfinished text of the agent.
        if !self.has_status || (self.is_line_open && self.streams) {
            return;
        }
        self.spinner_frame = (self.spinner_frame + 1) % SPINNER_FRAMES.len();
        self.erase();
        // A line that fills the last column makes some terminals wrap.
        let room = width() - 1;
        let doing = format!("{} {}", SPINNER_FRAMES[self.spinner_frame], one_line(doing));
        let doing = truncate_to_width(&doing, room.saturating_sub(figures.width() + 2));
        let text = format!("{doing}  {figures}");
        let text = truncate_to_width(&text, room);
        self.drawn = text.width();
        let text = SafeText::styled(Style::new().dimmed(), text);
        let mut out = anstream::stderr().lock();
        drop(write!(out, "{text}").and_then(|()| out.flush()));
    }

    /// Removes the status line and ends an unfinished line.
    pub(crate) fn clear(&mut self) {
        // The watch is over; an error of the terminal has no one to be told to.
        drop(self.end_message());
        drop(self.end_line());
        self.erase();
    }

    fn erase(&mut self) {
        let drawn = std::mem::take(&mut self.drawn);
        if drawn > 0 {
            // This is no colour, so it is written even if colours are off.
            let mut out = io::stderr().lock();
            let erase = erase_sequence(drawn, width());
            drop(out.write_all(erase.as_bytes()).and_then(|()| out.flush()));
        }
    }

    /// Writes a piece of a message; with a layout, the blocks that it completes.
    fn write_piece(&mut self, piece: &str) -> CommandResult {
        match self.markdown {
            Some(markdown) => {
                let lines = markdown.push(&mut self.message, piece);
                self.write_lines(&lines)
            }
            None => self.write_words(piece),
        }
    }

    /// Writes the unfinished block of a message.
    fn end_message(&mut self) -> CommandResult {
        let Some(markdown) = self.markdown else { return Ok(()) };
        let lines = markdown.finish(&mut self.message);
        self.write_lines(&lines)
    }

    fn write_lines(&mut self, lines: &[SafeText]) -> CommandResult {
        if lines.is_empty() || self.closed {
            return Ok(());
        }
        self.erase();
        let mut out = anstream::stdout().lock();
        self.write(|| {
            lines.iter().try_for_each(|line| writeln!(out, "{line}")).and_then(|()| out.flush())
        })
    }

    fn write_words(&mut self, text: &str) -> CommandResult {
        if text.is_empty() || self.show == OutputMode::Nothing || self.closed {
            return Ok(());
        }
        self.erase();
        // The agent's text goes to the terminal directly, and must not control it.
        let text = sanitize(text);
        self.is_line_open = !text.ends_with('\n');
        let mut out = io::stdout().lock();
        self.write(|| out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }

    fn end_line(&mut self) -> CommandResult {
        if !std::mem::take(&mut self.is_line_open) || self.closed {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        self.write(|| out.write_all(b"\n").and_then(|()| out.flush()))
    }

    /// Handles write errors: a reader that closes the pipe, as `head` does, or a full disk must not
    /// end the job or this command.
    fn write(&mut self, write: impl FnOnce() -> io::Result<()>) -> CommandResult {
        let Err(error) = write() else { return Ok(()) };
        // Set before the remark below, which would otherwise try stdout again.
        self.closed = true;
        let why = match error.kind() {
            io::ErrorKind::BrokenPipe => "the reader of the output is gone".to_owned(),
            _ => format!("the output can no longer be written ({error})"),
        };
        self.remark(&format!("{why}; the job continues (Ctrl-C cancels it)"))
    }
}

/// Returns the sequence that erases a line of this width, with the cursor at its end. In a terminal
/// that has become narrower, the line occupies several rows.
fn erase_sequence(columns: usize, width: usize) -> String {
    match columns.div_ceil(width) - 1 {
        0 => "\r\x1b[K".to_owned(),
        above => format!("\r\x1b[{above}A\x1b[J"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_a_narrower_terminal_has_wrapped_is_erased_whole() {
        assert_eq!(erase_sequence(40, 80), "\r\x1b[K");
        assert_eq!(erase_sequence(40, 40), "\r\x1b[K");
        assert_eq!(erase_sequence(41, 40), "\r\x1b[1A\x1b[J");
        assert_eq!(erase_sequence(79, 20), "\r\x1b[3A\x1b[J");
    }
}
