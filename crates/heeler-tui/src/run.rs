//! The loop between the terminal, a screen and a conversation.
//!
//! A key is drawn at once; what is shown is drawn at most every [`FRAME`]. Whatever waits is taken in
//! before a frame, so no frame is drawn for what the next would change.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use heeler_chat::{Shown, Wish};
use jiff::Timestamp;
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers};

use crate::picker::{Picked, Picker};
use crate::terminal::{Input, Terminal, TerminalError};
use crate::{Screen, keys};

/// The least time between two frames that no key asks for.
const FRAME: Duration = Duration::from_millis(16);

/// How often the time on the screen goes on while the agent works.
const TICK: Duration = Duration::from_secs(1);

/// Shows a conversation until it has ended. What the person wants is told to `wish`, which must not
/// wait: whoever gets it may be waiting to show something. `clock` says what time it is.
pub fn run(
    terminal: &mut Terminal,
    screen: &mut Screen,
    shown: Receiver<Shown>,
    clock: impl Fn() -> Timestamp,
    mut wish: impl FnMut(Wish),
) -> Result<(), TerminalError> {
    let tell = terminal.tell.clone();
    thread::spawn(move || {
        for shown in shown {
            if tell.send(Input::Shown(shown)).is_err() {
                return;
            }
        }
        let _gone = tell.send(Input::Over);
    });
    let mut drawn_at: Option<Instant> = None;
    let mut is_stale = true;
    loop {
        screen.at(clock());
        let since = drawn_at.map_or(FRAME, |at| at.elapsed());
        if is_stale && since >= FRAME {
            terminal.canvas.draw(|frame| screen.draw(frame))?;
            (drawn_at, is_stale) = (Some(Instant::now()), false);
            continue;
        }
        let wait = if is_stale { FRAME - since } else { TICK };
        let input = match terminal.inputs.recv_timeout(wait) {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => {
                is_stale |= screen.is_ticking();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        screen.at(clock());
        let taken = take_in(terminal, screen, input)?;
        taken.wishes.into_iter().for_each(&mut wish);
        if taken.is_over {
            return Ok(());
        }
        is_stale = true;
        if taken.is_key {
            drawn_at = None;
        }
    }
}

/// What came of all that waited.
#[derive(Default)]
struct Taken {
    wishes: Vec<Wish>,
    is_key: bool,
    is_over: bool,
}

/// Takes one input in and all that wait behind it, up to a key: that is drawn first.
fn take_in(
    terminal: &mut Terminal,
    screen: &mut Screen,
    input: Input,
) -> Result<Taken, TerminalError> {
    let mut taken = Taken::default();
    let mut next = Some(input);
    while let Some(input) = next {
        match input {
            Input::Shown(Shown::Left) | Input::Over => taken.is_over = true,
            Input::Shown(shown) => screen.show(shown),
            Input::HungUp => taken.wishes.push(Wish::Leave),
            Input::Event(event) if keys::is(&event, KeyCode::Char('z'), KeyModifiers::CONTROL) => {
                terminal.suspend()?;
                taken.is_key = true;
            }
            Input::Event(event) => {
                if keys::is(&event, KeyCode::Char('l'), KeyModifiers::CONTROL) {
                    terminal.redraw()?;
                }
                taken.wishes.extend(screen.key(&event));
                taken.is_key = true;
            }
        }
        if taken.is_key || taken.is_over {
            break;
        }
        next = terminal.inputs.try_recv().ok();
    }
    Ok(taken)
}

/// Lets a person pick a session; none if they leave.
pub fn pick(
    terminal: &mut Terminal,
    picker: &mut Picker,
    now: Timestamp,
) -> Result<Option<String>, TerminalError> {
    loop {
        terminal.canvas.draw(|frame| picker.draw(frame, now))?;
        let Ok(input) = terminal.inputs.recv() else { return Ok(None) };
        let picked = match input {
            Input::Event(Event::Resize(..)) | Input::Shown(_) | Input::Over => None,
            Input::HungUp => Some(Picked::Nothing),
            Input::Event(event) => picker.key(&event),
        };
        match picked {
            None => {}
            Some(Picked::Session(id)) => return Ok(Some(id)),
            Some(Picked::Nothing) => return Ok(None),
        }
    }
}
