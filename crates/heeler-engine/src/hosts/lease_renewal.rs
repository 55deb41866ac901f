//! Renews the leases of this host's runs by its signs of life. Start at [`renew_lease`].

use heeler_store::{DatabaseError, FleetPulse, HostLink};

use crate::fleet::EngineContext;
use crate::run_start::random_result_key;

/// Reads the key that signs the contacts of this host, if this process does not have it yet.
pub(super) fn read_lease_key(fleet: &EngineContext, link: &HostLink) -> Result<(), DatabaseError> {
    if !fleet.host_lease.has_key() {
        fleet.host_lease.set_key(link.lease_key(&random_result_key())?);
    }
    Ok(())
}

/// Renews the leases of this host's runs by a sign of life that the database has.
pub(super) fn renew_lease(fleet: &EngineContext, pulse: &FleetPulse) {
    if let Some(at) = pulse.contact {
        fleet.host_lease.record_contact(&fleet.dir, at);
    }
}
