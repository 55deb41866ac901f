//! Ends the agent of a run whose host has lost contact with the fleet's database. Start at
//! [`RunEventLoop::check_lease`].

use std::time::Instant;

use heeler_model::outcome::AgentProcessExit;
use heeler_model::run::RunLeaseState;

use super::{ActiveRun, RunEventLoop};
use crate::host_contact::lost_contact;

impl ActiveRun {
    /// Returns the end of the run if no agent must be started any more.
    pub(crate) fn lease_end(&mut self) -> Option<AgentProcessExit> {
        if self.ending.is_none() {
            self.ending = self.lease.as_mut()?.check_before_start();
        }
        self.ending.clone()
    }
}

impl RunEventLoop<'_> {
    /// Looks at the lease, if it is time. The agent is asked to end, and killed at the end of the lease.
    pub(super) fn check_lease(&mut self, now: Instant) {
        let lease = self.run.lease.as_mut().filter(|lease| lease.check_at() <= now);
        let Some(lease) = lease.filter(|_| !self.tree_ended) else { return };
        let (silence, is_over) = match lease.check(now) {
            RunLeaseState::Held => return,
            RunLeaseState::Ending { silence } => (silence, false),
            RunLeaseState::Over { silence } => (silence, true),
        };
        // An agent that is done, or is being ended, has its own deadlines until the lease is over.
        if self.run.ending.is_none() && !self.done {
            self.set_ending(lost_contact(silence));
            self.interrupt(now);
        }
        self.must_kill |= is_over;
    }
}
