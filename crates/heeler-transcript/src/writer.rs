//! The only writer of a transcript.
//!
//! A [`TranscriptWriter`] holds an exclusive lock on its file and appends whole lines, one `write`
//! per call. After any failure, no half line stays behind, and a line that readers could have seen
//! is never removed. It must not retry a failed sync, or continue after one. Start at
//! [`TranscriptWriter::open`].

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use memchr::{memchr, memchr_iter, memrchr};
use thiserror::Error;

use crate::disk::{DiskBackend, DiskError, OsDisk, folder_of};
use crate::record::{LINE_BYTES_MAX, is_record};
use crate::repair::{TailRepair, repair_tail};
use crate::syncer;

/// Approximate size of one `write` by [`TranscriptWriter::append_all`].
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Time at which an appended line survives a power loss. It survives a crash of Heeler at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TranscriptDurability {
    /// When the append returns.
    Event,
    /// Within one second.
    #[default]
    Interval,
}

/// Options for opening a [`TranscriptWriter`].
#[derive(Debug, Clone)]
pub struct TranscriptWriterOptions {
    pub durability: TranscriptDurability,
    pub disk: Arc<dyn DiskBackend>,
}

impl Default for TranscriptWriterOptions {
    fn default() -> Self {
        Self { durability: TranscriptDurability::default(), disk: Arc::new(OsDisk) }
    }
}

/// Transcript that is ready for appends.
#[derive(Debug)]
pub struct OpenedTranscript {
    pub writer: TranscriptWriter,
    /// Repair that was made first.
    pub repair: Option<TailRepair>,
}

/// Reason that a transcript could not be opened.
#[derive(Debug, Error)]
pub enum TranscriptOpenError {
    /// Another process, or another part of this one, has it open.
    #[error("transcript {path} already has a writer; wait until it ends, or stop it")]
    Busy { path: Utf8PathBuf },
    /// A directory, a pipe or a device has the transcript's name.
    #[error("transcript {path} is not a regular file")]
    NotAFile { path: Utf8PathBuf },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Reason that a line was not acknowledged.
#[derive(Debug, Error)]
pub enum AppendError {
    /// The line is not exactly one JSON object without newlines, so readers would not show it.
    #[error("cannot append to transcript {path}: the line is not one JSON object")]
    NotARecord { path: Utf8PathBuf },
    /// The line is longer than [`LINE_BYTES_MAX`].
    #[error(
        "cannot append to transcript {path}: the line has {len} bytes, at most {max} are allowed"
    )]
    TooLong {
        path: Utf8PathBuf,
        /// Length of the line in bytes.
        len: usize,
        max: usize,
    },
    /// The disk accepted less than the line. No part of it remains; try again when there is space.
    #[error("cannot append to transcript {path}; try again when the disk accepts writes")]
    Write {
        path: Utf8PathBuf,
        /// Number of lines given to [`TranscriptWriter::append_all`] that are in the file, as if
        /// each had been appended alone. Always 0 for [`TranscriptWriter::append`].
        appended: usize,
        #[source]
        source: io::Error,
    },
    /// A half line could not be cut off again. The transcript must be reopened, which repairs it.
    #[error("transcript {path} ends in a half line that cannot be cut off; reopen it")]
    HalfLine {
        path: Utf8PathBuf,
        /// Reason that cutting it off failed.
        #[source]
        source: io::Error,
    },
    /// The line may not survive a power loss. The transcript must be reopened.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

