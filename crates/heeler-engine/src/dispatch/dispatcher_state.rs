//! The dispatcher's in-memory state: the fleet's state machine, its config and its workflow runs.
//!
//! It is changed only inside a transaction, together with the database. It is reloaded whenever the
//! two may differ because a commit failed. Start at [`DispatcherState::load`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use heeler_config::workflow::Workflow;
use heeler_config::{AgentConfig, RuntimeConfig, ScheduleConfig, SessionRules};
use heeler_model::budget_ledger::SpendingLimits;
use heeler_model::calendar::ScheduleKey;
use heeler_model::fleet::{
    AgentRules, FleetRules, FleetState, JobStage, ScheduleRules, SubfleetRules, UnfinishedJob,
    UnfinishedRun, concurrency_key,
};
use heeler_model::redact::SecretRedactor;
use heeler_model::rerun::RerunPolicy;
use heeler_model::{JobStatus, RunId, SessionMode, WorkflowRunId};
use heeler_store::{
    DatabaseError, ScheduleOverrideRecord, StateDatabase, WorkflowRunRow, cron_override,
};
use jiff::Timestamp;
use jiff::civil::Date;

use crate::config_guard::ConfigGuard;
use crate::dispatch_failure::DispatchFailure;
use crate::setup::DaemonSetup;
use crate::stored_workflow_run::StoredWorkflowRun;

/// Longest wait in the queue without a config.
const QUEUE_WAIT_MAX_DEFAULT: Duration = Duration::from_secs(24 * 3600);

/// State on which the dispatcher bases its decisions.
#[derive(Debug)]
pub(crate) struct DispatcherState {
    pub(crate) fleet: FleetState,
    pub(crate) setup: Arc<DaemonSetup>,
    /// Changes of schedules by people, which override the config.
    pub(crate) overrides: HashMap<ScheduleKey, ScheduleOverrideRecord>,
    /// Records of the workflow runs that have not ended.
    pub(crate) workflow_records: HashMap<WorkflowRunId, StoredWorkflowRun>,
    /// Earliest expiry of an open gate.
    pub(crate) gate_expires_at: Option<Timestamp>,
    /// Redacts all secrets of the fleet, regardless of which agent holds them.
    pub(crate) redactor: Arc<SecretRedactor>,
    /// True if a question that was posted to a chat may be open.
    pub(crate) has_chat_questions: bool,
    /// True if a notice with something left to do may be open.
    pub(crate) has_open_notices: bool,
    /// Spending that was removed from the database, for the status.
    pub(crate) spending_faults: Vec<String>,
    /// Knowledge of what people have put into the config files.
    pub(crate) config_guard: ConfigGuard,
    /// True if this state may differ from the database.
    pub(crate) is_stale: bool,
}

impl DispatcherState {
    /// Loads the state from the database.
    pub(crate) fn load(
        db: &StateDatabase,
        setup: Arc<DaemonSetup>,
        now: Timestamp,
    ) -> Result<DispatcherState, DatabaseError> {
        let mut state = DispatcherState {
            fleet: FleetState::new(Arc::new(fleet_rules(&setup)), now),
            has_chat_questions: !db.open_chat_questions(1)?.is_empty(),
            has_open_notices: !db.open_notices(1)?.is_empty(),
            spending_faults: Vec::new(),
            overrides: HashMap::new(),
            workflow_records: HashMap::new(),
            gate_expires_at: db.next_gate_expiry()?,
            redactor: Arc::new(SecretRedactor::new(&setup.secrets())),
            config_guard: ConfigGuard::load(db)?,
            is_stale: false,
            setup,
        };
        db.parked_credentials()?.into_iter().for_each(|row| state.fleet.load_parked(row));
        db.disabled_agents()?.into_iter().for_each(|name| state.fleet.load_disabled_agent(name));
        let by_hand = db.schedule_overrides()?.into_iter().map(|row| {
            let (agent, schedule) = (row.agent.clone(), row.schedule.clone());
            (ScheduleKey { agent, schedule }, row)
        });
        let loaded = Arc::clone(&state.setup.loaded);
        let crons = db.cron_overrides()?.into_iter();
        let crons = crons.filter_map(|row| cron_override(&loaded, row));
        // Both kinds of overrides are keyed alike, so later code need not know where one came from.
        for (key, row) in by_hand.chain(crons) {
            state.fleet.load_switched_schedule(key.clone(), row.enabled);
            state.overrides.insert(key, row);
        }
        state.load_spending(db)?;
        state.load_queue(db)?;
        // Runs are loaded after the queue, because the concurrency key comes from the queued
        // request.
        state.load_runs(db)?;
        state.load_workflows(db)?;
        Ok(state)
    }

