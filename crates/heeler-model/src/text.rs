//! Text of strangers on a terminal.

/// Says whether a character could steer a terminal or turn the order of what is read around it:
/// control characters (line breaks and tabs are fine) and the bidirectional overrides.
pub fn steers_terminal(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    }
}
