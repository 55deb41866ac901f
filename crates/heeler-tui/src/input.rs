//! Input line: multi-line editing, history, search, completion, pasted blocks.

mod history;
mod menu;

use heeler_model::is_terminal_control;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use self::history::HistorySearch;
use self::menu::CompletionMenu;
pub use self::menu::{CommandCompletion, CompletionSources, FileCompleter};
use crate::TerminalTheme;
use crate::editor::{CursorMotion, EditorLayout, TAB_COLUMNS, TextEditor};

/// Most lines in the history.
const HISTORY_MAX: usize = 1000;
/// Lines and bytes from which a pasted text becomes a block.
// A long paste would push the conversation off the screen.
const BLOCK_LINES: usize = 6;
const BLOCK_BYTES: usize = 2000;

/// Result of a key press.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputKeyOutcome {
    /// The key has no meaning here.
    Ignored,
    /// The key was handled.
    Handled,
    /// Text to send.
    Send(String),
    /// The text limit is reached.
    Full,
}

/// Input line.
pub(crate) struct InputWidget {
    editor: TextEditor,
    completion: CompletionSources,
    history: Vec<String>,
    /// Index of the recalled history line, and the text before the recall.
    recalled: Option<(usize, String)>,
    search: Option<HistorySearch>,
    menu: Option<CompletionMenu>,
    /// Long pasted texts; each is represented by a token in the text.
    pasted_blocks: Vec<String>,
    /// Width at the last drawing.
    columns: usize,
}

