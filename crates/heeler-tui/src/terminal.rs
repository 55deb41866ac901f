//! Access to the terminal; no other module touches it.
//!
//! [`TerminalHandle::open`] acquires it (raw mode, alternate screen, wheel, bracketed paste) and
//! starts a thread that reads keys. It is released when the handle is dropped, and before a panic
//! message is printed.

use std::io::{self, Read as _, Stdout, stdout};
use std::os::unix::net::UnixStream;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heeler_chat::ChatOutput;
use ratatui::backend::{Backend as _, CrosstermBackend};
use ratatui::crossterm::event::{
    self, DisableBracketedPaste, DisableFocusChange, DisableMouseCapture, EnableBracketedPaste,
    EnableFocusChange, Event, KeyboardEnhancementFlags, PopKeyboardEnhancementFlags,
    PushKeyboardEnhancementFlags,
};
use ratatui::crossterm::style::Print;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
    is_raw_mode_enabled, size,
};
use ratatui::crossterm::{cursor, execute};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::SigId;
use signal_hook::consts::SIGWINCH;
use thiserror::Error;

/// Most pending inputs; further senders wait.
const INPUT_QUEUE_MAX: usize = 256;

/// Poll timeout of crossterm; with zero it would not look for keys at all.
const POLL_TIMEOUT: Duration = Duration::from_millis(1);

/// Number of polls in a row without an event, after which crossterm has none. One is not enough: a
/// poll does not look at the keys that crossterm has read already if the thread was suspended for
/// longer than the timeout. They would be shown only with the next key.
const EMPTY_POLLS_MIN: u32 = 2;

/// Enables mouse button events, which include the wheel, but not motion events.
const ENABLE_MOUSE_BUTTONS: &str = "\x1b[?1000h\x1b[?1006h";

/// The terminal cannot be used.
#[derive(Debug, Error)]
#[error("cannot use the terminal; use a pipe for plain output")]
pub struct TerminalError(#[source] io::Error);

/// Input of the event loop.
pub(crate) enum TerminalInput {
    /// Key, paste, mouse or resize event.
    Event(Event),
    /// Output to show.
    Output(Box<ChatOutput>),
    /// There will be no more output.
    OutputEnded,
    /// The terminal is gone.
    HungUp,
}

pub(crate) type TerminalCanvas = ratatui::Terminal<CrosstermBackend<Stdout>>;

/// Acquired terminal; dropping it releases the terminal.
pub struct TerminalHandle {
    pub(crate) canvas: TerminalCanvas,
    pub(crate) inputs: Receiver<TerminalInput>,
    /// Sender of inputs.
    pub(crate) sender: SyncSender<TerminalInput>,
    is_closed: Arc<AtomicBool>,
    /// Wakes the thread that reads keys when it is dropped.
    _closer: UnixStream,
}

impl TerminalHandle {
    /// Acquires the terminal. Standard input and output must be terminals.
    pub fn open() -> Result<TerminalHandle, TerminalError> {
        // Before the terminal is changed, so that no panic can leave it in raw mode.
        install_panic_hook();
        let (sender, inputs) = sync_channel(INPUT_QUEUE_MAX);
        let is_closed = Arc::new(AtomicBool::new(false));
        acquire_terminal().map_err(TerminalError)?;
        let canvas = match ratatui::Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(canvas) => canvas,
            Err(error) => {
                release_terminal();
                return Err(TerminalError(error));
            }
        };
        let (closer, wakers) = match KeyWakers::new() {
            Ok(made) => made,
            Err(error) => {
                release_terminal();
                return Err(TerminalError(error));
            }
        };
        let keys = (sender.clone(), Arc::clone(&is_closed));
        // The thread is never joined: it exits as soon as the handle is dropped.
        thread::spawn(move || read_keys(&keys.0, &keys.1, &wakers));
        Ok(TerminalHandle { canvas, inputs, sender, is_closed, _closer: closer })
    }
}

impl Drop for TerminalHandle {
    fn drop(&mut self) {
        // Set first, so that the thread does not read keys of the shell.
        self.is_closed.store(true, Ordering::Release);
        release_terminal();
    }
}

fn acquire_terminal() -> io::Result<()> {
    enable_raw_mode()?;
    let keys = KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES;
    let acquired = execute!(
        stdout(),
        EnterAlternateScreen,
        Print(ENABLE_MOUSE_BUTTONS),
        EnableBracketedPaste,
        EnableFocusChange,
        // Distinguishes Shift+Enter from Enter; terminals without support ignore it.
        PushKeyboardEnhancementFlags(keys)
    );
    if acquired.is_err() {
        // A partial setup must not stay.
        release_terminal();
    }
    acquired
}

