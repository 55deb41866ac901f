//! Session bundles: one file that holds an exported session.
//!
//! A bundle is one JSON document in a fixed layout, one entry per line, so that reading and
//! writing need the memory of one line only. Transcript lines are stored unchanged; a line that
//! is not a JSON object is stored as a string, and one that is not UTF-8 as base64. Checksums
//! of the parts are at the end, so a truncated or changed bundle is rejected. Start at
//! [`write()`], [`open()`] and [`install_bundle`].

mod install;
mod read;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::redact::SecretRedactor;
use heeler_model::{AgentSessionId, PendingFork, Session};
use heeler_transcript::{DiskError, LINE_BYTES_MAX, untrusted_file};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::history;
use crate::native::PortableNativeSession;

pub use install::{
    BundleDestination, BundleInstallError, IMPORTED_ORIGIN, InstalledBundle, PlacedNativeSession,
    install_bundle, place_native_session,
};
pub use read::{BundleOpenError, SessionBundle, open};

/// Value of the `format` field of every bundle.
pub const BUNDLE_FORMAT: &str = "heeler-session";
/// Newest version, of bundles with the part `native`. Earlier releases read version 1 only, so a bundle
/// without that part has version 1. Both are read.
pub const BUNDLE_VERSION: u64 = 2;
/// Version of a bundle without the part `native`.
const PLAIN_BUNDLE_VERSION: u64 = 1;
/// Longest line of a bundle: a transcript line in which every character is escaped.
// An escape such as `\u0000` takes six bytes for one.
pub const BUNDLE_LINE_BYTES_MAX: u64 = 6 * LINE_BYTES_MAX as u64 + 1024;
/// Largest session record, including the records of its jobs.
pub const BUNDLE_HEAD_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Longest first line of the part `native`: the description of a session, in which every character is
/// escaped.
pub const NATIVE_HEADER_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Bytes of a workspace that one line holds.
// A multiple of three, so that only the last chunk of a repository needs padding.
const CHUNK_BYTES: usize = 48 * 1024;

const EVENTS: &str = "events";
const OWN: &str = "own";
const NATIVE: &str = "native";
const WORKSPACE: &str = "workspace";

/// Everything that goes into a bundle.
pub struct BundleContents<'a> {
    pub session: &'a Session,
    pub jobs: &'a [Json],
    /// Heeler's transcript of the session.
    pub log: Option<&'a Utf8Path>,
    /// Claude's native session file, which another machine needs to continue the session.
    pub native_file: Option<NativeSessionFile<'a>>,
    /// Native session of another program.
    pub native_session: Option<&'a PortableNativeSession>,
    /// The repositories that hold the session's snapshots.
    pub workspace: Vec<BundleRepository<'a>>,
    /// Removes the fleet's secrets from everything except the workspace.
    pub redactor: &'a SecretRedactor,
}

pub struct NativeSessionFile<'a> {
    pub path: &'a Utf8Path,
    /// Set for a fork that has not started: `path` is then the file of the fork's source. The part
    /// that the fork takes over is exported as the fork's own file.
    pub fork: Option<&'a PendingFork>,
}

/// A session's snapshots in one of Heeler's repositories.
pub struct BundleRepository<'a> {
    /// Name of the repository in the transcript.
    pub key: String,
    /// Writes the snapshots as a git pack.
    pub write: Box<WriteCallback<'a>>,
}

/// Callback that writes data without holding it in memory.
pub type WriteCallback<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

/// Line that precedes the data of a repository.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RepositoryLine {
    repository: String,
}

/// Size and hash of one part of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundlePartChecksum {
    pub lines: u64,
    /// Bytes in the file from which the part was made.
    pub bytes: u64,
    /// Hash of the lines as they appear in the bundle.
    pub sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleChecksums {
    /// Session record and jobs.
    pub head: BundlePartChecksum,
    /// Heeler's transcript.
    pub events: BundlePartChecksum,
    /// Claude's native session file.
    pub own: Option<BundlePartChecksum>,
    /// Native session of another program. The key is absent in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<BundlePartChecksum>,
    /// The snapshot commits.
    pub workspace: Option<BundlePartChecksum>,
}

