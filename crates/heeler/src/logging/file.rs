//! The daemon's log as a file, which is set aside when it has grown.
//!
//! In the background stderr is that same file, opened by whoever started us, for what is said before
//! the log is known and for panics. Then nothing is written twice.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use heeler_engine::logs::RotatingLog;

use super::SECRETS;

/// The log, once it is known.
static LOG: OnceLock<(Mutex<RotatingLog>, bool)> = OnceLock::new();

/// Keeps what is logged from now on in a file.
pub(crate) fn keep_in(log: RotatingLog) {
    let own = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let is_stderr = own.and_then(|own| own.metadata()).is_ok_and(|own| log.is_same(&own));
    // A process is a daemon once.
    drop(LOG.set((Mutex::new(log), is_stderr)));
}

/// Says whether stderr is the log, so that it need not be written to.
pub(super) fn is_stderr() -> bool {
    LOG.get().is_some_and(|(_, is_stderr)| *is_stderr)
}

/// Writes to the log; to nowhere before it is known. Each write is whole lines.
pub(super) struct Kept;

impl Kept {
    pub(super) fn new() -> Kept {
        Kept
    }
}

impl Write for Kept {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if let Some((log, _)) = LOG.get() {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            match SECRETS.get() {
                Some(secrets) => log.append(&secrets.bytes(text))?,
                None => log.append(text)?,
            }
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
