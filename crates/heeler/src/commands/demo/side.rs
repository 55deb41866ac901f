//! Commands at work side by side: on a terminal a line for each that moves, else every line that
//! they write, with the name of its writer.

use std::io::{BufRead as _, BufReader, IsTerminal as _, PipeReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Columns};

/// A line, and the number of its writer.
type Told = (usize, String);

/// Runs all of them and shows what they do; fails if one does.
pub(super) fn by_side(commands: Vec<(&str, Command)>) -> Outcome {
    let shown = std::io::stderr().is_terminal();
    let columns = Columns::start(commands.iter().map(|(name, _)| *name), shown);
    let (sender, told) = channel::<Told>();
    let mut children = Vec::new();
    for (number, (name, mut command)) in commands.into_iter().enumerate() {
        // One pipe for both, so that words and deeds come in their order.
        let (pipe, out) = std::io::pipe()?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        children.push((name, command.spawn()?));
        forward(number, pipe, sender.clone());
    }
    drop(sender);
    for (number, line) in told {
        columns.say(number, &line);
        if !shown {
            output::line(format!("{:<8}| {line}", children[number].0))?;
        }
    }
    let last = columns.end();
    let mut failed = Vec::new();
    for ((name, mut child), last) in children.into_iter().zip(last) {
        if shown {
            output::line(format!("{name:<8} {last}"))?;
        }
        if !child.wait()?.success() {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let message = format!("these agents failed: {}", failed.join(", "));
    Err(Failure::message(Code::Failed, message))
}

fn forward(number: usize, pipe: PipeReader, told: Sender<Told>) {
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
