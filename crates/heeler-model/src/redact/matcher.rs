//! Search for many patterns in one pass, and for incomplete patterns at the end of a text.
//!
//! A folded matcher ignores line breaks, white space and their escapes, because programs break long
//! base64 and hex texts into lines. Its patterns contain none of these bytes.
//!
//! The automaton that finds the patterns is built for the first text that contains the first bytes of
//! a pattern. Most runs end without such a text. Start at [`PatternMatcher`].

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::contiguous::NFA;

/// Longest gap in a folded match, in bytes. Bounds the text that a stream must hold back.
const GAP_BYTES_MAX: usize = 64;

/// First bytes of the sequences that a folded matcher ignores.
const GAPS: [u8; 5] = *b" \t\r\n\\";

/// Most bytes of a pattern that are compared before the automaton is used.
const BEGINNING_BYTES_MAX: usize = 8;

/// Finds all occurrences of a set of patterns.
pub(super) struct PatternMatcher {
    patterns: BTreeSet<String>,
    automaton: OnceLock<NFA>,
    start_filter: BytePairFilter,
    /// First bytes of each pattern, sorted and all of the same length.
    beginnings: Vec<Vec<u8>>,
    folded: bool,
}

/// Comparison of a text with the first bytes of all patterns.
#[derive(PartialEq)]
enum PatternBeginning {
    /// No pattern begins like the text.
    No,
    /// The text is too short to tell.
    Open,
    Yes,
}

/// Byte pairs that can begin a pattern. This filter alone skips nearly all text.
struct BytePairFilter(Box<[u64; 1024]>);

impl BytePairFilter {
    fn new(patterns: &BTreeSet<String>, folded: bool) -> Self {
        let mut pairs = Self(Box::new([0; 1024]));
        for pattern in patterns {
            // Secrets have at least eight bytes, so each pattern has a second one.
            let &[first, second, ..] = pattern.as_bytes() else {
                unreachable!("a form of a secret is as long as the secret, at least")
            };
            pairs.add(first, second);
            // A gap may follow the first byte of a pattern.
            GAPS.into_iter().filter(|_| folded).for_each(|gap| pairs.add(first, gap));
        }
        // The letter of an escape does not belong to a pattern: examine it with its backslash.
        (0..=u8::MAX).filter(|_| folded).for_each(|second| pairs.add(b'\\', second));
        pairs
    }

    fn add(&mut self, first: u8, second: u8) {
        let pair = usize::from(u16::from_le_bytes([first, second]));
        self.0[pair / 64] |= 1 << (pair % 64);
    }

    /// Returns the first position at which a pattern may begin. A single last byte always
    /// qualifies.
    fn first_candidate(&self, bytes: &[u8]) -> usize {
        let may_begin = |window: &[u8]| {
            let pair = usize::from(u16::from_le_bytes([window[0], window[1]]));
            self.0[pair / 64] >> (pair % 64) & 1 == 1
        };
        // A pattern may begin with the last byte, of which no pair is known.
        bytes.windows(2).position(may_begin).unwrap_or(bytes.len().saturating_sub(1))
    }
}

impl PatternMatcher {
    /// Creates a matcher for literal occurrences.
    pub(super) fn exact(patterns: impl Iterator<Item = String>) -> Self {
        Self::new(patterns, false)
    }

    /// Creates a matcher that allows white space inside an occurrence.
    pub(super) fn folded(patterns: impl Iterator<Item = String>) -> Self {
        Self::new(patterns, true)
    }

    fn new(patterns: impl Iterator<Item = String>, folded: bool) -> Self {
        let patterns: BTreeSet<String> = patterns.collect();
        let start_filter = BytePairFilter::new(&patterns, folded);
        let shortest = patterns.iter().map(String::len).min().unwrap_or_default();
        let length = shortest.min(BEGINNING_BYTES_MAX);
        let beginnings = patterns.iter().map(|pattern| pattern.as_bytes()[..length].to_vec());
        let mut beginnings: Vec<Vec<u8>> = beginnings.collect();
        beginnings.dedup();
        Self { patterns, automaton: OnceLock::new(), start_filter, beginnings, folded }
    }

