//! Commits a run's result: job, session, agent, run and cost in one transaction.
//!
//! A result is committed once; a second attempt changes nothing. Start at [`commit`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::fleet::{BudgetSettlement, micros};
use heeler_model::redact::SecretRedactor;
use heeler_model::rerun::{RerunDecision, RunHistory};
use heeler_model::run::{RunCost, RunEnd, RunResult, SessionEnd};
use heeler_model::{
    AgentSessionId, AgentStatus, ExitReason, Job, JobHead, JobId, JobRequest, JobStatus,
    JobTransition, RunId, Session, SessionEvent, SessionMode, SessionStatus,
};
use heeler_store::{
    DatabaseError, EffectRecord, JobFilter, RunRecord, Store, StoreTransaction, StoreWriteError,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use thiserror::Error;

use crate::approvals;
use crate::cancel;
use crate::run_questions::RunQuestionFiles;
use crate::run_start::becomes_agent_session;

/// Model name of costs that the agent attributes to no model.
pub(crate) const MODEL_UNKNOWN: &str = "unknown";

/// Failure to commit a result. The run's directory keeps the result, and the commit is retried.
#[derive(Debug, Error)]
#[error("the result of job {job} was not recorded; its folder keeps it")]
pub struct CommitError {
    pub job: JobId,
    #[source]
    pub source: StoreWriteError<DatabaseError>,
}

/// Returns true if a change failed because of its content, not because of the disk: the same change
/// would fail again, but others may succeed.
pub(crate) fn is_refusal(error: &StoreWriteError<DatabaseError>) -> bool {
    match error {
        StoreWriteError::Refused(error) => !error.is_storage_failure(),
        // A panic comes from the content of this change, so a repetition would panic again.
        StoreWriteError::Panicked(_) => true,
        StoreWriteError::NotSaved(_) | StoreWriteError::Restored | StoreWriteError::Closed => false,
    }
}

/// A run with a committed result.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedRun {
    pub job: JobId,
    /// Status of the job after the commit.
    pub status: JobStatus,
    /// Completeness of the run.
    pub end: RunEnd,
}

/// Commits a result. Secrets are redacted from its texts.
pub(crate) fn commit(
    store: &Store,
    mut result: RunResult,
    redactor: &SecretRedactor,
) -> Result<CommittedRun, CommitError> {
    result.redact(redactor);
    let job = result.job.clone();
    let root = store.dir().root().to_owned();
    // The files are read before the transaction, so that the only writer does not wait for them.
    let folder = store.dir().run(result.run);
    let asks = RunQuestionFiles::read(&folder);
    let done = store.write(move |tx| {
        let (run, end) = (result.run, result.end);
        match load_ended_run(tx, result)? {
            EndedRunRows::Open(rows) => {
                let asks = asks.accept(rows.run.result_key.as_ref());
                // The settlement needs the reservation, which `record_result` only removes.
                let reservation = tx.release(run)?.map(|it| (it.day, it.micros));
                let settlement =
                    BudgetSettlement::of_result(&rows.result, reservation, &TimeZone::UTC);
                // Without a dispatcher nothing runs the job again, so every result finishes it.
                let ended = record_result(tx, &root, *rows, RerunDecision::Finish, &settlement)?;
                let at = ended.result.finished_at;
                // The config is not known here, so the next daemon selects the hooks.
                tx.add_effect(&EffectRecord::job_end(&ended.job, at))?;
                approvals::record_closed_questions(tx, &ended.job, run, &asks.closed, at)?;
                asks.report_refused(run);
                asks.set_refused_aside(&folder);
                Ok(CommittedRun { job: ended.job.head.id, status: ended.job.head.status, end })
            }
            // An earlier process may have died after its commit and before it reported the result.
            EndedRunRows::Committed(job) => {
                let missing =
                    || DatabaseError::Missing { what: "job", id: format!("of run {run}") };
                let status = tx.job(&job)?.ok_or_else(missing)?.head.status;
                Ok(CommittedRun { job, status, end })
            }
        }
    });
    done.map_err(|source| CommitError { job, source })
}

