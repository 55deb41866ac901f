//! The line a person types: many lines, history, search, completion, pasted blocks.

mod menu;
mod past;

use heeler_model::steers_terminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use self::menu::Menu;
pub use self::menu::{Completion, Files};
use self::past::Search;
use crate::Theme;
use crate::editor::{Editor, Rows, TAB_COLUMNS, To};

/// How many lines of before are kept.
const HISTORY_MAX: usize = 1000;
/// What is pasted is a block of its own from so many lines or bytes on.
const BLOCK_LINES: usize = 6;
const BLOCK_BYTES: usize = 2000;

/// What came of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Did {
    /// The key means nothing here.
    Nothing,
    /// It was taken.
    Taken,
    /// This is to be sent.
    Send(String),
    /// There is no more room.
    Full,
}

/// The line that is typed.
pub(crate) struct Input {
    editor: Editor,
    completion: Completion,
    history: Vec<String>,
    /// Which line of before is shown, and what was typed before that.
    recalled: Option<(usize, String)>,
    search: Option<Search>,
    menu: Option<Menu>,
    /// Long texts that were pasted; a token stands for each.
    blocks: Vec<String>,
    /// How many columns there were when it was drawn.
    columns: usize,
}

impl Input {
    pub(crate) fn new(completion: Completion, mut history: Vec<String>) -> Input {
        history.drain(..history.len().saturating_sub(HISTORY_MAX));
        Input {
            editor: Editor::default(),
            completion,
            history,
            recalled: None,
            search: None,
            menu: None,
            blocks: vec![],
            columns: 80,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.editor.is_empty()
    }

    /// Says whether a key like Esc or Tab is meant for it: something is offered or searched for.
    pub(crate) fn is_in_mode(&self) -> bool {
        self.menu.is_some() || self.search.is_some()
    }

    /// Puts a text before what is typed, on lines of its own.
    pub(crate) fn suggest(&mut self, text: &str) {
        let before = self.search.as_ref().map_or(self.editor.text(), |search| &search.before);
        let gap = if before.is_empty() { "" } else { "\n" };
        let text = format!("{}{gap}{before}", typed(text));
        self.editor.set(&text);
        self.leave_modes();
    }

    /// Forgets what is typed.
    pub(crate) fn clear(&mut self) {
        self.editor.take();
        self.blocks.clear();
        self.leave_modes();
    }

    fn leave_modes(&mut self) {
        (self.search, self.menu, self.recalled) = (None, None, None);
    }

    /// Takes a pasted text as one block.
    pub(crate) fn paste(&mut self, text: &str) -> Did {
        let text = typed(text);
        let lines = text.lines().count();
        if lines < BLOCK_LINES && text.len() < BLOCK_BYTES {
            return self.write(&text);
        }
        let held: usize = self.blocks.iter().map(String::len).sum();
        if held + text.len() > crate::editor::TEXT_BYTES_MAX {
            return Did::Full;
        }
        let token = token(self.blocks.len(), &text);
        self.blocks.push(text);
        self.write(&token)
    }

    fn write(&mut self, text: &str) -> Did {
        if !self.editor.insert(text) {
            return Did::Full;
        }
        self.offer();
        Did::Taken
    }

    /// Returns what is typed, with all that was pasted.
    fn whole(&mut self) -> String {
        let mut text = self.editor.take();
        for (at, block) in std::mem::take(&mut self.blocks).iter().enumerate() {
            text = text.replace(&token(at, block), block);
        }
        text
    }

    fn send(&mut self) -> Did {
        if self.editor.text().trim().is_empty() {
            return Did::Taken;
        }
        let text = self.whole();
        self.leave_modes();
        if self.history.last() != Some(&text) {
            if self.history.len() == HISTORY_MAX {
                self.history.remove(0);
            }
            self.history.push(text.clone());
        }
        Did::Send(text)
    }

    /// Takes a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Did {
        if self.search.is_some()
            && let Some(did) = self.search_key(key)
        {
            return did;
        }
        if self.menu.is_some()
            && let Some(did) = self.menu_key(key)
        {
            return did;
        }
        match (key.code, key.modifiers) {
            (KeyCode::Enter, KeyModifiers::NONE) => self.enter(),
            (KeyCode::Enter, _) => self.write("\n"),
            (KeyCode::Up, KeyModifiers::NONE) => self.up_or_down(false),
            (KeyCode::Down, KeyModifiers::NONE) => self.up_or_down(true),
            (KeyCode::Char(c), with) if with.contains(KeyModifiers::CONTROL) => self.control(c),
            (KeyCode::Char(c), with) if with.contains(KeyModifiers::ALT) => self.alt(c),
            (KeyCode::Char(c), _) if !c.is_control() && !steers_terminal(c) => {
                self.write(c.encode_utf8(&mut [0; 4]))
            }
            (code, with) => self.edit_key(code, with),
        }
    }

