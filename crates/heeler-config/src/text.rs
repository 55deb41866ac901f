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
