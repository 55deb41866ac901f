//! `heeler status --watch`: redraws the page in place every second.
//!
//! Keys are read one by one, including Ctrl-C, so that the terminal is always restored. `q` and
//! Ctrl-C both end the display below the last frame. Start at [`run`].

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{SafeText, strip_colours};

/// Interval between frames.
const FRAME_INTERVAL: Duration = Duration::from_secs(1);
/// Height of a terminal that does not report it.
const ROWS: usize = 24;

/// Byte that the terminal sends for Ctrl-C in raw mode.
const CTRL_C: u8 = 3;

/// Draws frames until a key ends the display. `page` is called with the number of rows for it.
pub(super) fn run(mut page: impl FnMut(usize) -> CommandResult<Vec<SafeText>>) -> CommandResult {
    if !io::stdout().is_terminal() {
        let message = "`--watch` needs a terminal";
        return Err(
            CommandFailure::message(FailureCode::Usage, message).hint("heeler status --json")
        );
    }
    // A guard, because `?` below may leave the loop at any frame.
    let keys = RawKeyboardGuard::new();
    // Scroll the screen's content up, so that it is not overwritten.
    let mut out = io::stdout().lock();
    out.write_all("\n".repeat(rows()).as_bytes())?;
    loop {
        // The size is read for each frame: the window may be resized at any time.
        let rows = rows();
        let frame = frame(&page(rows - 1)?, rows);
        // Remove colours if they are off, but keep the sequences that move the cursor.
        let frame = match anstream::stdout().current_choice() {
            anstream::ColorChoice::Never => strip_colours(&frame),
            _ => frame,
        };
        out.write_all(frame.as_bytes())?;
        out.flush()?;
        match keys.wait(Instant::now() + FRAME_INTERVAL) {
            Some(b'q' | b'Q') => return Ok(()),
            // Ctrl-C is read as a key, so the exit code must be set here.
            Some(CTRL_C) => return Err(CommandFailure::silent(FailureCode::Interrupted)),
            _ => {}
        }
    }
}

/// Raw keyboard mode; restored on drop.
struct RawKeyboardGuard(Option<Termios>);

impl RawKeyboardGuard {
    /// Switches the keyboard to raw mode, if there is one.
    fn new() -> RawKeyboardGuard {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut modes = before.clone();
            // Without ISIG Ctrl-C arrives as a byte, so the terminal is restored before the exit.
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            // On failure, Ctrl-C is still a signal.
            let _taken = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
        }
        RawKeyboardGuard(before)
    }

    /// Returns the next key that ends the display, or `None` at the deadline.
    fn wait(&self, deadline: Instant) -> Option<u8> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let (stdin, mut key) = (io::stdin(), [0]);
            let limit = Timespec::try_from(left).ok();
            // Without a keyboard, standard input may be a pipe, whose bytes are no keys.
            let is_typed = self.0.is_some()
                && matches!(poll(&mut [PollFd::new(&stdin, PollFlags::IN)], limit.as_ref()), Ok(1));
            match is_typed.then(|| rustix::io::read(&stdin, &mut key)) {
                Some(Ok(1)) if matches!(key[0], b'q' | b'Q' | CTRL_C) => return Some(key[0]),
                // Other keys must not redraw the page early.
                Some(Ok(1)) => {}
                // No key was pressed, or stdin is closed.
                _ => std::thread::sleep(deadline.saturating_duration_since(Instant::now())),
            }
        }
    }
}

impl Drop for RawKeyboardGuard {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // Fails only if the terminal is gone.
            let _put_back = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn rows() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row) {
        0 => ROWS,
        // A frame needs one row for text and one for the cursor.
        rows => usize::from(rows).max(2),
    }
}

/// Returns the bytes that redraw a page in place, independent of the terminal's former size. One
/// row is left for the cursor: at the end of the last row it would scroll.
fn frame(lines: &[SafeText], rows: usize) -> String {
    let room = rows - 1;
    let cut = lines.len().saturating_sub(room);
    let shown = if cut > 0 { room - 1 } else { lines.len() };
    // Line wrapping is off while the frame is drawn.
    let mut frame = String::from("\x1b[H\x1b[?7l");
    for line in &lines[..shown] {
        // Each line is erased to its end, which flickers less than clearing the screen.
        frame.push_str(&format!("{line}\x1b[K\r\n"));
    }
    if cut > 0 {
        frame.push_str(&format!("… {} more lines\x1b[K\r\n", lines.len() - shown));
    }
    frame.push_str("\x1b[J\x1b[?7h");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(lines: usize, rows: usize) -> String {
        let lines: Vec<SafeText> = (0..lines).map(|n| SafeText::from(format!("l{n}"))).collect();
        frame(&lines, rows)
    }

    #[test]
    fn a_frame_fits_the_screen_and_leaves_nothing_of_the_one_before() {
        assert_eq!(drawn(1, 3), "\x1b[H\x1b[?7ll0\x1b[K\r\n\x1b[J\x1b[?7h");
        assert_eq!(drawn(2, 3).matches("\r\n").count(), 2);
        let cut = drawn(9, 4);
        assert_eq!(cut.matches("\r\n").count(), 3);
        assert!(cut.contains("l1\x1b[K\r\n… 7 more lines\x1b[K\r\n"), "{cut:?}");
    }

    #[test]
    fn without_colours_the_cursor_still_moves() {
        let text = strip_colours("\x1b[H\x1b[31mred\x1b[0m\x1b[K\r\n");
        assert_eq!(text, "\x1b[Hred\x1b[K\r\n");
    }
}