    fn enter(&mut self) -> Did {
        let at = self.editor.cursor();
        if self.editor.text()[..at].ends_with('\\') {
            self.editor.replace(at - 1..at, "\n");
            return Did::Taken;
        }
        self.send()
    }

    fn control(&mut self, c: char) -> Did {
        match c {
            'j' => return self.write("\n"),
            'a' => self.editor.go(To::LineStart),
            'e' => self.editor.go(To::LineEnd),
            'b' => self.editor.go(To::Before),
            'f' => self.editor.go(To::After),
            'h' => self.backspace(),
            'd' => self.editor.delete(To::After),
            'k' => self.editor.cut(To::LineEnd),
            'u' => self.editor.cut(To::LineStart),
            'w' => self.editor.cut(To::BlankBefore),
            'y' => self.editor.paste_cut(),
            // What terminals send for Ctrl+_ is told as Ctrl+7.
            '_' | '7' => self.editor.undo(),
            'p' => return self.recall(false),
            'n' => return self.recall(true),
            'r' => {
                let before = self.editor.text().to_owned();
                self.leave_modes();
                self.search = Some(Search { words: String::new(), at: None, before });
                return Did::Taken;
            }
            _ => return Did::Nothing,
        }
        self.offer();
        Did::Taken
    }

    fn alt(&mut self, c: char) -> Did {
        match c {
            'b' => self.editor.go(To::WordBefore),
            'f' => self.editor.go(To::WordAfter),
            'd' => self.editor.cut(To::WordAfter),
            '<' => self.editor.go(To::Start),
            '>' => self.editor.go(To::End),
            _ => return Did::Nothing,
        }
        self.offer();
        Did::Taken
    }

    fn edit_key(&mut self, code: KeyCode, with: KeyModifiers) -> Did {
        let by_word = with.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
        match code {
            KeyCode::Backspace if by_word => self.editor.cut(To::WordBefore),
            KeyCode::Backspace => self.backspace(),
            KeyCode::Delete if by_word => self.editor.cut(To::WordAfter),
            KeyCode::Delete => self.editor.delete(To::After),
            KeyCode::Left => self.editor.go(if by_word { To::WordBefore } else { To::Before }),
            KeyCode::Right => self.editor.go(if by_word { To::WordAfter } else { To::After }),
            KeyCode::Home if !by_word => self.editor.go(To::LineStart),
            KeyCode::End if !by_word => self.editor.go(To::LineEnd),
            _ => return Did::Nothing,
        }
        self.offer();
        Did::Taken
    }

    /// Deletes what is before the cursor: a character, or a block as a whole.
    fn backspace(&mut self) {
        let at = self.editor.cursor();
        let before = &self.editor.text()[..at];
        let mut tokens = self.blocks.iter().enumerate().map(|(number, block)| token(number, block));
        match tokens.find(|token| before.ends_with(token.as_str())) {
            Some(token) => self.editor.replace(at - token.len()..at, ""),
            None => self.editor.delete(To::Before),
        }
    }

