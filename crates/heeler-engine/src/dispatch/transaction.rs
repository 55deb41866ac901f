//! The transaction of one dispatcher turn: events become rows, and effects are collected for
//! execution after the commit.
//!
//! Operations that can fail halfway run under a savepoint. Start at
//! [`DispatchTransaction::apply_event`].

use std::sync::Arc;
use std::time::Duration;

use heeler_model::fleet::{
    FleetChange, FleetEffect, FleetEvent, FleetRefusal, FleetStep, JobDecision, JobStage, JobStart,
    NewJob, ReservationRecord, SessionReadiness, WorkflowEvent, micros,
};
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{BudgetSource, RunLimits};
use heeler_model::{
    Job, JobId, JobRequest, JobStatus, JobTransition, RunId, SessionMode, TriggerType,
    WorkflowRunId, error_chain, iso_millis,
};
use heeler_store::{DatabaseError, StateDir, StoreTransaction};
use jiff::Timestamp;

use super::dispatcher_state::DispatcherState;
use super::event::{DispatchEffect, DispatchEvent};
use crate::cancel;
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError,
};
use crate::commit;
use crate::dispatch_failure::DispatchFailure;
use crate::dispatch_input::{DELIVERIES_FETCHED_UNTIL, PreparedJob};
use crate::logs;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_start::{self, RunStartError, RunStartPlan};
use crate::sessions::{self, SessionChange};
use crate::setup::redact_request;

/// State of one turn inside its transaction.
pub(crate) struct DispatchTransaction<'t, 'c> {
    pub(crate) tx: &'t mut StoreTransaction<'c>,
    pub(crate) state: &'t mut DispatcherState,
    pub(crate) dir: &'t StateDir,
    pub(crate) now: Timestamp,
    /// True if schedules fire.
    pub(crate) runs_schedules: bool,
    /// True if nothing new starts because the daemon is stopping.
    pub(crate) is_stopping: bool,
    /// Effects to execute after the commit.
    pub(crate) effects: Vec<DispatchEffect>,
    /// Events of workflow runs that follow from stored changes: answers of simulated runs, and parts
    /// whose job cannot be created. They are applied after the current step.
    pub(crate) pending_events: Vec<(WorkflowRunId, WorkflowEvent)>,
}

