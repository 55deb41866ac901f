//! Line numbers of large files: a sparse index beside the file, used only as a cache.
//!
//! `.<name>.idx` holds one entry per block of the file: the number of newlines up to the end of
//! that block. A deleted or damaged index costs a scan, never a wrong answer: the header binds it
//! to one file, and every entry carries a checksum and a fingerprint of its block. Entries are a
//! function of the file alone, so readers that extend the index at the same time write the same
//! bytes. Start at [`LineNumbers`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use memchr::memchr_iter;

use crate::disk::{OsDisk, folder_of, replace_file};
use crate::line_reader::read_at;

/// Files up to this size are scanned instead.
const INDEX_MIN_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes between two entries, which is the most that a lookup has to scan.
const BLOCK_BYTES: usize = 64 * 1024;

const MAGIC: [u8; 8] = *b"HEELIDX\x01";
const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
/// Number of bytes at the file's start that the header binds it to.
const HEAD_BYTES: usize = 1024;
/// Number of bytes at a block's end that its entry remembers.
const FINGERPRINT_BYTES: usize = 64;
/// Number of entries written at once.
const ENTRIES_AT_ONCE: usize = 4096;

/// Line numbers of a file.
pub(crate) struct LineNumbers<'a> {
    path: &'a Utf8Path,
    file: &'a File,
    /// End of the last whole line.
    whole: u64,
    index_from: u64,
    block: usize,
}

/// Offset in the file, and the number of lines before it.
#[derive(Clone, Copy)]
struct LineAnchor {
    offset: u64,
    lines: u64,
}

const START: LineAnchor = LineAnchor { offset: 0, lines: 0 };

impl<'a> LineNumbers<'a> {
    /// `whole` is the end of the last whole line.
    pub(crate) fn new(path: &'a Utf8Path, file: &'a File, whole: u64) -> Self {
        Self { path, file, whole, index_from: INDEX_MIN_FILE_BYTES, block: BLOCK_BYTES }
    }

    /// Returns the number of whole lines.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let anchor = match self.index()? {
            Some(index) => index.last()?.unwrap_or(START),
            None => START,
        };
        self.scan_to_line(anchor, u64::MAX).map(|reached| reached.lines)
    }

    /// Returns the start of the line with this number, or the end of the last line if there is
    /// none.
    pub(crate) fn line_start(&self, number: u64) -> io::Result<u64> {
        if number == 0 {
            return Ok(0);
        }
        let Some(index) = self.index()? else {
            return Ok(self.scan_to_line(START, number)?.offset);
        };
        if let Some(reached) = index.find(number)? {
            return Ok(reached);
        }
        // The entries contradict the file: discard the index and scan.
        drop(std::fs::remove_file(index_path(self.path)));
        Ok(self.scan_to_line(START, number)?.offset)
    }

    /// Scans from the anchor to the start of the line with this number, or to the end.
    fn scan_to_line(&self, from: LineAnchor, number: u64) -> io::Result<LineAnchor> {
        let mut buf = vec![0; self.block];
        let mut at = from;
        // Bytes after the last newline may still change, so they are never counted.
        while at.offset < self.whole && at.lines < number {
            let len = usize::try_from(self.whole - at.offset).unwrap_or(usize::MAX).min(buf.len());
            self.file.read_exact_at(&mut buf[..len], at.offset)?;
            match nth_newline(&buf[..len], number - at.lines) {
                Ok(newline) => {
                    return Ok(LineAnchor {
                        offset: at.offset + newline as u64 + 1,
                        lines: number,
                    });
                }
                Err(lines) => {
                    at = LineAnchor { offset: at.offset + len as u64, lines: at.lines + lines };
                }
            }
        }
        Ok(at)
    }

    /// Opens the index and updates it; `None` if this file is read without one.
    fn index(&self) -> io::Result<Option<LineIndex<'_>>> {
        if self.whole <= self.index_from {
            return Ok(None);
        }
        let header = self.header()?;
        let path = index_path(self.path);
        let mut index = match LineIndex::open(self, &path, &header)? {
            Some(index) => index,
            // Without a writable index every lookup costs a scan.
            None if replace_file(&OsDisk, &path, &header).is_err() => return Ok(None),
            None => match LineIndex::open(self, &path, &header)? {
                Some(index) => index,
                None => return Ok(None),
            },
        };
        index.extend()?;
        Ok(Some(index))
    }

    /// Returns the header of this file's index.
    fn header(&self) -> io::Result<[u8; HEADER_BYTES]> {
        let mut head = [0; HEAD_BYTES];
        let len = read_at(self.file, &mut head, 0)?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&(self.block as u64).to_le_bytes());
        header[16..24].copy_from_slice(&self.file.metadata()?.ino().to_le_bytes());
        header[24..].copy_from_slice(&hash(&[&head[..len]]).to_le_bytes());
        Ok(header)
    }
}

