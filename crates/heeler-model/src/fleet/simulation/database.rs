//! The simulated database: it stores changes exactly as the engine's transaction does, and a state
//! can be loaded from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;

use super::super::*;
use super::journal::SimulatedWorkflowRun;
use crate::calendar::ScheduleKey;
use crate::rerun::{RerunDecision, RunHistory};
use crate::run::RunResult;
use crate::timetable::{DueTimeCursor, ScheduleTimetable};
use crate::workflow::{PartOutcome, truncate_output};
use crate::{ExitReason, JobStatus, WorkflowRunId};

#[derive(Debug, Clone)]
pub(super) struct SimulatedJob {
    pub(super) status: JobStatus,
    pub(super) agent: String,
    pub(super) schedule: Option<String>,
    pub(super) restarts: i64,
    /// Workflow run and journal number, if it executes a part.
    pub(super) part: Option<(WorkflowRunId, u64)>,
    /// Results of its committed runs.
    pub(super) results: Vec<RunResult>,
    pub(super) spent: i64,
}

#[derive(Debug, Clone)]
pub(super) struct SimulatedRun {
    pub(super) job: JobId,
    pub(super) agent: String,
    pub(super) uses_persistent_session: bool,
    pub(super) reservation: Option<ReservationRecord>,
    pub(super) budget: Option<i64>,
    pub(super) since: Timestamp,
}

#[derive(Debug, Clone)]
pub(super) struct SimulatedScheduleRow {
    pub(super) table: ScheduleTimetable,
    pub(super) cursor: DueTimeCursor,
}

impl SimulatedJob {
    fn last_output(&self) -> Option<String> {
        self.results.iter().rev().find_map(|result| result.output.clone())
    }

    /// Returns the error that the record of a waiting job has: that of its last run.
    fn last_error(&self) -> Option<String> {
        let last = self.results.last().filter(|_| self.status == JobStatus::Pending);
        last.and_then(|result| result.error.as_ref()).map(|error| error.message.clone())
    }

    /// Returns the figures of its part, as they are loaded from its record.
    pub(super) fn open_part(&self, part: OpenPart) -> OpenPart {
        OpenPart { spent: self.spent, output: self.last_output(), error: self.last_error(), ..part }
    }
}

/// End of a job, as its record has it.
struct JobClose {
    status: JobStatus,
    reason: ExitReason,
    is_interrupted: bool,
    error: Option<String>,
}

impl JobClose {
    fn of_result(result: &RunResult) -> JobClose {
        JobClose {
            status: result.job_status(),
            reason: result.exit_reason,
            is_interrupted: result.is_job_interrupted(),
            error: result.error.as_ref().map(|error| error.message.clone()),
        }
    }

    fn failed(why: String) -> JobClose {
        let (status, reason) = (JobStatus::Failed, ExitReason::Error);
        JobClose { status, reason, is_interrupted: false, error: Some(why) }
    }

    fn cancelled(error: Option<String>) -> JobClose {
        let (status, reason) = (JobStatus::Cancelled, ExitReason::Cancelled);
        JobClose { status, reason, is_interrupted: false, error }
    }
}

/// Rows of a fleet. Ended jobs and committed runs are removed, so that checks stay fast.
#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedDatabase {
    pub(super) jobs: BTreeMap<JobId, SimulatedJob>,
    pub(super) queue: BTreeMap<JobId, QueuedJobRecord>,
    pub(super) runs: BTreeMap<RunId, SimulatedRun>,
    pub(super) spending: BTreeMap<(String, Date), i64>,
    pub(super) parked: BTreeMap<String, ParkedCredentialRecord>,
    pub(super) disabled: BTreeMap<String, ()>,
    pub(super) schedules: BTreeMap<ScheduleKey, SimulatedScheduleRow>,
    /// Job of each due time.
    pub(super) starts: BTreeMap<(ScheduleKey, Timestamp), JobId>,
    /// Runs that a person or program wants to end.
    pub(super) cancel_requests: BTreeSet<RunId>,
    pub(super) workflow_runs: BTreeMap<WorkflowRunId, SimulatedWorkflowRun>,
}

impl SimulatedDatabase {
    /// Stores a change.
    pub(super) fn store(&mut self, change: FleetChange, facts: &StoredFacts<'_>) {
        match change {
            FleetChange::CreateJob { job, request } => {
                let fresh = SimulatedJob {
                    status: JobStatus::Pending,
                    agent: request.agent.to_string(),
                    schedule: request.schedule.clone(),
                    restarts: 0,
                    part: None,
                    results: Vec::new(),
                    spent: 0,
                };
                assert!(self.jobs.insert(job, fresh).is_none(), "a job is created twice");
            }
            FleetChange::PutQueueEntry(entry) => drop(self.queue.insert(entry.job.clone(), entry)),
            FleetChange::RemoveQueueEntry(job) => drop(self.queue.remove(&job)),
            FleetChange::StartRun { job, run, reservation } => {
                self.start_run(job, run, reservation, facts);
            }
            FleetChange::EndRun { run, decision, settlement } => {
                self.end_run(run, decision, &settlement, facts);
            }
            FleetChange::FailJob { job, why } => self.close(&job, &JobClose::failed(why)),
            FleetChange::CancelJob { job } => {
                let error = self.jobs[&job].last_error();
                self.close(&job, &JobClose::cancelled(error));
            }
            FleetChange::RecordCancelRequest { run, .. } => drop(self.cancel_requests.insert(run)),
            FleetChange::ParkCredential(record) => {
                self.parked.insert(record.credential.clone(), record);
            }
            FleetChange::UnparkCredential(credential) => drop(self.parked.remove(&credential)),
            FleetChange::RecordStart { key, due, job } => {
                let is_new = self.starts.insert((key.clone(), due), job).is_none();
                assert!(is_new, "a due time of {key} has two jobs");
            }
            FleetChange::AdvanceSchedule { key, cursor } => {
                if let Some(row) = self.schedules.get_mut(&key) {
                    row.cursor = cursor;
                }
            }
            FleetChange::RecordSkip { .. } | FleetChange::StartWorkflow { .. } => {}
            change => self.store_workflow(change, facts),
        }
    }

