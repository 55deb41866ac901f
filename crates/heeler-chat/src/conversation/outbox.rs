//! Messages of the person that no agent has yet. Start at [`MessageOutbox`].

use std::collections::VecDeque;

use uuid::Uuid;

/// Message in the transcript without a known job when the session was resumed. The fleet may still
/// be creating the job.
pub(super) struct UnsentMessage {
    pub(super) turn: Uuid,
    pub(super) text: String,
}

/// Messages that wait to be sent. They outlast a turn: a message that waited for the end of a turn
/// also waits while the person is asked about workers.
#[derive(Default)]
pub(super) struct MessageOutbox {
    /// Messages that wait for the end of the turn.
    queued: VecDeque<String>,
    /// Lines, including commands, that wait until the session is copied.
    held_lines: Vec<String>,
    /// Message of an interrupted session; if it is sent again, it keeps the ID of its turn, so that
    /// it is not executed twice.
    unsent: Option<UnsentMessage>,
}

impl MessageOutbox {
    pub(super) fn queue(&mut self, text: String) {
        self.queued.push_back(text);
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    pub(super) fn queued_texts(&self) -> impl Iterator<Item = &str> {
        self.queued.iter().map(String::as_str)
    }

    /// Takes the newest queued message.
    pub(super) fn take_last_queued(&mut self) -> Option<String> {
        self.queued.pop_back()
    }

    pub(super) fn next_queued(&mut self) -> Option<String> {
        self.queued.pop_front()
    }

    pub(super) fn take_queued(&mut self) -> Vec<String> {
        self.queued.drain(..).collect()
    }

    pub(super) fn hold(&mut self, line: &str) {
        self.held_lines.push(line.to_owned());
    }

    pub(super) fn has_held_lines(&self) -> bool {
        !self.held_lines.is_empty()
    }

    pub(super) fn take_held_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.held_lines)
    }

    /// Returns the messages and lines that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> impl Iterator<Item = &String> {
        self.queued.iter().chain(&self.held_lines)
    }

    pub(super) fn set_unsent(&mut self, unsent: UnsentMessage) {
        self.unsent = Some(unsent);
    }

    /// Returns the turn ID of an interrupted session's message if this is the same one. Another
    /// message replaces it.
    pub(super) fn take_unsent(&mut self, text: &str) -> Option<Uuid> {
        self.unsent.take().filter(|unsent| unsent.text == text.trim()).map(|unsent| unsent.turn)
    }
}