/// Rows of a run that has ended.
#[derive(Debug)]
pub(crate) enum EndedRunRows {
    Open(Box<OpenRunRows>),
    /// The result had been committed before. Holds the job.
    Committed(JobId),
}

/// Rows of a run with a result that is not committed.
#[derive(Debug)]
pub(crate) struct OpenRunRows {
    pub(crate) job: Job,
    pub(crate) result: RunResult,
    /// Earlier runs of the job.
    pub(crate) history: RunHistory,
    /// True if a person cancelled the run.
    pub(crate) is_cancelled: bool,
    run: RunRecord,
}

/// A run with a recorded result, and its job.
#[derive(Debug)]
pub(crate) struct RunConclusion {
    pub(crate) job: Job,
    pub(crate) result: RunResult,
}

/// Loads the rows of a run that has ended, and applies a stored cancellation request.
pub(crate) fn load_ended_run(
    tx: &mut StoreTransaction<'_>,
    mut result: RunResult,
) -> Result<EndedRunRows, DatabaseError> {
    let missing = |what, id: String| DatabaseError::Missing { what, id };
    let run_id = result.run.to_string();
    let run = tx.run(result.run)?.ok_or_else(|| missing("run", run_id))?;
    let job_id = run.job_id.clone();
    let job = tx.job(&job_id)?.ok_or_else(|| missing("job", job_id.to_string()))?;
    // A second commit would count the cost and the figures of the run twice.
    if run.committed {
        return Ok(EndedRunRows::Committed(job_id));
    }
    drop_foreign_session(&job, &mut result);
    if is_phase_command(tx, &job)? {
        // The runner of an earlier release reports one.
        (result.session, result.session_transcript) = (None, None);
    }
    let is_cancelled = cancel::apply_request(tx, &mut result)?;
    let history = history(tx, &job, &result)?;
    Ok(EndedRunRows::Open(Box::new(OpenRunRows { job, result, history, is_cancelled, run })))
}

/// Removes the session from the result of a settled run if it is not the one that the run was started
/// with: settling reads it from a file that an agent can write, and the next run must not continue
/// the session of somebody else.
fn drop_foreign_session(job: &Job, result: &mut RunResult) {
    let is_foreign =
        result.session.as_ref().is_some_and(|end| Some(&end.id) != job.head.session_id.as_ref());
    if is_foreign && result.settled.is_some() {
        tracing::warn!(run = %result.run, "the session of a dead run is not the one it was given");
        result.session = None;
    }
}

/// Returns true if the job is a command of a workflow, which has no session.
fn is_phase_command(tx: &StoreTransaction<'_>, job: &Job) -> Result<bool, DatabaseError> {
    // Other jobs name their session while they run, so the request is rarely read.
    if job.seq.is_none() || job.head.session_id.is_some() {
        return Ok(false);
    }
    let Some(queued) = tx.queued_job(&job.head.id)? else { return Ok(false) };
    let request = serde_json::from_str::<JobRequest>(&queued.request_json);
    Ok(request.is_ok_and(|request| request.is_phase_command()))
}

/// Records a run's result, its cost and the decision about its job.
pub(crate) fn record_result(
    tx: &mut StoreTransaction<'_>,
    root: &Utf8Path,
    rows: OpenRunRows,
    decision: RerunDecision,
    settlement: &BudgetSettlement,
) -> Result<RunConclusion, DatabaseError> {
    let OpenRunRows { mut job, mut result, mut run, .. } = rows;
    run.status = result.end.to_string();
    run.started_at = (result.end != RunEnd::NeverStarted).then_some(result.started_at);
    run.finished_at = Some(result.finished_at);
    run.committed = true;
    tx.update_run(&run)?;
    // The job holds the output from now on; the run's copy is dropped.
    job.output_text = result.output.take().or(job.output_text);
    tx.set_run_result(run.id, &result)?;

    // The planned session is read before `close_job` replaces the job's session with the actual
    // one.
    let planned = match &job.head.session_id {
        Some(id) => tx.session_by_agent_id(id)?,
        None => None,
    };
    close_job(&mut job, &result);
    // The job ends first even if it runs again, because that adds the figures of this run.
    if let RerunDecision::Rerun { kind, .. } = decision {
        job.apply(JobTransition::Requeue { is_restart: kind.is_restart() });
    }
    if let Some(session) = planned.as_ref()
        && is_unused_session(tx, session, &run, &result)?
    {
        tx.discard_unused_session(session)?;
        // A job must not name a session that no longer exists.
        job.head.session_id = None;
    } else {
        record_session_end(tx, root, planned, (&job, &run), &result)?;
    }
    job.version = tx.update_job(&job)?;
    mark_denied_tools(tx, &job, &result)?;
    release_agent(tx, &job)?;
    record_cost(tx, &job, &result, settlement)?;
    Ok(RunConclusion { job, result })
}

