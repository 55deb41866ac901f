//! Reads log lines with cursors that stay valid when the log is rotated: a reader continues exactly
//! at its last line, also with another daemon.
//!
//! Start at [`LogLineReader`].

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::str::FromStr;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::untrusted_file;
use sha2::{Digest as _, Sha256};

use super::rotated_numbers;

/// Number of bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// Maximum length of a line. Longer ones are split into pieces of this length.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Identifies a line of a log. The log is identified by the hash of its first line, which contains
/// a time, so renaming does not change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogCursor {
    log: String,
    line: u64,
}

impl fmt::Display for LogCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.log, self.line)
    }
}

/// The text is not a valid cursor.
#[derive(Debug, PartialEq, Eq)]
pub struct LogCursorParseError;

impl FromStr for LogCursor {
    type Err = LogCursorParseError;

    fn from_str(text: &str) -> Result<LogCursor, LogCursorParseError> {
        let (log, line) = text.split_once('-').ok_or(LogCursorParseError)?;
        let is_hash = log.len() == 16 && log.bytes().all(|byte| byte.is_ascii_hexdigit());
        match line.parse::<u64>() {
            Ok(line) if is_hash && line.to_string() == text[17..] => {
                Ok(LogCursor { log: log.to_owned(), line })
            }
            _ => Err(LogCursorParseError),
        }
    }
}

/// Reads a log, including its rotated files, from a given line on.
#[derive(Debug)]
pub struct LogLineReader {
    path: Utf8PathBuf,
    open: Option<OpenLogFile>,
}

#[derive(Debug)]
struct OpenLogFile {
    file: BufReader<File>,
    identity: (u64, u64),
    /// Identity of the log, once its first line is complete.
    name: Option<String>,
    /// Number of lines read.
    line: u64,
    /// Number of lines to skip before returning any.
    skip: u64,
    /// Bytes of an incomplete last line.
    rest: Vec<u8>,
}

impl LogLineReader {
    /// Starts after a line; `None` if its log no longer exists.
    pub fn after(path: &Utf8Path, mark: &LogCursor) -> io::Result<Option<LogLineReader>> {
        for candidate in list_logs(path)? {
            let Some(mut open) = OpenLogFile::new(&candidate)? else { continue };
            if open.identify_log()? == Some(&mark.log) {
                open.skip = mark.line.saturating_add(1);
                return Ok(Some(LogLineReader { path: path.to_owned(), open: Some(open) }));
            }
        }
        Ok(None)
    }

    /// Starts at the last `count` lines.
    pub fn last(path: &Utf8Path, count: usize) -> io::Result<LogLineReader> {
        let mut wanted = count as u64;
        let mut found = None;
        for candidate in list_logs(path)? {
            let Some(mut open) = OpenLogFile::new(&candidate)? else { continue };
            // Lines are counted in the whole file, because a cursor contains the number of the
            // line.
            let lines = count_lines(&candidate)?;
            open.skip = lines.saturating_sub(wanted);
            wanted = wanted.saturating_sub(lines);
            found = Some(open);
            if wanted == 0 {
                break;
            }
        }
        Ok(LogLineReader { path: path.to_owned(), open: found })
    }

    /// Returns further lines; empty at the current end of the newest log.
    pub fn read_more(&mut self) -> io::Result<Vec<(LogCursor, String)>> {
        let mut lines = Vec::new();
        loop {
            // Look for the next log before reading: if there is one, the current log gets no more
            // lines.
            let newer = self.next_log()?;
            let Some(open) = &mut self.open else {
                self.open = match newer {
                    Some(newer) => OpenLogFile::new(&newer)?,
                    None => return Ok(lines),
                };
                continue;
            };
            let is_at_end = open.read(&mut lines)?;
            if !is_at_end || (newer.is_none() && !lines.is_empty()) {
                return Ok(lines);
            }
            let Some(newer) = newer else { return Ok(lines) };
            open.flush_partial_line(&mut lines);
            // If the logs were rotated in the meantime, the name refers to another file; the next
            // call finds it.
            if self.next_log()?.as_ref() != Some(&newer) {
                return Ok(lines);
            }
            self.open = OpenLogFile::new(&newer)?;
        }
    }

