//! Context of a fleet: its state directory, program, environment and clock, and opening the state
//! directory for writing.
//!
//! Start at [`EngineContext::open_writer`].

use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_store::{HostLease, LeadLease, StateDir, Store, StoreOpenError};
use heeler_transcript::LockError;
use jiff::Timestamp;
use thiserror::Error;

use crate::capability::HookGrants;

/// Poll interval while the state directory is being restored. Waiting for other writers is part of
/// opening.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A fleet's directories, program, environment and clock, as needed by every step of a job.
#[derive(Debug, Clone)]
pub struct EngineContext {
    pub dir: StateDir,
    /// Path of this program, which is also the runner.
    pub program: Utf8PathBuf,
    /// Environment of Heeler's own processes. Agents get theirs from their brief.
    pub env: Vec<(String, String)>,
    /// Returns the current time.
    pub now: fn() -> Timestamp,
    /// Permissions of the hooks that this process executes.
    pub hook_grants: HookGrants,
    /// The lead of a fleet with several hosts.
    pub lead: LeadLease,
    /// Contacts of this host with the database.
    pub host_lease: HostLease,
}

/// Failure to open the state directory for writing.
#[derive(Debug, Error)]
pub enum StateOpenError {
    /// Another process is still writing.
    #[error("{dir} was busy for {} s", waited.as_secs())]
    Busy {
        dir: Utf8PathBuf,
        /// Time waited.
        waited: Duration,
        /// The last error; it names the holder.
        #[source]
        source: Box<StoreOpenError>,
    },
    #[error(transparent)]
    Store(Box<StoreOpenError>),
}

impl EngineContext {
    /// Opens the state directory for writing. Waits up to `patience` while another process holds
    /// it.
    ///
    /// Hold the result only for one change, never during a run: several commands share a state
    /// directory.
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
                // Waiting for the restore is not part of opening, unlike waiting for a lock.
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
        // Each poll except the last is followed by a sleep.
        assert!(LOOKS.load(Ordering::Relaxed) <= 4, "{LOOKS:?}");
    }
}
