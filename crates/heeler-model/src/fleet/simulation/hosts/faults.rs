//! Faults of hosts, of the network and of the database, and their end.

use jiff::SignedDuration;

use super::super::*;
use super::{HostSimulation, SETTLE_STEPS_MAX};

impl HostSimulation {
    /// Breaks something, at times.
    pub(super) fn break_something(&mut self) {
        let host = self.random.usize(0..self.hosts.len());
        let now = self.now;
        match self.random.u32(0..1_200) {
            0..=3 => self.hosts[host].daemon = None,
            4..=7 => self.hosts[host].paused_until = now + self.random_time(8),
            8 => self.hosts[host].paused_until = now + self.random_time(100),
            9..=12 => self.hosts[host].cut_until = now + self.random_time(10),
            13 => self.hosts[host].cut_until = now + self.random_time(100),
            14 => {
                let until = now + self.random_time(20);
                self.hosts[host].lose_power(until);
                self.check_durable_rows(host);
            }
            15 => {
                let by = SignedDuration::from_secs(self.random.i64(-7_200..7_200));
                self.hosts[host].clock.shift_wall(by);
            }
            16..=30 if self.is_asynchronous => {
                self.server.replica = Some(Box::new(self.server.tables.clone()));
            }
            31 | 32 if self.is_asynchronous => self.server.fail_over(),
            _ => {}
        }
    }

    fn random_time(&mut self, seconds: u64) -> Duration {
        Duration::from_millis(self.random.u64(100..seconds * 1_000))
    }

    /// Ends the faults, and lets every job end.
    pub(super) fn settle(&mut self) {
        self.is_wild = false;
        self.rules = Arc::new(generous_rules());
        let tables = &mut self.server.tables;
        tables.records.schedules.clear();
        for host in &mut tables.hosts {
            host.is_drained = false;
            host.max_concurrent = None;
        }
        for machine in &mut self.hosts {
            machine.paused_until = self.now;
            machine.cut_until = self.now;
            // The next daemon has the other rules.
            machine.daemon = None;
        }
        let mut left = SETTLE_STEPS_MAX;
        while !self.has_ended() {
            assert!(left > 0, "the fleet does not end: {}", self.rest());
            left -= 1;
            self.step();
        }
        self.check_end();
    }

    fn has_ended(&self) -> bool {
        let tables = &self.server.tables;
        let is_active = |run: &SimulatedWorkflowRun| !run.status.is_final();
        tables.records.jobs.is_empty()
            && tables.runs.is_empty()
            && !tables.records.workflow_runs.values().any(is_active)
            && !self.hosts.iter().any(|host| host.runs.values().any(|run| run.is_alive()))
    }

    /// Describes what has not ended.
    fn rest(&self) -> String {
        let tables = &self.server.tables;
        let hosts = self.hosts.iter().map(|host| (&host.runs, &host.daemon));
        format!("{:#?}\n{:#?}\n{:#?}", tables.runs, tables.records.queue, hosts.collect::<Vec<_>>())
    }
}
