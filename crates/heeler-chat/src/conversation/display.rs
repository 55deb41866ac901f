//! Output of a conversation and the transcripts that the person views. Start at
//! [`ConversationDisplay`].

use std::collections::HashMap;

use crate::{ChatOutput, ChatSpeaker, ConversationStatus, EntryCursor, EntryPage, SessionFile};

/// Entries shown at first, and loaded at a time.
pub const PAGE_ENTRIES: usize = 50;

/// Characters of a line in a list.
const LINE_CHARS_MAX: usize = 80;

/// Output that was not taken yet, and the state of the user interface.
pub(super) struct ConversationDisplay {
    outputs: Vec<ChatOutput>,
    /// Transcript in view.
    pub(super) view: ChatSpeaker,
    /// Position of the oldest shown entry of each transcript.
    cursors: HashMap<ChatSpeaker, EntryCursor>,
    /// Status line as it was shown last.
    pub(super) status: ConversationStatus,
}

impl ConversationDisplay {
    pub(super) fn new(context_tokens: Option<u64>) -> ConversationDisplay {
        ConversationDisplay {
            outputs: Vec::new(),
            view: ChatSpeaker::Coordinator,
            cursors: HashMap::new(),
            status: ConversationStatus { context_tokens, ..ConversationStatus::default() },
        }
    }

    pub(super) fn take_output(&mut self) -> Vec<ChatOutput> {
        std::mem::take(&mut self.outputs)
    }

    pub(super) fn push(&mut self, output: ChatOutput) {
        self.outputs.push(output);
    }

    pub(super) fn show_notice(&mut self, text: impl Into<String>) {
        self.push(ChatOutput::Notice(text.into()));
    }

    pub(super) fn show_error(&mut self, text: impl Into<String>) {
        self.push(ChatOutput::Error(text.into()));
    }

    pub(super) fn show_exit_message(&mut self, text: impl Into<String>) {
        self.push(ChatOutput::ExitMessage(text.into()));
    }

    /// Puts a text into the input line, to be sent or edited.
    pub(super) fn suggest_input(&mut self, text: impl Into<String>) {
        self.push(ChatOutput::SuggestedInput(text.into()));
    }

    /// Shows the end of a transcript that was read already.
    pub(super) fn show_page(&mut self, of: ChatSpeaker, page: EntryPage) {
        self.cursors.insert(of.clone(), page.cursor);
        let (entries, has_more) = (page.entries, page.has_more);
        self.push(ChatOutput::OlderEntries { of, entries, has_more });
    }

    /// Shows entries before those that are shown.
    pub(super) fn show_older(&mut self, of: &ChatSpeaker, session_file: &SessionFile) {
        match session_file.entries_before(of, self.cursors.get(of).copied(), PAGE_ENTRIES) {
            Ok(page) => self.show_page(of.clone(), page),
            Err(error) => self.show_error(format!("{error}")),
        }
    }

    /// Views a transcript, and shows its end if nothing of it was shown before.
    pub(super) fn switch_view(&mut self, to: ChatSpeaker, session_file: &SessionFile) {
        self.view = to.clone();
        self.push(ChatOutput::ViewChanged(to.clone()));
        if !self.cursors.contains_key(&to) {
            self.show_older(&to, session_file);
        }
    }

    /// Moves the position of the oldest shown entry forward again.
    pub(super) fn drop_entries(
        &mut self,
        of: &ChatSpeaker,
        entries: usize,
        session_file: &SessionFile,
    ) {
        let Some(cursor) = self.cursors.get(of) else { return };
        match session_file.cursor_after(of, *cursor, entries) {
            Ok(cursor) => drop(self.cursors.insert(of.clone(), cursor)),
            Err(error) => self.show_error(format!("{error}")),
        }
    }

    /// Shows the end of another session instead.
    pub(super) fn replace_session(&mut self, session_file: &SessionFile) {
        self.cursors.clear();
        self.view = ChatSpeaker::Coordinator;
        self.push(ChatOutput::SessionReplaced);
        self.show_older(&ChatSpeaker::Coordinator, session_file);
    }

    /// Shows the status line if it has changed.
    pub(super) fn show_status(&mut self, status: ConversationStatus) {
        if status != self.status {
            self.status = status.clone();
            self.push(ChatOutput::Status(Box::new(status)));
        }
    }
}

/// Shortens a line for a list.
pub(super) fn truncate_line(line: &str) -> String {
    let line = line.trim();
    // The cut must not fall within a character.
    match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
