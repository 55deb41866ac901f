//! Splits long texts at lines, without breaking code blocks.
//!
//! Start at [`split_text`].

use unicode_segmentation::UnicodeSegmentation as _;

/// Longest information after the marker of a code block that is repeated, in characters.
const INFO_CHARS_MAX: usize = 20;

/// Returns the length as platforms count it, in UTF-16 units. Other counts are lower.
pub(crate) fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// Splits Markdown into parts of at most `limit` UTF-16 units. A code block that does not fit is
/// closed at the end of a part and opened again in the next. `limit` must be at least 100.
pub fn split_text(text: &str, limit: usize) -> Vec<String> {
    debug_assert!(limit >= 100, "a part must have room for the marks of a code block");
    let mut splitter =
        TextSplitter { limit, parts: Vec::new(), part: String::new(), break_at: None, block: None };
    text.lines().for_each(|line| splitter.add_line(line));
    splitter.finish()
}

struct TextSplitter {
    limit: usize,
    parts: Vec<String>,
    part: String,
    /// Position in `part` of the last empty line outside of a code block.
    break_at: Option<usize>,
    block: Option<CodeBlock>,
}

/// An open code block.
#[derive(Clone)]
struct CodeBlock {
    /// Three or more backticks or tildes.
    marker: String,
    /// Line that opens it again.
    opening: String,
}

impl CodeBlock {
    fn open(line: &str) -> Option<CodeBlock> {
        let text = line.trim_start();
        let sign = text.chars().next().filter(|sign| ['`', '~'].contains(sign))?;
        let marker: String = text.chars().take_while(|c| *c == sign).collect();
        let info = &text[marker.len()..];
        // A line with backticks in its information is inline code.
        if marker.len() < 3 || marker.len() > 20 || info.contains('`') {
            return None;
        }
        let info: String = info.trim().chars().take(INFO_CHARS_MAX).collect();
        Some(CodeBlock { opening: format!("{marker}{info}"), marker })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let text = line.trim();
        let sign = self.marker.chars().next().unwrap_or('`');
        text.len() >= self.marker.len() && text.chars().all(|c| c == sign)
    }
}

impl TextSplitter {
    fn add_line(&mut self, line: &str) {
        let after = match &self.block {
            Some(block) if block.is_closed_by(line) => None,
            Some(block) => Some(block.clone()),
            None => CodeBlock::open(line),
        };
        // A block must fit with the line that closes it.
        let reserve = after.as_ref().map_or(0, |block| 1 + block.marker.len());
        let mut rest = line;
        loop {
            let joint = usize::from(!self.part.is_empty());
            let used = units(&self.part) + joint + reserve;
            if used + units(rest) <= self.limit {
                self.push(rest);
                break;
            }
            if self.has_content() {
                self.flush();
                continue;
            }
            let room = self.limit.saturating_sub(used).max(1);
            let cut = cut_position(rest, room, self.block.is_none());
            self.push(&rest[..cut]);
            rest = &rest[cut..];
            self.flush();
        }
        self.block = after;
        if self.block.is_none() && line.trim().is_empty() {
            self.break_at = Some(self.part.len());
        }
    }

    fn push(&mut self, text: &str) {
        if !self.part.is_empty() {
            self.part.push('\n');
        }
        self.part.push_str(text);
    }

    /// Returns true if the part has more than the line that opens a block again.
    fn has_content(&self) -> bool {
        match &self.block {
            Some(block) => self.part != block.opening,
            None => !self.part.is_empty(),
        }
    }

    /// Ends the part: at the last empty line if that is in its second half.
    fn flush(&mut self) {
        let mut part = std::mem::take(&mut self.part);
        let break_at = self.break_at.take().filter(|at| *at > part.len() / 2);
        match (&self.block, break_at) {
            (Some(block), _) => {
                part.push('\n');
                part.push_str(&block.marker);
                self.part = block.opening.clone();
            }
            (None, Some(at)) => self.part = part.split_off(at).trim_start_matches('\n').to_owned(),
            (None, None) => {}
        }
        self.add_part(&part);
    }

