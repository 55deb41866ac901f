//! Search for many patterns in one pass, and for incomplete patterns at the end of a text.
//!
//! A folded matcher ignores line breaks, white space and their escapes, because programs break long
//! base64 and hex texts into lines. Its patterns contain none of these bytes. Start at
//! [`PatternMatcher`].

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::contiguous::NFA;

/// Longest gap in a folded match, in bytes. Bounds the text that a stream must hold back.
const GAP_BYTES_MAX: usize = 64;

/// First bytes of the sequences that a folded matcher ignores.
const GAPS: [u8; 5] = *b" \t\r\n\\";

/// Finds all occurrences of a set of patterns.
pub(super) struct PatternMatcher {
    automaton: NFA,
    start_filter: BytePairFilter,
    folded: bool,
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
        let automaton = NFA::builder()
            // The automaton's own prefilter does not know that base64 may be broken into lines.
            .prefilter(false)
            .build(&patterns)
            .expect("secrets are environment values, far below the automaton's 2^31 states");
        let beginnings = BytePairFilter::new(&patterns, folded);
        Self { automaton, start_filter: beginnings, folded }
    }

    /// Returns the ranges of all occurrences. Of those that end together, only the longest.
    pub(super) fn find(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut spans = Vec::new();
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
            state = self.automaton.next_state(Anchored::No, state, bytes[at]);
            (at, gap) = (at + 1, 0);
            if self.automaton.is_match(state) {
                // The longest match covers the shorter ones that end here.
                spans.push(self.match_start(bytes, at, self.longest(state))..at);
            }
        }
        spans
    }

    /// Returns the start of an incomplete pattern at the end of the bytes, or their length if none.
    pub(super) fn partial_match_start(&self, bytes: &[u8]) -> usize {
        let reach = self.automaton.max_pattern_len();
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
            state = self.automaton.next_state(Anchored::Yes, state, bytes[at]);
            (at, gap) = (at + 1, 0);
            if self.automaton.is_dead(state) {
                return false;
            }
        }
        true
    }

    fn start(&self, anchored: Anchored) -> StateID {
        self.automaton.start_state(anchored).expect("this automaton has both starts")
    }

    fn longest(&self, state: StateID) -> usize {
        (0..self.automaton.match_len(state))
            .map(|index| self.automaton.pattern_len(self.automaton.match_pattern(state, index)))
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
