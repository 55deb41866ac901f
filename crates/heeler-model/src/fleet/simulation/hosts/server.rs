//! The database that the hosts share, as the server of PostgreSQL executes their statements: one after the other.
//!
//! Start at [`SharedServer::execute`].

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use heeler_config::HostLabel;

use super::super::*;
use super::commit::{CommitRequest, SharedRunChange, UnsentStep};
use super::mutation::HostMutation;
use super::network::{HostReply, HostRequest};
use crate::placement::HostCandidate;

/// Length of the lead.
pub(super) const LEAD_LENGTH: Duration = Duration::from_secs(3);

/// Time after its last sign of life for which a host counts as alive.
const ALIVE_FOR: Duration = Duration::from_secs(10);

/// Names of the hosts.
pub(super) const HOSTS: [&str; 7] = ["h0", "h1", "h2", "h3", "h4", "h5", "h6"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedRunStatus {
    /// Its host has not claimed it.
    Assigned,
    Claimed,
    /// Its result is on record, and its files may not be.
    Ended,
}

/// Row of a run. Given up runs have none, and ended ones only until their files are shipped.
#[derive(Debug, Clone)]
pub(in super::super) struct SharedRun {
    pub(super) host: usize,
    pub(super) job: JobId,
    pub(super) term: i64,
    pub(super) status: SharedRunStatus,
    /// Length of the lease of an agent with `on_partition: stop`.
    pub(super) lease: Option<Duration>,
    pub(super) budget: Option<i64>,
    /// Agent and number of the session that it uses.
    pub(super) session: Option<(String, u64)>,
    /// Labels that its host must have.
    pub(super) labels: Vec<HostLabel>,
}

impl SharedRun {
    pub(super) fn is_open(&self) -> bool {
        self.status != SharedRunStatus::Ended
    }
}

/// Row of a host.
#[derive(Debug, Clone)]
pub(super) struct SharedHost {
    /// Number of its signs of life.
    pub(super) mark: i64,
    pub(super) seen_at: Duration,
    pub(super) is_drained: bool,
    pub(super) labels: Vec<HostLabel>,
    pub(super) max_concurrent: Option<NonZeroU32>,
}

/// Rows that a host has shipped of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedRows {
    pub(super) host: usize,
    pub(super) count: u64,
}

/// Everything that the database has.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedTables {
    pub(super) records: SimulatedDatabase,
    pub(super) runs: BTreeMap<RunId, SharedRun>,
    pub(super) hosts: Vec<SharedHost>,
    pub(super) reports: BTreeMap<RunId, (i64, RunResult)>,
    pub(super) rows: BTreeMap<RunId, SharedRows>,
    /// Number and host of each agent's session.
    pub(super) sessions: BTreeMap<String, (u64, usize)>,
    /// Jobs that were ever created, and runs with a result.
    pub(super) created: BTreeSet<JobId>,
    pub(super) ended: BTreeSet<RunId>,
    pub(super) term: i64,
    pub(super) commits: i64,
    /// Process that leads.
    pub(super) leader: Option<u64>,
    pub(super) lease_until: Duration,
}

/// The server, and in some fleets a replica that is behind.
#[derive(Debug, Default)]
pub(super) struct SharedServer {
    pub(super) tables: SharedTables,
    pub(super) replica: Option<Box<SharedTables>>,
    /// Number of fail-overs. A connection to an earlier server is dead.
    pub(super) number: u32,
    pub(super) mutation: Option<HostMutation>,
    /// Term of the last commit.
    pub(super) last_term: i64,
    pub(super) commits: u64,
}

impl SharedTables {
    /// Lists the hosts as the placement of runs sees them.
    pub(super) fn candidates(&self, leader: usize, now: Duration) -> Vec<HostCandidate> {
        let mut counts = [0; HOSTS.len()];
        self.runs.values().filter(|run| run.is_open()).for_each(|run| counts[run.host] += 1);
        let one = |(at, host): (usize, &SharedHost)| HostCandidate {
            name: HOSTS[at].to_owned(),
            is_alive: self.is_alive(at, now),
            is_drained: host.is_drained,
            is_leader: at == leader,
            labels: host.labels.clone(),
            runs: counts[at],
            max_concurrent: host.max_concurrent,
        };
        self.hosts.iter().enumerate().map(one).collect()
    }

