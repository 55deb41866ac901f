//! The transaction of one dispatcher turn: events become rows, and effects are collected for
//! execution after the commit.
//!
//! Operations that can fail halfway run under a savepoint. Start at
//! [`DispatchTransaction::apply_event`].

use std::time::Duration;

use heeler_model::budget_ledger::{BudgetDecision, RESERVATION_MIN};
use heeler_model::config::AgentConfig;
use heeler_model::redact::SecretRedactor;
use heeler_model::{
    ExitReason, Job, JobId, JobRequest, JobStatus, RunId, SessionMode, TriggerType, error_chain,
};
use heeler_store::{DatabaseError, QueuedJobRecord, ReservationRecord, StateDir, StoreTransaction};
use jiff::Timestamp;

use super::fleet_state::{
    FleetState, JobStage, UnfinishedJob, UnfinishedRun, concurrency_key, local_day,
    spent_budget_text,
};
use super::{DispatchEffect, DispatchEvent, PreparedJob};
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError,
};
use crate::commit::{self, micros};
use crate::logs;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_start::{self, RunStartError, StartedRun};
use crate::sessions::{self, SessionChange};
use crate::setup::redact_request;
use heeler_model::rerun::SESSION_WAIT;

/// State of one turn inside its transaction.
pub(crate) struct DispatchTransaction<'t, 'c> {
    pub(crate) tx: &'t mut StoreTransaction<'c>,
    pub(crate) state: &'t mut FleetState,
    pub(crate) dir: &'t StateDir,
    pub(crate) now: Timestamp,
    /// True if schedules fire.
    pub(crate) runs_schedules: bool,
    /// True if nothing new starts because the daemon is stopping.
    pub(crate) is_stopping: bool,
    /// Effects to execute after the commit.
    pub(crate) effects: Vec<DispatchEffect>,
}

/// Reply to an event, or its refusal.
pub(crate) type EventOutcome = Result<Option<CommandReply>, DaemonCommandError>;

impl DispatchTransaction<'_, '_> {
    /// Applies an event. A database error undoes its changes.
    pub(crate) fn apply_event(
        &mut self,
        task: DispatchEvent,
    ) -> Result<EventOutcome, DatabaseError> {
        match task {
            DispatchEvent::Command(command) => self.apply_command(command),
            DispatchEvent::JobPrepared(prepared) => self.apply_prepared_job(*prepared),
            DispatchEvent::RunEnded(gone) => self.record_run_exit(*gone).map(|()| Ok(None)),
            DispatchEvent::HookOutcome(outcome) => {
                outcome.record(self.tx, self.now).map(|()| Ok(None))
            }
            DispatchEvent::WatchFired { request: wanted, changed } => {
                self.fire_watch_schedule(&wanted, &changed).map(|()| Ok(None))
            }
            DispatchEvent::QuestionsChanged { run, questions: asks, delivered } => {
                self.record_questions(run, &asks)?;
                if let Some(id) = delivered {
                    self.tx.set_approval_delivered(&id, self.now)?;
                }
                Ok(Ok(None))
            }
            DispatchEvent::SetupReloaded { setup, changes } => {
                self.apply_setup(setup)?;
                Ok(Ok(changes.map(|changes| CommandReply::Reloaded { changes })))
            }
            DispatchEvent::SessionChange { change, by } => self.change_sessions(&change, &by),
            DispatchEvent::ExpireSessions => self.expire_sessions().map(|()| Ok(None)),
        }
    }

    fn change_sessions(
        &mut self,
        change: &SessionChange,
        by: &str,
    ) -> Result<EventOutcome, DatabaseError> {
        let home = self.state.setup.home.clone();
        let done = sessions::commit_change(self.tx, &home, change, by, self.now)?;
        if done.is_ok() {
            self.effects.push(DispatchEffect::MoveSessions);
        }
        Ok(done.map(Some))
    }

    fn expire_sessions(&mut self) -> Result<(), DatabaseError> {
        let setup = std::sync::Arc::clone(&self.state.setup);
        let expired = sessions::expire_sessions(self.tx, &setup.loaded, self.now)?;
        if expired > 0 {
            tracing::info!(expired, "sessions have expired");
        }
        Ok(())
    }

