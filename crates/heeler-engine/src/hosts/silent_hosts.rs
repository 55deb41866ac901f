//! Runs of hosts that were silent for longer than the lease of the run: the leader gives them up.
//!
//! Only runs of agents with `on_partition: stop` have a lease. Their runners have ended the agents by then. Start at
//! [`SilentHosts::find`].

use std::time::{Duration, Instant};

use heeler_model::RunId;
use heeler_model::host_watch::HostWatch;
use heeler_model::run::give_up_after;
use heeler_process::boot_time;
use heeler_store::{DatabaseError, HostLink, LeasedRun};

/// Interval at which the signs of life of other hosts are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The other hosts that have runs with a lease.
#[derive(Debug, Default)]
pub(super) struct SilentHosts {
    watch: HostWatch,
    looked_at: Option<Instant>,
}

impl SilentHosts {
    /// Lets all hosts count as seen.
    pub(super) fn restart(&mut self) {
        self.watch.restart();
        self.looked_at = None;
    }

    /// Looks at the hosts, if it is time. Returns the runs to give up. A run is found again until its end is on
    /// record.
    pub(super) fn find(&mut self, link: &HostLink) -> Result<Option<Vec<RunId>>, DatabaseError> {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
            return Ok(None);
        }
        // The answer may be late. A sign that it shows counts as seen now; the silence counts only until the question.
        let asked_at = boot_time();
        let runs = link.leased_runs()?;
        self.looked_at = Some(Instant::now());
        self.watch.observe(runs.iter().map(|run| (run.host.as_str(), run.mark)), boot_time());
        let is_over =
            |run: &&LeasedRun| self.watch.silence(&run.host, asked_at) >= give_up_after(run.lease);
        let over: Vec<RunId> = runs.iter().filter(is_over).map(|run| run.run).collect();
        Ok(Some(over).filter(|over| !over.is_empty()))
    }
}
