//! Run exits: records the result of a run, then finishes its job or schedules the next run.
//!
//! Start at [`DispatchTransaction::record_run_exit`].

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use heeler_model::calendar::ScheduleKey;
use heeler_model::config::{AgentConfig, RuntimeConfig};
use heeler_model::rerun::{self, RerunDecision, RerunKind, RerunPolicy};
use heeler_model::run::{ErrorClass, RunEnd, RunResult};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{Job, JobId, JobStatus, iso_millis};
use heeler_store::{DatabaseError, ParkedCredentialRecord};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use super::DispatchEffect;
use super::fleet_state::JobStage;
use super::transaction::{DispatchTransaction, add_duration};
use crate::approvals;
use crate::command::RunExit;
use crate::commit::{self, CommitOutcome, RunConclusion};
use crate::hooks::{self, JobEnd};
use crate::logs;

/// Prompt for an agent that was interrupted.
const INTERRUPTED_PROMPT: &str = "You were interrupted: the process that ran you ended before you had \
    finished. Look at what is done already, then go on with your task.";

/// Prompt for an agent that was stopped by a usage limit.
const LIMIT_RESET_PROMPT: &str = "You were stopped by a usage limit, which is reset now. Look at what is \
    done already, then go on with your task.";

/// Period after a limit's reset over which parked jobs start. A job that waited less starts within
/// that shorter time.
const AFTER_RESET_SPREAD: Duration = Duration::from_secs(120);

impl DispatchTransaction<'_, '_> {
    /// Records the result of a run.
    pub(super) fn record_run_exit(&mut self, gone: RunExit) -> Result<(), DatabaseError> {
        let RunExit { result, metadata, closed_questions: closed } = gone;
        let (run, now) = (result.run, self.now);
        let root = self.dir.root().to_owned();
        let board = &*self.state;
        let concluded = self.tx.with_savepoint(|tx| {
            commit::record_result(tx, &root, &board.setup.zone, result, |job, result, history| {
                let policy = retry_policy(board.setup.agent(&job.head.agent), job);
                rerun::decide_rerun(result, history, &policy, now)
            })
        })?;
        let live = self.state.remove_run(run);
        let CommitOutcome::Committed(ended) = concluded else { return Ok(()) };
        let RunConclusion { job, result, fate, settlement: money } = &*ended;
        approvals::record_closed_questions(self.tx, job, run, &closed, now)?;
        if let Some(released) = &money.released {
            self.state.ledger.release(&released.agent, released.micros);
        }
        self.state.ledger.spend(&job.head.agent, money.day, money.spent);
        match fate {
            RerunDecision::Finish => {
                self.tx.dequeue(&job.head.id)?;
                self.finish_job(job, metadata, result.error.as_ref().map(|error| error.class))?;
                self.state.remove_job(&job.head.id);
            }
            RerunDecision::Rerun { at, kind: how } => {
                self.schedule_next_run(job, result, *at, *how)?;
            }
        }
        let schedule = live.and_then(|live| live.schedule).or_else(|| job.head.schedule.clone());
        match schedule {
            Some(schedule) => {
                self.write_schedule_state(&ScheduleKey { agent: job.head.agent.clone(), schedule })
            }
            None => Ok(()),
        }
    }

    /// Finishes a job: updates its schedule, records its hooks, and continues its workflow run.
    pub(super) fn finish_job(
        &mut self,
        job: &Job,
        metadata: Option<Json>,
        class: Option<ErrorClass>,
    ) -> Result<(), DatabaseError> {
        let head = &job.head;
        tracing::info!(
            job = %head.id, agent = head.agent, status = %head.status, cost_usd = head.cost_usd,
            error = job.error, "ended"
        );
        let text = logs::job_end_line(head, job.error.as_deref());
        self.effects.push(DispatchEffect::AppendLog { agent: head.agent.clone(), text });
        if let Some(name) = &head.schedule
            && let Some(mut state) = self.tx.schedule(&head.agent, name)?
        {
            state.last_run_at = head.finished_at;
            state.last_error = job.error.clone().filter(|_| head.status == JobStatus::Failed);
            self.tx.put_schedule(&head.agent, name, &state)?;
        }
        let setup = Arc::clone(&self.state.setup);
        if let Some(agent) = setup.agent(&head.agent) {
            let end = JobEnd { output: None, metadata };
            for effect in hooks::hook_effects(agent, job, &end, self.now) {
                self.tx.add_effect(&effect)?;
                self.effects.push(DispatchEffect::WakeHooks);
            }
        }
        self.record_part_end(job, class)
    }

