//! Decodes agent output piece by piece into text without secrets.
//!
//! Invalid UTF-8 becomes the replacement character, exactly as if the whole were decoded at once.
//! Start at [`RedactingTextDecoder`].

use heeler_model::redact::{SecretRedactor, StreamRedactor};

/// Incremental UTF-8 decoder with redaction.
#[derive(Debug)]
pub(crate) struct RedactingTextDecoder {
    redact: StreamRedactor,
    /// Beginning of a character that is not complete yet.
    partial: Vec<u8>,
}

impl RedactingTextDecoder {
    pub(crate) fn new(redactor: &SecretRedactor) -> RedactingTextDecoder {
        RedactingTextDecoder { redact: redactor.stream(), partial: Vec::new() }
    }

    /// Decodes a piece and returns the text that is safe to show.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let bytes = if self.partial.is_empty() {
            bytes
        } else {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            &joined
        };
        let (whole, partial) = bytes.split_at(bytes.len() - partial_len(bytes));
        self.partial.extend_from_slice(partial);
        self.redact.push(&String::from_utf8_lossy(whole))
    }

    /// Returns the rest. Must not be called for truncated text: the part held back may be half of a
    /// secret.
    pub(crate) fn finish(mut self) -> String {
        let mut rest = self.redact.push(&String::from_utf8_lossy(&self.partial));
        rest.push_str(&self.redact.finish());
        rest
    }
}

/// Returns the number of bytes at the end that may begin a character.
fn partial_len(bytes: &[u8]) -> usize {
    // A character has at most four bytes, so at most three of them can be incomplete.
    for (count, byte) in (1..=3).zip(bytes.iter().rev()) {
        let needed = match byte {
            0x80..0xC0 => continue,
            0xC2..0xE0 => 2,
            0xE0..0xF0 => 3,
            0xF0..0xF5 => 4,
            _ => 0,
        };
        return if needed > count { count } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], secrets: &[&str], expect: &str) {
        let secrets: Vec<String> = secrets.iter().map(|&secret| secret.to_owned()).collect();
        let redactor = SecretRedactor::new(&secrets);
        for size in 1..=bytes.len().max(1) {
            let mut text = RedactingTextDecoder::new(&redactor);
            let mut all: String = bytes.chunks(size).map(|piece| text.push(piece)).collect();
            all.push_str(&text.finish());
            assert_eq!(all, expect, "in pieces of {size}");
        }
    }

    #[test]
    fn characters_that_are_cut_by_a_piece_are_whole_in_the_text() {
        check("aé€\u{1F415}z".as_bytes(), &[], "aé€\u{1F415}z");
    }

    #[test]
    fn what_is_no_text_is_replaced() {
        check(b"a\xffb\0c\xe2\x82", &[], "a\u{FFFD}b\0c\u{FFFD}");
    }

    #[test]
    fn a_secret_that_is_cut_by_a_piece_is_still_one() {
        check(b"key=hunter2hunter2 end", &["hunter2hunter2"], "key=[secret] end");
    }
}