    pub(super) fn is_alive(&self, host: usize, now: Duration) -> bool {
        now.saturating_sub(self.hosts[host].seen_at) < ALIVE_FOR
    }

    /// Gives the lead to a process.
    fn give_lead(&mut self, instance: u64, now: Duration) -> HostReply {
        self.term += 1;
        self.leader = Some(instance);
        self.lease_until = now + LEAD_LENGTH;
        HostReply::Writer(Some((self.term, self.commits)))
    }

    fn beat(&mut self, host: usize, instance: u64, leads: bool, now: Duration) -> HostReply {
        self.hosts[host].mark += 1;
        self.hosts[host].seen_at = now;
        let is_own = leads && self.leader == Some(instance);
        if is_own {
            self.lease_until = now + LEAD_LENGTH;
        }
        HostReply::Pulse { is_own, is_free: self.is_lead_free(now), commits: self.commits }
    }

    fn is_lead_free(&self, now: Duration) -> bool {
        self.leader.is_none() || self.lease_until < now
    }

    fn claim(&mut self, host: usize, run: RunId, term: i64) -> bool {
        let Some(row) = self.runs.get_mut(&run) else { return false };
        let is_free =
            row.host == host && row.term == term && row.status == SharedRunStatus::Assigned;
        if is_free {
            row.status = SharedRunStatus::Claimed;
        }
        is_free
    }

    fn ship(
        &mut self,
        host: usize,
        body: (RunId, i64),
        part: (u64, u64),
        is_end: bool,
    ) -> Option<u64> {
        let ((run, term), (start, end)) = (body, part);
        let row = self.runs.get(&run).filter(|row| row.host == host && row.term == term)?;
        let is_ended = !row.is_open();
        let known = self.rows.entry(run).or_insert(SharedRows { host, count: 0 });
        if known.count != start {
            return Some(known.count);
        }
        known.count = end;
        if is_end && is_ended {
            self.runs.remove(&run);
        }
        Some(end)
    }

    fn report(&mut self, host: usize, run: RunId, term: i64, result: RunResult) {
        let is_own = |row: &&SharedRun| row.host == host && row.term == term && row.is_open();
        if self.runs.get(&run).filter(is_own).is_some() {
            self.reports.insert(run, (term, result));
        }
    }
}

impl SharedServer {
    /// Executes a request of a host.
    pub(super) fn execute(
        &mut self,
        (host, instance): (usize, u64),
        body: HostRequest,
        now: Duration,
    ) -> HostReply {
        let is_mutated = |mutation| self.mutation == Some(mutation);
        let tables = &mut self.tables;
        match body {
            HostRequest::Beat { leads } => tables.beat(host, instance, leads, now),
            HostRequest::TakeLead if tables.is_lead_free(now) => tables.give_lead(instance, now),
            HostRequest::TakeLead => HostReply::Writer(None),
            HostRequest::Reconnect { known_commits } => {
                match tables.leader == Some(instance) && tables.commits >= known_commits {
                    true => tables.give_lead(instance, now),
                    false => HostReply::Writer(None),
                }
            }
            HostRequest::Commit(commit) => {
                if commit.term != tables.term && !is_mutated(HostMutation::NoTermCheck) {
                    return HostReply::Fenced;
                }
                self.commit(*commit, now);
                HostReply::Committed
            }
            HostRequest::Claim { run, term } => {
                let is_claimed = tables.claim(host, run, term);
                HostReply::Claimed(is_claimed || is_mutated(HostMutation::ClaimWithoutCondition))
            }
            HostRequest::Ship { run, term, start, end, is_end } => {
                HostReply::Shipped(tables.ship(host, (run, term), (start, end), is_end))
            }
            HostRequest::Report { run, term, result } => {
                match is_mutated(HostMutation::ResultWithoutTerm) {
                    true => drop(tables.reports.insert(run, (term, *result))),
                    false => tables.report(host, run, term, *result),
                }
                HostReply::Reported
            }
        }
    }

