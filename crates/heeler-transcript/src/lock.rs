//! Locks between processes: one `flock` per file, released by the kernel when its holder dies.
//!
//! A lock file is never unlinked: unlinking and recreating it would give the lock to two holders.
//! The holder writes its identity into the file, for the message to a refused process. Start at
//! [`LockFile`].

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::untrusted_file;

/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Limit on the bytes read of a lock file; a holder record is far smaller.
const HOLDER_BYTES_MAX: u64 = 4096;

/// Identity of a lock's holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    pub pid: u32,
    /// Command of the holder: `start`, `import herdctl`, `restore`.
    pub command: String,
    /// Time of acquisition.
    pub since: Timestamp,
}

impl LockHolder {
    pub fn this_process(command: &str, now: Timestamp) -> LockHolder {
        LockHolder { pid: std::process::id(), command: command.to_owned(), since: now }
    }
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LockHolder { pid, command, since } = self;
        write!(
            f,
            "`heeler {command}`, process {pid}, since {}",
            since.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
        )
    }
}

/// Reason that a lock was not acquired.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{path} is held by {}", holder.as_ref().map_or("another process".to_owned(), ToString::to_string))]
    Held {
        path: Utf8PathBuf,
        /// The holder, if the file names it.
        holder: Option<LockHolder>,
    },
    /// This process may not hold it.
    #[error("{path} is refused to this process: {reason}")]
    Forbidden { path: Utf8PathBuf, reason: String },
    /// The file could not be used.
    #[error("cannot {attempt} the lock file {path}")]
    Io {
        /// Operation that failed.
        attempt: &'static str,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Held lock; dropping it releases it.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: Utf8PathBuf,
}

impl LockFile {
    /// Acquires the lock, retrying until `wait` has passed (a probe may hold it for an instant).
    pub fn acquire(
        path: &Utf8Path,
        holder: &LockHolder,
        wait: Duration,
    ) -> Result<LockFile, LockError> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(mut lock) = LockFile::try_acquire(path)? {
                // Signed only after the lock is held, so the file never names a process that was
                // refused.
                lock.write_holder(holder).map_err(|source| io_error("sign", path, source))?;
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                return Err(LockError::Held { path: path.to_owned(), holder: read_holder(path) });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    fn try_acquire(path: &Utf8Path) -> Result<Option<LockFile>, LockError> {
        loop {
            let file = open(path).map_err(|source| io_error("open", path, source))?;
            match file.try_lock() {
                Ok(()) => {}
                // An open file without the lock is dropped. Waiting here would ignore the caller's
                // deadline.
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(source)) => return Err(io_error("lock", path, source)),
            }
            // A file that was unlinked or replaced meanwhile guards nothing: lock the new one.
            if is_still_at(&file, path).map_err(|source| io_error("check", path, source))? {
                return Ok(Some(LockFile { file, path: path.to_owned() }));
            }
        }
    }

    /// Returns the state of a held lock; `None` if it is free.
    ///
    /// The probe takes a shared lock for an instant, which is why [`LockFile::acquire`] waits.
    pub fn probe(path: &Utf8Path) -> Result<Option<LockState>, LockError> {
        let file = match refuse_hard_link(untrusted_file::open(path)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io_error("open", path, source)),
        };
        // A shared lock lets several probes run at once without refusing each other.
        match file.try_lock_shared() {
            // The lock is released when the file is dropped at the end of this function.
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(LockState { holder: read_holder(path) })),
            Err(TryLockError::Error(source)) => Err(io_error("probe", path, source)),
        }
    }

    /// Returns true if the lock still guards its path: the file was not unlinked or replaced.
    pub fn is_intact(&self) -> bool {
        // An unreadable path counts as lost: the caller stops instead of working without a lock.
        is_still_at(&self.file, &self.path).unwrap_or(false)
    }

    /// Wakes the processes that watch the lock file: the holder has changed what it guards.
    pub fn announce_change(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: keep, last_modification: now };
        // If it fails, the watchers notice the change at their next poll.
        let _touched = futimens(&self.file, &times);
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Returns the open lock file, for a child process that must hold the lock too: the lock is
    /// free once the last of them has closed it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Releases the lock, but keeps its file open, so that [`SuspendedLock::resume`] gives it to this
    /// process and to the children that inherited it. Meanwhile none of them holds it.
    pub fn suspend(self) -> Result<SuspendedLock, LockError> {
        let LockFile { file, path } = self;
        file.unlock().map_err(|source| io_error("release", &path, source))?;
        Ok(SuspendedLock { file, path })
    }

    /// Writes the holder's identity, unless the file holds data that is not a lock record: links in
    /// a path may lead to any file.
    fn write_holder(&mut self, holder: &LockHolder) -> io::Result<()> {
        let mut text = Vec::new();
        (&self.file).take(HOLDER_BYTES_MAX + 1).read_to_end(&mut text)?;
        // Checked after locking, and before any byte is changed.
        if !is_holder_text(&text) {
            let reason = "it is not a lock file; move it away";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let mut line = serde_json::to_vec(holder)?;
        line.push(b'\n');
        self.file.set_len(0)?;
        self.file.rewind()?;
        // Not synced: after a power loss no process holds the lock, so the name has no use.
        self.file.write_all(&line)
    }
}

