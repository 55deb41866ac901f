//! Splits the bytes that an agent prints into lines.
//!
//! Lines have a bounded size for any input: a longer line goes to a file in the run directory,
//! redacted, and only the file's name is passed on. Start at [`AgentLineReader`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::redact::SecretRedactor;
use heeler_transcript::untrusted_file;
use memchr::memchr;
use rustix::buffer::spare_capacity;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::text_decoder::RedactingTextDecoder;

/// Length limit of a line held in memory; a longer one is spilled to a file. An image that an agent
/// views appears twice in a line, as base64. The parsed form of a line is also bounded by
/// `heeler_model::message::VALUES_MAX`: a run takes about 70 MB in the worst case.
pub(crate) const AGENT_LINE_BYTES_MAX: usize = 16 << 20;

/// Limit on the total size of one run's spilled lines; the rest is omitted, and the omission is
/// reported.
pub(crate) const SPILL_BYTES_MAX: u64 = 256 << 20;

/// Length from which a line that fits in memory but cannot be parsed goes to a file. Of a shorter
/// one the beginning is recorded.
pub(crate) const KEPT_LINE_BYTES_MIN: usize = 64 << 10;

/// Read size: the capacity of a pipe.
const READ_BYTES: usize = 64 << 10;

/// An empty buffer with a larger capacity is freed.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// One line, without its newline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AgentOutputLine<'a> {
    Whole(&'a [u8]),
    /// Line too long to hold in memory.
    Spilled(SpilledLine),
}

/// File of a line that was too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SpilledLine {
    pub(crate) path: Utf8PathBuf,
    /// Length of the line.
    pub(crate) bytes: u64,
    /// Number of its bytes in the file, before redaction.
    pub(crate) kept: u64,
    /// Disk error that kept the file from being complete.
    pub(crate) fault: Option<String>,
}

impl std::fmt::Display for SpilledLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a line of {} bytes is too long to be read; {}", self.bytes, self.location_text())
    }
}

impl SpilledLine {
    /// Describes the location for a message.
    pub(crate) fn location_text(&self) -> String {
        let SpilledLine { path, bytes, kept, fault } = self;
        match (kept == bytes, fault) {
            (true, None) => format!("it is in {path}"),
            (_, None) => format!("its first {kept} bytes are in {path}"),
            (_, Some(fault)) => format!("it could not be kept in {path}: {fault}"),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LineLimits {
    /// Default: [`AGENT_LINE_BYTES_MAX`].
    pub(crate) line_bytes_max: usize,
    /// Default: [`SPILL_BYTES_MAX`].
    pub(crate) spill_bytes_max: u64,
}

impl Default for LineLimits {
    fn default() -> LineLimits {
        LineLimits { line_bytes_max: AGENT_LINE_BYTES_MAX, spill_bytes_max: SPILL_BYTES_MAX }
    }
}

/// Line splitter of a run, reused when its agent is started again.
#[derive(Debug)]
pub(crate) struct AgentLineReader {
    folder: Utf8PathBuf,
    redactor: SecretRedactor,
    limits: LineLimits,
    buffer: Vec<u8>,
    /// Start of the current line in the buffer.
    start: usize,
    /// Position up to which the buffer holds no newline.
    scanned: usize,
    /// Set while the current line is too long.
    spill: Option<LineSpillWriter>,
    spills: u64,
    spilled_bytes: u64,
}

impl AgentLineReader {
    /// Starts empty; long lines go to `folder`.
    pub(crate) fn new(
        folder: &Utf8Path,
        redactor: &SecretRedactor,
        limits: LineLimits,
    ) -> AgentLineReader {
        AgentLineReader {
            folder: folder.to_owned(),
            redactor: redactor.clone(),
            limits,
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            spill: None,
            spills: 0,
            spilled_bytes: 0,
        }
    }

    /// Returns true if no byte waits to become part of a line.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.buffer.len() && self.spill.is_none()
    }

    /// Reads once and returns the number of bytes, 0 at the end. Cancel-safe.
    pub(crate) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.make_room();
        from.read_buf(&mut self.buffer).await
    }

    /// Reads the available bytes without waiting.
    pub(crate) fn fill_now(&mut self, from: impl AsFd) -> io::Result<usize> {
        self.make_room();
        Ok(rustix::io::read(from, spare_capacity(&mut self.buffer))?)
    }

    fn make_room(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            // One line with an image may have grown the buffer to many megabytes.
            self.buffer.shrink_to(IDLE_BYTES_MAX);
            (self.start, self.scanned) = (0, 0);
        } else if self.start >= READ_BYTES {
            // Bytes are moved only when a whole read has been used up, so short lines cost little.
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.reserve(READ_BYTES);
    }

    /// Returns the next complete line, if any.
    pub(crate) fn next_line(&mut self) -> Option<AgentOutputLine<'_>> {
        let Some(at) = memchr(b'\n', &self.buffer[self.scanned..]) else {
            self.scanned = self.buffer.len();
            if self.spill.is_some() || self.scanned - self.start > self.limits.line_bytes_max {
                // What is known to be too long leaves the memory at once.
                self.spill_to(self.scanned);
            }
            return None;
        };
        let end = self.scanned + at;
        self.scanned = end + 1;
        Some(self.take_line(end, end + 1))
    }

