//! Simulation of fleets with several hosts: N daemons, one database and a network that loses messages.
//!
//! The dispatcher of the host that leads is the [`FleetSimulation`] of one daemon, whose transactions are sent to
//! the database instead of being stored at once. It places runs with [`crate::placement::place_run`] and gives them
//! up with [`crate::host_watch::HostWatch`]; runners follow [`crate::run::RunLease`]. All files here only imitate
//! the statements of the store and the threads of the engine. Each step is a message that arrives, or an action of
//! one host. Hosts have clocks of their own, and are killed, paused, cut off and drained between any two steps.
//! Finally the faults stop, and every job must end.

mod checks;
mod commit;
mod daemon;
mod faults;
mod leader;
mod leader_memory;
mod machine;
mod mutation;
mod network;
mod runner;
mod server;
mod threads;

use std::collections::BTreeSet;

use super::*;
use daemon::HostThread;
use heeler_config::{HostChoice, PlacementOrder};
use machine::HostMachine;
use mutation::HostMutation;
use network::{HostMessage, HostNetwork, HostReply, HostRequest, WireMessage};
use server::{HOSTS, SharedHost, SharedServer};

pub(super) use commit::UnsentStep;

/// Steps of each fleet, before its jobs are brought to an end.
const STEPS_PER_FLEET: u64 = 10_000;
/// Fleets in CI: together a million steps.
const HOST_FLEETS_IN_CI: u64 = 100;
/// Fleets in which a fault of the program must be found.
const MUTATED_FLEETS_MAX: u64 = 300;
/// Steps after which every job must have ended, once the faults have stopped.
const SETTLE_STEPS_MAX: u32 = 100_000;
/// Steps of a short run, on average.
const RUN_LENGTH_MIN: u32 = 6;
/// Different workflows of a fleet.
const HOST_WORKFLOWS: usize = 4;

/// Settings of an agent that concern hosts.
struct HostedAgent {
    choice: Option<HostChoice>,
    /// Length of its leases, if it has `on_partition: stop`.
    lease: Option<Duration>,
    /// True if it continues its session.
    is_persistent: bool,
}

/// A fleet with several hosts.
struct HostSimulation {
    random: fastrand::Rng,
    /// The time, which no clock shows exactly.
    now: Duration,
    rules: Arc<FleetRules>,
    workflows: Vec<Arc<Workflow>>,
    agents: BTreeMap<&'static str, HostedAgent>,
    network: HostNetwork,
    server: SharedServer,
    hosts: Vec<HostMachine>,
    /// True if a replica may take over that lacks the last commits.
    is_asynchronous: bool,
    /// Steps of a run, on average.
    run_length: u32,
    /// False after the faults have stopped.
    is_wild: bool,
    mutation: Option<HostMutation>,
    /// Hosts on which the runners of runs were started.
    started: BTreeMap<RunId, usize>,
    /// Runs that were claimed.
    claimed: BTreeSet<RunId>,
    /// Runs that were given up by their leases.
    silenced: BTreeSet<RunId>,
    instances: u64,
    requests: u64,
    sessions: u64,
    steps: u64,
    /// Number of leads and of runs that were given up.
    leads: u64,
    given_up: u64,
}

#[test]
fn proof_hosts_keep_the_promises_over_a_network_that_loses_messages() {
    let proof = ProofSettings::new(HOST_FLEETS_IN_CI);
    let (mut steps, mut leads, mut given_up, mut commits) = (0, 0, 0, 0);
    for round in 0..proof.rounds {
        let mut simulation = HostSimulation::new(proof.random(round), None);
        let outcome = catch_unwind(AssertUnwindSafe(|| simulation.run()));
        if outcome.is_err() {
            let hosts = simulation.hosts.len();
            panic!(
                "seed {}, {hosts} hosts, step {}",
                proof.seed.wrapping_add(round),
                simulation.steps
            );
        }
        steps += simulation.steps;
        leads += simulation.leads;
        given_up += simulation.given_up;
        commits += simulation.server.commits;
    }
    assert!(steps >= proof.rounds * STEPS_PER_FLEET, "{steps} steps");
    assert!(
        leads > proof.rounds && commits > proof.rounds * 100,
        "{leads} leads, {commits} commits"
    );
    assert!(given_up >= proof.rounds / 20, "{given_up} runs given up");
}