    /// Starts a prepared run, or queues its job.
    fn apply_prepared_job(&mut self, prepared: PreparedJob) -> Result<EventOutcome, DatabaseError> {
        let PreparedJob { job, job_request: mut wanted, resolved: request } = prepared;
        // The job was cancelled in the meantime.
        let is_gone = |job: &JobId| {
            self.state
                .unfinished_jobs
                .get(job)
                .is_none_or(|asked| asked.stage != JobStage::Preparing)
        };
        if job.as_ref().is_some_and(is_gone) {
            return Ok(Ok(None));
        }
        if let Some(job) = &job {
            self.state.set_stage(job, JobStage::Waiting);
        }
        if self.is_stopping {
            // The next daemon starts the job.
            return Ok(if job.is_some() { Ok(None) } else { Err(DispatcherStoppedError.into()) });
        }
        let request = match (request, &job) {
            (Ok(request), _) => request,
            (Err(refused), None) => return Ok(Err(refused)),
            (Err(refused), Some(job)) => {
                return self.fail_job(job, &refused.message).map(|()| Ok(None));
            }
        };
        let setup = std::sync::Arc::clone(&self.state.setup);
        let Ok(agent) = setup.agent_for(&wanted) else {
            let message = format!("there is no agent {} any more", wanted.agent);
            return match &job {
                None => Ok(Err(DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message))),
                Some(job) => self.fail_job(job, &message).map(|()| Ok(None)),
            };
        };
        let agent = &*agent;
        let mut request = *request;
        if job.is_none()
            && let Err(refused) = self.check_admissible(agent)
        {
            return Ok(Err(refused));
        }
        if let Some(parent) = &wanted.parent {
            match (self.check_spawn(parent, agent, job.as_ref())?, &job) {
                (Ok(left), _) => {
                    request.limits.budget_usd = min_budget_usd(request.limits.budget_usd, left);
                }
                (Err(refused), None) => return Ok(Err(refused)),
                (Err(refused), Some(job)) => {
                    return self.fail_job(job, &refused.message).map(|()| Ok(None));
                }
            }
        }
        if let (None, Some(parent)) = (&job, &wanted.parent) {
            match self.worker_name(parent, &wanted)? {
                Ok(name) => wanted.worker = Some(name),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        self.start_or_queue(job, &wanted, agent, request)
    }

    /// Refuses a job that may not even be queued.
    pub(super) fn check_admissible(&self, agent: &AgentConfig) -> Result<(), DaemonCommandError> {
        let name = agent.name.as_str();
        if self.state.disabled.contains(name) {
            let refused = DaemonCommandError::new(
                DaemonCommandErrorKind::NotAllowed,
                format!("{name} is disabled"),
            );
            return Err(refused.with_hint(format!("heeler agent enable {name}")));
        }
        let quote = self.state.quote(agent);
        if matches!(
            quote,
            BudgetDecision::DayLimitReached { .. } | BudgetDecision::TotalLimitReached { .. }
        ) {
            let refused = DaemonCommandError::new(
                DaemonCommandErrorKind::NotAllowed,
                spent_budget_text(name, quote),
            );
            return Err(refused.with_hint(
                "heeler costs shows the spending; `budget` in the config sets the limit",
            ));
        }
        Ok(())
    }

    /// Refuses to queue a job that cannot start now, if the queue is full or the wait would never
    /// end.
    fn check_may_queue(
        &self,
        wanted: &JobRequest,
        agent: &AgentConfig,
        reason: &str,
    ) -> Result<(), DaemonCommandError> {
        // The parent may hold the reservation and wait for this job: a deadlock.
        if let Some(parent) = &wanted.parent
            && self.state.quote(agent) == BudgetDecision::AllReserved
        {
            let message = format!(
                "{reason}, and {parent}, which asks for this job, may be one of them: waiting might never end"
            );
            let asker = self.state.unfinished_runs.values().find(|live| live.job == *parent);
            let asker = asker.map_or("the agent that asks", |live| &live.agent);
            let hint = format!(
                "set `budget.job` of {asker} to less than the fleet's or its own `day` and `total`, \
                 so that a run of it leaves something for the jobs that it starts"
            );
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)
                .with_hint(hint));
        }
        let most = self.queue_max();
        if self.state.queue_len() < most {
            return Ok(());
        }
        let message = match most {
            0 => format!("cannot start now, and queueing is off (`queue.max: 0`): {reason}"),
            _ => format!("{reason}, and the queue is full ({most} jobs, `queue.max`)"),
        };
        Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message)
            .with_hint("heeler jobs --status pending"))
    }

    fn start_or_queue(
        &mut self,
        job: Option<JobId>,
        wanted: &JobRequest,
        agent: &AgentConfig,
        mut request: ResolvedJobRequest,
    ) -> Result<EventOutcome, DatabaseError> {
        let redactor = SecretRedactor::new(&request.brief.secrets);
        if let (Some(id), Some(limit)) = (&job, request.limits.budget_usd) {
            // The cost of earlier runs counts too.
            let left = micros(limit) - self.tx.spent_by_job(id)?;
            if left < RESERVATION_MIN.min(micros(limit)) {
                let why = format!("its runs have spent its budget of ${limit:.2}");
                return self.fail_job(id, &why).map(|()| Ok(None));
            }
            request.limits.budget_usd = Some(left as f64 / 1e6);
        }
        let waits = match self.state.blocking_reason(agent, self.now) {
            Some(reason) => Some((reason, None)),
            None => match self.begin_run(job.as_ref(), wanted, agent, &mut request)? {
                Ok(begun) => {
                    let id = begun.job.clone();
                    let text = logs::job_start_line(
                        &begun.job,
                        request.schedule.as_deref(),
                        request.trigger.as_str(),
                    );
                    self.effects
                        .push(DispatchEffect::AppendLog { agent: request.agent.to_string(), text });
                    self.effects.push(DispatchEffect::LaunchRunner {
                        started: Box::new(begun),
                        request: Box::new(request),
                    });
                    return Ok(Ok(Some(CommandReply::Job {
                        job: id,
                        status: JobStatus::Running,
                        waits: None,
                    })));
                }
                Err(error @ RunStartError::SessionBusy { .. }) => {
                    Some((error_chain(&error), Some(add_duration(self.now, SESSION_WAIT))))
                }
                Err(error) => {
                    return match &job {
                        None => Ok(Err(start_refusal(&error))),
                        Some(job) => self.fail_job(job, &error_chain(&error)).map(|()| Ok(None)),
                    };
                }
            },
        };
        let (reason, not_before) = waits.expect("a started job has returned above");
        if job.is_none()
            && let Err(refused) = self.check_may_queue(wanted, agent, &reason)
        {
            return Ok(Err(refused));
        }
        let job = match job {
            Some(job) => {
                self.requeue_job(&job, &reason, not_before)?;
                job
            }
            None => {
                let redacted = redact_request(wanted, &redactor);
                let job = self.tx.new_job_id(self.now)?;
                insert_job(self.tx, &job, wanted, &redacted, self.now)?;
                let row = self.queue_row(&job, agent, wanted, &redacted, &reason, not_before);
                self.tx.enqueue(&row)?;
                self.state.insert_job(UnfinishedJob {
                    row,
                    request: wanted.clone(),
                    stage: JobStage::Waiting,
                });
                job
            }
        };
        Ok(Ok(Some(CommandReply::Job { job, status: JobStatus::Pending, waits: Some(reason) })))
    }

    /// Records the start of a run and reserves its budget.
    fn begin_run(
        &mut self,
        job: Option<&JobId>,
        wanted: &JobRequest,
        agent: &AgentConfig,
        request: &mut ResolvedJobRequest,
    ) -> Result<Result<StartedRun, RunStartError>, DatabaseError> {
        let own = request.limits.budget_usd.map(micros);
        let quote = match self.state.quote(agent) {
            BudgetDecision::Unlimited => BudgetDecision::Unlimited,
            _ => self.state.ledger.check_budget(agent.name.as_str(), own),
        };
        let reserved = match quote {
            BudgetDecision::Reserve(micros) => Some(micros),
            _ => None,
        };
        request.limits.budget_usd = min_budget_usd(request.limits.budget_usd, reserved);
        let (dir, now, asked) = (self.dir, self.now, &*request);
        let begun = self.tx.with_savepoint(|tx| {
            let job = match job {
                Some(job) => job.clone(),
                None => {
                    let id = tx.new_job_id(now)?;
                    let redacted =
                        redact_request(wanted, &SecretRedactor::new(&asked.brief.secrets));
                    insert_job(tx, &id, wanted, &redacted, now)?;
                    id
                }
            };
            run_start::record_run_start(tx, dir, asked, &job, now)
        });
        let begun = match begun {
            Ok(begun) => begun,
            Err(RunStartError::Db(error)) => return Err(error),
            Err(refused) => return Ok(Err(refused)),
        };
        let name = agent.name.to_string();
        if let Some(micros) = reserved {
            let day = local_day(&self.state.setup, now);
            self.tx.reserve(&ReservationRecord {
                run: begun.run,
                agent: name.clone(),
                day,
                micros,
            })?;
            self.state.ledger.reserve(&name, micros);
        }
        self.record_job_request(&begun.job, wanted, agent, request)?;
        let live = UnfinishedRun {
            job: begun.job.clone(),
            agent: name,
            concurrency_key: concurrency_key(wanted),
            schedule: wanted.schedule.clone(),
            uses_persistent_session: request.rules.mode == SessionMode::Persistent
                && request.channel.is_none(),
            budget_micros: request.limits.budget_usd.map(micros),
            since: now,
        };
        tracing::info!(
            job = %begun.job, agent = agent.name.as_str(), trigger = wanted.trigger.as_str(),
            "started"
        );
        self.state.add_run(begun.run, live);
        self.write_schedule_state_of_job(&begun.job)?;
        Ok(Ok(begun))
    }

    /// Stores a job's request until the job ends, because it may run again.
    fn record_job_request(
        &mut self,
        job: &JobId,
        wanted: &JobRequest,
        agent: &AgentConfig,
        request: &ResolvedJobRequest,
    ) -> Result<(), DatabaseError> {
        if self.state.unfinished_jobs.contains_key(job) {
            self.state.set_stage(job, JobStage::Running);
            return Ok(());
        }
        let redacted = redact_request(wanted, &SecretRedactor::new(&request.brief.secrets));
        let row = self.queue_row(job, agent, wanted, &redacted, "", None);
        self.tx.enqueue(&row)?;
        self.state.insert_job(UnfinishedJob {
            row,
            request: wanted.clone(),
            stage: JobStage::Running,
        });
        Ok(())
    }

    pub(super) fn queue_row(
        &self,
        job: &JobId,
        agent: &AgentConfig,
        wanted: &JobRequest,
        redacted: &JobRequest,
        reason: &str,
        not_before: Option<Timestamp>,
    ) -> QueuedJobRecord {
        let schedule = wanted.schedule.as_deref();
        let schedule = agent.schedules.iter().find(|it| Some(it.name.as_str()) == schedule);
        let own = schedule.map_or(agent.priority, |schedule| schedule.priority);
        QueuedJobRecord {
            job: job.clone(),
            priority: wanted.priority.saturating_add(i64::from(own)),
            requested_at: self.now,
            not_before,
            expires_at: Some(add_duration(not_before.unwrap_or(self.now), self.queue_wait_max())),
            request_json: serde_json::to_string(redacted).expect("a request is JSON"),
            reason: reason.to_owned(),
        }
    }

    /// Returns a job that could not start to the queue.
    pub(super) fn requeue_job(
        &mut self,
        job: &JobId,
        reason: &str,
        not_before: Option<Timestamp>,
    ) -> Result<(), DatabaseError> {
        let Some(mut asked) = self.state.remove_job(job) else { return Ok(()) };
        asked.stage = JobStage::Waiting;
        if asked.row.reason != reason || asked.row.not_before != not_before {
            asked.row.reason = reason.to_owned();
            asked.row.not_before = not_before;
            self.tx.enqueue(&asked.row)?;
        }
        self.state.insert_job(asked);
        Ok(())
    }

    /// Fails a job that cannot run.
    pub(super) fn fail_job(&mut self, id: &JobId, why: &str) -> Result<(), DatabaseError> {
        self.state.remove_job(id);
        self.tx.dequeue(id)?;
        let Some(mut job) = self.tx.job(id)? else { return Ok(()) };
        job.head.status = JobStatus::Failed;
        job.head.exit_reason = Some(ExitReason::Error);
        job.head.finished_at = Some(self.now);
        job.error = Some(why.to_owned());
        job.version = self.tx.update_job(&job)?;
        commit::release_agent(self.tx, &job)?;
        tracing::warn!(job = %id, agent = job.head.agent, why, "a job cannot be started");
        self.finish_job(&job, None, None)
    }

    /// Updates the stored reasons for which jobs wait.
    pub(crate) fn update_wait_reasons(&mut self) -> Result<(), DatabaseError> {
        let mut changed = Vec::new();
        for asked in self.state.queue() {
            let agent = self.state.setup.agent_for(&asked.request).ok();
            let is_put_off = asked.row.not_before.is_some_and(|at| at > self.now);
            let reason = match self.state.held_jobs.contains(&asked.row.job) {
                true => Some("the fleet was stopped; `heeler start` resumes it".to_owned()),
                false => agent.and_then(|agent| self.state.blocking_reason(&agent, self.now)),
            };
            if let Some(reason) = reason.filter(|it| !is_put_off && *it != asked.row.reason) {
                changed.push(QueuedJobRecord { reason, ..asked.row.clone() });
            }
        }
        for row in changed {
            self.tx.enqueue(&row)?;
            if let Some(asked) = self.state.unfinished_jobs.get_mut(&row.job) {
                asked.row = row;
            }
        }
        Ok(())
    }

    /// Fails jobs that have been queued for too long.
    pub(crate) fn expire_queued_jobs(&mut self) -> Result<(), DatabaseError> {
        let is_due = |asked: &&UnfinishedJob| asked.row.expires_at.is_some_and(|at| at <= self.now);
        let expired: Vec<(JobId, String)> = self
            .state
            .queue()
            .filter(is_due)
            .map(|asked| (asked.row.job.clone(), asked.row.reason.clone()))
            .collect();
        for (job, reason) in expired {
            let why = format!("it waited longer than `queue.max_wait` allows: {reason}");
            self.fail_job(&job, &why)?;
        }
        Ok(())
    }

    pub(super) fn queue_max(&self) -> usize {
        self.state.setup.root().map_or(0, |fleet| fleet.queue.max as usize)
    }

    pub(super) fn queue_wait_max(&self) -> Duration {
        let day = Duration::from_secs(24 * 3600);
        self.state.setup.root().map_or(day, |fleet| fleet.queue.max_wait.get())
    }

    /// Returns the unfinished run of a job.
    pub(super) fn unfinished_run_of_job(&self, job: &JobId) -> Option<RunId> {
        self.state.unfinished_run_of_job(job)
    }
}

