//! Simulation of whole fleets: random commands, run ends, crashes between any two steps, clock jumps
//! and config reloads, without a database or a process.
//!
//! Workflow runs start, ask questions, are cancelled and retried in between; their parts are jobs of
//! the fleet. The state in memory is compared with one that is loaded from the simulated database,
//! and the promises P2, P3, P6, P7 and P8 are checked from the rows alone. The proof ends when every
//! job and every workflow run has ended.

mod database;
mod hosts;
mod invariants;
mod journal;
mod workflows;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use heeler_config::workflow::Workflow;
use heeler_testkit::ProofSettings;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::calendar::ScheduleKey;
use crate::rerun::RerunPolicy;
use crate::run::{ErrorClass, RunCost, RunEnd, RunError, RunResult, SessionEnd, UsageLimitState};
use crate::timetable::tests::every;
use crate::workflow::simulation::random_workflow;
use crate::{ExitReason, JobStatus, SessionMode};
use database::{SimulatedDatabase, SimulatedScheduleRow, StoredFacts};
use hosts::UnsentStep;
use invariants::{check_invariants, check_rows};
use journal::SimulatedWorkflowRun;
use workflows::SimulatedCommit;

/// Events per simulated fleet, before its jobs are brought to an end.
const EVENTS_PER_FLEET: u64 = 100_000;
/// Fleets in CI: together a million events.
const FLEETS_IN_CI: u64 = 10;
const AGENTS: [&str; 4] = ["alpha", "beta", "inner.gamma", "inner.delta"];
/// Outputs of runs. Some end a loop, a review or a phase.
const OUTPUTS: [Option<&str>; 5] =
    [None, Some("said 3"), Some("said 5"), Some("VERDICT: APPROVED"), Some("BLOCKED")];
/// Number of different workflows per fleet.
const WORKFLOWS: usize = 50;
/// Events between two comparisons of memory and database. The rows are also checked at each crash.
const CHECK_EVERY: u64 = 40;
/// Steps after which every job must have ended, once nothing new arrives.
const DRAIN_STEPS_MAX: u32 = 60_000;

/// A fleet with its daemon, its runs and its clock.
struct FleetSimulation {
    random: fastrand::Rng,
    now: Timestamp,
    rules: Arc<FleetRules>,
    database: SimulatedDatabase,
    state: FleetState,
    /// Jobs in preparation; a crash forgets them.
    preparing: Vec<(JobId, JobRequest)>,
    /// Runs that have a process. They survive a crash of the daemon.
    live: BTreeMap<RunId, ()>,
    /// Recorded runs that were not launched; the daemon settles them as never started.
    unlaunched: Vec<RunId>,
    /// Row of the workflow run that the current event starts.
    new_workflow_run: Option<SimulatedWorkflowRun>,
    /// Workflows that are started again and again, because parsing templates takes long.
    workflows: Vec<Arc<Workflow>>,
    /// Workflow runs that have ended.
    ended_runs: u64,
    /// Steps of the present transaction, if it is sent over a network. Otherwise each step is stored at once.
    unsent: Option<Vec<UnsentStep>>,
    /// False while the fleet drains: runs succeed and nothing new arrives.
    is_wild: bool,
    events: u64,
    number: u64,
}

#[test]
fn proof_a_fleet_keeps_its_promises_across_any_events_and_crashes() {
    let proof = ProofSettings::new(FLEETS_IN_CI);
    let mut events = 0;
    for round in 0..proof.rounds {
        let mut simulation = FleetSimulation::new(proof.random(round));
        let outcome = catch_unwind(AssertUnwindSafe(|| simulation.run()));
        if outcome.is_err() {
            panic!("seed {}, round {round}, event {}", proof.seed, simulation.events);
        }
        events += simulation.events;
        let runs = simulation.ended_runs;
        assert!(runs > simulation.events / 1_000, "only {runs} workflow runs");
    }
    assert!(events >= proof.rounds * EVENTS_PER_FLEET, "{events} events");
}

