//! Tests of screens as text, after keys and output.

use expect_test::{Expect, expect};
use heeler_chat::{
    ChatJobState, ChatOutput, ChatQuestion, ChatSpeaker, ChatWorkerStatus, ConversationEntry,
    ConversationStatus, EntryRole, UserAction,
};
use heeler_model::run::{AgentQuestion, QuestionAnswer};
use jiff::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseEvent, MouseEventKind,
};
use serde_json::{Value as Json, json};

use crate::{
    ChatScreen, CommandCompletion, CompletionSources, SessionPicker, SessionPickerEntry,
    SessionPickerOutcome, TerminalTheme,
};

mod asks;
mod fuzz;
mod pickers;
mod pictures;
mod screens;

#[test]
fn the_manual_has_every_command_and_key() {
    let manual = include_str!("../../../docs/chat.md");
    for line in heeler_chat::help(crate::KEYS).lines() {
        assert!(manual.contains(&format!("\n    {line}\n")), "docs/chat.md lacks: {line}");
    }
}

const COMMANDS: &[(&str, &str, &str)] = &[
    ("help", "", "show commands and keys"),
    ("view", "[WORKER]", "view a worker"),
    ("workers", "", "the workers of this session"),
];

/// Screen with its test terminal.
struct ScreenFixture {
    screen: ChatScreen,
    terminal: Terminal<TestBackend>,
}

fn now() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

fn completion() -> CompletionSources {
    let files = |start: &str| {
        let all = ["Cargo.toml", "src/", "src/main.rs"];
        all.iter().filter(|name| name.starts_with(start)).map(|name| (*name).to_owned()).collect()
    };
    let command = |(name, args, about): &(&str, &str, &str)| CommandCompletion {
        name: (*name).to_owned(),
        args: (*args).to_owned(),
        about: (*about).to_owned(),
    };
    CompletionSources { commands: COMMANDS.iter().map(command).collect(), files: Box::new(files) }
}

impl ScreenFixture {
    fn new(width: u16, height: u16) -> ScreenFixture {
        ScreenFixture::with_theme(width, height, TerminalTheme::plain())
    }

    fn with_theme(width: u16, height: u16, theme: TerminalTheme) -> ScreenFixture {
        let mut screen = ChatScreen::new(theme, completion(), vec!["before".to_owned()]);
        screen.set_time(now());
        let terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        ScreenFixture { screen, terminal }
    }

    fn draw(&mut self) -> String {
        self.terminal.draw(|frame| self.screen.draw(frame)).unwrap();
        text(&self.terminal)
    }

    #[track_caller]
    fn check(&mut self, expected: Expect) {
        let text = self.draw();
        expected.assert_eq(&text);
    }

    fn say(&mut self, role: EntryRole, text: &str) {
        self.entry(ChatSpeaker::Coordinator, ConversationEntry::new(role, text, now()));
    }

    fn entry(&mut self, of: ChatSpeaker, entry: ConversationEntry) {
        self.screen.handle_output(ChatOutput::Entry { of, entry });
    }

    fn call(&mut self, id: &str, name: &str, args: Json) {
        let mut entry = ConversationEntry::new(EntryRole::Tool, "", now());
        (entry.content, entry.name, entry.args) = (Json::Null, Some(name.to_owned()), Some(args));
        entry.call = Some(id.to_owned());
        self.entry(ChatSpeaker::Coordinator, entry);
    }

    fn gave(&mut self, id: &str, text: &str, is_error: bool) {
        let mut entry = ConversationEntry::new(EntryRole::Tool, text, now());
        entry.call = Some(id.to_owned());
        entry.other.insert("durationMs".to_owned(), json!(1234));
        if is_error {
            entry.other.insert("isError".to_owned(), json!(true));
        }
        self.entry(ChatSpeaker::Coordinator, entry);
    }

    fn ask(&mut self, id: &str, of: ChatSpeaker, kind: &str, tool: &str, input: Json) {
        let ask = AgentQuestion {
            protocol: 1,
            id: id.to_owned(),
            at: now(),
            kind: kind.to_owned(),
            tool: tool.to_owned(),
            input,
            until: None,
            network_host: None,
            grant: None,
        };
        let job = "job-2026-11-16-abc123".parse().unwrap();
        self.screen.handle_output(ChatOutput::QuestionAsked(ChatQuestion { of, job, ask }));
    }

    /// Presses keys; the screen is drawn after each.
    fn keys(&mut self, text: &str) -> Vec<UserAction> {
        let mut actions = vec![];
        for event in events(text) {
            self.draw();
            actions.extend(self.screen.handle_event(&event));
        }
        actions
    }
}

/// Returns the content of the terminal, with the position of a visible cursor.
fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let mut lines: Vec<String> = vec![];
    for y in 0..buffer.area.height {
        let mut line = String::new();
        let mut x = 0;
        while x < buffer.area.width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += crate::text::columns(symbol).max(1) as u16;
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

/// Returns keys: `<Name>` for named keys, with the prefixes `C-`, `A-` and `S-`.
fn events(text: &str) -> Vec<Event> {
    let mut events = vec![];
    let mut left = text;
    while let Some(c) = left.chars().next() {
        let (key, len) = match (c, left.find('>')) {
            ('<', Some(end)) => (named(&left[1..end]), end + 1),
            _ => (KeyEvent::from(KeyCode::Char(c)), c.len_utf8()),
        };
        left = &left[len..];
        events.push(Event::Key(key));
    }
    events
}

fn named(name: &str) -> KeyEvent {
    let mut with = KeyModifiers::NONE;
    let mut name = name;
    while let Some((sign, rest)) = name.split_once('-') {
        with |= match sign {
            "C" => KeyModifiers::CONTROL,
            "A" => KeyModifiers::ALT,
            _ => KeyModifiers::SHIFT,
        };
        name = rest;
    }
    let code = match name {
        "Enter" => KeyCode::Enter,
        "Up" => KeyCode::Up,
        "Down" => KeyCode::Down,
        "Left" => KeyCode::Left,
        "PgUp" => KeyCode::PageUp,
        "PgDn" => KeyCode::PageDown,
        "End" => KeyCode::End,
        "Tab" => KeyCode::Tab,
        "BackTab" => KeyCode::BackTab,
        "Esc" => KeyCode::Esc,
        "Back" => KeyCode::Backspace,
        name => KeyCode::Char(name.chars().next().unwrap()),
    };
    KeyEvent::new(code, with)
}

fn wheel(kind: MouseEventKind) -> Event {
    Event::Mouse(MouseEvent { kind, column: 0, row: 0, modifiers: KeyModifiers::NONE })
}
