//! Output of a command, kept in bounded space: its beginning and its end.

use crate::workflow::OUTPUT_BYTES_MAX;

/// Bytes kept from the beginning.
const HEAD_BYTES: usize = OUTPUT_BYTES_MAX / 4;

/// Bytes kept from the end. The remainder is reserved for the truncation notice.
const TAIL_BYTES: usize = OUTPUT_BYTES_MAX - HEAD_BYTES - 64;

/// Output of a command, in bounded space.
#[derive(Debug, Clone, Default)]
pub(super) struct CommandOutput {
    head: String,
    tail: String,
    /// Number of characters dropped between `head` and `tail`.
    truncated_chars: usize,
}

impl CommandOutput {
    pub(super) fn push_line(&mut self, line: &str) {
        if !self.is_empty() {
            self.push_text("\n");
        }
        self.push_text(line);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_empty() && self.tail.is_empty()
    }

    fn push_text(&mut self, text: &str) {
        let mut rest = text;
        // Once the tail has text the head is final, even if a character did not fit into it.
        if self.tail.is_empty() {
            let room = HEAD_BYTES.saturating_sub(self.head.len());
            let (head, more) = text.split_at(text.floor_char_boundary(room));
            self.head.push_str(head);
            rest = more;
        }
        self.tail.push_str(rest);
        // Cut in large steps rather than with each line, which would copy the tail every time.
        if self.tail.len() > 2 * TAIL_BYTES {
            self.truncated_chars += truncate_front(&mut self.tail);
        }
    }

    /// Returns the whole output, or its kept parts with a truncation notice.
    pub(super) fn text(&self) -> String {
        let CommandOutput { head, tail, truncated_chars: left_out } = self;
        // Head and tail are adjacent as long as nothing was dropped.
        if *left_out == 0 && head.len() + tail.len() <= OUTPUT_BYTES_MAX {
            return format!("{head}{tail}");
        }
        // A copy, because the output is asked for while the command still runs.
        let mut tail = tail.clone();
        let left_out = left_out + truncate_front(&mut tail);
        format!("{head}\n…[truncated {left_out} chars]\n{tail}")
    }
}

/// Drops everything except the end, and returns the number of dropped characters.
fn truncate_front(text: &mut String) -> usize {
    let cut = text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES));
    text.drain(..cut).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_kept_whole() {
        let mut printed = CommandOutput::default();
        assert!(printed.is_empty());
        ["a", "", "b"].iter().for_each(|line| printed.push_line(line));
        assert_eq!(printed.text(), "a\n\nb");
        let mut exact = CommandOutput::default();
        exact.push_line(&"x".repeat(OUTPUT_BYTES_MAX));
        assert_eq!(exact.text(), "x".repeat(OUTPUT_BYTES_MAX));
    }

    #[test]
    fn of_what_is_long_both_ends_are_kept_in_bounded_space() {
        let mut printed = CommandOutput::default();
        printed.push_line("begin");
        for _ in 0..100_000 {
            printed.push_line("ärgerlich");
            assert!(printed.tail.len() <= 2 * TAIL_BYTES + 16);
        }
        printed.push_line("end");
        let text = printed.text();
        assert!(text.len() <= OUTPUT_BYTES_MAX, "{}", text.len());
        assert!(text.starts_with("begin\n") && text.ends_with("\nend"));
        let (head, rest) = text.split_once("\n…[truncated ").unwrap();
        let (left_out, tail) = rest.split_once(" chars]\n").unwrap();
        let kept = head.chars().count() + tail.chars().count();
        let all = "begin".len() + 100_000 * 10 + "\nend".len();
        assert_eq!(kept + left_out.parse::<usize>().unwrap(), all);
    }
}