/// A sync failed, now or earlier; the transcript refuses appends until it is reopened.
#[derive(Debug, Error)]
pub enum SyncError {
    /// The sync failed now.
    #[error("cannot sync transcript {path}; unsynced lines may be lost in a power loss")]
    Failed {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// An earlier operation failed.
    #[error("transcript {path} accepts no more lines because {reason}; reopen it")]
    Refused {
        path: Utf8PathBuf,
        /// Earlier failure.
        reason: String,
    },
}

/// The only writer of a transcript.
#[derive(Debug)]
pub struct TranscriptWriter {
    core: Arc<SyncedFile>,
    durability: TranscriptDurability,
    /// Length of the file; it ends in a newline or is empty.
    len: u64,
    /// Bytes of the current write.
    batch: Vec<u8>,
}

/// Part of a transcript that the background sync shares.
#[derive(Debug)]
pub(crate) struct SyncedFile {
    path: Utf8PathBuf,
    file: File,
    disk: Arc<dyn DiskBackend>,
    /// Bytes were written since the last sync began.
    dirty: AtomicBool,
    /// The file was empty when it was opened, and was not synced since: its name may not be on stable
    /// storage.
    is_name_unsynced: AtomicBool,
    /// Reason that no more lines are accepted.
    failure: OnceLock<String>,
    /// Held during a sync: the kernel reports a failure to one caller only.
    syncing: Mutex<()>,
}

impl TranscriptWriter {
    /// Opens or creates the file, takes its lock, and repairs a torn tail.
    ///
    /// When it returns, the content of the file is on stable storage: the previous writer may have
    /// been killed before it synced it. The name of an empty file follows with the first sync: until
    /// then there is no line to lose.
    pub fn open(
        path: &Utf8Path,
        options: TranscriptWriterOptions,
    ) -> Result<OpenedTranscript, TranscriptOpenError> {
        let TranscriptWriterOptions { durability, disk } = options;
        let file = open_locked(disk.as_ref(), path)?;
        // The lock comes first: the tail of a file with a live writer is a line in progress, not
        // damage.
        let repair = repair_tail(disk.as_ref(), path, &file)?;
        // Read after the repair, which may have added a newline or cut the tail.
        let len = file.metadata().map_err(DiskError::at("read", path))?.len();
        let is_unused = len == 0 && repair.is_none();
        // A new run has two empty transcripts, and its agent does not wait for their names.
        if !is_unused {
            // Synced even without a repair: lines of a killed writer may have been displayed already.
            disk.sync(&file).map_err(DiskError::at("sync", path))?;
            let folder = folder_of(path);
            disk.sync_folder(folder).map_err(DiskError::at("sync folder", folder))?;
        }
        let core = SyncedFile {
            path: path.to_owned(),
            file,
            disk,
            dirty: AtomicBool::new(false),
            is_name_unsynced: AtomicBool::new(is_unused),
            failure: OnceLock::new(),
            syncing: Mutex::new(()),
        };
        let writer = Self { core: Arc::new(core), durability, len, batch: Vec::new() };
        Ok(OpenedTranscript { writer, repair })
    }

    pub fn path(&self) -> &Utf8Path {
        &self.core.path
    }

    /// Returns the length of the file: the offset of the next line.
    pub fn end(&self) -> u64 {
        self.len
    }

    /// Appends one line, given without its newline.
    ///
    /// On `Ok` the whole line is in the file and survives a crash of this process;
    /// [`TranscriptDurability`] determines when it survives a power loss.
    pub fn append(&mut self, line: &[u8]) -> Result<(), AppendError> {
        self.append_all(&[line])
    }

