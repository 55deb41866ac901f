//! Colour themes. No information depends on colour alone: every mark is also a symbol or a word.

use heeler_chat::ChatTheme;
use ratatui::style::{Color, Modifier, Style};

/// Styles of the screen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TerminalTheme {
    /// Secondary text.
    pub(crate) dim: Style,
    /// Messages of the person.
    pub(crate) user: Style,
    pub(crate) heading: Style,
    /// Code, inline and in blocks.
    pub(crate) code: Style,
    /// Words of a programming language, in code blocks.
    pub(crate) keyword: Style,
    pub(crate) string: Style,
    pub(crate) number: Style,
    /// Success; added lines.
    pub(crate) good: Style,
    /// Failure; removed lines.
    pub(crate) bad: Style,
    /// A person must act.
    pub(crate) attention: Style,
    /// Selected item.
    pub(crate) selected: Style,
}

impl From<ChatTheme> for TerminalTheme {
    fn from(theme: ChatTheme) -> TerminalTheme {
        match theme {
            ChatTheme::Dark => TerminalTheme::dark(),
            ChatTheme::Light => TerminalTheme::light(),
            ChatTheme::None => TerminalTheme::plain(),
        }
    }
}

impl TerminalTheme {
    /// Returns the theme for a dark background.
    pub fn dark() -> TerminalTheme {
        TerminalTheme {
            keyword: Style::new().fg(Color::LightMagenta),
            string: Style::new().fg(Color::LightGreen),
            number: Style::new().fg(Color::LightYellow),
            ..TerminalTheme::coloured(Color::Cyan, Color::LightBlue, Color::LightYellow)
        }
    }

    /// Returns the theme for a light background.
    pub fn light() -> TerminalTheme {
        TerminalTheme {
            keyword: Style::new().fg(Color::Blue),
            string: Style::new().fg(Color::Green),
            number: Style::new().fg(Color::Red),
            ..TerminalTheme::coloured(Color::Blue, Color::Magenta, Color::Red)
        }
    }

    /// Returns the theme without colours.
    pub fn plain() -> TerminalTheme {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        TerminalTheme {
            dim: Style::new().add_modifier(Modifier::DIM),
            // Without colours the weight of the text must distinguish it.
            user: bold,
            heading: bold.add_modifier(Modifier::UNDERLINED),
            code: Style::new(),
            keyword: Style::new(),
            string: Style::new(),
            number: Style::new(),
            good: Style::new(),
            bad: bold,
            attention: bold,
            selected: Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    fn coloured(person: Color, code: Color, attention: Color) -> TerminalTheme {
        let plain = TerminalTheme::plain();
        TerminalTheme {
            user: Style::new().fg(person),
            code: Style::new().fg(code),
            good: Style::new().fg(Color::Green),
            bad: Style::new().fg(Color::Red),
            attention: Style::new().fg(attention).add_modifier(Modifier::BOLD),
            ..plain
        }
    }
}
