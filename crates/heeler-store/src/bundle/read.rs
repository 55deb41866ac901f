//! Reads a session bundle. The whole file is checked before any of it is used.
//!
//! Start at [`open`].

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};

use base64::Engine as _;
use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::Session;
use heeler_transcript::{DiskError, untrusted_file};
use serde::Deserialize;
use serde_json::Value as Json;
use thiserror::Error;

use super::{
    BUNDLE_FORMAT, BUNDLE_HEAD_BYTES_MAX, BUNDLE_LINE_BYTES_MAX, BUNDLE_VERSION, BundleChecksums,
    BundlePartChecksum, BundlePartHasher, EVENTS, NATIVE, NATIVE_HEADER_BYTES_MAX, OWN,
    PLAIN_BUNDLE_VERSION, RepositoryLine, WORKSPACE, decode,
};
use crate::native::{DirectoryMove, NativeSessionHeader, is_description_small};

/// Reason why a file is not a usable bundle.
#[derive(Debug, Error)]
pub enum BundleOpenError {
    #[error("{path} is not a session that heeler exported")]
    NotABundle { path: Utf8PathBuf },
    /// A newer version of Heeler wrote it.
    #[error(
        "{path} has version {version}; this heeler reads versions up to {BUNDLE_VERSION}: upgrade it"
    )]
    Version { path: Utf8PathBuf, version: u64 },
    /// The file is truncated.
    #[error("{path} is cut off after line {line}; copy it again")]
    Truncated {
        path: Utf8PathBuf,
        /// The last complete line.
        line: u64,
    },
    /// The layout is not that of a bundle.
    #[error("{path} was changed: line {line} is not {expected}; use the original export")]
    UnexpectedLayout {
        path: Utf8PathBuf,
        line: u64,
        /// The text expected at that line.
        expected: &'static str,
    },
    /// A part does not match its checksum.
    #[error(
        "{path} was changed: its part `{part}`, which ends at line {line}, has another checksum; \
         use the original export"
    )]
    ChecksumMismatch {
        path: Utf8PathBuf,
        part: &'static str,
        /// Last line of the part.
        line: u64,
    },
    /// A line or part exceeds its limit.
    #[error("{path} has more than {most} bytes in line {line}")]
    TooLong {
        path: Utf8PathBuf,
        line: u64,
        /// The limit.
        most: u64,
    },
    #[error(transparent)]
    Read(#[from] DiskError),
}