    /// Appends lines in as few writes as sensible.
    ///
    /// All lines are checked before the first is written. If a write fails, the lines before the
    /// failure are in the file and counted in [`AppendError::Write`]; none is there in part.
    pub fn append_all(&mut self, lines: &[&[u8]]) -> Result<(), AppendError> {
        // After a failed sync the kernel forgets the lost pages, so a later success would prove
        // nothing.
        self.core.refuse_after_failure()?;
        // All lines are checked first, so that a refused line does not leave its predecessors
        // appended.
        for line in lines {
            self.check_line(line)?;
        }
        let mut appended = 0;
        let mut failed = None;
        let mut lines = lines.iter().peekable();
        while failed.is_none() && lines.peek().is_some() {
            self.batch.clear();
            while self.batch.len() < BATCH_BYTES
                && let Some(line) = lines.next()
            {
                self.batch.extend_from_slice(line);
                self.batch.push(b'\n');
            }
            let (whole, result) = self.write_batch();
            appended += whole;
            failed = result.err();
        }
        // Lines before it are neither synced nor counted: reopening syncs and repairs the file.
        if let Some(WriteFailure::HalfLine(source)) = failed {
            return Err(AppendError::HalfLine { path: self.core.path.clone(), source });
        }
        // Lines before a failed write stay in the file, so they need the same durability as others.
        if appended > 0 {
            self.make_durable()?;
        }
        match failed {
            Some(WriteFailure::Refused(source)) => {
                Err(AppendError::Write { path: self.core.path.clone(), appended, source })
            }
            _ => Ok(()),
        }
    }

    /// Returns once every appended line survives a power loss.
    pub fn sync(&mut self) -> Result<(), SyncError> {
        self.core.sync()
    }

    /// Syncs and closes the transcript. Dropping it does the same and hides the error.
    pub fn close(mut self) -> Result<(), SyncError> {
        self.sync()
    }

    fn check_line(&self, line: &[u8]) -> Result<(), AppendError> {
        let path = || self.core.path.clone();
        if line.len() > LINE_BYTES_MAX {
            return Err(AppendError::TooLong {
                path: path(),
                len: line.len(),
                max: LINE_BYTES_MAX,
            });
        }
        // A newline inside a line would make two lines of one, with other numbers for all later
        // ones.
        if memchr(b'\n', line).is_some() || !is_record(line) {
            return Err(AppendError::NotARecord { path: path() });
        }
        Ok(())
    }

    /// Makes one write; returns the number of whole lines it left in the file.
    fn write_batch(&mut self) -> (usize, Result<(), WriteFailure>) {
        // One call per batch, so that after a failure the file ends in a prefix of the batch.
        let written = self.core.disk.write(&self.core.file, &self.batch);
        let source = match written {
            Ok(len) if len == self.batch.len() => {
                self.len += len as u64;
                return (count_lines(&self.batch), Ok(()));
            }
            Ok(len) => short_write(len, self.batch.len()),
            Err(source) => source,
        };
        match self.cut_half_line() {
            Ok(whole) => {
                self.len += whole as u64;
                // An error may be reported although all bytes arrived; the lines are then appended.
                let all = whole == self.batch.len();
                let result = if all { Ok(()) } else { Err(WriteFailure::Refused(source)) };
                (count_lines(&self.batch[..whole]), result)
            }
            Err(cut) => {
                self.core.record_failure(format!("a half line could not be cut off ({cut})"));
                (0, Err(WriteFailure::HalfLine(cut)))
            }
        }
    }

    /// Cuts the bytes that a failed write left after its last whole line; returns the number of
    /// bytes kept.
    ///
    /// Whole lines stay: a reader may have shown them already.
    fn cut_half_line(&self) -> io::Result<usize> {
        let core = &self.core;
        // The file is inspected because a failed call does not tell how many bytes arrived.
        let found = core.file.metadata()?.len().checked_sub(self.len);
        let found = found.and_then(|len| usize::try_from(len).ok());
        let Some(found) = found.filter(|&len| len <= self.batch.len()) else {
            return Err(io::Error::other("another process has changed the file"));
        };
        let mut bytes = vec![0; found];
        core.file.read_exact_at(&mut bytes, self.len)?;
        // The lock is advisory. Bytes of another program must not be cut.
        if bytes != self.batch[..found] {
            return Err(io::Error::other("another process has changed the file"));
        }
        let whole = memrchr(b'\n', &bytes).map_or(0, |newline| newline + 1);
        if whole < found {
            core.disk.truncate(&core.file, self.len + whole as u64)?;
        }
        Ok(whole)
    }