    fn add_part(&mut self, part: &str) {
        let part = part.trim_matches('\n');
        if !part.trim().is_empty() {
            self.parts.push(part.to_owned());
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.has_content() {
            let mut part = std::mem::take(&mut self.part);
            // An agent may have ended in the middle of a block.
            if let Some(block) = &self.block {
                part.push('\n');
                part.push_str(&block.marker);
            }
            self.add_part(&part);
        }
        self.parts
    }
}

/// Returns the position at which a line is cut: after a space if there is one, and not within a
/// character that consists of several.
fn cut_position(line: &str, room: usize, at_spaces: bool) -> usize {
    let (mut used, mut end, mut after_space) = (0, 0, None);
    for (at, cluster) in line.grapheme_indices(true) {
        used += units(cluster);
        if used > room {
            break;
        }
        end = at + cluster.len();
        if cluster == " " {
            after_space = Some(end);
        }
    }
    let space = after_space.filter(|at| at_spaces && *at > end / 2);
    match space.unwrap_or(end) {
        // One character is longer than a part.
        0 => line.char_indices().nth(1).map_or(line.len(), |(at, _)| at),
        cut => cut,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_balanced(part: &str) -> bool {
        let mut block: Option<CodeBlock> = None;
        for line in part.lines() {
            block = match &block {
                Some(open) if open.is_closed_by(line) => None,
                Some(open) => Some(open.clone()),
                None => CodeBlock::open(line),
            };
        }
        block.is_none()
    }

    #[test]
    fn a_short_text_is_one_part() {
        assert_eq!(split_text("Hi.\n\nDone.\n", 100), ["Hi.\n\nDone."]);
        assert_eq!(split_text("", 100), Vec::<String>::new());
        assert_eq!(split_text("\n \n", 100), Vec::<String>::new());
    }

    #[test]
    fn a_code_block_is_closed_and_opened_again_with_its_language() {
        let lines: Vec<String> = (0..30).map(|n| format!("    let x{n} = {n};")).collect();
        let text = format!("Look:\n```rust\n{}\n```\nThat is it.", lines.join("\n"));
        let parts = split_text(&text, 200);
        assert!(parts.len() > 2);
        for part in &parts {
            assert!(units(part) <= 200 && is_balanced(part), "{part}");
        }
        assert!(parts[1].starts_with("```rust\n    let"), "{}", parts[1]);
        assert!(parts.last().unwrap().ends_with("That is it."));
        let code: Vec<&str> =
            parts.iter().flat_map(|it| it.lines()).filter(|it| it.starts_with("    ")).collect();
        assert_eq!(code, lines, "no line of the code is lost or changed");
    }

    #[test]
    fn paragraphs_stay_together_and_characters_stay_whole() {
        let text = format!("{}\n\n{}", "a ".repeat(40).trim(), "b ".repeat(40).trim());
        assert_eq!(split_text(&text, 120).len(), 2);
        let family = "👨‍👩‍👧‍👦".repeat(30);
        for part in split_text(&family, 100) {
            assert_eq!(part.replace("👨‍👩‍👧‍👦", ""), "", "a family is not torn apart");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_every_part_fits(text in "(([a-zä👍@ ]{0,60}|```[a-z]{0,5}|~~~|)\n){0,40}", limit in 100usize..300) {
            let parts = split_text(&text, limit);
            for part in &parts {
                prop_assert!(units(part) <= limit, "{} > {limit}: {part:?}", units(part));
                prop_assert!(is_balanced(part), "{part:?}");
            }
            let letters = |text: &str| text.chars().filter(|c| "ä👍@".contains(*c)).collect::<String>();
            prop_assert_eq!(letters(&text), letters(&parts.concat()));
        }
    }
}
