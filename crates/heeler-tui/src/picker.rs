//! The list of sessions to resume.

use heeler_model::steers_terminal;
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseEventKind};
use ratatui::layout::Position;
use ratatui::text::Line;

use crate::text::{one_line, shortened, width};
use crate::{Theme, keys};

/// How many rows a session takes.
const CARD_ROWS: usize = 3;

/// How much is kept of what was said.
const SAID_BYTES_MAX: usize = 1000;

/// A session that could be resumed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Card {
    /// Its id.
    pub id: String,
    /// The agent.
    pub agent: String,
    /// When something was last said.
    pub at: Option<Timestamp>,
    /// How many entries it has, if that is known.
    pub entries: Option<u64>,
    /// What the person said first.
    pub first: String,
    /// What was said last.
    pub last: String,
    /// Where it lies, if not with ours.
    pub foreign: Option<String>,
    /// Why it cannot be resumed.
    pub fault: Option<String>,
    /// Nobody has looked into it yet: only its name and time are known.
    pub is_unread: bool,
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
    /// What each can be found by.
    words: Vec<String>,
    theme: Theme,
    search: String,
    /// Those that have the words, by their place.
    found: Vec<usize>,
    chosen: usize,
    /// The first that is seen.
    top: usize,
    page: usize,
    hint: Option<String>,
}

impl Picker {
    /// Makes a list, in the order given.
    pub fn new(mut cards: Vec<Card>, theme: Theme) -> Picker {
        cards.iter_mut().for_each(tidy);
        let words = cards.iter().map(words).collect();
        let found = (0..cards.len()).collect();
        Picker {
            cards,
            words,
            theme,
            search: String::new(),
            found,
            chosen: 0,
            top: 0,
            page: 1,
            hint: None,
        }
    }

    /// Takes in what was found when somebody looked into the session at a place of the list.
    pub fn put(&mut self, at: usize, mut card: Card) {
        if at >= self.cards.len() {
            return;
        }
        tidy(&mut card);
        self.words[at] = words(&card);
        self.cards[at] = card;
        // What it was found by before, its id, is among its words still.
        if let Err(place) = self.found.binary_search(&at)
            && self.has_words(&self.words[at])
        {
            self.found.insert(place, at);
            // What is chosen stays so.
            self.chosen += usize::from(place <= self.chosen && self.found.len() > 1);
        }
    }

    /// Returns the place in the list of the first session that is seen.
    pub fn first_seen(&self) -> usize {
        self.found.get(self.top).copied().unwrap_or_default()
    }

    /// Takes a key; returns what became of it once that is known.
    pub fn key(&mut self, event: &Event) -> Option<Picked> {
        match event {
            Event::Mouse(mouse) if mouse.kind == MouseEventKind::ScrollUp => self.step(1, true),
            Event::Mouse(mouse) if mouse.kind == MouseEventKind::ScrollDown => self.step(1, false),
            Event::Paste(text) => self.find(&one_line(text)),
            event => return self.press(keys::pressed(event)?),
        }
        None
    }

