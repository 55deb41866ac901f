//! The terminal: the only module that touches it.
//!
//! [`TerminalHandle::open_file`] takes it over (raw mode, alternate screen, wheel, bracketed paste) and starts a
//! thread that reads keys. It is given back when the value is dropped and before a panic is told.

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

/// How much may wait to be shown; whoever has more waits.
const INPUT_QUEUE_MAX: usize = 256;

/// How long the keyboard is waited for before it is seen whether the size has changed or all is over.
const KEYS_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long crossterm looks for keys; where there is no time at all it does not look.
const POLL_TIMEOUT: Duration = Duration::from_millis(1);

/// Asks for buttons, of which the wheel is two, and not for every move of the mouse.
const ENABLE_MOUSE_BUTTONS: &str = "\x1b[?1000h\x1b[?1006h";

/// The terminal cannot be used.
#[derive(Debug, Error)]
#[error("cannot use the terminal; a pipe in its place gets plain lines")]
pub struct TerminalError(#[source] io::Error);

/// What reaches the loop.
pub(crate) enum TerminalInput {
    /// A key, a paste, a new size.
    Event(Event),
    /// Something to show.
    Output(Box<ChatOutput>),
    /// Nothing is shown any more.
    OutputEnded,
    /// The terminal is gone.
    HungUp,
}

/// What is drawn on.
pub(crate) type TerminalCanvas = ratatui::Terminal<CrosstermBackend<Stdout>>;

/// A terminal that is ours until this is dropped.
pub struct TerminalHandle {
    pub(crate) canvas: TerminalCanvas,
    pub(crate) inputs: Receiver<TerminalInput>,
    /// Where inputs come from.
    pub(crate) sender: SyncSender<TerminalInput>,
    is_closed: Arc<AtomicBool>,
}

impl TerminalHandle {
    /// Takes the terminal over. Standard input and output must be one.
    pub fn open() -> Result<TerminalHandle, TerminalError> {
        install_panic_hook();
        let (tell, inputs) = sync_channel(INPUT_QUEUE_MAX);
        let is_over = Arc::new(AtomicBool::new(false));
        acquire_terminal().map_err(TerminalError)?;
        let canvas = match ratatui::Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(canvas) => canvas,
            Err(error) => {
                release_terminal();
                return Err(TerminalError(error));
            }
        };
        let keys = (tell.clone(), Arc::clone(&is_over));
        // Never joined: it waits for at most a key that it then leaves to others.
        thread::spawn(move || read_keys(&keys.0, &keys.1));
        Ok(TerminalHandle { canvas, inputs, sender: tell, is_closed: is_over })
    }
}

impl Drop for TerminalHandle {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        release_terminal();
    }
}

fn acquire_terminal() -> io::Result<()> {
    enable_raw_mode()?;
    let keys = KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES;
    let taken = execute!(
        stdout(),
        EnterAlternateScreen,
        Print(ENABLE_MOUSE_BUTTONS),
        EnableBracketedPaste,
        EnableFocusChange,
        // Tells Shift+Enter from Enter; a terminal that cannot do it ignores this.
        PushKeyboardEnhancementFlags(keys)
    );
    if taken.is_err() {
        release_terminal();
    }
    taken
}

/// Undoes all of [`acquire_terminal`]. A terminal that is gone takes nothing, and needs nothing.
fn release_terminal() {
    let _gone = execute!(
        stdout(),
        PopKeyboardEnhancementFlags,
        DisableFocusChange,
        DisableBracketedPaste,
        DisableMouseCapture,
        LeaveAlternateScreen,
        cursor::Show
    );
    let _gone = disable_raw_mode();
}

/// Clears the screen, so that the next frame draws all of it. ratatui's own way asks the terminal where
/// the cursor is, and one that does not answer would count as gone.
pub(crate) fn clear(canvas: &mut TerminalCanvas) -> io::Result<()> {
    canvas.backend_mut().clear()?;
    // What was drawn last is forgotten.
    canvas.swap_buffers();
    Ok(())
}

/// Gives the terminal back and stops the program, with all that the shell has started with it;
/// takes the terminal again when somebody has it go on.
pub(crate) fn suspend() -> io::Result<()> {
    release_terminal();
    rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
    acquire_terminal()
}

/// Says whether the terminal is taken: a panic gives it back behind everybody's back.
pub(crate) fn is_terminal_acquired() -> bool {
    is_raw_mode_enabled().unwrap_or(false)
}

fn install_panic_hook() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if is_terminal_acquired() {
                release_terminal();
            }
            told(info);
        }));
    });
}

/// Reads keys until the terminal is gone or given back.
fn read_keys(tell: &SyncSender<TerminalInput>, is_over: &AtomicBool) {
    loop {
        // crossterm would read a terminal that is gone for ever.
        let is_gone = match wait_for_key() {
            Ok(is_gone) => is_gone,
            Err(rustix::io::Errno::INTR) => false,
            Err(_) => true,
        };
        if is_over.load(Ordering::Acquire) {
            return;
        }
        if is_gone {
            let _over = tell.send(TerminalInput::HungUp);
            return;
        }
        while let Ok(true) = event::poll(POLL_TIMEOUT) {
            let Ok(event) = event::read() else { break };
            if tell.send(TerminalInput::Event(event)).is_err() {
                return;
            }
        }
    }
}

/// Waits for a key, or a moment; says whether the terminal is gone.
fn wait_for_key() -> Result<bool, rustix::io::Errno> {
    let stdin = rustix::stdio::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    poll(&mut fds, Some(&KEYS_WAIT))?;
    Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}