/// Failure to export a bundle.
#[derive(Debug, Error)]
pub enum BundleExportError {
    #[error(transparent)]
    Read(#[from] DiskError),
    /// A transcript has a line longer than any reader accepts.
    #[error("{path} has a line of more than {LINE_BYTES_MAX} bytes, the one after line {after}")]
    TooLong {
        path: Utf8PathBuf,
        /// Number of lines before it.
        after: u64,
    },
    #[error("cannot export the files of the session")]
    Snapshots(#[source] io::Error),
    #[error("cannot write the bundle")]
    Write(#[source] io::Error),
}

/// Data kept with an imported session so that it can be exported again unchanged.
#[derive(Debug, Serialize, Deserialize)]
struct ImportedBundleRecord {
    /// Session record and jobs, as they appeared in the bundle.
    head: Vec<String>,
    /// Length of Heeler's transcript and of the native session file after the import.
    log_bytes: u64,
    own_bytes: Option<u64>,
}

/// Returns the path of the [`ImportedBundleRecord`], which is next to the session's transcript.
fn imported_path(log: &Utf8Path) -> Utf8PathBuf {
    log.with_file_name(format!(".{}.imported", log.file_stem().unwrap_or_default()))
}

/// Writes a bundle. Files that grow meanwhile are exported with the length they had at the
/// start.
pub fn write(
    export: BundleContents<'_>,
    out: &mut dyn Write,
) -> Result<BundleChecksums, BundleExportError> {
    // Opened first, so that the parts have the lengths of one moment.
    let log = export.log.map(CompleteLineReader::open).transpose()?;
    let native = export
        .native_file
        .as_ref()
        .map(|native| CompleteLineReader::open_native(native, export.session))
        .transpose()?;
    let native = native.flatten();
    let session = export.native_session;
    let session = session.map(|it| Ok::<_, DiskError>((it, CompleteLineReader::open(&it.path)?)));
    let session = session.transpose()?;
    let head = head(&export, log.as_ref(), native.as_ref());
    let mut out = BundleWriter { out, redactor: export.redactor };
    let version = if session.is_some() { BUNDLE_VERSION } else { PLAIN_BUNDLE_VERSION };
    out.raw(&format!("{{\"format\":\"{BUNDLE_FORMAT}\",\"version\":{version},\n"))?;
    let mut sum = BundlePartHasher::default();
    for line in &head {
        sum.add(line.as_bytes(), 0);
        out.raw(&format!("{line}\n"))?;
    }
    let head = sum.finish();
    let events = out.part(EVENTS, log)?;
    let own = native.map(|native| out.part(OWN, Some(native))).transpose()?;
    let native = session.map(|(session, lines)| out.native(session, lines)).transpose()?;
    let workspace = match export.workspace.is_empty() {
        true => None,
        false => Some(out.repositories(export.workspace)?),
    };
    let sums = BundleChecksums { head, events, own, native, workspace };
    out.raw(&last_line(&sums))?;
    Ok(sums)
}

/// Returns the last line of a bundle, which holds the checksums.
fn last_line(sums: &BundleChecksums) -> String {
    format!("\"sums\":{}}}\n", json!(sums))
}

/// Returns the lines of session record and jobs. A session without new messages since its
/// import keeps the imported lines, so that exporting it again gives the same bundle.
fn head(
    export: &BundleContents<'_>,
    log: Option<&CompleteLineReader>,
    native: Option<&CompleteLineReader>,
) -> Vec<String> {
    if let Some(imported) = export.log.and_then(|log| read_imported(&imported_path(log)))
        // The lengths prove that nothing was added, since transcripts are append-only.
        && log.is_some_and(|log| log.bytes == imported.log_bytes)
        && native.map(|native| native.bytes) == imported.own_bytes
    {
        return imported.head;
    }
    // Secrets are removed before the hash is computed, so the checksum holds for the reader.
    let mut session = json!(export.session);
    export.redactor.redact_json(&mut session);
    let mut lines = vec![format!("\"session\":{session},"), "\"jobs\":[".to_owned()];
    for (at, job) in export.jobs.iter().enumerate() {
        let mut job = job.clone();
        export.redactor.redact_json(&mut job);
        let comma = if at + 1 < export.jobs.len() { "," } else { "" };
        lines.push(format!("{job}{comma}"));
    }
    lines.push("],".to_owned());
    lines
}

fn read_imported(path: &Utf8Path) -> Option<ImportedBundleRecord> {
    // Without this record the session is exported from the database, which is correct too.
    let text = untrusted_file::read(path, BUNDLE_HEAD_BYTES_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

struct BundleWriter<'w> {
    out: &'w mut dyn Write,
    redactor: &'w SecretRedactor,
}

impl BundleWriter<'_> {
    fn raw(&mut self, text: &str) -> Result<(), BundleExportError> {
        self.out.write_all(text.as_bytes()).map_err(BundleExportError::Write)
    }

    fn part(
        &mut self,
        name: &str,
        lines: Option<CompleteLineReader>,
    ) -> Result<BundlePartChecksum, BundleExportError> {
        self.raw(&format!("\"{name}\":["))?;
        let mut sum = BundlePartHasher::default();
        if let Some(lines) = lines {
            self.lines(lines, &mut sum)?;
        }
        self.raw("\n],\n")?;
        Ok(sum.finish())
    }

    /// Writes a line that describes a native session, then its messages.
    fn native(
        &mut self,
        session: &PortableNativeSession,
        lines: CompleteLineReader,
    ) -> Result<BundlePartChecksum, BundleExportError> {
        self.raw(&format!("\"{NATIVE}\":["))?;
        let mut sum = BundlePartHasher::default();
        let mut header = json!(session.header);
        self.redactor.redact_json(&mut header);
        self.entry(header.to_string().as_bytes(), 0, &mut sum)?;
        self.lines(lines, &mut sum)?;
        self.raw("\n],\n")?;
        Ok(sum.finish())
    }

    fn lines(
        &mut self,
        mut lines: CompleteLineReader,
        sum: &mut BundlePartHasher,
    ) -> Result<(), BundleExportError> {
        while let Some(line) = lines.next()? {
            let line = self.redact_line(line);
            let entry = encode(&line);
            self.entry(&entry, line.len() as u64 + 1, sum)?;
        }
        Ok(())
    }

    fn repositories(
        &mut self,
        repositories: Vec<BundleRepository<'_>>,
    ) -> Result<BundlePartChecksum, BundleExportError> {
        self.raw(&format!("\"{WORKSPACE}\":["))?;
        let mut sum = BundlePartHasher::default();
        for BundleRepository { key, mut write } in repositories {
            let line = json!(RepositoryLine { repository: key }).to_string();
            self.entry(line.as_bytes(), 0, &mut sum)?;
            let mut chunks =
                ChunkLineWriter { out: self, sum: &mut sum, chunk: Vec::new(), failed: None };
            let written = write(&mut chunks).and_then(|()| chunks.flush());
            // Report the original error first: the callback may return only the broken pipe that it
            // caused.
            match chunks.failed {
                Some(error) => return Err(error),
                None => written.map_err(BundleExportError::Snapshots)?,
            }
        }
        self.raw("\n],\n")?;
        Ok(sum.finish())
    }

    fn entry(
        &mut self,
        entry: &[u8],
        bytes: u64,
        sum: &mut BundlePartHasher,
    ) -> Result<(), BundleExportError> {
        // The separator precedes each entry, because it is unknown which entry is the last.
        self.raw(if sum.lines == 0 { "\n" } else { ",\n" })?;
        sum.add(entry, bytes);
        self.out.write_all(entry).map_err(BundleExportError::Write)
    }

    /// Removes secrets from a line. A line without secrets stays unchanged.
    fn redact_line<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        let Cow::Owned(redacted) = self.redactor.redact_bytes(line) else {
            return Cow::Borrowed(line);
        };
        // Redacting the raw bytes may remove a quote or half of an escape.
        let Ok(mut row) = serde_json::from_slice::<Json>(line) else { return Cow::Owned(redacted) };
        self.redactor.redact_json(&mut row);
        let row = row.to_string();
        match self.redactor.redact_bytes(row.as_bytes()) {
            Cow::Borrowed(_) => Cow::Owned(row.into_bytes()),
            Cow::Owned(redacted) => Cow::Owned(redacted),
        }
    }
}

/// Writer that encodes bytes as base64 lines.
struct ChunkLineWriter<'c, 'w> {
    out: &'c mut BundleWriter<'w>,
    sum: &'c mut BundlePartHasher,
    chunk: Vec<u8>,
    failed: Option<BundleExportError>,
}

impl Write for ChunkLineWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk is written at once, so memory stays bounded for a repository of any size.
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let entry = format!("\"{}\"", BASE64.encode(&self.chunk));
        let bytes = self.chunk.len() as u64;
        self.chunk.clear();
        self.out.entry(entry.as_bytes(), bytes, self.sum).map_err(|error| {
            self.failed = Some(error);
            // The callback can only return an IO error, so the real error is stored beside it.
            io::ErrorKind::BrokenPipe.into()
        })
    }
}

