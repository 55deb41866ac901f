//! Archive of a whole state directory in one file: `heeler backup FILE`.
//!
//! An archive is a tar file: a snapshot of the database, then every file cut to complete lines,
//! then a manifest with their hashes. It can be made while a writer is running, and it gets its
//! final name only when it is complete. The counterpart is `restore`. Start at
//! [`backup_to_file`].

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Seek as _, SeekFrom, Write};

use camino::{Utf8Path, Utf8PathBuf};
use flate2::Compression;
use flate2::write::GzEncoder;
use heeler_transcript::{DiskBackend as _, OsDisk, temp_name};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::backup::{BackupError, snapshot};
use crate::db::jobs::JobFilter;
use crate::db::sessions::SessionFilter;
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase};
use crate::hex::hex;
use crate::layout::StateDir;
use crate::restore::checked_path;
use crate::sent_files::is_sent_file;
use heeler_transcript::untrusted_file;

/// Version of the archive format; a reader refuses a newer one.
pub(crate) const ARCHIVE_VERSION: u32 = 1;

/// Name of the database inside an archive.
pub(crate) const DATABASE: &str = "heeler.db";

/// Name of the last entry, which lists everything the archive must contain.
pub(crate) const MANIFEST: &str = "manifest.json";

/// Directories that are archived (Heeler's, and those that herdctl left), and the one file at
/// the root. Earlier backups and `.before-heeler` are not archived.
pub(crate) const ARCHIVED_FOLDERS: [&str; 12] = [
    "jobs",
    "sessions",
    "agent-sessions",
    "runs",
    "logs",
    "trash",
    "docker-sessions",
    "discord-sessions",
    "slack-sessions",
    "web-sessions",
    "session-metadata",
    "adopted-sessions",
];
pub(crate) const ARCHIVED_FILE: &str = "state.yaml";

/// Bytes read at a time.
pub(crate) const CHUNK: usize = 64 * 1024;

/// List of an archive's content, stored as its last entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveManifest {
    /// Version of the archive format.
    pub version: u32,
    pub created_at: Timestamp,
    /// Schema version of the database.
    pub schema: i64,
    /// Number of jobs in the database.
    pub jobs: i64,
    /// Number of sessions in the database.
    pub sessions: i64,
    /// Every file in the archive.
    pub files: Vec<ManifestFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Path relative to the state directory.
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

/// Result of [`backup_to_file`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveReport {
    pub manifest: ArchiveManifest,
    /// Size of the archive file.
    pub bytes: u64,
    /// Files that were left out, each with the reason.
    pub skipped: Vec<String>,
}