/// Replaces a run's reservation with its cost.
fn record_cost(
    tx: &mut StoreTransaction<'_>,
    job: &Job,
    result: &RunResult,
    settlement: &BudgetSettlement,
) -> Result<(), DatabaseError> {
    // `commit` may have released it already. A leftover reservation would block budget forever.
    tx.release(result.run)?;
    for (model, micros) in cost_by_model(result, settlement.spent) {
        if micros > 0 {
            tx.spend(settlement.day, &job.head.agent, &model, micros)?;
        }
    }
    tx.set_run_spent(result.run, settlement.spent, &job.head.agent, settlement.day)
}

/// Divides a run's cost by model. The part that the models' figures do not cover counts for
/// [`MODEL_UNKNOWN`].
fn cost_by_model(result: &RunResult, spent: i64) -> Vec<(String, i64)> {
    let mut left = spent;
    let mut by_model = Vec::new();
    // Without a total the amount is the reservation, which belongs to no model.
    if result.cost.usd.is_some() {
        for (model, figures) in &result.cost.usage.per_model {
            // The agent's figures may add up to more than its total, but only the total is spent.
            let cost = figures["costUSD"].as_f64().map_or(0, micros).min(left);
            left -= cost;
            by_model.push((model.clone(), cost));
        }
    }
    by_model.push((MODEL_UNKNOWN.to_owned(), left));
    by_model
}

/// Summarizes the job's earlier runs.
fn history(
    tx: &StoreTransaction<'_>,
    job: &Job,
    this: &RunResult,
) -> Result<RunHistory, DatabaseError> {
    let mut history = RunHistory { restarts: job.restart_count, ..RunHistory::default() };
    // The result of this run is passed to the decision separately.
    for run in tx.runs_of_job(&job.head.id)?.iter().filter(|run| run.id != this.run) {
        if let Some(result) = tx.run_result(run.id)? {
            history.add_run(&result);
        }
    }
    Ok(history)
}

/// Marks a job whose agent was denied tools, in this run or in an earlier one. The agent may report
/// success all the same.
fn mark_denied_tools(
    tx: &mut StoreTransaction<'_>,
    job: &Job,
    result: &RunResult,
) -> Result<(), DatabaseError> {
    if result.denied.is_empty() {
        // The mark of an earlier run stays.
        return Ok(());
    }
    let mut denied = result.denied.clone();
    for run in tx.runs_of_job(&job.head.id)?.iter().filter(|run| run.id != result.run) {
        if let Some(earlier) = tx.run_result(run.id)? {
            denied.add(&earlier.denied);
        }
    }
    match denied.describe() {
        Some(text) => tx.mark_job_denied(&job.head.id, &text),
        None => Ok(()),
    }
}

fn close_job(job: &mut Job, result: &RunResult) {
    let status = result.job_status();
    job.apply(JobTransition::End {
        status,
        reason: result.exit_reason,
        at: result.finished_at,
        error: result.error.as_ref().map(|error| error.message.clone()),
    });
    let head = &mut job.head;
    // A run that was cut off has no summary, and must not remove that of an earlier run.
    head.summary = result.summary.clone().or(head.summary.take());
    head.session_id =
        result.session.as_ref().map(|session| session.id.clone()).or(head.session_id.take());
    job.stop_reason = result.stop_reason.clone();
    job.interrupted = result.is_job_interrupted();
    job.output_text = result.output.clone().or(job.output_text.take());
    add_figures(job, result);
}