#[derive(Default)]
struct BundlePartHasher {
    lines: u64,
    bytes: u64,
    hash: Sha256,
}

impl BundlePartHasher {
    fn add(&mut self, entry: &[u8], bytes: u64) {
        self.lines += 1;
        self.bytes += bytes;
        self.hash.update(entry);
        self.hash.update(b"\n");
    }

    fn finish(self) -> BundlePartChecksum {
        let sha256 = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        BundlePartChecksum { lines: self.lines, bytes: self.bytes, sha256 }
    }
}

/// Reader of the complete lines of a file, up to the length it had when it was opened.
struct CompleteLineReader {
    path: Utf8PathBuf,
    reader: BufReader<io::Take<File>>,
    /// Length of the file when it was opened.
    bytes: u64,
    line: Vec<u8>,
    count: u64,
    /// Session id to replace in each line, and its replacement.
    id_replacement: Option<(String, String)>,
}

impl CompleteLineReader {
    fn open(path: &Utf8Path) -> Result<CompleteLineReader, DiskError> {
        let failed = |source| DiskError { action: "read", path: path.to_owned(), source };
        let file = untrusted_file::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let reader = BufReader::new(file.take(bytes));
        let path = path.to_owned();
        Ok(CompleteLineReader {
            path,
            reader,
            bytes,
            line: Vec::new(),
            count: 0,
            id_replacement: None,
        })
    }