/// Failure to make an archive.
#[derive(Debug, Error)]
pub enum ArchiveError {
    #[error("cannot copy the database for the archive")]
    Snapshot(#[from] BackupError),
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    #[error(transparent)]
    Db(#[from] DatabaseError),
    #[error("cannot {attempt} {path}")]
    Io {
        attempt: &'static str,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A file that is removed when this guard is dropped.
pub(crate) struct TempFileGuard(pub(crate) Utf8PathBuf);

impl TempFileGuard {
    /// Returns the guard of a temp file next to `path`. The name is one that is removed after a
    /// crash.
    pub(crate) fn for_target(path: &Utf8Path) -> TempFileGuard {
        TempFileGuard(temp_name(path))
    }
}

impl Drop for TempFileGuard {
    fn drop(&mut self) {
        // The file is already gone if it was given its final name.
        drop(std::fs::remove_file(&self.0));
    }
}

/// Writes the whole state to `file` as a tar file, compressed with gzip if the name ends in
/// `.gz` or `.tgz`.
///
/// Works while a writer is running. `progress` receives the bytes done and the total, as it was
/// when the files were listed.
pub fn backup_to_file(
    dir: &StateDir,
    file: &Utf8Path,
    now: Timestamp,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ArchiveReport, ArchiveError> {
    // Beside the archive, so that a backup writes nothing into the state directory.
    let copy = TempFileGuard::for_target(&file.with_extension("db"));
    // Copied before the transcripts, so that everything the database refers to is in them.
    snapshot(dir, &copy.0)?;
    let db = StateDatabase::private(&copy.0)?;
    let manifest = ArchiveManifest {
        version: ARCHIVE_VERSION,
        created_at: now,
        schema: db.schema_version()?,
        jobs: db.count_jobs(&JobFilter::default())?,
        sessions: db.count_sessions(&SessionFilter::default())?,
        files: Vec::new(),
    };
    // SQLite must close the copy before it is read as a plain file.
    drop(db);
    let mut list = ArchiveFileList { dir, sources: Vec::new(), skipped: Vec::new() };
    list.all(&copy.0)?;
    let ArchiveFileList { sources, mut skipped, .. } = list;
    let draft = TempFileGuard::for_target(file);
    let out = OsDisk.create(&draft.0).map_err(at("create", &draft.0))?;
    let total = sources.iter().map(|source| source.bytes_listed).sum();
    let mut packer = ArchiveWriter { manifest, now, done: 0, total, progress };
    let out = BufWriter::with_capacity(CHUNK, out);
    let out = if is_gzip(file) {
        let tar = packer.pack(GzEncoder::new(out, Compression::fast()), &sources, &mut skipped)?;
        tar.finish().map_err(at("write", &draft.0))?
    } else {
        packer.pack(out, &sources, &mut skipped)?
    };
    let out = out.into_inner().map_err(|error| at("write", &draft.0)(error.into_error()))?;
    let bytes = finish(&out, &draft.0, file)?;
    Ok(ArchiveReport { manifest: packer.manifest, bytes, skipped })
}

fn is_gzip(file: &Utf8Path) -> bool {
    matches!(file.extension(), Some("gz" | "tgz"))
}

fn finish(out: &File, draft: &Utf8Path, file: &Utf8Path) -> Result<u64, ArchiveError> {
    OsDisk.sync(out).map_err(at("sync", draft))?;
    let bytes = out.metadata().map_err(at("measure", draft))?.len();
    // An older archive of the same name is replaced only by a complete one.
    OsDisk.rename(draft, file).map_err(at("put in place", file))?;
    let folder = match file.parent() {
        Some(folder) if !folder.as_str().is_empty() => folder,
        _ => Utf8Path::new("."),
    };
    OsDisk.sync_folder(folder).map_err(at("sync", folder))?;
    Ok(bytes)
}

/// A file to archive: its path, its name in the archive, and its length when it was listed. It
/// may have grown, shrunk or vanished by the time it is read.
struct ArchiveSource {
    file: Utf8PathBuf,
    name: String,
    bytes_listed: u64,
}

/// The files to archive, and those left out with the reason.
struct ArchiveFileList<'d> {
    dir: &'d StateDir,
    sources: Vec<ArchiveSource>,
    skipped: Vec<String>,
}

impl ArchiveFileList<'_> {
    fn all(&mut self, database: &Utf8Path) -> Result<(), ArchiveError> {
        let bytes_listed = database.metadata().map_err(at("measure", database))?.len();
        let name = DATABASE.to_owned();
        self.sources.push(ArchiveSource { file: database.to_owned(), name, bytes_listed });
        if self.dir.state_yaml().symlink_metadata().is_ok() {
            self.file(ARCHIVED_FILE.to_owned());
        }
        ARCHIVED_FOLDERS.iter().try_for_each(|folder| self.folder(folder))
    }

    fn folder(&mut self, name: &str) -> Result<(), ArchiveError> {
        let folder = self.dir.root().join(name);
        // A link could lead outside the state directory.
        if folder.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
            self.skip(&folder, "it is not a folder");
            return Ok(());
        }
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(at("list", &folder)(source)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(at("list", &folder))?;
            match entry.file_name().into_string() {
                // Hidden files are drafts and caches; locks are meaningless on another machine.
                Ok(name) if name.starts_with('.') => {}
                Ok(name)
                    if (name == "lock" || name.ends_with(".lock"))
                        // Agents may send a file with such a name; that is data and not a lock.
                        && !is_sent_file(&folder.join(&name)) => {}
                Ok(name) => names.push((name, entry.file_type().map_err(at("inspect", &folder))?)),
                Err(name) => self.skip(&folder.join(name.to_string_lossy().as_ref()), "not UTF-8"),
            }
        }
        // Sorted, so that the order of an archive does not depend on the file system.
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (entry, kind) in names {
            let inner = format!("{name}/{entry}");
            if kind.is_dir() {
                self.folder(&inner)?;
            } else if kind.is_file() {
                self.file(inner);
            } else if kind.is_symlink() && !inner.ends_with(".context") {
                // Sockets have no content, and Heeler's own links are published again. Other links
                // are reported.
                self.skip(&self.dir.root().join(inner), "it is a symbolic link");
            }
        }
        Ok(())
    }

    /// Adds a file, unless a restore would reject the whole archive because of it.
    fn file(&mut self, name: String) {
        let file = self.dir.root().join(&name);
        match checked_path(self.dir, &name) {
            Ok(_) => {
                // Only for the progress display. The real length is measured when the file is read.
                let bytes_listed = file.symlink_metadata().map_or(0, |found| found.len());
                self.sources.push(ArchiveSource { file, name, bytes_listed });
            }
            Err(reason) => self.skip(&file, reason),
        }
    }

    fn skip(&mut self, file: &Utf8Path, reason: impl std::fmt::Display) {
        self.skipped.push(format!("{file}: {reason}"));
    }
}

/// Returns the number of bytes to archive: the whole file, or only the complete lines of a
/// transcript.
fn measure(file: &mut File, name: &str) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let is_log = name.ends_with(".jsonl") && !is_sent_file(Utf8Path::new(name));
    // A transcript may be in the middle of an append. Its partial last line is not part of it.
    let bytes = if is_log { whole_lines(file, len)? } else { len };
    file.rewind()?;
    Ok(bytes)
}

/// Returns the end of the last complete line within the first `len` bytes.
fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
    let mut end = len;
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let size = usize::try_from(end - start).expect("at most a chunk");
        file.seek(SeekFrom::Start(start))?;
        // The file may shrink while it is read, which is reported as an error and not padded.
        file.read_exact(&mut chunk[..size])?;
        if let Some(at) = chunk[..size].iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

struct ArchiveWriter<'p> {
    manifest: ArchiveManifest,
    now: Timestamp,
    done: u64,
    total: u64,
    progress: &'p mut dyn FnMut(u64, u64),
}

