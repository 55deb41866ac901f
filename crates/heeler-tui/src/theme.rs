//! Colours. Nothing is told by a colour alone: every mark is also a sign or a word.

use ratatui::style::{Color, Modifier, Style};

/// How things look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TerminalTheme {
    /// What is said aside.
    pub(crate) dim: Style,
    /// What a person said.
    pub(crate) user: Style,
    /// Headings.
    pub(crate) heading: Style,
    /// Code, in a line and in blocks.
    pub(crate) code: Style,
    /// Something went well; what is added.
    pub(crate) good: Style,
    /// Something went wrong; what is taken away.
    pub(crate) bad: Style,
    /// A person is wanted.
    pub(crate) attention: Style,
    /// What is chosen.
    pub(crate) selected: Style,
}

impl TerminalTheme {
    /// For a dark background.
    pub fn dark() -> TerminalTheme {
        TerminalTheme::coloured(Color::Cyan, Color::LightBlue, Color::LightYellow)
    }

    /// For a light background.
    pub fn light() -> TerminalTheme {
        TerminalTheme::coloured(Color::Blue, Color::Magenta, Color::Red)
    }

    /// Without any colour.
    pub fn plain() -> TerminalTheme {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        TerminalTheme {
            dim: Style::new().add_modifier(Modifier::DIM),
            user: bold,
            heading: bold.add_modifier(Modifier::UNDERLINED),
            code: Style::new(),
            good: Style::new(),
            bad: bold,
            attention: bold,
            selected: Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    fn coloured(person: Color, code: Color, asks: Color) -> TerminalTheme {
        let plain = TerminalTheme::plain();
        TerminalTheme {
            user: Style::new().fg(person),
            code: Style::new().fg(code),
            good: Style::new().fg(Color::Green),
            bad: Style::new().fg(Color::Red),
            attention: Style::new().fg(asks).add_modifier(Modifier::BOLD),
            ..plain
        }
    }
}