    /// Returns the log that follows the current one: the oldest if the current one no longer
    /// exists, `None` if it is the newest.
    fn next_log(&self) -> io::Result<Option<Utf8PathBuf>> {
        let logs = list_logs(&self.path)?;
        let Some(open) = &self.open else { return Ok(logs.into_iter().next()) };
        let is_open = |path: &Utf8PathBuf| {
            let found = path.symlink_metadata().map(|found| (found.dev(), found.ino()));
            found.is_ok_and(|found| found == open.identity)
        };
        match logs.iter().position(is_open) {
            Some(0) => Ok(None),
            Some(at) => Ok(logs.into_iter().nth(at - 1)),
            None => Ok(logs.into_iter().next_back()),
        }
    }
}

/// Lists a log and its rotated files, newest first.
fn list_logs(path: &Utf8Path) -> io::Result<Vec<Utf8PathBuf>> {
    let mut numbers = rotated_numbers(path)?;
    numbers.sort_unstable();
    let newest = path.symlink_metadata().is_ok().then(|| path.to_owned());
    let older = numbers.into_iter().map(|number| Utf8PathBuf::from(format!("{path}.{number}")));
    Ok(newest.into_iter().chain(older).collect())
}

fn count_lines(path: &Utf8Path) -> io::Result<u64> {
    let mut file = BufReader::with_capacity(READ_BYTES, untrusted_file::open(path)?);
    let mut lines = 0;
    loop {
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(lines);
        }
        lines += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let read = bytes.len();
        file.consume(read);
    }
}

impl OpenLogFile {
    /// Opens a log at its start; `None` if it no longer exists.
    fn new(path: &Utf8Path) -> io::Result<Option<OpenLogFile>> {
        let file = match untrusted_file::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let found = file.metadata()?;
        Ok(Some(OpenLogFile {
            file: BufReader::new(file),
            identity: (found.dev(), found.ino()),
            name: None,
            line: 0,
            skip: 0,
            rest: Vec::new(),
        }))
    }

    /// Returns the identity of the log once its first line is complete.
    fn identify_log(&mut self) -> io::Result<Option<&String>> {
        if self.name.is_none() {
            let mut first = Vec::new();
            let mut file = BufReader::new(self.file.get_ref().try_clone()?);
            io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
            file.take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut first)?;
            // The clone shares its file position with the original.
            io::Seek::seek(&mut self.file, io::SeekFrom::Start(0))?;
            // A first line that is not complete would give another hash later.
            if first.ends_with(b"\n") || first.len() == LINE_BYTES_MAX {
                let hash = Sha256::digest(&first);
                self.name = Some(hash[..8].iter().map(|byte| format!("{byte:02x}")).collect());
            }
        }
        Ok(self.name.as_ref())
    }

    /// Reads some lines; returns true at the end of the log.
    fn read(&mut self, lines: &mut Vec<(LogCursor, String)>) -> io::Result<bool> {
        if self.line == 0 && self.rest.is_empty() && self.identify_log()?.is_none() {
            return Ok(true);
        }
        let mut read = 0;
        while read < READ_BYTES {
            let room = LINE_BYTES_MAX.saturating_sub(self.rest.len()).max(1);
            let more = (&mut self.file).take(room as u64).read_until(b'\n', &mut self.rest)?;
            if more == 0 {
                return Ok(true);
            }
            read += more;
            if self.rest.ends_with(b"\n") || self.rest.len() >= LINE_BYTES_MAX {
                self.push_line(lines);
            }
        }
        Ok(false)
    }

    /// Returns the incomplete last line of a log that gets no more lines.
    fn flush_partial_line(&mut self, lines: &mut Vec<(LogCursor, String)>) {
        if !self.rest.is_empty() && self.name.is_some() {
            self.push_line(lines);
        }
    }

    fn push_line(&mut self, lines: &mut Vec<(LogCursor, String)>) {
        let bytes = std::mem::take(&mut self.rest);
        let line = self.line;
        self.line += 1;
        if line < self.skip {
            return;
        }
        let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
        let log = self.name.clone().expect("a log is named before it is read");
        lines.push((LogCursor { log, line }, text));
    }
}
