//! What a person sees of a conversation and does to it: data in, wishes out.

use heeler_chat::{Shown, Wish};
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode};

use crate::{Theme, keys};

/// Names files that begin as told, for completion after `@`. It must be quick: it is asked at every key.
pub type Files = Box<dyn Fn(&str) -> Vec<String> + Send>;

/// What completes the input.
pub struct Completion {
    /// Commands: name, arguments, what it does.
    pub commands: &'static [(&'static str, &'static str, &'static str)],
    /// Files.
    pub files: Files,
}

/// The screen.
pub struct Screen {
    theme: Theme,
    completion: Completion,
    history: Vec<String>,
    lines: Vec<String>,
    input: String,
    now: Timestamp,
}

impl Screen {
    /// Makes a screen; `history` is what the person typed before, oldest first.
    pub fn new(theme: Theme, completion: Completion, history: Vec<String>) -> Screen {
        let now = Timestamp::UNIX_EPOCH;
        Screen { theme, completion, history, lines: vec![], input: String::new(), now }
    }

    /// Says what time it is from now on.
    pub fn at(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Says whether the passing of time shows.
    pub fn is_ticking(&self) -> bool {
        false
    }

    /// Takes something in that is to be shown from now on.
    pub fn show(&mut self, shown: Shown) {
        if let Shown::Entry { entry, .. } = shown {
            self.lines.push(entry.text());
        }
    }

    /// Takes a key, a paste or a new size; returns what the person wants by it.
    pub fn key(&mut self, event: &Event) -> Vec<Wish> {
        let Some(key) = keys::pressed(event) else { return vec![] };
        match key.code {
            KeyCode::Char(c) => self.input.push(c),
            KeyCode::Enter => {
                let said = std::mem::take(&mut self.input);
                self.history.push(said.clone());
                return vec![Wish::Say(said)];
            }
            KeyCode::Esc => return vec![Wish::Leave],
            _ => {}
        }
        vec![]
    }

    /// Draws it all.
    pub fn draw(&mut self, frame: &mut Frame) {
        let _ = (&self.completion, self.now);
        for (y, line) in (0..frame.area().height).zip(&self.lines) {
            frame.buffer_mut().set_string(0, y, line, self.theme.dim);
        }
    }
}
