//! Reads lines of a file, forwards and backwards, by `pread`, with bounded memory.
//!
//! The file may grow meanwhile; only bytes before a newline are ever returned. Start at
//! [`ForwardLineReader`] and [`BackwardLineReader`].

use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use memchr::{memchr, memrchr};

use crate::record::{
    LINE_BYTES_MAX, TranscriptEntry, TranscriptFault, TranscriptFaultKind, split_line,
};

// Small first reads keep short pages cheap; the blocks double for long scans.
const BLOCK_BYTES_MIN: usize = 16 * 1024;
const BLOCK_BYTES_MAX: usize = 1024 * 1024;

/// One line, without its newline.
pub(crate) struct FileLine<'a> {
    pub(crate) offset: u64,
    /// Length of the line in bytes.
    pub(crate) len: u64,
    /// `None` if the line is longer than [`LINE_BYTES_MAX`].
    pub(crate) bytes: Option<&'a [u8]>,
}

impl FileLine<'_> {
    /// Passes the line's records and faults to `found`, in order.
    pub(crate) fn split(&self, found: &mut dyn FnMut(TranscriptEntry)) {
        match self.bytes {
            Some(bytes) => split_line(self.offset, bytes, found),
            None => {
                let kind = TranscriptFaultKind::TooLong;
                found(TranscriptEntry::Fault(TranscriptFault {
                    offset: self.offset,
                    len: self.len,
                    kind,
                }));
            }
        }
    }
}

/// Reads lines towards the end of the file.
#[derive(Debug)]
pub(crate) struct ForwardLineReader {
    /// Bytes of the file from `offset - taken` on.
    buf: Vec<u8>,
    /// Number of bytes of `buf` that belong to lines already returned.
    taken: usize,
    /// Start of the next line.
    offset: u64,
    /// Offset of the next read.
    read_to: u64,
    block: usize,
    /// True while the next line is too long to keep, and its end is not in the file yet.
    is_skipping: bool,
}

impl ForwardLineReader {
    /// Starts at `offset`, which is the start of a line.
    pub(crate) fn new(offset: u64) -> Self {
        let (buf, block) = (Vec::new(), BLOCK_BYTES_MIN);
        Self { buf, taken: 0, offset, read_to: offset, block, is_skipping: false }
    }

    /// Returns the start of the next line.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the end of the file as of the last read.
    pub(crate) fn end(&self) -> u64 {
        self.read_to
    }

    /// Returns the next whole line; `None` at the end, even if part of a line is left there.
    pub(crate) fn next(&mut self, file: &File) -> io::Result<Option<FileLine<'_>>> {
        // The bytes that follow are the rest of that line, and no line of their own.
        if self.is_skipping && !self.is_cut_off(file)? {
            return self.skip_long_line(file);
        }
        let mut searched = self.taken;
        let mut in_parts = false;
        loop {
            if let Some(at) = memchr(b'\n', &self.buf[searched..]) {
                let end = searched + at;
                // A line within one read needs no check: it ends in a newline, and such bytes never
                // change.
                if in_parts && !self.is_unchanged(file, end)? {
                    (searched, in_parts) = (self.reread(file)?, false);
                    continue;
                }
                return Ok(Some(self.take(end)));
            }
            if self.buf.len() - self.taken > LINE_BYTES_MAX {
                return self.skip_long_line(file);
            }
            // Moves the partial line to the front, so the buffer holds at most one line and one
            // block.
            self.buf.drain(..self.taken);
            self.taken = 0;
            searched = self.buf.len();
            in_parts = searched > 0;
            if self.read_block(file)? == 0 {
                return Ok(None);
            }
        }
    }

    fn take(&mut self, end: usize) -> FileLine<'_> {
        let (start, offset, len) = (self.taken, self.offset, (end - self.taken) as u64);
        self.taken = end + 1;
        self.offset += len + 1;
        let bytes = (end - start <= LINE_BYTES_MAX).then(|| &self.buf[start..end]);
        FileLine { offset, len, bytes }
    }

    /// Returns true if a line that was assembled from several reads is still the same in the file.
    ///
    /// Between two reads, a torn tail may have been cut off and another line written there.
    fn is_unchanged(&self, file: &File, end: usize) -> io::Result<bool> {
        let mut found = vec![0; end - self.taken + 1];
        let len = read_at(file, &mut found, self.offset)?;
        Ok(found[..len] == self.buf[self.taken..=end])
    }

    /// Drops buffered bytes after the last line; returns the position to search from.
    fn reread(&mut self, file: &File) -> io::Result<usize> {
        self.restart();
        self.read_block(file)?;
        Ok(0)
    }

    /// Forgets what was read after the last line.
    fn restart(&mut self) {
        self.buf.clear();
        (self.taken, self.read_to, self.is_skipping) = (0, self.offset, false);
    }

    /// Returns true if the long line that was being skipped is gone: a torn tail was cut off. Another
    /// line may be in its place. All that was read of it is then forgotten.
    fn is_cut_off(&mut self, file: &File) -> io::Result<bool> {
        let is_cut = match file.metadata()?.len().cmp(&self.read_to) {
            Ordering::Less => true,
            // Nothing follows yet, so there is nothing to mistake.
            Ordering::Equal => false,
            Ordering::Greater => has_newline(file, self.offset, self.read_to)?,
        };
        if is_cut {
            self.restart();
        }
        Ok(is_cut)
    }

    /// Skips a line that is too long to keep.
    fn skip_long_line(&mut self, file: &File) -> io::Result<Option<FileLine<'_>>> {
        let offset = self.offset;
        self.is_skipping = true;
        loop {
            // The bytes of the line are dropped as they are read, which keeps memory bounded.
            self.buf.clear();
            self.taken = 0;
            let block = self.read_to;
            // A long line without a newline is not reported: it may still be in progress.
            if self.read_block(file)? == 0 {
                return Ok(None);
            }
            if let Some(at) = memchr(b'\n', &self.buf) {
                let len = block + at as u64 - offset;
                self.taken = at + 1;
                self.offset = offset + len + 1;
                self.is_skipping = false;
                return Ok(Some(FileLine { offset, len, bytes: None }));
            }
        }
    }

    fn read_block(&mut self, file: &File) -> io::Result<usize> {
        let old = self.buf.len();
        self.buf.resize(old + self.block, 0);
        let read = file.read_at(&mut self.buf[old..], self.read_to);
        // After an error too the buffer keeps only bytes that were read.
        let len = *read.as_ref().unwrap_or(&0);
        self.buf.truncate(old + len);
        self.read_to += len as u64;
        self.block = (self.block * 2).min(BLOCK_BYTES_MAX);
        read
    }
}

