//! A whole transcript from a place on, entry by entry, with the memory of one line.
//!
//! Start at [`Scan`].

use std::collections::VecDeque;
use std::fs::File;

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::DiskError;
use crate::line::{Entry, Fault, FaultKind};
use crate::lines::Forward;

/// Iterates over the records and faults of a file, oldest first.
///
/// It ends at the end that the file has when it gets there; a torn tail is its last fault.
#[derive(Debug)]
pub struct Scan {
    path: Utf8PathBuf,
    file: File,
    lines: Forward,
    found: VecDeque<Entry>,
    done: bool,
}

impl Scan {
    /// Starts at the beginning of the file.
    pub fn open(path: &Utf8Path) -> Result<Self, DiskError> {
        Self::open_at(path, 0)
    }

    /// Starts at `offset`, which is the start of a line: a page's `end` or a record's `next`.
    pub fn open_at(path: &Utf8Path, offset: u64) -> Result<Self, DiskError> {
        let file = File::open(path).map_err(DiskError::at("open", path))?;
        let lines = Forward::new(offset);
        Ok(Self { path: path.to_owned(), file, lines, found: VecDeque::new(), done: false })
    }

    fn read_line(&mut self) -> std::io::Result<()> {
        let Some(line) = self.lines.next(&self.file)? else {
            self.done = true;
            let (offset, end) = (self.lines.offset(), self.lines.end());
            if offset < end {
                let kind = FaultKind::TornTail;
                self.found.push_back(Entry::Fault(Fault { offset, len: end - offset, kind }));
            }
            return Ok(());
        };
        line.split(&mut |entry| self.found.push_back(entry));
        Ok(())
    }
}

impl Iterator for Scan {
    type Item = Result<Entry, DiskError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.found.is_empty() && !self.done {
            if let Err(error) = self.read_line() {
                self.done = true;
                return Some(Err(DiskError::at("read", &self.path)(error)));
            }
        }
        self.found.pop_front().map(Ok)
    }
}