    fn press(&mut self, key: KeyEvent) -> Option<Picked> {
        self.hint = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Some(Picked::Nothing),
            KeyCode::Esc if self.search.is_empty() => return Some(Picked::Nothing),
            KeyCode::Enter => return self.pick(),
            KeyCode::Esc => {
                self.search.clear();
                self.find("");
            }
            KeyCode::Char('u') if is_control => {
                self.search.clear();
                self.find("");
            }
            KeyCode::Backspace => {
                self.search.pop();
                self.find("");
            }
            KeyCode::Up => self.step(1, true),
            KeyCode::Down => self.step(1, false),
            KeyCode::Char('p') if is_control => self.step(1, true),
            KeyCode::Char('n') if is_control => self.step(1, false),
            KeyCode::PageUp => self.step(self.page, true),
            KeyCode::PageDown => self.step(self.page, false),
            KeyCode::Home => self.chosen = 0,
            KeyCode::End => self.chosen = self.found.len().saturating_sub(1),
            KeyCode::Char(c) if !is_control && !c.is_control() && !steers_terminal(c) => {
                self.find(c.encode_utf8(&mut [0; 4]));
            }
            _ => {}
        }
        None
    }

    fn pick(&mut self) -> Option<Picked> {
        let card = &self.cards[*self.found.get(self.chosen)?];
        match &card.fault {
            None => Some(Picked::Session(card.id.clone())),
            Some(fault) => {
                self.hint = Some(format!("it cannot be resumed: {}", one_line(fault)));
                None
            }
        }
    }

    fn step(&mut self, by: usize, back: bool) {
        let last = self.found.len().saturating_sub(1);
        self.chosen =
            if back { self.chosen.saturating_sub(by) } else { (self.chosen + by).min(last) };
    }

    /// Searches for more words: all of them must be there.
    fn find(&mut self, more: &str) {
        self.search.push_str(more);
        let found = self.words.iter().enumerate().filter(|(_, words)| self.has_words(words));
        self.found = found.map(|(at, _)| at).collect();
        (self.chosen, self.top) = (0, 0);
    }

    fn has_words(&self, words: &str) -> bool {
        let wanted = self.search.to_lowercase();
        wanted.split_whitespace().all(|word| words.contains(word))
    }

    /// Draws the list. Times are told from `now`.
    pub fn draw(&mut self, frame: &mut Frame, now: Timestamp) {
        let area = frame.area();
        if area.is_empty() {
            return;
        }
        let columns = usize::from(area.width);
        let head = format!(
            "Resume a session ({} of {}): {}",
            self.found.len(),
            self.cards.len(),
            self.search
        );
        let room = usize::from(area.height).saturating_sub(2);
        self.page = (room / CARD_ROWS).max(1);
        self.top = self.top.clamp((self.chosen + 1).saturating_sub(self.page), self.chosen);
        let mut lines = vec![Line::styled(shortened(&head, columns), self.theme.heading)];
        let seen = self.found.iter().enumerate().skip(self.top).take(self.page);
        for (place, at) in seen {
            lines.extend(self.card(&self.cards[*at], place == self.chosen, now, columns));
        }
        lines.truncate(room + 1);
        if self.found.is_empty() {
            let told = if self.cards.is_empty() {
                "  there is no session yet"
            } else {
                "  none has these words"
            };
            lines.push(Line::styled(shortened(told, columns), self.theme.dim));
        }
        for (y, line) in (area.y..area.bottom()).zip(&lines) {
            frame.buffer_mut().set_line(area.x, y, line, area.width);
        }
        if area.height > 1 {
            let keys = "type to search · Enter: resume · Esc: leave";
            let told = shortened(self.hint.as_deref().unwrap_or(keys), columns);
            let style = if self.hint.is_some() { self.theme.bad } else { self.theme.dim };
            frame.buffer_mut().set_stringn(area.x, area.bottom() - 1, told, columns, style);
        }
        let x = area.x + (width(&head).min(columns.saturating_sub(1)) as u16);
        frame.set_cursor_position(Position::new(x, area.y));
    }

    fn card(
        &self,
        card: &Card,
        is_chosen: bool,
        now: Timestamp,
        columns: usize,
    ) -> [Line<'static>; CARD_ROWS] {
        let sign = if is_chosen { "▸" } else { " " };
        let first = match card.first.as_str() {
            "" if card.is_unread => "…",
            "" if card.fault.is_some() => "(it cannot be read)",
            "" => "(nothing was said)",
            first => first,
        };
        let style = if is_chosen { self.theme.chosen } else { self.theme.person };
        let title = Line::styled(shortened(&format!("{sign} {first}"), columns), style);
        let entries = match card.entries {
            None if card.fault.is_some() => None,
            None => Some("… entries".to_owned()),
            Some(1) => Some("1 entry".to_owned()),
            Some(count) => Some(format!("{count} entries")),
        };
        let age = card.at.map(|at| age(at, now));
        let from = card.foreign.as_ref().map(|from| format!("from {}", one_line(from)));
        let agent = Some(card.agent.clone()).filter(|agent| !agent.is_empty());
        let parts = [age, entries, agent, from, Some(one_line(&card.id))];
        let facts = parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
        let facts = Line::styled(shortened(&format!("  {facts}"), columns), self.theme.dim);
        let last = match &card.fault {
            Some(fault) => Line::styled(
                shortened(&format!("  ! {}", one_line(fault)), columns),
                self.theme.bad,
            ),
            None if card.last.is_empty() => Line::default(),
            None => Line::styled(shortened(&format!("  … {}", card.last), columns), self.theme.dim),
        };
        [title, facts, last]
    }
}

/// Leaves of a card's texts what fits a line, and nothing that steers the terminal.
fn tidy(card: &mut Card) {
    for text in [&mut card.first, &mut card.last, &mut card.agent] {
        *text = one_line(crate::text::beginning(text, SAID_BYTES_MAX).0);
    }
}

/// Returns what a session can be found by.
fn words(card: &Card) -> String {
    let (id, agent, first, last) = (&card.id, &card.agent, &card.first, &card.last);
    format!("{id} {agent} {first} {last}").to_lowercase()
}

/// Tells how long ago something was.
fn age(at: Timestamp, now: Timestamp) -> String {
    match now.duration_since(at).as_secs() {
        ..60 => "now".to_owned(),
        seconds @ 60..3600 => format!("{}m ago", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h ago", seconds / 3600),
        seconds @ 86_400..2_592_000 => format!("{}d ago", seconds / 86_400),
        _ => at.strftime("%Y-%m-%d").to_string(),
    }
}
