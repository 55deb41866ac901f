//! A session in one file: for another machine, or to keep.
//!
//! A bundle is one JSON document in a fixed layout, an entry a line, so that it is written and read
//! with the memory of one line. Lines of logs stand in it as they are; those that are no JSON object
//! stand as a text, those that are no text as base64. At its end are the sums of its parts, so that
//! one that was cut off or changed is refused. Start at [`open_read_write()`], [`open_file`] and [`install()`].

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

pub use install::{BundleInstallError, IMPORTED_ORIGIN, InstalledBundle, install_bundle};
pub use read::{BundleOpenError, SessionBundle, open};

/// What a bundle says it is.
pub const BUNDLE_FORMAT: &str = "heeler-session";
/// The version that is written, and the only one that is read.
pub const BUNDLE_VERSION: u64 = 1;
/// The longest line of a bundle: one of a log, every character of it escaped at worst.
pub const BUNDLE_LINE_BYTES_MAX: u64 = 6 * LINE_BYTES_MAX as u64 + 1024;
/// The largest record of a session, with those of its jobs.
pub const BUNDLE_HEAD_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How many bytes of a workspace one line holds.
const CHUNK_BYTES: usize = 48 * 1024;

const EVENTS: &str = "events";
const OWN: &str = "own";
const WORKSPACE: &str = "workspace";

/// What is exported.
pub struct BundleContents<'a> {
    /// The session's record.
    pub session: &'a Session,
    /// Its jobs.
    pub jobs: &'a [Json],
    /// Our log of it.
    pub log: Option<&'a Utf8Path>,
    /// The agent's own file: what another machine needs to go on.
    pub native_file: Option<NativeSessionFile<'a>>,
    /// The repositories that its snapshots are in.
    pub workspace: Vec<BundleRepository<'a>>,
    /// Takes the fleet's secrets out of everything but the workspace.
    pub redactor: &'a SecretRedactor,
}

/// The agent's own file of a session.
pub struct NativeSessionFile<'a> {
    /// Where it is.
    pub path: &'a Utf8Path,
    /// For a fork that has not begun, whose source's file it is: what the fork takes over. That part
    /// is exported as the fork's own.
    pub fork: Option<&'a PendingFork>,
}

/// Snapshots of a session that are in one repository of ours.
pub struct BundleRepository<'a> {
    /// What the log calls it.
    pub key: String,
    /// Writes them, as git packs them.
    pub write: Box<WriteCallback<'a>>,
}

/// Writes something that is not held in memory.
pub type WriteCallback<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

/// The line before what a repository holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RepositoryLine {
    repository: String,
}

/// What a part of a bundle holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundlePartChecksum {
    /// How many lines.
    pub lines: u64,
    /// How many bytes they have in the file they are of.
    pub bytes: u64,
    /// The hash of them as they stand in the bundle.
    pub sha256: String,
}

/// The sums of a bundle's parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleChecksums {
    /// Session and jobs.
    pub head: BundlePartChecksum,
    /// Our log.
    pub events: BundlePartChecksum,
    /// The agent's own file.
    pub own: Option<BundlePartChecksum>,
    /// The commits of its snapshots.
    pub workspace: Option<BundlePartChecksum>,
}