    fn load_workflows(&mut self, db: &StateDatabase) -> Result<(), DatabaseError> {
        for row in db.active_workflow_runs()? {
            let id = row.head.id.clone();
            match self.setup.definition_of(db, &row) {
                Ok(workflow) => self.load_workflow_run(db, row, workflow)?,
                Err(DispatchFailure::Database(error)) => return Err(error),
                Err(DispatchFailure::Refused(refused)) => {
                    // It is not failed here: loading only reads. `fail_broken_workflow_runs` fails
                    // it.
                    tracing::error!(run = %id, why = refused.message, "a workflow run cannot continue");
                }
            }
        }
        Ok(())
    }

    /// Adds a workflow run that has not ended, with its record.
    pub(crate) fn load_workflow_run(
        &mut self,
        db: &StateDatabase,
        row: WorkflowRunRow,
        workflow: Arc<Workflow>,
    ) -> Result<(), DatabaseError> {
        let id = row.head.id.clone();
        let stored = StoredWorkflowRun::new(db, row, &workflow)?;
        self.fleet.load_workflow_run(id.clone(), stored.load_state(db, workflow)?);
        self.workflow_records.insert(id, stored);
        Ok(())
    }

    fn load_spending(&mut self, db: &StateDatabase) -> Result<(), DatabaseError> {
        for account in db.spend_accounts(self.fleet.ledger().day())? {
            if account.missing > 0 {
                // The budget counts them nevertheless. `heeler doctor` shows the amounts.
                let (agent, missing) = (&account.agent, account.missing as f64 / 1e6);
                tracing::warn!(
                    agent,
                    missing_usd = missing,
                    "spending was removed from the database"
                );
                self.spending_faults.push(format!(
                    "{} that {agent} has spent was removed from the database; the budgets count it: \
                     heeler doctor",
                    heeler_model::format_usd(missing)
                ));
            }
            self.fleet.load_spending(&account.agent, account.today, account.total);
        }
        Ok(())
    }

    fn load_runs(&mut self, db: &StateDatabase) -> Result<(), DatabaseError> {
        let reserved = db.reservations()?.into_iter().map(|row| (row.run, (row.day, row.micros)));
        let reserved: HashMap<RunId, (Date, i64)> = reserved.collect();
        for run in db.uncommitted_runs()? {
            let Some(job) = db.job(&run.job_id)? else { continue };
            let session = match &job.head.session_id {
                Some(id) => db.session_by_agent_id(id)?,
                None => None,
            };
            let request = self.fleet.job(&run.job_id).map(|job| concurrency_key(&job.request));
            let reservation = reserved.get(&run.id).copied();
            let live = UnfinishedRun {
                // An adopted run has no queue entry.
                concurrency_key: request.unwrap_or_else(|| job.head.agent.clone()),
                budget_micros: reservation.map(|(_, micros)| micros),
                reservation,
                job: run.job_id,
                agent: job.head.agent,
                schedule: job.head.schedule,
                uses_persistent_session: session
                    .is_some_and(|it| it.mode == SessionMode::Persistent),
                since: run.created_at,
            };
            self.fleet.load_run(run.id, live);
        }
        Ok(())
    }

    fn load_queue(&mut self, db: &StateDatabase) -> Result<(), DatabaseError> {
        for entry in db.queue()? {
            let Some(job) = db.job(&entry.job)? else { continue };
            let request = match serde_json::from_str(&entry.request_json) {
                Ok(request) => request,
                Err(error) => {
                    // One damaged entry must not keep the daemon from starting.
                    tracing::error!(job = %entry.job, %error, "a queued job cannot be parsed");
                    continue;
                }
            };
            let stage = match job.head.status {
                JobStatus::Pending => JobStage::Waiting,
                JobStatus::Running => JobStage::Running,
                // The entry of a job that has ended has no effect.
                _ => continue,
            };
            self.fleet.load_job(UnfinishedJob { entry, request, stage });
        }
        Ok(())
    }

    /// Replaces the config, except for the rules of the state machine.
    pub(crate) fn replace_setup(&mut self, setup: Arc<DaemonSetup>) {
        self.redactor = Arc::new(SecretRedactor::new(&setup.secrets()));
        self.setup = setup;
    }

