//! The dispatcher's in-memory copy of the state on which it bases its decisions.
//!
//! It is changed only inside a transaction, together with the database. It is reloaded whenever the
//! two may differ because a commit failed. Start at [`FleetState::load`] and
//! [`FleetState::blocking_reason`].

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use heeler_model::budget_ledger::{BudgetDecision, BudgetLedger, SpendingLimits, is_in_fleet};
use heeler_model::calendar::{ScheduleCalendar, ScheduleKey};
use heeler_model::config::{AgentConfig, RuntimeConfig, ScheduleConfig};
use heeler_model::redact::SecretRedactor;
use heeler_model::timetable::DueTimeDecision;
use heeler_model::{
    JobId, JobRequest, JobStatus, RunId, SessionMode, TriggerType, WorkflowRunId, iso_millis,
};
use heeler_store::{
    DatabaseError, ParkedCredentialRecord, QueuedJobRecord, ScheduleOverrideRecord, StateDatabase,
};
use jiff::Timestamp;
use jiff::civil::Date;

use super::schedules::schedule_trigger_id;
use crate::setup::DaemonSetup;
use crate::workflows::ActiveWorkflowRun;
use heeler_store::cron_override;

/// Maximum number of due schedules per transaction; the others follow in the next one.
const DUE_PER_TURN: usize = 256;

/// In-memory state of a fleet: jobs, runs, queue, schedules, budgets and workflow runs.
#[derive(Debug)]
pub(crate) struct FleetState {
    pub(crate) setup: Arc<DaemonSetup>,
    /// Enabled schedules that fire by time.
    pub(crate) calendar: ScheduleCalendar,
    pub(crate) ledger: BudgetLedger,
    /// Jobs that have not ended, with their requests.
    pub(crate) unfinished_jobs: HashMap<JobId, UnfinishedJob>,
    /// The waiting ones of them, next one first.
    waiting: BTreeSet<QueueRank>,
    pub(crate) unfinished_runs: HashMap<RunId, UnfinishedRun>,
    /// Number of runs per concurrency key, including runs in preparation.
    active_counts: HashMap<String, u32>,
    /// Credentials that are parked because of a usage limit.
    pub(crate) parked: HashMap<String, ParkedCredentialRecord>,
    pub(crate) disabled: HashSet<String>,
    /// Changes of schedules by people, which override the config.
    pub(crate) overrides: HashMap<ScheduleKey, ScheduleOverrideRecord>,
    /// Credential of each agent that has one.
    credentials: HashMap<String, String>,
    /// Workflow runs that have not ended.
    pub(crate) workflow_runs: HashMap<WorkflowRunId, ActiveWorkflowRun>,
    /// Earliest expiry of an open gate.
    pub(crate) gate_expires_at: Option<Timestamp>,
    /// Jobs that wait until the fleet is started again.
    pub(crate) held_jobs: HashSet<JobId>,
    /// True if a person stopped the fleet, and this daemon only serves current requests.
    pub(crate) is_queue_held: bool,
    /// Redacts all secrets of the fleet, regardless of which agent holds them.
    pub(crate) redactor: Arc<SecretRedactor>,
    /// True if this state may differ from the database.
    pub(crate) is_stale: bool,
}

/// A job that has not ended, with its request.
#[derive(Debug)]
pub(crate) struct UnfinishedJob {
    pub(crate) row: QueuedJobRecord,
    pub(crate) request: JobRequest,
    pub(crate) stage: JobStage,
}

/// Progress of an unfinished job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobStage {
    /// In the queue.
    Waiting,
    /// Its run is being prepared.
    Preparing,
    /// Its run has started.
    Running,
}

#[derive(Debug, Clone)]
pub(crate) struct UnfinishedRun {
    pub(crate) job: JobId,
    pub(crate) agent: String,
    /// Key of the concurrency limit that it counts for; see [`concurrency_key`].
    pub(crate) concurrency_key: String,
    pub(crate) schedule: Option<String>,
    /// True if it uses the agent's persistent session.
    pub(crate) uses_persistent_session: bool,
    /// Budget of the run, in millionths of a dollar; `None` without a limit.
    pub(crate) budget_micros: Option<i64>,
    pub(crate) since: Timestamp,
}

/// Sort key of the queue: priority, age, ID.
type QueueRank = (Reverse<i64>, Timestamp, JobId);

