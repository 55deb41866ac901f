//! The contacts of this host with the database of its fleet, for runs that end without them.
//!
//! One signed file in the state directory has the last contact; all runners of the host read it. The private
//! key is only in the database, so whoever renews the file has reached it. The file is replaced at each sign of life, and
//! not synced: after a power loss the machine has another boot ID. Start at [`HostLease`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::run::{HostContact, RUN_LEASE, ResultSigningKey, RunLeaseSource};
use heeler_model::{RunId, error_chain};
use heeler_process::boot_id;
use heeler_transcript::{DiskError, OsDisk, place_files};

use crate::db::DatabaseError;
use crate::db::postgres::quote;
use crate::host_link::HostLink;
use crate::host_row::{number, text};
use crate::layout::StateDir;

/// The contacts of a host. Clones share them.
#[derive(Debug, Clone)]
pub struct HostLease {
    shared: Arc<SharedLease>,
    length: Duration,
}

#[derive(Debug, Default)]
struct SharedLease {
    key: OnceLock<ResultSigningKey>,
    boot: OnceLock<Option<String>>,
    /// True if a run of this host depends on the file.
    is_needed: AtomicBool,
    state: Mutex<LeaseFileState>,
}

#[derive(Debug, Default)]
struct LeaseFileState {
    contact: Option<Duration>,
    /// First contact of this process.
    first: Option<Duration>,
    /// True if the last attempt to write the file failed.
    is_failing: bool,
}

impl Default for HostLease {
    fn default() -> HostLease {
        HostLease::new(RUN_LEASE)
    }
}

impl HostLease {
    /// Creates the lease of a host that has had no contact yet. New runs get leases of this length.
    pub fn new(length: Duration) -> HostLease {
        HostLease { shared: Arc::default(), length }
    }

    /// Returns the length of leases of new runs.
    pub fn length(&self) -> Duration {
        self.length
    }

    pub fn has_key(&self) -> bool {
        self.shared.key.get().is_some()
    }

    /// Sets the key that signs the file. The first one stays.
    pub fn set_key(&self, key: ResultSigningKey) {
        self.shared.key.get_or_init(|| key);
    }

    fn boot(&self) -> Option<&str> {
        self.shared.boot.get_or_init(boot_id).as_deref()
    }

    fn state(&self) -> MutexGuard<'_, LeaseFileState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a sign of life that the database has. `at` is the time since the start of the machine, before it was
    /// sent.
    pub fn record_contact(&self, dir: &StateDir, at: Duration) {
        let mut state = self.state();
        state.contact = state.contact.max(Some(at));
        let since_start = at.saturating_sub(*state.first.get_or_insert(at));
        let is_needed = self.shared.is_needed.load(Ordering::SeqCst);
        // Runs of an earlier daemon may depend on it, and it may take a while until they are found.
        if is_needed || (since_start < self.length && dir.lease_file().exists()) {
            self.write(dir, &mut state);
        }
    }

    /// Keeps the file up to date from now on: a run of this host depends on it.
    pub fn require(&self, dir: &StateDir) {
        if !self.shared.is_needed.swap(true, Ordering::SeqCst) {
            self.write(dir, &mut self.state());
        }
    }

    /// Returns what the runner of a new run needs; `None` before the first contact, and on a machine without a boot
    /// ID.
    pub fn source(&self, dir: &StateDir) -> Option<RunLeaseSource> {
        let contact = self.state().contact?;
        let first = HostContact::new(self.boot()?, contact);
        let key = self.shared.key.get()?.public_key();
        Some(RunLeaseSource { file: dir.lease_file(), key, first })
    }

    /// Replaces the file. A failure is repaired by the next sign of life; runs end if none comes in time.
    fn write(&self, dir: &StateDir, state: &mut LeaseFileState) {
        let (Some(key), Some(boot), Some(contact)) =
            (self.shared.key.get(), self.boot(), state.contact)
        else {
            return;
        };
        let file = HostContact::new(boot, contact).to_file(key);
        match replace_unsynced(dir.lease_file(), file) {
            Ok(()) => state.is_failing = false,
            Err(error) if state.is_failing => {
                tracing::debug!(
                    reason = error_chain(&error),
                    "the lease of this host is not renewed"
                );
            }
            Err(error) => {
                state.is_failing = true;
                let reason = error_chain(&error);
                tracing::warn!(
                    reason,
                    "agents with `on_partition: stop` end soon: cannot renew their lease"
                );
            }
        }
    }
}

fn replace_unsynced(path: Utf8PathBuf, bytes: Vec<u8>) -> Result<(), DiskError> {
    let files = [(path, bytes)];
    let placed = place_files(&OsDisk, &files, &|_| false, &|_| Ok(()));
    placed.leave_unsynced().into_iter().collect()
}