    fn commit(&mut self, commit: CommitRequest, now: Duration) {
        assert!(commit.term >= self.last_term, "a commit of an earlier term");
        self.last_term = commit.term;
        self.commits += 1;
        let tables = &mut self.tables;
        tables.commits += 1;
        tables.lease_until = now + LEAD_LENGTH;
        for step in commit.steps {
            tables.store(step, &commit.rules);
        }
        if let Some((host, is_drained)) = commit.drain {
            tables.hosts[host].is_drained = is_drained;
        }
        if let Some(run) = commit.report {
            tables.reports.remove(&run);
        }
        if self.commits.is_multiple_of(8) {
            check_rows(&tables.records);
        }
    }

    /// Lets the replica take the server's place.
    pub(super) fn fail_over(&mut self) {
        let Some(replica) = self.replica.take() else { return };
        self.tables = *replica;
        self.number += 1;
        self.last_term = self.tables.term;
    }
}

impl SharedTables {
    fn store(&mut self, step: UnsentStep, rules: &FleetRules) {
        let facts = StoredFacts {
            now: step.now,
            budget: step.budget,
            uses_persistent_session: step.uses_persistent_session,
            result: step.result.as_ref(),
            new_workflow_run: step.new_workflow_run.as_ref(),
        };
        for change in step.changes {
            match &change {
                FleetChange::CreateJob { job, .. } => drop(self.created.insert(job.clone())),
                FleetChange::EndRun { run, settlement, .. } => {
                    let row = self.records.runs.get(run).expect("a run without a record ends");
                    let reserved = row.reservation.as_ref().map(|it| it.micros);
                    let is_within = reserved.is_none_or(|most| settlement.spent <= most);
                    assert!(is_within, "a run spends more than its reservation");
                }
                FleetChange::StartRun { job, reservation, .. } => {
                    self.check_start(job, reservation.as_ref(), rules);
                }
                _ => {}
            }
            self.records.store(change, &facts);
        }
        match step.run_change {
            Some(SharedRunChange::Start(run, row)) => self.start_run(run, *row),
            Some(SharedRunChange::End(run)) => {
                let row = self.runs.get_mut(&run).expect("an open run ends");
                assert!(row.is_open(), "a run ends twice");
                row.status = SharedRunStatus::Ended;
                self.ended.insert(run);
                self.reports.remove(&run);
            }
            Some(SharedRunChange::GiveUp { run, .. }) => {
                let row = self.runs.remove(&run);
                assert!(row.is_some_and(|row| row.is_open()), "a run that has ended is given up");
                self.rows.remove(&run);
                self.reports.remove(&run);
            }
            None => {}
        }
    }

    /// Checks a start against the rows alone (P2 and P8).
    fn check_start(
        &self,
        job: &JobId,
        reservation: Option<&ReservationRecord>,
        rules: &FleetRules,
    ) {
        let mut others = self.records.runs.values();
        assert!(others.all(|other| other.job != *job), "{job} runs twice at once");
        if let Some(reservation) = reservation {
            return invariants::check_reservation(&self.records, rules, reservation);
        }
        let entry = self.records.queue.get(job).expect("its request is on record");
        let request: JobRequest = serde_json::from_str(&entry.request_json).unwrap();
        if !request.runs_no_agent() {
            invariants::check_unlimited(rules, request.agent.as_str());
        }
    }

    /// Records the host of a run. Its labels, its limit and its drain are those of this moment.
    fn start_run(&mut self, run: RunId, row: SharedRun) {
        let host = &self.hosts[row.host];
        assert!(!host.is_drained, "a drained host gets a run");
        assert!(row.labels.iter().all(|label| host.labels.contains(label)), "a label is missing");
        let runs = self.runs.values().filter(|it| it.is_open() && it.host == row.host).count();
        let is_below = |most: NonZeroU32| runs < most.get() as usize;
        assert!(host.max_concurrent.is_none_or(is_below), "a full host gets a run");
        if let Some((agent, number)) = &row.session {
            let uses_it = |other: &SharedRun| other.is_open() && other.session == row.session;
            assert!(!self.runs.values().any(uses_it), "a session has two runs");
            let known = self.sessions.insert(agent.clone(), (*number, row.host));
            let is_same = known.is_some_and(|(known, _)| known == *number);
            assert!(!is_same || known == Some((*number, row.host)), "a session changes its host");
        }
        assert!(self.runs.insert(run, row).is_none(), "a run is recorded twice");
    }
}
