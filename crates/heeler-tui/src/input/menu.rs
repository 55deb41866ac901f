//! Completion menu: commands after `/`, files after `@`.

use std::ops::Range;

use heeler_model::is_terminal_control;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;

use super::{InputKeyOutcome, InputWidget};
use crate::TerminalTheme;
use crate::text::{one_line, truncate_to_width, width};

/// Visible rows of the menu; more are scrolled.
const MENU_ROWS: usize = 8;
/// Most entries of the menu.
const MENU_MAX: usize = 100;

/// Returns files that match a text, best first, for completion after `@`. It is called at every key press,
/// so it must be fast.
pub type FileCompleter = Box<dyn Fn(&str) -> Vec<String> + Send>;

/// Command that is completed after `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandCompletion {
    pub name: String,
    /// Arguments as help shows them; empty if there are none.
    pub args: String,
    pub about: String,
}

/// Sources of completions.
pub struct CompletionSources {
    pub commands: Vec<CommandCompletion>,
    pub files: FileCompleter,
}

/// Open completion menu.
pub(crate) struct CompletionMenu {
    items: Vec<CompletionItem>,
    selected: usize,
    /// Range of the text that a completion replaces.
    range: Range<usize>,
}

struct CompletionItem {
    label: String,
    about: String,
    text: String,
    /// No argument is needed after it.
    is_complete: bool,
}

impl InputWidget {
    pub(super) fn handle_menu_key(&mut self, key: KeyEvent) -> Option<InputKeyOutcome> {
        let menu = self.menu.as_mut()?;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            // The selection wraps around.
            KeyCode::Up | KeyCode::BackTab => menu.move_selection(menu.items.len() - 1),
            KeyCode::Char('p') if is_control => menu.move_selection(menu.items.len() - 1),
            KeyCode::Down => menu.move_selection(1),
            KeyCode::Char('n') if is_control => menu.move_selection(1),
            KeyCode::Esc => self.menu = None,
            KeyCode::Tab => {
                self.accept_completion();
            }
            KeyCode::Enter if key.modifiers.is_empty() => {
                // A command without arguments is complete, so Enter sends it.
                let sends = self.accept_completion() && self.editor.text().starts_with('/');
                return Some(if sends { self.send() } else { InputKeyOutcome::Handled });
            }
            _ => return None,
        }
        Some(InputKeyOutcome::Handled)
    }

    /// Inserts the selected completion; returns true if it needs no argument.
    fn accept_completion(&mut self) -> bool {
        let Some(mut menu) = self.menu.take() else { return false };
        let item = menu.items.swap_remove(menu.selected);
        let typed = self.editor.text()[menu.range.clone()].to_owned();
        // A completely typed command is accepted, even if arguments could follow.
        let is_typed = typed == item.text.trim_end();
        self.editor.replace(menu.range, &item.text);
        item.is_complete || is_typed
    }

    /// Opens or updates the menu for the text at the cursor.
    pub(super) fn update_completions(&mut self) {
        self.recalled = None;
        let text = &self.editor.text()[..self.editor.cursor()];
        let word = text.rfind(char::is_whitespace).map_or(0, |at| text.ceil_char_boundary(at + 1));
        let range = word..text.len();
        let items: Vec<CompletionItem> = match (word, text[word..].chars().next()) {
            // A slash inside a message is no command.
            (0, Some('/')) => self.complete_commands(&text[1..]),
            (_, Some('@')) => self.complete_files(&text[word + 1..]),
            _ => vec![],
        };
        self.menu = (!items.is_empty()).then_some(CompletionMenu { items, selected: 0, range });
    }

    fn complete_commands(&self, start: &str) -> Vec<CompletionItem> {
        let commands = self.completion.commands.iter();
        let item = |CommandCompletion { name, args, about }: &CommandCompletion| CompletionItem {
            // Names of an agent's commands come from files of a repository.
            label: one_line(&format!("/{name} {args}")).trim_end().to_owned(),
            about: one_line(about),
            text: if args.is_empty() { format!("/{name}") } else { format!("/{name} ") },
            is_complete: args.is_empty(),
        };
        commands.filter(|command| command.name.starts_with(start)).map(item).collect()
    }

    fn complete_files(&self, start: &str) -> Vec<CompletionItem> {
        let names = (self.completion.files)(start).into_iter().take(MENU_MAX);
        let item = |name: String| CompletionItem {
            label: one_line(&name),
            about: String::new(),
            // After a directory, completion continues.
            text: if name.ends_with('/') { format!("@{name}") } else { format!("@{name} ") },
            is_complete: true,
        };
        names
            // Names with control characters cannot be typed or shown safely.
            .filter(|name| !name.chars().any(|c| c.is_control() || is_terminal_control(c)))
            .map(item)
            .collect()
    }

    /// Returns the number of visible rows of the menu.
    pub(crate) fn menu_height(&self) -> usize {
        self.menu.as_ref().map_or(0, |menu| menu.items.len().min(MENU_ROWS))
    }

    /// Draws the menu.
    pub(crate) fn draw_menu(&self, area: Rect, buffer: &mut Buffer, theme: &TerminalTheme) {
        let Some(menu) = &self.menu else { return };
        let labels = menu.items.iter().map(|item| width(&item.label)).max().unwrap_or_default();
        // Descriptions keep at least half of the width.
        let labels = labels.min(usize::from(area.width) / 2);
        let height = usize::from(area.height);
        let top = (menu.selected + 1).saturating_sub(height);
        for (at, item) in menu.items.iter().enumerate().skip(top).take(height) {
            let y = area.y + (at - top) as u16;
            let is_chosen = at == menu.selected;
            let sign = if is_chosen { "▸" } else { " " };
            let label = truncate_to_width(
                &item.label,
                if item.about.is_empty() { area.width.into() } else { labels },
            );
            let pad = " ".repeat(labels.saturating_sub(width(&label)));
            let line = format!("{sign} {label}{pad}  {}", item.about);
            let style = if is_chosen { theme.selected } else { theme.dim };
            buffer.set_stringn(
                area.x,
                y,
                truncate_to_width(line.trim_end(), area.width.into()),
                area.width.into(),
                style,
            );
        }
    }
}

impl CompletionMenu {
    fn move_selection(&mut self, by: usize) {
        self.selected = (self.selected + by) % self.items.len().max(1);
    }
}
