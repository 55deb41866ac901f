//! The threads of a daemon besides its dispatcher: signs of life, claims and launches of runs, rows and reports.

use std::collections::BTreeSet;

use super::super::*;
use super::HostSimulation;
use super::daemon::{HostDaemon, HostThread, PendingRequest, RunLaunch};
use super::machine::LocalRunState;
use super::mutation::HostMutation;
use super::network::{HostMessage, HostReply, HostRequest, WireMessage};
use super::server::{HOSTS, LEAD_LENGTH, SharedRunStatus};
use crate::run::HostContact;

/// Interval of signs of life.
const BEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which a host looks at its runs without a commit of the leader.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a connection without a reply counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(8);
/// Wait before a run is looked at again.
const SETTLE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Longest wait for the lead before a run is started.
const LEAD_WAIT: Duration = Duration::from_secs(10);

impl HostSimulation {
    pub(super) fn daemon(&mut self, host: usize) -> &mut HostDaemon {
        self.hosts[host].daemon.as_mut().expect("the caller has checked that it lives")
    }

    pub(super) fn since_boot(&self, host: usize) -> Duration {
        self.hosts[host].clock.since_boot(self.now)
    }

    pub(super) fn start_daemon(&mut self, host: usize) {
        self.instances += 1;
        let daemon = HostDaemon::new(self.instances, self.server.number);
        self.hosts[host].daemon = Some(daemon);
    }

    /// Returns true if a host can read from the database now.
    pub(super) fn can_read(&mut self, host: usize) -> bool {
        !self.is_wild || (self.hosts[host].cut_until <= self.now && self.random.u32(0..30) > 0)
    }

    /// Sends a request. Returns false if the connection had ended: the next attempt has a new one.
    pub(super) fn send(
        &mut self,
        host: usize,
        thread: HostThread,
        run: Option<RunId>,
        body: HostRequest,
    ) -> bool {
        let (server, sent_at) = (self.server.number, self.since_boot(host));
        self.requests += 1;
        let id = self.requests;
        let daemon = self.daemon(host);
        let connection = &mut daemon.connections[thread as usize];
        if std::mem::replace(connection, server) != server {
            return false;
        }
        daemon.pending[thread as usize] = Some(PendingRequest { id, sent_at, run });
        let instance = daemon.instance;
        let body = WireMessage::Request(body);
        self.transmit(HostMessage { id, host, instance, server, body });
        true
    }

    /// Gives a message to the network, unless its host is cut off.
    pub(super) fn transmit(&mut self, message: HostMessage) {
        if self.hosts[message.host].cut_until <= self.now {
            self.network.send(&mut self.random, self.is_wild, self.now, message);
        }
    }

    /// Ends requests that got no reply in time.
    pub(super) fn expire_requests(&mut self, host: usize) {
        let now = self.since_boot(host);
        for thread in HostThread::ALL {
            let pending = &mut self.daemon(host).pending[thread as usize];
            let Some(late) = pending.filter(|it| now > it.sent_at + REPLY_TIMEOUT) else {
                continue;
            };
            *pending = None;
            match thread {
                HostThread::Beat => self.lose_link(host),
                HostThread::Dispatcher => self.lose_commit_reply(host),
                HostThread::Claim => {
                    let run = late.run.expect("a claim is about a run");
                    self.retry_run(host, run);
                }
                HostThread::Ship | HostThread::Report => {}
            }
        }
    }

    fn retry_run(&mut self, host: usize, run: RunId) {
        let at = self.since_boot(host) + SETTLE_RETRY_DELAY;
        let daemon = self.daemon(host);
        daemon.claims.remove(&run);
        daemon.unsettled.push((at, run));
    }

    /// The connection of the signs of life has ended.
    fn lose_link(&mut self, host: usize) {
        let daemon = self.daemon(host);
        match &mut daemon.lead {
            Some(lead) => lead.watch.restart(),
            // The server may lack what the host knows of its runs.
            None => {
                daemon.known.clear();
                daemon.check_at = Duration::ZERO;
            }
        }
    }

    pub(super) fn beat_if_due(&mut self, host: usize) -> bool {
        let now = self.since_boot(host);
        let daemon = self.daemon(host);
        if daemon.pending[HostThread::Beat as usize].is_some() || now < daemon.beat_at {
            return false;
        }
        daemon.beat_at = now + BEAT_INTERVAL;
        let leads = daemon.lead.is_some();
        if !self.send(host, HostThread::Beat, None, HostRequest::Beat { leads }) {
            self.lose_link(host);
        }
        true
    }

    /// Handles the reply to a sign of life.
    pub(super) fn note_pulse(&mut self, host: usize, sent_at: Duration, pulse: HostReply) {
        let HostReply::Pulse { is_own, is_free, commits } = pulse else { return };
        let machine = &mut self.hosts[host];
        let daemon = machine.daemon.as_mut().expect("it got a reply");
        let contact = daemon.contact.unwrap_or_default().max(sent_at);
        daemon.contact = Some(contact);
        machine.contact_file = Some(HostContact::new(&machine.clock.boot, contact));
        if std::mem::replace(&mut daemon.commits, commits) != commits {
            daemon.check_at = Duration::ZERO;
        }
        match &mut daemon.lead {
            // It executes its program again.
            Some(_) if !is_own => machine.daemon = None,
            Some(lead) => lead.until = sent_at + LEAD_LENGTH,
            None if is_free => {
                self.send(host, HostThread::Beat, None, HostRequest::TakeLead);
            }
            None => {}
        }
    }

