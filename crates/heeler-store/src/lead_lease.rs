//! The lead of a fleet with several hosts, as the process that has it may rely on it.
//!
//! The database's clock decides when another host may take over. The holder relies on its lead for a
//! shorter time: it counts from before it asked for the renewal, on a clock that also runs while the
//! machine sleeps. Start at [`LeadLease`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// No end: a fleet with one machine has no lead to lose.
const FOREVER: u64 = u64::MAX;

/// The lead of a fleet. Clones share it.
#[derive(Debug, Clone)]
pub struct LeadLease {
    /// End in nanoseconds of `CLOCK_BOOTTIME`.
    until: Arc<AtomicU64>,
}

impl Default for LeadLease {
    fn default() -> LeadLease {
        LeadLease { until: Arc::new(AtomicU64::new(FOREVER)) }
    }
}

impl LeadLease {
    /// Returns true if no other host can have taken over yet.
    pub fn is_held(&self) -> bool {
        let until = self.until.load(Ordering::SeqCst);
        until == FOREVER || boot_time() < until
    }

    /// Returns true if a thread renews this lead, and no other host can take over within a time.
    pub(crate) fn is_renewed_for(&self, time: Duration) -> bool {
        let until = self.until.load(Ordering::SeqCst);
        let length = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        until != FOREVER && boot_time().saturating_add(length) < until
    }

    /// Returns true if another host has the lead, or the database lacks commits of this process. Then the
    /// process ends its work and begins again.
    pub fn is_lost(&self) -> bool {
        self.until.load(Ordering::SeqCst) == 0
    }

    /// Notes that the lease was renewed. `sent_at` is the time before the request. A lost lead stays lost.
    pub(crate) fn extend(&self, sent_at: u64, lease: Duration) {
        let length = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let until = sent_at.saturating_add(length).min(FOREVER - 1);
        let renew = |known: u64| (known != 0).then_some(until);
        // The result tells if the lead was lost, which `is_lost` tells too.
        let _renewed = self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, renew);
    }

    /// Notes that this process does not lead any more. It cannot lead again.
    pub fn lose(&self) {
        self.until.store(0, Ordering::SeqCst);
    }
}

/// Returns the time since the start of the machine in nanoseconds, including the time that it slept.
pub(crate) fn boot_time() -> u64 {
    u64::try_from(heeler_process::boot_time().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_before_its_request() {
        let lease = LeadLease::default();
        assert!(lease.is_held(), "one machine keeps its lead");
        assert!(!lease.is_renewed_for(Duration::ZERO), "no thread renews it");
        lease.extend(boot_time(), Duration::from_secs(3600));
        let clone = lease.clone();
        assert!(clone.is_held());
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        assert!(clone.is_renewed_for(hours(0)) && !clone.is_renewed_for(hours(2)));
        assert!(!clone.is_renewed_for(Duration::MAX));
        lease.extend(boot_time().saturating_sub(2_000_000), Duration::from_millis(1));
        assert!(!clone.is_held(), "the request took longer than the lease");
        lease.extend(boot_time(), Duration::MAX);
        assert!(clone.is_held());
        lease.lose();
        assert!(!clone.is_held() && clone.is_lost());
        lease.extend(boot_time(), Duration::from_secs(3600));
        assert!(clone.is_lost(), "a late renewal does not bring it back");
    }
}