/// Reverts [`acquire_terminal`]. Errors are ignored: a closed terminal needs no reset.
fn release_terminal() {
    let _released = execute!(
        stdout(),
        PopKeyboardEnhancementFlags,
        DisableFocusChange,
        DisableBracketedPaste,
        // Disables every mouse mode, also those that were not enabled.
        DisableMouseCapture,
        LeaveAlternateScreen,
        cursor::Show
    );
    let _released = disable_raw_mode();
}

/// Clears the screen, so that the next frame draws everything. ratatui's own method asks the
/// terminal for the cursor position, and a terminal that does not answer would count as gone.
pub(crate) fn clear(canvas: &mut TerminalCanvas) -> io::Result<()> {
    canvas.backend_mut().clear()?;
    // Discards the previous buffer, so that all cells are drawn.
    canvas.swap_buffers();
    Ok(())
}

/// Passes a text to the terminal's clipboard (OSC 52). Terminals without support ignore it.
pub(crate) fn copy(text: &str) -> io::Result<()> {
    // Encoded, so that no character of the text can end the sequence.
    execute!(stdout(), Print(format!("\x1b]52;c;{}\x07", STANDARD.encode(text))))
}

/// Releases the terminal and stops the process group; acquires the terminal again when the program
/// continues.
pub(crate) fn suspend() -> io::Result<()> {
    // The shell must find a normal terminal.
    release_terminal();
    // The whole group, as the terminal's own Ctrl+Z does it in normal mode.
    rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
    acquire_terminal()
}

/// Returns true if the terminal is acquired: a panic releases it from another thread.
pub(crate) fn is_terminal_acquired() -> bool {
    // An unknown state counts as released, so that nothing is drawn into a shell.
    is_raw_mode_enabled().unwrap_or(false)
}

fn install_panic_hook() {
    // A second terminal of the same process must not add a second hook.
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let previous_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if is_terminal_acquired() {
                release_terminal();
            }
            previous_hook(info);
        }));
    });
}

/// Ends of pipes that wake the thread that reads keys.
struct KeyWakers {
    /// At its end once the handle is dropped.
    closed: UnixStream,
    /// Readable after the terminal was resized.
    resized: UnixStream,
    resize_signal: SigId,
}

impl Drop for KeyWakers {
    fn drop(&mut self) {
        // Later signals must not write to a closed pipe.
        signal_hook::low_level::unregister(self.resize_signal);
    }
}

impl KeyWakers {
    /// Creates the wakers, and the end that the handle keeps.
    fn new() -> io::Result<(UnixStream, KeyWakers)> {
        let (closer, closed) = UnixStream::pair()?;
        let (signalled, resized) = UnixStream::pair()?;
        resized.set_nonblocking(true)?;
        let resize_signal = signal_hook::low_level::pipe::register(SIGWINCH, signalled)?;
        Ok((closer, KeyWakers { closed, resized, resize_signal }))
    }

    /// Waits for a key, a resize or the end.
    fn wait(&self) -> Result<KeyWakeup, Errno> {
        let stdin = rustix::stdio::stdin();
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&self.closed, PollFlags::IN),
            PollFd::new(&self.resized, PollFlags::IN),
        ];
        poll(&mut fds, None)?;
        let is_gone =
            fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        // Emptied, or the next wait would end at once.
        let is_resized = (&self.resized).read(&mut [0; 64]).is_ok();
        Ok(KeyWakeup { is_gone, is_resized })
    }
}

/// Reasons for the end of a wait for keys.
struct KeyWakeup {
    /// The terminal is gone.
    is_gone: bool,
    is_resized: bool,
}

/// Reads keys until the terminal is gone or released.
fn read_keys(sender: &SyncSender<TerminalInput>, is_closed: &AtomicBool, wakers: &KeyWakers) {
    loop {
        // Before each wait: keys that crossterm has taken from the terminal do not end a wait.
        let mut empty_polls = 0;
        while empty_polls < EMPTY_POLLS_MIN {
            let Ok(true) = event::poll(POLL_TIMEOUT) else {
                empty_polls += 1;
                continue;
            };
            empty_polls = 0;
            let Ok(event) = event::read() else { break };
            if sender.send(TerminalInput::Event(event)).is_err() {
                return;
            }
        }
        // crossterm would read from a closed terminal forever.
        let wakeup = match wakers.wait() {
            Ok(wakeup) => wakeup,
            // A signal that interrupts the wait is no reason to hang up.
            Err(error) => KeyWakeup { is_gone: error != Errno::INTR, is_resized: false },
        };
        // Checked after the wait: the handle may have been dropped meanwhile.
        if is_closed.load(Ordering::Acquire) {
            return;
        }
        if wakeup.is_gone {
            let _sent = sender.send(TerminalInput::HungUp);
            return;
        }
        // crossterm may learn of the signal only after this thread, and so miss this poll.
        if wakeup.is_resized
            && let Ok((columns, rows)) = size()
            && sender.send(TerminalInput::Event(Event::Resize(columns, rows))).is_err()
        {
            return;
        }
    }
}
