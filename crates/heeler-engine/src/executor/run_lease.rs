//! Leases of runs that end if this host loses contact with the fleet's database. Start at [`set_run_lease`].

use heeler_config::{AgentConfig, PartitionPolicy};
use heeler_model::RunId;
use heeler_model::run::RunSpec;

use super::ExecutorContext;
use crate::fleet::EngineContext;
use crate::prepare::duration_millis;
use crate::resolved_request::ResolvedJobRequest;

/// Gives a run the lease that its agent's config asks for. A fleet with one host has none: its agents need nobody's
/// contact.
pub(super) fn set_run_lease(
    fleet: &EngineContext,
    agent: &AgentConfig,
    request: &mut ResolvedJobRequest,
) {
    if fleet.dir.host().is_none() {
        return;
    }
    // Before the run is on record: its lease counts from a contact before that. The leader decides for a run of
    // another host, whose config may differ.
    request.brief.authority.lease = fleet.host_lease.source(&fleet.dir);
    if agent.on_partition == PartitionPolicy::Stop {
        request.limits.lease_ms = Some(duration_millis(fleet.host_lease.length()));
        // Nothing would end its process between two runs.
        request.keep_agent = None;
    }
}

impl ExecutorContext {
    /// Renews the lease of a run of an earlier daemon, if it may have one.
    pub(super) fn renew_lease_of(&self, run: RunId, spec: Option<&RunSpec>) {
        // In doubt the file is written, which no other run notices.
        let has_lease = spec.is_none_or(|spec| spec.limits.lease_ms.is_some());
        if has_lease && self.fleet.dir.host().is_some() {
            tracing::debug!(%run, "the run may end without contact with the database");
            self.fleet.host_lease.require(&self.fleet.dir);
        }
    }
}