impl FleetSimulation {
    fn new(mut random: fastrand::Rng) -> FleetSimulation {
        let now = "2026-03-28T22:00:00Z".parse().unwrap();
        let rules = Arc::new(random_rules(&mut random));
        let database = SimulatedDatabase::default();
        let workflows = (0..WORKFLOWS).map(|_| Arc::new(random_workflow(&mut random))).collect();
        let mut simulation = FleetSimulation::of_database(database, rules, workflows, now);
        simulation.random = random;
        simulation.add_schedules();
        simulation
    }

    /// Creates a daemon that has just started.
    fn of_database(
        database: SimulatedDatabase,
        rules: Arc<FleetRules>,
        workflows: Vec<Arc<Workflow>>,
        now: Timestamp,
    ) -> FleetSimulation {
        FleetSimulation {
            random: fastrand::Rng::with_seed(0),
            now,
            state: database.load(Arc::clone(&rules), now),
            rules,
            database,
            preparing: Vec::new(),
            live: BTreeMap::new(),
            unlaunched: Vec::new(),
            new_workflow_run: None,
            workflows,
            ended_runs: 0,
            unsent: None,
            is_wild: true,
            events: 0,
            number: 0,
        }
    }

    fn run(&mut self) {
        while self.events < EVENTS_PER_FLEET {
            self.disturb();
        }
        self.drain();
    }

    /// Executes one random event.
    fn disturb(&mut self) {
        match self.random.u32(0..100) {
            0..=13 => self.request_job(),
            14..=19 => self.disturb_workflow(),
            20..=39 => self.finish_preparation(),
            40..=59 => self.end_random_run(),
            60..=64 => self.cancel_random_job(),
            65..=66 => self.reload(),
            67..=68 => self.switch_agent(),
            69..=70 => self.crash(),
            71..=90 => self.pass_time(),
            _ => self.tick(),
        }
    }

    /// Lets everything end: no new work, no failures, enough time.
    fn drain(&mut self) {
        self.is_wild = false;
        self.database.schedules.clear();
        self.replace_rules(Arc::new(generous_rules()));
        for agent in AGENTS {
            self.database.disabled.remove(agent);
            self.step(FleetEvent::AgentSwitched { agent, is_enabled: true });
        }
        let mut left = DRAIN_STEPS_MAX;
        while !self.database.jobs.is_empty() || self.has_active_runs() {
            assert!(left > 0, "jobs do not end: {:?}", self.database.queue);
            left -= 1;
            self.tick();
            self.drain_workflows();
            while !self.preparing.is_empty() {
                self.finish_preparation();
            }
            while !self.live.is_empty() || !self.unlaunched.is_empty() {
                self.end_random_run();
            }
            if let Some(at) = self.state.wake_at(self.now, false) {
                self.now = self.now.max(at);
            }
        }
        assert_eq!(self.state.runs().len(), 0, "a run without a job");
        assert_eq!(self.state.queue_len(), 0, "an entry without a job");
        assert_eq!(self.state.workflow_runs().count(), 0, "a run without a record");
        let reserved = self.state.ledger().fleet().reserved;
        assert_eq!(reserved, 0, "money stays reserved without a run");
    }

    /// Applies an event and stores the changes, unless the daemon dies before or after the commit.
    fn step(&mut self, event: FleetEvent<'_>) -> Option<JobDecision> {
        self.step_with(event, None)
    }

