//! The dispatcher of the host that leads: it decides with the real state machine, and commits over the network.

use super::super::*;
use super::HostSimulation;
use super::commit::{CommitRequest, SharedRunChange};
use super::daemon::{HostThread, RunLaunch};
use super::leader_memory::{LeaderMemory, SentCommit};
use super::mutation::HostMutation;
use super::network::HostRequest;
use super::server::{HOSTS, SharedRun, SharedRunStatus};
use crate::host_watch::HostWatch;
use crate::placement::{SessionPlace, place_run};
use crate::run::{HostContact, give_up_after};
use crate::session_choice::SessionChoice;
use heeler_config::HostChoice;

/// Interval at which the signs of life of other hosts are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Changes of a turn besides those of the state machine.
#[derive(Default)]
struct TurnExtras {
    drain: Option<(usize, bool)>,
    report: Option<RunId>,
}

impl HostSimulation {
    /// A host has taken the lead: it reads the records.
    pub(super) fn begin_lead(&mut self, host: usize, writer: (i64, i64), sent_at: Duration) {
        let until = sent_at + super::server::LEAD_LENGTH;
        let now = self.hosts[host].clock.wall(self.now);
        let records = SimulatedDatabase::default();
        let (rules, workflows) = (Arc::clone(&self.rules), self.workflows.clone());
        let mut fleet = FleetSimulation::of_database(records, rules, workflows, now);
        fleet.state = self.server.tables.records.load(Arc::clone(&self.rules), now);
        fleet.random = fastrand::Rng::with_seed(self.random.u64(..));
        fleet.is_wild = self.is_wild;
        let instance = self.daemon(host).instance;
        // IDs of different leaders differ.
        fleet.number = instance << 18;
        let lead = LeaderMemory {
            fleet,
            term: writer.0,
            commits: writer.1,
            until,
            watch: HostWatch::default(),
            is_recovered: false,
            looked_at: Duration::ZERO,
            sent: None,
            is_unknown: false,
        };
        self.leads += 1;
        let daemon = self.daemon(host);
        daemon.lead = Some(Box::new(lead));
        daemon.known.clear();
        daemon.check_at = Duration::ZERO;
    }

    /// Executes one turn of the dispatcher, which waits for the outcome of its last commit first.
    pub(super) fn turn_leader(&mut self, host: usize) {
        let daemon = self.daemon(host);
        if daemon.pending[HostThread::Dispatcher as usize].is_some() {
            return;
        }
        // Its own runs are taken over before it decides anything.
        let Some(mut lead) = daemon.lead.take_if(|lead| lead.is_recovered) else { return };
        // A transaction needs the connection of the one before.
        let connection = self.daemon(host).connections[HostThread::Dispatcher as usize];
        lead.is_unknown |= connection != self.server.number;
        if lead.is_unknown {
            let body = HostRequest::Reconnect { known_commits: lead.commits };
            self.send(host, HostThread::Dispatcher, None, body);
        } else if self.can_read(host) {
            self.decide(host, &mut lead);
        }
        self.daemon(host).lead = Some(lead);
    }

    fn decide(&mut self, host: usize, lead: &mut LeaderMemory) {
        lead.fleet.now = self.hosts[host].clock.wall(self.now);
        lead.fleet.is_wild = self.is_wild;
        lead.fleet.unsent = Some(Vec::new());
        let mut extras = TurnExtras::default();
        std::mem::swap(&mut self.server.tables.records, &mut lead.fleet.database);
        let is_current = self.server.tables.term == lead.term;
        let fleet = &lead.fleet;
        // It is told of a new day by the turn itself.
        let is_today = fleet.rules.day_of(fleet.now) == fleet.state.ledger().day();
        let is_comparable = is_current && is_today && !self.is_asynchronous;
        if is_comparable && self.random.u32(0..100) == 0 {
            check_invariants(&fleet.state, &fleet.database, &fleet.rules, fleet.now);
        }
        self.take_turn(host, lead, &mut extras);
        std::mem::swap(&mut self.server.tables.records, &mut lead.fleet.database);
        let mut steps = lead.fleet.unsent.take().expect("it was set above");
        let effects = steps.iter_mut().flat_map(|step| std::mem::take(&mut step.effects)).collect();
        let commit = CommitRequest {
            term: lead.term,
            rules: Arc::clone(&lead.fleet.rules),
            steps,
            drain: extras.drain,
            report: extras.report,
        };
        let launches = self.own_launches(host, &commit);
        let sent = SentCommit { effects, jobs: commit.new_jobs(), launches };
        if commit.is_empty() {
            return self.finish_commit(host, lead, sent);
        }
        lead.sent = Some(sent);
        let body = HostRequest::Commit(Box::new(commit));
        lead.is_unknown = !self.send(host, HostThread::Dispatcher, None, body);
    }

