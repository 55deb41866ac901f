//! `heeler status --watch`: the same page anew, each second, in the same place.
//!
//! Nothing of the terminal's state outlives a frame, so there is nothing to put back: Ctrl-C just
//! ends it below the last frame.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use crate::failure::{Code, Failure, Outcome};
use crate::output::Text;

/// How often a frame is drawn.
const EVERY: Duration = Duration::from_secs(1);
/// The height of a terminal that does not say it.
const ROWS: usize = 24;

/// Draws frames until it is interrupted.
pub(super) fn run(mut page: impl FnMut() -> Outcome<Vec<Text>>) -> Outcome {
    if !io::stdout().is_terminal() {
        let message = "`--watch` needs a terminal";
        return Err(Failure::message(Code::Usage, message).hint("heeler status --json"));
    }
    // What is on the screen scrolls up instead of being overwritten.
    let mut out = io::stdout().lock();
    out.write_all("\n".repeat(rows()).as_bytes())?;
    loop {
        let frame = frame(&page()?, rows());
        // Without colours where they are not wanted; what moves the cursor is none.
        let frame = match anstream::stdout().current_choice() {
            anstream::ColorChoice::Never => without_colours(&frame),
            _ => frame,
        };
        out.write_all(frame.as_bytes())?;
        out.flush()?;
        std::thread::sleep(EVERY);
    }
}

fn rows() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row) {
        0 => ROWS,
        rows => usize::from(rows).max(2),
    }
}

/// Returns what draws a page over what was drawn before, whatever the terminal's size was then. One
/// row is left for the cursor: at the end of the last one it would scroll.
fn frame(lines: &[Text], rows: usize) -> String {
    let room = rows - 1;
    let cut = lines.len().saturating_sub(room);
    let shown = if cut > 0 { room - 1 } else { lines.len() };
    // Long lines do not wrap, until the frame is drawn.
    let mut frame = String::from("\x1b[H\x1b[?7l");
    for line in &lines[..shown] {
        frame.push_str(&format!("{line}\x1b[K\r\n"));
    }
    if cut > 0 {
        frame.push_str(&format!("… {} more lines\x1b[K\r\n", lines.len() - shown));
    }
    frame.push_str("\x1b[J\x1b[?7h");
    frame
}

/// Takes colours away and leaves what moves the cursor.
fn without_colours(frame: &str) -> String {
    let mut text = String::with_capacity(frame.len());
    let mut rest = frame;
    while let Some(at) = rest.find("\x1b[") {
        let end = rest[at + 2..].find(|c: char| c.is_ascii_alphabetic());
        let Some(end) = end.map(|end| at + 3 + end) else { break };
        text.push_str(&rest[..at]);
        if !rest[..end].ends_with('m') {
            text.push_str(&rest[at..end]);
        }
        rest = &rest[end..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(lines: usize, rows: usize) -> String {
        let lines: Vec<Text> = (0..lines).map(|n| Text::from(format!("l{n}"))).collect();
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
        let text = without_colours("\x1b[H\x1b[31mred\x1b[0m\x1b[K\r\n");
        assert_eq!(text, "\x1b[Hred\x1b[K\r\n");
    }
}