    /// Opens a native session file. For a fork that has not started, only the part that it takes
    /// over is read; `None` if the fork point is not in the file.
    fn open_native(
        native: &NativeSessionFile<'_>,
        session: &Session,
    ) -> Result<Option<CompleteLineReader>, DiskError> {
        let (Some(fork), Some(id)) = (native.fork, &session.agent_session_id) else {
            return CompleteLineReader::open(native.path).map(Some);
        };
        let end = match fork.at {
            Some(at) => history::end_of_entry(native.path, at)?,
            None => Some(u64::MAX),
        };
        let Some(end) = end else { return Ok(None) };
        let mut lines = CompleteLineReader::open(native.path)?;
        // The fork takes over the entries up to its fork point and nothing that came later.
        lines.bytes = lines.bytes.min(end);
        lines.reader.get_mut().set_limit(lines.bytes);
        // Claude writes compact JSON, so the key and its value are adjacent.
        let named = |id: &AgentSessionId| format!("\"sessionId\":\"{id}\"");
        lines.id_replacement = Some((named(&fork.source), named(id)));
        Ok(Some(lines))
    }

    /// Returns the next line without its newline. Text without a newline is not a line yet.
    fn next(&mut self) -> Result<Option<&[u8]>, BundleExportError> {
        self.line.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let read = self.reader.by_ref().take(most).read_until(b'\n', &mut self.line);
        let path = &self.path;
        let failed = |source| DiskError { action: "read", path: path.clone(), source };
        let read = read.map_err(failed)? as u64;
        if self.line.pop_if(|last| *last == b'\n').is_some() {
            self.count += 1;
            if let Some((old, new)) = &self.id_replacement
                && let Ok(text) = std::str::from_utf8(&self.line)
            {
                self.line = text.replace(old, new).into_bytes();
            }
            return Ok(Some(&self.line));
        }
        // A tail without newline is still being written. A full buffer without one is a long line.
        match read < most {
            true => Ok(None),
            false => Err(BundleExportError::TooLong { path: self.path.clone(), after: self.count }),
        }
    }
}

/// Returns true if a line is exactly one JSON object.
fn is_object(line: &[u8]) -> bool {
    line.first() == Some(&b'{')
        && line.last() == Some(&b'}')
        && std::str::from_utf8(line)
            .is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Encodes a line as an entry of a bundle.
fn encode(line: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(line) {
        Ok(_) if is_object(line) => Cow::Borrowed(line),
        Ok(text) => Cow::Owned(Json::from(text).to_string().into_bytes()),
        // An array tells base64 apart from text, which is stored as a plain string.
        Err(_) => Cow::Owned(format!("[\"{}\"]", BASE64.encode(line)).into_bytes()),
    }
}

/// Decodes an entry of a bundle; `None` if it is malformed.
fn decode(entry: &[u8]) -> Option<Cow<'_, [u8]>> {
    match entry.first()? {
        b'{' => is_object(entry).then_some(Cow::Borrowed(entry)),
        b'"' => serde_json::from_slice::<String>(entry).ok().map(|it| Cow::Owned(it.into_bytes())),
        b'[' => {
            let [text] = serde_json::from_slice::<[String; 1]>(entry).ok()?;
            BASE64.decode(text).ok().map(Cow::Owned)
        }
        _ => None,
    }
    // An entry must be a single line: a newline inside it would make two lines in the installed
    // file, which no checksum detects.
    .filter(|line| memchr::memchr(b'\n', line).is_none())
}

#[cfg(test)]
mod tests;