impl DispatchTransaction<'_, '_> {
    /// Applies an event. A database error undoes its changes.
    pub(crate) fn apply_event(
        &mut self,
        task: DispatchEvent,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        match task {
            DispatchEvent::Command(command) => self.apply_command(command),
            DispatchEvent::JobPrepared(prepared) => self.apply_prepared_job(*prepared),
            DispatchEvent::RunEnded(gone) => Ok(self.record_run_exit(*gone).map(|()| None)?),
            DispatchEvent::LeasesOver(runs) => Ok(self.give_up_runs(&runs).map(|()| None)?),
            DispatchEvent::MovesDue => Ok(sessions::settle_moves(self.tx).map(|()| None)?),
            DispatchEvent::HookOutcome(outcome) => {
                Ok(outcome.record(self.tx, self.now).map(|()| None)?)
            }
            DispatchEvent::GithubTaskAttempted(result) => {
                Ok(self.apply_github_result(*result).map(|()| None)?)
            }
            DispatchEvent::DeliveriesFetched { until } => {
                Ok(self.tx.set_meta(DELIVERIES_FETCHED_UNTIL, &until.to_string()).map(|()| None)?)
            }
            DispatchEvent::ChatEvent(event) => self.apply_chat_event(&event),
            DispatchEvent::ChatGap(change) => Ok(self.record_gap(&change).map(Some)?),
            DispatchEvent::ChatPostAttempted(result) => {
                Ok(self.apply_post_result(*result).map(|()| None)?)
            }
            DispatchEvent::RunCardChanged(change) => {
                Ok(self.record_run_card(&change).map(|()| None)?)
            }
            DispatchEvent::SaidMessageAttempted(result) => {
                self.apply_said_message(&result).map(|()| None)
            }
            DispatchEvent::NoticeAttempted(result) => {
                Ok(self.apply_notice_result(&result).map(|()| None)?)
            }
            DispatchEvent::LinkChanged(link) => Ok(self.notify_link(&link).map(|()| None)?),
            DispatchEvent::DaemonStarted { is_permanent } => {
                Ok(self.note_daemon_start(is_permanent).map(|()| None)?)
            }
            DispatchEvent::WatchFired { request: wanted, changed } => {
                Ok(self.fire_watch_schedule(&wanted, &changed).map(|()| None)?)
            }
            DispatchEvent::QuestionsChanged { run, questions: asks, delivered } => {
                // The outcome comes first: once an approval is marked as delivered, an outcome is
                // ignored.
                self.record_questions(run, &asks)?;
                if let Some(id) = delivered {
                    self.tx.set_approval_delivered(&id, self.now)?;
                }
                Ok(None)
            }
            DispatchEvent::SetupReloaded { setup, changes, is_confirmed } => {
                self.guard_setup(&setup, is_confirmed)?;
                self.apply_setup(setup)?;
                Ok(changes.map(|changes| CommandReply::Reloaded { changes }))
            }
            DispatchEvent::SessionChange { change, by } => self.change_sessions(&change, &by),
            DispatchEvent::ConfigConfirmed(content) => {
                let DispatcherState { config_guard, redactor, .. } = &mut *self.state;
                Ok(config_guard.accept(self.tx, &content, redactor).map(|()| None)?)
            }
            DispatchEvent::ConfigUnexposed => Ok(self.end_config_exposure().map(|()| None)?),
            DispatchEvent::ExpireSessions => Ok(self.expire_sessions().map(|()| None)?),
        }
    }

    fn change_sessions(
        &mut self,
        change: &SessionChange,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let home = self.state.setup.home.clone();
        let done = sessions::commit_change(self.tx, &home, change, by, self.now)?;
        self.effects.push(DispatchEffect::MoveSessions);
        Ok(Some(done))
    }

    fn expire_sessions(&mut self) -> Result<(), DatabaseError> {
        let setup = std::sync::Arc::clone(&self.state.setup);
        let expired = sessions::expire_sessions(self.tx, &setup.loaded, self.now)?;
        if expired > 0 {
            tracing::info!(expired, "sessions have expired");
        }
        Ok(())
    }

    /// Applies an event to the state machine and stores the changes.
    pub(super) fn step(
        &mut self,
        event: FleetEvent<'_>,
    ) -> Result<Option<JobDecision>, DatabaseError> {
        let mut step = self.state.fleet.step(event, self.now);
        let decision = step.decision.take();
        self.write_step(step)?;
        Ok(decision)
    }

    /// Stores the changes of a step, in order.
    pub(super) fn write_step(&mut self, step: FleetStep) -> Result<(), DatabaseError> {
        step.changes.into_iter().try_for_each(|change| self.write_change(change))?;
        self.finish_step(step.effects)
    }

    /// Collects the effects of a step whose changes are stored, and applies the events that follow
    /// from them.
    pub(super) fn finish_step(&mut self, effects: Vec<FleetEffect>) -> Result<(), DatabaseError> {
        self.collect_effects(effects);
        // Applying an event may add further ones.
        while let Some((run, event)) = self.pending_events.pop() {
            let step = self.state.fleet.step(FleetEvent::Workflow { run: &run, event }, self.now);
            // `write_step` would call this function again for each event.
            step.changes.into_iter().try_for_each(|change| self.write_change(change))?;
            self.collect_effects(step.effects);
        }
        Ok(())
    }

    fn collect_effects(&mut self, effects: Vec<FleetEffect>) {
        for effect in effects {
            // The start of a run is collected with its record.
            if let FleetEffect::CancelRun { run, request } = effect {
                self.effects.push(DispatchEffect::CancelRun { run, request });
            }
        }
    }

