//! Block of lines at the bottom of a terminal that is redrawn in place. Start at [`RedrawnBlock`].
//!
//! The terminal's modes are never changed, so there is nothing to restore if the process is killed.

use std::io::{self, Write as _};

use unicode_width::UnicodeWidthStr as _;

use crate::output::{SafeText, width};

/// Height of a terminal that does not report it.
const ROWS: usize = 24;

/// Lines that are redrawn in place.
pub(super) struct RedrawnBlock {
    /// True if the terminal supports redrawing.
    can_redraw: bool,
    /// Width in columns of each drawn line.
    drawn: Vec<usize>,
    /// True if a prompt is below the lines, with the cursor after it.
    is_asking: bool,
}

impl RedrawnBlock {
    pub(super) fn new(moves: bool) -> RedrawnBlock {
        RedrawnBlock { can_redraw: moves, drawn: Vec::new(), is_asking: false }
    }

    /// Returns true if lines are drawn at all.
    pub(super) fn is_drawn(&self) -> bool {
        self.can_redraw
    }

    /// Replaces the drawn lines. Each must fit the terminal's width.
    pub(super) fn draw(&mut self, lines: &[SafeText]) {
        if !self.can_redraw {
            return;
        }
        // Overwrite the old lines; erasing them first would flicker.
        let mut frame = self.move_to_start();
        for line in lines {
            frame.push_str(&format!("{line}\x1b[K\n"));
        }
        frame.push_str("\x1b[J");
        // The widths are kept, because a resized terminal wraps the lines that are already drawn.
        self.drawn = lines.iter().map(|line| line.plain().width()).collect();
        self.is_asking = false;
        write(&frame);
    }

    /// Erases the lines, to make room for permanent output.
    pub(super) fn erase(&mut self) {
        let mut erasure = self.move_to_start();
        if !self.drawn.is_empty() {
            erasure.push_str("\x1b[J");
        }
        self.drawn.clear();
        self.is_asking = false;
        write(&erasure);
    }

    /// Leaves the lines on the screen.
    pub(super) fn keep_lines(&mut self) {
        // The cursor is behind the prompt, and the shell's own prompt must not follow it there.
        if self.is_asking {
            write("\n");
        }
        self.drawn.clear();
        self.is_asking = false;
    }

    /// Prints a prompt below the lines, which stay unchanged until it is answered.
    pub(super) fn prompt(&mut self, text: &str) {
        if self.is_asking {
            write("\n");
        }
        // The lines above the prompt become permanent: what is typed must not be erased.
        self.drawn.clear();
        self.is_asking = true;
        let mut out = anstream::stderr().lock();
        drop(write!(out, "{}", SafeText::from(text)).and_then(|()| out.flush()));
    }

    /// Returns true if a prompt is shown.
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// Records that a typed line answered the prompt; the terminal has echoed its newline.
    pub(super) fn answered(&mut self) {
        self.is_asking = false;
    }

    /// Returns the sequence that moves to the first line. In a terminal that has become narrower, a
    /// line occupies several rows.
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
    // Colours are removed by hand: the stream would also remove the sequences that move the cursor.
    let text = match anstream::stderr().current_choice() {
        anstream::ColorChoice::Never => crate::output::strip_colours(text),
        _ => text.to_owned(),
    };
    let mut out = io::stderr().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Returns the height of the terminal.
pub(super) fn rows() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_row) {
        0 => ROWS,
        rows => usize::from(rows).max(4),
    }
}