    fn automaton(&self) -> &NFA {
        self.automaton.get_or_init(|| {
            NFA::builder()
                // The automaton's own prefilter does not know that base64 may be broken into lines.
                .prefilter(false)
                .build(&self.patterns)
                .expect("secrets are environment values, far below the automaton's 2^31 states")
        })
    }

    /// Compares the first significant bytes of a text with those of all patterns.
    fn beginning_of(&self, bytes: &[u8]) -> PatternBeginning {
        if self.folded && bytes.first().is_some_and(|first| GAPS.contains(first)) {
            return PatternBeginning::No;
        }
        let length = self.beginnings.first().map_or(0, Vec::len);
        let mut beginning = [0; BEGINNING_BYTES_MAX];
        let (mut count, mut at, mut gap) = (0, 0, 0);
        while count < length && at < bytes.len() {
            // A pattern never begins with a gap.
            let skip = if at == 0 { 0 } else { self.gap_len(&bytes[at..]) };
            if skip > 0 {
                (at, gap) = (at + skip, gap + skip);
                if gap > GAP_BYTES_MAX {
                    return PatternBeginning::No;
                }
                continue;
            }
            beginning[count] = bytes[at];
            (count, at, gap) = (count + 1, at + 1, 0);
        }
        let beginning = &beginning[..count];
        let place = self.beginnings.partition_point(|known| known[..count] < *beginning);
        match self.beginnings.get(place) {
            Some(known) if known[..count] == *beginning => match count < length {
                true => PatternBeginning::Open,
                false => PatternBeginning::Yes,
            },
            _ => PatternBeginning::No,
        }
    }

