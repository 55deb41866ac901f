//! The memory of the host that leads, in a file of its own because daemons hold it.

use std::time::Duration;

use super::super::*;
use super::daemon::RunLaunch;
use crate::host_watch::HostWatch;

/// Memory of a leader.
pub(super) struct LeaderMemory {
    pub(super) fleet: FleetSimulation,
    pub(super) term: i64,
    pub(super) commits: i64,
    /// End of the lead, in time since the start of the machine.
    pub(super) until: Duration,
    pub(super) watch: HostWatch,
    /// True if it has taken its own runs over.
    pub(super) is_recovered: bool,
    pub(super) looked_at: Duration,
    /// A commit whose outcome is not known yet.
    pub(super) sent: Option<SentCommit>,
    /// True if only a new connection can tell the outcome.
    pub(super) is_unknown: bool,
}

impl std::fmt::Debug for LeaderMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "leader in term {}", self.term)
    }
}

/// The part of a commit that is needed after it.
pub(super) struct SentCommit {
    pub(super) effects: Vec<FleetEffect>,
    pub(super) jobs: Vec<JobId>,
    /// Runs of this host that begin.
    pub(super) launches: Vec<RunLaunch>,
}
