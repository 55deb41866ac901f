//! Searches transcripts for a text or a regular expression, with ripgrep's own engine.
//!
//! The pattern is matched against the line in the file, JSON escapes included; only records are
//! returned. A torn tail is not searched. Start at [`search`].

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;

use camino::{Utf8Path, Utf8PathBuf};
use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use memchr::{memchr, memrchr};
use thiserror::Error;

use crate::disk::DiskError;
use crate::line_reader::last_line_end;
use crate::record::{LINE_BYTES_MAX, TranscriptEntry, TranscriptRecord, split_line};

/// The searcher holds one line, and grows its buffer by doubling.
const HEAP_BYTES_MAX: usize = 2 * LINE_BYTES_MAX;
const BLOCK_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub struct TranscriptQuery {
    pub pattern: SearchPattern,
    pub case: CaseSensitivity,
    /// Number of hits after which the search ends.
    pub hits_max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchPattern {
    /// Exact text.
    Literal(String),
    /// Regular expression, in the syntax of Rust's `regex` crate.
    Regex(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CaseSensitivity {
    Sensitive,
    Insensitive,
    /// Case-sensitive if the pattern has an upper-case letter.
    #[default]
    Smart,
}

/// Matching record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptHit<'a> {
    pub path: &'a Utf8Path,
    /// Number of its line, from 0.
    pub line: u64,
    pub record: TranscriptRecord,
}

/// Summary of a search.
#[derive(Debug, Default)]
pub struct TranscriptSearchOutcome {
    /// Number of matching records passed on.
    pub hits: usize,
    /// Number of matching lines not passed on because they are damaged or too long.
    pub faults: usize,
    /// Files that could not be read, or not to their end.
    pub unreadable: Vec<DiskError>,
    /// The search ended early, by `hits_max` or by the caller.
    pub ended_early: bool,
}

/// Invalid regular expression.
#[derive(Debug, Error)]
#[error("cannot search for {pattern:?}")]
pub struct SearchPatternError {
    pub pattern: String,
    #[source]
    pub source: grep_regex::Error,
}

/// Searches the files in the given order and passes every matching record to `on_hit`.
///
/// A file that cannot be read is reported in the result and does not end the search.
pub fn search(
    query: &TranscriptQuery,
    paths: &[Utf8PathBuf],
    on_hit: &mut dyn FnMut(TranscriptHit<'_>) -> ControlFlow<()>,
) -> Result<TranscriptSearchOutcome, SearchPatternError> {
    let matcher = build_matcher(query)?;
    let mut searcher = SearcherBuilder::new()
        .line_number(true)
        .heap_limit(Some(HEAP_BYTES_MAX))
        // A transcript with NUL bytes after a power loss is still searched to its end.
        .binary_detection(BinaryDetection::none())
        // Transcoding from another encoding would shift every offset.
        .bom_sniffing(false)
        .build();
    let mut searched = TranscriptSearchOutcome {
        ended_early: query.hits_max == 0,
        ..TranscriptSearchOutcome::default()
    };
    // The files come in the order of the caller, so a limit keeps the first hits of that order.
    for path in paths {
        if searched.ended_early {
            break;
        }
        let cuts = RefCell::new(Vec::new());
        let hits_left = query.hits_max - searched.hits;
        let hits = TranscriptHitSink {
            path,
            matcher: &matcher,
            cuts: &cuts,
            hits_left,
            out: &mut searched,
            on_hit,
        };
        // One unreadable file must not hide the hits of the others.
        if let Err(error) = search_file(&mut searcher, &matcher, &cuts, hits) {
            searched.unreadable.push(DiskError::at("search", path)(error));
        }
    }
    Ok(searched)
}

/// Matches a query against a text, as [`search`] does with files.
#[derive(Debug)]
pub struct LineMatcher(RegexMatcher);

impl LineMatcher {
    /// Compiles the query; fails as the search would.
    pub fn new(query: &TranscriptQuery) -> Result<LineMatcher, SearchPatternError> {
        build_matcher(query).map(LineMatcher)
    }

    /// Returns true if a line matches.
    pub fn matches(&self, line: &str) -> bool {
        // The matcher has no errors at run time, so only `Ok` occurs.
        matches!(self.0.is_match(line.as_bytes()), Ok(true))
    }
}

fn build_matcher(query: &TranscriptQuery) -> Result<RegexMatcher, SearchPatternError> {
    let mut builder = RegexMatcherBuilder::new();
    builder
        // The engine can skip whole blocks if it knows that no match spans two lines.
        .line_terminator(Some(b'\n'))
        .case_insensitive(query.case == CaseSensitivity::Insensitive)
        .case_smart(query.case == CaseSensitivity::Smart);
    let (built, pattern) = match &query.pattern {
        SearchPattern::Literal(text) => (builder.fixed_strings(true).build(text), text),
        SearchPattern::Regex(text) => (builder.build(text), text),
    };
    built.map_err(|source| SearchPatternError { pattern: pattern.clone(), source })
}

fn search_file(
    searcher: &mut Searcher,
    matcher: &RegexMatcher,
    cuts: &RefCell<Vec<u64>>,
    hits: TranscriptHitSink<'_>,
) -> io::Result<()> {
    let file = File::open(hits.path)?;
    // Bytes after the last newline may still change.
    let whole = last_line_end(&file, file.metadata()?.len())?;
    // Lines that are appended during the search are left out, so the search ends.
    let inner = file.take(whole);
    let reader = LineLimitingReader { inner, offset: 0, line_len: 0, max: LINE_BYTES_MAX, cuts };
    // Read and not mapped: a file that shrinks under a map would end the process.
    searcher.search_reader(matcher, reader, hits)
}

/// Puts a newline into lines that are too long, so that the searcher's memory stays bounded.
///
/// One byte is overwritten and none is added, so offsets stay true. The positions are in `cuts`.
struct LineLimitingReader<'a, R> {
    inner: R,
    offset: u64,
    /// Number of bytes read of the current line.
    line_len: usize,
    max: usize,
    cuts: &'a RefCell<Vec<u64>>,
}

impl<R: Read> Read for LineLimitingReader<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Reads less than the line limit at a time, so at most one cut is needed.
        let wanted = buf.len().min(BLOCK_BYTES).min(self.max);
        let read = self.inner.read(&mut buf[..wanted])?;
        let block = &mut buf[..read];
        let first_line = memchr(b'\n', block).unwrap_or(read);
        // Later lines of the block are shorter than the block, so only the first can be too long.
        if self.line_len + first_line > self.max {
            let cut = self.max - self.line_len;
            block[cut] = b'\n';
            self.cuts.borrow_mut().push(self.offset + cut as u64);
        }
        self.line_len = match memrchr(b'\n', block) {
            Some(newline) => read - newline - 1,
            None => self.line_len + read,
        };
        self.offset += read as u64;
        Ok(read)
    }
}