/// Inserts a pending job.
pub(super) fn insert_job(
    tx: &mut StoreTransaction<'_>,
    id: &JobId,
    wanted: &JobRequest,
    redacted: &JobRequest,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let mut job = Job::new_pending(id.clone(), wanted.agent.as_str(), wanted.trigger.clone(), now);
    job.head.schedule = wanted.schedule.clone();
    job.prompt = redacted.prompt.clone();
    let parent = wanted.parent.as_ref().filter(|_| wanted.trigger == TriggerType::Spawned);
    let concerns = parent.map(JobId::to_string).or_else(|| wanted.schedule.clone());
    job.trigger_id = concerns.or_else(|| wanted.channel.clone()).unwrap_or_default();
    if let Some(worker) = wanted.worker.as_ref().filter(|_| parent.is_some()) {
        job.set_worker(worker);
    }
    tx.insert_job(&job)
}

/// Returns the smaller of a limit in dollars and one in millionths of a dollar, in dollars.
fn min_budget_usd(usd: Option<f64>, micros: Option<i64>) -> Option<f64> {
    let other = micros.map(|micros| micros as f64 / 1e6);
    match (usd, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

pub(super) fn add_duration(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Converts a refused start to a command error with a hint.
fn start_refusal(error: &RunStartError) -> DaemonCommandError {
    let kind = match error {
        RunStartError::NoSession { .. } => DaemonCommandErrorKind::NotFound,
        RunStartError::SessionBusy { .. } => DaemonCommandErrorKind::Busy,
        RunStartError::OthersSession { .. } | RunStartError::Deleted { .. } => {
            DaemonCommandErrorKind::NotAllowed
        }
        _ => DaemonCommandErrorKind::Trouble,
    };
    let refused = DaemonCommandError::new(kind, error_chain(error));
    match error {
        RunStartError::NoSession { .. } | RunStartError::OthersSession { .. } => {
            refused.with_hint("heeler session list")
        }
        _ => refused,
    }
}