impl FleetState {
    /// Loads the state from the database.
    pub(crate) fn load(
        db: &StateDatabase,
        setup: Arc<DaemonSetup>,
        now: Timestamp,
    ) -> Result<FleetState, DatabaseError> {
        let day = local_day(&setup, now);
        let mut board = FleetState {
            calendar: ScheduleCalendar::default(),
            ledger: BudgetLedger::new(day, SpendingLimits::default()),
            unfinished_jobs: HashMap::new(),
            waiting: BTreeSet::new(),
            unfinished_runs: HashMap::new(),
            active_counts: HashMap::new(),
            parked: db
                .parked_credentials()?
                .into_iter()
                .map(|row| (row.credential.clone(), row))
                .collect(),
            disabled: db.disabled_agents()?.into_iter().collect(),
            overrides: HashMap::new(),
            credentials: HashMap::new(),
            workflow_runs: HashMap::new(),
            gate_expires_at: db.next_gate_expiry()?,
            held_jobs: HashSet::new(),
            is_queue_held: false,
            redactor: Arc::new(SecretRedactor::new(&[])),
            is_stale: false,
            setup,
        };
        for row in db.schedule_overrides()? {
            let key = ScheduleKey { agent: row.agent.clone(), schedule: row.schedule.clone() };
            board.overrides.insert(key, row);
        }
        for row in db.cron_overrides()? {
            board.overrides.extend(cron_override(&board.setup.loaded, row));
        }
        board.replace_setup(Arc::clone(&board.setup));
        board.load_ledger(db, day)?;
        board.load_queue(db)?;
        board.load_runs(db)?;
        board.load_workflows(db)?;
        Ok(board)
    }

    fn load_workflows(&mut self, db: &StateDatabase) -> Result<(), DatabaseError> {
        for row in db.active_workflow_runs()? {
            let id = row.head.id.clone();
            match self.setup.definition_of(db, &row)? {
                Ok(workflow) => {
                    let running = ActiveWorkflowRun::load(db, row, workflow)?;
                    self.workflow_runs.insert(id, running);
                }
                Err(refused) => {
                    tracing::error!(run = %id, why = refused.message, "a workflow run cannot continue");
                }
            }
        }
        Ok(())
    }

    fn load_ledger(&mut self, db: &StateDatabase, day: Date) -> Result<(), DatabaseError> {
        let today: HashMap<String, i64> = db.daily_spend_by_agent(day)?.into_iter().collect();
        for (agent, in_all) in db.total_spend_by_agent()? {
            let today = today.get(&agent).copied().unwrap_or(0);
            self.ledger.spend(&agent, day, today);
            // The exact day does not matter for the total.
            self.ledger.spend(&agent, Date::MIN, in_all - today);
        }
        for reservation in db.reservations()? {
            self.ledger.reserve(&reservation.agent, reservation.micros);
        }
        Ok(())
    }

    fn load_runs(&mut self, db: &StateDatabase) -> Result<(), DatabaseError> {
        let reserved = db.reservations()?.into_iter().map(|row| (row.run, row.micros));
        let reserved: HashMap<RunId, i64> = reserved.collect();
        for run in db.uncommitted_runs()? {
            let Some(job) = db.job(&run.job_id)? else { continue };
            let session = match &job.head.session_id {
                Some(id) => db.session_by_agent_id(id)?,
                None => None,
            };
            let asked =
                self.unfinished_jobs.get(&run.job_id).map(|asked| concurrency_key(&asked.request));
            let live = UnfinishedRun {
                concurrency_key: asked.unwrap_or_else(|| job.head.agent.clone()),
                budget_micros: reserved.get(&run.id).copied(),
                job: run.job_id,
                agent: job.head.agent,
                schedule: job.head.schedule,
                uses_persistent_session: session
                    .is_some_and(|it| it.mode == SessionMode::Persistent),
                since: run.created_at,
            };
            self.add_run(run.id, live);
        }
        Ok(())
    }

    fn load_queue(&mut self, db: &StateDatabase) -> Result<(), DatabaseError> {
        for row in db.queue()? {
            let Some(job) = db.job(&row.job)? else { continue };
            let wanted = match serde_json::from_str(&row.request_json) {
                Ok(wanted) => wanted,
                Err(error) => {
                    tracing::error!(job = %row.job, %error, "a queued job cannot be parsed");
                    continue;
                }
            };
            let stage = match job.head.status {
                JobStatus::Pending => JobStage::Waiting,
                JobStatus::Running => JobStage::Running,
                _ => continue,
            };
            self.insert_job(UnfinishedJob { row, request: wanted, stage });
        }
        Ok(())
    }