    /// Looks at the runs of a host.
    pub(super) fn check_runs(&mut self, host: usize) {
        let now = self.since_boot(host);
        if now < self.daemon(host).check_at || !self.can_read(host) {
            return;
        }
        let tables = &self.server.tables;
        let own = tables.runs.iter().filter(|(_, row)| row.is_open() && row.host == host);
        let own: BTreeSet<RunId> = own.map(|(run, _)| *run).collect();
        let machine = &mut self.hosts[host];
        let daemon = machine.daemon.as_mut().expect("it looks at its runs");
        daemon.check_at = now + CHECK_INTERVAL;
        daemon.unsettled.retain(|(_, run)| own.contains(run));
        daemon.exits.retain(|run, _| own.contains(run));
        let due = daemon.unsettled.extract_if(.., |(at, _)| *at <= now);
        let mut adopted: Vec<RunId> = due.map(|(_, run)| run).collect();
        let is_recovered = daemon
            .lead
            .as_mut()
            .is_some_and(|lead| std::mem::replace(&mut lead.is_recovered, true));
        // A leader learns of later runs by its own commits.
        if !is_recovered {
            adopted.extend(own.difference(&daemon.known));
            daemon.known.clone_from(&own);
        }
        for (run, local) in &mut machine.runs {
            if local.is_alive() && !own.contains(run) {
                local.state = LocalRunState::Dead;
            }
            local.is_cancelled |= tables.records.cancel_requests.contains(run);
        }
        if !self.is_asynchronous {
            let rows = &tables.runs;
            machine.runs.retain(|run, local| local.is_alive() || rows.contains_key(run));
        }
        adopted.into_iter().for_each(|run| self.adopt_run(host, run));
        self.collect_exits(host, &own);
        self.check_known_runs(host, &own);
    }

    /// Takes a run of this host over, or begins to start it.
    pub(super) fn adopt_run(&mut self, host: usize, run: RunId) {
        let tables = &self.server.tables;
        let Some(row) = tables.runs.get(&run).filter(|row| row.is_open()).cloned() else { return };
        let machine = &mut self.hosts[host];
        let daemon = machine.daemon.as_mut().expect("it takes a run over");
        let now = machine.clock.wall(self.now);
        let local = machine.runs.get_mut(&run);
        let is_starting = daemon.claims.contains_key(&run)
            || daemon.launches.iter().any(|launch| launch.run == run);
        // A run that is being started is claimed already, and has no spec yet.
        if is_starting && self.mutation != Some(HostMutation::StartingRunIsAdopted) {
            return;
        }
        if row.status == SharedRunStatus::Assigned {
            if local.as_ref().is_some_and(|local| local.is_alive()) {
                // The database has lost its claim: it is ended first.
                local.expect("it lives").is_cancelled = true;
                return self.retry_run(host, run);
            }
            let is_refused = local.is_some() || tables.records.cancel_requests.contains(&run);
            let boot = &machine.clock.boot;
            let first = daemon.contact.map(|at| HostContact::new(boot, at));
            let launch = RunLaunch { run, row, first, since: Duration::ZERO, is_refused };
            daemon.claims.entry(run).or_insert(launch);
        } else if local.is_none() {
            let result = RunResult::never_started(run, row.job, "it has no spec", now);
            daemon.exits.insert(run, (row.term, result));
        }
    }

    /// Notes the results of runners that have ended.
    fn collect_exits(&mut self, host: usize, own: &BTreeSet<RunId>) {
        let machine = &mut self.hosts[host];
        let now = machine.clock.wall(self.now);
        let daemon = machine.daemon.as_mut().expect("it looks at its runs");
        let ended = machine.runs.iter().filter(|(run, local)| {
            !local.is_alive() && own.contains(run) && !daemon.claims.contains_key(run)
        });
        for (run, local) in ended {
            if daemon.exits.contains_key(run) {
                continue;
            }
            let result = match &local.state {
                LocalRunState::Exited(result) => result.as_ref().clone(),
                _ => {
                    let of = (*run, local.row.job.clone());
                    let budget = local.row.budget;
                    let base = random_result(&mut self.random, false, of, budget, now);
                    RunResult {
                        end: RunEnd::Interrupted,
                        exit_reason: ExitReason::Error,
                        error: Some(RunError::new(ErrorClass::Interrupted, "its runner died")),
                        cost: RunCost::default(),
                        ..base
                    }
                }
            };
            daemon.exits.insert(*run, (local.row.term, result));
        }
    }