    fn step_with(
        &mut self,
        event: FleetEvent<'_>,
        result: Option<&RunResult>,
    ) -> Option<JobDecision> {
        self.events += 1;
        let uses_persistent_session = match &event {
            FleetEvent::JobPrepared(start) => start.uses_persistent_session,
            _ => false,
        };
        let mut step = self.state.step(event, self.now);
        let decision = step.decision.take();
        let mut commit = SimulatedCommit::default();
        self.collect_changes(step, &mut commit);
        while let Some((run, event)) = commit.pending_events.pop() {
            let step = self.state.step(FleetEvent::Workflow { run: &run, event }, self.now);
            self.collect_changes(step, &mut commit);
        }
        let budget = budget_of(decision.as_ref());
        if let Some(unsent) = &mut self.unsent {
            unsent.push(UnsentStep {
                changes: commit.changes,
                effects: commit.effects,
                now: self.now,
                budget,
                uses_persistent_session,
                result: result.cloned(),
                new_workflow_run: self.new_workflow_run.take(),
                run_change: None,
            });
            return decision;
        }
        if self.is_wild && self.random.u32(0..200) == 0 {
            // The commit fails, or the daemon dies before it. Preparations survive only the former.
            match self.random.bool() {
                true => self.load_state(),
                false => self.restart(),
            }
            return None;
        }
        let new_workflow_run = self.new_workflow_run.take();
        for change in commit.changes {
            self.check_start(&change);
            if let FleetChange::UpdateWorkflowRun { record, .. } = &change {
                self.ended_runs += u64::from(record.has_ended);
            }
            let facts = StoredFacts {
                now: self.now,
                budget,
                uses_persistent_session,
                result,
                new_workflow_run: new_workflow_run.as_ref(),
            };
            self.database.store(change, &facts);
        }
        if self.is_wild && self.random.u32(0..200) == 0 {
            // The daemon dies before the effects.
            self.unlaunched.extend(commit.effects.iter().filter_map(|effect| match effect {
                FleetEffect::LaunchRun(run) => Some(*run),
                _ => None,
            }));
            self.restart();
            return None;
        }
        for effect in commit.effects {
            match effect {
                FleetEffect::PrepareJob { job, request } => self.preparing.push((job, *request)),
                FleetEffect::LaunchRun(run) => drop(self.live.insert(run, ())),
                // The record of the request decides when the run ends.
                FleetEffect::CancelRun { .. } => {}
            }
        }
        if self.events.is_multiple_of(CHECK_EVERY) {
            check_invariants(&self.state, &self.database, &self.rules, self.now);
        }
        decision
    }

    /// Starts another daemon with the content of the database.
    fn restart(&mut self) {
        self.preparing.clear();
        self.load_state();
    }

    fn load_state(&mut self) {
        check_rows(&self.database);
        self.state = self.database.load(Arc::clone(&self.rules), self.now);
    }

    fn crash(&mut self) {
        self.events += 1;
        self.restart();
    }

    fn tick(&mut self) {
        self.follow_day();
        self.fire_schedules();
        self.continue_workflows();
        self.step(FleetEvent::TimePassed);
        let preparations_max = self.random.usize(1..6);
        self.step(FleetEvent::StartsAllowed { preparations_max });
    }

    /// Notes the day of the clock, as each turn of the dispatcher does first.
    fn follow_day(&mut self) {
        let day = self.rules.day_of(self.now);
        if day != self.state.ledger().day() {
            let spent = self.database.spending.iter().filter(|((_, of), _)| *of == day);
            let spent = spent.map(|((agent, _), micros)| (agent.clone(), *micros)).collect();
            self.step(FleetEvent::DayChanged { day, spent });
        }
    }

    fn fire_schedules(&mut self) {
        for (key, mut decision) in self.state.due_schedules(self.now) {
            let starts = &self.database.starts;
            decision.starts.retain(|start| !starts.contains_key(&(key.clone(), start.due)));
            let new_jobs = decision.starts.iter().map(|_| self.new_job_id()).collect();
            self.step(FleetEvent::ScheduleDue { key: &key, decision: &decision, new_jobs });
        }
    }

    fn pass_time(&mut self) {
        let span = match self.random.u32(0..100) {
            0 => SignedDuration::from_hours(self.random.i64(1..72)),
            1 => SignedDuration::from_secs(-self.random.i64(1..7_200)),
            _ => SignedDuration::from_millis(self.random.i64(1..90_000)),
        };
        self.now = self.now.checked_add(span).unwrap();
        self.tick();
    }

