//! List of sessions to resume.

use heeler_model::is_terminal_control;
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseEventKind};
use ratatui::layout::Position;
use ratatui::text::Line;

use crate::text::{one_line, truncate_to_width, width};
use crate::{TerminalTheme, keys};

/// Rows per session.
const ENTRY_ROWS: usize = 3;

/// Bytes of a message that are kept.
const EXCERPT_BYTES_MAX: usize = 1000;

/// Session that can be resumed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionPickerEntry {
    pub id: String,
    pub agent: String,
    /// Time of the last message.
    pub at: Option<Timestamp>,
    /// Number of entries, if known.
    pub entries: Option<u64>,
    /// First message of the person.
    pub first_message: String,
    /// Last message.
    pub last_message: String,
    /// Name of the other program's directory, for a foreign session.
    pub foreign_source: Option<String>,
    /// Reason for which it cannot be resumed.
    pub fault: Option<String>,
    /// Only name and time are known so far.
    pub is_loading: bool,
}

/// Result of the picker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionPickerOutcome {
    /// Picked session, by ID.
    Session(String),
    /// The person leaves.
    Cancelled,
}

/// Session picker.
pub struct SessionPicker {
    entries: Vec<SessionPickerEntry>,
    /// Searchable text of each entry.
    search_texts: Vec<String>,
    theme: TerminalTheme,
    search: String,
    /// Indexes of the entries that match the search.
    matches: Vec<usize>,
    selected: usize,
    /// First visible entry.
    top: usize,
    page: usize,
    hint: Option<String>,
}

impl SessionPicker {
    /// Creates a picker; the entries keep their order.
    pub fn new(mut entries: Vec<SessionPickerEntry>, theme: TerminalTheme) -> SessionPicker {
        // The texts come from files of agents, and are printed on the terminal.
        entries.iter_mut().for_each(sanitize_entry);
        let search_texts = entries.iter().map(search_text).collect();
        let matches = (0..entries.len()).collect();
        SessionPicker {
            entries,
            search_texts,
            theme,
            search: String::new(),
            matches,
            selected: 0,
            top: 0,
            page: 1,
            hint: None,
        }
    }

    /// Replaces the entry at an index after the session was read.
    pub fn update_entry(&mut self, at: usize, mut entry: SessionPickerEntry) {
        // The list may have been replaced while the session was read.
        if at >= self.entries.len() {
            return;
        }
        sanitize_entry(&mut entry);
        self.search_texts[at] = search_text(&entry);
        self.entries[at] = entry;
        // The ID by which it matched before is still part of its search text.
        if let Err(place) = self.matches.binary_search(&at)
            && self.matches_search(&self.search_texts[at])
        {
            self.matches.insert(place, at);
            // The selected entry stays selected.
            self.selected += usize::from(place <= self.selected && self.matches.len() > 1);
        }
    }

    /// Returns the index of the first visible session.
    pub fn first_visible(&self) -> usize {
        self.matches.get(self.top).copied().unwrap_or_default()
    }

    /// Handles an event; returns the result once the person has decided.
    pub fn handle_event(&mut self, event: &Event) -> Option<SessionPickerOutcome> {
        match event {
            Event::Mouse(mouse) if mouse.kind == MouseEventKind::ScrollUp => {
                self.move_selection(1, true);
            }
            Event::Mouse(mouse) if mouse.kind == MouseEventKind::ScrollDown => {
                self.move_selection(1, false);
            }
            Event::Paste(text) => self.extend_search(&one_line(text)),
            event => return self.handle_key(keys::pressed_key(event)?),
        }
        None
    }

