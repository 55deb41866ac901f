//! What was typed before: shown again by the arrows, found again by words.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Did, Input};

/// A search in what was typed before.
pub(super) struct Search {
    pub(super) words: String,
    /// Where it was found.
    pub(super) at: Option<usize>,
    /// What was typed before.
    pub(super) before: String,
}

impl Input {
    /// Shows the line of before, or the one after.
    pub(super) fn recall(&mut self, later: bool) -> Did {
        let typed = || self.editor.text().to_owned();
        let to = match (&self.recalled, later) {
            (None, false) => self.history.len().checked_sub(1).map(|at| (at, typed())),
            (None, true) => None,
            (Some((at, typed)), false) => at.checked_sub(1).map(|at| (at, typed.clone())),
            (Some((at, typed)), true) if at + 1 < self.history.len() => {
                Some((at + 1, typed.clone()))
            }
            (Some((_, typed)), true) => {
                let typed = typed.clone();
                self.editor.set(&typed);
                self.recalled = None;
                return Did::Taken;
            }
        };
        let Some((at, typed)) = to else { return Did::Taken };
        self.editor.set(&self.history[at]);
        self.menu = None;
        self.recalled = Some((at, typed));
        Did::Taken
    }

    pub(super) fn search_key(&mut self, key: KeyEvent) -> Option<Did> {
        let search = self.search.as_mut()?;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let older_than = match key.code {
            KeyCode::Char('r') if is_control => search.at,
            KeyCode::Char('c' | 'g') if is_control => {
                let before = std::mem::take(&mut search.before);
                self.search = None;
                self.editor.set(&before);
                return Some(Did::Taken);
            }
            KeyCode::Char(c) if !is_control && !c.is_control() => {
                search.words.push(c);
                None
            }
            KeyCode::Backspace => {
                search.words.pop();
                None
            }
            KeyCode::Enter => {
                self.search = None;
                return Some(self.send());
            }
            KeyCode::Tab | KeyCode::Esc => {
                self.search = None;
                return Some(Did::Taken);
            }
            // Any other key goes on with what was found.
            _ => {
                self.search = None;
                return None;
            }
        };
        self.find(older_than.unwrap_or(self.history.len()));
        Some(Did::Taken)
    }

    /// Finds the newest line that is older and has the words.
    pub(super) fn find(&mut self, older_than: usize) {
        let Some(search) = &mut self.search else { return };
        let words = search.words.to_lowercase();
        let found = self.history[..older_than]
            .iter()
            .rposition(|line| line.to_lowercase().contains(&words));
        match found.filter(|_| !words.is_empty()) {
            Some(at) => {
                search.at = Some(at);
                self.editor.set(&self.history[at]);
            }
            // Nothing older has them: what was found stays. Nothing at all: nothing is put there.
            None if older_than < self.history.len() => {}
            None => {
                search.at = None;
                let before = search.before.clone();
                self.editor.set(&before);
            }
        }
    }

    /// Returns what is searched for, if anything is.
    pub(crate) fn searching(&self) -> Option<String> {
        let search = self.search.as_ref()?;
        let none = if search.at.is_none() && !search.words.is_empty() { " (none)" } else { "" };
        Some(format!("search: {}{none}", search.words))
    }
}
