//! The loop between the terminal, a screen and a conversation.
//!
//! A key is drawn at once; what is shown is drawn at most every [`FRAME`]. Whatever waits is taken in
//! before a frame, so no frame is drawn for what the next would change. A terminal that is gone is a
//! wish to leave; the conversation is heard to its end all the same.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use heeler_chat::{Shown, Wish};
use jiff::Timestamp;
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers};

use crate::picker::{Card, Picked, Picker};
use crate::terminal::{self, Input, Terminal, is_taken};
use crate::{Screen, keys};

/// The least time between two frames that no key asks for.
const FRAME: Duration = Duration::from_millis(16);

/// How much is taken in before it is looked whether a frame is due: whoever tells faster than it can be
/// taken in keeps nobody from seeing it.
const AT_ONCE_MAX: usize = 1000;

/// How often the time on the screen goes on while the agent works.
const TICK: Duration = Duration::from_secs(1);

/// How often it is looked whether somebody leaves who picks a session.
const LEFT_EVERY: Duration = Duration::from_millis(100);

/// With Ctrl: the program stops, and the shell has the terminal until `fg`.
const STOP: KeyCode = KeyCode::Char('z');

/// Shows a conversation until it has ended. What the person wants is told to `wish`, which must not
/// wait: whoever gets it may be waiting to show something. `clock` says what time it is.
///
/// The last words go with the screen: they are to be printed once the terminal is given back.
pub fn run(
    terminal: &mut Terminal,
    screen: &mut Screen,
    shown: Receiver<Shown>,
    clock: impl Fn() -> Timestamp,
    wish: impl FnMut(Wish),
) {
    let tell = terminal.tell.clone();
    thread::spawn(move || {
        for shown in shown {
            if tell.send(Input::Shown(Box::new(shown))).is_err() {
                return;
            }
        }
        let _gone = tell.send(Input::Over);
    });
    let canvas = &mut terminal.canvas;
    let draw = |screen: &mut Screen, how: Draw| {
        if !is_taken() {
            return false;
        }
        let cleared = match how {
            Draw::Changes => Ok(()),
            Draw::Anew => terminal::clear(canvas),
            Draw::AfterStop => terminal::stop().and_then(|()| terminal::clear(canvas)),
        };
        cleared.and_then(|()| canvas.draw(|frame| screen.draw(frame)).map(|_| ())).is_ok()
    };
    Loop { inputs: &terminal.inputs, screen, clock, wish, draw, is_gone: false }.run();
}

/// How a frame is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Draw {
    /// What has changed.
    Changes,
    /// All of it: somebody else has written to the terminal.
    Anew,
    /// The same, when somebody has the program go on that is stopped before.
    AfterStop,
}

/// Why a frame is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Never,
    /// Something was shown.
    Soon,
    /// A key was pressed.
    Now,
    Over,
}

struct Loop<'a, Clock, Wishes, Canvas> {
    inputs: &'a Receiver<Input>,
    screen: &'a mut Screen,
    clock: Clock,
    wish: Wishes,
    /// Says whether the terminal is still there.
    draw: Canvas,
    is_gone: bool,
}

impl<Clock, Wishes, Canvas> Loop<'_, Clock, Wishes, Canvas>
where
    Clock: Fn() -> Timestamp,
    Wishes: FnMut(Wish),
    Canvas: FnMut(&mut Screen, Draw) -> bool,
{
    fn run(mut self) {
        self.paint(Draw::Changes);
        let mut drawn_at = Instant::now();
        let mut due = Due::Never;
        while due != Due::Over {
            let wait = match due {
                Due::Never => TICK,
                _ => FRAME.saturating_sub(drawn_at.elapsed()),
            };
            match self.inputs.recv_timeout(wait) {
                Ok(input) => due = due.max(self.take_in(input)),
                Err(RecvTimeoutError::Timeout) if due == Due::Soon => due = Due::Now,
                Err(RecvTimeoutError::Timeout) if self.screen.is_ticking() => due = Due::Now,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => due = Due::Over,
            }
            if due >= Due::Now || (due == Due::Soon && drawn_at.elapsed() >= FRAME) {
                self.paint(Draw::Changes);
                drawn_at = Instant::now();
                due = if due == Due::Over { due } else { Due::Never };
            }
        }
    }

    fn paint(&mut self, how: Draw) {
        if self.is_gone {
            return;
        }
        self.screen.at((self.clock)());
        if !(self.draw)(self.screen, how) {
            self.hang_up();
        }
    }

    /// The terminal is gone: the person has left, in a way.
    fn hang_up(&mut self) {
        if !std::mem::replace(&mut self.is_gone, true) {
            (self.wish)(Wish::HangUp);
        }
    }

    /// Takes one input in and those that wait behind it, up to a key: that is drawn first.
    fn take_in(&mut self, input: Input) -> Due {
        self.screen.at((self.clock)());
        let (mut next, mut left) = (Some(input), AT_ONCE_MAX);
        while let Some(input) = next {
            match input {
                Input::Shown(shown) if *shown == Shown::Left => return Due::Over,
                Input::Over => return Due::Over,
                Input::Shown(shown) => self.screen.show(*shown),
                Input::HungUp => self.hang_up(),
                Input::Event(event) => {
                    if keys::is(&event, KeyCode::Char('l'), KeyModifiers::CONTROL) {
                        self.paint(Draw::Anew);
                    }
                    if keys::is(&event, STOP, KeyModifiers::CONTROL) {
                        self.paint(Draw::AfterStop);
                        return Due::Never;
                    }
                    self.screen.key(&event).into_iter().for_each(&mut self.wish);
                    return Due::Now;
                }
            }
            left -= 1;
            next = (left > 0).then(|| self.inputs.try_recv().ok()).flatten();
        }
        Due::Soon
    }
}