/// A complete and unchanged bundle.
#[derive(Debug)]
pub struct SessionBundle {
    /// The session's record, as it was exported.
    pub session: Session,
    pub jobs: Vec<Json>,
    pub sums: BundleChecksums,
    pub(super) path: Utf8PathBuf,
    file: File,
    /// Session record and jobs, as they appear in the bundle.
    pub(super) head: Vec<String>,
    pub(super) events_part: BundlePartLocation,
    /// Part with Claude's native session file.
    pub(super) own_part: Option<BundlePartLocation>,
    /// Part with a native session of another program.
    pub(super) native_part: Option<BundlePartLocation>,
    pub(super) workspace_part: Option<BundlePartLocation>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct BundlePartLocation {
    offset: u64,
    lines: u64,
    /// The number of the line before the part.
    line: u64,
}

/// Opens a bundle and checks all of it.
pub fn open(path: &Utf8Path) -> Result<SessionBundle, BundleOpenError> {
    let failed = |source| DiskError { action: "read", path: path.to_owned(), source };
    // The file comes from another person, so links and pipes are refused.
    let file = untrusted_file::open(path).map_err(failed)?;
    // The checked file stays open, so a file that is replaced afterwards is not read.
    let again = file.try_clone().map_err(failed)?;
    let mut text = BundleLineReader::new(path, again);
    let version = first_line(&mut text)?;
    let (head, head_sum) = read_head(&mut text)?;
    let (events_at, events) = read_part(&mut text, EVENTS)?;
    let (own_at, own) = maybe_part(&mut text, OWN)?.unzip();
    // A bundle of version 1 has no such part, and is refused at its line.
    let native = match version {
        PLAIN_BUNDLE_VERSION => None,
        _ => maybe_part(&mut text, NATIVE)?,
    };
    let (native_at, native) = native.unzip();
    let (workspace_at, workspace) = maybe_part(&mut text, WORKSPACE)?.unzip();
    let sums = BundleChecksums { head: head_sum, events, own, native, workspace };
    // The session is parsed only now that all checksums are right.
    last_line(&mut text, &sums)?;
    let changed = |expected| text.changed(expected);
    let session = head.first().and_then(|line| line.strip_prefix("\"session\":"));
    let session = session.and_then(|line| serde_json::from_str(line.strip_suffix(',')?).ok());
    let session = session.ok_or_else(|| changed("a session"))?;
    // The first two lines and the last one frame the jobs.
    let jobs = head[2..head.len() - 1].iter().map(|line| {
        let line = line.strip_suffix(',').unwrap_or(line);
        serde_json::from_str(line).map_err(|_| changed("a job"))
    });
    let jobs = jobs.collect::<Result<_, _>>()?;
    let path = path.to_owned();
    Ok(SessionBundle {
        session,
        jobs,
        sums,
        path,
        file,
        head,
        events_part: events_at,
        own_part: own_at,
        native_part: native_at,
        workspace_part: workspace_at,
    })
}

/// Reads the first line; returns the version.
fn first_line(text: &mut BundleLineReader) -> Result<u64, BundleOpenError> {
    #[derive(Deserialize)]
    struct BundleHeaderLine {
        format: String,
        version: u64,
    }
    // The limit is small, because any file may be given here. Errors mean that it is no bundle.
    let line = text.next(1024).ok().flatten().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    // The first line opens the document, so it is an object only with the closing brace.
    let first = line.strip_suffix(',').map(|line| format!("{line}}}"));
    let first: Option<BundleHeaderLine> = first.and_then(|line| serde_json::from_str(&line).ok());
    match first {
        // The format is checked before the version: another program may use the same version
        // numbers.
        Some(BundleHeaderLine {
            format,
            version: version @ PLAIN_BUNDLE_VERSION..=BUNDLE_VERSION,
        }) if format == BUNDLE_FORMAT => Ok(version),
        Some(BundleHeaderLine { format, version }) if format == BUNDLE_FORMAT => {
            Err(BundleOpenError::Version { path: text.path.clone(), version })
        }
        _ => Err(BundleOpenError::NotABundle { path: text.path.clone() }),
    }
}

/// Reads the session record and the jobs.
fn read_head(
    text: &mut BundleLineReader,
) -> Result<(Vec<String>, BundlePartChecksum), BundleOpenError> {
    let mut head: Vec<String> = Vec::new();
    let mut sum = BundlePartHasher::default();
    // One limit for all lines together, because the whole head is kept in memory.
    let mut left = BUNDLE_HEAD_BYTES_MAX;
    loop {
        let line = text.line(left)?.to_vec();
        left = left.saturating_sub(line.len() as u64);
        sum.add(&line, 0);
        let line = String::from_utf8(line).map_err(|_| text.changed("text"))?;
        match (head.len(), line.as_str()) {
            (0, line) if !line.starts_with("\"session\":") => {
                return Err(text.changed("a session"));
            }
            (1, line) if line != "\"jobs\":[" => return Err(text.changed("the start of jobs")),
            _ => {}
        }
        let is_end = head.len() > 1 && line == "],";
        head.push(line);
        if is_end {
            return Ok((head, sum.finish()));
        }
    }
}

fn read_part(
    text: &mut BundleLineReader,
    name: &'static str,
) -> Result<(BundlePartLocation, BundlePartChecksum), BundleOpenError> {
    maybe_part(text, name)?.ok_or_else(|| {
        let line = text.line_number + 1;
        BundleOpenError::UnexpectedLayout {
            path: text.path.clone(),
            line,
            expected: "the start of events",
        }
    })
}

/// Reads a part if it is the next one.
fn maybe_part(
    text: &mut BundleLineReader,
    name: &'static str,
) -> Result<Option<(BundlePartLocation, BundlePartChecksum)>, BundleOpenError> {
    let start = format!("\"{name}\":[");
    // The parts have a fixed order, so a look at the next line shows whether a part is missing.
    if text.peek(start.len())? != start.as_bytes() {
        return Ok(None);
    }
    text.line(BUNDLE_LINE_BYTES_MAX)?;
    let (offset, line) = (text.offset, text.line_number);
    let mut sum = BundlePartHasher::default();
    loop {
        let entry = text.line(BUNDLE_LINE_BYTES_MAX)?;
        // A part without entries has one empty line.
        if entry.is_empty() && sum.lines == 0 {
            continue;
        }
        // No entry can look like this line, because each entry is an object, a string or an array.
        if entry == b"]," {
            let part = BundlePartLocation { offset, lines: sum.lines, line };
            return Ok(Some((part, sum.finish())));
        }
        let entry = entry.strip_suffix(b",").unwrap_or(entry);
        // The size is not stored in the entry, so it is counted while the entry is checked.
        let bytes = match (name, sum.lines) {
            (WORKSPACE, lines) => chunk_bytes(entry, lines == 0),
            (NATIVE, 0) => parse_native_header(entry).map(|_| 0),
            _ => super::decode(entry).map(|line| line.len() as u64 + 1),
        };
        let Some(bytes) = bytes else { return Err(text.changed("an entry")) };
        sum.add(entry, bytes);
    }
}

/// Reads the line that describes a native session; `None` if it is malformed or too long.
pub(super) fn parse_native_header(entry: &[u8]) -> Option<NativeSessionHeader> {
    let header = Some(entry).filter(|entry| entry.len() <= NATIVE_HEADER_BYTES_MAX)?;
    let header: NativeSessionHeader = serde_json::from_slice(header).ok()?;
    is_description_small(&header).then_some(header)
}

/// Returns the number of bytes in a workspace entry; `None` if it is malformed. The first entry
/// names a repository.
fn chunk_bytes(entry: &[u8], is_first: bool) -> Option<u64> {
    if entry.first() == Some(&b'{') {
        return serde_json::from_slice::<RepositoryLine>(entry).ok().map(|_| 0);
    }
    let text: String = serde_json::from_slice(entry).ok().filter(|_| !is_first)?;
    super::BASE64.decode(text).ok().map(|chunk| chunk.len() as u64)
}

/// Reads the checksums, which must match the computed ones byte for byte.
fn last_line(text: &mut BundleLineReader, found: &BundleChecksums) -> Result<(), BundleOpenError> {
    let line = text.line(BUNDLE_LINE_BYTES_MAX)?.to_vec();
    // Comparing the text also rejects unknown keys and another order, which no exporter writes.
    if line != super::last_line(found).trim_end().as_bytes() {
        // The sums are parsed only to name the changed part in the message.
        let recorded = line.strip_prefix(b"\"sums\":").and_then(|line| line.strip_suffix(b"}"));
        let recorded: Option<BundleChecksums> =
            recorded.and_then(|line| serde_json::from_slice(line).ok());
        let recorded = recorded.ok_or_else(|| text.changed("the sums"))?;
        let parts = [
            ("session", found.head == recorded.head),
            (EVENTS, found.events == recorded.events),
            (OWN, found.own == recorded.own),
            (NATIVE, found.native == recorded.native),
            (WORKSPACE, found.workspace == recorded.workspace),
        ];
        let Some((part, _)) = parts.iter().find(|(_, is_same)| !is_same) else {
            return Err(text.changed("the sums"));
        };
        return Err(BundleOpenError::ChecksumMismatch {
            path: text.path.clone(),
            part,
            line: text.line_number,
        });
    }
    // Data after the sums would not be covered by any of them.
    match text.peek(1)?.is_empty() {
        true => Ok(()),
        false => Err(text.changed("the end")),
    }
}

impl SessionBundle {
    /// Passes the data of each repository of the workspace to a callback, with the repository's
    /// key.
    ///
    /// The callback must read to the end: only there are the data known to be the verified ones.
    pub fn repositories(
        &self,
        mut take: impl FnMut(&str, &mut (dyn io::Read + Send)) -> io::Result<()>,
    ) -> io::Result<()> {
        let (Some(part), Some(sum)) = (self.workspace_part, &self.sums.workspace) else {
            return Ok(());
        };
        let mut bytes = self.bytes(part, sum, WORKSPACE)?;
        let mut is_more = bytes.advance()?;
        while is_more {
            // The newline is not part of the JSON text.
            bytes.line.pop();
            let line: Result<RepositoryLine, _> = serde_json::from_slice(&bytes.line);
            let key = line.map_err(io::Error::other)?.repository;
            let mut chunks =
                BundleRepositoryReader { bytes, chunk: Vec::new(), at: 0, has_next_line: true };
            take(&key, &mut chunks)?;
            // The callback may have stopped early. The next repository begins after the remaining
            // chunks.
            chunks.skip()?;
            (bytes, is_more) = (chunks.bytes, chunks.has_next_line);
        }
        Ok(())
    }

