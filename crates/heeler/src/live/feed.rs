//! The rows of a run without gap or duplicate, with what is not a row between them.
//!
//! The socket tells rows with their numbers, deltas and questions in order. Rows from before it was
//! listened to, and those that a slow listener missed, are read from the job log; where there is no
//! socket, all of them are.

use std::sync::mpsc::{SendError, Sender};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{Control, ControlError};
use heeler_model::run::{Happening, Op, ReplyBody};
use heeler_transcript::{Entry, LockFile, Scan};

use super::Event;

/// How often a starting run is looked for, and a log where there is no socket.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the run is asked for what it says of itself.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Follows a run in a thread of its own; `shown` rows of the job log are known already.
pub(crate) fn start(folder: Utf8PathBuf, log: Utf8PathBuf, shown: u64, tell: Sender<Event>) {
    let mut feed = Feed { folder, log, offset: 0, read: 0, shown, tell };
    std::thread::spawn(move || {
        // Whoever listened has gone: so do we.
        let _gone = feed.run();
    });
}

/// Asks the run what it does, again and again, until it is gone.
pub(crate) fn ask_state(folder: Utf8PathBuf, tell: Sender<Event>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(ASK_EVERY);
            match Control::of_run(&folder).and_then(|mut control| control.ask(Op::Status)) {
                Ok(ReplyBody::Status(state)) => {
                    if tell.send(Event::State(Box::new(state))).is_err() {
                        return;
                    }
                }
                Ok(_) => return,
                Err(ControlError::NotStarted { .. }) if !has_result(&folder) => {}
                Err(_) => return,
            }
        }
    });
}

struct Feed {
    folder: Utf8PathBuf,
    log: Utf8PathBuf,
    /// Where in the log the next line is, and which number it has.
    offset: u64,
    read: u64,
    /// How many rows were told.
    shown: u64,
    tell: Sender<Event>,
}

/// Nobody listens any more.
type Gone = SendError<Event>;

impl Feed {
    fn run(&mut self) -> Result<(), Gone> {
        loop {
            match Control::of_run(&self.folder).and_then(Control::subscribe) {
                Ok(happenings) => {
                    self.catch_up()?;
                    for happening in happenings {
                        let Ok(happening) = happening else { break };
                        self.take(happening)?;
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot listen to the run"),
            }
            let is_over = self.is_over();
            // Looked at before the log is read: what an ended run wrote is then all there.
            self.catch_up()?;
            if is_over {
                return self.tell.send(Event::RunEnded);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn take(&mut self, happening: Happening) -> Result<(), Gone> {
        match happening {
            Happening::Row { at, .. } if at < self.shown => Ok(()),
            Happening::Row { at, row } if at == self.shown => {
                self.shown += 1;
                self.tell.send(Event::Row(row))
            }
            Happening::Row { .. } => self.catch_up(),
            Happening::Lagged => {
                self.tell.send(Event::Lagged)?;
                self.catch_up()
            }
            Happening::Delta { text } => self.tell.send(Event::Delta(text)),
            Happening::Asked { ask } => self.tell.send(Event::Asked(ask)),
            Happening::Settled { ask } => self.tell.send(Event::Settled(ask)),
            Happening::Disk { trouble } => self.tell.send(Event::Disk(trouble)),
            // The connection ends with the run, and then the log is read to its end.
            Happening::Ended { .. } => Ok(()),
        }
    }

    /// Tells the rows that the log has and that were not told yet.
    fn catch_up(&mut self) -> Result<(), Gone> {
        let Ok(lines) = Scan::open_at(&self.log, self.offset) else { return Ok(()) };
        for entry in lines {
            let Ok(Entry::Record(record)) = entry else { continue };
            let (number, row) = (self.read, serde_json::from_str(&record.text));
            self.offset = record.next;
            self.read += 1;
            if number < self.shown {
                continue;
            }
            self.shown = number + 1;
            if let Ok(row) = row {
                self.tell.send(Event::Row(row))?;
            }
        }
        Ok(())
    }

    /// Says whether the run has ended or its runner is gone. A run that nobody has started yet
    /// holds no lock either, so it is over only if it had started.
    fn is_over(&self) -> bool {
        let is_dead = || matches!(LockFile::probe(&self.folder.join("lock")), Ok(None));
        has_result(&self.folder) || (self.folder.join("started.json").exists() && is_dead())
    }
}

fn has_result(folder: &Utf8Path) -> bool {
    folder.join("result.json").exists()
}
