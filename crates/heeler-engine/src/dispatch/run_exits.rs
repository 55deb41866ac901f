//! Run exits: records the result of a run, then finishes its job or schedules the next run.
//!
//! Start at [`DispatchTransaction::record_run_exit`].

use std::sync::Arc;

use heeler_model::calendar::ScheduleKey;
use heeler_model::fleet::{FleetChange, FleetEvent, RunEndFacts, RunEndSource};
use heeler_model::hook::JOB_END_EFFECT_KIND;
use heeler_model::rerun::RerunDecision;
use heeler_model::{Job, JobStatus};
use heeler_store::DatabaseError;
use serde_json::Value as Json;

use super::event::DispatchEffect;
use super::transaction::DispatchTransaction;
use crate::approvals;
use crate::commit::{self, EndedRunRows};
use crate::dispatch_input::RunExit;
use crate::hooks::{self, JobEnd};
use crate::logs;

/// Most pending effects that are searched for job ends. Further ones follow at the next start.
const JOB_ENDS_MAX: usize = 10_000;

impl DispatchTransaction<'_, '_> {
    /// Records the result of a run.
    pub(super) fn record_run_exit(&mut self, exit: RunExit) -> Result<(), DatabaseError> {
        self.record_run_end(exit, RunEndSource::Result)
    }

    /// Records the end of a run that its host, or the leader in its place, has found.
    pub(super) fn record_run_end(
        &mut self,
        exit: RunExit,
        source: RunEndSource,
    ) -> Result<(), DatabaseError> {
        let RunExit { result, metadata, closed_questions } = exit;
        let (run, root) = (result.run, self.dir.root().to_owned());
        // The step below forgets the live run.
        let schedule = self.state.fleet.runs().get(&run).and_then(|live| live.schedule.clone());
        let rows = match commit::load_ended_run(self.tx, result)? {
            EndedRunRows::Open(rows) => *rows,
            EndedRunRows::Committed(_) => {
                // A commit that returned an error may have succeeded, and then the state still has
                // the run.
                return self.step(FleetEvent::RunDropped { run }).map(drop);
            }
        };
        let is_attended = self.is_attended(&rows.job.head.id);
        let facts = RunEndFacts {
            run,
            job: &rows.job.head.id,
            agent: &rows.job.head.agent,
            schedule: rows.job.head.schedule.as_deref(),
            is_workflow_part: rows.job.seq.is_some(),
            result: &rows.result,
            history: rows.history,
            is_cancelled: rows.is_cancelled,
            source,
        };
        let step = self.state.fleet.step(FleetEvent::RunEnded(facts), self.now);
        let denied = rows.result.denied.describe().filter(|_| !is_attended);
        let mut rows = Some(rows);
        let mut ended = None;
        for change in step.changes {
            match (change, rows.take()) {
                (FleetChange::EndRun { decision, settlement, .. }, Some(rows)) => {
                    let recorded =
                        commit::record_result(self.tx, &root, rows, decision, &settlement)?;
                    let (job, closed) = (recorded.job, &closed_questions);
                    // This is in the same commit, so no question stays open for a run that has
                    // ended.
                    approvals::record_closed_questions(self.tx, &job, run, closed, self.now)?;
                    if let Some(denied) = &denied {
                        self.notify_denied(&job, denied)?;
                    }
                    // Hooks follow the end of a job, not the end of each of its runs.
                    if decision == RerunDecision::Finish {
                        self.finish_job(&job, metadata.clone())?;
                    }
                    ended = Some((job, decision));
                }
                (change, _) => self.write_change(change)?,
            }
        }
        self.finish_step(step.effects)?;
        // In the same commit: a person who sees the job's end may change the config at once.
        self.end_config_exposure()?;
        let Some((job, decision)) = ended else { return Ok(()) };
        if decision != RerunDecision::Finish {
            let reason = self.state.fleet.job(&job.head.id).map(|it| it.entry.reason.as_str());
            tracing::info!(job = %job.head.id, agent = job.head.agent, reason, "queued for another run");
        }
        match schedule.or_else(|| job.head.schedule.clone()) {
            Some(schedule) => {
                self.write_schedule_state(&ScheduleKey { agent: job.head.agent.clone(), schedule })
            }
            None => Ok(()),
        }
    }

    /// Finishes the jobs whose end a process without a config recorded, such as `doctor --fix`.
    pub(super) fn finish_recorded_ends(&mut self) -> Result<(), DatabaseError> {
        let pending = self.tx.pending_effects(JOB_ENDS_MAX)?;
        for effect in pending.into_iter().filter(|it| it.kind == JOB_END_EFFECT_KIND) {
            let job = effect.key.parse().ok().map(|id| self.tx.job(&id)).transpose()?.flatten();
            // A job that was resumed since has another end.
            if let Some(job) = job.filter(|job| job.head.status.is_final()) {
                self.finish_job(&job, None)?;
            }
            self.tx.finish_effect(&effect.id, self.now)?;
        }
        Ok(())
    }

    /// Finishes a job: updates its schedule and records its hooks.
    pub(super) fn finish_job(
        &mut self,
        job: &Job,
        metadata: Option<Json>,
    ) -> Result<(), DatabaseError> {
        let head = &job.head;
        tracing::info!(
            job = %head.id, agent = head.agent, status = %head.status, cost_usd = head.cost_usd,
            error = job.error, "ended"
        );
        // The line is written after the commit, so the log never reports an end that was undone.
        let text = logs::job_end_line(head, job.error.as_deref());
        self.effects.push(DispatchEffect::AppendLog { agent: head.agent.clone(), text });
        if let Some(name) = &head.schedule
            && let Some(mut state) = self.tx.schedule(&head.agent, name)?
        {
            state.last_run_at = head.finished_at;
            state.last_error = job.error.clone().filter(|_| head.status == JobStatus::Failed);
            self.tx.put_schedule(&head.agent, name, &state)?;
        }
        self.report_work_of_job(job)?;
        self.post_job_result(job)?;
        self.notify_job_end(job)?;
        let setup = Arc::clone(&self.state.setup);
        if let Some(agent) = setup.agent(&head.agent) {
            let end = JobEnd { output: None, metadata };
            // The hooks are recorded with the end of the job, so no crash can lose them.
            for effect in hooks::hook_effects(agent, job, &end, self.now) {
                self.tx.add_effect(&effect)?;
                self.effects.push(DispatchEffect::WakeHooks);
            }
        }
        Ok(())
    }
}