    fn new_job_id(&mut self) -> JobId {
        self.number += 1;
        JobId::mint(self.now, self.number)
    }

    fn new_run_id(&mut self) -> RunId {
        RunId::mint(self.now, std::array::from_fn(|_| self.random.u8(..)))
    }

    fn request_job(&mut self) {
        let job = self.new_job_id();
        let agent = AGENTS[self.random.usize(0..AGENTS.len())];
        let request = JobRequest {
            priority: self.random.i64(-2..3),
            ..JobRequest::new(agent.parse().unwrap())
        };
        let request_json = serde_json::to_string(&request).unwrap();
        self.prepare(job, agent, Some(NewJob { request, request_json }));
    }

    fn finish_preparation(&mut self) {
        if self.preparing.is_empty() {
            return self.tick();
        }
        let place = self.random.usize(0..self.preparing.len());
        let (job, request) = self.preparing.swap_remove(place);
        if self.is_wild && self.random.u32(0..40) == 0 {
            let why = "its working directory is gone".to_owned();
            if self.state.job(&job).is_some_and(|job| job.stage == JobStage::Preparing) {
                self.step(FleetEvent::JobImpossible { job: &job, why });
            }
            return;
        }
        self.prepare(job, request.agent.as_str(), None);
    }

    fn prepare(&mut self, job: JobId, agent: &str, new: Option<NewJob>) {
        let session = match self.random.u32(0..20) {
            0 if self.is_wild => SessionReadiness::Busy("another run uses it".to_owned()),
            1 if self.is_wild => SessionReadiness::Unusable("it is deleted".to_owned()),
            2 if self.is_wild => SessionReadiness::HostAway("host `beta` is away".to_owned()),
            _ => SessionReadiness::Free,
        };
        let start = JobStart {
            run: self.new_run_id(),
            session,
            uses_persistent_session: self.random.bool(),
            budget: self.rules.agents.get(agent).and_then(|agent| agent.job_budget),
            spent: self.database.jobs.get(&job).map_or(0, |job| job.spent),
            new,
            job,
        };
        self.step(FleetEvent::JobPrepared(Box::new(start)));
    }

    fn end_random_run(&mut self) {
        if let Some(run) = self.unlaunched.pop() {
            let job = self.database.runs[&run].job.clone();
            let result = RunResult::never_started(run, job, "not launched", self.now);
            return self.end_run(run, result);
        }
        if self.live.is_empty() {
            return self.tick();
        }
        let place = self.random.usize(0..self.live.len());
        let run = *self.live.keys().nth(place).unwrap();
        let row = &self.database.runs[&run];
        let (of, budget) = ((run, row.job.clone()), row.budget);
        let result = random_result(&mut self.random, self.is_wild, of, budget, self.now);
        self.end_run(run, result);
    }

    /// Reports the end of a run until the daemon has recorded it, as the settling of dead runs does.
    fn end_run(&mut self, run: RunId, result: RunResult) {
        let row = self.database.runs[&run].clone();
        let source = match result.end {
            RunEnd::Interrupted if self.random.bool() => RunEndSource::HostSilence,
            _ => RunEndSource::Result,
        };
        while self.database.runs.contains_key(&run) {
            let job = self.database.jobs[&row.job].clone();
            let is_cancelled = self.database.cancel_requests.contains(&run);
            let mut result = result.clone();
            if is_cancelled && result.end != RunEnd::Finished {
                result.exit_reason = ExitReason::Cancelled;
                result.error = None;
            }
            let facts = RunEndFacts {
                run,
                job: &row.job,
                agent: &row.agent,
                schedule: job.schedule.as_deref(),
                is_workflow_part: job.part.is_some(),
                result: &result,
                history: self.database.history(&row.job),
                is_cancelled,
                source,
            };
            self.step_with(FleetEvent::RunEnded(facts), Some(&result));
        }
        self.live.remove(&run);
    }