/// Index that belongs to its file.
struct LineIndex<'a> {
    numbers: &'a LineNumbers<'a>,
    file: File,
    writable: bool,
    /// Binds entries to the header.
    salt: [u8; 8],
    /// Number of usable entries: those of complete blocks that can no longer change.
    entries: u64,
}

impl<'a> LineIndex<'a> {
    /// Returns `None` if there is no index, if it belongs to another file, or if its end is
    /// damaged.
    fn open(
        numbers: &'a LineNumbers<'a>,
        path: &Utf8Path,
        header: &[u8; HEADER_BYTES],
    ) -> io::Result<Option<Self>> {
        // A reader of a foreign or read-only state directory may still use an existing index.
        let both = OpenOptions::new().read(true).write(true).open(path);
        let writable = both.is_ok();
        let Ok(file) = both.or_else(|_| File::open(path)) else { return Ok(None) };
        let mut found = [0; HEADER_BYTES];
        // An unreadable cache is not an error: the file itself has the answer.
        if file.read_exact_at(&mut found, 0).is_err() || found != *header {
            return Ok(None);
        }
        let Ok(stored) = file.metadata() else { return Ok(None) };
        let stored = stored.len().saturating_sub(HEADER_BYTES as u64);
        // A file that was shortened by hand has fewer blocks than entries.
        let entries = (stored / ENTRY_BYTES as u64).min(numbers.whole / numbers.block as u64);
        let salt = hash(&[header]).to_le_bytes();
        let index = Self { numbers, file, writable, salt, entries };
        // Only the last entry is compared with the file here. Each lookup also checks its own
        // entry.
        if index.entries > 0 && index.last()?.is_none() {
            return Ok(None);
        }
        Ok(Some(index))
    }

    /// Returns the position of the last entry; `None` if no entry is valid.
    fn last(&self) -> io::Result<Option<LineAnchor>> {
        let Some(last) = self.entries.checked_sub(1) else { return Ok(Some(START)) };
        let block_end = self.entries * self.numbers.block as u64;
        let mut end = [0; FINGERPRINT_BYTES];
        let len = self.numbers.block.min(FINGERPRINT_BYTES);
        self.numbers.file.read_exact_at(&mut end[..len], block_end - len as u64)?;
        Ok(self.entry(last, Some(&end[..len])).map(|lines| LineAnchor { offset: block_end, lines }))
    }

    /// Returns the number of lines that end up to the end of a block; `None` if the entry is
    /// damaged or, where the end of the block is given, was made from other bytes.
    fn entry(&self, block: u64, block_end: Option<&[u8]>) -> Option<u64> {
        // The checksum covers the block's number, so an entry at a wrong position is detected too.
        let mut entry = [0; ENTRY_BYTES];
        let at = HEADER_BYTES as u64 + block * ENTRY_BYTES as u64;
        self.file.read_exact_at(&mut entry, at).ok()?;
        let lines = u64::from_le_bytes(entry[..8].try_into().expect("a slice of 8 bytes"));
        let print: [u8; 4] = entry[8..12].try_into().expect("a slice of 4 bytes");
        let print = block_end.map_or(print, block_fingerprint);
        (entry == self.make_entry(block, lines, print)).then_some(lines)
    }

