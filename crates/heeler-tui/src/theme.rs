//! Colours. Nothing is told by a colour alone: every mark is also a sign or a word.

use ratatui::style::{Color, Modifier, Style};

/// How things look.
#[derive(Debug, Clone, PartialEq)]
pub struct Theme {
    /// What is said aside.
    pub(crate) dim: Style,
    /// What a person said.
    pub(crate) person: Style,
    /// Headings.
    pub(crate) heading: Style,
    /// Code, in a line and in blocks.
    pub(crate) code: Style,
    /// Something went well; what is added.
    pub(crate) good: Style,
    /// Something went wrong; what is taken away.
    pub(crate) bad: Style,
    /// A person is wanted.
    pub(crate) asks: Style,
    /// What is chosen.
    pub(crate) chosen: Style,
}

impl Theme {
    /// For a dark background.
    pub fn dark() -> Theme {
        Theme::coloured(Color::Cyan, Color::LightBlue, Color::LightYellow)
    }

    /// For a light background.
    pub fn light() -> Theme {
        Theme::coloured(Color::Blue, Color::Magenta, Color::Red)
    }

    /// Without any colour.
    pub fn plain() -> Theme {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Theme {
            dim: Style::new().add_modifier(Modifier::DIM),
            person: bold,
            heading: bold.add_modifier(Modifier::UNDERLINED),
            code: Style::new(),
            good: Style::new(),
            bad: bold,
            asks: bold,
            chosen: Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    fn coloured(person: Color, code: Color, asks: Color) -> Theme {
        let plain = Theme::plain();
        Theme {
            person: Style::new().fg(person),
            code: Style::new().fg(code),
            good: Style::new().fg(Color::Green),
            bad: Style::new().fg(Color::Red),
            asks: Style::new().fg(asks).add_modifier(Modifier::BOLD),
            ..plain
        }
    }
}
