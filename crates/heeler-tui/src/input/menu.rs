//! What is offered while something is typed: commands after `/`, files after `@`.

use std::ops::Range;

use heeler_model::steers_terminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;

use super::{Did, Input};
use crate::Theme;
use crate::text::{one_line, shortened, width};

/// How many things are offered at once; more are scrolled to.
const MENU_ROWS: usize = 8;
/// How many are offered in all.
const MENU_MAX: usize = 100;

/// Names files that begin as told, for completion after `@`. It is asked at every key, so it must be
/// quick.
pub type Files = Box<dyn Fn(&str) -> Vec<String> + Send>;

/// What completes the input.
pub struct Completion {
    /// Commands: name, arguments, what it does.
    pub commands: &'static [(&'static str, &'static str, &'static str)],
    /// Files.
    pub files: Files,
}

/// What is offered.
pub(crate) struct Menu {
    items: Vec<Item>,
    chosen: usize,
    /// What of the text is replaced.
    range: Range<usize>,
}

struct Item {
    label: String,
    about: String,
    text: String,
    /// Nothing need be typed after it.
    is_whole: bool,
}

impl Input {
    pub(super) fn menu_key(&mut self, key: KeyEvent) -> Option<Did> {
        let menu = self.menu.as_mut()?;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Up | KeyCode::BackTab => menu.step(menu.items.len() - 1),
            KeyCode::Char('p') if is_control => menu.step(menu.items.len() - 1),
            KeyCode::Down => menu.step(1),
            KeyCode::Char('n') if is_control => menu.step(1),
            KeyCode::Esc => self.menu = None,
            KeyCode::Tab => {
                self.accept();
            }
            KeyCode::Enter if key.modifiers.is_empty() => {
                let sends = self.accept() && self.editor.text().starts_with('/');
                return Some(if sends { self.send() } else { Did::Taken });
            }
            _ => return None,
        }
        Some(Did::Taken)
    }

    /// Writes what is chosen; says whether nothing need follow.
    fn accept(&mut self) -> bool {
        let Some(mut menu) = self.menu.take() else { return false };
        let item = menu.items.swap_remove(menu.chosen);
        let typed = self.editor.text()[menu.range.clone()].to_owned();
        // A command that is typed whole is meant, whatever could follow.
        let is_typed = typed == item.text.trim_end();
        self.editor.replace(menu.range, &item.text);
        item.is_whole || is_typed
    }

    /// Offers what could be meant.
    pub(super) fn offer(&mut self) {
        self.recalled = None;
        let text = &self.editor.text()[..self.editor.cursor()];
        let word = text.rfind(char::is_whitespace).map_or(0, |at| text.ceil_char_boundary(at + 1));
        let range = word..text.len();
        let items: Vec<Item> = match (word, text[word..].chars().next()) {
            (0, Some('/')) => self.commands(&text[1..]),
            (_, Some('@')) => self.files(&text[word + 1..]),
            _ => vec![],
        };
        self.menu = (!items.is_empty()).then_some(Menu { items, chosen: 0, range });
    }

    fn commands(&self, start: &str) -> Vec<Item> {
        let matching = self.completion.commands.iter().filter(|(name, ..)| name.starts_with(start));
        let item = |(name, args, about): &(&str, &str, &str)| Item {
            label: format!("/{name} {args}").trim_end().to_owned(),
            about: (*about).to_owned(),
            text: if args.is_empty() { format!("/{name}") } else { format!("/{name} ") },
            is_whole: args.is_empty(),
        };
        matching.map(item).collect()
    }

    fn files(&self, start: &str) -> Vec<Item> {
        let names = (self.completion.files)(start).into_iter().take(MENU_MAX);
        let item = |name: String| Item {
            label: one_line(&name),
            about: String::new(),
            // A folder is gone on into.
            text: if name.ends_with('/') { format!("@{name}") } else { format!("@{name} ") },
            is_whole: true,
        };
        names
            .filter(|name| !name.chars().any(|c| c.is_control() || steers_terminal(c)))
            .map(item)
            .collect()
    }

    /// Returns how many rows what is offered takes.
    pub(crate) fn menu_height(&self) -> usize {
        self.menu.as_ref().map_or(0, |menu| menu.items.len().min(MENU_ROWS))
    }

    /// Draws what is offered.
    pub(crate) fn draw_menu(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let Some(menu) = &self.menu else { return };
        let labels = menu.items.iter().map(|item| width(&item.label)).max().unwrap_or_default();
        let labels = labels.min(usize::from(area.width) / 2);
        let height = usize::from(area.height);
        let top = (menu.chosen + 1).saturating_sub(height);
        for (at, item) in menu.items.iter().enumerate().skip(top).take(height) {
            let y = area.y + (at - top) as u16;
            let is_chosen = at == menu.chosen;
            let sign = if is_chosen { "▸" } else { " " };
            let label = shortened(
                &item.label,
                if item.about.is_empty() { area.width.into() } else { labels },
            );
            let pad = " ".repeat(labels.saturating_sub(width(&label)));
            let line = format!("{sign} {label}{pad}  {}", item.about);
            let style = if is_chosen { theme.chosen } else { theme.dim };
            buffer.set_stringn(
                area.x,
                y,
                shortened(line.trim_end(), area.width.into()),
                area.width.into(),
                style,
            );
        }
    }
}

impl Menu {
    fn step(&mut self, by: usize) {
        self.chosen = (self.chosen + by) % self.items.len().max(1);
    }
}