    /// Claims a run that the leader gave to this host.
    pub(super) fn send_claim(&mut self, host: usize) {
        let daemon = self.daemon(host);
        if daemon.pending[HostThread::Claim as usize].is_some() {
            return;
        }
        let Some((run, launch)) = daemon.claims.first_key_value() else { return };
        let (run, term) = (*run, launch.row.term);
        self.send(host, HostThread::Claim, Some(run), HostRequest::Claim { run, term });
    }

    /// Handles the reply to a claim.
    pub(super) fn note_claim(&mut self, host: usize, run: RunId, is_claimed: bool) {
        let now = self.hosts[host].clock.wall(self.now);
        let is_forgotten = self.mutation == Some(HostMutation::RefusedClaimIsForgotten);
        let daemon = self.daemon(host);
        let Some(launch) = daemon.claims.remove(&run) else { return };
        match is_claimed {
            true if launch.is_refused => {
                let job = launch.row.job.clone();
                let result = RunResult::never_started(run, job, "it is not started", now);
                daemon.exits.insert(run, (launch.row.term, result));
            }
            true => daemon.launches.push(launch),
            // An earlier claim of this host may have come late.
            false if !is_forgotten => self.retry_run(host, run),
            false => {}
        }
    }

    /// Starts a runner. A run that the leader gave to itself without a claim needs the lead.
    pub(super) fn launch_run(&mut self, host: usize) {
        let now = self.since_boot(host);
        let is_ignored = self.mutation == Some(HostMutation::LeaderIgnoresLease);
        let daemon = self.daemon(host);
        let Some(launch) = daemon.launches.pop() else { return };
        let lead = daemon.lead.as_ref().map(|lead| lead.until);
        if launch.row.status == SharedRunStatus::Assigned {
            return self.start_runner(host, launch);
        }
        if lead.is_some_and(|until| now < until) || is_ignored {
            self.check_lead(host);
            return self.start_runner(host, launch);
        }
        match now > launch.since + LEAD_WAIT {
            true => self.retry_run(host, launch.run),
            false => daemon.launches.push(launch),
        }
    }

    /// Ships the rows of one run.
    pub(super) fn ship_rows(&mut self, host: usize) {
        if self.daemon(host).pending[HostThread::Ship as usize].is_some() || !self.can_read(host) {
            return;
        }
        let is_synced = self.mutation != Some(HostMutation::RowsNotSynced);
        let tables = &self.server.tables;
        let runs = &mut self.hosts[host].runs;
        let own = tables.runs.iter().filter(|(_, row)| row.host == host);
        let unshipped = own.filter(|(run, row)| {
            let has_more = runs.get(run).is_some_and(|local| local.rows > local.shipped);
            has_more || !row.is_open()
        });
        let unshipped: Vec<_> = unshipped.collect();
        let Some((run, row)) = self.random.choice(unshipped) else { return };
        let (run, term) = (*run, row.term);
        let (start, end, is_end) = match runs.get_mut(&run) {
            Some(local) => {
                if is_synced {
                    local.synced = local.rows;
                }
                (local.shipped, local.rows, !local.is_alive())
            }
            // It was never started, and has no rows.
            None => (0, 0, true),
        };
        let body = HostRequest::Ship { run, term, start, end, is_end };
        self.send(host, HostThread::Ship, Some(run), body);
    }

    /// Notes the number of rows that the database has of a run.
    pub(super) fn note_shipped(&mut self, host: usize, run: RunId, count: Option<u64>) {
        if let (Some(count), Some(local)) = (count, self.hosts[host].runs.get_mut(&run)) {
            local.shipped = count;
        }
    }

    /// Reports the result of a run to the leader, after its rows.
    pub(super) fn send_report(&mut self, host: usize) {
        let machine = &self.hosts[host];
        let daemon = machine.daemon.as_ref().expect("it reports");
        if daemon.pending[HostThread::Report as usize].is_some() || daemon.lead.is_some() {
            return;
        }
        let is_shipped =
            |run: &RunId| machine.runs.get(run).is_none_or(|local| local.shipped >= local.rows);
        let ready: Vec<RunId> =
            daemon.exits.keys().filter(|run| is_shipped(run)).copied().collect();
        let Some(run) = self.random.choice(ready) else { return };
        let (term, result) = daemon.exits[&run].clone();
        let body = HostRequest::Report { run, term, result: Box::new(result) };
        self.send(host, HostThread::Report, Some(run), body);
    }

    /// Copies the rows of a run of another host.
    pub(super) fn copy_rows(&mut self, host: usize) {
        if !self.can_read(host) {
            return;
        }
        let rows = &self.server.tables.rows;
        if rows.is_empty() {
            return;
        }
        let at = self.random.usize(0..rows.len());
        let (run, found) = rows.iter().nth(at).expect("it is below the length");
        if found.host == host {
            return;
        }
        let known = self.hosts[host].copies.entry(*run).or_default();
        // A replica may lack rows that a host has copied. Their own host ships them again.
        assert!(
            found.count >= *known || self.is_asynchronous,
            "{}: rows of {run} that were shown are missing",
            HOSTS[host]
        );
        *known = found.count.max(*known);
    }
}