/// Adds a run's cost, usage and duration to its job's totals. A job without a duration has no
/// totals yet.
pub(crate) fn add_figures(job: &mut Job, result: &RunResult) {
    let took = result.finished_at.duration_since(result.started_at).as_millis();
    // A clock that was set back during the run gives a negative duration.
    let took = i64::try_from(took).unwrap_or(i64::MAX).max(0);
    let (usd, usage) = (job.head.cost_usd, std::mem::take(&mut job.usage));
    let RunCost { usd, usage } = match job.head.duration_ms {
        Some(_) => RunCost { usd, usage }.plus(&result.cost),
        None => result.cost.clone(),
    };
    job.head.duration_ms = Some(job.head.duration_ms.unwrap_or(0).saturating_add(took));
    job.head.cost_usd = usd;
    job.usage = usage;
}

/// Updates the session that the run used, and the session that the agent's next job continues.
fn record_session_end(
    tx: &mut StoreTransaction<'_>,
    root: &Utf8Path,
    planned: Option<Session>,
    (job, run): (&Job, &RunRecord),
    result: &RunResult,
) -> Result<(), DatabaseError> {
    let at = result.finished_at;
    let Some(end) = &result.session else {
        return match planned {
            // If the session is busy with another run of this fleet, that run updates the session.
            Some(session)
                if result.end == RunEnd::SessionBusy
                    && has_other_running_job(tx, &session, run)? =>
            {
                Ok(())
            }
            Some(mut session) => {
                // Its agent may have added to the native session; nobody knows how much. An
                // outdated position would make these messages look external.
                if result.end == RunEnd::Interrupted {
                    session.own = None;
                }
                release_session(tx, session, run, at)
            }
            None => Ok(()),
        };
    };
    let is_planned = planned.as_ref().and_then(|it| it.agent_session_id.as_ref()) == Some(&end.id);
    match planned {
        None => Ok(()),
        Some(session) if is_planned => {
            // Parts of a workflow are not part of the agent's own session.
            let becomes_own = job.seq.is_none()
                && becomes_agent_session(&session)
                && !has_persistent_session(tx, &session)?;
            write_session_end(tx, session, result, end, becomes_own)
        }
        Some(mut gone) => {
            let own = tx.agent_session(&gone.agent)?;
            let becomes_own = own.is_some_and(|own| own.id == gone.id);
            let fresh = successor_session(tx, root, &gone, end, at)?;
            // An active session cannot expire, so it rests first.
            gone.apply_event(SessionEvent::Rest);
            gone.apply_event(SessionEvent::Expire);
            if fresh.workspace == gone.workspace {
                // The worktree belongs to the successor now.
                gone.workspace = None;
            }
            tx.put_session(&gone)?;
            write_session_end(tx, fresh, result, end, becomes_own)
        }
    }
}

/// Returns true if another job of this fleet is running in the session.
fn has_other_running_job(
    tx: &StoreTransaction<'_>,
    session: &Session,
    run: &RunRecord,
) -> Result<bool, DatabaseError> {
    let is_other = |head: &JobHead| {
        head.id != run.job_id && head.session_id.as_ref() == session.agent_session_id.as_ref()
    };
    Ok(tx.running_jobs()?.iter().any(is_other))
}

/// Returns true if the agent has a persistent session but this one is for a single job. Both can
/// occur because a schedule may set its own mode.
fn has_persistent_session(
    tx: &StoreTransaction<'_>,
    session: &Session,
) -> Result<bool, DatabaseError> {
    let is_kept = |own: Session| own.mode != SessionMode::FreshPerJob;
    Ok(session.mode == SessionMode::FreshPerJob
        && tx.agent_session(&session.agent)?.is_some_and(is_kept))
}

