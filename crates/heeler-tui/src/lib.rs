//! The screen of a conversation in a terminal: data in, keys out.
//!
//! [`Screen`] takes what is [`heeler_chat::Shown`] and keys, and gives [`heeler_chat::Wish`]es; it
//! knows no clock and no terminal. [`run()`] is the loop around it, [`Picker`] the list of sessions to
//! resume. Whatever agents say is untrusted: none of it reaches the terminal but as text.

mod ask;
mod cell;
mod editor;
mod input;
mod keys;
mod markdown;
mod picker;
mod preview;
mod run;
mod screen;
mod status;
mod terminal;
mod text;
mod theme;
mod transcript;

pub use input::{Completion, Files};
pub use keys::KEYS;
pub use picker::{Card, Picked, Picker};
pub use run::{pick, run};
pub use screen::Screen;
pub use terminal::{Terminal, TerminalError};
pub use theme::Theme;

#[cfg(test)]
mod tests;
