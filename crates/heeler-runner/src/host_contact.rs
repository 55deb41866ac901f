//! The lease of the run: its agent ends if the host loses contact with the fleet's database.
//!
//! The runner reads the host's file on its own timer, so that a dead or stopped daemon ends the agent too. Start
//! at [`LeaseWatch::check`].

use std::time::{Duration, Instant};

use heeler_model::outcome::AgentProcessExit;
use heeler_model::run::{
    HOST_CONTACT_BYTES_MAX, HostContact, RunLease, RunLeaseSource, RunLeaseState, RunLimits,
};
use heeler_process::{boot_id, boot_time};
use heeler_transcript::untrusted_file;

/// Longest time between two looks at the file. The wait does not count time that the machine sleeps.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Looks at the file within the length of a lease.
const CHECKS_PER_LEASE: u32 = 20;

/// Reason for which a run with a lease is not started.
const NO_SOURCE: &str = "its host cannot tell whether it is in contact with the database, which \
    `on_partition: stop` needs";

/// Lease of a run, and the file that renews it.
#[derive(Debug)]
pub(crate) struct LeaseWatch {
    source: RunLeaseSource,
    lease: RunLease,
    check_at: Instant,
}

impl LeaseWatch {
    /// Creates the watch of a run; `None` if the run needs no contact.
    pub(crate) fn new(
        limits: &RunLimits,
        source: Option<&RunLeaseSource>,
        now: Instant,
    ) -> Result<Option<LeaseWatch>, String> {
        let Some(length) = limits.lease_ms.map(Duration::from_millis) else { return Ok(None) };
        let (Some(source), Some(boot)) = (source, boot_id()) else {
            return Err(NO_SOURCE.to_owned());
        };
        let lease = RunLease::new(&boot, length, &source.first);
        Ok(Some(LeaseWatch { source: source.clone(), lease, check_at: now }))
    }

    /// Returns the time of the next look.
    pub(crate) fn check_at(&self) -> Instant {
        self.check_at
    }

    /// Looks at the file.
    pub(crate) fn check(&mut self, now: Instant) -> RunLeaseState {
        self.check_at = now + CHECK_INTERVAL_MAX.min(self.lease.length() / CHECKS_PER_LEASE);
        // Agents may have replaced the file: a link is not followed, and only a signed content counts.
        let file = untrusted_file::read(&self.source.file, HOST_CONTACT_BYTES_MAX).ok();
        let found = file.and_then(|file| HostContact::of_file(&file, &self.source.key));
        self.lease.update(found.as_ref(), boot_time())
    }

    /// Looks at the file before an agent is started. Returns the end of the run if it must not start.
    pub(crate) fn check_before_start(&mut self) -> Option<AgentProcessExit> {
        match self.check(Instant::now()) {
            RunLeaseState::Held => None,
            RunLeaseState::Ending { silence } | RunLeaseState::Over { silence } => {
                Some(lost_contact(silence))
            }
        }
    }
}

/// Returns the end of a run after a silence of its host.
pub(crate) fn lost_contact(silence: Duration) -> AgentProcessExit {
    AgentProcessExit::LostContact {
        after_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;
    use heeler_model::run::ResultSigningKey;

    use super::*;

    fn watch(file: Utf8PathBuf, key: &ResultSigningKey, length_ms: u64) -> LeaseWatch {
        let first = HostContact::new(&boot_id().unwrap(), boot_time());
        let source = RunLeaseSource { file, key: key.public_key(), first };
        let limits = RunLimits { lease_ms: Some(length_ms), ..RunLimits::default() };
        LeaseWatch::new(&limits, Some(&source), Instant::now()).unwrap().unwrap()
    }

    #[test]
    fn a_run_without_a_lease_needs_no_contact_and_one_with_a_lease_needs_its_source() {
        let now = Instant::now();
        assert!(LeaseWatch::new(&RunLimits::default(), None, now).unwrap().is_none());
        let limits = RunLimits { lease_ms: Some(1000), ..RunLimits::default() };
        assert_eq!(LeaseWatch::new(&limits, None, now).unwrap_err(), NO_SOURCE);
    }

    #[test]
    fn a_file_that_is_missing_torn_replaced_or_of_somebody_else_renews_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let file = Utf8PathBuf::from_path_buf(temp.path().join("host-lease.json")).unwrap();
        let (key, boot) = (ResultSigningKey::from_seed([3; 32]), boot_id().unwrap());
        let mut watch = watch(file.clone(), &key, 2000);
        assert_eq!(watch.check(Instant::now()), RunLeaseState::Held);
        let is_held = |watch: &mut LeaseWatch| watch.check(Instant::now()) == RunLeaseState::Held;
        // Renewed as long as the contacts are new.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            let contact = HostContact::new(&boot, boot_time()).to_file(&key);
            std::fs::write(&file, contact).unwrap();
            assert!(is_held(&mut watch));
        }
        let good = HostContact::new(&boot, boot_time() + Duration::from_secs(3600)).to_file(&key);
        let others = ResultSigningKey::from_seed([4; 32]);
        let foreign = HostContact::new(&boot, boot_time()).to_file(&others);
        let other_boot = HostContact::new("x", boot_time()).to_file(&key);
        let bad: [&[u8]; 6] = [&good, &good[..20], &foreign, &other_boot, b"", b"{}"];
        for bad in bad {
            std::fs::write(&file, bad).unwrap();
            watch.check(Instant::now());
        }
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        let mut ended = None;
        while ended.is_none() {
            ended = watch.check_before_start();
        }
        let ended = ended.and_then(|ended| ended.cause()).unwrap().1;
        assert!(ended.starts_with("its host had no contact with the database for "), "{ended}");
        while !matches!(watch.check(Instant::now()), RunLeaseState::Over { .. }) {}
        // Too late.
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, HostContact::new(&boot, boot_time()).to_file(&key)).unwrap();
        assert!(matches!(watch.check(Instant::now()), RunLeaseState::Over { .. }));
    }

    #[test]
    fn the_file_is_looked_at_often_enough() {
        let key = ResultSigningKey::from_seed([3; 32]);
        for (length_ms, interval) in [(60_000, 1000), (2000, 100)] {
            let mut watch = watch("/nonexistent".into(), &key, length_ms);
            let now = Instant::now();
            assert_eq!(watch.check_at().saturating_duration_since(now), Duration::ZERO);
            watch.check(now);
            assert_eq!(watch.check_at(), now + Duration::from_millis(interval));
        }
    }
}
