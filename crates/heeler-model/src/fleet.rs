//! The scheduler as a pure state machine: queue, limits, budgets, parking, reruns and due times.
//!
//! [`FleetState::step`] takes an event and the time, changes the state, and returns the changes to
//! store and the effects to execute. It does no IO and reads no clock. The caller stores the changes
//! of a step in one transaction and executes the effects after the commit; if the transaction fails,
//! it drops the state and loads it again. Facts that only the database has are part of the event.
//!
//! Workflow runs have a state machine of their own, [`crate::workflow::WorkflowRun`]. Its parts are
//! ordinary jobs here.

mod admission;
mod loading;
mod queue;
mod records;
mod rules;
mod run_end;
#[cfg(test)]
mod simulation;
mod wait_reason;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;

pub use admission::{JobStart, NewJob, SessionReadiness};
pub use queue::{JobStage, UnfinishedJob};
pub use records::{ParkedCredentialRecord, QueuedJobRecord, ReservationRecord};
pub use rules::{AgentRules, FleetRules, ScheduleRules, SubfleetRules};
pub use run_end::{BudgetSettlement, RunEndFacts, micros};
pub use wait_reason::{FleetRefusal, WaitReason};

use crate::budget_ledger::{BudgetDecision, BudgetLedger, SpendingLimits, is_in_fleet};
use crate::calendar::{ScheduleCalendar, ScheduleKey};
use crate::rerun::RerunDecision;
use crate::timetable::{DueTimeCursor, DueTimeDecision, DueTimeSkip, SkipReason};
use crate::{JobId, JobRequest, RunId, SessionMode, TriggerType};
use queue::JobQueue;
use rules::JobLimits;

/// Most schedules that [`FleetState::due_schedules`] returns; the others follow in the next call.
pub const DUE_SCHEDULES_MAX: usize = 256;

/// In-memory state of a fleet.
#[derive(Debug, Clone)]
pub struct FleetState {
    rules: Arc<FleetRules>,
    jobs: JobQueue,
    runs: HashMap<RunId, UnfinishedRun>,
    ledger: BudgetLedger,
    /// Parked credentials by name.
    parked: HashMap<String, ParkedCredentialRecord>,
    disabled_agents: HashSet<String>,
    /// Schedules that a person enabled or disabled.
    switched_schedules: HashMap<ScheduleKey, bool>,
    /// Enabled schedules that fire by time.
    calendar: ScheduleCalendar,
    /// Jobs that wait until the fleet is started again.
    held_jobs: HashSet<JobId>,
    is_queue_held: bool,
}

/// A run without a committed result.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedRun {
    pub job: JobId,
    pub agent: String,
    /// Key of the concurrency limit that it counts for; see [`concurrency_key`].
    pub concurrency_key: String,
    pub schedule: Option<String>,
    /// True if it uses the agent's persistent session.
    pub uses_persistent_session: bool,
    /// Budget of the run, in millionths of a dollar; `None` without a limit.
    pub budget_micros: Option<i64>,
    /// Money reserved for it, with the day that pays.
    pub reservation: Option<(Date, i64)>,
    pub since: Timestamp,
}

