//! What goes where: the agent's words to stdout, everything else to stderr, and on a terminal one
//! line below them that says what goes on.
//!
//! Nothing of the terminal's state is changed, so there is nothing to put back if we are killed.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use crate::failure::CommandResult;
use crate::output::{SPINNER_FRAMES, SafeText, one_line, sanitize, truncate_to_width, width};

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputMode {
    /// Everything.
    All,
    /// Nothing: only what came of it is told, by somebody else.
    Nothing,
}

/// Where a run is shown.
pub(crate) struct WatchScreen {
    show: OutputMode,
    /// Words are shown piece by piece.
    streams: bool,
    /// There is a line that says what goes on.
    has_status: bool,
    /// Nobody reads stdout any more.
    closed: bool,
    /// Words stand on the current line, without their end.
    is_line_open: bool,
    /// How many columns the status fills that stands on the current line; none if none does.
    drawn: usize,
    /// What was said of a row that has not come yet.
    pieces_shown: String,
    spinner_frame: usize,
}

impl WatchScreen {
    pub(crate) fn new(show: OutputMode, term: Option<&str>) -> WatchScreen {
        let all = show == OutputMode::All;
        // A terminal that knows no escapes gets lines only.
        let moves = term.is_some_and(|term| term != "dumb");
        WatchScreen {
            show,
            streams: all && io::stdout().is_terminal(),
            has_status: all && moves && io::stderr().is_terminal(),
            closed: false,
            is_line_open: false,
            drawn: 0,
            pieces_shown: String::new(),
            spinner_frame: 0,
        }
    }

    /// Shows a piece of text whose row follows.
    pub(crate) fn print_piece(&mut self, piece: &str) -> CommandResult {
        if self.streams {
            self.pieces_shown.push_str(piece);
            self.write_words(piece)?;
        }
        Ok(())
    }

    /// Shows the text of a row, as far as its pieces have not shown it.
    pub(crate) fn print_text(&mut self, text: &str) -> CommandResult {
        let said = std::mem::take(&mut self.pieces_shown);
        match text.strip_prefix(said.as_str()) {
            Some(rest) => self.write_words(rest)?,
            // The pieces were of something else; the row is what counts.
            None => {
                self.end_line()?;
                self.write_words(text)?;
            }
        }
        self.end_line()
    }

    /// Forgets the pieces that were shown: some were lost.
    pub(crate) fn discard_pieces(&mut self) {
        self.pieces_shown.clear();
    }

    /// Shows a line about what the agent does.
    pub(crate) fn line(&mut self, text: SafeText) -> CommandResult {
        if self.show == OutputMode::Nothing {
            return Ok(());
        }
        self.end_line()?;
        self.erase();
        // Where this cannot be written nobody looks; the run goes on.
        drop(writeln!(anstream::stderr().lock(), "{text}"));
        Ok(())
    }

    /// Shows a remark of ours, dimmed.
    pub(crate) fn remark(&mut self, text: &str) -> CommandResult {
        self.line(SafeText::styled(Style::new().dimmed(), text))
    }

    /// Asks for a line of input.
    pub(crate) fn prompt(&mut self, text: &str) -> CommandResult {
        self.end_line()?;
        self.erase();
        let mut out = anstream::stderr().lock();
        drop(write!(out, "{}", SafeText::from(text)).and_then(|()| out.flush()));
        Ok(())
    }

    /// Draws the line that says what goes on, unless words stand there. On a narrow terminal what is
    /// done gives way to the figures.
    pub(crate) fn status(&mut self, doing: &str, figures: &str) {
        if !self.has_status || (self.is_line_open && self.streams) {
            return;
        }
        self.spinner_frame = (self.spinner_frame + 1) % SPINNER_FRAMES.len();
        self.erase();
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

    /// Takes the status away and ends an unfinished line.
    pub(crate) fn clear(&mut self) {
        drop(self.end_line());
        self.erase();
    }

    fn erase(&mut self) {
        let drawn = std::mem::take(&mut self.drawn);
        if drawn > 0 {
            // Not a colour: it is written even where colours are not wanted.
            let mut out = io::stderr().lock();
            let erase = erase_sequence(drawn, width());
            drop(out.write_all(erase.as_bytes()).and_then(|()| out.flush()));
        }
    }

    fn write_words(&mut self, text: &str) -> CommandResult {
        if text.is_empty() || self.show == OutputMode::Nothing || self.closed {
            return Ok(());
        }
        self.erase();
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

    /// A reader that went away, as `head` does, or a full disk does not end the job, nor our waiting
    /// for it.
    fn write(&mut self, write: impl FnOnce() -> io::Result<()>) -> CommandResult {
        let Err(error) = write() else { return Ok(()) };
        self.closed = true;
        let why = match error.kind() {
            io::ErrorKind::BrokenPipe => "nobody reads the output any more".to_owned(),
            _ => format!("the output cannot be written any more ({error})"),
        };
        self.remark(&format!("{why}; the job goes on (Ctrl-C cancels it)"))
    }
}

/// Returns what erases a line of these columns, at whose end the cursor stands. In a terminal that
/// has become narrower since, it fills several lines.
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
