//! Input of the user: Ctrl-C and typed lines. Start at [`KeyboardReader`].

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use tokio::signal::unix::{SignalKind, signal};

use super::watch_event::JobWatchEvent;

/// Longest line that a terminal delivers.
const LINE_BYTES_MAX: usize = 4096;

/// Calls `callback` on each Ctrl-C, instead of ending this process.
pub(crate) fn on_interrupt(callback: impl FnMut() + Send + 'static) -> io::Result<()> {
    on_signals(&[SignalKind::interrupt()], callback)
}

/// Calls `callback` on each Ctrl-C, SIGTERM and hang-up, instead of ending this process.
pub(crate) fn on_end_request(callback: impl FnMut() + Send + 'static) -> io::Result<()> {
    on_signals(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()], callback)
}

fn on_signals(kinds: &[SignalKind], callback: impl FnMut() + Send + 'static) -> io::Result<()> {
    let callback = Arc::new(Mutex::new(callback));
    for kind in kinds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        // Registered here, not in the thread: from now on the signal never ends the process.
        let guard = runtime.enter();
        let mut signals = signal(*kind)?;
        drop(guard);
        let callback = Arc::clone(&callback);
        std::thread::spawn(move || {
            runtime.block_on(async {
                while signals.recv().await.is_some() {
                    (callback.lock().unwrap_or_else(PoisonError::into_inner))();
                }
            });
        });
    }
    Ok(())
}

/// Terminal on which a person types answers.
#[derive(Debug, Clone)]
pub(crate) struct KeyboardInput(Arc<OwnedFd>);

impl KeyboardInput {
    /// Returns the keyboard if a person is at a terminal. If standard input holds the prompt, the
    /// terminal itself is opened.
    pub(crate) fn find(is_stdin_used: bool) -> Option<KeyboardInput> {
        // Questions are printed to stderr, so it must be visible to the person who answers.
        if !io::stderr().is_terminal() || !is_stdin_used && !io::stdin().is_terminal() {
            return None;
        }
        let found = match is_stdin_used {
            // As less and git do: standard input is at its end after the prompt.
            true => File::open("/dev/tty").map(OwnedFd::from),
            false => io::stdin().as_fd().try_clone_to_owned(),
        };
        let found =
            found.inspect_err(|error| tracing::debug!(%error, "no terminal to ask questions on"));
        found.ok().map(|terminal| KeyboardInput(Arc::new(terminal)))
    }
}

/// Reader of typed lines, each tagged with the number of the question asked before it.
pub(crate) struct KeyboardReader {
    keyboard: KeyboardInput,
    question: Arc<Mutex<u64>>,
}

impl KeyboardReader {
    /// Starts a thread that sends each typed line, and the end of input.
    pub(crate) fn start(
        keyboard: KeyboardInput,
        sender: SyncSender<JobWatchEvent>,
    ) -> KeyboardReader {
        let question = Arc::new(Mutex::new(0));
        let current = Arc::clone(&question);
        let mut lines =
            KeyboardLines { keyboard: keyboard.clone(), question: 0, unfinished: Vec::new() };
        std::thread::spawn(move || {
            // Stop at the end of input, or if the receiver is gone.
            loop {
                let (question, line) = lines.next(&current);
                let is_end = line.is_none();
                if sender.send(JobWatchEvent::LineTyped(question, line)).is_err() || is_end {
                    return;
                }
            }
        });
        KeyboardReader { keyboard, question }
    }

    /// Discards lines typed so far: they cannot be meant for the question asked now. Returns the
    /// number that later lines carry.
    pub(crate) fn discard_typed(&self) -> u64 {
        // The lock keeps the reader from taking a line between the flush and the new number.
        let mut question = self.question.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails only if this is no terminal, which has nothing to discard.
        let _flushed = tcflush(&self.keyboard.0, QueueSelector::IFlush);
        *question += 1;
        *question
    }
}

/// Lines as they are typed, without reading ahead.
struct KeyboardLines {
    keyboard: KeyboardInput,
    question: u64,
    unfinished: Vec<u8>,
}

impl KeyboardLines {
    /// Returns the next line, or the end of input, with the number of the question asked before it.
    fn next(&mut self, current: &Mutex<u64>) -> (u64, Option<String>) {
        loop {
            let keyboard = &self.keyboard.0;
            // Wait without the lock: a new question must be able to take it while no one types.
            match poll(&mut [PollFd::new(keyboard, PollFlags::IN)], None) {
                Err(Errno::INTR) => continue,
                Err(_) => return (self.question, None),
                Ok(_) => {}
            }
            // Hold the lock while reading: a line then belongs clearly to one question.
            let question = current.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::replace(&mut self.question, *question) != *question {
                // The beginning of this line was typed before the question appeared.
                self.unfinished.clear();
            }
            // The input may have been discarded meanwhile.
            let none = Timespec::default();
            if !matches!(poll(&mut [PollFd::new(keyboard, PollFlags::IN)], Some(&none)), Ok(1)) {
                continue;
            }
            let mut bytes = [0; LINE_BYTES_MAX];
            match rustix::io::read(keyboard, &mut bytes) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Ok(0) | Err(_) => return (*question, None),
                Ok(read) => self.unfinished.extend_from_slice(&bytes[..read]),
            }
            drop(question);
            // Ctrl-D delivers a line without its newline; the rest of the line follows.
            if self.unfinished.ends_with(b"\n") || self.unfinished.len() >= LINE_BYTES_MAX {
                let line = String::from_utf8_lossy(&self.unfinished).into_owned();
                self.unfinished.clear();
                return (self.question, Some(line));
            }
        }
    }
}