/// Returns the session in which the run continued because the agent program did not know the
/// planned one.
fn successor_session(
    tx: &mut StoreTransaction<'_>,
    root: &Utf8Path,
    gone: &Session,
    end: &SessionEnd,
    at: Timestamp,
) -> Result<Session, DatabaseError> {
    if let Some(known) = tx.session_by_agent_id(&end.id)? {
        return Ok(known);
    }
    // Paths inside the state directory are stored relative, so that the directory can be moved.
    let log: Utf8PathBuf = match end.log.strip_prefix(root) {
        Ok(relative) => relative.to_owned(),
        Err(_) => end.log.clone(),
    };
    Ok(Session {
        id: tx.new_session_id()?,
        agent_session_id: Some(end.id.clone()),
        status: SessionStatus::Active,
        created_at: at,
        message_count: 0,
        token_estimate: 0,
        job_count: 0,
        parent: None,
        forked_at_message: None,
        fork: None,
        continues: None,
        own: None,
        log_path: Some(log),
        version: 1,
        ..gone.clone()
    })
}

fn write_session_end(
    tx: &mut StoreTransaction<'_>,
    mut session: Session,
    result: &RunResult,
    end: &SessionEnd,
    becomes_own: bool,
) -> Result<(), DatabaseError> {
    let (run, at) = (result.run, result.finished_at);
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    session.message_count = count(end.messages);
    session.token_estimate = count(end.tokens);
    let is_first = session.job_count == 0;
    session.job_count += i64::from(!is_job_counted(tx, run, &end.id)?);
    // A clock that was set back must not make the session look older than it is.
    session.last_active_at = session.last_active_at.max(at);
    // An outdated value would make this run's rows look like external messages.
    session.own = end.own;
    // A job that did not succeed may be resumed in its session, so only a success completes it.
    let is_done =
        session.mode == SessionMode::FreshPerJob && result.exit_reason == ExitReason::Success;
    session.apply_event(match end.resumable && !is_done {
        true => SessionEvent::Rest,
        false => SessionEvent::Finish,
    });
    if end.resumable {
        // The fork's history is in the native session now.
        session.fork = None;
        if is_first {
            finish_source_session(tx, &session)?;
        }
    } else {
        return_channel(&mut session);
    }
    tx.put_session(&session)?;
    match becomes_own && end.resumable {
        true => {
            finish_replaced_session(tx, &session)?;
            tx.set_agent_session(&session.agent, Some(&session.id))
        }
        false => Ok(()),
    }
}

/// Completes the session that was the agent's own until now: no usual job continues it any more.
fn finish_replaced_session(
    tx: &mut StoreTransaction<'_>,
    session: &Session,
) -> Result<(), DatabaseError> {
    let Some(mut old) = tx.agent_session(&session.agent)? else { return Ok(()) };
    // A paused session of a single job is one that failed, and waits for `jobs resume`.
    let is_replaced = old.id != session.id
        && old.mode != SessionMode::FreshPerJob
        && old.status == SessionStatus::Paused;
    if !is_replaced {
        return Ok(());
    }
    old.apply_event(SessionEvent::Finish);
    tx.put_session(&old).map(|_| ())
}

/// Completes the session that this one continues. It can still be shown, forked and resumed.
fn finish_source_session(
    tx: &mut StoreTransaction<'_>,
    session: &Session,
) -> Result<(), DatabaseError> {
    let Some(source) = &session.continues else { return Ok(()) };
    let source = tx.session(source)?.filter(|source| source.status == SessionStatus::Paused);
    let Some(mut source) = source else { return Ok(()) };
    source.apply_event(SessionEvent::Finish);
    tx.put_session(&source).map(|_| ())
}

/// Gives the channel back to the session that this one was planned to continue, but did not.
fn return_channel(session: &mut Session) {
    if session.continues.is_some() {
        session.channel_id = None;
    }
}