    /// Stores a change of the state machine. Starts and ends of runs need more than the change
    /// itself and are stored where they are decided.
    pub(super) fn write_change(&mut self, change: FleetChange) -> Result<(), DatabaseError> {
        match change {
            FleetChange::CreateJob { job, request } => {
                let setup = Arc::clone(&self.state.setup);
                // The database never gets the secrets of a prompt. The state machine keeps the
                // original.
                let redacted = match setup.agent(request.agent.as_str()) {
                    Some(agent) => setup.redact_for_agent(agent, &request),
                    // Without the agent's config its secrets are unknown. Such a job fails when it
                    // is prepared.
                    None => (*request).clone(),
                };
                insert_job(self.tx, &job, &request, &redacted, self.now)
            }
            FleetChange::PutQueueEntry(entry) => self.tx.enqueue(&entry),
            FleetChange::RemoveQueueEntry(job) => self.tx.dequeue(&job).map(drop),
            FleetChange::FailJob { job, why } => self.record_failed_job(&job, &why),
            FleetChange::CancelJob { job } => self.record_cancelled_job(&job),
            FleetChange::ParkCredential(record) => {
                let until = iso_millis(record.until);
                tracing::warn!(job = %record.job, until, "usage limit reached: the credential is parked");
                self.notify_parked(&record)?;
                self.tx.park(&record)
            }
            FleetChange::UnparkCredential(credential) => self.tx.unpark(&credential),
            FleetChange::RecordStart { key, due, job } => {
                tracing::info!(schedule = %key, due = iso_millis(due), %job, "due");
                self.tx.add_occurrence(&key.agent, &key.schedule, due, &job).map(drop)
            }
            FleetChange::StartWorkflow { key, due } => self.start_due_workflow(&key, due),
            FleetChange::RecordSkip { key, skip } => self.record_skip(&key, &skip),
            FleetChange::AdvanceSchedule { key, cursor } => self.record_cursor(&key, cursor),
            FleetChange::RecordCancelRequest { run, request } => {
                cancel::record_request(self.tx, run, &request, self.now)
            }
            FleetChange::CreateWorkflowRun { run, status } => {
                self.record_workflow_start(&run, status)
            }
            FleetChange::RecordWorkflow { run, workflow, effect } => {
                self.record_workflow_effect(&run, &workflow, *effect)
            }
            FleetChange::UpdateWorkflowRun { run, record } => {
                self.record_workflow_progress(&run, *record)
            }
            FleetChange::FailWorkflowRun { run, why } => self.record_workflow_failure(&run, &why),
            FleetChange::WithdrawQuestions { run, by } => self.withdraw_questions(&run, &by),
            FleetChange::RecordUnjudgedPart { job } => self.record_unjudged_part(&job),
            FleetChange::StartRun { .. } | FleetChange::EndRun { .. } => {
                unreachable!("stored by its event")
            }
        }
    }