impl ArchiveWriter<'_> {
    fn pack<W: Write>(
        &mut self,
        out: W,
        sources: &[ArchiveSource],
        skipped: &mut Vec<String>,
    ) -> Result<W, ArchiveError> {
        let mut tar = tar::Builder::new(out);
        for source in sources {
            match untrusted_file::open(&source.file) {
                Ok(file) => {
                    self.add(&mut tar, source, file).map_err(at("archive", &source.file))?;
                }
                // The file was purged or rotated since it was listed, or it is a link or a pipe.
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) =>
                {
                    skipped.push(format!("{}: {error}", source.file));
                }
                Err(error) => return Err(at("open", &source.file)(error)),
            }
            self.done += source.bytes_listed;
            (self.progress)(self.done, self.total);
        }
        let text = serde_json::to_vec_pretty(&self.manifest).expect("a manifest is plain data");
        let mut header = self.header(text.len() as u64);
        let path = Utf8Path::new(MANIFEST);
        tar.append_data(&mut header, MANIFEST, text.as_slice()).map_err(at("write", path))?;
        tar.into_inner().map_err(at("write", path))
    }

    fn add<W: Write>(
        &mut self,
        tar: &mut tar::Builder<W>,
        source: &ArchiveSource,
        mut file: File,
    ) -> io::Result<()> {
        // Measured through the open file, because the name may belong to another file by now.
        let bytes = measure(&mut file, &source.name)?;
        let mut header = self.header(bytes);
        // The header promises a length, so a file that grows is read only up to it.
        let mut reader = HashingReader::new(file.take(bytes));
        tar.append_data(&mut header, &source.name, &mut reader)?;
        if reader.bytes != bytes {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        let (bytes, sha256) = (reader.bytes, reader.sha256());
        self.manifest.files.push(ManifestFile { path: source.name.clone(), bytes, sha256 });
        Ok(())
    }

    fn header(&self, bytes: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.now.as_second()).unwrap_or(0));
        header
    }
}

/// Reader that hashes and counts the bytes that pass through it.
pub(crate) struct HashingReader<R> {
    inner: R,
    hash: Sha256,
    pub(crate) bytes: u64,
}

impl<R> HashingReader<R> {
    pub(crate) fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Sha256::new(), bytes: 0 }
    }

    pub(crate) fn sha256(self) -> String {
        hex(&self.hash.finalize())
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.hash.update(&into[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

fn at(attempt: &'static str, path: &Utf8Path) -> impl FnOnce(io::Error) -> ArchiveError {
    move |source| ArchiveError::Io { attempt, path: path.to_owned(), source }
}
