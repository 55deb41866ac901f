//! The memory of a daemon: what it has asked, which runs it knows, and what it leads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::leader_memory::LeaderMemory;
use super::server::SharedRun;
use crate::RunId;
use crate::run::{HostContact, RunResult};

/// Threads of a daemon. Each has a connection of its own, and waits for one reply at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostThread {
    Beat,
    Dispatcher,
    Claim,
    Ship,
    Report,
}

impl HostThread {
    pub(super) const ALL: [HostThread; 5] = [
        HostThread::Beat,
        HostThread::Dispatcher,
        HostThread::Claim,
        HostThread::Ship,
        HostThread::Report,
    ];
}

/// A request without a reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingRequest {
    pub(super) id: u64,
    /// Time since the start of the machine before it was sent.
    pub(super) sent_at: Duration,
    /// Run that it is about.
    pub(super) run: Option<RunId>,
}

/// A run that is to be started.
#[derive(Debug, Clone)]
pub(super) struct RunLaunch {
    pub(super) run: RunId,
    pub(super) row: SharedRun,
    /// Contact with the database before the run was given to this host.
    pub(super) first: Option<HostContact>,
    /// Time at which the launch of a run of the leader began to wait for the lead.
    pub(super) since: Duration,
    /// Reason for which it is only claimed, and reported as not started.
    pub(super) is_refused: bool,
}

/// Memory of a daemon.
#[derive(Debug, Default)]
pub(super) struct HostDaemon {
    pub(super) instance: u64,
    pub(super) pending: [Option<PendingRequest>; 5],
    /// Server of each connection.
    pub(super) connections: [u32; 5],
    /// Last contact, in time since the start of the machine.
    pub(super) contact: Option<Duration>,
    pub(super) beat_at: Duration,
    pub(super) check_at: Duration,
    /// Open runs of this host that it has taken over.
    pub(super) known: BTreeSet<RunId>,
    /// Runs to look at again.
    pub(super) unsettled: Vec<(Duration, RunId)>,
    /// Runs of the leader that are to be claimed.
    pub(super) claims: BTreeMap<RunId, RunLaunch>,
    /// Claimed runs, and those of the leader itself.
    pub(super) launches: Vec<RunLaunch>,
    /// Results that are not on record.
    pub(super) exits: BTreeMap<RunId, (i64, RunResult)>,
    /// Number of the database's commits when runs were looked at.
    pub(super) commits: i64,
    pub(super) lead: Option<Box<LeaderMemory>>,
}

impl HostDaemon {
    pub(super) fn new(instance: u64, server: u32) -> HostDaemon {
        HostDaemon { instance, connections: [server; 5], ..HostDaemon::default() }
    }
}
