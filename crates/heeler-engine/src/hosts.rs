//! Several hosts of one fleet: one leads, the others stand by.
//!
//! Hosts share a PostgreSQL database and nothing else. The leader is the daemon of a fleet with one
//! machine, plus [`LeaderDuty`]. A [`StandbyDaemon`] serves reads, passes commands on to the leader,
//! executes the runs that the leader gives it, and takes over if the leader dies.

mod archive_copy;
mod file_archiver;
mod file_copier;
mod file_shipper;
mod hint_flag;
mod host_message;
mod leader_duty;
mod lease_renewal;
mod object_archive;
mod part_batch;
mod part_copy;
mod session_mover;
mod shipped_run;
mod silent_hosts;
mod standby;
mod sync_batch;
mod unshared_tail;

pub(crate) use leader_duty::LeaderDuty;
pub use object_archive::check_file_archive;
pub use standby::{StandbyDaemon, StandbyExit, StandbyOptions};