/// Turns matching lines of one file into hits.
struct TranscriptHitSink<'a> {
    path: &'a Utf8Path,
    matcher: &'a RegexMatcher,
    cuts: &'a RefCell<Vec<u64>>,
    hits_left: usize,
    out: &'a mut TranscriptSearchOutcome,
    on_hit: &'a mut dyn FnMut(TranscriptHit<'_>) -> ControlFlow<()>,
}

impl Sink for TranscriptHitSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let offset = found.absolute_byte_offset();
        let cuts = self.cuts.borrow();
        // A cut adds a line that the file does not have, so it is subtracted from the number.
        let cuts_before = cuts.partition_point(|&cut| cut < offset);
        let ends_at = offset + found.bytes().len() as u64 - 1;
        // A piece is part of a line that is too long: it starts after a cut or ends with one.
        let is_piece = offset.checked_sub(1).is_some_and(|at| cuts.binary_search(&at).is_ok())
            || cuts.binary_search(&ends_at).is_ok();
        let Some(line) = found.bytes().strip_suffix(b"\n").filter(|_| !is_piece) else {
            self.out.faults += 1;
            return Ok(true);
        };
        let number = found.line_number().expect("the searcher counts lines") - 1;
        Ok(self.report_line(number - cuts_before as u64, offset, line).is_continue())
    }
}

impl TranscriptHitSink<'_> {
    fn report_line(&mut self, number: u64, offset: u64, line: &[u8]) -> ControlFlow<()> {
        let mut records = Vec::new();
        split_line(offset, line, &mut |entry| match entry {
            TranscriptEntry::Record(record) => records.push(record),
            TranscriptEntry::Fault(_) => self.out.faults += 1,
        });
        // Not all glued records of a line need match.
        let is_match = |record: &TranscriptRecord| {
            matches!(self.matcher.is_match(record.text.as_bytes()), Ok(true))
        };
        for record in records.into_iter().filter(is_match) {
            let flow = (self.on_hit)(TranscriptHit { path: self.path, line: number, record });
            self.out.hits += 1;
            self.hits_left -= 1;
            // The limit counts records, not lines, because a line of glued records has several.
            if flow.is_break() || self.hits_left == 0 {
                self.out.ended_early = true;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_searched_as_a_file_is() {
        let finder = |pattern: SearchPattern, case: CaseSensitivity| {
            LineMatcher::new(&TranscriptQuery { pattern, case, hits_max: 1 })
                .map(|it| it.matches("A [secret] Sheep."))
        };
        let literal = |text: &str| SearchPattern::Literal(text.to_owned());
        assert!(finder(literal("[secret]"), CaseSensitivity::Smart).unwrap());
        assert!(finder(literal("sheep"), CaseSensitivity::Smart).unwrap());
        assert!(!finder(literal("SHEEP"), CaseSensitivity::Smart).unwrap());
        assert!(
            finder(SearchPattern::Regex("S.*p".to_owned()), CaseSensitivity::Sensitive).unwrap()
        );
        assert!(finder(SearchPattern::Regex("(".to_owned()), CaseSensitivity::Smart).is_err());
    }

    #[test]
    fn lines_that_are_too_long_are_cut_and_nothing_moves() {
        let text = b"ab\n0123456789\ncd\n01234567890123456789".repeat(20);
        let cuts = RefCell::new(Vec::new());
        let mut reader =
            LineLimitingReader { inner: &text[..], offset: 0, line_len: 0, max: 10, cuts: &cuts };
        let mut out = Vec::new();
        reader.read_to_end(&mut out).unwrap();
        assert!(out.split(|&byte| byte == b'\n').all(|line| line.len() <= 10));
        for (at, (&read, &written)) in text.iter().zip(&out).enumerate() {
            let cut = cuts.borrow().contains(&(at as u64));
            assert_eq!(written, if cut { b'\n' } else { read }, "at {at}");
            assert!(!cut || read != b'\n', "a newline was there already");
        }
        assert_eq!(out.len(), text.len());
        assert!(!cuts.borrow().is_empty());
    }
}
