//! Text of a message that the agent is producing, as far as it was sent to clients.

use heeler_model::redact::StreamRedactor;
use heeler_model::run::ControlEvent;

/// Longest text that is kept for clients that subscribe in the middle of a message.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Message in production.
#[derive(Debug)]
pub(super) struct StreamedMessage {
    redactor: StreamRedactor,
    /// Text that no client waited for. Searching it for secrets is left until a client subscribes,
    /// because most messages are complete before.
    unread: String,
    /// Text that was sent; empty once it is too long.
    text: String,
    /// Length of the text that was sent.
    sent_bytes: u64,
}

impl StreamedMessage {
    pub(super) fn new(redactor: StreamRedactor) -> StreamedMessage {
        StreamedMessage { redactor, unread: String::new(), text: String::new(), sent_bytes: 0 }
    }

    /// Adds a part of the message that no client waits for.
    pub(super) fn push_unread(&mut self, delta: &str) {
        self.unread.push_str(delta);
        if self.unread.len() > KEPT_BYTES_MAX {
            self.push("");
        }
    }

    /// Adds a part of the message, and returns the event for clients. A part that may belong to a
    /// secret is held back.
    pub(super) fn push(&mut self, delta: &str) -> Option<ControlEvent> {
        let unread = std::mem::take(&mut self.unread);
        let text = match unread.is_empty() {
            true => self.redactor.push(delta),
            false => self.redactor.push(&(unread + delta)),
        };
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
    pub(super) fn said_so_far(&mut self) -> Option<ControlEvent> {
        // No other client waits for what this adds.
        if !self.unread.is_empty() {
            self.push("");
        }
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

    #[test]
    fn text_that_no_client_waited_for_is_searched_for_secrets_when_one_comes() {
        let delta = |text: &str, from| {
            Some(ControlEvent::Delta { text: text.to_owned(), from: Some(from) })
        };
        let secret = "top-secret-value";
        let redactor = SecretRedactor::new(&[secret.to_owned()]);
        let mut message = StreamedMessage::new(redactor.stream());
        message.push_unread("It is top-sec");
        message.push_unread("ret-value, and then top-");
        let shown = redactor.redact_text("It is top-secret-value, and then ").into_owned();
        assert_eq!(message.said_so_far(), delta(&shown, 0));
        // The last part may have been the beginning of a secret.
        assert_eq!(message.push("most!"), delta("top-most!", shown.len() as u64));
    }

    #[test]
    fn unread_text_is_bounded() {
        let mut message = StreamedMessage::new(SecretRedactor::new(&[]).stream());
        (0..=KEPT_BYTES_MAX).for_each(|_| message.push_unread("x"));
        assert_eq!((message.unread.len(), message.text.len()), (0, 0));
        assert_eq!(message.sent_bytes, KEPT_BYTES_MAX as u64 + 1);
    }
}