    fn take_turn(&mut self, host: usize, lead: &mut LeaderMemory, extras: &mut TurnExtras) {
        lead.fleet.follow_day();
        if self.give_up_silent_runs(host, lead) {
            return;
        }
        match self.random.u32(0..100) {
            0..=11 if self.is_wild => self.request_job(host, lead),
            12..=16 if self.is_wild => lead.fleet.disturb_workflow(),
            17 | 18 if self.is_wild => lead.fleet.cancel_random_job(),
            19 if self.is_wild => lead.fleet.reload(),
            20 => self.drain_host(extras),
            21 => self.give_up_host(host, lead),
            22..=50 => self.finish_preparation(host, lead),
            51..=75 => self.record_exit(host, lead, extras),
            76..=78 if !self.is_wild => lead.fleet.answer_gate(),
            79..=82 if !self.is_wild => self.skip_wait(lead),
            _ => lead.fleet.tick(),
        }
        self.rules = Arc::clone(&lead.fleet.rules);
    }

    /// Lets all clocks on the walls jump to the next time at which something happens.
    fn skip_wait(&mut self, lead: &LeaderMemory) {
        let now = lead.fleet.now;
        if let Some(at) = lead.fleet.state.wake_at(now, false) {
            self.hosts.iter_mut().for_each(|host| host.clock.shift_wall(at.duration_since(now)));
        }
    }

    fn drain_host(&mut self, extras: &mut TurnExtras) {
        let host = self.random.usize(0..self.hosts.len());
        let is_drained = self.is_wild && self.random.bool();
        extras.drain = Some((host, is_drained));
    }

    fn request_job(&mut self, host: usize, lead: &mut LeaderMemory) {
        let job = lead.fleet.new_job_id();
        let agent = AGENTS[self.random.usize(0..AGENTS.len())];
        let priority = self.random.i64(-2..3);
        let request = JobRequest { priority, ..JobRequest::new(agent.parse().unwrap()) };
        let request_json = serde_json::to_string(&request).unwrap();
        let new = NewJob { request: request.clone(), request_json };
        self.prepare(host, lead, job, &request, Some(new));
    }

    fn finish_preparation(&mut self, host: usize, lead: &mut LeaderMemory) {
        let Some((job, request)) = lead.fleet.preparing.pop() else { return lead.fleet.tick() };
        self.prepare(host, lead, job, &request, None);
    }

    fn prepare(
        &mut self,
        host: usize,
        lead: &mut LeaderMemory,
        job: JobId,
        request: &JobRequest,
        new: Option<NewJob>,
    ) {
        let agent = request.agent.as_str();
        let (session, row) = match self.place(host, request, &job) {
            Ok(row) => (SessionReadiness::Free, Some(row)),
            Err(session) => (session, None),
        };
        let run = lead.fleet.new_run_id();
        let fleet = &lead.fleet;
        let start = JobStart {
            run,
            session,
            uses_persistent_session: row.as_ref().is_some_and(|row| row.session.is_some()),
            budget: fleet.rules.agents.get(agent).and_then(|agent| agent.job_budget),
            spent: fleet.database.jobs.get(&job).map_or(0, |job| job.spent),
            new,
            job,
        };
        let decision = lead.fleet.step(FleetEvent::JobPrepared(Box::new(start)));
        if let (Some(JobDecision::Started { budget }), Some(row)) = (decision, row) {
            let row = Box::new(SharedRun { budget, ..row });
            note_run_change(lead, SharedRunChange::Start(run, row));
        }
    }

