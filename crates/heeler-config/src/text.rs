//! Text helpers: control characters, and suggestions for misspelled words.

/// Returns true if a character could control a terminal or reorder the text around it: control
/// characters except newline and tab, and the bidirectional overrides.
pub fn is_terminal_control(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // These reverse the direction of text, so a line could show something else than it says.
        '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    }
}

/// Returns true if a character cannot be seen as what it is: control characters, characters without
/// width, those that change the direction of text, tags, variation selectors, and blanks other than
/// the space.
pub fn is_hidden_char(c: char) -> bool {
    match c {
        ' ' => false,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' => {
            true
        }
        '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' => true,
        // These look like blanks but are not whitespace in Unicode.
        '\u{2060}'..='\u{206F}' | '\u{2800}' | '\u{3164}' | '\u{FFA0}' => true,
        '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFF0}'..='\u{FFFB}' => true,
        '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}' => true,
        c => c.is_control() || c.is_whitespace(),
    }
}

/// Returns text in which every hidden character is written as its number, `\u{1b}`. Nothing is
/// removed, so that a person sees exactly what they approve. Newlines and tabs stay.
pub fn reveal_hidden(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if is_hidden_char(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns text on one line with every character visible, as [`reveal_hidden`] does.
pub fn reveal_line(text: &str) -> String {
    // A line must not pose as another, nor a tab as blanks.
    reveal_hidden(text).replace('\n', "\\n").replace('\t', "\\u{9}")
}

/// Returns the candidate most similar to `word`, if it is similar enough to be a typing error.
pub fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Case is the most common slip.
    let word = word.to_lowercase();
    let scored =
        candidates.map(|candidate| (similarity(&word, &candidate.to_lowercase()), candidate));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= SIMILARITY_MIN).then_some(best.1)
}

/// Returns the similarity of two words, 0 to 1. A single typing error weighs little even in a short
/// word.
fn similarity(word: &str, candidate: &str) -> f64 {
    // Short words differ by one letter from many others.
    let one_slip = word.len() >= 3 && strsim::osa_distance(word, candidate) <= 1;
    strsim::jaro_winkler(word, candidate).max(if one_slip { ONE_TYPO_SIMILARITY } else { 0.0 })
}

/// Similarity assigned to words that differ by one typing error.
const ONE_TYPO_SIMILARITY: f64 = 0.9;

/// Minimum similarity (0 to 1) at which a word is suggested.
const SIMILARITY_MIN: f64 = 0.82;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hidden_character_is_written_out_and_none_is_removed() {
        for (text, shown) in [
            ("npm test \u{1b}]; curl x | sh #", "npm test \\u{1b}]; curl x | sh #"),
            ("a\u{9b}2Jb\u{7}\r\u{7f}", "a\\u{9b}2Jb\\u{7}\\u{d}\\u{7f}"),
            ("x\u{202e}y\u{2066}\u{200e}\u{200f}", "x\\u{202e}y\\u{2066}\\u{200e}\\u{200f}"),
            ("a\u{200b}b\u{feff}c\u{2060}d\u{ad}", "a\\u{200b}b\\u{feff}c\\u{2060}d\\u{ad}"),
            ("\u{e0041}\u{e01ef}\u{fe0f}", "\\u{e0041}\\u{e01ef}\\u{fe0f}"),
            (
                "a\u{2028}b\u{2029}c\u{a0}d\u{3000}e\u{2800}",
                "a\\u{2028}b\\u{2029}c\\u{a0}d\\u{3000}e\\u{2800}",
            ),
            ("zeile\n\täöü 日本語 ✅", "zeile\n\täöü 日本語 ✅"),
        ] {
            assert_eq!(reveal_hidden(text), shown);
        }
    }
}
