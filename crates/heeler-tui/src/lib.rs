//! Terminal screen of a conversation: output and keys in, user actions out.
//!
//! [`ChatScreen`] takes [`heeler_chat::ChatOutput`] values and key events, and returns
//! [`heeler_chat::UserAction`] values; it knows no clock and no terminal. [`run_screen`] is the
//! loop around it, [`SessionPicker`] the list of sessions to resume. [`MarkdownStream`] lays out
//! messages for commands without a screen. Text of agents is untrusted: it never reaches the terminal
//! as control sequences.

mod editor;
mod event_loop;
mod highlight;
mod input;
mod keys;
mod markdown;
mod markdown_stream;
mod markdown_table;
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
pub use input::{CommandCompletion, CompletionSources, FileCompleter};
pub use keys::KEYS;
pub use markdown_stream::{MarkdownStream, StyledLine, StyledText, render_markdown};
pub use picker::{SessionPicker, SessionPickerEntry, SessionPickerOutcome};
pub use screen::ChatScreen;
pub use terminal::{TerminalError, TerminalHandle};
pub use theme::TerminalTheme;

#[cfg(test)]
mod tests;