    fn handle_key(&mut self, key: KeyEvent) -> Option<SessionPickerOutcome> {
        self.hint = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Some(SessionPickerOutcome::Cancelled),
            KeyCode::Esc if self.search.is_empty() => return Some(SessionPickerOutcome::Cancelled),
            KeyCode::Enter => return self.choose_selected(),
            KeyCode::Esc => {
                self.search.clear();
                self.extend_search("");
            }
            KeyCode::Char('u') if is_control => {
                self.search.clear();
                self.extend_search("");
            }
            KeyCode::Backspace => {
                self.search.pop();
                self.extend_search("");
            }
            KeyCode::Up => self.move_selection(1, true),
            KeyCode::Down => self.move_selection(1, false),
            KeyCode::Char('p') if is_control => self.move_selection(1, true),
            KeyCode::Char('n') if is_control => self.move_selection(1, false),
            KeyCode::PageUp => self.move_selection(self.page, true),
            KeyCode::PageDown => self.move_selection(self.page, false),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = self.matches.len().saturating_sub(1),
            KeyCode::Char(c) if !is_control && !c.is_control() && !is_terminal_control(c) => {
                self.extend_search(c.encode_utf8(&mut [0; 4]));
            }
            _ => {}
        }
        None
    }

    fn choose_selected(&mut self) -> Option<SessionPickerOutcome> {
        let entry = &self.entries[*self.matches.get(self.selected)?];
        // Such a session stays in the list, so that the person learns the reason.
        match &entry.fault {
            None => Some(SessionPickerOutcome::Session(entry.id.clone())),
            Some(fault) => {
                self.hint = Some(format!("it cannot be resumed: {}", one_line(fault)));
                None
            }
        }
    }

    fn move_selection(&mut self, by: usize, back: bool) {
        let last = self.matches.len().saturating_sub(1);
        self.selected =
            if back { self.selected.saturating_sub(by) } else { (self.selected + by).min(last) };
    }

    /// Extends the search; an entry must contain all words.
    fn extend_search(&mut self, more: &str) {
        self.search.push_str(more);
        let found =
            self.search_texts.iter().enumerate().filter(|(_, words)| self.matches_search(words));
        self.matches = found.map(|(at, _)| at).collect();
        // Other entries match now, so the selection starts at the top.
        (self.selected, self.top) = (0, 0);
    }

    fn matches_search(&self, words: &str) -> bool {
        let wanted = self.search.to_lowercase();
        wanted.split_whitespace().all(|word| words.contains(word))
    }

    /// Draws the list. Ages are relative to `now`.
    pub fn draw(&mut self, frame: &mut Frame, now: Timestamp) {
        let area = frame.area();
        if area.is_empty() {
            return;
        }
        let columns = usize::from(area.width);
        let head = format!(
            "Resume a session ({} of {}): {}",
            self.matches.len(),
            self.entries.len(),
            self.search
        );
        let room = usize::from(area.height).saturating_sub(2);
        self.page = (room / ENTRY_ROWS).max(1);
        // The selected entry is always visible.
        self.top = self.top.clamp((self.selected + 1).saturating_sub(self.page), self.selected);
        let mut lines = vec![Line::styled(truncate_to_width(&head, columns), self.theme.heading)];
        let seen = self.matches.iter().enumerate().skip(self.top).take(self.page);
        for (place, at) in seen {
            lines.extend(self.entry_lines(
                &self.entries[*at],
                place == self.selected,
                now,
                columns,
            ));
        }
        // The last entry may be cut by the end of the window.
        lines.truncate(room + 1);
        if self.matches.is_empty() {
            let text = if self.entries.is_empty() {
                "  no sessions yet"
            } else {
                "  no matching sessions"
            };
            lines.push(Line::styled(truncate_to_width(text, columns), self.theme.dim));
        }
        for (y, line) in (area.y..area.bottom()).zip(&lines) {
            frame.buffer_mut().set_line(area.x, y, line, area.width);
        }
        if area.height > 1 {
            let keys = "type to search · Enter: resume · Esc: leave";
            let text = truncate_to_width(self.hint.as_deref().unwrap_or(keys), columns);
            let style = if self.hint.is_some() { self.theme.bad } else { self.theme.dim };
            frame.buffer_mut().set_stringn(area.x, area.bottom() - 1, text, columns, style);
        }
        let x = area.x + (width(&head).min(columns.saturating_sub(1)) as u16);
        frame.set_cursor_position(Position::new(x, area.y));
    }

    fn entry_lines(
        &self,
        entry: &SessionPickerEntry,
        is_chosen: bool,
        now: Timestamp,
        columns: usize,
    ) -> [Line<'static>; ENTRY_ROWS] {
        let sign = if is_chosen { "▸" } else { " " };
        let first = match entry.first_message.as_str() {
            "" if entry.is_loading => "…",
            "" if entry.fault.is_some() => "(unreadable)",
            "" => "(no messages)",
            first => first,
        };
        let style = if is_chosen { self.theme.selected } else { self.theme.user };
        let title = Line::styled(truncate_to_width(&format!("{sign} {first}"), columns), style);
        let entries = match entry.entries {
            None if entry.fault.is_some() => None,
            None => Some("… entries".to_owned()),
            Some(1) => Some("1 entry".to_owned()),
            Some(count) => Some(format!("{count} entries")),
        };
        let age = entry.at.map(|at| format_age(at, now));
        let from = entry.foreign_source.as_ref().map(|from| format!("from {}", one_line(from)));
        let agent = Some(entry.agent.clone()).filter(|agent| !agent.is_empty());
        let parts = [age, entries, agent, from, Some(one_line(&entry.id))];
        let facts = parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
        let facts = Line::styled(truncate_to_width(&format!("  {facts}"), columns), self.theme.dim);
        let last = match &entry.fault {
            Some(fault) => Line::styled(
                truncate_to_width(&format!("  ! {}", one_line(fault)), columns),
                self.theme.bad,
            ),
            None if entry.last_message.is_empty() => Line::default(),
            None => Line::styled(
                truncate_to_width(&format!("  … {}", entry.last_message), columns),
                self.theme.dim,
            ),
        };
        [title, facts, last]
    }
}

/// Shortens an entry's texts to one line, and removes terminal control characters.
fn sanitize_entry(entry: &mut SessionPickerEntry) {
    for text in [&mut entry.first_message, &mut entry.last_message, &mut entry.agent] {
        // Shortened first: the first message may have megabytes.
        *text = one_line(crate::text::byte_prefix(text, EXCERPT_BYTES_MAX).0);
    }
}

/// Returns the searchable text of a session.
fn search_text(entry: &SessionPickerEntry) -> String {
    let (id, agent, first, last) =
        (&entry.id, &entry.agent, &entry.first_message, &entry.last_message);
    format!("{id} {agent} {first} {last}").to_lowercase()
}

/// Returns the age of a time.
fn format_age(at: Timestamp, now: Timestamp) -> String {
    match now.duration_since(at).as_secs() {
        // A time in the future comes from another clock.
        ..60 => "now".to_owned(),
        seconds @ 60..3600 => format!("{}m ago", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h ago", seconds / 3600),
        seconds @ 86_400..2_592_000 => format!("{}d ago", seconds / 86_400),
        _ => at.strftime("%Y-%m-%d").to_string(),
    }
}
