//! Lines below everything else on a terminal, drawn anew in the same place.
//!
//! Nothing of the terminal's state is changed, so there is nothing to put back if we are killed.

use std::io::{self, Write as _};

use unicode_width::UnicodeWidthStr as _;

use crate::output::{SafeText, width};

/// The height of a terminal that does not say it.
const ROWS: usize = 24;

/// Lines that are drawn in place.
pub(super) struct RedrawnBlock {
    /// Whether this is a terminal that can do that.
    can_redraw: bool,
    /// How many columns each line fills that stands there.
    drawn: Vec<usize>,
    /// A question stands below, and the cursor behind it.
    is_asking: bool,
}

impl RedrawnBlock {
    pub(super) fn new(moves: bool) -> RedrawnBlock {
        RedrawnBlock { can_redraw: moves, drawn: Vec::new(), is_asking: false }
    }

    /// Says whether lines are drawn at all.
    pub(super) fn is_drawn(&self) -> bool {
        self.can_redraw
    }

    /// Draws lines in place of those that stand there. Each must fit the terminal's width.
    pub(super) fn draw(&mut self, lines: &[SafeText]) {
        if !self.can_redraw {
            return;
        }
        // Overwritten, not erased first: that would flicker.
        let mut frame = self.move_to_start();
        for line in lines {
            frame.push_str(&format!("{line}\x1b[K\n"));
        }
        frame.push_str("\x1b[J");
        self.drawn = lines.iter().map(|line| line.plain().width()).collect();
        self.is_asking = false;
        write(&frame);
    }

    /// Takes the lines away, for something that stays.
    pub(super) fn erase(&mut self) {
        let mut erasure = self.move_to_start();
        if !self.drawn.is_empty() {
            erasure.push_str("\x1b[J");
        }
        self.drawn.clear();
        self.is_asking = false;
        write(&erasure);
    }

    /// Leaves the lines where they are.
    pub(super) fn keep_lines(&mut self) {
        if self.is_asking {
            write("\n");
        }
        self.drawn.clear();
        self.is_asking = false;
    }

    /// Puts a question below the lines; they stay as they are until it is answered.
    pub(super) fn prompt(&mut self, text: &str) {
        if self.is_asking {
            write("\n");
        }
        self.drawn.clear();
        self.is_asking = true;
        let mut out = anstream::stderr().lock();
        drop(write!(out, "{}", SafeText::from(text)).and_then(|()| out.flush()));
    }

    /// Says whether a question stands there.
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// The question was answered by a line, whose end the terminal has shown.
    pub(super) fn answered(&mut self) {
        self.is_asking = false;
    }

    /// Returns what goes to where the lines begin. In a terminal that has become narrower since, a
    /// line fills several.
    fn move_to_start(&self) -> String {
        if self.is_asking {
            return "\n".to_owned();
        }
        let width = width();
        let above: usize = self.drawn.iter().map(|columns| columns.div_ceil(width).max(1)).sum();
        match above {
            0 => String::new(),
            above => format!("\r\x1b[{above}A"),
        }
    }
}

fn write(text: &str) {
    if text.is_empty() {
        return;
    }
    let text = match anstream::stderr().current_choice() {
        anstream::ColorChoice::Never => crate::output::strip_colours(text),
        _ => text.to_owned(),
    };
    let mut out = io::stderr().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Returns how many lines the terminal has.
pub(super) fn rows() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_row) {
        0 => ROWS,
        rows => usize::from(rows).max(4),
    }
}
