//! Taking the last turn back, with or without its files.

use std::collections::HashSet;

use heeler_model::AgentSessionId;
use serde_json::Value as Json;
use uuid::Uuid;

use super::Conversation;
use super::display::truncate_line;
use super::turn_phase::TurnEvent;
use super::turn_to_undo::TurnToUndo;
use crate::{ChatSpeaker, ConversationEntry, EntryRole, SessionFileError};

/// Key that marks the entry of an undo.
const UNDO: &str = "undo";
/// Entries per read when the whole transcript is searched.
const ENTRIES_PER_READ: usize = 500;

impl Conversation {
    /// Takes the last turn back: the next turn continues from before it. The transcript keeps the
    /// turn, marked.
    pub(super) fn undo(&mut self) {
        if let Some(undo) = self.find_turn_to_undo() {
            self.take_back(undo, "Files are unchanged.");
        }
    }

    /// Restores the files as they were before the last turn, then takes the turn back.
    pub(super) fn rewind(&mut self) {
        let Some(undo) = self.find_turn_to_undo() else { return };
        let current = self.state().session.clone();
        let (session, after) = match &undo.before {
            Some((session, entry)) => (session.clone().or(current), Some(*entry)),
            None => (current, None),
        };
        let Some(session) = session else { return };
        self.apply_turn_event(TurnEvent::RestoreStarted(Box::new(undo)));
        self.fleet.restore_files(&session, after);
    }

    /// Finds the last turn that was not taken back. If there is none, the reason is shown.
    fn find_turn_to_undo(&mut self) -> Option<TurnToUndo> {
        if let Some(conflict) = self.turn.conflict() {
            self.display.show_error(conflict);
            return None;
        }
        if self.state().session.is_none() {
            self.display.show_error("there is nothing to take back");
            return None;
        }
        // Unsent messages are not turns. Turns that were already taken back are skipped.
        let turns: HashSet<Uuid> = self.state().turns.iter().map(|turn| turn.turn).collect();
        let is_turn =
            |entry: &ConversationEntry| entry.turn.is_some_and(|turn| turns.contains(&turn));
        let (mut passed, mut taken_back) = (0_usize, None);
        let found = self.search_backwards(|entry| {
            if is_undo(entry) {
                // Each mark takes back one of the turns before it.
                passed += 1;
            } else if entry.role == EntryRole::User && is_turn(entry) {
                if passed == 0 && taken_back.is_none() {
                    taken_back =
                        Some(truncate_line(entry.text().lines().next().unwrap_or_default()));
                }
                passed = passed.saturating_sub(1);
            } else if taken_back.is_some() && passed == 0 && entry.role == EntryRole::Assistant {
                return entry_uuid(entry).map(|cut| (entry.clone(), cut));
            }
            None
        });
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.display.show_error(format!("{error}"));
                return None;
            }
        };
        let Some(prompt) = taken_back else {
            self.display.show_error("there is nothing to take back");
            return None;
        };
        let before = found.map(|(entry, cut)| (self.session_of_entry(&entry), cut));
        Some(TurnToUndo { prompt, before })
    }

    /// Takes a turn back, and says what happened to the files.
    pub(super) fn take_back(&mut self, TurnToUndo { prompt, before }: TurnToUndo, files: &str) {
        self.save_state(|state| match before {
            Some((session, cut)) => {
                state.session = session.or(state.session.take());
                state.cut = Some(cut);
            }
            // Before the first turn there is no session to continue.
            None => (state.session, state.cut) = (None, None),
        });
        let text = format!(
            "The turn `{prompt}` was taken back: the next one continues from before it. {files}"
        );
        let mut entry = ConversationEntry::new(EntryRole::System, text, self.now);
        entry.other.insert(UNDO.to_owned(), Json::Bool(true));
        self.append_entry(ChatSpeaker::Coordinator, entry);
    }

    /// Returns the native session of an entry, if known. After an undo or a fork it differs from
    /// the current one.
    pub(super) fn session_of_entry(&mut self, entry: &ConversationEntry) -> Option<AgentSessionId> {
        let job = &entry.source.as_ref()?.job;
        self.fleet.job_info(job).ok().flatten()?.session
    }

    /// Searches the transcript from its end until `look` returns a result.
    fn search_backwards<T>(
        &self,
        mut look: impl FnMut(&ConversationEntry) -> Option<T>,
    ) -> Result<Option<T>, SessionFileError> {
        let mut cursor = None;
        loop {
            let page = self.record.session_file.entries_before(
                &ChatSpeaker::Coordinator,
                cursor,
                ENTRIES_PER_READ,
            )?;
            if let Some(found) = page.entries.iter().rev().find_map(&mut look) {
                return Ok(Some(found));
            }
            if !page.has_more {
                return Ok(None);
            }
            cursor = Some(page.cursor);
        }
    }
}

/// Returns true if an entry marks the previous turn as taken back.
pub(super) fn is_undo(entry: &ConversationEntry) -> bool {
    entry.role == EntryRole::System && entry.other.get(UNDO) == Some(&Json::Bool(true))
}

/// Returns the entry's UUID in the native session, which is a possible fork point.
pub(super) fn entry_uuid(entry: &ConversationEntry) -> Option<Uuid> {
    entry.other.get("uuid").and_then(Json::as_str).and_then(|text| text.parse().ok())
}