    /// Starts a prepared run, or queues its job.
    fn apply_prepared_job(
        &mut self,
        prepared: PreparedJob,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let PreparedJob { job, job_request: mut wanted, resolved: request } = prepared;
        // The job was cancelled in the meantime.
        let is_gone = |job: &JobId| {
            let known = self.state.fleet.job(job);
            known.is_none_or(|known| known.stage != JobStage::Preparing)
        };
        if job.as_ref().is_some_and(is_gone) {
            return Ok(None);
        }
        if self.is_stopping {
            // The next daemon starts the job.
            return match &job {
                Some(job) => {
                    self.step(FleetEvent::PreparationStopped { job })?;
                    Ok(None)
                }
                None => Err(DispatcherStoppedError.into()),
            };
        }
        let request = match (request, &job) {
            (Ok(request), _) => request,
            // A caller is told the reason; a job that is on record ends with it.
            (Err(refused), None) => return Err(refused.into()),
            (Err(refused), Some(job)) => {
                return Ok(self.fail_job(job, &refused.message).map(|()| None)?);
            }
        };
        let setup = Arc::clone(&self.state.setup);
        // The config may have been replaced while the job was being prepared.
        let Ok(agent) = setup.agent_for(&wanted) else {
            let message = format!("there is no agent {} any more", wanted.agent);
            return match &job {
                None => {
                    Err(DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message).into())
                }
                Some(job) => Ok(self.fail_job(job, &message).map(|()| None)?),
            };
        };
        let agent = &*agent;
        let mut request = *request;
        // A queued job was checked when it was queued.
        if job.is_none() {
            self.check_admissible(&wanted)?;
        }
        if let Some(parent) = &wanted.parent {
            // Other jobs may have used up the limits while this one waited, so they are checked
            // again.
            match (self.check_spawn(parent, agent, job.as_ref()), &job) {
                (Ok(left), _) => {
                    limit_to_parent(&mut request.limits, left);
                }
                (Err(failure @ DispatchFailure::Database(_)), _) | (Err(failure), None) => {
                    return Err(failure);
                }
                (Err(DispatchFailure::Refused(refused)), Some(job)) => {
                    return Ok(self.fail_job(job, &refused.message).map(|()| None)?);
                }
            }
        }
        // The name is chosen in the transaction, so that no two jobs get the same one.
        if let (None, Some(parent)) = (&job, &wanted.parent) {
            wanted.worker = Some(self.worker_name(parent, &wanted)?);
        }
        self.start_or_queue(job, wanted, request)
    }

    /// Refuses a job that may not even be queued.
    pub(super) fn check_admissible(&self, wanted: &JobRequest) -> Result<(), DaemonCommandError> {
        match self.state.fleet.admission_refusal(wanted) {
            Some(refused) => Err(refusal_error(&refused)),
            None => Ok(()),
        }
    }

    fn start_or_queue(
        &mut self,
        job: Option<JobId>,
        wanted: JobRequest,
        mut request: ResolvedJobRequest,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let redacted = redact_request(&wanted, &SecretRedactor::new(&request.brief.secrets));
        // The host decides which session can be continued, so it is chosen first.
        let absence = self.place_request(&mut request)?;
        // The session is chosen by reads only, before the step: choosing it later would need an
        // undo.
        let plan = match run_start::plan_run_start(self.tx, self.dir, &request, self.now) {
            Err(RunStartError::Db(error)) => return Err(error.into()),
            plan => plan,
        };
        let session = match &plan {
            Ok(_) => absence.map_or(SessionReadiness::Free, SessionReadiness::HostAway),
            Err(error @ RunStartError::SessionBusy { .. }) => {
                SessionReadiness::Busy(error_chain(error))
            }
            Err(error) => SessionReadiness::Unusable(error_chain(error)),
        };
        let (id, spent, new) = match job {
            // The budget of a job covers all its runs together.
            Some(job) => (job.clone(), self.tx.spent_by_job(&job)?, None),
            None => {
                let request_json = serde_json::to_string(&redacted).expect("a request is JSON");
                let new = NewJob { request: wanted, request_json };
                (self.tx.new_job_id(self.now)?, 0, Some(new))
            }
        };
        let start = JobStart {
            job: id.clone(),
            run: run_start::new_run_id(self.now),
            new,
            session,
            uses_persistent_session: request.rules.mode == SessionMode::Persistent
                && request.channel.is_none()
                && !request.is_phase_command,
            budget: request.limits.budget_usd.map(micros),
            spent,
        };
        let event = FleetEvent::JobPrepared(Box::new(start));
        let FleetStep { decision, changes, effects, .. } = self.state.fleet.step(event, self.now);
        // The run must stop at its reservation, which may be less than its own limit.
        if let Some(JobDecision::Started { budget }) = decision {
            limit_to_grant(&mut request.limits, budget, spent);
        }
        let mut plan = Some(plan);
        for change in changes {
            match (change, plan.take()) {
                (FleetChange::CreateJob { job, request: wanted }, kept) => {
                    plan = kept;
                    insert_job(self.tx, &job, &wanted, &redacted, self.now)?;
                }
                (FleetChange::StartRun { job, run, reservation }, Some(Ok(plan))) => {
                    self.record_run_start((&job, run), &request, plan, reservation)?;
                }
                (change, kept) => {
                    plan = kept;
                    self.write_change(change)?;
                }
            }
        }
        self.finish_step(effects)?;
        let refused_by = plan.and_then(Result::err);
        let (status, waits) = match decision {
            Some(JobDecision::Started { .. }) => (JobStatus::Running, None),
            Some(JobDecision::Waiting(reason)) => (JobStatus::Pending, Some(reason.to_string())),
            Some(JobDecision::Refused(refused)) => {
                let refused = match (refused, refused_by) {
                    (FleetRefusal::SessionUnusable(_), Some(error)) => start_refusal(&error),
                    (refused, _) => refusal_error(&refused),
                };
                return Err(refused.into());
            }
            Some(JobDecision::Ended | JobDecision::Ignored) | None => return Ok(None),
        };
        Ok(Some(CommandReply::Job { job: id, status, waits }))
    }

    /// Records the start of a run and its reservation.
    fn record_run_start(
        &mut self,
        (job, run): (&JobId, RunId),
        request: &ResolvedJobRequest,
        plan: RunStartPlan,
        reservation: Option<ReservationRecord>,
    ) -> Result<(), DatabaseError> {
        // In the same commit, so no crash forgets that the run could change the config.
        self.expose_config(job)?;
        let started =
            run_start::record_run_start(self.tx, self.dir, request, (job, run), plan, self.now)?;
        // The reservation is committed with the run, so no crash leaves one without the other.
        if let Some(reservation) = &reservation {
            self.tx.reserve(reservation)?;
        }
        let (agent, trigger) = (request.agent.as_str(), request.trigger.as_str());
        tracing::info!(%job, agent, trigger, "started");
        self.write_schedule_state_of_job(job)?;
        let text = logs::job_start_line(job, request.schedule.as_deref(), trigger);
        self.effects.push(DispatchEffect::AppendLog { agent: agent.to_owned(), text });
        if let Some(placed) = &request.host {
            // Another host finds the run on record, and starts it.
            if self.dir.host().is_some_and(|own| own.name.as_str() == placed.host) {
                self.effects.push(DispatchEffect::StartAssignedRun { run });
            }
            return Ok(());
        }
        // The runner starts after the commit: a crash must never leave a runner without a row.
        self.effects.push(DispatchEffect::LaunchRunner {
            started: Box::new(started),
            request: Box::new(request.clone()),
        });
        Ok(())
    }

    /// Fails a job that cannot run.
    pub(super) fn fail_job(&mut self, job: &JobId, why: &str) -> Result<(), DatabaseError> {
        self.step(FleetEvent::JobImpossible { job, why: why.to_owned() }).map(drop)
    }

    fn record_failed_job(&mut self, id: &JobId, why: &str) -> Result<(), DatabaseError> {
        let job = self.tx.job(id)?.filter(|job| !job.head.status.is_final());
        let Some(mut job) = job else { return Ok(()) };
        job.apply(JobTransition::Fail { why: why.to_owned(), at: self.now });
        job.version = self.tx.update_job(&job)?;
        commit::release_agent(self.tx, &job)?;
        tracing::warn!(job = %id, agent = job.head.agent, why, "a job cannot be started");
        self.finish_job(&job, None)
    }

    fn record_cancelled_job(&mut self, id: &JobId) -> Result<(), DatabaseError> {
        let job = self.tx.job(id)?.filter(|job| !job.head.status.is_final());
        let Some(mut job) = job else { return Ok(()) };
        job.apply(JobTransition::Cancel { at: self.now });
        job.version = self.tx.update_job(&job)?;
        self.finish_job(&job, None)
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

/// Limits a run to what is left of the budget of the job that started its job, in millionths of a
/// dollar.
fn limit_to_parent(limits: &mut RunLimits, left: Option<i64>) {
    let Some(left) = left.map(|micros| micros as f64 / 1e6) else { return };
    if limits.budget_usd.is_none_or(|own| left < own) {
        limits.budget_usd = Some(left);
        limits.budget_source = Some(BudgetSource::Parent);
    }
}

/// Sets the budget of a run to the amount that was granted, in millionths of a dollar. `spent` is the
/// cost of earlier runs of the job.
fn limit_to_grant(limits: &mut RunLimits, granted: Option<i64>, spent: i64) {
    let rest = limits.budget_usd.map(|usd| micros(usd).saturating_sub(spent));
    limits.budget_source = match granted {
        None => None,
        Some(granted) if rest.is_none_or(|rest| granted < rest) => Some(BudgetSource::Reservation),
        Some(_) if spent > 0 => Some(BudgetSource::JobRest),
        Some(_) => limits.budget_source,
    };
    limits.budget_usd = granted.map(|micros| micros as f64 / 1e6);
}

pub(super) fn add_duration(at: Timestamp, by: Duration) -> Timestamp {
    // A duration from a config may reach beyond the last timestamp.
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Converts a refusal of the state machine to a command error with a hint.
pub(super) fn refusal_error(refused: &FleetRefusal) -> DaemonCommandError {
    let kind = match refused {
        FleetRefusal::AgentGone(_) => DaemonCommandErrorKind::NotFound,
        FleetRefusal::QueueFull { .. } => DaemonCommandErrorKind::Busy,
        FleetRefusal::AgentDisabled(_)
        | FleetRefusal::BudgetSpent { .. }
        | FleetRefusal::WaitsForRequester { .. }
        | FleetRefusal::SessionUnusable(_) => DaemonCommandErrorKind::NotAllowed,
    };
    let error = DaemonCommandError::new(kind, refused.to_string());
    match refused.hint() {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Converts a refused start to a command error with a hint.
fn start_refusal(error: &RunStartError) -> DaemonCommandError {
    let kind = match error {
        RunStartError::NoSession { .. } => DaemonCommandErrorKind::NotFound,
        RunStartError::SessionBusy { .. } => DaemonCommandErrorKind::Busy,
        RunStartError::OthersSession { .. }
        | RunStartError::SessionElsewhere { .. }
        | RunStartError::Deleted { .. } => DaemonCommandErrorKind::NotAllowed,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_decides_the_budget_of_a_run_is_kept() {
        let source = |own: Option<f64>, granted: Option<i64>, spent: i64| {
            let budget_source = own.map(|_| BudgetSource::Job);
            let mut limits = RunLimits { budget_usd: own, budget_source, ..RunLimits::default() };
            limit_to_grant(&mut limits, granted, spent);
            limits.budget_source
        };
        assert_eq!(source(Some(0.5), Some(500_000), 0), Some(BudgetSource::Job));
        assert_eq!(source(Some(0.5), Some(100_000), 400_000), Some(BudgetSource::JobRest));
        assert_eq!(source(Some(0.5), Some(20_000), 0), Some(BudgetSource::Reservation));
        assert_eq!(source(None, Some(20_000), 0), Some(BudgetSource::Reservation));
        assert_eq!(source(None, None, 0), None);
        let mut limits = RunLimits::default();
        limit_to_parent(&mut limits, Some(30_000));
        assert_eq!(
            (limits.budget_usd, limits.budget_source),
            (Some(0.03), Some(BudgetSource::Parent))
        );
        limit_to_parent(&mut limits, Some(40_000));
        assert_eq!(limits.budget_usd, Some(0.03));
    }
}
