//! `/copy`: the agent's last answer, or one of its code blocks, for the clipboard.

use super::Conversation;
use super::display::PAGE_ENTRIES;
use crate::{CLIPBOARD_BYTES_MAX, ChatOutput, EntryRole};

impl Conversation {
    pub(super) fn copy_answer(&mut self, block: Option<usize>) {
        // Without a screen there is no terminal to pass it to.
        if !self.options.attended {
            return self.display.show_error("/copy needs a terminal; /export writes a file");
        }
        let page = self.record.session_file.entries_before(&self.display.view, None, PAGE_ENTRIES);
        let entries = match page {
            Ok(page) => page.entries,
            Err(error) => return self.display.show_error(format!("{error}")),
        };
        let answer = entries.iter().rev().find(|entry| entry.role == EntryRole::Assistant);
        let Some(answer) = answer.map(crate::ConversationEntry::text) else {
            return self.display.show_error("there is no answer to copy yet");
        };
        let text = match block {
            None => answer,
            Some(number) => {
                let mut blocks = code_blocks(&answer);
                if number > blocks.len() {
                    let count = blocks.len();
                    return self
                        .display
                        .show_error(format!("the last answer has {count} code blocks"));
                }
                blocks.swap_remove(number - 1)
            }
        };
        match text.len() > CLIPBOARD_BYTES_MAX {
            true => self.display.show_error(format!(
                "{} bytes are too many for a terminal's clipboard ({CLIPBOARD_BYTES_MAX}); /export writes a file",
                text.len()
            )),
            false => self.display.push(ChatOutput::Clipboard(text)),
        }
    }
}

/// Returns the contents of fenced code blocks. A block that is not closed ends with the text.
fn code_blocks(text: &str) -> Vec<String> {
    let mut blocks = vec![];
    let mut open: Option<(&str, Vec<&str>)> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let fence = trimmed.len() - trimmed.trim_start_matches('`').len();
        match &mut open {
            Some((mark, lines)) if fence >= mark.len() && trimmed.trim_end().len() == fence => {
                blocks.push(lines.join("\n"));
                open = None;
            }
            Some((_, lines)) => lines.push(line),
            None if fence >= 3 => open = Some((&trimmed[..fence], vec![])),
            None => {}
        }
    }
    blocks.extend(open.map(|(_, lines)| lines.join("\n")));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_blocks_are_found_with_their_fences_removed() {
        let text = "a\n```rust\nfn x() {}\n```\nb\n````\n```\nin\n```\n````\n  ```\nopen";
        assert_eq!(code_blocks(text), ["fn x() {}", "```\nin\n```", "open"]);
        assert!(code_blocks("no `code`").is_empty());
    }
}