    fn make_entry(&self, block: u64, lines: u64, print: [u8; 4]) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&lines.to_le_bytes());
        entry[8..12].copy_from_slice(&print);
        let check = hash(&[&self.salt, &block.to_le_bytes(), &entry[..12]]).to_le_bytes();
        entry[12..].copy_from_slice(&check[..4]);
        entry
    }

    /// Adds the entries of all blocks that can no longer change.
    fn extend(&mut self) -> io::Result<()> {
        let Some(mut at) = self.last()? else { return Ok(()) };
        let block_bytes = self.numbers.block;
        // Only blocks before the last newline are entered, because later bytes may be cut by a
        // repair.
        let blocks = self.numbers.whole / block_bytes as u64;
        let mut block = vec![0; block_bytes];
        while self.writable && self.entries < blocks {
            let mut bytes = Vec::new();
            let first = self.entries;
            for number in first..blocks.min(first + ENTRIES_AT_ONCE as u64) {
                self.numbers.file.read_exact_at(&mut block, at.offset)?;
                at.offset += block_bytes as u64;
                at.lines += memchr_iter(b'\n', &block).count() as u64;
                let print =
                    block_fingerprint(&block[block_bytes.saturating_sub(FINGERPRINT_BYTES)..]);
                bytes.extend_from_slice(&self.make_entry(number, at.lines, print));
            }
            // Racing readers compute the same bytes for an offset, so they need no lock.
            let offset = HEADER_BYTES as u64 + first * ENTRY_BYTES as u64;
            // A cache that cannot grow (on a full disk, for example) is still correct for its
            // entries.
            self.writable = self.file.write_all_at(&bytes, offset).is_ok();
            if self.writable {
                self.entries += (bytes.len() / ENTRY_BYTES) as u64;
            }
        }
        Ok(())
    }

    /// Returns the start of the line with this number; `None` if the index proves to be wrong.
    fn find(&self, number: u64) -> io::Result<Option<u64>> {
        let (mut low, mut high) = (0, self.entries);
        // Finds the first block at the end of which at least `number` lines have ended.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle, None) {
                None => return Ok(None),
                Some(lines) if lines >= number => high = middle,
                Some(_) => low = middle + 1,
            }
        }
        // The line is after the last entry, in blocks that are not indexed.
        if low == self.entries {
            let Some(last) = self.last()? else { return Ok(None) };
            return Ok(Some(self.numbers.scan_to_line(last, number)?.offset));
        }
        let before = match low.checked_sub(1) {
            None => Some(0),
            Some(previous) => self.entry(previous, None),
        };
        let Some(before) = before else { return Ok(None) };
        let offset = low * self.numbers.block as u64;
        let mut block = vec![0; self.numbers.block];
        self.numbers.file.read_exact_at(&mut block, offset)?;
        let end = &block[block.len().saturating_sub(FINGERPRINT_BYTES)..];
        // The checksum proves that the entry is intact. Only the block's bytes prove that it is
        // current.
        if self.entry(low, Some(end)).is_none() {
            return Ok(None);
        }
        let newline = nth_newline(&block, number - before);
        Ok(newline.ok().map(|newline| offset + newline as u64 + 1))
    }
}

/// Returns the position of the n-th newline, from 1, or else the number of newlines.
fn nth_newline(bytes: &[u8], n: u64) -> Result<usize, u64> {
    // Counting is several times faster than finding each newline.
    let found = memchr_iter(b'\n', bytes).count() as u64;
    let place = usize::try_from(n - 1).ok().filter(|_| n <= found);
    place.and_then(|place| memchr_iter(b'\n', bytes).nth(place)).ok_or(found)
}

fn index_path(path: &Utf8Path) -> Utf8PathBuf {
    let name = path.file_name().unwrap_or_default();
    folder_of(path).join(format!(".{name}.idx"))
}

fn block_fingerprint(block_end: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = hash(&[block_end]).to_le_bytes();
    [a, b, c, d]
}