    fn start_run(
        &mut self,
        job: JobId,
        run: RunId,
        reservation: Option<ReservationRecord>,
        facts: &StoredFacts<'_>,
    ) {
        let row = self.jobs.get_mut(&job).expect("a run of a job that does not exist");
        assert_eq!(row.status, JobStatus::Pending, "{job} starts again");
        row.status = JobStatus::Running;
        let fresh = SimulatedRun {
            agent: row.agent.clone(),
            uses_persistent_session: facts.uses_persistent_session,
            reservation,
            budget: facts.budget,
            since: facts.now,
            job,
        };
        assert!(self.runs.insert(run, fresh).is_none(), "a run is recorded twice");
    }

    fn end_run(
        &mut self,
        run: RunId,
        decision: RerunDecision,
        settlement: &BudgetSettlement,
        facts: &StoredFacts<'_>,
    ) {
        let row = self.runs.remove(&run).expect("a run without a record ends");
        let job = self.jobs.get_mut(&row.job).expect("its job is on record");
        let result = facts.result.expect("the end of a run has a result");
        self.cancel_requests.remove(&run);
        *self.spending.entry((job.agent.clone(), settlement.day)).or_default() += settlement.spent;
        job.spent += settlement.spent;
        job.results.push(result.clone());
        match decision {
            RerunDecision::Finish => self.close(&row.job, &JobClose::of_result(result)),
            RerunDecision::Rerun { kind, .. } => {
                job.status = JobStatus::Pending;
                job.restarts += i64::from(kind.is_restart());
            }
        }
    }

    /// Ends a job. The outcome of a part is the outcome of its job.
    fn close(&mut self, job: &JobId, close: &JobClose) {
        let row = self.jobs.remove(job).unwrap_or_else(|| panic!("{job} ends twice"));
        let Some((run, seq)) = &row.part else { return };
        let Some(run) = self.workflow_runs.get_mut(run) else { return };
        let entry = run.journal.get_mut(seq).expect("a part begins with a journal entry");
        let outcome = PartOutcome::from_job(close.status, Some(close.reason), close.is_interrupted);
        assert!(entry.outcome.is_none(), "a part ends twice");
        entry.outcome = outcome;
        entry.output = row.last_output().map(|text| truncate_output(&text).into());
        entry.error.clone_from(&close.error);
        entry.micros = row.spent;
    }

    /// Summarizes the earlier runs of a job.
    pub(super) fn history(&self, job: &JobId) -> RunHistory {
        let row = &self.jobs[job];
        let mut history = RunHistory { restarts: row.restarts, ..RunHistory::default() };
        row.results.iter().for_each(|result| history.add_run(result));
        history
    }

    /// Loads a state, as a daemon does when it starts.
    pub(super) fn load(&self, rules: Arc<FleetRules>, now: Timestamp) -> FleetState {
        let today = rules.day_of(now);
        let mut state = FleetState::new(rules, now);
        let mut totals: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        for ((agent, day), micros) in &self.spending {
            let (of_day, of_all) = totals.entry(agent).or_default();
            *of_day += if *day == today { *micros } else { 0 };
            *of_all += micros;
        }
        for (agent, (of_day, of_all)) in totals {
            state.load_spending(agent, of_day, of_all);
        }
        for (id, entry) in &self.queue {
            let stage = match self.jobs[id].status {
                JobStatus::Pending => JobStage::Waiting,
                JobStatus::Running => JobStage::Running,
                status => panic!("{id} is {status}"),
            };
            let request = serde_json::from_str(&entry.request_json).unwrap();
            state.load_job(UnfinishedJob { entry: entry.clone(), request, stage });
        }
        for (id, run) in &self.runs {
            let request = state.job(&run.job).map(|job| job.request.clone());
            let live = UnfinishedRun {
                job: run.job.clone(),
                agent: run.agent.clone(),
                concurrency_key: request.map_or(run.agent.clone(), |it| concurrency_key(&it)),
                schedule: self.jobs[&run.job].schedule.clone(),
                uses_persistent_session: run.uses_persistent_session,
                budget_micros: run.budget,
                reservation: run.reservation.as_ref().map(|it| (it.day, it.micros)),
                since: run.since,
            };
            state.load_run(*id, live);
        }
        let active = self.workflow_runs.iter().filter(|(_, row)| !row.status.is_final());
        for (id, row) in active {
            state.load_workflow_run(id.clone(), row.load(&self.jobs));
        }
        self.parked.values().for_each(|parked| state.load_parked(parked.clone()));
        self.disabled.keys().for_each(|agent| state.load_disabled_agent(agent.clone()));
        for (key, row) in &self.schedules {
            state.calendar_mut().insert(key.clone(), row.table.clone(), row.cursor, now);
        }
        state
    }
}

/// Facts that the engine has besides the change.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredFacts<'f> {
    pub(super) now: Timestamp,
    pub(super) budget: Option<i64>,
    pub(super) uses_persistent_session: bool,
    pub(super) result: Option<&'f RunResult>,
    /// Row of the workflow run that the event starts.
    pub(super) new_workflow_run: Option<&'f SimulatedWorkflowRun>,
}
