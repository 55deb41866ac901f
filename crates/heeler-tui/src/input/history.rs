//! History of typed lines: recall with the arrow keys, and search.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{InputKeyOutcome, InputWidget};

/// Search in the history.
pub(super) struct HistorySearch {
    pub(super) pattern: String,
    /// Index of the match.
    pub(super) at: Option<usize>,
    /// Text before the search.
    pub(super) original_text: String,
}

impl InputWidget {
    /// Shows the previous or next line of the history.
    pub(super) fn recall_history(&mut self, later: bool) -> InputKeyOutcome {
        let typed = || self.editor.text().to_owned();
        let to = match (&self.recalled, later) {
            // The typed text is kept, and returns after the newest line.
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
                return InputKeyOutcome::Handled;
            }
        };
        let Some((at, typed)) = to else { return InputKeyOutcome::Handled };
        self.editor.set(&self.history[at]);
        // The menu belongs to the text that was replaced.
        self.menu = None;
        self.recalled = Some((at, typed));
        InputKeyOutcome::Handled
    }

    pub(super) fn handle_search_key(&mut self, key: KeyEvent) -> Option<InputKeyOutcome> {
        let search = self.search.as_mut()?;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let older_than = match key.code {
            KeyCode::Char('r') if is_control => search.at,
            KeyCode::Char('c' | 'g') if is_control => {
                // As in a shell, leaving the search restores the typed line.
                let before = std::mem::take(&mut search.original_text);
                self.search = None;
                self.editor.set(&before);
                return Some(InputKeyOutcome::Handled);
            }
            KeyCode::Char(c) if !is_control && !c.is_control() => {
                search.pattern.push(c);
                None
            }
            KeyCode::Backspace => {
                search.pattern.pop();
                None
            }
            KeyCode::Enter => {
                self.search = None;
                return Some(self.send());
            }
            KeyCode::Tab | KeyCode::Esc => {
                self.search = None;
                return Some(InputKeyOutcome::Handled);
            }
            // Any other key closes the search and applies to the match.
            _ => {
                self.search = None;
                return None;
            }
        };
        self.find_in_history(older_than.unwrap_or(self.history.len()));
        Some(InputKeyOutcome::Handled)
    }

    /// Finds the newest match before an index.
    pub(super) fn find_in_history(&mut self, older_than: usize) {
        let Some(search) = &mut self.search else { return };
        let words = search.pattern.to_lowercase();
        let found = self.history[..older_than]
            .iter()
            .rposition(|line| line.to_lowercase().contains(&words));
        // An empty pattern matches every line, which is never meant.
        match found.filter(|_| !words.is_empty()) {
            Some(at) => {
                search.at = Some(at);
                self.editor.set(&self.history[at]);
            }
            // Without an older match, the current one stays. Without any match, the original text
            // returns.
            None if older_than < self.history.len() => {}
            None => {
                search.at = None;
                let before = search.original_text.clone();
                self.editor.set(&before);
            }
        }
    }

    /// Returns the prompt of an open search.
    pub(crate) fn search_prompt(&self) -> Option<String> {
        let search = self.search.as_ref()?;
        let none = if search.at.is_none() && !search.pattern.is_empty() { " (none)" } else { "" };
        Some(format!("search: {}{none}", search.pattern))
    }
}
