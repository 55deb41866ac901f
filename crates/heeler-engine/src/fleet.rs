//! A fleet's state, and how one of several processes becomes its writer for a moment.

use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_store::{StateDir, Store, StoreOpenError};
use heeler_transcript::LockError;
use jiff::Timestamp;
use thiserror::Error;

/// How often a state is looked at that is being restored. Opening waits for other writers itself.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A fleet, as every step of a job needs to know it.
#[derive(Debug, Clone)]
pub struct EngineContext {
    /// Its state directory.
    pub dir: StateDir,
    /// Our own program, which runners are.
    pub program: Utf8PathBuf,
    /// The variables that our own processes get; agents get theirs from their brief.
    pub env: Vec<(String, String)>,
    /// The clock.
    pub now: fn() -> Timestamp,
}

/// Why the state cannot be written.
#[derive(Debug, Error)]
pub enum StateOpenError {
    /// Another process writes and does not stop.
    #[error("{dir} was busy for {} s", waited.as_secs())]
    Busy {
        /// The state directory.
        dir: Utf8PathBuf,
        /// How long it was waited for.
        waited: Duration,
        /// The last refusal; it names the holder.
        #[source]
        source: Box<StoreOpenError>,
    },
    /// It cannot be opened.
    #[error(transparent)]
    Store(Box<StoreOpenError>),
}

impl EngineContext {
    /// Becomes the writer, waiting up to `patience` while another process is.
    ///
    /// Held for as long as a change takes, never while a run goes on: several commands share a
    /// state directory.
    pub fn open_writer(&self, command: &str, patience: Duration) -> Result<Store, StateOpenError> {
        let start = Instant::now();
        loop {
            match Store::open(&self.dir, command, (self.now)()) {
                Ok(opened) => return Ok(opened.store),
                Err(error) if !is_locked(&error) => {
                    return Err(StateOpenError::Store(Box::new(error)));
                }
                Err(error) if start.elapsed() >= patience => {
                    let (dir, source) = (self.dir.root().to_owned(), Box::new(error));
                    return Err(StateOpenError::Busy { dir, waited: start.elapsed(), source });
                }
                Err(StoreOpenError::Restoring { .. }) => std::thread::sleep(LOOK_EVERY),
                Err(_) => {}
            }
        }
    }
}

fn is_locked(error: &StoreOpenError) -> bool {
    match error {
        StoreOpenError::Lock { source, .. } => matches!(source, LockError::Held { .. }),
        StoreOpenError::Restoring { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use heeler_transcript::{LockFile, LockHolder};

    use super::*;
    use crate::tests::EngineFixture;

    #[test]
    fn a_state_that_is_being_restored_is_looked_at_now_and_then() {
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        let mut place = EngineFixture::new("success");
        let holder = LockHolder::this_process("restore", (place.fleet.now)());
        let lock = place.fleet.dir.restore_lock();
        let _restoring = LockFile::acquire(&lock, &holder, Duration::ZERO).unwrap();
        place.fleet.now = || {
            LOOKS.fetch_add(1, Ordering::Relaxed);
            Timestamp::UNIX_EPOCH
        };
        let error = place.fleet.open_writer("conduct", LOOK_EVERY * 3).unwrap_err();
        assert!(matches!(error, StateOpenError::Busy { .. }), "{error}");
        // Each look but the last is followed by a rest.
        assert!(LOOKS.load(Ordering::Relaxed) <= 4, "{LOOKS:?}");
    }
}
