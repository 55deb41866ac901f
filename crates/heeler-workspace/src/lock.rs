//! Locks of a snapshot repository: many operations share it, pruning needs it exclusively.
//!
//! A git child holds the lock too (as its standard input), so that a lock is free only when parent
//! and child have both ended, even if they were killed.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_transcript::untrusted_file;

use crate::git_command::GIT_TIME_MAX;
use crate::snapshot_store::SnapshotError;

/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(3);

/// Time to wait for a lock: a few times git's own time limit, which bounds every holder.
const LOCK_WAIT_MAX: Duration = GIT_TIME_MAX.saturating_mul(4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    Shared,
    Exclusive,
}

/// Acquires a lock and waits for its holder.
pub(crate) fn acquire(path: &Utf8Path, hold: LockMode) -> Result<File, SnapshotError> {
    let deadline = Instant::now() + LOCK_WAIT_MAX;
    loop {
        if let Some(file) = try_acquire(path, hold)? {
            return Ok(file);
        }
        if Instant::now() >= deadline {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(SnapshotError::Io { attempt: "lock", path: path.to_owned(), source });
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Acquires a lock if it is free.
pub(crate) fn try_acquire(path: &Utf8Path, hold: LockMode) -> Result<Option<File>, SnapshotError> {
    let error = |source| SnapshotError::Io { attempt: "lock", path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    // Not truncated: the file has no content, and another process may hold it.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = untrusted_file::open_with(&mut options, path).map_err(error)?;
    let taken = if hold == LockMode::Shared { file.try_lock_shared() } else { file.try_lock() };
    match taken {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(error(source)),
    }
}