#[test]
fn every_fault_that_is_put_in_is_found() {
    for mutation in HostMutation::ALL {
        let is_found = |seed: u64| {
            let random = fastrand::Rng::with_seed(seed);
            let mut simulation = HostSimulation::new(random, Some(mutation));
            catch_unwind(AssertUnwindSafe(|| simulation.run())).is_err()
        };
        let found = (0..MUTATED_FLEETS_MAX).find(|seed| is_found(*seed));
        assert!(found.is_some(), "{mutation:?} is not found");
    }
}

impl HostSimulation {
    fn new(mut random: fastrand::Rng, mutation: Option<HostMutation>) -> HostSimulation {
        let now = Duration::from_secs(200_000);
        let count = random.usize(2..=HOSTS.len());
        let hosts = (0..count).map(|_| HostMachine::new(&mut random, now)).collect();
        let rules = Arc::new(random_rules(&mut random));
        let workflows =
            (0..HOST_WORKFLOWS).map(|_| Arc::new(random_workflow(&mut random))).collect();
        let is_asynchronous = mutation.is_none() && random.u32(0..5) == 0;
        let agents = random_agents(&mut random);
        // Where few messages are lost, leaders live long. Long runs outlive their leases.
        let loss = match mutation {
            // A fault of the lease shows only while one host leads for longer than it.
            Some(HostMutation::GivenUpTooEarly | HostMutation::RunnerIgnoresLease) => 1,
            Some(_) => 20,
            None => [1, 4, 20][random.usize(0..3)],
        };
        let run_length = [RUN_LENGTH_MIN, 10 * RUN_LENGTH_MIN][random.usize(0..2)];
        let mut simulation = HostSimulation {
            random,
            now,
            rules,
            workflows,
            agents,
            network: HostNetwork::new(loss),
            server: SharedServer { mutation, ..SharedServer::default() },
            hosts,
            is_asynchronous,
            run_length,
            is_wild: true,
            mutation,
            started: BTreeMap::new(),
            claimed: BTreeSet::new(),
            silenced: BTreeSet::new(),
            instances: 0,
            requests: 0,
            sessions: 0,
            steps: 0,
            leads: 0,
            given_up: 0,
        };
        simulation.add_rows();
        simulation
    }

    /// Creates the rows of the hosts and of the schedules.
    fn add_rows(&mut self) {
        let wall = self.hosts[0].clock.wall(self.now);
        let rules = Arc::clone(&self.rules);
        let records = SimulatedDatabase::default();
        let mut fleet = FleetSimulation::of_database(records, rules, Vec::new(), wall);
        fleet.random = self.random.fork();
        fleet.add_schedules();
        self.server.tables.records = fleet.database;
        for at in 0..self.hosts.len() {
            let has_label = at == 0 || self.random.bool();
            let label = || "gpu".parse().unwrap();
            let limit = self.random.bool().then(|| self.random.u32(1..5));
            self.server.tables.hosts.push(SharedHost {
                mark: 0,
                seen_at: Duration::ZERO,
                is_drained: false,
                labels: has_label.then(label).into_iter().collect(),
                max_concurrent: limit.and_then(NonZeroU32::new),
            });
        }
    }

    fn run(&mut self) {
        while self.steps < STEPS_PER_FLEET {
            self.step();
        }
        self.settle();
    }

    fn step(&mut self) {
        self.steps += 1;
        if let Some(message) = self.network.arrived(self.now) {
            return self.deliver(message);
        }
        self.now += Duration::from_millis(self.random.u64(0..80));
        if self.is_wild {
            self.break_something();
        }
        let host = self.random.usize(0..self.hosts.len());
        self.act(host);
    }

