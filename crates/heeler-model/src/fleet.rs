//! The scheduler as a pure state machine: queue, limits, budgets, parking, reruns, due times and
//! workflow runs.
//!
//! [`FleetState::step`] takes an event and the time, changes the state, and returns the changes to
//! store and the effects to execute. It does no IO and reads no clock. The caller stores the changes
//! of a step in one transaction and executes the effects after the commit; if the transaction fails,
//! it drops the state and loads it again. Facts that only the database has are part of the event.
//!
//! Each workflow run has a state machine of its own, [`crate::workflow::WorkflowRun`], which decides
//! about its phases. Its parts are ordinary jobs here, and the step that ends a job also continues
//! its workflow run.

mod active_workflow_run;
mod admission;
mod change;
mod event;
mod loading;
mod queue;
mod records;
mod rules;
mod run_end;
mod schedules;
mod settlement;
#[cfg(test)]
mod simulation;
mod state;
mod wait_reason;
mod workflow_runs;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

pub use active_workflow_run::{ActiveWorkflowRun, OpenPart};
pub use change::{
    FleetChange, FleetEffect, FleetStep, JobDecision, WorkflowDecision, WorkflowRunRecord,
};
pub use event::{
    CancelRequest, FleetEvent, JobStart, NewJob, RunEndFacts, RunEndSource, SessionReadiness,
    SubmittedPart, WorkflowEvent,
};
pub use queue::{JobStage, UnfinishedJob, concurrency_key};
pub use records::{ParkedCredentialRecord, QueuedJobRecord, ReservationRecord};
pub use rules::{AgentRules, FleetRules, ScheduleRules, SubfleetRules};
pub use schedules::DUE_SCHEDULES_MAX;
pub use settlement::{BudgetSettlement, micros};
pub use state::{FleetState, UnfinishedRun};
pub use wait_reason::{FleetRefusal, WaitReason};

