//! Writing of a conversation: entries and state that the disk does not accept are kept and written
//! later, in order. Start at [`ConversationRecord`].

use std::collections::VecDeque;

use super::display::ConversationDisplay;
use crate::{ChatOutput, ChatSpeaker, ConversationEntry, ConversationState, SessionFile};

/// Session file and what it lacks.
pub(super) struct ConversationRecord {
    pub(super) session_file: SessionFile,
    /// Entries that are not written yet, because the disk failed.
    unwritten: VecDeque<(ChatSpeaker, ConversationEntry)>,
    /// The session file lacks state that was read from a row. The row's entry is written after it,
    /// so that a crash in between does not lose the state.
    is_state_unsaved: bool,
    /// Messages since this process opened the session.
    messages: u64,
}

impl ConversationRecord {
    pub(super) fn new(session_file: SessionFile) -> ConversationRecord {
        ConversationRecord {
            session_file,
            unwritten: VecDeque::new(),
            is_state_unsaved: false,
            messages: 0,
        }
    }

    pub(super) fn id(&self) -> &str {
        self.session_file.id()
    }

    pub(super) fn state(&self) -> &ConversationState {
        self.session_file.state()
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    pub(super) fn has_unwritten_entries(&self) -> bool {
        !self.unwritten.is_empty()
    }

    #[cfg(test)]
    pub(super) fn unwritten_entries(&self) -> impl Iterator<Item = &ConversationEntry> {
        self.unwritten.iter().map(|(_, entry)| entry)
    }

    /// Replaces the session by a copy of it; returns the old one.
    pub(super) fn replace_session(&mut self, copy: SessionFile) -> SessionFile {
        self.messages = 0;
        std::mem::replace(&mut self.session_file, copy)
    }

    /// Writes an entry, then shows it.
    pub(super) fn append(
        &mut self,
        of: ChatSpeaker,
        entry: ConversationEntry,
        display: &mut ConversationDisplay,
    ) {
        self.messages += u64::from(of == ChatSpeaker::Coordinator && entry.is_message());
        // Nothing may pass an entry that waits, because entries keep their order.
        if self.unwritten.is_empty() && !self.is_state_unsaved {
            match self.session_file.append(&of, &entry) {
                Ok(()) => return display.push(ChatOutput::Entry { of, entry }),
                Err(error) => display.show_error(format!(
                    "{error}; the conversation is paused until it can be written"
                )),
            }
        }
        self.unwritten.push_back((of, entry));
    }

    /// Writes what could not be written before, until the disk fails again.
    pub(super) fn retry(&mut self, display: &mut ConversationDisplay) {
        // Entries wait for the state, because a crash after them would lose it.
        if self.is_state_unsaved && self.session_file.save_changes().is_err() {
            return;
        }
        self.is_state_unsaved = false;
        while let Some((of, entry)) = self.unwritten.pop_front() {
            if self.session_file.append(&of, &entry).is_err() {
                // It stays the first, so that the order is kept.
                return self.unwritten.push_front((of, entry));
            }
            display.push(ChatOutput::Entry { of, entry });
        }
    }

    /// Changes the state of the session. A change that cannot be saved now is saved with the next
    /// one.
    pub(super) fn save_state(
        &mut self,
        display: &mut ConversationDisplay,
        change: impl FnOnce(&mut ConversationState),
    ) {
        if let Err(error) = self.session_file.save(change) {
            display.show_error(format!("{error}"));
        }
    }

    /// Holds entries back until the state that was changed last is saved.
    pub(super) fn save_state_before_entries(&mut self) {
        self.is_state_unsaved = !self.session_file.is_saved();
    }
}
