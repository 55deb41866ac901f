//! Event loop between the terminal, a screen and a conversation. Start at [`run_screen`].
//!
//! A key press is drawn at once; output is drawn at most every [`FRAME_INTERVAL`]. All pending
//! input is processed before a frame, so that no frame is obsolete when it is drawn. A closed
//! terminal counts as a request to leave; the output of the conversation is still read to its end.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use heeler_chat::{ChatOutput, UserAction};
use jiff::Timestamp;
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers};

use crate::picker::{SessionPicker, SessionPickerEntry, SessionPickerOutcome};
use crate::terminal::{self, TerminalHandle, TerminalInput, is_terminal_acquired};
use crate::{ChatScreen, keys};

/// Shortest time between two frames without a key press.
const FRAME_INTERVAL: Duration = Duration::from_millis(16);

/// Most inputs processed before a check for a due frame, so that output that arrives faster than it
/// is processed does not stop the drawing.
const INPUT_BATCH_MAX: usize = 1000;

/// Interval at which the elapsed time is updated while the agent works.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of checks for a request to leave the session picker.
// Signals do not arrive as terminal input.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// With Ctrl: suspends the program; the shell has the terminal until `fg`.
const SUSPEND_KEY: KeyCode = KeyCode::Char('z');

/// Shows a conversation until it has ended. User actions are passed to `on_action`, which must not wait:
/// its receiver may itself be waiting to send output. `clock` returns the current time.
///
/// Exit messages disappear with the screen; the caller prints them after the terminal is released.
pub fn run_screen(
    terminal: &mut TerminalHandle,
    screen: &mut ChatScreen,
    shown: Receiver<ChatOutput>,
    clock: impl Fn() -> Timestamp,
    on_action: impl FnMut(UserAction),
) {
    let sender = terminal.sender.clone();
    // A thread of its own, because two channels cannot be waited for together.
    thread::spawn(move || {
        for shown in shown {
            if sender.send(TerminalInput::Output(Box::new(shown))).is_err() {
                return;
            }
        }
        // The loop may have ended already.
        let _sent = sender.send(TerminalInput::OutputEnded);
    });
    let canvas = &mut terminal.canvas;
    let draw = |screen: &mut ChatScreen, mode: FrameMode| {
        // After a panic elsewhere the terminal belongs to the shell again.
        if !is_terminal_acquired() {
            return false;
        }
        let cleared = match mode {
            FrameMode::Changes => Ok(()),
            FrameMode::Full => terminal::clear(canvas),
            FrameMode::AfterSuspend => terminal::suspend().and_then(|()| terminal::clear(canvas)),
        };
        let copied = screen.take_clipboard().map_or(Ok(()), |text| terminal::copy(&text));
        let drawn = cleared.and(copied);
        drawn.and_then(|()| canvas.draw(|frame| screen.draw(frame)).map(|_| ())).is_ok()
    };
    ScreenLoop {
        inputs: &terminal.inputs,
        screen,
        clock,
        on_action,
        draw,
        is_terminal_sent: false,
    }
    .run();
}

/// Way of drawing a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameMode {
    /// Draws only changes.
    Changes,
    /// Draws everything, because another program wrote to the terminal.
    Full,
    /// Suspends the program, then draws everything when it continues.
    AfterSuspend,
}

/// Urgency of the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FrameUrgency {
    Never,
    /// There is new output.
    Soon,
    /// A key was pressed.
    Now,
    Exit,
}

struct ScreenLoop<'a, Clock, OnAction, Canvas> {
    inputs: &'a Receiver<TerminalInput>,
    screen: &'a mut ChatScreen,
    clock: Clock,
    on_action: OnAction,
    /// Returns false if the terminal is gone.
    draw: Canvas,
    is_terminal_sent: bool,
}

