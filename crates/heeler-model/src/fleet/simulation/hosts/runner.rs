//! Runners of a machine: they start agents, write rows, follow their leases and end.

use super::super::*;
use super::daemon::RunLaunch;
use super::machine::{LocalRun, LocalRunState};
use super::mutation::HostMutation;
use super::{HostSimulation, RUN_LENGTH_MIN};
use crate::run::{HostContact, RunLease, RunLeaseState};

impl HostSimulation {
    /// Starts the runner of a claimed run, or of a run of the leader itself.
    pub(super) fn start_runner(&mut self, host: usize, launch: RunLaunch) {
        let RunLaunch { run, row, first, .. } = launch;
        let machine = &self.hosts[host];
        let since_boot = machine.clock.since_boot(self.now);
        let lease = row.lease.map(|length| {
            let none = HostContact::new("none", Duration::ZERO);
            RunLease::new(&machine.clock.boot, length, first.as_ref().unwrap_or(&none))
        });
        // A host that was paused between claim and start does not start the agent.
        let is_held = |mut lease: RunLease| lease.update(None, since_boot) == RunLeaseState::Held;
        let is_ignored = self.mutation == Some(HostMutation::RunnerIgnoresLease);
        let begins = is_ignored || lease.clone().is_none_or(is_held);
        let mut local = LocalRun {
            state: LocalRunState::Alive,
            lease,
            rows: 0,
            synced: 0,
            shipped: 0,
            is_cancelled: false,
            row,
        };
        if begins {
            self.check_runner_start(host, run);
        } else {
            let now = machine.clock.wall(self.now);
            let job = local.row.job.clone();
            let result = RunResult::never_started(run, job, "its lease is over", now);
            local.state = LocalRunState::Exited(Box::new(result));
        }
        self.hosts[host].runs.insert(run, local);
    }

    /// Lets one runner of a machine work.
    pub(super) fn step_runner(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        let since_boot = machine.clock.since_boot(self.now);
        let now = machine.clock.wall(self.now);
        let alive = machine.runs.iter_mut().filter(|(_, run)| run.is_alive());
        let Some((run, local)) = self.random.choice(alive.collect::<Vec<_>>()) else { return };
        let job = local.row.job.clone();
        let interrupted = |job: JobId| RunResult {
            end: RunEnd::Interrupted,
            exit_reason: ExitReason::Error,
            error: Some(RunError::new(ErrorClass::Interrupted, "its lease is over")),
            cost: RunCost::default(),
            ..RunResult::never_started(*run, job, "", now)
        };
        let is_ignored = self.mutation == Some(HostMutation::RunnerIgnoresLease);
        let found = machine.contact_file.as_ref();
        let state = local.lease.as_mut().map(|lease| lease.update(found, since_boot));
        let is_held = state.is_none_or(|state| state == RunLeaseState::Held);
        let result = if !is_held && !is_ignored {
            interrupted(job)
        } else if local.is_cancelled {
            RunResult { exit_reason: ExitReason::Cancelled, error: None, ..interrupted(job) }
        } else {
            local.rows += self.random.u64(0..4);
            let length = if self.is_wild { self.run_length } else { RUN_LENGTH_MIN };
            if self.random.u32(0..length) > 0 {
                return;
            }
            if self.is_wild && self.random.u32(0..12) == 0 {
                local.state = LocalRunState::Dead;
                return;
            }
            let budget = local.row.budget;
            random_result(&mut self.random, self.is_wild, (*run, job), budget, now)
        };
        // The files are synced before the result is written.
        local.synced = local.rows;
        local.state = LocalRunState::Exited(Box::new(result));
    }
}
