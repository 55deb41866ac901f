//! Checks of what no single host can see. The tables check each commit by themselves.

use std::collections::BTreeSet;

use super::super::*;
use super::HostSimulation;
use super::commit::SharedRunChange;
use super::machine::LocalRun;
use super::mutation::HostMutation;
use super::network::HostRequest;
use super::server::HOSTS;

impl HostSimulation {
    /// Checks a request before the database executes it. A run is given up by its lease only when its agent cannot
    /// work any more.
    pub(super) fn check_request(&mut self, body: &HostRequest) {
        let HostRequest::Commit(commit) = body else { return };
        if commit.term != self.server.tables.term {
            return;
        }
        for step in &commit.steps {
            let Some(SharedRunChange::GiveUp { run, source }) = &step.run_change else { continue };
            self.given_up += 1;
            if *source == RunEndSource::HostSilence {
                self.silenced.insert(*run);
            }
            let Some(row) = self.server.tables.runs.get(run) else { continue };
            let machine = &self.hosts[row.host];
            let since_boot = machine.clock.since_boot(self.now);
            let local = machine.runs.get(run);
            let is_ignored = self.mutation == Some(HostMutation::RunnerIgnoresLease);
            let is_over = |local: &LocalRun| match is_ignored {
                true => !local.is_alive(),
                false => local.is_over(&machine.clock.boot, since_boot),
            };
            assert!(
                *source == RunEndSource::Result || local.is_none_or(is_over),
                "{run} is given up, and its agent works on {}",
                HOSTS[row.host]
            );
        }
    }

    /// Checks a claim that was executed: each run is claimed once, while it is on record.
    pub(super) fn check_claim(&mut self, run: RunId) {
        // A fail-over may lose a claim, and then a second one follows.
        if self.is_asynchronous {
            return;
        }
        assert!(self.server.tables.runs.contains_key(&run), "a run without a row is claimed");
        assert!(self.claimed.insert(run), "{run} is claimed twice");
    }

    /// Checks that a runner may start: its run has no other one, and was not given up by its lease.
    pub(super) fn check_runner_start(&mut self, host: usize, run: RunId) {
        let before = self.started.insert(run, host);
        assert_eq!(before, None, "{run} starts on {} too", HOSTS[host]);
        let is_given_up = self.silenced.contains(&run);
        assert!(!is_given_up || self.is_asynchronous, "{run} starts after it was given up");
        let has_result = self.server.tables.ended.contains(&run);
        assert!(!has_result || self.is_asynchronous, "{run} starts after its result is recorded");
    }

    /// Checks that a host cares for each of its runs: it is about to be claimed, started or reported, or has a runner.
    pub(super) fn check_known_runs(&self, host: usize, own: &BTreeSet<RunId>) {
        let machine = &self.hosts[host];
        // A leader learns the outcome of a commit after it is executed.
        let Some(daemon) = machine.daemon.as_ref().filter(|it| it.lead.is_none()) else { return };
        for run in own {
            let is_cared_for = machine.runs.contains_key(run)
                || daemon.claims.contains_key(run)
                || daemon.exits.contains_key(run)
                || daemon.launches.iter().any(|launch| launch.run == *run)
                || daemon.unsettled.iter().any(|(_, unsettled)| unsettled == run);
            assert!(is_cared_for, "{} has forgotten its run {run}", HOSTS[host]);
        }
    }

    /// Checks that no other host has taken the lead when a leader starts a run of its own.
    pub(super) fn check_lead(&self, host: usize) {
        let daemon = self.hosts[host].daemon.as_ref().expect("it starts a run");
        let is_own = self.server.tables.leader == Some(daemon.instance);
        assert!(is_own || self.is_asynchronous, "a run starts on {} without its lead", HOSTS[host]);
    }

    /// Checks that a host still has the rows that the database has of its runs.
    pub(super) fn check_durable_rows(&self, host: usize) {
        for (run, local) in &self.hosts[host].runs {
            let shown = self.server.tables.rows.get(run).map_or(0, |rows| rows.count);
            assert!(shown <= local.rows, "{}: rows of {run} that were shown are lost", HOSTS[host]);
        }
    }

    /// Checks a fleet in which everything has ended.
    pub(super) fn check_end(&self) {
        let tables = &self.server.tables;
        check_rows(&tables.records);
        let records = &tables.records;
        assert!(records.runs.is_empty(), "a run without a job");
        let is_active = |run: &SimulatedWorkflowRun| !run.status.is_final();
        assert!(!records.workflow_runs.values().any(is_active), "a workflow run does not end");
        for (at, machine) in self.hosts.iter().enumerate() {
            let is_alive = machine.runs.values().any(LocalRun::is_alive);
            assert!(!is_alive, "an agent works on {} without a run", HOSTS[at]);
            for (run, copied) in &machine.copies {
                let Some(rows) = tables.rows.get(run) else { continue };
                assert!(*copied <= rows.count, "{run}: the database lacks rows that were shown");
            }
        }
    }
}
