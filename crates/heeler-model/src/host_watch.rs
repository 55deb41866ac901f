//! How long the leader has seen no sign of life of another host.
//!
//! The leader measures the time itself, since a sign of life has changed: it compares neither clocks of hosts nor
//! that of the database, which may change in a fail-over. A host counts its lease from before it sends a sign of
//! life, so its lease always ends first. Start at [`HostWatch::observe`].

use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time between two looks. After a longer one (this process was paused) all hosts count as seen.
const OBSERVATION_GAP_MAX: Duration = Duration::from_secs(20);

/// Signs of life of other hosts, as the leader has seen them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostWatch {
    hosts: BTreeMap<String, HostSign>,
    observed_at: Option<Duration>,
}

/// The last sign of life of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HostSign {
    /// A number that differs between two signs.
    mark: i64,
    /// Time at which this one was seen first.
    since: Duration,
}

impl HostWatch {
    /// Notes the last sign of life of each host. `now` is the time since the start of the machine.
    pub fn observe<'h>(&mut self, signs: impl IntoIterator<Item = (&'h str, i64)>, now: Duration) {
        let before = self.observed_at.replace(now);
        let is_late = before.is_none_or(|at| now.saturating_sub(at) > OBSERVATION_GAP_MAX);
        let known = std::mem::take(&mut self.hosts);
        for (host, mark) in signs {
            let sign = known.get(host).filter(|sign| sign.mark == mark && !is_late);
            let sign = sign.copied().unwrap_or(HostSign { mark, since: now });
            self.hosts.insert(host.to_owned(), sign);
        }
    }

    /// Lets all hosts count as seen at the next look: a database that took over may lack signs of life.
    pub fn restart(&mut self) {
        *self = HostWatch::default();
    }

    /// Returns the time for which a host has been silent.
    pub fn silence(&self, host: &str, now: Duration) -> Duration {
        self.hosts.get(host).map_or(Duration::ZERO, |sign| now.saturating_sub(sign.since))
    }
}

#[cfg(test)]
mod tests {
    use heeler_testkit::ProofSettings;

    use super::*;
    use crate::run::{HostContact, RunLease, RunLeaseState, give_up_after};

    fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn silence_counts_from_the_moment_at_which_a_sign_was_seen_first() {
        let mut watch = HostWatch::default();
        watch.observe([("beta", 5)], secs(100));
        assert_eq!(watch.silence("beta", secs(100)), Duration::ZERO);
        watch.observe([("beta", 5)], secs(110));
        assert_eq!(watch.silence("beta", secs(112)), secs(12));
        // A sign that is earlier by the clock of the database is a sign too.
        watch.observe([("beta", 4)], secs(120));
        assert_eq!(watch.silence("beta", secs(121)), secs(1));
        assert_eq!(watch.silence("gamma", secs(500)), Duration::ZERO);
        // A host without such runs is forgotten.
        watch.observe([], secs(130));
        watch.observe([("beta", 4)], secs(140));
        assert_eq!(watch.silence("beta", secs(140)), Duration::ZERO);
    }

    #[test]
    fn a_leader_that_did_not_look_begins_again() {
        let mut watch = HostWatch::default();
        watch.observe([("beta", 5)], secs(100));
        watch.observe([("beta", 5)], secs(100) + OBSERVATION_GAP_MAX);
        assert_eq!(watch.silence("beta", secs(120)), OBSERVATION_GAP_MAX);
        watch.observe([("beta", 5)], secs(200));
        assert_eq!(watch.silence("beta", secs(200)), Duration::ZERO);
        watch.observe([("beta", 5)], secs(210));
        watch.restart();
        watch.observe([("beta", 5)], secs(215));
        assert_eq!(watch.silence("beta", secs(215)), Duration::ZERO);
    }

    const LEASE: Duration = Duration::from_secs(60);
    const STEP: Duration = Duration::from_millis(250);
    const ROUNDS_IN_CI: u64 = 100;

    /// A host with one run, the database, and the leader, in steps of a quarter of a second.
    struct LeaseSimulation {
        random: fastrand::Rng,
        now: Duration,
        /// Signs of life on their way to the database: time of arrival and of sending.
        sent: Vec<(Duration, Duration)>,
        mark: i64,
        /// The host's file.
        contact: Duration,
        lease: RunLease,
        is_agent_alive: bool,
        watch: HostWatch,
        /// Times at which something works again.
        host_paused_until: Duration,
        link_cut_until: Duration,
        leader_paused_until: Duration,
    }

    impl LeaseSimulation {
        fn new(random: fastrand::Rng) -> LeaseSimulation {
            let now = secs(1000);
            LeaseSimulation {
                random,
                now,
                sent: Vec::new(),
                mark: 0,
                contact: now,
                lease: RunLease::new("boot", LEASE, &HostContact::new("boot", now)),
                is_agent_alive: true,
                watch: HostWatch::default(),
                host_paused_until: now,
                link_cut_until: now,
                leader_paused_until: now,
            }
        }

        fn random_time(&mut self) -> Duration {
            secs(self.random.u64(1..150))
        }

        fn break_something(&mut self) {
            let until = self.now + self.random_time();
            match self.random.u32(0..600) {
                0 => self.host_paused_until = until,
                1 => self.link_cut_until = until,
                2 => self.leader_paused_until = until,
                // Another leader, which knows nothing yet.
                3 => self.watch = HostWatch::default(),
                _ => {}
            }
        }

        fn step_host(&mut self) {
            if self.now < self.host_paused_until {
                return;
            }
            if self.random.u32(0..4) == 0 && self.now >= self.link_cut_until {
                // It may be on its way for long.
                let delay = match self.random.u32(0..20) {
                    0 => self.random_time(),
                    _ => STEP,
                };
                self.sent.push((self.now + delay, self.now));
            }
            // After a pause the runner may look before or after the daemon has written its file.
            let contact = HostContact::new("boot", self.contact);
            let state = self.lease.update(Some(&contact), self.now);
            if !matches!(state, RunLeaseState::Held) {
                self.is_agent_alive = false;
            }
        }

        fn step_database(&mut self) {
            let now = self.now;
            for (_, sent_at) in self.sent.extract_if(.., |(arrival, _)| *arrival <= now) {
                self.mark += 1;
                self.contact = self.contact.max(sent_at);
            }
        }

        /// Returns true if the leader gives the run up.
        fn step_leader(&mut self) -> bool {
            if self.now < self.leader_paused_until || self.random.u32(0..20) != 0 {
                return false;
            }
            self.watch.observe([("beta", self.mark)], self.now);
            self.watch.silence("beta", self.now) >= give_up_after(LEASE)
        }
    }

    #[test]
    fn proof_a_run_is_given_up_only_when_its_agent_cannot_work_any_more() {
        let proof = ProofSettings::new(ROUNDS_IN_CI);
        let mut given_up = 0;
        for round in 0..proof.rounds {
            let mut trial = LeaseSimulation::new(proof.random(round));
            for _ in 0..8_000 {
                trial.break_something();
                trial.step_database();
                trial.step_host();
                if trial.step_leader() {
                    given_up += 1;
                    // A paused host is woken in both orders: the runner must not go on.
                    let contact = HostContact::new("boot", trial.now);
                    let woken = trial.lease.update(Some(&contact), trial.now);
                    let is_held = matches!(woken, RunLeaseState::Held);
                    assert!(
                        !trial.is_agent_alive || !is_held,
                        "HEELER_PROOF_SEED={}, round {round}",
                        proof.seed
                    );
                    break;
                }
                trial.now += STEP;
            }
        }
        assert!(given_up > 0, "no run was given up");
    }
}
