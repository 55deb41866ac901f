//! Destinations of a daemon's log: stderr and, once opened, a rotating file.
//!
//! In the background both are the same file; each line is then written once, and the file may be
//! rotated.

use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use camino::Utf8Path;
use heeler_config::LogRotation;
use heeler_engine::logs::RotatingLog;

static LOG: OnceLock<Mutex<RotatingLog>> = OnceLock::new();

/// True if stderr is the log file, so that a line would be written twice.
static IS_STDERR: AtomicBool = AtomicBool::new(false);

/// Also writes all further log lines to a file. Failure only causes a warning: the daemon works
/// without a log file.
pub(crate) fn log_to_file(path: &Utf8Path, limits: LogRotation) {
    let log = match RotatingLog::open(path, limits) {
        Ok(log) => log,
        Err(error) => return tracing::warn!("cannot write {path}: {error}"),
    };
    // In the background the starting process has opened the same file as stderr.
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let same = stderr.and_then(|file| file.metadata()).is_ok_and(|found| log.is_same(&found));
    IS_STDERR.store(same, Ordering::Relaxed);
    if LOG.set(Mutex::new(log)).is_err() {
        tracing::debug!("the log file was opened already");
    }
}

/// Writer to stderr, unless stderr is the log file.
pub(super) struct DaemonStderr;

impl Write for DaemonStderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match IS_STDERR.load(Ordering::Relaxed) {
            // The file layer writes the line, and only it may rotate the file.
            true => Ok(text.len()),
            false => io::stderr().write(text),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Writer to the log file, once it is open.
pub(super) struct DaemonLogFile;

impl Write for DaemonLogFile {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match LOG.get() {
            // A panic while logging must not silence the daemon.
            Some(log) => log.lock().unwrap_or_else(PoisonError::into_inner).write(text),
            None => Ok(text.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
