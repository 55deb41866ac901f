//! A whole state directory in one file: `heeler backup FILE`. The way back is in `restore`.
//!
//! The archive is a tar: a snapshot of the database, then every file in whole lines, then a
//! manifest with their hashes. It is made beside a living writer and has its final name only when
//! it is complete. Start at [`backup_to_file`].

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
use crate::layout::StateDir;
use crate::restore::checked_path;
use crate::sent_files::is_sent_file;
use crate::views::hex;
use heeler_transcript::untrusted_file;

/// The archive's format; a reader refuses a newer one.
pub(crate) const ARCHIVE_VERSION: u32 = 1;

/// What the database is called inside.
pub(crate) const DATABASE: &str = "heeler.db";

/// The last entry: what must be in the archive.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The folders whose files are archived, ours and those that herdctl left, and the one file at the
/// root. Not in it: earlier backups, and `.before-heeler`.
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

/// How much is read at a time.
pub(crate) const CHUNK: usize = 64 * 1024;

/// What an archive says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveManifest {
    /// The archive's own format.
    pub version: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// The database's schema.
    pub schema: i64,
    /// How many jobs it holds.
    pub jobs: i64,
    /// How many sessions it holds.
    pub sessions: i64,
    /// Every file in it.
    pub files: Vec<ManifestFile>,
}

/// One file of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Relative to the state directory.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its hash.
    pub sha256: String,
}

/// What went into an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveReport {
    /// What the archive says of itself.
    pub manifest: ArchiveManifest,
    /// How long the file is.
    pub bytes: u64,
    /// Files that are not in it, each with the reason.
    pub skipped: Vec<String>,
}

/// Why an archive could not be made.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The database could not be copied.
    #[error("cannot copy the database for the archive")]
    Snapshot(#[from] BackupError),
    /// The copy could not be opened.
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    /// The copy could not be read.
    #[error(transparent)]
    Db(#[from] DatabaseError),
    /// A file could not be read or written.
    #[error("cannot {attempt} {path}")]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A file that is removed when it goes out of scope.
pub(crate) struct TempFileGuard(pub(crate) Utf8PathBuf);

impl TempFileGuard {
    /// Names a draft beside `path`; the name is one that is swept after a crash.
    pub(crate) fn for_target(path: &Utf8Path) -> TempFileGuard {
        TempFileGuard(temp_name(path))
    }
}

impl Drop for TempFileGuard {
    fn drop(&mut self) {
        // Gone already when it was given its final name.
        drop(std::fs::remove_file(&self.0));
    }
}

/// Writes the whole state to `file`: tar, or gzip where its name ends in `.gz` or `.tgz`.
///
/// Works while a writer lives. `progress` is told bytes done and bytes in all, as they were listed.
pub fn backup_to_file(
    dir: &StateDir,
    file: &Utf8Path,
    now: Timestamp,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ArchiveReport, ArchiveError> {
    let copy = TempFileGuard::for_target(&file.with_extension("db"));
    // Before the logs: what the database knows of is then surely in them.
    snapshot(&dir.database(), &copy.0)?;
    let db = StateDatabase::private(&copy.0)?;
    let manifest = ArchiveManifest {
        version: ARCHIVE_VERSION,
        created_at: now,
        schema: db.schema_version()?,
        jobs: db.count_jobs(&JobFilter::default())?,
        sessions: db.count_sessions(&SessionFilter::default())?,
        files: Vec::new(),
    };
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
    OsDisk.rename(draft, file).map_err(at("put in place", file))?;
    let folder = match file.parent() {
        Some(folder) if !folder.as_str().is_empty() => folder,
        _ => Utf8Path::new("."),
    };
    OsDisk.sync_folder(folder).map_err(at("sync", folder))?;
    Ok(bytes)
}

/// A file to be archived: where it is, what it is called inside, and how long it was when it was
/// listed. It may have grown, shrunk or gone when its turn comes.
struct ArchiveSource {
    file: Utf8PathBuf,
    name: String,
    bytes_listed: u64,
}

/// What is to be archived, and what is not, with the reason.
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
                // Hidden files are drafts and caches; locks mean nothing elsewhere.
                Ok(name) if name.starts_with('.') => {}
                Ok(name)
                    if (name == "lock" || name.ends_with(".lock"))
                        && !is_sent_file(&folder.join(&name)) => {}
                Ok(name) => names.push((name, entry.file_type().map_err(at("inspect", &folder))?)),
                Err(name) => self.skip(&folder.join(name.to_string_lossy().as_ref()), "not UTF-8"),
            }
        }
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (entry, kind) in names {
            let inner = format!("{name}/{entry}");
            if kind.is_dir() {
                self.folder(&inner)?;
            } else if kind.is_file() {
                self.file(inner);
            } else if kind.is_symlink() && !inner.ends_with(".context") {
                // Sockets have no content, and our own links are published again; others are told.
                self.skip(&self.dir.root().join(inner), "it is a symbolic link");
            }
        }
        Ok(())
    }

    /// Lists a file, unless a restore would refuse the whole archive for it.
    fn file(&mut self, name: String) {
        let file = self.dir.root().join(&name);
        match checked_path(self.dir, &name) {
            Ok(_) => {
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

/// Returns how much of a file counts: all of it, but only the whole lines of a transcript.
fn measure(file: &mut File, name: &str) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let is_log = name.ends_with(".jsonl") && !is_sent_file(Utf8Path::new(name));
    let bytes = if is_log { whole_lines(file, len)? } else { len };
    file.rewind()?;
    Ok(bytes)
}

/// Returns where the last whole line within the first `len` bytes ends.
fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
    let mut end = len;
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let size = usize::try_from(end - start).expect("at most a chunk");
        file.seek(SeekFrom::Start(start))?;
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
                // Purged or rotated since it was listed; a link, a pipe.
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
        // Measured through the open file: the name may mean another one by now.
        let bytes = measure(&mut file, &source.name)?;
        let mut header = self.header(bytes);
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

/// Hashes and counts what is read through it.
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
