//! The wait for the lead of a fleet with several hosts. Start at [`await_lead`].

use std::time::{Duration, Instant};

use heeler_store::LeadLease;

/// Longest wait for the renewal of the lead before a runner is started.
const LEAD_WAIT: Duration = Duration::from_secs(10);

/// Interval at which the lead is looked at.
const LEAD_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits a moment for a lease that is renewed late; returns true if this host leads.
pub(super) fn await_lead(lead: &LeadLease) -> bool {
    let deadline = Instant::now() + LEAD_WAIT;
    while !lead.is_held() && !lead.is_lost() && Instant::now() < deadline {
        std::thread::sleep(LEAD_POLL_INTERVAL);
    }
    lead.is_held()
}
