//! A conversation in lines, where there is no terminal: what is said comes on standard input, a line at
//! a time when the agent is ready for it; words go to standard output, everything else to standard error.

use std::io::BufRead as _;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};

use heeler_chat::{Entry, Role, Shown, Speaker, Wish};

use super::Input;
use crate::failure::Outcome;
use crate::output;

/// How much of what a tool was given is shown.
const ARGS_CHARS: usize = 100;

/// Shows a conversation in lines.
pub(crate) struct Plain {
    /// Whether the agent is at work; the next line is read when it is not.
    busy: bool,
    ready: SyncSender<()>,
    is_waiting: bool,
}

impl Plain {
    /// Begins to read, a line for each time that the agent is ready.
    pub(crate) fn new(tell: Sender<Input>) -> Plain {
        let (ready, wanted) = sync_channel(1);
        std::thread::spawn(move || read(&wanted, &tell));
        Plain { busy: false, ready, is_waiting: false }
    }

    /// Lets the next line be read if nothing is under way.
    pub(crate) fn settle(&mut self) {
        if !self.busy && !self.is_waiting {
            self.is_waiting = true;
            // The reader has ended where there is nothing more to read.
            let _ended = self.ready.try_send(());
        }
    }

    /// A line was read.
    pub(crate) fn heard(&mut self) {
        self.is_waiting = false;
    }

    /// Shows something.
    pub(crate) fn show(&mut self, shown: &Shown) -> Outcome {
        match shown {
            Shown::Entry { of: Speaker::Coordinator, entry } => self.entry(entry)?,
            Shown::Entry { of: Speaker::Worker(name), entry } if entry.role == Role::Assistant => {
                output::note(&format!("[{name}] {}", entry.text()))?;
            }
            Shown::Older { of: Speaker::Coordinator, entries, .. } => {
                for entry in entries {
                    if entry.role == Role::User {
                        output::note(&format!("> {}", entry.text()))?;
                    } else {
                        self.entry(entry)?;
                    }
                }
            }
            Shown::Asked(question) => {
                let tool = &question.ask.tool;
                output::note(&format!(
                    "asks: {tool} (`heeler approvals list` shows it, to be answered)"
                ))?;
            }
            Shown::Told(text) => output::line(text.as_str())?,
            Shown::Failed(text) => output::note(text)?,
            Shown::Status(status) => self.busy = status.busy.is_some() || status.queued > 0,
            Shown::Suggested(text) => output::note(&format!("not sent: {text}"))?,
            Shown::Leaving(text) => output::note(text)?,
            _ => {}
        }
        Ok(())
    }

    fn entry(&self, entry: &Entry) -> Outcome {
        match (&entry.role, &entry.args) {
            (Role::Assistant, _) => output::line(entry.text())?,
            (Role::Tool, Some(args)) => {
                let args: String = args.to_string().chars().take(ARGS_CHARS).collect();
                output::note(&format!("{} {args}", entry.name.as_deref().unwrap_or("tool")))?;
            }
            (Role::System, _) => output::note(&entry.text())?,
            _ => {}
        }
        Ok(())
    }
}

fn read(wanted: &Receiver<()>, tell: &Sender<Input>) {
    let mut lines = std::io::stdin().lock().lines();
    while wanted.recv().is_ok() {
        let wish = match lines.next() {
            Some(Ok(line)) => Wish::Say(line),
            Some(Err(_)) | None => Wish::Leave,
        };
        let is_last = wish == Wish::Leave;
        if tell.send(Input::Wish(wish)).is_err() || is_last {
            return;
        }
    }
}