impl<Clock, OnAction, Canvas> ScreenLoop<'_, Clock, OnAction, Canvas>
where
    Clock: Fn() -> Timestamp,
    OnAction: FnMut(UserAction),
    Canvas: FnMut(&mut ChatScreen, FrameMode) -> bool,
{
    fn run(mut self) {
        self.draw_frame(FrameMode::Changes);
        let mut drawn_at = Instant::now();
        let mut due = FrameUrgency::Never;
        while due != FrameUrgency::Exit {
            let wait = match due {
                FrameUrgency::Never => TICK_INTERVAL,
                _ => FRAME_INTERVAL.saturating_sub(drawn_at.elapsed()),
            };
            match self.inputs.recv_timeout(wait) {
                // The highest urgency counts until the frame is drawn.
                Ok(input) => due = due.max(self.process_input(input)),
                Err(RecvTimeoutError::Timeout) if due == FrameUrgency::Soon => {
                    due = FrameUrgency::Now;
                }
                // A frame without new output updates the elapsed time.
                Err(RecvTimeoutError::Timeout) if self.screen.is_ticking() => {
                    due = FrameUrgency::Now;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => due = FrameUrgency::Exit,
            }
            // The last frame is drawn before the loop ends.
            if due >= FrameUrgency::Now
                || (due == FrameUrgency::Soon && drawn_at.elapsed() >= FRAME_INTERVAL)
            {
                self.draw_frame(FrameMode::Changes);
                drawn_at = Instant::now();
                due = if due == FrameUrgency::Exit { due } else { FrameUrgency::Never };
            }
        }
    }

    fn draw_frame(&mut self, mode: FrameMode) {
        if self.is_terminal_sent {
            return;
        }
        self.screen.set_time((self.clock)());
        if !(self.draw)(self.screen, mode) {
            self.hang_up();
        }
    }

    /// Reports the loss of the terminal, once.
    fn hang_up(&mut self) {
        // The conversation must be told once: it starts to end its work.
        if !std::mem::replace(&mut self.is_terminal_sent, true) {
            (self.on_action)(UserAction::HangUp);
        }
    }

    /// Processes an input and those that wait behind it, up to a key press, which is drawn first.
    fn process_input(&mut self, input: TerminalInput) -> FrameUrgency {
        self.screen.set_time((self.clock)());
        // Output may arrive faster than it is shown, so a batch is limited.
        let (mut next, mut left) = (Some(input), INPUT_BATCH_MAX);
        while let Some(input) = next {
            match input {
                TerminalInput::Output(shown) if *shown == ChatOutput::Exited => {
                    return FrameUrgency::Exit;
                }
                TerminalInput::OutputEnded => return FrameUrgency::Exit,
                TerminalInput::Output(shown) => self.screen.handle_output(*shown),
                TerminalInput::HungUp => self.hang_up(),
                TerminalInput::Event(event) => {
                    // Another program may have written to the terminal.
                    if keys::is_key(&event, KeyCode::Char('l'), KeyModifiers::CONTROL) {
                        self.draw_frame(FrameMode::Full);
                    }
                    if keys::is_key(&event, SUSPEND_KEY, KeyModifiers::CONTROL) {
                        self.draw_frame(FrameMode::AfterSuspend);
                        // The frame was drawn when the program continued.
                        return FrameUrgency::Never;
                    }
                    self.screen.handle_event(&event).into_iter().for_each(&mut self.on_action);
                    // A key is drawn before the next input is processed, so typing is never
                    // delayed.
                    return FrameUrgency::Now;
                }
            }
            left -= 1;
            next = (left > 0).then(|| self.inputs.try_recv().ok()).flatten();
        }
        FrameUrgency::Soon
    }
}

/// Lets a person pick a session; returns `None` if they leave. Summaries of sessions arrive through
/// `entries`, each with its index in the list; `seen` receives the first visible index. `is_left`
/// returns true if the person leaves by other means than the terminal, such as a signal.
pub fn run_picker(
    terminal: &mut TerminalHandle,
    picker: &mut SessionPicker,
    entries: &Receiver<(usize, SessionPickerEntry)>,
    seen: impl Fn(usize),
    mut is_left: impl FnMut() -> bool,
    now: Timestamp,
) -> Option<String> {
    let mut wait = FRAME_INTERVAL;
    loop {
        loop {
            match entries.try_recv() {
                Ok((at, entry)) => picker.update_entry(at, entry),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    // All summaries have arrived, so fewer checks are needed.
                    wait = EXIT_POLL_INTERVAL;
                    break;
                }
            }
        }
        if is_left() {
            return None;
        }
        terminal.canvas.draw(|frame| picker.draw(frame, now)).ok()?;
        // The visible sessions are read first.
        seen(picker.first_visible());
        let input = match terminal.inputs.recv_timeout(wait) {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        let picked = match input {
            TerminalInput::Event(Event::Resize(..))
            | TerminalInput::Output(_)
            | TerminalInput::OutputEnded => None,
            TerminalInput::HungUp => Some(SessionPickerOutcome::Cancelled),
            TerminalInput::Event(event)
                if keys::is_key(&event, SUSPEND_KEY, KeyModifiers::CONTROL) =>
            {
                terminal::suspend().and_then(|()| terminal::clear(&mut terminal.canvas)).ok()?;
                None
            }
            TerminalInput::Event(event) => picker.handle_event(&event),
        };
        match picked {
            None => {}
            Some(SessionPickerOutcome::Session(id)) => return Some(id),
            Some(SessionPickerOutcome::Cancelled) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use heeler_chat::{ChatSpeaker, ConversationEntry, EntryRole};
    use ratatui::crossterm::event::KeyEvent;

    use super::*;
    use crate::{CompletionSources, TerminalTheme};

    fn screen() -> ChatScreen {
        let completion = CompletionSources { commands: vec![], files: Box::new(|_| vec![]) };
        ChatScreen::new(TerminalTheme::plain(), completion, vec![])
    }

    fn key(code: KeyCode) -> TerminalInput {
        TerminalInput::Event(Event::Key(KeyEvent::from(code)))
    }

    fn entry(text: &str) -> TerminalInput {
        let entry = ConversationEntry::new(EntryRole::System, text, Timestamp::UNIX_EPOCH);
        TerminalInput::Output(Box::new(ChatOutput::Entry { of: ChatSpeaker::Coordinator, entry }))
    }

    /// Processes inputs on a terminal that lasts for `frames_max` frames; returns the actions and
    /// the number of frames.
    fn run(inputs: Vec<TerminalInput>, frames_max: usize) -> (Vec<UserAction>, usize) {
        let (sender, waiting) = sync_channel(inputs.len());
        inputs.into_iter().for_each(|input| sender.send(input).unwrap());
        drop(sender);
        let (mut screen, mut actions, mut frames) = (screen(), vec![], 0);
        let draw = |_: &mut ChatScreen, _| {
            frames += 1;
            frames <= frames_max
        };
        let clock = || Timestamp::UNIX_EPOCH;
        let on_action = |action| actions.push(action);
        ScreenLoop {
            inputs: &waiting,
            screen: &mut screen,
            clock,
            on_action,
            draw,
            is_terminal_sent: false,
        }
        .run();
        (actions, frames)
    }

    #[test]
    fn each_key_has_its_frame_and_what_waits_shares_one() {
        let mut inputs: Vec<TerminalInput> =
            (0..100).map(|number| entry(&number.to_string())).collect();
        inputs.extend([key(KeyCode::Char('a')), entry("x"), entry("y"), key(KeyCode::Enter)]);
        inputs.extend([
            entry("z"),
            TerminalInput::Output(Box::new(ChatOutput::Exited)),
            entry("too late"),
        ]);
        let (actions, frames) = run(inputs, usize::MAX);
        assert_eq!(actions, [UserAction::SendLine("a".to_owned())]);
        assert_eq!(frames, 4, "at first, for each key, at the end");
    }

    #[test]
    fn the_last_words_are_drawn_before_the_end() {
        let leaving = TerminalInput::Output(Box::new(ChatOutput::ExitMessage("saved".to_owned())));
        let (actions, frames) =
            run(vec![leaving, TerminalInput::OutputEnded, key(KeyCode::Char('a'))], 9);
        assert_eq!((actions, frames), (vec![], 2));
        assert_eq!(run(vec![], 9), (vec![], 2), "nobody is there to show anything");
    }

    #[test]
    fn ctrl_z_stops_and_then_draws_all_anew_and_types_nothing() {
        let (sender, waiting) = sync_channel(3);
        let stop = KeyEvent::new(SUSPEND_KEY, KeyModifiers::CONTROL);
        for input in
            [key(KeyCode::Char('a')), TerminalInput::Event(Event::Key(stop)), key(KeyCode::Enter)]
        {
            sender.send(input).unwrap();
        }
        drop(sender);
        let (mut screen, mut actions, mut drawn) = (screen(), vec![], vec![]);
        let draw = |_: &mut ChatScreen, mode| {
            drawn.push(mode);
            true
        };
        let clock = || Timestamp::UNIX_EPOCH;
        let on_action = |action| actions.push(action);
        ScreenLoop {
            inputs: &waiting,
            screen: &mut screen,
            clock,
            on_action,
            draw,
            is_terminal_sent: false,
        }
        .run();
        assert_eq!(actions, [UserAction::SendLine("a".to_owned())]);
        assert_eq!(drawn[..3], [FrameMode::Changes, FrameMode::Changes, FrameMode::AfterSuspend]);
    }

    #[test]
    fn a_terminal_that_is_gone_is_left_once_and_never_drawn_again() {
        let inputs =
            || vec![key(KeyCode::Char('a')), TerminalInput::HungUp, key(KeyCode::Char('b'))];
        let (actions, frames) = run(inputs(), 1);
        assert_eq!((actions, frames), (vec![UserAction::HangUp], 2));
        assert_eq!(run(inputs(), 9).0, [UserAction::HangUp]);
    }
}