    /// Replaces the config. The caller must update the schedules.
    pub(crate) fn replace_setup(&mut self, setup: Arc<DaemonSetup>) {
        let limits = |agent: &AgentConfig| {
            (agent.name.to_string(), SpendingLimits::from_budget(agent.budget.as_ref()))
        };
        let fleet = setup.root().and_then(|fleet| fleet.budget.as_ref());
        self.ledger
            .set_limits(SpendingLimits::from_budget(fleet), setup.loaded.agents.iter().map(limits));
        let inner = setup.loaded.fleets.iter().skip(1);
        let inner = inner
            .map(|fleet| (fleet.path.clone(), SpendingLimits::from_budget(fleet.budget.as_ref())));
        self.ledger.set_subfleet_limits(inner);
        let credential =
            |agent: &AgentConfig| Some((agent.name.to_string(), setup.credential(agent)?));
        self.credentials = setup.loaded.agents.iter().filter_map(credential).collect();
        self.redactor = Arc::new(SecretRedactor::new(&setup.secrets()));
        self.setup = setup;
    }

    /// Holds all queued jobs until the fleet is started again.
    pub(crate) fn hold_queue(&mut self) {
        self.held_jobs = self.queue().map(|asked| asked.row.job.clone()).collect();
        self.is_queue_held = true;
    }

    /// Copies unredacted requests and inputs from an earlier state: the database has them without
    /// secrets.
    pub(crate) fn restore_unredacted(&mut self, before: &FleetState) {
        self.held_jobs.clone_from(&before.held_jobs);
        self.is_queue_held = before.is_queue_held;
        for (id, running) in &mut self.workflow_runs {
            if let Some(known) = before.workflow_runs.get(id) {
                running.state.context.clone_from(&known.state.context);
            }
        }
        for (job, asked) in &mut self.unfinished_jobs {
            let same = |known: &&UnfinishedJob| known.row.request_json == asked.row.request_json;
            if let Some(known) = before.unfinished_jobs.get(job).filter(same) {
                asked.request = known.request.clone();
            }
        }
    }

    pub(crate) fn credential(&self, agent: &str) -> Option<&str> {
        self.credentials.get(agent).map(String::as_str)
    }

    pub(crate) fn agents_with_credential(
        &self,
        credential: &str,
    ) -> impl Iterator<Item = &AgentConfig> {
        let own =
            move |agent: &&AgentConfig| self.credential(agent.name.as_str()) == Some(credential);
        self.setup.loaded.agents.iter().filter(own)
    }

    /// Inserts or replaces an unfinished job.
    pub(crate) fn insert_job(&mut self, asked: UnfinishedJob) {
        self.remove_job(&asked.row.job.clone());
        match asked.stage {
            JobStage::Waiting => drop(self.waiting.insert(queue_rank(&asked.row))),
            JobStage::Preparing => self.increment_active(&concurrency_key(&asked.request)),
            JobStage::Running => {}
        }
        self.unfinished_jobs.insert(asked.row.job.clone(), asked);
    }

    pub(crate) fn set_stage(&mut self, job: &JobId, stage: JobStage) {
        if let Some(mut asked) = self.remove_job(job) {
            asked.stage = stage;
            self.insert_job(asked);
        }
    }

    /// Removes a job that has ended.
    pub(crate) fn remove_job(&mut self, job: &JobId) -> Option<UnfinishedJob> {
        let asked = self.unfinished_jobs.remove(job)?;
        match asked.stage {
            JobStage::Waiting => drop(self.waiting.remove(&queue_rank(&asked.row))),
            JobStage::Preparing => self.decrement_active(&concurrency_key(&asked.request)),
            JobStage::Running => {}
        }
        Some(asked)
    }

    /// Lists the queued jobs, next one first.
    pub(crate) fn queue(&self) -> impl Iterator<Item = &UnfinishedJob> {
        self.waiting.iter().filter_map(|(_, _, job)| self.unfinished_jobs.get(job))
    }

    pub(crate) fn queue_len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a run that was recorded.
    pub(crate) fn add_run(&mut self, run: RunId, live: UnfinishedRun) {
        self.increment_active(&live.concurrency_key);
        self.unfinished_runs.insert(run, live);
    }