/// A run of another host that the leader gives up if its host is silent for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedRun {
    pub run: RunId,
    pub host: String,
    /// Number that differs between two signs of life of the host.
    pub mark: i64,
    pub lease: Duration,
}

impl HostLink {
    /// Returns the key with which this host signs its contacts. The first proposed one stays.
    pub fn lease_key(
        &self,
        proposed: &ResultSigningKey,
    ) -> Result<ResultSigningKey, DatabaseError> {
        let sql = format!(
            "UPDATE hosts SET lease_key = COALESCE(lease_key, {}) WHERE name = {} AND id = {} \
             RETURNING lease_key",
            quote(&String::from(proposed.clone())),
            quote(self.host_name()),
            quote(self.host_id()),
        );
        let rows = self.query("read the key of this host's lease", &sql)?;
        let found = rows.first().and_then(|row| text(row, 0));
        // A text that is no key is replaced in memory only: the next daemon does not renew the runs of this one.
        Ok(found.and_then(|text| text.try_into().ok()).unwrap_or_else(|| proposed.clone()))
    }

    /// Lists the runs without a result that other hosts must not continue without contact.
    pub fn leased_runs(&self) -> Result<Vec<LeasedRun>, DatabaseError> {
        let sql = format!(
            "SELECT runs.id, runs.host, runs.assignment, \
             CAST(EXTRACT(EPOCH FROM hosts.seen_at) * 1000000 AS BIGINT) \
             FROM runs JOIN hosts ON hosts.name = runs.host WHERE runs.committed = 0 \
             AND runs.host <> {} AND runs.assignment LIKE '%\"lease_ms\"%' ORDER BY runs.id",
            quote(self.host_name())
        );
        let rows = self.query("list the runs of other hosts", &sql)?;
        let one = |row: &Vec<Option<String>>| {
            let assignment: serde_json::Value = serde_json::from_str(&text(row, 2)?).ok()?;
            let lease = assignment.get("limits")?.get("lease_ms")?.as_u64()?;
            Some(LeasedRun {
                run: text(row, 0)?.parse().ok()?,
                host: text(row, 1)?,
                mark: number(row, 3),
                lease: Duration::from_millis(lease),
            })
        };
        Ok(rows.iter().filter_map(one).collect())
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::run::RunLease;
    use heeler_model::run::RunLeaseState::{Held, Over};

    use super::*;

    #[test]
    fn the_file_has_the_last_contact_from_the_moment_at_which_a_run_needs_it() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join("state")).unwrap();
        let (lease, key) = (HostLease::default(), ResultSigningKey::from_seed([7; 32]));
        let at = Duration::from_secs;
        lease.record_contact(&dir, at(100));
        assert_eq!(lease.source(&dir), None, "it has no key");
        lease.set_key(key.clone());
        lease.set_key(ResultSigningKey::from_seed([8; 32]));
        let source = lease.source(&dir).unwrap();
        assert_eq!(source.key, key.public_key());
        let read = || std::fs::read(dir.lease_file()).ok();
        lease.record_contact(&dir, at(101));
        assert_eq!(read(), None, "no run needs it");
        lease.require(&dir);
        let found = |file: Option<Vec<u8>>| HostContact::of_file(&file.unwrap(), &source.key);
        let boot = boot_id().unwrap();
        assert_eq!(found(read()), Some(HostContact::new(&boot, at(101))));
        // A contact that was sent earlier and answered later changes nothing.
        lease.record_contact(&dir, at(99));
        assert_eq!(found(read()), Some(HostContact::new(&boot, at(101))));
        lease.record_contact(&dir, at(140));
        let mut run = RunLease::new(&boot, lease.length(), &source.first);
        assert_eq!(run.update(found(read()).as_ref(), at(159)), Held);
        assert_eq!(run.update(None, at(200)), Over { silence: at(60) });
        // The next daemon renews it before it has found the run, and not for ever.
        let next = HostLease::default();
        next.set_key(key);
        next.record_contact(&dir, at(150));
        assert_eq!(found(read()), Some(HostContact::new(&boot, at(150))));
        next.record_contact(&dir, at(300));
        assert_eq!(found(read()), Some(HostContact::new(&boot, at(150))));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_no_error_of_the_daemon() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join("state")).unwrap();
        std::fs::create_dir_all(dir.lease_file().join("in the way")).unwrap();
        let lease = HostLease::default();
        lease.set_key(ResultSigningKey::from_seed([7; 32]));
        lease.require(&dir);
        lease.record_contact(&dir, Duration::from_secs(1));
        assert!(lease.state().is_failing);
        std::fs::remove_dir_all(dir.lease_file()).unwrap();
        lease.record_contact(&dir, Duration::from_secs(2));
        assert!(!lease.state().is_failing && dir.lease_file().is_file());
    }
}