    /// Returns Heeler's transcript of the session.
    pub fn events(&self) -> io::Result<impl io::Read> {
        self.bytes(self.events_part, &self.sums.events, EVENTS)
    }

    /// Returns the bytes of the file from which a part was made. Reading fails at the end if they
    /// differ from the verified ones.
    pub(super) fn bytes(
        &self,
        part: BundlePartLocation,
        recorded: &BundlePartChecksum,
        name: &'static str,
    ) -> io::Result<BundlePartReader> {
        let mut file = self.file.try_clone()?;
        // The clone shares its position with the original, so it is set for each part.
        file.seek(SeekFrom::Start(part.offset))?;
        let mut text = BundleLineReader::new(&self.path, file);
        text.line_number = part.line;
        let sum = BundlePartHasher::default();
        let sha256 = recorded.sha256.clone();
        Ok(BundlePartReader {
            text,
            lines_left: part.lines,
            sum: Some(sum),
            sha256,
            name,
            directory_move: None,
            line: Vec::new(),
            at: 0,
        })
    }
}

/// Reader of one repository's data.
struct BundleRepositoryReader {
    bytes: BundlePartReader,
    chunk: Vec<u8>,
    at: usize,
    /// True if a line of the next repository was reached.
    has_next_line: bool,
}

impl BundleRepositoryReader {
    /// Moves to the next chunk; returns false if there is none.
    fn advance(&mut self) -> io::Result<bool> {
        (self.chunk, self.at) = (Vec::new(), 0);
        // The line was reached by the previous call and is still the current one.
        if self.is_next() {
            return Ok(false);
        }
        self.has_next_line = self.bytes.advance()?;
        if !self.has_next_line || self.is_next() {
            return Ok(false);
        }
        self.bytes.line.pop();
        self.chunk = super::BASE64.decode(&self.bytes.line).map_err(io::Error::other)?;
        self.bytes.line.clear();
        Ok(true)
    }