/// Reads lines towards the start of the file.
#[derive(Debug)]
pub(crate) struct BackwardLineReader {
    /// Bytes of the file from `start` on.
    buf: Vec<u8>,
    /// Buffer of the previous block, reused because new memory costs as much as a search.
    spare: Vec<u8>,
    start: u64,
    /// Number of bytes of `buf` that belong to lines not yet returned.
    left: usize,
    block: usize,
}

impl BackwardLineReader {
    /// Starts with the line that ends just before `end`, which is the start of a line.
    pub(crate) fn new(end: u64) -> Self {
        let (buf, spare) = (Vec::new(), Vec::new());
        Self { buf, spare, start: end, left: 0, block: BLOCK_BYTES_MIN }
    }

    /// Returns the previous line; `None` at the start of the file.
    pub(crate) fn next(&mut self, file: &File) -> io::Result<Option<FileLine<'_>>> {
        if self.left == 0 && !self.read_block(file)? {
            return Ok(None);
        }
        // The last byte is the newline of the wanted line.
        let mut unsearched = self.left - 1;
        loop {
            let line_start = match memrchr(b'\n', &self.buf[..unsearched]) {
                Some(newline) => newline + 1,
                None if self.start == 0 => 0,
                // The extra byte is the newline of the line itself.
                None if self.left > LINE_BYTES_MAX + 1 => {
                    return self.skip_long_line(file).map(Some);
                }
                None => {
                    let old = self.left;
                    self.read_block(file)?;
                    unsearched = self.left - old;
                    continue;
                }
            };
            let line_end = self.left - 1;
            self.left = line_start;
            let (offset, len) = (self.start + line_start as u64, (line_end - line_start) as u64);
            let bytes = &self.buf[line_start..line_end];
            let bytes = (bytes.len() <= LINE_BYTES_MAX).then_some(bytes);
            return Ok(Some(FileLine { offset, len, bytes }));
        }
    }

    /// Skips a line that is too long to keep.
    fn skip_long_line(&mut self, file: &File) -> io::Result<FileLine<'_>> {
        let line_end = self.start + self.left as u64 - 1;
        loop {
            self.left = 0;
            let found = self.read_block(file)?;
            let newline = memrchr(b'\n', &self.buf[..self.left]);
            if newline.is_some() || !found {
                self.left = newline.map_or(0, |at| at + 1);
                let offset = self.start + self.left as u64;
                return Ok(FileLine { offset, len: line_end - offset, bytes: None });
            }
        }
    }

    /// Puts the block before `start` in front of the remaining bytes; false at the start of the
    /// file.
    fn read_block(&mut self, file: &File) -> io::Result<bool> {
        // A long line is read in ever larger blocks, so that it is not copied once per block.
        let wanted = self.block.max(self.left);
        let block = usize::try_from(self.start).unwrap_or(usize::MAX).min(wanted);
        let start = self.start - block as u64;
        self.spare.resize(block + self.left, 0);
        file.read_exact_at(&mut self.spare[..block], start)?;
        self.spare[block..].copy_from_slice(&self.buf[..self.left]);
        std::mem::swap(&mut self.buf, &mut self.spare);
        self.block = (self.block * 2).min(BLOCK_BYTES_MAX);
        (self.start, self.left) = (start, block + self.left);
        Ok(block > 0)
    }
}

