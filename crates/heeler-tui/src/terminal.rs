//! Access to the terminal; no other module touches it.
//!
//! [`TerminalHandle::open`] acquires it (raw mode, alternate screen, wheel, bracketed paste) and
//! starts a thread that reads keys. It is released when the handle is dropped, and before a panic
//! message is printed.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

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
    is_raw_mode_enabled,
};
use ratatui::crossterm::{cursor, execute};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

/// Most pending inputs; further senders wait.
const INPUT_QUEUE_MAX: usize = 256;

/// Longest wait for a key before a check for a resize or the end.
const KEYS_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Poll timeout of crossterm; with zero it would not look for keys at all.
const POLL_TIMEOUT: Duration = Duration::from_millis(1);

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
        let keys = (sender.clone(), Arc::clone(&is_closed));
        // The thread is never joined: it exits within one poll after the handle is dropped.
        thread::spawn(move || read_keys(&keys.0, &keys.1));
        Ok(TerminalHandle { canvas, inputs, sender, is_closed })
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

/// Reads keys until the terminal is gone or released.
fn read_keys(sender: &SyncSender<TerminalInput>, is_closed: &AtomicBool) {
    loop {
        // crossterm would read from a closed terminal forever.
        let is_released = match wait_for_key() {
            Ok(is_released) => is_released,
            Err(rustix::io::Errno::INTR) => false,
            Err(_) => true,
        };
        // Checked after the wait: the handle may have been dropped meanwhile.
        if is_closed.load(Ordering::Acquire) {
            return;
        }
        if is_released {
            let _sent = sender.send(TerminalInput::HungUp);
            return;
        }
        // All pending keys at once, because each wait has a delay.
        while let Ok(true) = event::poll(POLL_TIMEOUT) {
            let Ok(event) = event::read() else { break };
            if sender.send(TerminalInput::Event(event)).is_err() {
                return;
            }
        }
    }
}

/// Waits for a key or a timeout; returns true if the terminal is gone.
fn wait_for_key() -> Result<bool, rustix::io::Errno> {
    let stdin = rustix::stdio::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    poll(&mut fds, Some(&KEYS_WAIT))?;
    Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}