    /// Copies unredacted requests and inputs from an earlier state: the database has them without
    /// secrets.
    pub(crate) fn restore_unredacted(&mut self, before: &DispatcherState) {
        self.fleet.restore_unredacted(&before.fleet);
    }

    pub(crate) fn agents_with_credential(
        &self,
        credential: &str,
    ) -> impl Iterator<Item = &AgentConfig> {
        let rules = &self.fleet.rules().agents;
        self.setup.loaded.agents.iter().filter(move |agent| {
            let rules = rules.get(agent.name.as_str());
            rules.is_some_and(|rules| rules.credential.as_deref() == Some(credential))
        })
    }

    /// Returns a schedule with its agent.
    pub(crate) fn schedule(&self, key: &ScheduleKey) -> Option<(&AgentConfig, &ScheduleConfig)> {
        let agent = self.setup.agent(&key.agent)?;
        let schedule = agent.schedules.iter().find(|schedule| schedule.name == key.schedule)?;
        Some((agent, schedule))
    }

    /// Returns the next time at which the dispatcher must act without an input.
    pub(crate) fn wake_at(&self, now: Timestamp, runs_schedules: bool) -> Option<Timestamp> {
        let fleet = self.fleet.wake_at(now, runs_schedules);
        // Runnable workflow runs are limited per turn, so the rest continues at once.
        let workflows = self.fleet.has_runnable_workflow_runs().then_some(now);
        [fleet, workflows, self.gate_expires_at].into_iter().flatten().min()
    }
}

/// Returns the rules of the state machine that a config defines.
pub(crate) fn fleet_rules(setup: &DaemonSetup) -> FleetRules {
    let queue = setup.root().map(|fleet| &fleet.queue);
    let fleets = setup.loaded.fleets.iter().map(|fleet| SubfleetRules {
        path: fleet.path.clone(),
        max_concurrent: fleet.max_concurrent.map(std::num::NonZeroU32::get),
        limits: SpendingLimits::from_budget(fleet.budget.as_ref()),
    });
    let agents = setup.loaded.agents.iter();
    let workflows = setup.workflow_settings();
    let disabled_gates = workflows.gates.iter().filter(|(_, is_enabled)| !**is_enabled);
    FleetRules {
        agents: agents.map(|agent| (agent.name.to_string(), agent_rules(setup, agent))).collect(),
        fleets: fleets.collect(),
        queue_max: queue.map_or(0, |queue| queue.max as usize),
        queue_wait_max: queue.map_or(QUEUE_WAIT_MAX_DEFAULT, |queue| queue.max_wait.get()),
        zone: setup.zone.clone(),
        workflow_runs_max: workflows.max_concurrent.map(std::num::NonZeroU32::get),
        disabled_gates: disabled_gates.map(|(gate, _)| gate.clone()).collect(),
    }
}

fn agent_rules(setup: &DaemonSetup, agent: &AgentConfig) -> AgentRules {
    let schedules = agent.schedules.iter().map(|schedule| {
        let rules = ScheduleRules {
            is_enabled: schedule.enabled,
            priority: i64::from(schedule.priority),
            session_mode: schedule.session.mode,
            reruns: rerun_policy(agent, &schedule.session),
            starts_workflow: schedule.workflow.is_some() || schedule.work_source.is_some(),
        };
        (schedule.name.clone(), rules)
    });
    let job_budget = agent.budget.as_ref().and_then(|budget| budget.job);
    AgentRules {
        max_concurrent: agent.max_concurrent.get(),
        limits: SpendingLimits::from_budget(agent.budget.as_ref()),
        job_budget: job_budget.map(|usd| i64::try_from(usd.micros()).unwrap_or(i64::MAX)),
        // A command uses no model and costs nothing.
        uses_model: !matches!(agent.runtime, RuntimeConfig::Command(_)),
        credential: setup.credential(agent),
        priority: i64::from(agent.priority),
        reruns: rerun_policy(agent, &agent.session),
        schedules: schedules.collect(),
    }
}

fn rerun_policy(agent: &AgentConfig, session: &SessionRules) -> RerunPolicy {
    RerunPolicy {
        retries_max: agent.retry.max,
        backoff: agent.retry.backoff.get(),
        backoff_max: agent.retry.max_backoff.get(),
        // A command has no session to resume.
        resume_within: session
            .auto_resume_within
            .filter(|_| !matches!(agent.runtime, RuntimeConfig::Command(_)))
            .map(|period| period.get()),
    }
}