use crate::budget_ledger::{BudgetDecision, BudgetLedger, SpendingLimits, is_in_fleet};
use crate::calendar::ScheduleCalendar;
use crate::{JobId, JobRequest, RunId};
use queue::JobQueue;
use rules::JobLimits;
use state::later;
use workflow_runs::PartJobEnd;

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
            workflow_runs: HashMap::new(),
            is_stopping: false,
        };
        // The ledger takes its limits from the rules, as after a reload.
        state.replace_rules(rules);
        state
    }

    /// Applies an event.
    pub fn step(&mut self, event: FleetEvent<'_>, now: Timestamp) -> FleetStep {
        let mut step = FleetStep::default();
        match event {
            FleetEvent::RulesReplaced(rules) => {
                self.replace_rules(rules);
                // A waiting job whose agent is gone would otherwise wait until its queue entry
                // expires.
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
            FleetEvent::CancelRequested { job, is_pending, request } => {
                self.cancel_job(job, is_pending, &request, &mut step);
            }
            FleetEvent::RunEnded(facts) => self.end_run(facts, now, &mut step),
            FleetEvent::RunDropped { run } => drop(self.remove_run(run)),
            FleetEvent::ScheduleDue { key, decision, new_jobs } => {
                self.fire_schedule(key, decision, new_jobs, now, &mut step);
            }
            FleetEvent::CostCorrected { agent, day, micros } => {
                self.ledger.spend(agent, day, micros);
            }
            // Switching an agent off holds its waiting jobs but does not touch its runs.
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
            FleetEvent::Workflow { run, event } => {
                step.workflow = Some(self.step_workflow(run, event, now, &mut step));
            }
            FleetEvent::WorkflowStartsAllowed => self.start_waiting_workflow_runs(&mut step),
        }
        step
    }

    fn replace_rules(&mut self, rules: Arc<FleetRules>) {
        // The root fleet is always the first one; a config without fleets has no limits.
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
        step.changes.push(FleetChange::FailJob { job: job.clone(), why: why.clone() });
        step.decision = Some(JobDecision::Ended);
        // The job's end and the progress of its workflow run must be in the same commit.
        self.end_part(job, PartJobEnd::failed(why), step);
    }

    fn cancel_job(
        &mut self,
        id: &JobId,
        is_pending: bool,
        request: &CancelRequest,
        step: &mut FleetStep,
    ) {
        if self.cancel_waiting_or_running(id, is_pending, request, step) {
            // The part keeps the error of its last run, which says more than the cancellation.
            let error = self.open_part_mut(id).and_then(|part| part.error.clone());
            self.end_part(id, PartJobEnd::cancelled(error), step);
        }
    }

    /// Cancels a job that waits, or asks its run to end. Returns true if the job has ended.
    fn cancel_waiting_or_running(
        &mut self,
        id: &JobId,
        is_pending: bool,
        request: &CancelRequest,
        step: &mut FleetStep,
    ) -> bool {
        let stage = self.jobs.get(id).map(|job| job.stage);
        match (stage, self.run_of_job(id)) {
            (_, Some(run)) => {
                let request = request.clone();
                let recorded = FleetChange::RecordCancelRequest { run, request: request.clone() };
                // Recorded before the effect, so that the next daemon repeats a request that a
                // crash cut off.
                step.changes.push(recorded);
                step.effects.push(FleetEffect::CancelRun { run, request });
                false
            }
            (Some(JobStage::Running), None) => false,
            (None, None) if !is_pending => false,
            // The state does not know a pending job whose request cannot be read.
            (Some(JobStage::Waiting | JobStage::Preparing) | None, None) => {
                self.jobs.remove(id);
                step.changes.push(FleetChange::RemoveQueueEntry(id.clone()));
                step.changes.push(FleetChange::CancelJob { job: id.clone() });
                true
            }
        }
    }

    /// Fails entries that waited too long, releases credentials and updates the reasons of the
    /// others.
    fn apply_time(&mut self, now: Timestamp, step: &mut FleetStep) {
        // Only waiting jobs expire. A job in preparation or in progress has been given its turn.
        let is_expired = |job: &&UnfinishedJob| job.entry.expires_at.is_some_and(|at| at <= now);
        let expired = self.jobs.waiting().filter(is_expired);
        let expired: Vec<(JobId, String)> =
            expired.map(|job| (job.entry.job.clone(), job.entry.reason.clone())).collect();
        for (job, reason) in expired {
            let why = format!("it waited longer than `queue.max_wait` allows: {reason}");
            self.fail_job(&job, why, step);
        }
        // A released credential must be released in the database too, or a restart parks it again.
        let over = self.parked.values().filter(|parked| parked.until <= now);
        let over: Vec<String> = over.map(|parked| parked.credential.clone()).collect();
        for credential in over {
            self.parked.remove(&credential);
            step.changes.push(FleetChange::UnparkCredential(credential));
        }
        // Last, because the jobs and credentials above were reasons for others.
        self.update_reasons(now, step);
    }

    fn update_reasons(&mut self, now: Timestamp, step: &mut FleetStep) {
        let mut changed = Vec::new();
        for job in self.jobs.waiting() {
            // A job that was put off keeps the reason for that until its time has come.
            let is_put_off = job.entry.not_before.is_some_and(|at| at > now);
            let reason = match self.held_jobs.contains(&job.entry.job) {
                true => Some(WaitReason::Held),
                false => self.blocking_reason(&job.request, now),
            };
            let reason = reason.filter(|_| !is_put_off).map(|reason| reason.to_string());
            // Most reasons do not change; writing only the others keeps this free of needless
            // commits.
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
            // A preparation takes time and disk, so the caller limits how many begin at once.
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

    fn submit_job(
        &mut self,
        job: JobId,
        new: NewJob,
        not_before: Option<Timestamp>,
        now: Timestamp,
        step: &mut FleetStep,
    ) {
        // The reason stays empty until the first attempt to start finds one.
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
            requested_at: self.jobs.request_time(&new.request, now),
            not_before,
            // A job that is put off gets its whole waiting time after that.
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
            // Subfleets are nested, so an agent counts for each fleet on its path.
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
        // A command costs nothing, so no budget may block it.
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
        // Only a spent budget refuses; a reserved one may become free, so that job is queued.
        let decision = self.check_budget(name, self.rules.job_limits(request)?);
        decision.is_spent().then(|| FleetRefusal::BudgetSpent { agent: name.to_owned(), decision })
    }

    /// Returns the next time at which the state changes without an event.
    pub fn wake_at(&self, now: Timestamp, runs_schedules: bool) -> Option<Timestamp> {
        // Times that have passed are handled already; they must not wake the daemon in a busy loop.
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
