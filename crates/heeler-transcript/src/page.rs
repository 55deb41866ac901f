//! Pages of a transcript, read from the end: the cost depends on the page, not on the file's size.
//!
//! Lines are numbered from 0 in file order. Every line that ends in a newline has a number,
//! including faults and blank lines; a torn tail has none. A page is contiguous and consists of
//! whole lines: every byte between its `start` and `end` was examined. Start at [`read_tail`].

use std::fs::File;
use std::io;

use camino::Utf8Path;

use crate::disk::DiskError;
use crate::line_index::LineNumbers;
use crate::line_reader::{BackwardLineReader, FileLine, last_line_end};
use crate::record::{TranscriptEntry, TranscriptFault, TranscriptFaultKind, TranscriptRecord};

/// A page ends early before a line that would bring its text above this size.
pub const PAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A page ends early when it has this many faults.
pub const PAGE_FAULTS_MAX: usize = 10_000;

/// End of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageBoundary {
    /// The end of the file.
    End,
    /// The start of the line with this number, or the end of the file if there is no such line.
    Line(u64),
    /// The start of the line that holds this byte, or the end of the file if the offset is beyond
    /// it.
    Offset(u64),
}

/// Consecutive records, and the faults between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptPage {
    /// Records in file order.
    pub records: Vec<TranscriptRecord>,
    /// Skipped faults in file order.
    pub faults: Vec<TranscriptFault>,
    /// Offset of the first byte examined; [`PageBoundary::Offset`] with this value requests the
    /// previous page. Zero if there is none.
    pub start: u64,
    /// Offset after the last line examined: the position to follow from.
    pub end: u64,
}

/// Returns the last `count` records of the file.
///
/// Fewer if the file has fewer, or if [`PAGE_BYTES_MAX`] or [`PAGE_FAULTS_MAX`] was reached; more
/// only if the first line of the page holds several glued records.
pub fn read_tail(path: &Utf8Path, count: usize) -> Result<TranscriptPage, DiskError> {
    read_range(path, PageBoundary::End, count)
}

/// Returns the last `count` records before a position in the file.
///
/// Otherwise like [`read_tail`].
pub fn read_range(
    path: &Utf8Path,
    before: PageBoundary,
    count: usize,
) -> Result<TranscriptPage, DiskError> {
    let file = File::open(path).map_err(DiskError::at("open", path))?;
    retry_while_shrinking(|| read_page(path, &file, before, count))
        .map_err(DiskError::at("read", path))
}

/// Returns the number of lines, faults and blank lines included. It is the number of the next line.
pub fn count_lines(path: &Utf8Path) -> Result<u64, DiskError> {
    let file = File::open(path).map_err(DiskError::at("open", path))?;
    // The handle stays open across tries, so all tries read the same file.
    retry_while_shrinking(|| {
        let whole = last_line_end(&file, file.metadata()?.len())?;
        LineNumbers::new(path, &file, whole).count()
    })
    .map_err(DiskError::at("read", path))
}

fn read_page(
    path: &Utf8Path,
    file: &File,
    before: PageBoundary,
    count: usize,
) -> io::Result<TranscriptPage> {
    let len = file.metadata()?.len();
    // Readers take no lock. Bytes before the last newline never change, so the page is consistent.
    let whole = last_line_end(file, len)?;
    let end = match before {
        PageBoundary::End => whole,
        PageBoundary::Offset(offset) => last_line_end(file, offset.min(whole))?,
        PageBoundary::Line(number) => LineNumbers::new(path, file, whole).line_start(number)?,
    };
    let mut draft = TranscriptPageBuilder::default();
    draft.fill(file, end, count)?;
    let mut page = draft.finish(end);
    // The torn tail is reported only by the last page, to which it belongs.
    if end == whole && whole < len {
        page.faults.push(TranscriptFault {
            offset: whole,
            len: len - whole,
            kind: TranscriptFaultKind::TornTail,
        });
    }
    Ok(page)
}

/// Repeats a read that met the file's end too early: a torn tail may be cut off meanwhile.
pub(crate) fn retry_while_shrinking<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    // A tail is cut at most once per opening of a writer, so a few tries suffice.
    const TRIES: usize = 5;
    for _ in 1..TRIES {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            result => return result,
        }
    }
    read()
}

/// Page being read, newest entry first.
#[derive(Default)]
struct TranscriptPageBuilder {
    records: Vec<TranscriptRecord>,
    faults: Vec<TranscriptFault>,
    bytes: usize,
    start: Option<u64>,
}

impl TranscriptPageBuilder {
    fn fill(&mut self, file: &File, end: u64, count: usize) -> io::Result<()> {
        let mut lines = BackwardLineReader::new(end);
        while self.records.len() < count && self.faults.len() < PAGE_FAULTS_MAX {
            let Some(line) = lines.next(file)? else { break };
            let len = line.bytes.map_or(0, <[u8]>::len);
            // The first line is taken whatever its size. Otherwise a reader could never pass it.
            if self.bytes > 0 && self.bytes + len > PAGE_BYTES_MAX {
                break;
            }
            self.bytes += len;
            self.start = Some(line.offset);
            self.add(&line);
        }
        Ok(())
    }

    fn add(&mut self, line: &FileLine<'_>) {
        let (records, faults) = (self.records.len(), self.faults.len());
        line.split(&mut |entry| match entry {
            TranscriptEntry::Record(record) => self.records.push(record),
            TranscriptEntry::Fault(fault) => self.faults.push(fault),
        });
        // The page is collected from its end, so records of one line are reversed with the others.
        self.records[records..].reverse();
        self.faults[faults..].reverse();
    }

    fn finish(mut self, end: u64) -> TranscriptPage {
        self.records.reverse();
        self.faults.reverse();
        let start = self.start.unwrap_or(end);
        TranscriptPage { records: self.records, faults: self.faults, start, end }
    }
}