/// Lock that this process has released for a while.
#[derive(Debug)]
pub struct SuspendedLock {
    file: File,
    path: Utf8PathBuf,
}

impl SuspendedLock {
    /// Acquires the lock again, retrying until `wait` has passed.
    pub fn resume(self, holder: &LockHolder, wait: Duration) -> Result<LockFile, LockError> {
        let SuspendedLock { file, path } = self;
        let deadline = Instant::now() + wait;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    let holder = read_holder(&path);
                    return Err(LockError::Held { path, holder });
                }
                Err(TryLockError::Error(source)) => return Err(io_error("lock", &path, source)),
            }
        }
        let mut lock = LockFile { file, path };
        // A file that was unlinked or replaced meanwhile guards nothing.
        if !lock.is_intact() {
            return Err(LockError::Held { path: lock.path, holder: None });
        }
        let signed = lock.file.rewind().and_then(|()| lock.write_holder(holder));
        match signed {
            Ok(()) => Ok(lock),
            Err(source) => Err(io_error("sign", &lock.path, source)),
        }
    }
}

/// State of a held lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockState {
    /// The holder, if the file names it.
    pub holder: Option<LockHolder>,
}

fn open(path: &Utf8Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Not truncated on opening: the file may name a live holder.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    refuse_hard_link(untrusted_file::open_with(&mut options, path))
}

/// Refuses a file with a second name: writing the holder would destroy its content. A file without
/// any name has been replaced meanwhile.
fn refuse_hard_link(opened: io::Result<File>) -> io::Result<File> {
    let file = opened?;
    if file.metadata()?.nlink() > 1 {
        let reason = "it has a second name (a hard link); remove it";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(file)
}

/// Returns true for a holder record, or for the remains of one after a power loss: its beginning,
/// or zeros.
fn is_holder_text(text: &[u8]) -> bool {
    const BEGIN: &[u8] = b"{\"pid\":";
    // A file system may fill an unsynced file with zeros after a power loss.
    let shown = text.iter().position(|&byte| byte == 0).map_or(text, |end| &text[..end]);
    let is_ours = shown.starts_with(BEGIN) || BEGIN.starts_with(shown);
    is_ours && text.len() as u64 <= HOLDER_BYTES_MAX
}

fn is_still_at(file: &File, path: &Utf8Path) -> io::Result<bool> {
    let held = file.metadata()?;
    // Links are not followed, because the lock must guard this path and not the target of a link.
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(held.dev() == found.dev() && held.ino() == found.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_holder(path: &Utf8Path) -> Option<LockHolder> {
    let mut text = Vec::new();
    untrusted_file::open(path).ok()?.take(HOLDER_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn io_error(attempt: &'static str, path: &Utf8Path, source: io::Error) -> LockError {
    LockError::Io { attempt, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_lock_is_not_signed() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("id_ed25519");
        let holder = LockHolder::this_process("test", Timestamp::UNIX_EPOCH);
        let take = || LockFile::acquire(&path, &holder, Duration::ZERO);
        let long = format!("{{\"pid\":1{}", " ".repeat(HOLDER_BYTES_MAX as usize));
        for foreign in ["-----BEGIN OPENSSH PRIVATE KEY-----\n", "{\"name\": 1}", "\n", &long] {
            std::fs::write(&path, foreign).unwrap();
            let error = take().unwrap_err();
            assert!(matches!(error, LockError::Io { attempt: "sign", .. }), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
        }
        // Remains of a holder record, complete or truncated.
        for ours in ["", "{\"pi", "{\"pid\":7,\"comm", "\0\0\0", "{\"pid\":\0\0"] {
            std::fs::write(&path, ours).unwrap();
            drop(take().unwrap());
            drop(take().unwrap());
        }
    }

    #[test]
    fn a_suspended_lock_is_free_and_a_resumed_one_is_held_by_the_same_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("lock");
        let holder = LockHolder::this_process("test", Timestamp::UNIX_EPOCH);
        let take = || LockFile::acquire(&path, &holder, Duration::ZERO);
        let lock = take().unwrap();
        let inherited = lock.fd().try_clone_to_owned().unwrap();
        let suspended = lock.suspend().unwrap();
        let other = take().unwrap();
        assert!(matches!(
            suspended.resume(&holder, Duration::ZERO),
            Err(LockError::Held { holder: Some(_), .. })
        ));
        drop(other);
        let suspended = take().unwrap().suspend().unwrap();
        let resumed = suspended.resume(&holder, Duration::ZERO).unwrap();
        assert!(LockFile::probe(&path).unwrap().is_some());
        // A child with a copy of the file holds the lock, too.
        let copy = resumed.fd().try_clone_to_owned().unwrap();
        drop(resumed);
        assert!(take().is_err());
        drop((copy, inherited));
        let suspended = take().unwrap().suspend().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(suspended.resume(&holder, Duration::ZERO).is_err(), "it guards nothing");
    }
}