    /// Chooses the host and the session of a run with the real placement.
    fn place(
        &mut self,
        leader: usize,
        request: &JobRequest,
        job: &JobId,
    ) -> Result<SharedRun, SessionReadiness> {
        let agent = request.agent.as_str();
        let setting = &self.agents[agent];
        let tables = &self.server.tables;
        let known = tables.sessions.get(agent).copied();
        let is_required = matches!(request.session, SessionChoice::Given { .. });
        let is_usual = request.session == SessionChoice::Usual && setting.is_persistent;
        let is_used = !request.runs_no_agent() && (is_required || is_usual);
        let candidates = tables.candidates(leader, self.now);
        let place = known.filter(|_| is_used);
        let place =
            place.map(|(_, host)| SessionPlace { host: HOSTS[host].to_owned(), is_required });
        let choice = setting.choice.as_ref();
        let placed = place_run(agent, choice, place.as_ref(), &candidates);
        let placed = placed.map_err(SessionReadiness::HostAway)?;
        let host = HOSTS.iter().position(|name| *name == placed.host).expect("it is a candidate");
        let number = match known.filter(|_| is_used) {
            Some((number, there)) if there == host => number,
            Some(_) if is_required => {
                return Err(SessionReadiness::Unusable("it is on another host".to_owned()));
            }
            _ => {
                self.sessions += 1;
                self.sessions
            }
        };
        let session = is_used.then(|| (agent.to_owned(), number));
        let mut runs = self.server.tables.runs.values();
        if session.is_some() && runs.any(|run| run.is_open() && run.session == session) {
            return Err(SessionReadiness::Busy("another run uses it".to_owned()));
        }
        let setting = &self.agents[agent];
        let labels = match &setting.choice {
            Some(HostChoice::Labels { labels, .. }) if !is_required => labels.clone(),
            _ => Vec::new(),
        };
        let status = match &setting.choice {
            Some(_) => SharedRunStatus::Assigned,
            None => SharedRunStatus::Claimed,
        };
        let (job, lease) = (job.clone(), setting.lease);
        Ok(SharedRun { host, job, term: 0, status, lease, budget: None, session, labels })
    }

    /// Records the result of a run: its own, or one that another host reports.
    fn record_exit(&mut self, host: usize, lead: &mut LeaderMemory, extras: &mut TurnExtras) {
        let own: Vec<RunId> = self.daemon(host).exits.keys().copied().collect();
        let own = self.random.choice(own).map(|run| (run, self.daemon(host).exits[&run].clone()));
        let is_own = own.is_some();
        let reported = || {
            let report = self.server.tables.reports.first_key_value();
            report.map(|(run, report)| (*run, report.clone()))
        };
        let Some((run, (term, result))) = own.or_else(reported) else {
            return lead.fleet.tick();
        };
        let row = self.server.tables.runs.get(&run);
        // The key of a run that was not claimed fits no signature. The leader settles such a run of its own.
        let is_valid = row.is_some_and(|row| {
            let is_checked = is_own || row.status == SharedRunStatus::Claimed;
            row.is_open() && row.term == term && is_checked
        });
        if is_valid || self.mutation == Some(HostMutation::ResultWithoutTerm) {
            end_run(lead, run, result, SharedRunChange::End(run));
        } else if is_own {
            self.daemon(host).exits.remove(&run);
        } else {
            extras.report = Some(run);
        }
    }

    /// A person gives up a host that is away.
    fn give_up_host(&mut self, leader: usize, lead: &mut LeaderMemory) {
        let host = self.random.usize(0..self.hosts.len());
        let tables = &self.server.tables;
        if !self.is_wild || host == leader || tables.is_alive(host, self.now) {
            return lead.fleet.tick();
        }
        let lost = tables.runs.iter().filter(|(_, row)| row.is_open() && row.host == host);
        let lost: Vec<RunId> = lost.map(|(run, _)| *run).collect();
        lost.into_iter().for_each(|run| give_up(lead, run, RunEndSource::Result));
    }

    /// Gives up the runs of hosts that were silent for longer than their leases. Returns true if there are some.
    fn give_up_silent_runs(&mut self, leader: usize, lead: &mut LeaderMemory) -> bool {
        let now = self.since_boot(leader);
        if now < lead.looked_at + LOOK_INTERVAL {
            return false;
        }
        lead.looked_at = now;
        let tables = &self.server.tables;
        let leased: Vec<(RunId, usize, Duration)> = tables
            .runs
            .iter()
            .filter(|(_, row)| row.is_open() && row.host != leader)
            .filter_map(|(run, row)| Some((*run, row.host, row.lease?)))
            .collect();
        let signs = leased.iter().map(|(_, host, _)| (HOSTS[*host], tables.hosts[*host].mark));
        lead.watch.observe(signs, now);
        let is_early = self.mutation == Some(HostMutation::GivenUpTooEarly);
        let over: Vec<RunId> = leased
            .into_iter()
            .filter(|(_, host, lease)| {
                let most = if is_early { *lease / 2 } else { give_up_after(*lease) };
                lead.watch.silence(HOSTS[*host], now) >= most
            })
            .map(|(run, ..)| run)
            .collect();
        let is_some = !over.is_empty();
        over.into_iter().for_each(|run| give_up(lead, run, RunEndSource::HostSilence));
        is_some
    }