/// Why a bundle was not written.
#[derive(Debug, Error)]
pub enum BundleExportError {
    /// A log cannot be read.
    #[error(transparent)]
    Read(#[from] DiskError),
    /// A log has a line that no reader takes.
    #[error("{path} has a line of more than {LINE_BYTES_MAX} bytes, the one after line {after}")]
    TooLong {
        /// The log.
        path: Utf8PathBuf,
        /// How many lines are before it.
        after: u64,
    },
    /// Snapshots cannot be read.
    #[error("cannot export the files of the session")]
    Snapshots(#[source] io::Error),
    /// The bundle cannot be written.
    #[error("cannot write the bundle")]
    Write(#[source] io::Error),
}

/// What came with an imported session, so that it can be exported as it was.
#[derive(Debug, Serialize, Deserialize)]
struct ImportedBundleRecord {
    /// Session and jobs, as they stood in the bundle.
    head: Vec<String>,
    /// How long our log and the agent's own file were.
    log_bytes: u64,
    own_bytes: Option<u64>,
}

/// Returns where is kept what came with an imported session: beside its log.
fn imported_path(log: &Utf8Path) -> Utf8PathBuf {
    log.with_file_name(format!(".{}.imported", log.file_stem().unwrap_or_default()))
}

/// Writes a bundle. Of files that grow meanwhile, what they had at first is in it.
pub fn write(
    export: BundleContents<'_>,
    out: &mut dyn Write,
) -> Result<BundleChecksums, BundleExportError> {
    let log = export.log.map(CompleteLineReader::open).transpose()?;
    let own = export
        .native_file
        .as_ref()
        .map(|own| CompleteLineReader::open_native(own, export.session))
        .transpose()?;
    let own = own.flatten();
    let head = head(&export, log.as_ref(), own.as_ref());
    let mut out = BundleWriter { out, redactor: export.redactor };
    out.raw(&format!("{{\"format\":\"{BUNDLE_FORMAT}\",\"version\":{BUNDLE_VERSION},\n"))?;
    let mut sum = BundlePartHasher::default();
    for line in &head {
        sum.add(line.as_bytes(), 0);
        out.raw(&format!("{line}\n"))?;
    }
    let head = sum.finish();
    let events = out.part(EVENTS, log)?;
    let own = own.map(|own| out.part(OWN, Some(own))).transpose()?;
    let workspace = match export.workspace.is_empty() {
        true => None,
        false => Some(out.repositories(export.workspace)?),
    };
    let sums = BundleChecksums { head, events, own, workspace };
    out.raw(&last_line(&sums))?;
    Ok(sums)
}

/// Spells the last line of a bundle.
fn last_line(sums: &BundleChecksums) -> String {
    format!("\"sums\":{}}}\n", json!(sums))
}

/// Returns the lines that tell of the session: those it was imported with, if nothing was said in it
/// since, so that what goes around comes back as it was.
fn head(
    export: &BundleContents<'_>,
    log: Option<&CompleteLineReader>,
    own: Option<&CompleteLineReader>,
) -> Vec<String> {
    if let Some(imported) = export.log.and_then(|log| read_imported(&imported_path(log)))
        && log.is_some_and(|log| log.bytes == imported.log_bytes)
        && own.map(|own| own.bytes) == imported.own_bytes
    {
        return imported.head;
    }
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
    let text = untrusted_file::read(path, BUNDLE_HEAD_BYTES_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Writes parts.
struct BundleWriter<'w> {
    out: &'w mut dyn Write,
    redactor: &'w SecretRedactor,
}

impl BundleWriter<'_> {
    fn raw(&mut self, text: &str) -> Result<(), BundleExportError> {
        self.out.write_all(text.as_bytes()).map_err(BundleExportError::Write)
    }

    /// Writes the lines of a file.
    fn part(
        &mut self,
        name: &str,
        lines: Option<CompleteLineReader>,
    ) -> Result<BundlePartChecksum, BundleExportError> {
        self.raw(&format!("\"{name}\":["))?;
        let mut sum = BundlePartHasher::default();
        let mut lines = lines;
        while let Some(lines) = &mut lines
            && let Some(line) = lines.next()?
        {
            let line = self.redact_line(line);
            let entry = encode(&line);
            self.entry(&entry, line.len() as u64 + 1, &mut sum)?;
        }
        self.raw("\n],\n")?;
        Ok(sum.finish())
    }

    /// Writes what repositories hold.
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
            // Whoever writes may tell only of what it met because of that.
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
        self.raw(if sum.lines == 0 { "\n" } else { ",\n" })?;
        sum.add(entry, bytes);
        self.out.write_all(entry).map_err(BundleExportError::Write)
    }

    /// Takes secrets out of a line. One that has none stays as it is.
    fn redact_line<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        let Cow::Owned(redacted) = self.redactor.redact_bytes(line) else {
            return Cow::Borrowed(line);
        };
        // A secret may take a quote or half of an escape with it.
        let Ok(mut row) = serde_json::from_slice::<Json>(line) else { return Cow::Owned(redacted) };
        self.redactor.redact_json(&mut row);
        let row = row.to_string();
        match self.redactor.redact_bytes(row.as_bytes()) {
            Cow::Borrowed(_) => Cow::Owned(row.into_bytes()),
            Cow::Owned(redacted) => Cow::Owned(redacted),
        }
    }
}

/// Takes bytes and writes them as lines.
struct ChunkLineWriter<'c, 'w> {
    out: &'c mut BundleWriter<'w>,
    sum: &'c mut BundlePartHasher,
    chunk: Vec<u8>,
    failed: Option<BundleExportError>,
}

impl Write for ChunkLineWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
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
            io::ErrorKind::BrokenPipe.into()
        })
    }
}

/// Sums up a part.
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

/// The whole lines of a file, as long as it was when it was opened.
struct CompleteLineReader {
    path: Utf8PathBuf,
    reader: BufReader<io::Take<File>>,
    /// The length of the file.
    bytes: u64,
    line: Vec<u8>,
    count: u64,
    /// What lines have of another session, and what is there instead.
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

    /// Opens an agent's own file; of a fork's source, what the fork takes over. `None` if that is not
    /// in it.
    fn open_native(
        own: &NativeSessionFile<'_>,
        session: &Session,
    ) -> Result<Option<CompleteLineReader>, DiskError> {
        let (Some(fork), Some(id)) = (own.fork, &session.agent_session_id) else {
            return CompleteLineReader::open(own.path).map(Some);
        };
        let end = match fork.at {
            Some(at) => history::end_of_entry(own.path, at)?,
            None => Some(u64::MAX),
        };
        let Some(end) = end else { return Ok(None) };
        let mut lines = CompleteLineReader::open(own.path)?;
        lines.bytes = lines.bytes.min(end);
        lines.reader.get_mut().set_limit(lines.bytes);
        let named = |id: &AgentSessionId| format!("\"sessionId\":\"{id}\"");
        lines.id_replacement = Some((named(&fork.source), named(id)));
        Ok(Some(lines))
    }

    /// Returns the next line without its newline. What has none is not a line yet.
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
        match read < most {
            true => Ok(None),
            false => Err(BundleExportError::TooLong { path: self.path.clone(), after: self.count }),
        }
    }
}

/// Says whether a line is one JSON object and nothing else.
fn is_object(line: &[u8]) -> bool {
    line.first() == Some(&b'{')
        && line.last() == Some(&b'}')
        && std::str::from_utf8(line)
            .is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Spells a line as an entry.
fn encode(line: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(line) {
        Ok(_) if is_object(line) => Cow::Borrowed(line),
        Ok(text) => Cow::Owned(Json::from(text).to_string().into_bytes()),
        Err(_) => Cow::Owned(format!("[\"{}\"]", BASE64.encode(line)).into_bytes()),
    }
}

/// Reads an entry; `None` if it is none.
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
    // A line is one: two would be told apart by no sum of the file they are placed in.
    .filter(|line| memchr::memchr(b'\n', line).is_none())
}

#[cfg(test)]
mod tests;
