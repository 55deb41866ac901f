//! Runs commands in parallel. On a terminal, each has one line that is redrawn; otherwise every
//! line that a command prints is printed with its name. Start at [`run_side_by_side`].

use std::io::{BufRead as _, BufReader, IsTerminal as _, PipeReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output::{self, SPINNER_FRAMES, one_line, truncate_to_width};

/// Interval at which the lines are redrawn.
const TICK: Duration = Duration::from_millis(100);

/// Lines that may wait to be shown.
const LINES_MAX: usize = 256;

/// A printed line, with the index of its command.
type WriterLine = (usize, String);

/// Runs all commands and shows their output; fails if one fails.
pub(super) fn run_side_by_side(commands: Vec<(&str, Command)>) -> CommandResult {
    let shown = std::io::stderr().is_terminal();
    let (sender, lines) = sync_channel::<WriterLine>(LINES_MAX);
    let mut children = Vec::new();
    for (number, (name, mut command)) in commands.into_iter().enumerate() {
        // One pipe for stdout and stderr keeps their lines in order.
        let (pipe, out) = std::io::pipe()?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        // `command` is dropped after this, which closes this process's copies of the pipe.
        children.push((name, command.spawn()?));
        forward(number, pipe, sender.clone());
    }
    // The channel must end when the last command closes its output.
    drop(sender);
    let names: Vec<&str> = children.iter().map(|(name, _)| *name).collect();
    let mut rows =
        ProgressLines { last: vec![String::new(); names.len()], names, drawn: 0, spinner_frame: 0 };
    loop {
        match lines.recv_timeout(TICK) {
            Ok((number, line)) if shown => rows.last[number] = one_line(&line),
            // Without a terminal nothing can be redrawn, so lines are marked with their command.
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

/// One line for each command, with its latest output.
struct ProgressLines<'n> {
    names: Vec<&'n str>,
    last: Vec<String>,
    /// Number of lines on the screen.
    drawn: usize,
    spinner_frame: usize,
}

impl ProgressLines<'_> {
    /// Redraws the lines in place. Leaves the cursor below them, so that the `^C` that a terminal
    /// echoes moves nothing.
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

/// Writes to the terminal. Errors are ignored: the terminal is gone.
fn write(text: &str) {
    let mut out = std::io::stderr().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn forward(number: usize, pipe: PipeReader, lines: SyncSender<WriterLine>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // Hints for the next command make no sense here: the user did not type this command.
            let shown = !line.trim().is_empty() && !line.trim().starts_with("next: ");
            if shown && lines.send((number, line)).is_err() {
                return;
            }
        }
    });
}
