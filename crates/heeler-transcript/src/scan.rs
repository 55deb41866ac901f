//! Reads a whole transcript from any position with the memory of one line: forwards entry by entry,
//! or backwards line by line.
//!
//! Start at [`TranscriptScanner`] and [`ReverseTranscriptReader`].

use std::collections::VecDeque;
use std::fs::File;

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::DiskError;
use crate::line_reader::{BackwardLineReader, ForwardLineReader, last_line_end};
use crate::page::retry_while_shrinking;
use crate::record::{
    TranscriptEntry, TranscriptFault, TranscriptFaultKind, TranscriptRecord, split_line,
};
use crate::untrusted_file;

/// Iterates over the records and faults of a file, oldest first.
///
/// It stops at the end that the file has when it gets there; a torn tail is its last fault.
#[derive(Debug)]
pub struct TranscriptScanner {
    path: Utf8PathBuf,
    file: File,
    lines: ForwardLineReader,
    found: VecDeque<TranscriptEntry>,
    done: bool,
}

impl TranscriptScanner {
    pub fn open(path: &Utf8Path) -> Result<Self, DiskError> {
        Self::open_at(path, 0)
    }

    /// Starts at `offset`, which is the start of a line: a page's `end` or a record's `next`.
    pub fn open_at(path: &Utf8Path, offset: u64) -> Result<Self, DiskError> {
        let file = File::open(path).map_err(DiskError::at("open", path))?;
        let lines = ForwardLineReader::new(offset);
        Ok(Self { path: path.to_owned(), file, lines, found: VecDeque::new(), done: false })
    }

    /// Returns the records, without the faults.
    pub fn records(self) -> impl Iterator<Item = Result<TranscriptRecord, DiskError>> {
        self.filter_map(|entry| match entry {
            Ok(TranscriptEntry::Record(record)) => Some(Ok(record)),
            Ok(TranscriptEntry::Fault(_)) => None,
            Err(error) => Some(Err(error)),
        })
    }

    fn read_line(&mut self) -> std::io::Result<()> {
        let Some(line) = self.lines.next(&self.file)? else {
            self.done = true;
            // A torn tail is reported last and once. It may become a line later, which this scan
            // leaves out.
            let (offset, end) = (self.lines.offset(), self.lines.end());
            if offset < end {
                let kind = TranscriptFaultKind::TornTail;
                self.found.push_back(TranscriptEntry::Fault(TranscriptFault {
                    offset,
                    len: end - offset,
                    kind,
                }));
            }
            return Ok(());
        };
        line.split(&mut |entry| self.found.push_back(entry));
        Ok(())
    }
}

impl Iterator for TranscriptScanner {
    type Item = Result<TranscriptEntry, DiskError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.found.is_empty() && !self.done {
            if let Err(error) = self.read_line() {
                // The position after a failed read is unknown, so the scan ends with the error.
                self.done = true;
                return Some(Err(DiskError::at("read", &self.path)(error)));
            }
        }
        self.found.pop_front().map(Ok)
    }
}

/// Reads the whole lines of a file towards its start. Lines are not parsed, so skipping one costs
/// only the search for its end.
///
/// It begins at the end that the file has when it is opened; a torn tail is ignored. A link is not
/// followed.
#[derive(Debug)]
pub struct ReverseTranscriptReader {
    path: Utf8PathBuf,
    file: File,
    lines: BackwardLineReader,
}

/// Whole line, exactly as in the file.
#[derive(Debug, Clone, Copy)]
pub struct RawLine<'l> {
    /// Byte offset of the line.
    pub offset: u64,
    /// Line without its newline; empty if the line exceeds the length limit of a record.
    pub bytes: &'l [u8],
}

impl RawLine<'_> {
    pub fn records(&self) -> Vec<TranscriptRecord> {
        let mut records = Vec::new();
        split_line(self.offset, self.bytes, &mut |entry| match entry {
            TranscriptEntry::Record(record) => records.push(record),
            TranscriptEntry::Fault(_) => {}
        });
        records
    }
}

impl ReverseTranscriptReader {
    /// Starts at the end of the file.
    pub fn open(path: &Utf8Path) -> Result<Self, DiskError> {
        Self::open_before(path, u64::MAX)
    }

    /// Starts with the last line that ends before `offset`.
    pub fn open_before(path: &Utf8Path, offset: u64) -> Result<Self, DiskError> {
        // Native sessions of other programs are read here too, so a link is not trusted.
        let file = untrusted_file::open(path).map_err(DiskError::at("open", path))?;
        let end =
            retry_while_shrinking(|| last_line_end(&file, file.metadata()?.len().min(offset)));
        let end = end.map_err(DiskError::at("read", path))?;
        Ok(Self { path: path.to_owned(), file, lines: BackwardLineReader::new(end) })
    }

    /// Returns the next line; `None` at the start of the file.
    pub fn next_line(&mut self) -> Result<Option<RawLine<'_>>, DiskError> {
        let line = self.lines.next(&self.file).map_err(DiskError::at("read", &self.path))?;
        Ok(line.map(|line| RawLine { offset: line.offset, bytes: line.bytes.unwrap_or(&[]) }))
    }
}