    /// Returns the runs of this host that begin with a commit.
    fn own_launches(&mut self, host: usize, commit: &CommitRequest) -> Vec<RunLaunch> {
        let since = self.since_boot(host);
        let contact = self.daemon(host).contact;
        let boot = &self.hosts[host].clock.boot;
        let first = contact.map(|at| HostContact::new(boot, at));
        let own = commit.steps.iter().filter_map(|step| match &step.run_change {
            Some(SharedRunChange::Start(run, row)) if row.host == host => {
                let (first, row) = (first.clone(), row.as_ref().clone());
                Some(RunLaunch { run: *run, row, first, since, is_refused: false })
            }
            _ => None,
        });
        own.collect()
    }

    /// Executes the effects of a commit that is on record.
    fn finish_commit(&mut self, host: usize, lead: &mut LeaderMemory, sent: SentCommit) {
        let created = &self.server.tables.created;
        for job in sent.jobs {
            let is_kept = self.is_asynchronous || created.contains(&job);
            assert!(is_kept, "{job}, of which a client was told, is not on record");
        }
        for effect in sent.effects {
            if let FleetEffect::PrepareJob { job, request } = effect {
                lead.fleet.preparing.push((job, *request));
            }
        }
        for launch in sent.launches {
            match launch.row.status {
                SharedRunStatus::Assigned => self.adopt_run(host, launch.run),
                _ => self.daemon(host).launches.push(launch),
            }
        }
    }

    pub(super) fn note_committed(&mut self, host: usize) {
        let Some(mut lead) = self.daemon(host).lead.take() else { return };
        lead.commits += 1;
        if let Some(sent) = lead.sent.take() {
            self.finish_commit(host, &mut lead, sent);
        }
        self.daemon(host).lead = Some(lead);
    }

    pub(super) fn lose_commit_reply(&mut self, host: usize) {
        let counts_as_saved = self.mutation == Some(HostMutation::UnknownOutcomeCountsAsSaved);
        if counts_as_saved {
            return self.note_committed(host);
        }
        if let Some(lead) = &mut self.daemon(host).lead {
            lead.is_unknown = true;
        }
    }

    /// The writer has a new connection, and learns the outcome of its last commit.
    pub(super) fn note_writer(&mut self, host: usize, writer: Option<(i64, i64)>) {
        // Another host leads, or commits are lost: it executes its program again.
        let Some((term, commits)) = writer else { return self.hosts[host].daemon = None };
        let Some(mut lead) = self.daemon(host).lead.take() else { return };
        lead.is_unknown = false;
        lead.term = term;
        match (lead.sent.take(), commits - lead.commits) {
            (Some(sent), 1) => self.finish_commit(host, &mut lead, sent),
            (_, 0) => {
                let rules = Arc::clone(&lead.fleet.rules);
                let now = self.hosts[host].clock.wall(self.now);
                lead.fleet.state = self.server.tables.records.load(rules, now);
            }
            (_, count) => panic!("{count} commits of another writer"),
        }
        lead.commits = commits;
        self.daemon(host).lead = Some(lead);
    }
}

fn give_up(lead: &mut LeaderMemory, run: RunId, source: RunEndSource) {
    let job = lead.fleet.database.runs[&run].job.clone();
    let result = RunResult {
        end: RunEnd::Interrupted,
        error: Some(RunError::new(ErrorClass::Interrupted, "its host was given up")),
        cost: RunCost::default(),
        ..RunResult::never_started(run, job, "", lead.fleet.now)
    };
    end_run(lead, run, result, SharedRunChange::GiveUp { run, source });
}

fn end_run(lead: &mut LeaderMemory, run: RunId, mut result: RunResult, change: SharedRunChange) {
    let source = match &change {
        SharedRunChange::GiveUp { source, .. } => *source,
        _ => RunEndSource::Result,
    };
    let row = lead.fleet.database.runs[&run].clone();
    let job = lead.fleet.database.jobs[&row.job].clone();
    let is_cancelled = lead.fleet.database.cancel_requests.contains(&run);
    if is_cancelled && result.end != RunEnd::Finished {
        result.exit_reason = ExitReason::Cancelled;
        result.error = None;
    }
    let history = lead.fleet.database.history(&row.job);
    let facts = RunEndFacts {
        run,
        job: &row.job,
        agent: &row.agent,
        schedule: job.schedule.as_deref(),
        is_workflow_part: job.part.is_some(),
        result: &result,
        history,
        is_cancelled,
        source,
    };
    lead.fleet.step_with(FleetEvent::RunEnded(facts), Some(&result));
    note_run_change(lead, change);
}

/// Adds the change of a run's row to the last step.
fn note_run_change(lead: &mut LeaderMemory, change: SharedRunChange) {
    let unsent = lead.fleet.unsent.as_mut().expect("the dispatcher takes a turn");
    unsent.last_mut().expect("a step was taken").run_change = Some(change);
}
