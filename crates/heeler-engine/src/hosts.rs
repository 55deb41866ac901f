//! Several hosts of one fleet: one leads, the others stand by.
//!
//! Hosts share a PostgreSQL database and nothing else. The leader is the daemon of a fleet with one
//! machine, plus [`LeaderDuty`]. A [`StandbyDaemon`] serves reads, passes commands on to the leader,
//! executes the runs that the leader gives it, and takes over if the leader dies.

mod file_copier;
mod file_shipper;
mod hint_flag;
mod host_message;
mod leader_duty;
mod shipped_run;
mod silent_hosts;
mod standby;

use heeler_store::{DatabaseError, FleetPulse, HostLink};

use crate::fleet::EngineContext;
use crate::run_start::random_result_key;

pub(crate) use leader_duty::LeaderDuty;
pub use standby::{StandbyDaemon, StandbyExit, StandbyOptions};

/// Reads the key that signs the contacts of this host, if this process does not have it yet.
fn read_lease_key(fleet: &EngineContext, link: &HostLink) -> Result<(), DatabaseError> {
    if !fleet.host_lease.has_key() {
        fleet.host_lease.set_key(link.lease_key(&random_result_key())?);
    }
    Ok(())
}

/// Renews the leases of this host's runs by a sign of life that the database has.
fn renew_lease(fleet: &EngineContext, pulse: &FleetPulse) {
    if let Some(at) = pulse.contact {
        fleet.host_lease.record_contact(&fleet.dir, at);
    }
}