    /// Returns the next line after the end of output, where the last line needs no newline.
    pub(crate) fn next_or_last_line(&mut self) -> Option<AgentOutputLine<'_>> {
        let end = match memchr(b'\n', &self.buffer[self.scanned..]) {
            Some(at) => self.scanned + at,
            None => self.buffer.len(),
        };
        // A spilled line without a newline counts too, although its bytes have left the buffer.
        if self.start == self.buffer.len() && self.spill.is_none() {
            return None;
        }
        let next = (end + 1).min(self.buffer.len());
        self.scanned = next;
        Some(self.take_line(end, next))
    }

    /// Takes the line up to `end`; the next one starts at `next`.
    fn take_line(&mut self, end: usize, next: usize) -> AgentOutputLine<'_> {
        if self.spill.is_some() || end - self.start > self.limits.line_bytes_max {
            self.spill_to(end);
        }
        if let Some(spill) = self.spill.take() {
            self.start = next;
            return AgentOutputLine::Spilled(spill.finish());
        }
        let start = std::mem::replace(&mut self.start, next);
        AgentOutputLine::Whole(&self.buffer[start..end])
    }

    /// Moves a complete line that cannot be parsed to a file.
    pub(crate) fn spill_line(&mut self, line: &[u8]) -> SpilledLine {
        let mut spill = self.begin_spill();
        spill.add(line, self.allocate_spill_bytes(line.len()));
        spill.finish()
    }

    /// Moves the bytes of the current line, up to `end`, to its file.
    fn spill_to(&mut self, end: usize) {
        let mut spill = self.spill.take().unwrap_or_else(|| self.begin_spill());
        let kept = self.allocate_spill_bytes(end - self.start);
        spill.add(&self.buffer[self.start..end], kept);
        self.spill = Some(spill);
        self.start = end;
    }

    fn begin_spill(&mut self) -> LineSpillWriter {
        self.spills += 1;
        let path = self.folder.join(format!("line-{}.txt", self.spills));
        match self.spilled_bytes < self.limits.spill_bytes_max {
            true => LineSpillWriter::start(path, &self.redactor),
            // Not even an empty file is created: there may be many such lines.
            false => LineSpillWriter::without_file(
                path,
                "the space for this run's long lines is used up",
            ),
        }
    }

    /// Charges up to `bytes` against the spill limit and returns the number granted.
    fn allocate_spill_bytes(&mut self, bytes: usize) -> usize {
        let remaining = self.limits.spill_bytes_max.saturating_sub(self.spilled_bytes);
        let kept = bytes.min(usize::try_from(remaining).unwrap_or(usize::MAX));
        self.spilled_bytes += kept as u64;
        kept
    }
}

/// Writer of a line that is too long.
#[derive(Debug)]
struct LineSpillWriter {
    file: Option<File>,
    text: RedactingTextDecoder,
    spilled: SpilledLine,
}

