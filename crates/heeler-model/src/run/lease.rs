//! The lease of a run that ends if its host loses contact with the fleet's database (`on_partition: stop`).
//!
//! The host records its contacts in a file. The runner reads it and ends the agent when the last contact is too
//! long ago; the leader gives the run up later than that. All times are those since the start of the host, and
//! each side only compares times that it has measured itself, so no clock is compared with that of another
//! machine. Start at [`RunLease`].

use std::time::Duration;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{ResultPublicKey, ResultSigningKey};

/// Length of a lease: time after the last contact at which no process of the agent is left.
pub const RUN_LEASE: Duration = Duration::from_secs(60);

/// Time that the leader waits in addition to the lease and a tenth of it: for the death of processes, for the
/// time between two looks, and for clocks of different speed.
const GIVE_UP_MARGIN: Duration = Duration::from_secs(5);

/// Longest file of a host's contact, in bytes.
pub const HOST_CONTACT_BYTES_MAX: u64 = 4096;

/// Version of the file.
const CONTACT_VERSION: u32 = 1;

/// Returns the time without a sign of life of a host after which the leader gives up a run with this lease.
pub fn give_up_after(lease: Duration) -> Duration {
    lease.saturating_add(lease / 10).saturating_add(GIVE_UP_MARGIN)
}

/// Last contact of a host with the database of its fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostContact {
    version: u32,
    /// ID of the start of the machine, since which the time counts.
    boot: String,
    /// Milliseconds between the start of the machine and the moment before the host sent its sign of life.
    contact_ms: u64,
}

impl HostContact {
    /// Creates the record of a contact that began at a time since the start of the machine.
    pub fn new(boot: &str, at: Duration) -> HostContact {
        // Rounded down: the lease must not end later.
        let contact_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        HostContact { version: CONTACT_VERSION, boot: boot.to_owned(), contact_ms }
    }

    fn at(&self) -> Duration {
        Duration::from_millis(self.contact_ms)
    }

    /// Returns the content of the file.
    pub fn to_file(&self, key: &ResultSigningKey) -> Vec<u8> {
        let mut document = serde_json::to_vec_pretty(self).expect("a contact is JSON");
        document.push(b'\n');
        key.sign_contact(&document)
    }

    /// Reads a file; `None` if the host has not written it, or not completely.
    pub fn of_file(file: &[u8], key: &ResultPublicKey) -> Option<HostContact> {
        let is_signed = key.has_signed_contact(file);
        let contact: HostContact = serde_json::from_slice(file).ok().filter(|_| is_signed)?;
        Some(contact).filter(|contact| contact.version == CONTACT_VERSION)
    }
}

/// What a runner needs to follow the contacts of its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLeaseSource {
    /// File of the last contact.
    pub file: Utf8PathBuf,
    /// Key that has signed it. Agents can write the file.
    pub key: ResultPublicKey,
    /// Contact before the run was given to its host: the fleet may have given it up since.
    pub first: HostContact,
}

/// State of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunLeaseState {
    /// The agent may work.
    Held,
    /// The agent is asked to end. Its host was silent for this time.
    Ending { silence: Duration },
    /// The agent is killed. No contact brings the lease back.
    Over { silence: Duration },
}

/// Lease of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLease {
    boot: String,
    length: Duration,
    /// Time of the last contact; `None` if the fleet may have given the run up.
    contact: Option<Duration>,
    /// Time of the last contact before that was so.
    last: Duration,
}

impl RunLease {
    /// Creates the lease of a run on a machine with this start. `first` is the contact before the run was given to it.
    pub fn new(boot: &str, length: Duration, first: &HostContact) -> RunLease {
        let contact = Some(first.at()).filter(|_| first.boot == boot);
        let last = contact.unwrap_or_default();
        RunLease { boot: boot.to_owned(), length, contact, last }
    }

    pub fn length(&self) -> Duration {
        self.length
    }

    /// Returns the state at a time since the start of the machine. `found` is the content of the file; without one
    /// the last contact counts.
    pub fn update(&mut self, found: Option<&HostContact>, now: Duration) -> RunLeaseState {
        // First of all: this process may have been paused for so long that the fleet has given the run up, whatever
        // the file says now.
        let contact = self.contact.filter(|at| now.saturating_sub(*at) < self.length);
        let newest = found
            // A time of another start, or of the future, says nothing.
            .filter(|found| found.boot == self.boot && found.at() <= now)
            .map(HostContact::at);
        self.contact = contact.map(|at| newest.map_or(at, |newest| newest.max(at)));
        self.last = self.contact.unwrap_or(self.last);
        let silence = now.saturating_sub(self.last);
        match self.contact {
            None => RunLeaseState::Over { silence },
            // The rest of the lease is for an orderly end.
            Some(_) if silence >= self.end_begins_after() => RunLeaseState::Ending { silence },
            Some(_) => RunLeaseState::Held,
        }
    }