impl InputWidget {
    pub(crate) fn new(completion: CompletionSources, mut history: Vec<String>) -> InputWidget {
        // The newest lines are the useful ones.
        history.drain(..history.len().saturating_sub(HISTORY_MAX));
        InputWidget {
            editor: TextEditor::default(),
            completion,
            history,
            recalled: None,
            search: None,
            menu: None,
            pasted_blocks: vec![],
            // Replaced by the first drawing.
            columns: 80,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.editor.is_empty()
    }

    /// Returns true if a menu or search is open, which keys like Esc and Tab then control.
    pub(crate) fn has_popup(&self) -> bool {
        self.menu.is_some() || self.search.is_some()
    }

    /// Inserts a text before the typed text, on separate lines.
    pub(crate) fn suggest(&mut self, text: &str) {
        // While a search is open, the editor shows a match and not the typed text.
        let before =
            self.search.as_ref().map_or(self.editor.text(), |search| &search.original_text);
        let gap = if before.is_empty() { "" } else { "\n" };
        let text = format!("{}{gap}{before}", sanitize_typed(text));
        self.editor.set(&text);
        self.close_popups();
    }

    /// Clears the input.
    pub(crate) fn clear(&mut self) {
        self.editor.take();
        self.pasted_blocks.clear();
        self.close_popups();
    }

    fn close_popups(&mut self) {
        (self.search, self.menu, self.recalled) = (None, None, None);
    }

    /// Inserts a pasted text; a long one becomes a block.
    pub(crate) fn paste(&mut self, text: &str) -> InputKeyOutcome {
        let text = sanitize_typed(text);
        let lines = text.lines().count();
        if lines < BLOCK_LINES && text.len() < BLOCK_BYTES {
            return self.insert_text(&text);
        }
        // Blocks count together, because they are sent as one message.
        let block_bytes: usize = self.pasted_blocks.iter().map(String::len).sum();
        if block_bytes + text.len() > crate::editor::TEXT_BYTES_MAX {
            return InputKeyOutcome::Full;
        }
        let token = block_token(self.pasted_blocks.len(), &text);
        self.pasted_blocks.push(text);
        self.insert_text(&token)
    }

    fn insert_text(&mut self, text: &str) -> InputKeyOutcome {
        if !self.editor.insert(text) {
            return InputKeyOutcome::Full;
        }
        self.update_completions();
        InputKeyOutcome::Handled
    }

    /// Returns the typed text, with tokens replaced by the pasted texts.
    fn take_full_text(&mut self) -> String {
        let mut text = self.editor.take();
        for (at, block) in std::mem::take(&mut self.pasted_blocks).iter().enumerate() {
            // A token that was edited no longer matches and is sent as it is.
            text = text.replace(&block_token(at, block), block);
        }
        text
    }

    fn send(&mut self) -> InputKeyOutcome {
        if self.editor.text().trim().is_empty() {
            return InputKeyOutcome::Handled;
        }
        let text = self.take_full_text();
        self.close_popups();
        // Repeated lines would only slow down the recall.
        if self.history.last() != Some(&text) {
            if self.history.len() == HISTORY_MAX {
                self.history.remove(0);
            }
            self.history.push(text.clone());
        }
        InputKeyOutcome::Send(text)
    }

    pub(crate) fn handle_key(&mut self, key: KeyEvent) -> InputKeyOutcome {
        // An open search or menu gets the key first.
        if self.search.is_some()
            && let Some(outcome) = self.handle_search_key(key)
        {
            return outcome;
        }
        if self.menu.is_some()
            && let Some(outcome) = self.handle_menu_key(key)
        {
            return outcome;
        }
        match (key.code, key.modifiers) {
            (KeyCode::Enter, KeyModifiers::NONE) => self.enter(),
            (KeyCode::Enter, _) => self.insert_text("\n"),
            (KeyCode::Up, KeyModifiers::NONE) => self.move_or_recall(false),
            (KeyCode::Down, KeyModifiers::NONE) => self.move_or_recall(true),
            (KeyCode::Char(c), with) if with.contains(KeyModifiers::CONTROL) => {
                self.handle_control_key(c)
            }
            (KeyCode::Char(c), with) if with.contains(KeyModifiers::ALT) => self.handle_alt_key(c),
            // Such characters must not reach the terminal when the input is drawn.
            (KeyCode::Char(c), _) if !c.is_control() && !is_terminal_control(c) => {
                self.insert_text(c.encode_utf8(&mut [0; 4]))
            }
            (code, with) => self.handle_edit_key(code, with),
        }
    }

    fn enter(&mut self) -> InputKeyOutcome {
        let at = self.editor.cursor();
        // Works in every terminal, also where Shift+Enter cannot be distinguished.
        if self.editor.text()[..at].ends_with('\\') {
            self.editor.replace(at - 1..at, "\n");
            return InputKeyOutcome::Handled;
        }
        self.send()
    }

    fn handle_control_key(&mut self, c: char) -> InputKeyOutcome {
        match c {
            'j' => return self.insert_text("\n"),
            'a' => self.editor.move_cursor(CursorMotion::LineStart),
            'e' => self.editor.move_cursor(CursorMotion::LineEnd),
            'b' => self.editor.move_cursor(CursorMotion::PreviousGrapheme),
            'f' => self.editor.move_cursor(CursorMotion::NextGrapheme),
            'h' => self.backspace(),
            'd' => self.editor.delete(CursorMotion::NextGrapheme),
            'k' => self.editor.cut(CursorMotion::LineEnd),
            'u' => self.editor.cut(CursorMotion::LineStart),
            'w' => self.editor.cut(CursorMotion::PreviousBlank),
            'y' => self.editor.paste_last_cut(),
            // Terminals report Ctrl+_ as Ctrl+7.
            '_' | '7' => self.editor.undo(),
            'p' => return self.recall_history(false),
            'n' => return self.recall_history(true),
            'r' => {
                let before = self.editor.text().to_owned();
                self.close_popups();
                self.search =
                    Some(HistorySearch { pattern: String::new(), at: None, original_text: before });
                return InputKeyOutcome::Handled;
            }
            _ => return InputKeyOutcome::Ignored,
        }
        self.update_completions();
        InputKeyOutcome::Handled
    }

    fn handle_alt_key(&mut self, c: char) -> InputKeyOutcome {
        match c {
            'b' => self.editor.move_cursor(CursorMotion::PreviousWord),
            'f' => self.editor.move_cursor(CursorMotion::NextWord),
            'd' => self.editor.cut(CursorMotion::NextWord),
            '<' => self.editor.move_cursor(CursorMotion::Start),
            '>' => self.editor.move_cursor(CursorMotion::End),
            _ => return InputKeyOutcome::Ignored,
        }
        self.update_completions();
        InputKeyOutcome::Handled
    }

    fn handle_edit_key(&mut self, code: KeyCode, with: KeyModifiers) -> InputKeyOutcome {
        let by_word = with.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
        match code {
            KeyCode::Backspace if by_word => self.editor.cut(CursorMotion::PreviousWord),
            KeyCode::Backspace => self.backspace(),
            KeyCode::Delete if by_word => self.editor.cut(CursorMotion::NextWord),
            KeyCode::Delete => self.editor.delete(CursorMotion::NextGrapheme),
            KeyCode::Left => self.editor.move_cursor(if by_word {
                CursorMotion::PreviousWord
            } else {
                CursorMotion::PreviousGrapheme
            }),
            KeyCode::Right => self.editor.move_cursor(if by_word {
                CursorMotion::NextWord
            } else {
                CursorMotion::NextGrapheme
            }),
            KeyCode::Home if !by_word => self.editor.move_cursor(CursorMotion::LineStart),
            KeyCode::End if !by_word => self.editor.move_cursor(CursorMotion::LineEnd),
            _ => return InputKeyOutcome::Ignored,
        }
        self.update_completions();
        InputKeyOutcome::Handled
    }

    /// Deletes the character before the cursor, or a whole block.
    fn backspace(&mut self) {
        let at = self.editor.cursor();
        let before = &self.editor.text()[..at];
        let mut tokens =
            self.pasted_blocks.iter().enumerate().map(|(number, block)| block_token(number, block));
        // A block is one unit, so half a token must not remain.
        match tokens.find(|token| before.ends_with(token.as_str())) {
            Some(token) => self.editor.replace(at - token.len()..at, ""),
            None => self.editor.delete(CursorMotion::PreviousGrapheme),
        }
    }

    fn move_or_recall(&mut self, down: bool) -> InputKeyOutcome {
        // Within several rows the arrows move, and at the edge they recall.
        if self.editor.move_cursor_row(down, self.columns) {
            return InputKeyOutcome::Handled;
        }
        self.recall_history(down)
    }

    /// Returns the number of rows.
    pub(crate) fn height(&mut self, columns: usize) -> usize {
        // The sign in front of the text takes two columns.
        self.columns = columns.saturating_sub(2);
        self.editor.rows(self.columns).rows.len()
    }

    /// Draws the input; returns the position of the cursor.
    pub(crate) fn draw(&self, area: Rect, buffer: &mut Buffer, theme: &TerminalTheme) -> Position {
        let EditorLayout { rows, cursor } = self.editor.rows(self.columns);
        let height = usize::from(area.height);
        // The row of the cursor is always visible.
        let top = (cursor.0 + 1).saturating_sub(height);
        for (y, row) in rows.iter().enumerate().skip(top).take(height) {
            let line = self.editor.text()[row.clone()].replace('\t', &" ".repeat(TAB_COLUMNS));
            let at = area.y + (y - top) as u16;
            let sign = if y == 0 { "› " } else { "  " };
            buffer.set_stringn(area.x, at, sign, area.width.into(), theme.user);
            let room = usize::from(area.width).saturating_sub(2);
            buffer.set_stringn(
                area.x.saturating_add(2).min(area.right()),
                at,
                line,
                room,
                Style::new(),
            );
        }
        // After a full row the cursor stays on the last column.
        let x = (area.x + 2).saturating_add(cursor.1 as u16).min(area.right().saturating_sub(1));
        Position::new(x, area.y + (cursor.0 - top) as u16)
    }
}

/// Returns text that is safe to insert: line breaks become `\n`, and terminal control characters
/// are removed.
fn sanitize_typed(text: &str) -> String {
    // Terminals paste line breaks as carriage returns.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars().filter(|c| !is_terminal_control(*c)).collect()
}

/// Returns the token for a block.
fn block_token(number: usize, block: &str) -> String {
    format!("[pasted #{}: {} lines]", number + 1, block.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Vec<CommandCompletion> {
        let all = [
            ("help", "", "what can be typed"),
            ("view", "[WORKER]", "look"),
            ("workers", "", "list"),
        ];
        let command = |(name, args, about): (&str, &str, &str)| CommandCompletion {
            name: name.to_owned(),
            args: args.to_owned(),
            about: about.to_owned(),
        };
        all.map(command).to_vec()
    }

    fn input() -> InputWidget {
        let all = ["src/", "src/main.rs", "Cargo.toml"];
        let files = move |start: &str| {
            all.iter()
                .filter(|name| name.starts_with(start))
                .map(|name| (*name).to_owned())
                .collect()
        };
        let completion = CompletionSources { commands: commands(), files: Box::new(files) };
        InputWidget::new(completion, vec!["first".to_owned(), "second\nline".to_owned()])
    }

    /// Presses keys: `<Name>` for named keys, `^x` for Ctrl+X.
    fn keys(input: &mut InputWidget, text: &str) -> InputKeyOutcome {
        let mut outcome = InputKeyOutcome::Ignored;
        let mut left = text;
        while let Some(c) = left.chars().next() {
            let (key, len) = match (c, left.find('>')) {
                ('<', Some(end)) => (named(&left[1..end]), end + 1),
                ('^', _) => {
                    let c = KeyCode::Char(left.as_bytes()[1].into());
                    (KeyEvent::new(c, KeyModifiers::CONTROL), 2)
                }
                _ => (KeyEvent::from(KeyCode::Char(c)), c.len_utf8()),
            };
            left = &left[len..];
            outcome = input.handle_key(key);
        }
        outcome
    }

    fn named(name: &str) -> KeyEvent {
        let (name, with) = match name.strip_prefix("S-") {
            Some(name) => (name, KeyModifiers::SHIFT),
            None => (name, KeyModifiers::NONE),
        };
        let code = match name {
            "Enter" => KeyCode::Enter,
            "Up" => KeyCode::Up,
            "Down" => KeyCode::Down,
            "Tab" => KeyCode::Tab,
            "Esc" => KeyCode::Esc,
            "Left" => KeyCode::Left,
            "Back" => KeyCode::Backspace,
            name => unreachable!("no key {name}"),
        };
        KeyEvent::new(code, with)
    }

    #[track_caller]
    fn check(typed: &str, expected: &str) {
        let mut input = input();
        keys(&mut input, typed);
        assert_eq!(input.editor.text(), expected, "{typed}");
    }

    #[test]
    fn a_line_is_sent_whole_and_has_many_lines_if_asked_for() {
        let mut input = input();
        assert_eq!(keys(&mut input, "<Enter>"), InputKeyOutcome::Handled);
        assert_eq!(
            keys(&mut input, "a\\<Enter>b<S-Enter>c^jd<Enter>"),
            InputKeyOutcome::Send("a\nb\nc\nd".to_owned())
        );
        assert!(input.is_empty());
        assert_eq!(keys(&mut input, "<Up><Enter>"), InputKeyOutcome::Send("a\nb\nc\nd".to_owned()));
    }

    #[test]
    fn history_is_behind_the_edges_and_gives_back_what_was_typed() {
        check("<Up>", "second\nline");
        check("<Up><Up>", "second\nline");
        check("<Up><Up><Up>", "first");
        check("new<Up><Down>", "new");
        check("new^p^p^p^n^n", "new");
        check("^rfir<Tab>!", "first!");
        check("x^rnothing", "x");
        check("x^rfirst^c", "x");
        check("^rs^r", "first");
    }

    #[test]
    fn commands_and_files_are_completed() {
        let mut it = input();
        assert_eq!(keys(&mut it, "/he<Enter>"), InputKeyOutcome::Send("/help".to_owned()));
        assert_eq!(keys(&mut it, "/view<Enter>"), InputKeyOutcome::Send("/view ".to_owned()));
        assert_eq!(keys(&mut it, "/<Down><Enter>"), InputKeyOutcome::Handled);
        assert_eq!(it.editor.text(), "/view ");
        check("/w<Tab>", "/workers");
        check("/w<Esc><Tab>x", "/wx");
        check("see @src/m<Tab>now", "see @src/main.rs now");
        check("@s<Tab>", "@src/");
        check("a@b", "a@b");
    }

    #[test]
    fn a_long_paste_is_one_block_and_a_short_one_is_text() {
        let mut it = input();
        assert_eq!(it.paste("a\r\nb\x1b"), InputKeyOutcome::Handled);
        assert_eq!(it.editor.text(), "a\nb");
        let block = "line\n".repeat(9);
        it.paste(&block);
        assert_eq!(it.editor.text(), "a\nb[pasted #1: 9 lines]");
        it.paste(&block);
        keys(&mut it, "<Back>!");
        assert_eq!(keys(&mut it, "<Enter>"), InputKeyOutcome::Send(format!("a\nb{block}!")));
        assert_eq!(it.paste(&"x".repeat(2 << 20)), InputKeyOutcome::Full);
    }
}
