//! The screen of a conversation in a terminal: data in, keys out.
//!
//! [`ChatScreen`] takes what is [`heeler_chat::Output`] and keys, and gives [`heeler_chat::Wish`]es; it
//! knows no clock and no terminal. [`event_loop()`] is the loop around it, [`SessionPicker`] the list of sessions to
//! resume. Whatever agents say is untrusted: none of it reaches the terminal but as text.

mod editor;
mod event_loop;
mod input;
mod keys;
mod markdown;
mod picker;
mod preview;
mod question_panel;
mod screen;
mod status_line;
mod terminal;
mod text;
mod theme;
mod transcript;
mod transcript_cell;

pub use event_loop::{run_picker, run_screen};
pub use input::{CompletionSources, FileCompleter};
pub use keys::KEYS;
pub use picker::{SessionPicker, SessionPickerEntry, SessionPickerOutcome};
pub use screen::ChatScreen;
pub use terminal::{TerminalError, TerminalHandle};
pub use theme::TerminalTheme;

#[cfg(test)]
mod tests;