impl LineSpillWriter {
    fn start(path: Utf8PathBuf, redactor: &SecretRedactor) -> LineSpillWriter {
        let mut options = File::options();
        // Only an agent can have created a file with this name before.
        options.write(true).create_new(true).mode(0o600);
        let (file, fault) = match untrusted_file::open_with(&mut options, &path) {
            Ok(file) => (Some(file), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let spilled = SpilledLine { path, bytes: 0, kept: 0, fault };
        LineSpillWriter { file, text: RedactingTextDecoder::new(redactor), spilled }
    }

    fn without_file(path: Utf8PathBuf, fault: &str) -> LineSpillWriter {
        // Nothing is written, so there is nothing to redact either.
        let spilled = SpilledLine { path, bytes: 0, kept: 0, fault: Some(fault.to_owned()) };
        LineSpillWriter {
            file: None,
            text: RedactingTextDecoder::new(&SecretRedactor::new(&[])),
            spilled,
        }
    }

    fn add(&mut self, bytes: &[u8], kept: usize) {
        self.spilled.bytes += bytes.len() as u64;
        if kept > 0 {
            let text = self.text.push(&bytes[..kept]);
            if self.write(&text) {
                self.spilled.kept += kept as u64;
            }
        }
    }

    fn finish(mut self) -> SpilledLine {
        let text =
            std::mem::replace(&mut self.text, RedactingTextDecoder::new(&SecretRedactor::new(&[])));
        // If the line was cut, the part held back may be half of a secret.
        if self.spilled.kept == self.spilled.bytes {
            self.write(&text.finish());
        }
        // The row that names the file is written next; after a power loss the file must still
        // exist.
        if let Some(Err(error)) = self.file.take().map(|file| file.sync_data()) {
            self.spilled.fault = Some(error.to_string());
        }
        self.spilled
    }

    /// Writes to the file; the first error closes it, because a line that cannot be kept must not
    /// stop the run.
    fn write(&mut self, text: &str) -> bool {
        let Some(file) = &mut self.file else { return false };
        match file.write_all(text.as_bytes()) {
            Ok(()) => true,
            Err(error) => {
                self.spilled.fault = Some(error.to_string());
                self.file = None;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads all lines of the pieces; spilled lines appear as `<len>` and their kept text.
    fn read(pieces: &[&[u8]], limits: LineLimits, secrets: &[String]) -> Vec<Vec<u8>> {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let mut lines = AgentLineReader::new(folder, &SecretRedactor::new(secrets), limits);
        let mut all = Vec::new();
        let mut keep = |line: AgentOutputLine<'_>| match line {
            AgentOutputLine::Whole(bytes) => all.push(bytes.to_vec()),
            AgentOutputLine::Spilled(spilled) => {
                let text = std::fs::read_to_string(&spilled.path).unwrap();
                all.push(format!("<{} {} {text}>", spilled.bytes, spilled.kept).into_bytes());
            }
        };
        for piece in pieces {
            lines.make_room();
            lines.buffer.extend_from_slice(piece);
            while let Some(line) = lines.next_line() {
                keep(line);
            }
        }
        while let Some(line) = lines.next_or_last_line() {
            keep(line);
        }
        all
    }

    fn limits(line_bytes_max: usize, spill_bytes_max: u64) -> LineLimits {
        LineLimits { line_bytes_max, spill_bytes_max }
    }

    #[test]
    fn lines_are_found_however_they_are_cut_and_the_last_needs_no_newline() {
        let read = |pieces: &[&[u8]]| read(pieces, limits(100, 100), &[]);
        assert_eq!(read(&[b"a\nb", b"c\n", b"\n", b"d"]), [&b"a"[..], b"bc", b"", b"d"]);
        assert_eq!(read(&[b"\0\xff\n\r\n"]), [&b"\0\xff"[..], b"\r"]);
        assert!(read(&[b""]).is_empty());
    }

    #[test]
    fn a_long_line_is_spilled_and_those_around_it_are_not() {
        let pieces: [&[u8]; 4] = [b"ab\n0123", b"45678", b"9\ncd\n", b"01234567"];
        let expect = [&b"ab"[..], b"<10 10 0123456789>", b"cd", b"<8 8 01234567>"];
        assert_eq!(read(&pieces, limits(5, 100), &[]), expect);
    }

    #[test]
    fn what_is_spilled_is_bounded_over_the_whole_run() {
        let pieces: [&[u8]; 2] = [b"0123456789\n", b"0123456789\nab\n"];
        let expect = [&b"<10 10 0123456789>"[..], b"<10 2 01>", b"ab"];
        assert_eq!(read(&pieces, limits(5, 12), &[]), expect);
    }

    #[test]
    fn a_line_that_comes_when_the_space_is_filled_leaves_no_file() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let mut lines = AgentLineReader::new(folder, &SecretRedactor::new(&[]), limits(5, 8));
        lines.buffer.extend_from_slice(b"0123456789\n0123456789\n");
        for place in [
            format!("its first 8 bytes are in {folder}/line-1.txt"),
            format!(
                "it could not be kept in {folder}/line-2.txt: the space for this run's long lines is used up"
            ),
        ] {
            let Some(AgentOutputLine::Spilled(spilled)) = lines.next_line() else {
                panic!("not spilled")
            };
            assert_eq!((spilled.bytes, spilled.location_text()), (10, place));
        }
        assert_eq!(lines.spill_line(b"abc").kept, 0);
        assert_eq!(folder.read_dir_utf8().unwrap().count(), 1);
    }

    #[test]
    fn a_spilled_line_holds_no_secret_even_where_pieces_meet() {
        let pieces: [&[u8]; 2] = [b"0123456 hunter2", b"hunter2 789\n"];
        let expect = [b"<26 26 0123456 [secret] 789>".to_vec()];
        assert_eq!(read(&pieces, limits(5, 100), &["hunter2hunter2".to_owned()]), expect);
    }

    #[test]
    fn a_spilled_line_that_is_cut_within_a_secret_holds_no_half_of_it() {
        let secrets = ["hunter2hunter2".to_owned()];
        let line = b"0123456 hunter2hunter2 789\n";
        for budget in 8..23 {
            let kept = read(&[line], limits(5, budget), &secrets).remove(0);
            let kept = String::from_utf8(kept).unwrap();
            assert!(kept.starts_with(&format!("<26 {budget} 012345")), "{kept}");
            assert!(!kept.contains('h') && kept.contains("[secret]") == (budget == 22), "{kept}");
        }
    }

    #[test]
    fn a_folder_that_takes_no_file_costs_the_line_and_nothing_more() {
        let folder = Utf8Path::new("/nonexistent");
        let mut lines = AgentLineReader::new(folder, &SecretRedactor::new(&[]), limits(2, 100));
        lines.buffer.extend_from_slice(b"0123\nab\n");
        let Some(AgentOutputLine::Spilled(spilled)) = lines.next_line() else {
            panic!("not spilled")
        };
        assert_eq!((spilled.bytes, spilled.kept), (4, 0));
        assert!(spilled.fault.is_some());
        assert_eq!(lines.next_line(), Some(AgentOutputLine::Whole(b"ab")));
    }

    #[test]
    fn a_link_or_file_that_was_planted_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        std::fs::write(folder.join("mine"), "mine").unwrap();
        std::os::unix::fs::symlink("mine", folder.join("line-1.txt")).unwrap();
        std::fs::hard_link(folder.join("mine"), folder.join("line-2.txt")).unwrap();
        let mut lines = AgentLineReader::new(folder, &SecretRedactor::new(&[]), limits(2, 100));
        lines.buffer.extend_from_slice(b"0123\n4567\n");
        for _ in 0..2 {
            let Some(AgentOutputLine::Spilled(spilled)) = lines.next_line() else {
                panic!("not spilled")
            };
            assert!(spilled.fault.is_some(), "{spilled:?}");
        }
        assert_eq!(std::fs::read_to_string(folder.join("mine")).unwrap(), "mine");
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_between_lines(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20)
        ) {
            let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let whole = pieces.concat();
            let mut expect: Vec<Vec<u8>> =
                whole.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
            if expect.last().is_some_and(Vec::is_empty) {
                expect.pop();
            }
            prop_assert_eq!(read(&slices, limits(1000, 0), &[]), expect);
        }
    }
}