/// Lets a person pick a session; none if they leave. What somebody finds who looks into the sessions
/// comes by `cards`, each with its place in the list; `seen` is told which of them is seen first.
/// `is_left` says whether they leave by other means than the terminal, as by a signal.
pub fn pick(
    terminal: &mut Terminal,
    picker: &mut Picker,
    cards: &Receiver<(usize, Card)>,
    seen: impl Fn(usize),
    mut is_left: impl FnMut() -> bool,
    now: Timestamp,
) -> Option<String> {
    let mut wait = FRAME;
    loop {
        loop {
            match cards.try_recv() {
                Ok((at, card)) => picker.put(at, card),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    wait = LEFT_EVERY;
                    break;
                }
            }
        }
        if is_left() {
            return None;
        }
        terminal.canvas.draw(|frame| picker.draw(frame, now)).ok()?;
        seen(picker.first_seen());
        let input = match terminal.inputs.recv_timeout(wait) {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        let picked = match input {
            Input::Event(Event::Resize(..)) | Input::Shown(_) | Input::Over => None,
            Input::HungUp => Some(Picked::Nothing),
            Input::Event(event) if keys::is(&event, STOP, KeyModifiers::CONTROL) => {
                terminal::stop().and_then(|()| terminal::clear(&mut terminal.canvas)).ok()?;
                None
            }
            Input::Event(event) => picker.key(&event),
        };
        match picked {
            None => {}
            Some(Picked::Session(id)) => return Some(id),
            Some(Picked::Nothing) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use heeler_chat::{Entry, Role, Speaker};
    use ratatui::crossterm::event::KeyEvent;

    use super::*;
    use crate::{Completion, Theme};

    fn screen() -> Screen {
        let completion = Completion { commands: &[], files: Box::new(|_| vec![]) };
        Screen::new(Theme::plain(), completion, vec![])
    }

    fn key(code: KeyCode) -> Input {
        Input::Event(Event::Key(KeyEvent::from(code)))
    }

    fn entry(text: &str) -> Input {
        let entry = Entry::new(Role::System, text, Timestamp::UNIX_EPOCH);
        Input::Shown(Box::new(Shown::Entry { of: Speaker::Coordinator, entry }))
    }

    /// Takes inputs in on a terminal that is there for some frames; returns the wishes, and how many
    /// frames were drawn.
    fn run(inputs: Vec<Input>, frames_max: usize) -> (Vec<Wish>, usize) {
        let (tell, waiting) = sync_channel(inputs.len());
        inputs.into_iter().for_each(|input| tell.send(input).unwrap());
        drop(tell);
        let (mut screen, mut wishes, mut frames) = (screen(), vec![], 0);
        let draw = |_: &mut Screen, _| {
            frames += 1;
            frames <= frames_max
        };
        let clock = || Timestamp::UNIX_EPOCH;
        let wish = |wish| wishes.push(wish);
        Loop { inputs: &waiting, screen: &mut screen, clock, wish, draw, is_gone: false }.run();
        (wishes, frames)
    }

    #[test]
    fn each_key_has_its_frame_and_what_waits_shares_one() {
        let mut inputs: Vec<Input> = (0..100).map(|number| entry(&number.to_string())).collect();
        inputs.extend([key(KeyCode::Char('a')), entry("x"), entry("y"), key(KeyCode::Enter)]);
        inputs.extend([entry("z"), Input::Shown(Box::new(Shown::Left)), entry("too late")]);
        let (wishes, frames) = run(inputs, usize::MAX);
        assert_eq!(wishes, [Wish::Say("a".to_owned())]);
        assert_eq!(frames, 4, "at first, for each key, at the end");
    }

    #[test]
    fn the_last_words_are_drawn_before_the_end() {
        let leaving = Input::Shown(Box::new(Shown::Leaving("saved".to_owned())));
        let (wishes, frames) = run(vec![leaving, Input::Over, key(KeyCode::Char('a'))], 9);
        assert_eq!((wishes, frames), (vec![], 2));
        assert_eq!(run(vec![], 9), (vec![], 2), "nobody is there to show anything");
    }

    #[test]
    fn ctrl_z_stops_and_then_draws_all_anew_and_types_nothing() {
        let (tell, waiting) = sync_channel(3);
        let stop = KeyEvent::new(STOP, KeyModifiers::CONTROL);
        for input in [key(KeyCode::Char('a')), Input::Event(Event::Key(stop)), key(KeyCode::Enter)]
        {
            tell.send(input).unwrap();
        }
        drop(tell);
        let (mut screen, mut wishes, mut drawn) = (screen(), vec![], vec![]);
        let draw = |_: &mut Screen, how| {
            drawn.push(how);
            true
        };
        let clock = || Timestamp::UNIX_EPOCH;
        let wish = |wish| wishes.push(wish);
        Loop { inputs: &waiting, screen: &mut screen, clock, wish, draw, is_gone: false }.run();
        assert_eq!(wishes, [Wish::Say("a".to_owned())]);
        assert_eq!(drawn[..3], [Draw::Changes, Draw::Changes, Draw::AfterStop]);
    }

    #[test]
    fn a_terminal_that_is_gone_is_left_once_and_never_drawn_again() {
        let inputs = || vec![key(KeyCode::Char('a')), Input::HungUp, key(KeyCode::Char('b'))];
        let (wishes, frames) = run(inputs(), 1);
        assert_eq!((wishes, frames), (vec![Wish::HangUp], 2));
        assert_eq!(run(inputs(), 9).0, [Wish::HangUp]);
    }
}