    /// Returns true if the beginning of a pattern occurs.
    fn may_occur_in(&self, bytes: &[u8]) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            at += self.start_filter.first_candidate(&bytes[at..]);
            if self.beginning_of(&bytes[at..]) == PatternBeginning::Yes {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Returns the ranges of all occurrences. Of those that end together, only the longest.
    pub(super) fn find(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut spans = Vec::new();
        if !self.may_occur_in(bytes) {
            return spans;
        }
        let automaton = self.automaton();
        let start = self.start(Anchored::No);
        let (mut state, mut at, mut gap) = (start, 0, 0);
        while at < bytes.len() {
            // Only at the start: within a pattern each byte counts.
            if state == start {
                at += self.start_filter.first_candidate(&bytes[at..]);
            }
            let skip = self.gap_len(&bytes[at..]);
            if skip > 0 {
                (at, gap) = (at + skip, gap + skip);
                // A longer gap separates two texts; without a limit a stream could never release
                // anything.
                if gap > GAP_BYTES_MAX {
                    state = start;
                }
                continue;
            }
            state = automaton.next_state(Anchored::No, state, bytes[at]);
            (at, gap) = (at + 1, 0);
            if automaton.is_match(state) {
                // The longest match covers the shorter ones that end here.
                spans.push(self.match_start(bytes, at, self.longest(state))..at);
            }
        }
        spans
    }

    /// Returns the start of an incomplete pattern at the end of the bytes, or their length if none.
    pub(super) fn partial_match_start(&self, bytes: &[u8]) -> usize {
        let reach = self.patterns.iter().map(String::len).max().unwrap_or_default();
        // Each byte of a pattern may be followed by a gap.
        let reach = if self.folded { reach * (GAP_BYTES_MAX + 1) } else { reach };
        let first = bytes.len().saturating_sub(reach);
        (first..bytes.len())
            // The first position is the earliest one, so nothing before it can be part of a secret.
            .find(|&from| self.is_partial_match(&bytes[from..]))
            .unwrap_or(bytes.len())
    }

    /// Returns true if all of the bytes together are a prefix of a longer pattern.
    fn is_partial_match(&self, bytes: &[u8]) -> bool {
        match self.beginning_of(bytes) {
            PatternBeginning::No => return false,
            // No pattern is so short, so the text is the beginning of one.
            PatternBeginning::Open => return true,
            PatternBeginning::Yes => {}
        }
        let automaton = self.automaton();
        let mut state = self.start(Anchored::Yes);
        let (mut at, mut gap) = (0, 0);
        while at < bytes.len() {
            // A pattern never begins with a gap, so the text before it can be released.
            let skip = if at == 0 { 0 } else { self.gap_len(&bytes[at..]) };
            if skip > 0 {
                (at, gap) = (at + skip, gap + skip);
                if gap > GAP_BYTES_MAX {
                    return false;
                }
                continue;
            }
            state = automaton.next_state(Anchored::Yes, state, bytes[at]);
            (at, gap) = (at + 1, 0);
            if automaton.is_dead(state) {
                return false;
            }
        }
        true
    }

    fn start(&self, anchored: Anchored) -> StateID {
        self.automaton().start_state(anchored).expect("this automaton has both starts")
    }

    fn longest(&self, state: StateID) -> usize {
        let automaton = self.automaton();
        (0..automaton.match_len(state))
            .map(|index| automaton.pattern_len(automaton.match_pattern(state, index)))
            .max()
            .expect("a matching state has a pattern")
    }

    /// Returns the number of leading bytes that a folded matcher ignores. A backslash at the very
    /// end counts as ignored, because it may begin such a sequence.
    fn gap_len(&self, bytes: &[u8]) -> usize {
        match bytes[0] {
            b' ' | b'\t' | b'\r' | b'\n' if self.folded => 1,
            b'\\' if self.folded => {
                // Bounded, so that a long run of backslashes does not cost quadratic time.
                let run = bytes.iter().take(GAP_BYTES_MAX + 1);
                let slashes = run.take_while(|&&byte| byte == b'\\').count();
                match bytes.get(slashes) {
                    _ if slashes > GAP_BYTES_MAX => 0,
                    Some(b'n' | b'r' | b't') => slashes + 1,
                    // An escaped slash stands for a slash of base64; only the backslash is skipped.
                    Some(b'/') | None => slashes,
                    Some(_) => 0,
                }
            }
            _ => 0,
        }
    }

    /// Returns the start of the last `count` significant bytes before `end`.
    fn match_start(&self, bytes: &[u8], end: usize, count: usize) -> usize {
        if !self.folded {
            return end - count;
        }
        let (mut at, mut left) = (end, count);
        while left > 0 && at > 0 {
            at -= 1;
            match bytes[at] {
                byte if GAPS.contains(&byte) => {}
                // The letter belongs to an escape, not to the pattern.
                b'n' | b'r' | b't' if at > 0 && bytes[at - 1] == b'\\' => {}
                _ => left -= 1,
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(folded: bool) -> PatternMatcher {
        let patterns = ["abcdefghij", "abcdefghkl", "zyxwvutsrq"].map(str::to_owned);
        PatternMatcher::new(patterns.into_iter(), folded)
    }

    #[test]
    fn only_the_beginning_of_a_pattern_needs_the_automaton() {
        for folded in [false, true] {
            let matcher = matcher(folded);
            let is_built = |text: &str| {
                drop(matcher.find(text.as_bytes()));
                matcher.partial_match_start(text.as_bytes());
                matcher.automaton.get().is_some()
            };
            assert!(!is_built(""));
            assert!(!is_built("abcdefg and zyxw, abcabcabc, a \\n\\n b"), "no whole beginning");
            assert!(!is_built("it ends with abcdef"), "the text is too short to tell");
            assert!(is_built("abcdefgh but not the rest"));
        }
        let found = matcher(true).find(b"a b\\nc d\n efgh ij");
        assert_eq!(found.as_slice(), std::slice::from_ref(&(0..17)));
        assert!(matcher(false).find(b"a bcdefghij").is_empty());
    }

    #[test]
    fn the_beginning_of_a_pattern_at_the_end_is_found_without_the_automaton() {
        let matcher = matcher(true);
        for (text, expected) in [("say abc", 4), ("say ab\\n", 4), ("say zy xw", 4), ("say q", 5)] {
            assert_eq!(matcher.partial_match_start(text.as_bytes()), expected, "{text}");
        }
        assert!(matcher.automaton.get().is_none());
    }
}