    /// Returns true if the current line belongs to another repository.
    fn is_next(&self) -> bool {
        // Chunks are base64, which contains no brace.
        self.bytes.line.ends_with(b"}\n")
    }

    fn skip(&mut self) -> io::Result<()> {
        while self.has_next_line && !self.is_next() {
            self.advance()?;
        }
        Ok(())
    }
}

impl io::Read for BundleRepositoryReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() {
            if !self.advance()? {
                return Ok(0);
            }
        }
        let len = to.len().min(self.chunk.len() - self.at);
        to[..len].copy_from_slice(&self.chunk[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// Reader of the file from which a part was made.
pub(super) struct BundlePartReader {
    text: BundleLineReader,
    lines_left: u64,
    sum: Option<BundlePartHasher>,
    sha256: String,
    name: &'static str,
    /// Replaces the working directory in the lines.
    pub(super) directory_move: Option<DirectoryMove>,
    /// The current line.
    pub(super) line: Vec<u8>,
    at: usize,
}

impl BundlePartReader {
    /// Moves to the next line; returns false if there is none.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        self.at = 0;
        self.line.clear();
        while self.lines_left > 0 {
            let entry = self.text.line(BUNDLE_LINE_BYTES_MAX).map_err(io::Error::other)?;
            if entry.is_empty() {
                continue;
            }
            let entry = entry.strip_suffix(b",").unwrap_or(entry);
            self.line.extend_from_slice(&decode(entry).unwrap_or_default());
            self.line.push(b'\n');
            if let Some(sum) = &mut self.sum {
                sum.add(entry, 0);
            }
            if let Some(directory_move) = &self.directory_move {
                directory_move.apply(&mut self.line);
            }
            self.lines_left -= 1;
            return Ok(true);
        }
        // Taken, so that the check is made once, however often the end is read.
        let found = self.sum.take().map(BundlePartHasher::finish);
        if found.is_some_and(|found| found.sha256 != self.sha256) {
            let (path, line) = (self.text.path.clone(), self.text.line_number);
            return Err(io::Error::other(BundleOpenError::ChecksumMismatch {
                path,
                part: self.name,
                line,
            }));
        }
        Ok(false)
    }
}

impl io::Read for BundlePartReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() && !self.advance()? {
            return Ok(0);
        }
        let len = to.len().min(self.line.len() - self.at);
        to[..len].copy_from_slice(&self.line[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// Reader of a bundle's lines, with their numbers.
struct BundleLineReader {
    path: Utf8PathBuf,
    reader: BufReader<File>,
    line: Vec<u8>,
    line_number: u64,
    offset: u64,
}

impl BundleLineReader {
    fn new(path: &Utf8Path, file: File) -> BundleLineReader {
        let reader = BufReader::with_capacity(64 * 1024, file);
        let path = path.to_owned();
        BundleLineReader { path, reader, line: Vec::new(), line_number: 0, offset: 0 }
    }

    fn failed(&self, source: io::Error) -> BundleOpenError {
        DiskError { action: "read", path: self.path.clone(), source }.into()
    }

    /// Returns the beginning of the next line.
    fn peek(&mut self, len: usize) -> Result<&[u8], BundleOpenError> {
        let path = &self.path;
        let failed = |source| DiskError { action: "read", path: path.clone(), source };
        let buffer = self.reader.fill_buf().map_err(failed)?;
        Ok(&buffer[..buffer.len().min(len)])
    }

    /// Returns the next complete line; `None` at the end, even if an incomplete line remains.
    fn next(&mut self, most: u64) -> Result<Option<&[u8]>, BundleOpenError> {
        self.line.clear();
        // One byte more than allowed shows that the line is too long.
        let read = (&mut self.reader).take(most + 1).read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| self.failed(error))? as u64;
        if self.line.pop_if(|last| *last == b'\n').is_some() {
            self.line_number += 1;
            self.offset += read;
            return Ok(Some(&self.line));
        }
        if read > most {
            let (path, line) = (self.path.clone(), self.line_number + 1);
            return Err(BundleOpenError::TooLong { path, line, most });
        }
        Ok(None)
    }

    /// Returns the next line, which must exist.
    fn line(&mut self, most: u64) -> Result<&[u8], BundleOpenError> {
        // A missing line means that the copy was cut off, since the last line closes the document.
        let cut = BundleOpenError::Truncated { path: self.path.clone(), line: self.line_number };
        self.next(most)?.ok_or(cut)
    }

    fn changed(&self, expected: &'static str) -> BundleOpenError {
        BundleOpenError::UnexpectedLayout {
            path: self.path.clone(),
            line: self.line_number,
            expected,
        }
    }
}