    fn cancel_random_job(&mut self) {
        let open: Vec<JobId> = self.database.jobs.keys().cloned().collect();
        if open.is_empty() {
            return self.tick();
        }
        let job = &open[self.random.usize(0..open.len())];
        let is_pending = self.database.jobs[job].status == JobStatus::Pending;
        let request = CancelRequest { now: self.random.bool(), by: "ada".to_owned() };
        self.step(FleetEvent::CancelRequested { job, is_pending, request });
    }

    fn reload(&mut self) {
        let rules = Arc::new(random_rules(&mut self.random));
        self.replace_rules(rules);
    }

    fn replace_rules(&mut self, rules: Arc<FleetRules>) {
        self.rules = Arc::clone(&rules);
        self.step(FleetEvent::RulesReplaced(rules));
    }

    fn switch_agent(&mut self) {
        let agent = AGENTS[self.random.usize(0..AGENTS.len())];
        let is_enabled = self.random.bool();
        match is_enabled {
            true => drop(self.database.disabled.remove(agent)),
            false => drop(self.database.disabled.insert(agent.to_owned(), ())),
        }
        self.step(FleetEvent::AgentSwitched { agent, is_enabled });
    }

    fn add_schedules(&mut self) {
        for agent in &AGENTS[..2] {
            let key = ScheduleKey { agent: (*agent).to_owned(), schedule: "often".to_owned() };
            let table = every(&format!("{}s", self.random.u64(30..900)));
            let cursor = table.initial_cursor(self.now);
            let row = SimulatedScheduleRow { table: table.clone(), cursor };
            self.database.schedules.insert(key.clone(), row);
            self.state.calendar_mut().insert(key, table, cursor, self.now);
        }
    }

    /// Checks a start against the rows, before it is stored: promises P2 and P8 and the limits.
    fn check_start(&self, change: &FleetChange) {
        let FleetChange::StartRun { job, run, reservation } = change else { return };
        let mut others = self.database.runs.values();
        assert!(others.all(|other| other.job != *job), "{job} runs twice at once");
        let Some(reservation) = reservation else {
            let request = self.state.job(job).map(|job| &job.request);
            if !request.is_some_and(JobRequest::runs_no_agent) {
                invariants::check_unlimited(&self.rules, &self.database.jobs[job].agent);
            }
            return;
        };
        assert_eq!(reservation.run, *run);
        invariants::check_reservation(&self.database, &self.rules, reservation);
    }
}

/// Returns the budget of a run that a decision starts.
fn budget_of(decision: Option<&JobDecision>) -> Option<i64> {
    match decision {
        Some(JobDecision::Started { budget }) => *budget,
        _ => None,
    }
}

/// Draws the result of a run.
fn random_result(
    random: &mut fastrand::Rng,
    is_wild: bool,
    (run, job): (RunId, JobId),
    budget: Option<i64>,
    now: Timestamp,
) -> RunResult {
    let session = SessionEnd {
        id: "0199a1b2-0000-7000-8000-000000000000".parse().unwrap(),
        log: "sessions/s.jsonl".into(),
        messages: 2,
        tokens: 10,
        resumable: true,
        own: None,
    };
    let budget = budget.unwrap_or(2_000_000);
    let cost = random.i64(0..=budget) as f64 / 1e6;
    let base = RunResult {
        end: RunEnd::Finished,
        exit_reason: ExitReason::Success,
        error: None,
        cost: RunCost { usd: Some(cost), ..RunCost::default() },
        session: Some(session),
        output: OUTPUTS[random.usize(0..OUTPUTS.len())].map(str::to_owned),
        ..RunResult::never_started(run, job, "", now)
    };
    let failed = |class: ErrorClass, base: RunResult| RunResult {
        exit_reason: ExitReason::Error,
        error: Some(RunError::new(class, "no")),
        ..base
    };
    match random.u32(0..20) {
        _ if !is_wild => base,
        0..=2 => RunResult {
            end: RunEnd::Interrupted,
            cost: RunCost::default(),
            ..failed(ErrorClass::Interrupted, base)
        },
        3..=4 => failed(ErrorClass::Network, base),
        5 => failed(ErrorClass::AgentFailed, base),
        6 => {
            let resets_at = now.checked_add(Duration::from_secs(900)).ok();
            let error = RunError::new(ErrorClass::RateLimited, "usage limit");
            RunResult {
                error: Some(RunError { resets_at, ..error }),
                ..failed(ErrorClass::RateLimited, base)
            }
        }
        9 => {
            // A success whose agent reports that it used up the limit.
            let resets_at = now.checked_add(Duration::from_secs(600)).ok();
            let is_used_up = random.bool();
            RunResult { usage_limit: Some(UsageLimitState { is_used_up, resets_at }), ..base }
        }
        7 => RunResult { end: RunEnd::SessionBusy, ..failed(ErrorClass::SessionBusy, base) },
        8 => RunResult::never_started(run, base.job, "no memory", now),
        _ => base,
    }
}