    /// Removes a run with a committed result.
    pub(crate) fn remove_run(&mut self, run: RunId) -> Option<UnfinishedRun> {
        let live = self.unfinished_runs.remove(&run)?;
        self.decrement_active(&live.concurrency_key);
        Some(live)
    }

    /// Returns the unfinished run of a job.
    pub(crate) fn unfinished_run_of_job(&self, job: &JobId) -> Option<RunId> {
        self.unfinished_runs.iter().find(|(_, live)| live.job == *job).map(|(run, _)| *run)
    }

    fn increment_active(&mut self, agent: &str) {
        *self.active_counts.entry(agent.to_owned()).or_default() += 1;
    }

    fn decrement_active(&mut self, agent: &str) {
        if let Some(count) = self.active_counts.get_mut(agent) {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns the reason for which a job of the agent cannot start now; `None` if it can.
    pub(crate) fn blocking_reason(&self, agent: &AgentConfig, now: Timestamp) -> Option<String> {
        let name = agent.name.as_str();
        if self.disabled.contains(name) {
            return Some(format!("{name} is disabled"));
        }
        let own = self.active_counts.get(name).copied().unwrap_or(0);
        if own >= agent.max_concurrent.get() {
            return Some(format!(
                "{name} has reached its limit of {} concurrent jobs",
                agent.max_concurrent
            ));
        }
        for fleet in self.setup.fleets_of(name) {
            let in_fleet = |agent: &str| is_in_fleet(agent, &fleet.path);
            let own = self.active_counts.iter().filter(|(agent, _)| in_fleet(agent));
            let own: u32 = own.map(|(_, count)| count).sum();
            if let Some(limit) = fleet.max_concurrent.filter(|limit| own >= limit.get()) {
                let whose = if fleet.path.is_empty() { "the fleet" } else { &fleet.path };
                return Some(format!("{whose} has reached its limit of {limit} concurrent jobs"));
            }
        }
        let parked = self.credential(name).and_then(|credential| self.parked.get(credential));
        if let Some(parked) = parked.filter(|parked| parked.until > now) {
            return Some(format!("{} (until {})", parked.reason, iso_millis(parked.until)));
        }
        match self.quote(agent) {
            BudgetDecision::Unlimited | BudgetDecision::Reserve(_) => None,
            BudgetDecision::AllReserved => {
                Some("the rest of its budget is reserved by other runs".to_owned())
            }
            spent => Some(spent_budget_text(name, spent)),
        }
    }

    /// Returns the budget available to a run of the agent.
    pub(crate) fn quote(&self, agent: &AgentConfig) -> BudgetDecision {
        // A command uses no model and costs nothing.
        if matches!(agent.runtime, RuntimeConfig::Command(_)) {
            return BudgetDecision::Unlimited;
        }
        let own = agent.budget.as_ref().and_then(|budget| budget.job);
        let own = own.map(|usd| i64::try_from(usd.micros()).unwrap_or(i64::MAX));
        self.ledger.check_budget(agent.name.as_str(), own)
    }

    /// Returns true if the schedule's last job is queued or running, or another job uses the
    /// session that the schedule would continue.
    pub(crate) fn is_schedule_busy(&self, key: &ScheduleKey) -> bool {
        let is_own = |asked: &UnfinishedJob| {
            asked.request.agent.as_str() == key.agent
                && asked.request.schedule.as_deref() == Some(&key.schedule)
        };
        if self.schedule(key).is_some_and(|(_, schedule)| schedule.workflow.is_some()) {
            let about = schedule_trigger_id(key);
            return self.workflow_runs.values().any(|it| it.row.head.trigger_id == about);
        }
        let keeps = self
            .schedule(key)
            .is_some_and(|(_, schedule)| schedule.session.mode == SessionMode::Persistent);
        let is_at = |live: &UnfinishedRun| {
            live.agent == key.agent
                && (live.schedule.as_deref() == Some(&key.schedule)
                    || keeps && live.uses_persistent_session)
        };
        self.unfinished_jobs.values().any(is_own) || self.unfinished_runs.values().any(is_at)
    }

    /// Returns true if a schedule may fire.
    pub(crate) fn is_schedule_enabled(&self, key: &ScheduleKey, schedule: &ScheduleConfig) -> bool {
        let by_hand = self.overrides.get(key).map(|row| row.enabled);
        by_hand.unwrap_or(schedule.enabled) && !self.disabled.contains(&key.agent)
    }

    /// Takes the schedules that are due, with a decision for each.
    pub(crate) fn take_due_schedules(
        &mut self,
        now: Timestamp,
    ) -> Vec<(ScheduleKey, DueTimeDecision)> {
        let mut calendar = std::mem::take(&mut self.calendar);
        let due = calendar.decide_due(now, DUE_PER_TURN, |key| self.is_schedule_busy(key));
        self.calendar = calendar;
        due
    }

    /// Returns true if an earlier job of the same schedule is being prepared or running.
    pub(crate) fn is_behind_earlier_job(&self, asked: &UnfinishedJob) -> bool {
        let is_due = |asked: &UnfinishedJob| {
            matches!(asked.request.trigger, TriggerType::Schedule | TriggerType::Webhook)
        };
        let is_ahead = |other: &UnfinishedJob| {
            other.stage != JobStage::Waiting
                && is_due(other)
                && other.request.agent == asked.request.agent
                && other.request.schedule == asked.request.schedule
        };
        is_due(asked) && self.unfinished_jobs.values().any(is_ahead)
    }

    /// Returns a schedule with its agent.
    pub(crate) fn schedule(&self, key: &ScheduleKey) -> Option<(&AgentConfig, &ScheduleConfig)> {
        let agent = self.setup.agent(&key.agent)?;
        let schedule = agent.schedules.iter().find(|schedule| schedule.name == key.schedule)?;
        Some((agent, schedule))
    }

    /// Lists the workflow runs that can continue immediately.
    pub(crate) fn runnable_workflow_runs(&self) -> Vec<WorkflowRunId> {
        let more =
            self.workflow_runs.iter().filter(|(_, it)| it.has_ready_parts && !self.is_queue_held);
        more.map(|(id, _)| id.clone()).collect()
    }

    /// Returns true if a workflow run can continue immediately.
    pub(crate) fn has_runnable_workflow_runs(&self) -> bool {
        !self.is_queue_held && self.workflow_runs.values().any(|running| running.has_ready_parts)
    }

    /// Returns the next time at which the dispatcher must act without an input.
    pub(crate) fn wake_at(&self, now: Timestamp, keeps_schedules: bool) -> Option<Timestamp> {
        let later = |at: &Timestamp| *at > now;
        let waiting = self.queue().flat_map(|asked| [asked.row.not_before, asked.row.expires_at]);
        let waiting = waiting.flatten().filter(later).min();
        let parked = self.parked.values().map(|parked| parked.until).filter(later).min();
        let schedules = self.calendar.wake_at().filter(|_| keeps_schedules);
        let workflows = self.has_runnable_workflow_runs().then_some(now);
        [schedules, waiting, parked, workflows, self.gate_expires_at].into_iter().flatten().min()
    }
}

/// Describes an exhausted budget.
pub(crate) fn spent_budget_text(agent: &str, quote: BudgetDecision) -> String {
    let text = |of_fleet: bool, limit: i64, when: &str| {
        let whose = if of_fleet { "the fleet" } else { agent };
        format!("{whose} has spent its budget of ${:.2} {when}", limit as f64 / 1e6)
    };
    match quote {
        BudgetDecision::DayLimitReached { is_fleet_limit: of_fleet, limit } => {
            text(of_fleet, limit, "for today")
        }
        BudgetDecision::TotalLimitReached { is_fleet_limit: of_fleet, limit } => {
            text(of_fleet, limit, "in total")
        }
        BudgetDecision::Unlimited | BudgetDecision::Reserve(_) | BudgetDecision::AllReserved => {
            String::new()
        }
    }
}

/// Returns the date in the fleet's time zone.
pub(crate) fn local_day(setup: &DaemonSetup, now: Timestamp) -> Date {
    now.to_zoned(setup.zone.clone()).date()
}

/// Returns the key of the concurrency limit that a job counts for. A workflow command that only
/// runs in an agent's name does not count for the agent's own limit, only for the fleet's.
pub(crate) fn concurrency_key(wanted: &JobRequest) -> String {
    match wanted.runs_no_agent() {
        true => format!("{} (in its name)", wanted.agent),
        false => wanted.agent.to_string(),
    }
}

fn queue_rank(row: &QueuedJobRecord) -> QueueRank {
    (Reverse(row.priority), row.requested_at, row.job.clone())
}