/// FNV-1a, implemented here because the value is stored: the standard hasher may change with a
/// release.
fn hash(parts: &[&[u8]]) -> u64 {
    parts.iter().copied().flatten().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::line_reader::last_line_end;

    const BLOCK: usize = 64;

    /// Compares lookups with a small index with lookups without one.
    #[track_caller]
    fn check(path: &Utf8Path) {
        let file = File::open(path).unwrap();
        let whole = last_line_end(&file, file.metadata().unwrap().len()).unwrap();
        let numbers =
            |index_from| LineNumbers { path, file: &file, whole, index_from, block: BLOCK };
        let (with, without) = (numbers(0), numbers(u64::MAX));
        let lines = without.count().unwrap();
        assert_eq!(with.count().unwrap(), lines);
        for number in (0..lines + 3).step_by(usize::try_from(lines / 20 + 1).unwrap()) {
            let found = with.line_start(number).unwrap();
            assert_eq!(found, without.line_start(number).unwrap(), "line {number} of {lines}");
        }
        assert_eq!(with.count().unwrap(), lines);
    }

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(temp.path().join("a.jsonl")).unwrap();
        (temp, path)
    }

    fn lines(from: u64, to: u64) -> String {
        (from..to).map(|n| format!("{n}{}\n", "x".repeat(n as usize % 90))).collect()
    }

    proptest! {
        #[test]
        fn an_index_that_grows_with_its_file_gives_the_same_answers(
            pieces in proptest::collection::vec("[\n\na-c]{0,100}", 1..8),
        ) {
            let (_temp, path) = folder();
            let mut file = File::create(&path).unwrap();
            for piece in pieces {
                file.write_all(piece.as_bytes()).unwrap();
                check(&path);
            }
        }
    }

    #[test]
    fn an_index_is_used_and_extended() {
        let (_temp, path) = folder();
        std::fs::write(&path, lines(0, 100)).unwrap();
        check(&path);
        let short = std::fs::read(index_path(&path)).unwrap();
        std::fs::write(&path, lines(0, 200)).unwrap();
        check(&path);
        let long = std::fs::read(index_path(&path)).unwrap();
        assert!(long.len() > short.len() && long.starts_with(&short));
    }

    #[test]
    fn every_damage_to_an_index_is_noticed() {
        let (_temp, path) = folder();
        std::fs::write(&path, lines(0, 60)).unwrap();
        check(&path);
        let index = index_path(&path);
        let good = std::fs::read(&index).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&index, &bad).unwrap();
            check(&path);
            std::fs::write(&index, &good[..at]).unwrap();
            check(&path);
            bad = good.clone();
            bad[at..].fill(0);
            std::fs::write(&index, &bad).unwrap();
            check(&path);
        }
        std::fs::write(&index, [&good[..], b"more than the file has"].concat()).unwrap();
        check(&path);
        std::fs::remove_file(&index).unwrap();
        check(&path);
        assert_eq!(std::fs::read(&index).unwrap(), good);
    }

    #[test]
    fn an_index_of_another_file_is_not_used() {
        let (_temp, path) = folder();
        std::fs::write(&path, lines(0, 60)).unwrap();
        check(&path);
        // Another file under this name, and other bytes in the same file.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, lines(7, 70)).unwrap();
        check(&path);
        std::fs::write(&path, lines(9, 90)).unwrap();
        check(&path);
        // The same beginning, over the length that the header covers.
        std::fs::write(&path, lines(0, 60)).unwrap();
        check(&path);
        std::fs::write(&path, lines(0, 60).replace("59x", "\n\n\n")).unwrap();
        check(&path);
    }

    #[test]
    fn where_no_index_can_be_written_the_answers_are_the_same() {
        let (_temp, path) = folder();
        std::fs::write(&path, lines(0, 60)).unwrap();
        // Not even root can replace a folder by a file.
        std::fs::create_dir_all(index_path(&path).join("in the way")).unwrap();
        check(&path);
    }

    #[test]
    fn readers_may_race_while_the_file_grows() {
        let (_temp, path) = folder();
        std::fs::write(&path, "").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| check(&path)));
            }
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            for n in 0..200 {
                file.write_all(lines(n, n + 3).as_bytes()).unwrap();
                if n % 20 == 0 {
                    drop(std::fs::remove_file(index_path(&path)));
                }
            }
        });
        check(&path);
    }
}