fn random_rules(random: &mut fastrand::Rng) -> FleetRules {
    let limits = |random: &mut fastrand::Rng| SpendingLimits {
        day: random.bool().then(|| random.i64(1..60) * 1_000_000),
        total: (random.u32(0..4) == 0).then(|| random.i64(20..400) * 1_000_000),
    };
    let mut agents = HashMap::new();
    for name in AGENTS {
        // An agent may be missing from the config for a while.
        if random.u32(0..12) > 0 {
            let limits = limits(random);
            agents.insert(name.to_owned(), random_agent(random, limits));
        }
    }
    let fleet = |path: &str, random: &mut fastrand::Rng| SubfleetRules {
        path: path.to_owned(),
        max_concurrent: random.bool().then(|| random.u32(1..6)),
        limits: limits(random),
    };
    FleetRules {
        agents,
        fleets: vec![fleet("", random), fleet("inner", random)],
        queue_max: random.usize(0..12),
        queue_wait_max: Duration::from_secs(random.u64(60..36_000)),
        zone: TimeZone::UTC,
        workflow_runs_max: random.bool().then(|| random.u32(1..5)),
        disabled_gates: HashSet::from(["off".to_owned()]),
    }
}

fn random_agent(random: &mut fastrand::Rng, limits: SpendingLimits) -> AgentRules {
    let reruns = RerunPolicy {
        retries_max: random.u32(0..3),
        backoff: Duration::from_secs(10),
        backoff_max: Duration::from_secs(60),
        resume_within: random.bool().then_some(Duration::from_secs(3_600)),
    };
    let often = ScheduleRules {
        is_enabled: true,
        priority: 0,
        session_mode: SessionMode::Persistent,
        reruns,
        starts_workflow: false,
    };
    AgentRules {
        max_concurrent: NonZeroU32::new(random.u32(1..4)).unwrap().get(),
        limits,
        job_budget: random.bool().then(|| random.i64(1..9) * 500_000),
        uses_model: random.u32(0..6) > 0,
        credential: random.bool().then(|| format!("key-{}", random.u32(0..2))),
        priority: random.i64(-1..2),
        reruns,
        schedules: HashMap::from([("often".to_owned(), often)]),
    }
}

/// Returns rules under which every job can end.
fn generous_rules() -> FleetRules {
    let mut random = fastrand::Rng::with_seed(1);
    let unlimited = SpendingLimits::default();
    let agent = |random: &mut fastrand::Rng| AgentRules {
        max_concurrent: 100,
        job_budget: None,
        ..random_agent(random, unlimited)
    };
    let root = SubfleetRules { path: String::new(), max_concurrent: None, limits: unlimited };
    FleetRules {
        agents: AGENTS.iter().map(|name| ((*name).to_owned(), agent(&mut random))).collect(),
        fleets: vec![root],
        queue_max: 1_000,
        queue_wait_max: Duration::from_secs(365 * 24 * 3_600),
        zone: TimeZone::UTC,
        workflow_runs_max: None,
        disabled_gates: HashSet::new(),
    }
}
