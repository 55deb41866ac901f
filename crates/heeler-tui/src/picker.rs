//! The list of sessions to resume.

use jiff::Timestamp;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode};

use crate::{Theme, keys};

/// A session that could be resumed.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    /// Its id.
    pub id: String,
    /// The agent.
    pub agent: String,
    /// When something was last said.
    pub at: Option<Timestamp>,
    /// How many messages it has.
    pub messages: u64,
    /// What the person said first.
    pub first: String,
    /// What was said last.
    pub last: String,
    /// Where it lies, if not with ours.
    pub foreign: Option<String>,
    /// Why it cannot be resumed.
    pub fault: Option<String>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Picked {
    /// This one, by id.
    Session(String),
    /// None: the person leaves.
    Nothing,
}

/// The list.
pub struct Picker {
    cards: Vec<Card>,
    theme: Theme,
}

impl Picker {
    /// Makes a list, in the order given.
    pub fn new(cards: Vec<Card>, theme: Theme) -> Picker {
        Picker { cards, theme }
    }

    /// Takes a key; returns what became of it once that is known.
    pub fn key(&mut self, event: &Event) -> Option<Picked> {
        let key = keys::pressed(event)?;
        match key.code {
            KeyCode::Enter => Some(Picked::Session(self.cards.first()?.id.clone())),
            KeyCode::Esc => Some(Picked::Nothing),
            _ => None,
        }
    }

    /// Draws the list.
    pub fn draw(&self, frame: &mut Frame, _now: Timestamp) {
        for (y, card) in (0..frame.area().height).zip(&self.cards) {
            frame.buffer_mut().set_string(0, y, &card.first, self.theme.dim);
        }
    }
}