    /// Delivers a message, unless its receiver cannot be reached any more.
    fn deliver(&mut self, message: HostMessage) {
        let machine = &self.hosts[message.host];
        if machine.cut_until > self.now {
            return;
        }
        if machine.paused_until > self.now && matches!(message.body, WireMessage::Reply(_)) {
            return self.network.hold(message, machine.paused_until);
        }
        let HostMessage { id, host, instance, server, body } = message;
        match body {
            // The connection has ended with its server.
            WireMessage::Request(_) if server != self.server.number => {}
            WireMessage::Request(body) => {
                self.check_request(&body);
                let claim = match &body {
                    HostRequest::Claim { run, .. } => Some(*run),
                    _ => None,
                };
                let reply = self.server.execute((host, instance), body, self.now);
                if let (Some(run), HostReply::Claimed(true)) = (claim, reply) {
                    self.check_claim(run);
                }
                let body = WireMessage::Reply(reply);
                self.transmit(HostMessage { id, host, instance, server, body });
            }
            WireMessage::Reply(reply) => self.handle_reply(id, host, reply),
        }
    }

    fn handle_reply(&mut self, id: u64, host: usize, reply: HostReply) {
        let Some(daemon) = self.hosts[host].daemon.as_mut() else { return };
        // A late reply comes on a connection that has ended.
        let mut threads = HostThread::ALL.into_iter();
        let is_awaited = |thread: &HostThread| {
            daemon.pending[*thread as usize].is_some_and(|pending| pending.id == id)
        };
        let Some(thread) = threads.find(is_awaited) else { return };
        let Some(pending) = daemon.pending[thread as usize].take() else { return };
        let run = || pending.run.expect("it is about a run");
        match (thread, reply) {
            (HostThread::Beat, HostReply::Writer(Some(writer))) => {
                self.begin_lead(host, writer, pending.sent_at);
            }
            (HostThread::Beat, pulse) => self.note_pulse(host, pending.sent_at, pulse),
            (HostThread::Dispatcher, HostReply::Writer(writer)) => self.note_writer(host, writer),
            (_, HostReply::Committed) => self.note_committed(host),
            (_, HostReply::Fenced) => self.hosts[host].daemon = None,
            (_, HostReply::Claimed(is_claimed)) => self.note_claim(host, run(), is_claimed),
            (_, HostReply::Shipped(count)) => self.note_shipped(host, run(), count),
            _ => {}
        }
    }

    /// Lets a host do one thing.
    fn act(&mut self, host: usize) {
        if self.hosts[host].paused_until > self.now {
            return;
        }
        if self.random.u32(0..5) == 0 {
            return self.step_runner(host);
        }
        if self.hosts[host].daemon.is_none() {
            if self.random.u32(0..6) == 0 {
                self.start_daemon(host);
            }
            return;
        }
        self.expire_requests(host);
        if self.hosts[host].daemon.is_none() || self.beat_if_due(host) {
            return;
        }
        match self.random.u32(0..16) {
            0 | 1 => self.check_runs(host),
            2 => self.send_claim(host),
            3 => self.launch_run(host),
            4 | 5 => self.ship_rows(host),
            6 => self.send_report(host),
            7 => self.copy_rows(host),
            _ => self.turn_leader(host),
        }
    }
}

fn random_agents(random: &mut fastrand::Rng) -> BTreeMap<&'static str, HostedAgent> {
    let order = |random: &mut fastrand::Rng| match random.bool() {
        true => PlacementOrder::Spread,
        false => PlacementOrder::Pack,
    };
    let mut agents = BTreeMap::new();
    for (at, name) in AGENTS.into_iter().enumerate() {
        let order = order(random);
        let choice = match at {
            0 => None,
            1 => Some(HostChoice::Labels { labels: Vec::new(), order }),
            2 => Some(HostChoice::Labels { labels: vec!["gpu".parse().unwrap()], order }),
            _ => Some(HostChoice::Named("h1".parse().unwrap())),
        };
        let lease = random.bool().then(|| Duration::from_secs(random.u64(8..40)));
        agents.insert(name, HostedAgent { choice, lease, is_persistent: random.bool() });
    }
    agents
}