/// Input of [`FleetState::step`].
#[derive(Debug)]
pub enum FleetEvent<'e> {
    /// The config was loaded or reloaded.
    RulesReplaced(Arc<FleetRules>),
    /// Another day began, or the clock was set back to one. `spent` is the amount that each agent
    /// has already spent on it.
    DayChanged { day: Date, spent: Vec<(String, i64)> },
    /// A run of a job is prepared and may start.
    JobPrepared(Box<JobStart>),
    /// The preparation of a queued job was given up; the job waits again.
    PreparationStopped { job: &'e JobId },
    /// A job that the caller created or reopened enters the queue, without a check of its limits.
    JobSubmitted { job: JobId, new: Box<NewJob>, not_before: Option<Timestamp> },
    /// A queued job cannot run.
    JobImpossible { job: &'e JobId, why: String },
    /// A person or program cancels a job.
    CancelRequested { job: &'e JobId },
    /// A run has ended.
    RunEnded(RunEndFacts<'e>),
    /// A run that has no record any more, or that was committed before.
    RunDropped { run: RunId },
    /// A decision of [`FleetState::due_schedules`] without the due times that are on record already.
    /// `new_jobs` has one ID for each start.
    ScheduleDue { key: &'e ScheduleKey, decision: &'e DueTimeDecision, new_jobs: Vec<JobId> },
    /// A person enabled or disabled an agent.
    AgentSwitched { agent: &'e str, is_enabled: bool },
    /// A person enabled, disabled or reset a schedule.
    ScheduleSwitched { key: &'e ScheduleKey, is_enabled: Option<bool> },
    /// Time has passed: queue entries expire, limits reset, reasons change.
    TimePassed,
    /// Nothing blocks new starts: choose the jobs to prepare.
    StartsAllowed {
        /// Most jobs to choose.
        preparations_max: usize,
    },
}

/// Change that the caller stores.
#[derive(Debug, Clone, PartialEq)]
pub enum FleetChange {
    /// Create a pending job.
    CreateJob {
        job: JobId,
        request: Box<JobRequest>,
    },
    /// Insert or replace a queue entry.
    PutQueueEntry(QueuedJobRecord),
    /// Remove the queue entry of a job that has ended.
    RemoveQueueEntry(JobId),
    /// Record the start of a run, with its reservation.
    StartRun {
        job: JobId,
        run: RunId,
        reservation: Option<ReservationRecord>,
    },
    /// Record the end of a run: the cost replaces the reservation, and the job ends or waits.
    EndRun {
        run: RunId,
        decision: RerunDecision,
        settlement: BudgetSettlement,
    },
    /// Fail a job that cannot run.
    FailJob {
        job: JobId,
        why: String,
    },
    /// Cancel a queued job.
    CancelJob {
        job: JobId,
    },
    ParkCredential(ParkedCredentialRecord),
    UnparkCredential(String),
    /// Record the job of a due time.
    RecordStart {
        key: ScheduleKey,
        due: Timestamp,
        job: JobId,
    },
    /// Start the workflow of a due time, and record that or the reason why it did not start.
    StartWorkflow {
        key: ScheduleKey,
        due: Timestamp,
    },
    /// Record due times without a job.
    RecordSkip {
        key: ScheduleKey,
        skip: DueTimeSkip,
    },
    /// Record that every due time up to the cursor is decided.
    AdvanceSchedule {
        key: ScheduleKey,
        cursor: DueTimeCursor,
    },
}

/// Action after the commit. Each can be repeated.
#[derive(Debug, Clone, PartialEq)]
pub enum FleetEffect {
    /// Prepare a run of a queued job.
    PrepareJob { job: JobId, request: Box<JobRequest> },
    /// Start the runner of a recorded run.
    LaunchRun(RunId),
    /// Ask a run to end.
    CancelRun(RunId),
}

/// Decision about the job of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum JobDecision {
    /// A run starts, with this budget in millionths of a dollar.
    Started { budget: Option<i64> },
    /// The job waits in the queue.
    Waiting(WaitReason),
    /// The job was not created.
    Refused(FleetRefusal),
    /// The job ends without a run; a change says why.
    Ended,
    /// The job had ended already.
    Ignored,
}

/// Result of [`FleetState::step`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetStep {
    pub decision: Option<JobDecision>,
    /// Changes in the order in which they are stored.
    pub changes: Vec<FleetChange>,
    pub effects: Vec<FleetEffect>,
}

impl FleetState {
    /// Creates the state of a fleet without jobs.
    pub fn new(rules: Arc<FleetRules>, now: Timestamp) -> FleetState {
        let mut state = FleetState {
            ledger: BudgetLedger::new(rules.day_of(now), SpendingLimits::default()),
            rules: Arc::clone(&rules),
            jobs: JobQueue::default(),
            runs: HashMap::new(),
            parked: HashMap::new(),
            disabled_agents: HashSet::new(),
            switched_schedules: HashMap::new(),
            calendar: ScheduleCalendar::default(),
            held_jobs: HashSet::new(),
            is_queue_held: false,
        };
        state.replace_rules(rules);
        state
    }

    /// Applies an event.
    pub fn step(&mut self, event: FleetEvent<'_>, now: Timestamp) -> FleetStep {
        let mut step = FleetStep::default();
        match event {
            FleetEvent::RulesReplaced(rules) => {
                self.replace_rules(rules);
                self.fail_jobs_without_agent(&mut step);
            }
            FleetEvent::DayChanged { day, spent } => self.ledger.set_day(day, spent),
            FleetEvent::JobPrepared(start) => {
                step.decision = Some(self.start_or_queue(*start, now, &mut step));
            }
            FleetEvent::PreparationStopped { job } => self.jobs.set_stage(job, JobStage::Waiting),
            FleetEvent::JobSubmitted { job, new, not_before } => {
                self.submit_job(job, *new, not_before, now, &mut step);
            }
            FleetEvent::JobImpossible { job, why } => self.fail_job(job, why, &mut step),
            FleetEvent::CancelRequested { job } => self.cancel_job(job, &mut step),
            FleetEvent::RunEnded(facts) => self.end_run(facts, now, &mut step),
            FleetEvent::RunDropped { run } => drop(self.remove_run(run)),
            FleetEvent::ScheduleDue { key, decision, new_jobs } => {
                self.fire_schedule(key, decision, new_jobs, now, &mut step);
            }
            FleetEvent::AgentSwitched { agent, is_enabled } => match is_enabled {
                true => drop(self.disabled_agents.remove(agent)),
                false => drop(self.disabled_agents.insert(agent.to_owned())),
            },
            FleetEvent::ScheduleSwitched { key, is_enabled } => match is_enabled {
                Some(is_enabled) => drop(self.switched_schedules.insert(key.clone(), is_enabled)),
                None => drop(self.switched_schedules.remove(key)),
            },
            FleetEvent::TimePassed => self.apply_time(now, &mut step),
            FleetEvent::StartsAllowed { preparations_max } => {
                self.admit_jobs(preparations_max, now, &mut step);
            }
        }
        step
    }

    fn replace_rules(&mut self, rules: Arc<FleetRules>) {
        let root = rules.fleets.first().map(|fleet| fleet.limits).unwrap_or_default();
        let agents = rules.agents.iter().map(|(name, agent)| (name.clone(), agent.limits));
        self.ledger.set_limits(root, agents);
        let inner = rules.fleets.iter().skip(1).map(|fleet| (fleet.path.clone(), fleet.limits));
        self.ledger.set_subfleet_limits(inner);
        self.rules = rules;
    }

    fn fail_jobs_without_agent(&mut self, step: &mut FleetStep) {
        let is_gone =
            |job: &&UnfinishedJob| !self.rules.agents.contains_key(job.request.agent.as_str());
        let gone: Vec<JobId> =
            self.jobs.waiting().filter(is_gone).map(|job| job.entry.job.clone()).collect();
        for job in gone {
            self.fail_job(&job, "its agent is not in the config any more".to_owned(), step);
        }
    }

    fn fail_job(&mut self, job: &JobId, why: String, step: &mut FleetStep) {
        self.jobs.remove(job);
        step.changes.push(FleetChange::RemoveQueueEntry(job.clone()));
        step.changes.push(FleetChange::FailJob { job: job.clone(), why });
        step.decision = Some(JobDecision::Ended);
    }

    fn cancel_job(&mut self, id: &JobId, step: &mut FleetStep) {
        let stage = self.jobs.get(id).map(|job| job.stage);
        match (stage, self.run_of_job(id)) {
            (_, Some(run)) => step.effects.push(FleetEffect::CancelRun(run)),
            (Some(JobStage::Waiting | JobStage::Preparing), None) => {
                self.jobs.remove(id);
                step.changes.push(FleetChange::RemoveQueueEntry(id.clone()));
                step.changes.push(FleetChange::CancelJob { job: id.clone() });
            }
            (Some(JobStage::Running) | None, None) => {}
        }
    }

    /// Fails entries that waited too long, releases credentials and updates the reasons of the
    /// others.
    fn apply_time(&mut self, now: Timestamp, step: &mut FleetStep) {
        let is_expired = |job: &&UnfinishedJob| job.entry.expires_at.is_some_and(|at| at <= now);
        let expired = self.jobs.waiting().filter(is_expired);
        let expired: Vec<(JobId, String)> =
            expired.map(|job| (job.entry.job.clone(), job.entry.reason.clone())).collect();
        for (job, reason) in expired {
            let why = format!("it waited longer than `queue.max_wait` allows: {reason}");
            self.fail_job(&job, why, step);
        }
        let over = self.parked.values().filter(|parked| parked.until <= now);
        let over: Vec<String> = over.map(|parked| parked.credential.clone()).collect();
        for credential in over {
            self.parked.remove(&credential);
            step.changes.push(FleetChange::UnparkCredential(credential));
        }
        self.update_reasons(now, step);
    }

    fn update_reasons(&mut self, now: Timestamp, step: &mut FleetStep) {
        let mut changed = Vec::new();
        for job in self.jobs.waiting() {
            let is_put_off = job.entry.not_before.is_some_and(|at| at > now);
            let reason = match self.held_jobs.contains(&job.entry.job) {
                true => Some(WaitReason::Held),
                false => self.blocking_reason(&job.request, now),
            };
            let reason = reason.filter(|_| !is_put_off).map(|reason| reason.to_string());
            if let Some(reason) = reason.filter(|reason| *reason != job.entry.reason) {
                changed.push(QueuedJobRecord { reason, ..job.entry.clone() });
            }
        }
        for entry in changed {
            self.jobs.replace_entry(entry.clone());
            step.changes.push(FleetChange::PutQueueEntry(entry));
        }
    }

    /// Chooses queued jobs that can start now.
    fn admit_jobs(&mut self, preparations_max: usize, now: Timestamp, step: &mut FleetStep) {
        let is_ready = |job: &&UnfinishedJob| {
            job.entry.not_before.is_none_or(|at| at <= now)
                && !self.held_jobs.contains(&job.entry.job)
        };
        let ready: Vec<JobId> =
            self.jobs.waiting().filter(is_ready).map(|job| job.entry.job.clone()).collect();
        for id in ready {
            if step.effects.len() >= preparations_max {
                break;
            }
            let Some(job) = self.jobs.get(&id) else { continue };
            // An agent that is gone is reported by the preparation.
            if !self.rules.agents.contains_key(job.request.agent.as_str())
                || self.blocking_reason(&job.request, now).is_some()
                || self.jobs.is_behind_earlier(job)
            {
                continue;
            }
            let request = Box::new(job.request.clone());
            self.jobs.set_stage(&id, JobStage::Preparing);
            step.effects.push(FleetEffect::PrepareJob { job: id, request });
        }
    }

    /// Creates the jobs of due times, or skips them.
    fn fire_schedule(
        &mut self,
        key: &ScheduleKey,
        decision: &DueTimeDecision,
        new_jobs: Vec<JobId>,
        now: Timestamp,
        step: &mut FleetStep,
    ) {
        let starts_workflow =
            self.rules.schedule(&key.agent, &key.schedule).is_some_and(|it| it.starts_workflow);
        let record = |skip: DueTimeSkip| FleetChange::RecordSkip { key: key.clone(), skip };
        // Adjacent skips are merged unless a start is between them, so starts come first.
        for (start, job) in decision.starts.iter().zip(new_jobs) {
            let due = start.due;
            if starts_workflow {
                step.changes.push(FleetChange::StartWorkflow { key: key.clone(), due });
                continue;
            }
            if let Some(reason) = self.due_skip_reason(&key.agent) {
                step.changes.push(record(DueTimeSkip { first: due, last: due, count: 1, reason }));
                continue;
            }
            let Ok(agent) = key.agent.parse() else { continue };
            let request = JobRequest {
                schedule: Some(key.schedule.clone()),
                trigger: TriggerType::Schedule,
                ..JobRequest::new(agent)
            };
            let request_json = serde_json::to_string(&request).expect("a request is JSON");
            step.changes.push(FleetChange::RecordStart { key: key.clone(), due, job: job.clone() });
            let created = Box::new(request.clone());
            step.changes.push(FleetChange::CreateJob { job: job.clone(), request: created });
            self.submit_job(job, NewJob { request, request_json }, None, now, step);
        }
        step.changes.extend(decision.skips.iter().map(|skip| record(*skip)));
        let cursor = decision.cursor;
        step.changes.push(FleetChange::AdvanceSchedule { key: key.clone(), cursor });
        self.calendar.commit_cursor(key, cursor, now);
    }

    fn submit_job(
        &mut self,
        job: JobId,
        new: NewJob,
        not_before: Option<Timestamp>,
        now: Timestamp,
        step: &mut FleetStep,
    ) {
        let entry = self.queue_entry(&job, &new, String::new(), not_before, now);
        step.changes.push(FleetChange::PutQueueEntry(entry.clone()));
        self.jobs.insert(UnfinishedJob { entry, request: new.request, stage: JobStage::Waiting });
    }

    fn queue_entry(
        &self,
        job: &JobId,
        new: &NewJob,
        reason: String,
        not_before: Option<Timestamp>,
        now: Timestamp,
    ) -> QueuedJobRecord {
        QueuedJobRecord {
            job: job.clone(),
            priority: self.rules.priority_of(&new.request),
            requested_at: now,
            not_before,
            expires_at: Some(later(not_before.unwrap_or(now), self.rules.queue_wait_max)),
            request_json: new.request_json.clone(),
            reason,
        }
    }

    fn add_run(&mut self, run: RunId, live: UnfinishedRun) {
        self.jobs.increment_active(&live.concurrency_key);
        self.runs.insert(run, live);
    }

    fn remove_run(&mut self, run: RunId) -> Option<UnfinishedRun> {
        let live = self.runs.remove(&run)?;
        self.jobs.decrement_active(&live.concurrency_key);
        Some(live)
    }

    /// Returns the reason for which a job with this request cannot start now; `None` if it can, or
    /// if its agent does not exist.
    pub fn blocking_reason(&self, request: &JobRequest, now: Timestamp) -> Option<WaitReason> {
        let limits = self.rules.job_limits(request)?;
        let name = request.agent.as_str();
        if self.disabled_agents.contains(name) {
            return Some(WaitReason::AgentDisabled(name.to_owned()));
        }
        if let Some(limit) = limits.max_concurrent.filter(|limit| self.jobs.active(name) >= *limit)
        {
            return Some(WaitReason::AgentLimit { agent: name.to_owned(), limit });
        }
        for fleet in self.rules.fleets_of(name) {
            let active = self.jobs.active_where(|agent| is_in_fleet(agent, &fleet.path));
            if let Some(limit) = fleet.max_concurrent.filter(|limit| active >= *limit) {
                return Some(WaitReason::FleetLimit { fleet: fleet.path.clone(), limit });
            }
        }
        let parked = limits.agent.credential.as_ref().and_then(|name| self.parked.get(name));
        if let Some(parked) = parked.filter(|parked| parked.until > now) {
            let (reason, until) = (parked.reason.clone(), parked.until);
            return Some(WaitReason::Parked { reason, until });
        }
        match self.check_budget(name, limits) {
            BudgetDecision::Unlimited | BudgetDecision::Reserve(_) => None,
            decision => Some(WaitReason::Budget { agent: name.to_owned(), decision }),
        }
    }

    fn check_budget(&self, agent: &str, limits: JobLimits<'_>) -> BudgetDecision {
        match limits.uses_model {
            true => self.ledger.check_budget(agent, limits.job_budget),
            false => BudgetDecision::Unlimited,
        }
    }

    /// Returns the refusal of a new job that may not even be queued.
    pub fn admission_refusal(&self, request: &JobRequest) -> Option<FleetRefusal> {
        let name = request.agent.as_str();
        if self.disabled_agents.contains(name) {
            return Some(FleetRefusal::AgentDisabled(name.to_owned()));
        }
        let decision = self.check_budget(name, self.rules.job_limits(request)?);
        decision.is_spent().then(|| FleetRefusal::BudgetSpent { agent: name.to_owned(), decision })
    }

    /// Returns the reason for which a due time of an agent's schedule creates no job.
    pub fn due_skip_reason(&self, agent: &str) -> Option<SkipReason> {
        let request = JobRequest::new(agent.parse().ok()?);
        let decision = self.check_budget(agent, self.rules.job_limits(&request)?);
        match decision.is_spent() {
            true => Some(SkipReason::Budget),
            false => {
                (self.jobs.waiting_len() >= self.rules.queue_max).then_some(SkipReason::QueueFull)
            }
        }
    }

    /// Returns true if a schedule may fire.
    pub fn is_schedule_enabled(&self, key: &ScheduleKey) -> bool {
        let rules = self.rules.schedule(&key.agent, &key.schedule);
        let by_config = rules.is_some_and(|schedule| schedule.is_enabled);
        self.switched_schedules.get(key).copied().unwrap_or(by_config)
            && !self.disabled_agents.contains(&key.agent)
    }

    /// Returns true if the last job of a schedule is queued or running, or another job uses the
    /// session that the schedule would continue.
    pub fn is_schedule_busy(&self, key: &ScheduleKey) -> bool {
        let rules = self.rules.schedule(&key.agent, &key.schedule);
        let is_persistent = rules.is_some_and(|it| it.session_mode == SessionMode::Persistent);
        let is_blocking = |run: &UnfinishedRun| {
            run.agent == key.agent
                && (run.schedule.as_deref() == Some(&key.schedule)
                    || is_persistent && run.uses_persistent_session)
        };
        self.jobs.has_job_of(key) || self.runs.values().any(is_blocking)
    }

    /// Decides about schedules that are due. A decision takes effect with
    /// [`FleetEvent::ScheduleDue`]. `is_workflow_busy` returns true while the workflow run of a
    /// schedule is active.
    pub fn due_schedules(
        &mut self,
        now: Timestamp,
        is_workflow_busy: impl Fn(&ScheduleKey) -> bool,
    ) -> Vec<(ScheduleKey, DueTimeDecision)> {
        let mut calendar = std::mem::take(&mut self.calendar);
        let due = calendar.decide_due(now, DUE_SCHEDULES_MAX, |key| {
            match self.rules.schedule(&key.agent, &key.schedule) {
                Some(schedule) if schedule.starts_workflow => is_workflow_busy(key),
                _ => self.is_schedule_busy(key),
            }
        });
        self.calendar = calendar;
        due
    }

    /// Returns the next time at which the state changes without an event.
    pub fn wake_at(&self, now: Timestamp, runs_schedules: bool) -> Option<Timestamp> {
        let is_later = |at: &Timestamp| *at > now;
        let waiting = self.jobs.waiting();
        let waiting = waiting.flat_map(|job| [job.entry.not_before, job.entry.expires_at]);
        let waiting = waiting.flatten().filter(is_later).min();
        let parked = self.parked.values().map(|parked| parked.until).filter(is_later).min();
        let schedules = self.calendar.wake_at().filter(|_| runs_schedules);
        [schedules, waiting, parked].into_iter().flatten().min()
    }

    /// Returns true if [`FleetEvent::TimePassed`] would change something besides reasons.
    pub fn is_time_due(&self, now: Timestamp) -> bool {
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        self.jobs.waiting().any(|job| is_due(job.entry.expires_at))
            || self.parked.values().any(|parked| parked.until <= now)
    }

    /// Holds all queued jobs until the fleet is started again.
    pub fn hold_queue(&mut self) {
        self.held_jobs = self.jobs.waiting().map(|job| job.entry.job.clone()).collect();
        self.is_queue_held = true;
    }
}

/// Returns the key of the concurrency limit that a job counts for. A workflow command that only
/// runs in an agent's name does not count for the agent's own limit, only for the fleet's.
pub fn concurrency_key(request: &JobRequest) -> String {
    match request.runs_no_agent() {
        true => format!("{} (in its name)", request.agent),
        false => request.agent.to_string(),
    }
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
