//! Commands at work side by side: on a terminal a line for each that moves, else every line that
//! they write, with the name of its writer.

use std::io::{BufRead as _, BufReader, IsTerminal as _, PipeReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, SPINNER_FRAMES, one_line, truncate_to_width};

/// How often the lines move.
const TICK: Duration = Duration::from_millis(100);

/// How many lines may wait to be shown.
const LINES_MAX: usize = 256;

/// A line, and the number of its writer.
type WriterLine = (usize, String);

/// Runs all of them and shows what they do; fails if one does.
pub(super) fn run_side_by_side(commands: Vec<(&str, Command)>) -> CommandResult {
    let shown = std::io::stderr().is_terminal();
    let (sender, told) = sync_channel::<WriterLine>(LINES_MAX);
    let mut children = Vec::new();
    for (number, (name, mut command)) in commands.into_iter().enumerate() {
        // One pipe for both, so that words and deeds come in their order.
        let (pipe, out) = std::io::pipe()?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        children.push((name, command.spawn()?));
        forward(number, pipe, sender.clone());
    }
    drop(sender);
    let names: Vec<&str> = children.iter().map(|(name, _)| *name).collect();
    let mut rows =
        ProgressLines { last: vec![String::new(); names.len()], names, drawn: 0, spinner_frame: 0 };
    loop {
        match told.recv_timeout(TICK) {
            Ok((number, line)) if shown => rows.last[number] = one_line(&line),
            Ok((number, line)) => output::print_line(format!("{:<8}| {line}", rows.names[number]))?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if shown {
            rows.draw();
        }
    }
    rows.erase();
    let mut failed = Vec::new();
    for ((name, mut child), last) in children.into_iter().zip(&rows.last) {
        if shown {
            output::print_line(format!("{name:<8} {last}"))?;
        }
        if !child.wait()?.success() {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let message = format!("these agents failed: {}", failed.join(", "));
    Err(CommandFailure::message(FailureCode::Failed, message))
}

/// A line for each, with the last thing that it said.
struct ProgressLines<'n> {
    names: Vec<&'n str>,
    last: Vec<String>,
    /// How many lines were drawn.
    drawn: usize,
    spinner_frame: usize,
}

impl ProgressLines<'_> {
    /// Draws them over those that were drawn before. The cursor then stands below them, so that the
    /// `^C` that a terminal echoes moves nothing.
    fn draw(&mut self) {
        self.erase();
        self.spinner_frame = (self.spinner_frame + 1) % SPINNER_FRAMES.len();
        let mut text = String::new();
        for (name, last) in self.names.iter().zip(&self.last) {
            let line = format!("{} {name:<8} {last}", SPINNER_FRAMES[self.spinner_frame]);
            text += truncate_to_width(&line, output::width() - 1);
            text.push('\n');
        }
        self.drawn = self.names.len();
        write(&text);
    }

    fn erase(&mut self) {
        match std::mem::take(&mut self.drawn) {
            0 => {}
            above => write(&format!("\r\x1b[{above}A\x1b[J")),
        }
    }
}

/// Writes to the terminal; where that cannot be done nobody looks.
fn write(text: &str) {
    let mut out = std::io::stderr().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn forward(number: usize, pipe: PipeReader, told: SyncSender<WriterLine>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // What to type next is for somebody who typed this.
            let shown = !line.trim().is_empty() && !line.trim().starts_with("next: ");
            if shown && told.send((number, line)).is_err() {
                return;
            }
        }
    });
}