/// Returns true if an earlier run of the same job is already counted for the session.
fn is_job_counted(
    tx: &StoreTransaction<'_>,
    run: RunId,
    session: &AgentSessionId,
) -> Result<bool, DatabaseError> {
    let Some(run) = tx.run(run)? else { return Ok(false) };
    for earlier in tx.runs_of_job(&run.job_id)? {
        if earlier.id == run.id || !earlier.committed {
            continue;
        }
        let result = tx.run_result(earlier.id)?;
        if result.and_then(|result| result.session).is_some_and(|end| end.id == *session) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if a session was created for a run that never started using it.
fn is_unused_session(
    tx: &StoreTransaction<'_>,
    session: &Session,
    run: &RunRecord,
    result: &RunResult,
) -> Result<bool, DatabaseError> {
    // The progress of an interrupted run is unknown.
    let was_unused = result.session.is_none() && result.end != RunEnd::Interrupted;
    if !(was_unused && is_created_for_run(session, run)) {
        return Ok(false);
    }
    match &session.agent_session_id {
        // Another job may name this session by now.
        Some(id) => Ok(tx.job_ids_of_session(id)?.iter().all(|job| *job == run.job_id)),
        None => Ok(true),
    }
}

/// Returns true if a session's record was created for the run and has not changed since. An older
/// record may belong to a conversation even if its counts are 0, because an import does not always
/// know them.
fn is_created_for_run(session: &Session, run: &RunRecord) -> bool {
    session.version == 1
        && session.created_at == run.created_at
        && (session.message_count, session.job_count) == (0, 0)
}

/// Pauses a session that the run did not use; one that was created for the run is completed.
fn release_session(
    tx: &mut StoreTransaction<'_>,
    mut session: Session,
    run: &RunRecord,
    at: Timestamp,
) -> Result<(), DatabaseError> {
    session.apply_event(match is_created_for_run(&session, run) {
        true => SessionEvent::Finish,
        false => SessionEvent::Rest,
    });
    // A session with messages has taken over the channel.
    if session.message_count == 0 {
        return_channel(&mut session);
    }
    session.last_active_at = session.last_active_at.max(at);
    tx.put_session(&session).map(|_| ())
}

/// Updates the agent's status after a job's run: running if it has another running job, else idle
/// or error.
pub(crate) fn release_agent(tx: &mut StoreTransaction<'_>, job: &Job) -> Result<(), DatabaseError> {
    let JobHead { id, agent: name, status, .. } = &job.head;
    // An agent that was removed from the config has no state to update.
    let Some(mut agent) = tx.agent(name)? else { return Ok(()) };
    let filter = JobFilter {
        agent: Some(name.clone()),
        status: Some(JobStatus::Running),
        ..JobFilter::default()
    };
    let other = tx.jobs(&filter, None, 1)?.pop();
    agent.last_job = Some(id.clone());
    agent.current_job = other.map(|head| head.id);
    agent.status = match (&agent.current_job, status) {
        (Some(_), _) => AgentStatus::Running,
        (None, JobStatus::Failed) => AgentStatus::Error,
        (None, _) => AgentStatus::Idle,
    };
    agent.error_message = job.error.clone().filter(|_| *status == JobStatus::Failed);
    tx.put_agent(name, &agent)
}

#[cfg(test)]
mod tests {
    use heeler_model::TriggerType;
    use serde_json::json;

    use super::*;

    fn result(usd: Option<f64>) -> RunResult {
        let (run, job) = (RunId::mint(Timestamp::UNIX_EPOCH, [1; 10]), "job-2026-11-15-aaaaaa");
        let job = job.parse().unwrap();
        let mut result = RunResult::never_started(run, job, "", Timestamp::UNIX_EPOCH);
        result.cost.usd = usd;
        result.cost.usage.num_turns = Some(i64::MAX);
        let figures = json!({"outputTokens": 3, "contextWindow": 200_000});
        result.cost.usage.per_model.insert("opus".to_owned(), figures);
        result
    }

    #[test]
    fn a_job_has_the_figures_of_all_its_runs() {
        let first = result(Some(0.25));
        let at = first.started_at;
        let mut job = Job::new_pending(first.job.clone(), "coder", TriggerType::Manual, at);
        add_figures(&mut job, &first);
        assert_eq!((job.head.cost_usd, &job.usage), (Some(0.25), &first.cost.usage));
        add_figures(&mut job, &result(Some(0.5)));
        assert_eq!((job.head.cost_usd, job.usage.num_turns), (Some(0.75), Some(i64::MAX)));
        let figures = json!({"outputTokens": 6, "contextWindow": 200_000});
        assert_eq!(job.usage.per_model["opus"], figures);
        add_figures(&mut job, &result(None));
        assert_eq!(job.head.cost_usd, None, "nobody knows what the last one cost");
        add_figures(&mut job, &first);
        assert_eq!(job.head.cost_usd, None);
    }
}
