//! Lines of a log with marks that stay what they are when the log is set aside: whoever reads it goes on
//! exactly where they were, also with another daemon. Start at [`MarkedLines`].

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::str::FromStr;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::plain;
use sha2::{Digest as _, Sha256};

use super::numbers;

/// How much of a log is read at once.
const READ_BYTES: usize = 256 << 10;

/// The longest line that is told whole; a longer one is told in pieces of this length.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Names a line of a log. A log is known by its first line, whatever it is called by now: that has a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogMark {
    log: String,
    line: u64,
}

impl fmt::Display for LogMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.log, self.line)
    }
}

/// It names no line of a log.
#[derive(Debug, PartialEq, Eq)]
pub struct NoMark;

impl FromStr for LogMark {
    type Err = NoMark;

    fn from_str(text: &str) -> Result<LogMark, NoMark> {
        let (log, line) = text.split_once('-').ok_or(NoMark)?;
        let is_hash = log.len() == 16 && log.bytes().all(|byte| byte.is_ascii_hexdigit());
        match line.parse::<u64>() {
            Ok(line) if is_hash && line.to_string() == text[17..] => {
                Ok(LogMark { log: log.to_owned(), line })
            }
            _ => Err(NoMark),
        }
    }
}

/// Reads a log and those that were set aside, from a place on.
#[derive(Debug)]
pub struct MarkedLines {
    path: Utf8PathBuf,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: BufReader<File>,
    identity: (u64, u64),
    /// What its first line is known by, once it has one.
    name: Option<String>,
    /// How many lines were read.
    line: u64,
    /// How many of them are not told.
    skip: u64,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl MarkedLines {
    /// Begins behind a line; `None` if its log is gone.
    pub fn after(path: &Utf8Path, mark: &LogMark) -> io::Result<Option<MarkedLines>> {
        for candidate in logs(path)? {
            let Some(mut open) = Open::new(&candidate)? else { continue };
            if open.name()? == Some(&mark.log) {
                open.skip = mark.line.saturating_add(1);
                return Ok(Some(MarkedLines { path: path.to_owned(), open: Some(open) }));
            }
        }
        Ok(None)
    }

    /// Begins so that the last `count` lines are told.
    pub fn last(path: &Utf8Path, count: usize) -> io::Result<MarkedLines> {
        let mut wanted = count as u64;
        let mut found = None;
        for candidate in logs(path)? {
            let Some(mut open) = Open::new(&candidate)? else { continue };
            let lines = count_lines(&candidate)?;
            open.skip = lines.saturating_sub(wanted);
            wanted = wanted.saturating_sub(lines);
            found = Some(open);
            if wanted == 0 {
                break;
            }
        }
        Ok(MarkedLines { path: path.to_owned(), open: found })
    }

    /// Returns lines that are there and were not told yet; none where the newest log ends now.
    pub fn more(&mut self) -> io::Result<Vec<(LogMark, String)>> {
        let mut lines = Vec::new();
        loop {
            // Looked for before it is read: a log that was set aside by then gets no more lines.
            let newer = self.newer()?;
            let Some(open) = &mut self.open else {
                self.open = match newer {
                    Some(newer) => Open::new(&newer)?,
                    None => return Ok(lines),
                };
                continue;
            };
            let is_at_end = open.read(&mut lines)?;
            if !is_at_end || (newer.is_none() && !lines.is_empty()) {
                return Ok(lines);
            }
            let Some(newer) = newer else { return Ok(lines) };
            open.end(&mut lines);
            // If it was set aside meanwhile, its name is another's; the next look finds it.
            if self.newer()?.as_ref() != Some(&newer) {
                return Ok(lines);
            }
            self.open = Open::new(&newer)?;
        }
    }

    /// Returns the log that follows the one that is read: the oldest if that is gone, none if it is the
    /// newest.
    fn newer(&self) -> io::Result<Option<Utf8PathBuf>> {
        let logs = logs(&self.path)?;
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

/// Lists a log and those that were set aside, the newest first.
fn logs(path: &Utf8Path) -> io::Result<Vec<Utf8PathBuf>> {
    let mut numbers = numbers(path)?;
    numbers.sort_unstable();
    let newest = path.symlink_metadata().is_ok().then(|| path.to_owned());
    let older = numbers.into_iter().map(|number| Utf8PathBuf::from(format!("{path}.{number}")));
    Ok(newest.into_iter().chain(older).collect())
}

fn count_lines(path: &Utf8Path) -> io::Result<u64> {
    let mut file = BufReader::with_capacity(READ_BYTES, plain::open(path)?);
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

impl Open {
    /// Opens a log at its beginning; `None` if it has gone meanwhile.
    fn new(path: &Utf8Path) -> io::Result<Option<Open>> {
        let file = match plain::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let found = file.metadata()?;
        Ok(Some(Open {
            file: BufReader::new(file),
            identity: (found.dev(), found.ino()),
            name: None,
            line: 0,
            skip: 0,
            rest: Vec::new(),
        }))
    }

    /// Returns what the log is known by, once its first line is whole.
    fn name(&mut self) -> io::Result<Option<&String>> {
        if self.name.is_none() {
            let mut first = Vec::new();
            let mut file = BufReader::new(self.file.get_ref().try_clone()?);
            io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
            file.take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut first)?;
            // The clone shares its place with the file that is read.
            io::Seek::seek(&mut self.file, io::SeekFrom::Start(0))?;
            if first.ends_with(b"\n") || first.len() == LINE_BYTES_MAX {
                let hash = Sha256::digest(&first);
                self.name = Some(hash[..8].iter().map(|byte| format!("{byte:02x}")).collect());
            }
        }
        Ok(self.name.as_ref())
    }

    /// Reads some lines; says whether the log ends here.
    fn read(&mut self, lines: &mut Vec<(LogMark, String)>) -> io::Result<bool> {
        if self.line == 0 && self.rest.is_empty() && self.name()?.is_none() {
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
                self.tell(lines);
            }
        }
        Ok(false)
    }

    /// Tells what is left of a log that gets no more lines.
    fn end(&mut self, lines: &mut Vec<(LogMark, String)>) {
        if !self.rest.is_empty() && self.name.is_some() {
            self.tell(lines);
        }
    }

    fn tell(&mut self, lines: &mut Vec<(LogMark, String)>) {
        let bytes = std::mem::take(&mut self.rest);
        let line = self.line;
        self.line += 1;
        if line < self.skip {
            return;
        }
        let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
        let log = self.name.clone().expect("a log is named before it is read");
        lines.push((LogMark { log, line }, text));
    }
}
