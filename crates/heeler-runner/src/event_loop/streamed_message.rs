//! Text of a message that the agent is producing, as far as it was sent to clients.

use heeler_model::redact::StreamRedactor;
use heeler_model::run::ControlEvent;

/// Longest text that is kept for clients that subscribe in the middle of a message.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Message in production.
#[derive(Debug)]
pub(super) struct StreamedMessage {
    redactor: StreamRedactor,
    /// Text that was sent; empty once it is too long.
    text: String,
    /// Length of the text that was sent.
    sent_bytes: u64,
}

impl StreamedMessage {
    pub(super) fn new(redactor: StreamRedactor) -> StreamedMessage {
        StreamedMessage { redactor, text: String::new(), sent_bytes: 0 }
    }

    /// Adds a part of the message, and returns the event for clients. A part that may belong to a
    /// secret is held back.
    pub(super) fn push(&mut self, delta: &str) -> Option<ControlEvent> {
        let text = self.redactor.push(delta);
        if text.is_empty() {
            return None;
        }
        let is_kept = self.text.len() as u64 == self.sent_bytes;
        match is_kept && self.text.len() + text.len() <= KEPT_BYTES_MAX {
            true => self.text.push_str(&text),
            false => self.text.clear(),
        }
        let from = Some(self.sent_bytes);
        self.sent_bytes += text.len() as u64;
        Some(ControlEvent::Delta { text, from })
    }

    /// Returns the event that tells a new client the text so far; `None` if it is too long.
    pub(super) fn said_so_far(&self) -> Option<ControlEvent> {
        let text = self.text.clone();
        (!text.is_empty()).then_some(ControlEvent::Delta { text, from: Some(0) })
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::redact::SecretRedactor;

    use super::*;

    #[test]
    fn a_late_client_is_told_the_text_so_far_unless_it_is_long() {
        let delta = |text: &str, from| {
            Some(ControlEvent::Delta { text: text.to_owned(), from: Some(from) })
        };
        let mut message = StreamedMessage::new(SecretRedactor::new(&[]).stream());
        assert_eq!(message.said_so_far(), None);
        assert_eq!((message.push("ab"), message.push("c")), (delta("ab", 0), delta("c", 2)));
        assert_eq!(message.said_so_far(), delta("abc", 0));
        let long = "x".repeat(KEPT_BYTES_MAX);
        assert_eq!(message.push(&long), delta(&long, 3));
        assert_eq!(
            (message.said_so_far(), message.push("y")),
            (None, delta("y", 3 + long.len() as u64))
        );
        assert_eq!(message.said_so_far(), None);
    }
}