    fn up_or_down(&mut self, down: bool) -> Did {
        if self.editor.go_row(down, self.columns) {
            return Did::Taken;
        }
        self.recall(down)
    }

    /// Returns how many rows it takes.
    pub(crate) fn height(&mut self, columns: usize) -> usize {
        self.columns = columns.saturating_sub(2);
        self.editor.rows(self.columns).rows.len()
    }

    /// Draws it; returns where the cursor is.
    pub(crate) fn draw(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) -> Position {
        let Rows { rows, cursor } = self.editor.rows(self.columns);
        let height = usize::from(area.height);
        let top = (cursor.0 + 1).saturating_sub(height);
        for (y, row) in rows.iter().enumerate().skip(top).take(height) {
            let line = self.editor.text()[row.clone()].replace('\t', &" ".repeat(TAB_COLUMNS));
            let at = area.y + (y - top) as u16;
            let sign = if y == 0 { "› " } else { "  " };
            buffer.set_stringn(area.x, at, sign, area.width.into(), theme.person);
            let room = usize::from(area.width).saturating_sub(2);
            buffer.set_stringn(
                area.x.saturating_add(2).min(area.right()),
                at,
                line,
                room,
                Style::new(),
            );
        }
        let x = (area.x + 2).saturating_add(cursor.1 as u16).min(area.right().saturating_sub(1));
        Position::new(x, area.y + (cursor.0 - top) as u16)
    }
}

/// Returns text as it may be typed: line breaks are `\n`, and nothing steers the terminal.
fn typed(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars().filter(|c| !steers_terminal(*c)).collect()
}

/// Returns what stands for a block.
fn token(number: usize, block: &str) -> String {
    format!("[pasted #{}: {} lines]", number + 1, block.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMANDS: &[(&str, &str, &str)] =
        &[("help", "", "what can be typed"), ("view", "[WORKER]", "look"), ("workers", "", "list")];

    fn input() -> Input {
        let all = ["src/", "src/main.rs", "Cargo.toml"];
        let files = move |start: &str| {
            all.iter()
                .filter(|name| name.starts_with(start))
                .map(|name| (*name).to_owned())
                .collect()
        };
        let completion = Completion { commands: COMMANDS, files: Box::new(files) };
        Input::new(completion, vec!["first".to_owned(), "second\nline".to_owned()])
    }

    /// Types keys: `<Name>` for those that are no characters, `^x` for Ctrl+X.
    fn keys(input: &mut Input, text: &str) -> Did {
        let mut did = Did::Nothing;
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
            did = input.key(key);
        }
        did
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
        assert_eq!(keys(&mut input, "<Enter>"), Did::Taken);
        assert_eq!(
            keys(&mut input, "a\\<Enter>b<S-Enter>c^jd<Enter>"),
            Did::Send("a\nb\nc\nd".to_owned())
        );
        assert!(input.is_empty());
        assert_eq!(keys(&mut input, "<Up><Enter>"), Did::Send("a\nb\nc\nd".to_owned()));
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
        assert_eq!(keys(&mut it, "/he<Enter>"), Did::Send("/help".to_owned()));
        assert_eq!(keys(&mut it, "/view<Enter>"), Did::Send("/view ".to_owned()));
        assert_eq!(keys(&mut it, "/<Down><Enter>"), Did::Taken);
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
        assert_eq!(it.paste("a\r\nb\x1b"), Did::Taken);
        assert_eq!(it.editor.text(), "a\nb");
        let block = "line\n".repeat(9);
        it.paste(&block);
        assert_eq!(it.editor.text(), "a\nb[pasted #1: 9 lines]");
        it.paste(&block);
        keys(&mut it, "<Back>!");
        assert_eq!(keys(&mut it, "<Enter>"), Did::Send(format!("a\nb{block}!")));
        assert_eq!(it.paste(&"x".repeat(2 << 20)), Did::Full);
    }
}