    /// Returns the silence after which the agent is asked to end.
    fn end_begins_after(&self) -> Duration {
        self.length / 4 * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn contact(at: u64) -> HostContact {
        HostContact::new("this boot", secs(at))
    }

    fn lease() -> RunLease {
        RunLease::new("this boot", LEASE, &contact(1000))
    }

    fn silence(count: u64) -> (RunLeaseState, RunLeaseState) {
        let silence = secs(count);
        (RunLeaseState::Ending { silence }, RunLeaseState::Over { silence })
    }

    #[test]
    fn a_lease_ends_in_two_steps_after_the_last_contact() {
        let mut lease = lease();
        assert_eq!(lease.update(None, secs(1044)), RunLeaseState::Held);
        assert_eq!(lease.update(None, secs(1045)), silence(45).0);
        assert_eq!(lease.update(None, secs(1059)), silence(59).0);
        assert_eq!(lease.update(None, secs(1060)), silence(60).1);
        // A contact before the end renews it.
        let mut lease = self::lease();
        assert_eq!(lease.update(Some(&contact(1050)), secs(1059)), RunLeaseState::Held);
        assert_eq!(lease.update(None, secs(1094)), RunLeaseState::Held);
        assert_eq!(lease.update(None, secs(1095)), silence(45).0);
        // An earlier one does not shorten it.
        assert_eq!(lease.update(Some(&contact(900)), secs(1094)), RunLeaseState::Held);
    }

    #[test]
    fn a_lease_that_is_over_stays_over() {
        let mut lease = lease();
        // Paused for longer than the lease: the file is new again, but the fleet has given the run up.
        assert_eq!(lease.update(Some(&contact(1075)), secs(1075)), silence(75).1);
        assert_eq!(lease.update(Some(&contact(1076)), secs(1076)), silence(76).1);
        // The run was given to this host long ago.
        let mut late = RunLease::new("this boot", LEASE, &contact(10));
        let state = late.update(Some(&contact(1000)), secs(1000));
        assert_eq!(state, RunLeaseState::Over { silence: secs(990) });
    }

    #[test]
    fn times_of_another_boot_and_of_the_future_do_not_count() {
        let mut lease = lease();
        let other = HostContact::new("another boot", secs(1040));
        assert_eq!(lease.update(Some(&other), secs(1050)), silence(50).0);
        assert_eq!(lease.update(Some(&contact(1051)), secs(1050)), silence(50).0);
        assert_eq!(lease.update(Some(&contact(u64::MAX / 2000)), secs(1050)), silence(50).0);
        assert_eq!(lease.update(Some(&contact(1050)), secs(1050)), RunLeaseState::Held);
        let mut lease = RunLease::new("this boot", LEASE, &other);
        let state = lease.update(Some(&contact(1041)), secs(1041));
        assert!(matches!(state, RunLeaseState::Over { .. }), "{state:?}");
    }

    #[test]
    fn only_a_complete_file_of_the_host_counts() {
        let key = ResultSigningKey::from_seed([1; 32]);
        let file = contact(1000).to_file(&key);
        assert!(file.len() as u64 <= HOST_CONTACT_BYTES_MAX);
        let public = key.public_key();
        assert_eq!(HostContact::of_file(&file, &public), Some(contact(1000)));
        for end in 0..file.len() {
            assert_eq!(HostContact::of_file(&file[..end], &public), None, "cut at {end}");
        }
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert_eq!(HostContact::of_file(&changed, &public), None, "byte {at} changed");
        }
        let others = ResultSigningKey::from_seed([2; 32]);
        assert_eq!(HostContact::of_file(&contact(1000).to_file(&others), &public), None);
        // The same key for another purpose.
        let mut document = serde_json::to_vec_pretty(&contact(1000)).unwrap();
        document.push(b'\n');
        assert_eq!(HostContact::of_file(&key.sign_document(&document), &public), None);
        let later = HostContact { version: 2, ..contact(1000) }.to_file(&key);
        assert_eq!(HostContact::of_file(&later, &public), None);
    }

    #[test]
    fn the_leader_waits_longer_than_the_lease() {
        assert_eq!(give_up_after(RUN_LEASE), secs(71));
        assert_eq!(give_up_after(Duration::ZERO), GIVE_UP_MARGIN);
        assert_eq!(give_up_after(Duration::MAX), Duration::MAX);
    }
}
