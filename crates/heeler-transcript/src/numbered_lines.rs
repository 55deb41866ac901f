//! Reads lines with their numbers, forwards from any line, so that a reader can continue where it
//! stopped.
//!
//! Numbers are those of [`crate::read_range()`]: every line has one, including blank lines and
//! faults. Start at [`NumberedLineReader`].

use std::fs::File;

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::DiskError;
use crate::line_index::LineNumbers;
use crate::line_reader::{ForwardLineReader, last_line_end};
use crate::page::retry_while_shrinking;
use crate::record::{TranscriptEntry, TranscriptRecord};

/// Reader of whole lines with their numbers, up to the current end of the file.
#[derive(Debug)]
pub struct NumberedLineReader {
    path: Utf8PathBuf,
    file: File,
    lines: ForwardLineReader,
    number: u64,
}

/// Line and its records: usually one, none for a fault, several where a newline was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberedLine {
    /// Number of the line, from 0.
    pub number: u64,
    pub records: Vec<TranscriptRecord>,
}

impl NumberedLineReader {
    /// Starts with the line of this number, or at the end of the file if it has fewer.
    pub fn open(path: &Utf8Path, from: u64) -> Result<NumberedLineReader, DiskError> {
        let file = File::open(path).map_err(DiskError::at("open", path))?;
        let (number, offset) = retry_while_shrinking(|| {
            let whole = last_line_end(&file, file.metadata()?.len())?;
            let numbers = LineNumbers::new(path, &file, whole);
            let offset = numbers.line_start(from)?;
            // The end of the file is also the start of the line after the last.
            let number = if offset == whole { numbers.count()? } else { from };
            Ok((number, offset))
        })
        .map_err(DiskError::at("read", path))?;
        Ok(NumberedLineReader {
            path: path.to_owned(),
            file,
            lines: ForwardLineReader::new(offset),
            number,
        })
    }

    /// Starts with the line of this number, which is known to begin at `offset`.
    pub fn open_at(
        path: &Utf8Path,
        number: u64,
        offset: u64,
    ) -> Result<NumberedLineReader, DiskError> {
        let file = File::open(path).map_err(DiskError::at("open", path))?;
        Ok(NumberedLineReader {
            path: path.to_owned(),
            file,
            lines: ForwardLineReader::new(offset),
            number,
        })
    }

    /// Returns the number of the next line.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the start of the next line.
    pub fn offset(&self) -> u64 {
        self.lines.offset()
    }

    /// Returns the next line; `None` at the current end of the file. It may be called again later.
    pub fn next_line(&mut self) -> Result<Option<NumberedLine>, DiskError> {
        let line = self.lines.next(&self.file).map_err(DiskError::at("read", &self.path))?;
        let Some(line) = line else { return Ok(None) };
        let mut records = Vec::new();
        line.split(&mut |entry| match entry {
            TranscriptEntry::Record(record) => records.push(record),
            // A fault takes a line number but has nothing to show.
            TranscriptEntry::Fault(_) => {}
        });
        let number = self.number;
        self.number += 1;
        Ok(Some(NumberedLine { number, records }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(lines: &mut NumberedLineReader) -> Vec<(u64, Vec<String>)> {
        let mut read = Vec::new();
        while let Some(NumberedLine { number, records }) = lines.next_line().unwrap() {
            read.push((number, records.into_iter().map(|record| record.text).collect()));
        }
        read
    }

    #[test]
    fn lines_keep_their_numbers_from_wherever_they_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("log.jsonl");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{\"a\":0}\n\nno\n{\"a\":3}{\"a\":4}\n{\"a\":5}\n{\"torn").unwrap();
        let all = read(&mut NumberedLineReader::open(&path, 0).unwrap());
        let texts: Vec<usize> = all.iter().map(|(_, records)| records.len()).collect();
        assert_eq!(texts, [1, 0, 0, 2, 1]);
        for from in 0..=5 {
            let mut lines = NumberedLineReader::open(&path, from).unwrap();
            assert_eq!(lines.number(), from);
            let mut again = NumberedLineReader::open_at(&path, from, lines.offset()).unwrap();
            assert_eq!(read(&mut lines), all[usize::try_from(from).unwrap()..], "from {from}");
            assert_eq!(read(&mut again), all[usize::try_from(from).unwrap()..], "from {from}");
        }
        let mut lines = NumberedLineReader::open(&path, 900).unwrap();
        assert_eq!((lines.number(), read(&mut lines)), (5, vec![]));
        file.write_all(b"\":1}\n").unwrap();
        assert_eq!(read(&mut lines), [(5, vec!["{\"torn\":1}".to_owned()])]);
    }
}