/// Returns true if there is a newline between two offsets.
fn has_newline(file: &File, mut start: u64, end: u64) -> io::Result<bool> {
    let mut buf = vec![0; BLOCK_BYTES_MAX];
    while start < end {
        let block = usize::try_from(end - start).unwrap_or(usize::MAX).min(buf.len());
        let len = read_at(file, &mut buf[..block], start)?;
        if len == 0 || memchr(b'\n', &buf[..len]).is_some() {
            return Ok(true);
        }
        start += len as u64;
    }
    Ok(false)
}

/// Returns the end of the last whole line among the first `len` bytes.
pub(crate) fn last_line_end(file: &File, len: u64) -> io::Result<u64> {
    let mut buf = vec![0; BLOCK_BYTES_MIN];
    let mut end = len;
    // Almost always the last byte is a newline.
    let mut block = 1;
    while end > 0 {
        let size = usize::try_from(end).unwrap_or(usize::MAX).min(block);
        let start = end - size as u64;
        file.read_exact_at(&mut buf[..size], start)?;
        if let Some(at) = memrchr(b'\n', &buf[..size]) {
            return Ok(start + at as u64 + 1);
        }
        end = start;
        block = buf.len();
    }
    Ok(0)
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buf.len() {
        match file.read_at(&mut buf[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            // A signal may interrupt a read before any byte arrives; nothing is lost by trying
            // again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn next(lines: &mut ForwardLineReader, file: &File) -> Option<String> {
        let line = lines.next(file).unwrap()?;
        Some(String::from_utf8(line.bytes.unwrap().to_owned()).unwrap())
    }

    #[test]
    fn a_torn_tail_that_was_cut_off_between_two_reads_is_not_mixed_with_what_came_after() {
        let mut file = tempfile::tempfile().unwrap();
        let mut lines = ForwardLineReader::new(0);
        file.write_all(b"first\n{\"torn\":\"aaaa").unwrap();
        assert_eq!(next(&mut lines, &file).as_deref(), Some("first"));
        assert_eq!(next(&mut lines, &file), None);
        file.set_len(6).unwrap();
        file.write_all_at(b"{\"next\":\"bbbbbbbbbb\"}\nlast\n", 6).unwrap();
        assert_eq!(next(&mut lines, &file).as_deref(), Some("{\"next\":\"bbbbbbbbbb\"}"));
        assert_eq!(next(&mut lines, &file).as_deref(), Some("last"));
        assert_eq!(next(&mut lines, &file), None);
    }

    /// Writes a line that is too long and not complete, and reads it.
    fn read_long_line(file: &mut File) -> ForwardLineReader {
        file.write_all(&vec![b'x'; LINE_BYTES_MAX + 2 * BLOCK_BYTES_MAX]).unwrap();
        let mut lines = ForwardLineReader::new(0);
        assert!(lines.next(file).unwrap().is_none());
        assert!(lines.next(file).unwrap().is_none());
        lines
    }

    #[test]
    fn the_rest_of_a_long_line_that_was_in_progress_is_no_line_of_its_own() {
        let mut file = tempfile::tempfile().unwrap();
        let mut lines = read_long_line(&mut file);
        file.write_all(b"{\"type\":\"forged\"}\nlast\n").unwrap();
        let long = lines.next(&file).unwrap().unwrap();
        let len = file.metadata().unwrap().len() - b"\nlast\n".len() as u64;
        assert_eq!((long.offset, long.len, long.bytes), (0, len, None));
        assert_eq!(next(&mut lines, &file).as_deref(), Some("last"));
    }

    #[test]
    fn a_long_line_that_was_cut_off_while_it_was_skipped_hides_no_later_line() {
        let mut file = tempfile::tempfile().unwrap();
        let mut lines = read_long_line(&mut file);
        file.set_len(0).unwrap();
        file.write_all_at(b"next\n", 0).unwrap();
        assert_eq!(next(&mut lines, &file).as_deref(), Some("next"));
    }

    #[test]
    fn both_directions_see_the_same_lines_across_blocks() {
        let mut file = tempfile::tempfile().unwrap();
        let lengths = [0, 1, 16_383, 16_384, 16_385, 5, 70_000, 0, 1_500_000, 3];
        let written: Vec<String> = lengths.iter().map(|&len| "x".repeat(len)).collect();
        file.write_all((written.join("\n") + "\n").as_bytes()).unwrap();
        let mut forward = ForwardLineReader::new(0);
        let mut there = Vec::new();
        while let Some(line) = next(&mut forward, &file) {
            there.push(line);
        }
        assert!(there == written);
        let mut backward = BackwardLineReader::new(file.metadata().unwrap().len());
        for expected in written.iter().rev() {
            let line = backward.next(&file).unwrap().unwrap();
            assert!(line.bytes.unwrap() == expected.as_bytes());
        }
        assert!(backward.next(&file).unwrap().is_none());
    }
}