    fn make_durable(&mut self) -> Result<(), SyncError> {
        let was_dirty = self.core.dirty.swap(true, Ordering::SeqCst);
        match self.durability {
            TranscriptDurability::Event => self.core.sync(),
            // A sync is already scheduled and will cover this line.
            TranscriptDurability::Interval if was_dirty => Ok(()),
            TranscriptDurability::Interval => {
                if syncer::schedule_sync(&self.core) {
                    Ok(())
                } else {
                    // No thread could be started: syncing here is slower, but as safe.
                    self.core.sync()
                }
            }
        }
    }
}

impl Drop for TranscriptWriter {
    fn drop(&mut self) {
        // `drop` cannot return the error; callers that need it use `close`.
        drop(self.core.sync());
        // The background sync may hold the file for a moment longer than the writer.
        drop(self.core.file.unlock());
    }
}

impl SyncedFile {
    /// Syncs if bytes were written since the last sync, or if the name was never synced. A failure is
    /// final.
    pub(crate) fn sync(&self) -> Result<(), SyncError> {
        let _guard = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        self.refuse_after_failure()?;
        // Cleared before the sync: bytes written during it need another one.
        let is_dirty = self.dirty.swap(false, Ordering::SeqCst);
        let is_name_unsynced = self.is_name_unsynced.swap(false, Ordering::SeqCst);
        if !is_dirty && !is_name_unsynced {
            return Ok(());
        }
        let synced = self.disk.sync(&self.file).and_then(|()| match is_name_unsynced {
            true => self.disk.sync_folder(folder_of(&self.path)),
            false => Ok(()),
        });
        synced.map_err(|source| {
            self.record_failure(format!("a sync failed ({source})"));
            SyncError::Failed { path: self.path.clone(), source }
        })
    }

    fn record_failure(&self, reason: String) {
        // The first failure is the one to report.
        drop(self.failure.set(reason));
    }

    fn refuse_after_failure(&self) -> Result<(), SyncError> {
        match self.failure.get() {
            None => Ok(()),
            Some(reason) => {
                Err(SyncError::Refused { path: self.path.clone(), reason: reason.clone() })
            }
        }
    }
}

/// Reason that one write did not accept all bytes.
enum WriteFailure {
    /// No half line remains.
    Refused(io::Error),
    /// A half line remains, for this reason.
    HalfLine(io::Error),
}

fn short_write(written: usize, wanted: usize) -> io::Error {
    let message = format!("only {written} of {wanted} bytes were written; the disk may be full");
    io::Error::new(io::ErrorKind::StorageFull, message)
}

fn count_lines(bytes: &[u8]) -> usize {
    memchr_iter(b'\n', bytes).count()
}

/// Opens or creates the file and takes its lock.
fn open_locked(disk: &dyn DiskBackend, path: &Utf8Path) -> Result<File, TranscriptOpenError> {
    loop {
        // Opened without waiting or truncating: the file may belong to a live writer.
        let file = open_or_create(disk, path).map_err(DiskError::at("open", path))?;
        let opened = file.metadata().map_err(DiskError::at("read", path))?;
        if !opened.is_file() {
            return Err(TranscriptOpenError::NotAFile { path: path.to_owned() });
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(TranscriptOpenError::Busy { path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => {
                // A file system without locks is an error. Two writers would tear each other's
                // lines.
                return Err(DiskError::at("lock", path)(source).into());
            }
        }
        // A lock on a file that was replaced meanwhile excludes no other process.
        if let Ok(named) = std::fs::metadata(path)
            && (named.dev(), named.ino()) == (opened.dev(), opened.ino())
        {
            return Ok(file);
        }
    }
}

fn open_or_create(disk: &dyn DiskBackend, path: &Utf8Path) -> io::Result<File> {
    loop {
        // Opening and creating are separate calls because only the creation must go through `disk`.
        match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        match disk.create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // A dangling link would neither be readable nor creatable, forever.
                if path.is_symlink() {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}