    /// Returns a job to the queue for another run.
    fn schedule_next_run(
        &mut self,
        job: &Job,
        result: &RunResult,
        at: Timestamp,
        how: RerunKind,
    ) -> Result<(), DatabaseError> {
        let id = &job.head.id;
        let Some(mut asked) = self.state.remove_job(id) else {
            return self.fail_job(id, "it cannot continue: its request is not stored");
        };
        let session = result.session.as_ref().filter(|session| session.resumable);
        let text = match how {
            RerunKind::StartAgain | RerunKind::Retry { .. } => None,
            RerunKind::Resume => Some(INTERRUPTED_PROMPT),
            RerunKind::ResumeAfterReset => Some(LIMIT_RESET_PROMPT),
        };
        if let (Some(text), Some(session)) = (text, session) {
            asked.request.prompt = Some(text.to_owned());
            asked.request.session = SessionChoice::Given { id: session.id.clone() };
            // The original prompt may hold secrets; these fixed prompts do not.
            asked.row.request_json = serde_json::to_string(&asked.request).expect("it is JSON");
        }
        let mut not_before = at;
        if how == RerunKind::ResumeAfterReset {
            not_before = add_duration(at, reset_jitter(id, at.duration_since(self.now)));
            self.park_credential(&job.head.agent, id, result, at)?;
        }
        let reason = match (how, result.end) {
            (RerunKind::StartAgain, RunEnd::SessionBusy) => {
                "another run uses its session".to_owned()
            }
            (RerunKind::StartAgain, _) => "its run did not start; it will be retried".to_owned(),
            (RerunKind::Resume, _) => "it was interrupted and will be resumed".to_owned(),
            (RerunKind::ResumeAfterReset, _) => format!("a usage limit, until {}", iso_millis(at)),
            (RerunKind::Retry { attempt: number, max_attempts: most }, _) => {
                let error = result.error.as_ref().map_or("", |error| error.message.as_str());
                format!("failed: {error}; will be retried ({number} of {most})")
            }
        };
        tracing::info!(job = %id, agent = job.head.agent, reason, "queued for another run");
        asked.stage = JobStage::Waiting;
        asked.row.reason = reason;
        asked.row.not_before = Some(not_before);
        asked.row.expires_at = Some(add_duration(not_before, self.queue_wait_max()));
        self.tx.enqueue(&asked.row)?;
        self.state.insert_job(asked);
        Ok(())
    }

    /// Parks a credential until its usage limit resets.
    fn park_credential(
        &mut self,
        agent: &str,
        job: &JobId,
        result: &RunResult,
        until: Timestamp,
    ) -> Result<(), DatabaseError> {
        let Some(credential) = self.state.credential(agent).map(str::to_owned) else {
            return Ok(());
        };
        let reason = result.error.as_ref().map_or("a usage limit", |error| error.message.as_str());
        let known = self.state.parked.get(&credential);
        let row = ParkedCredentialRecord {
            until: known.map_or(until, |known| known.until.max(until)),
            since: known.filter(|known| known.until > self.now).map_or(self.now, |it| it.since),
            credential: credential.clone(),
            reason: reason.to_owned(),
            job: job.clone(),
        };
        tracing::warn!(
            agent,
            until = iso_millis(row.until),
            "usage limit reached: the credential is parked"
        );
        self.tx.park(&row)?;
        self.state.parked.insert(credential, row);
        Ok(())
    }

    /// Releases the credentials with a usage limit that has reset.
    pub(crate) fn unpark_credentials(&mut self) -> Result<(), DatabaseError> {
        let over = self.state.parked.values().filter(|parked| parked.until <= self.now);
        let over: Vec<String> = over.map(|parked| parked.credential.clone()).collect();
        for credential in over {
            self.tx.unpark(&credential)?;
            self.state.parked.remove(&credential);
        }
        Ok(())
    }
}

/// Returns the agent's policy for further runs. An agent that is no longer in the config gets none.
fn retry_policy(agent: Option<&AgentConfig>, job: &Job) -> RerunPolicy {
    let Some(agent) = agent else {
        let none = Duration::ZERO;
        return RerunPolicy {
            retries_max: 0,
            backoff: none,
            backoff_max: none,
            resume_within: None,
        };
    };
    let schedule = job.head.schedule.as_deref();
    let schedule = agent.schedules.iter().find(|it| Some(it.name.as_str()) == schedule);
    let session = schedule.map_or(&agent.session, |schedule| &schedule.session);
    // A workflow retries its parts by its own rules.
    let retries_max = if job.seq.is_some() { 0 } else { agent.retry.max };
    RerunPolicy {
        retries_max,
        backoff: agent.retry.backoff.get(),
        backoff_max: agent.retry.max_backoff.get(),
        // A command has no session to resume.
        resume_within: session
            .auto_resume_within
            .filter(|_| !matches!(agent.runtime, RuntimeConfig::Command(_)))
            .map(|period| period.get()),
    }
}

/// Returns the delay of a job after a limit's reset. It differs between jobs and is at most the
/// time that the job waits for the reset.
fn reset_jitter(job: &JobId, wait: SignedDuration) -> Duration {
    let mut hasher = DefaultHasher::new();
    job.as_str().hash(&mut hasher);
    let most = Duration::try_from(wait).unwrap_or_default().min(AFTER_RESET_SPREAD);
    let most = most.as_millis() as u64;
    Duration::from_millis(hasher.finish() % (most + 1))
}
