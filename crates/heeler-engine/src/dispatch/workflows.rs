//! Control of workflow runs: start, cancel, retry, job ends and gate answers.
//!
//! The workflow run's own state machine in `heeler_model::workflow` decides each step. Start at
//! [`DispatchTransaction::apply_workflow_operation`].

use std::sync::Arc;

use heeler_config::workflow::freeze_workflow;
use heeler_model::run::ErrorClass;
use heeler_model::workflow::{
    EndedPart, GateAnswer, PartDecision, PartOutcome, PhasePart, WorkflowRunStatus,
    WorkflowStepEvent,
};
use heeler_model::{Approval, ApprovalKind, Job, JobStatus, TriggerType, WorkflowRunId};
use heeler_store::{DatabaseError, WorkflowOverride, WorkflowRunHead, WorkflowRunRow};
use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::transaction::{DispatchTransaction, EventOutcome};
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::workflows::{
    ActiveWorkflowRun, StartedWorkflowRun, WorkflowOperation, WorkflowRunRequest,
};

impl DispatchTransaction<'_, '_> {
    /// Executes a workflow command.
    pub(super) fn apply_workflow_operation(
        &mut self,
        order: WorkflowOperation,
        by: &str,
    ) -> Result<EventOutcome, DatabaseError> {
        match order {
            WorkflowOperation::Run(wanted) => {
                let begun = self.start_workflow_run(wanted, by)?;
                Ok(begun.map(|StartedWorkflowRun { run, status, is_new }| {
                    Some(CommandReply::WorkflowRun { run, status, is_new })
                }))
            }
            WorkflowOperation::Cancel { run, now } => self.cancel_workflow(&run, now, by),
            WorkflowOperation::Retry { run, from } => {
                self.retry_workflow(&run, from.as_deref(), by)
            }
            WorkflowOperation::Enable { workflow } => {
                self.set_workflow_enabled(&workflow, true, by)
            }
            WorkflowOperation::Disable { workflow } => {
                self.set_workflow_enabled(&workflow, false, by)
            }
        }
    }

    /// Starts a workflow run, unless one with the same trigger ID is active.
    pub(super) fn start_workflow_run(
        &mut self,
        wanted: WorkflowRunRequest,
        by: &str,
    ) -> Result<Result<StartedWorkflowRun, DaemonCommandError>, DatabaseError> {
        let WorkflowRunRequest { workflow: name, inputs, trigger_id, trigger, mode } = wanted;
        let setup = Arc::clone(&self.state.setup);
        let loaded = match setup.workflow(&name) {
            Ok(loaded) => loaded,
            Err(refused) => return Ok(Err(refused)),
        };
        let name = loaded.workflow.name.as_str();
        if let Some(refused) = self.disabled_workflow_error(name)? {
            return Ok(Err(refused));
        }
        let inputs = match heeler_config::workflow::inputs::resolve_inputs(&loaded.workflow, inputs)
        {
            Ok(inputs) => inputs,
            Err(faults) => {
                let refused =
                    DaemonCommandError::new(DaemonCommandErrorKind::Usage, faults.to_string());
                return Ok(Err(refused.with_hint(format!("heeler workflow show {name}"))));
            }
        };
        let (hash, files) = freeze_workflow(loaded);
        self.tx.put_definition(&hash, name, &files, self.now)?;
        let id = self.tx.new_workflow_run_id(self.now)?;
        let status = match self.has_workflow_capacity() {
            true => WorkflowRunStatus::Running,
            false => WorkflowRunStatus::Queued,
        };
        let about = trigger_id.unwrap_or_else(|| id.to_string());
        let context = Json::Object(inputs);
        let mut redacted = context.clone();
        self.state.redactor.redact_json(&mut redacted);
        let mut row = WorkflowRunRow {
            definition: Some(hash),
            triggered_by: Some(by.to_owned()),
            context: redacted,
            ..new_row(&id, name, about, &trigger, status, self.now)
        };
        row.head.mode = mode.as_text();
        if let Err(active) = self.tx.insert_workflow_run(&row)? {
            let status = self.tx.workflow_run(&active)?.map(|row| row.head.status);
            let status = status.unwrap_or(WorkflowRunStatus::Running);
            return Ok(Ok(StartedWorkflowRun { run: active, status, is_new: false }));
        }
        self.tx.add_workflow_event(
            &id,
            "started",
            None,
            &format!("requested by {by}"),
            self.now,
        )?;
        tracing::info!(run = %id, workflow = name, by, "a workflow starts");
        let mut running =
            ActiveWorkflowRun::start_new(self.tx, row, Arc::new(loaded.workflow.clone()))?;
        // The inputs may hold secrets, so the unredacted ones are kept in memory only.
        running.state.context = context;
        self.state.workflow_runs.insert(id.clone(), running);
        if status == WorkflowRunStatus::Running {
            self.apply_workflow_event(&id, WorkflowStepEvent::Continue)?;
        }
        let row = self.tx.workflow_run(&id)?;
        let status = row.map_or(WorkflowRunStatus::Running, |row| row.head.status);
        Ok(Ok(StartedWorkflowRun { run: id, status, is_new: true }))
    }

    fn disabled_workflow_error(
        &self,
        name: &str,
    ) -> Result<Option<DaemonCommandError>, DatabaseError> {
        let off = self.tx.workflow_override(name)?.filter(|row| !row.enabled);
        Ok(off.map(|row| {
            let message = format!("{name} was disabled by {}", row.by);
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
            refused.with_hint(format!("heeler workflow enable {name}"))
        }))
    }

    fn has_workflow_capacity(&self) -> bool {
        let most = self.state.setup.workflow_settings().max_concurrent;
        let running = self.state.workflow_runs.values();
        let running = running.filter(|it| it.state.status == WorkflowRunStatus::Running).count();
        most.is_none_or(|most| running < most.get() as usize)
    }

    fn cancel_workflow(
        &mut self,
        id: &WorkflowRunId,
        now: bool,
        by: &str,
    ) -> Result<EventOutcome, DatabaseError> {
        let Some(row) = self.tx.workflow_run(id)? else {
            return Ok(Err(workflow_run_not_found(id)));
        };
        let is_ending = now && self.unfinished_jobs_of_run(id).next().is_some();
        match self.state.workflow_runs.contains_key(id) {
            true => {
                tracing::info!(run = %id, by, "a workflow is cancelled");
                self.apply_workflow_event(
                    id,
                    WorkflowStepEvent::Cancel { by: by.to_owned(), now },
                )?;
            }
            // Its jobs were cancelled gracefully and are still ending.
            false if row.head.status == WorkflowRunStatus::Cancelled && is_ending => {
                self.cancel_parts(id, now)?;
            }
            false => {
                let message = format!("{id} has ended already: {}", row.head.status);
                return Ok(Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message)));
            }
        }
        Ok(Ok(Some(CommandReply::WorkflowRun {
            run: id.clone(),
            status: WorkflowRunStatus::Cancelled,
            is_new: false,
        })))
    }

    fn retry_workflow(
        &mut self,
        id: &WorkflowRunId,
        from: Option<&str>,
        by: &str,
    ) -> Result<EventOutcome, DatabaseError> {
        let Some(mut row) = self.tx.workflow_run(id)? else {
            return Ok(Err(workflow_run_not_found(id)));
        };
        let busy = |message: String| {
            Ok(Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message)))
        };
        if !row.head.status.is_final() {
            return busy(format!("{id} has not ended: {}", row.head.status));
        }
        if row.head.status == WorkflowRunStatus::Succeeded && from.is_none() {
            let refused = DaemonCommandError::new(
                DaemonCommandErrorKind::Busy,
                format!("{id} has succeeded"),
            );
            return Ok(Err(refused.with_hint(format!("heeler workflow retry {id} --from PHASE"))));
        }
        let workflow = match self.state.setup.definition_of(self.tx, &row)? {
            Ok(workflow) => workflow,
            Err(refused) => return Ok(Err(refused)),
        };
        let place = match from {
            None => None,
            Some(name) => match workflow.phase_index(name) {
                Some(place) => Some(place),
                None => {
                    let names: Vec<&str> =
                        workflow.phases.iter().map(|phase| phase.name.as_str()).collect();
                    let message = format!("{} has no phase `{name}`", workflow.name);
                    let refused =
                        DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message);
                    return Ok(Err(refused.with_hint(format!("it has {}", names.join(", ")))));
                }
            },
        };
        let active = self.tx.active_workflow_run(&row.head.workflow, &row.head.trigger_id)?;
        if let Some(active) = active {
            return busy(format!(
                "{active} is already active for the same trigger ({})",
                row.head.trigger_id
            ));
        }
        if let Some(refused) = self.disabled_workflow_error(&row.head.workflow)? {
            return Ok(Err(refused));
        }
        row.head.finished_at = None;
        row.head.status = WorkflowRunStatus::Running;
        let running = ActiveWorkflowRun::load(self.tx, row, workflow)?;
        if running.state.has_open_parts() {
            return busy(format!("jobs of {id} are still ending; try again in a moment"));
        }
        let text = from.map_or_else(String::new, |from| format!(", from `{from}`"));
        let text = format!("retried by {by}{text}");
        self.tx.add_workflow_event(id, "retried", from, &text, self.now)?;
        // A retried run is queued like any other.
        let queued = !self.has_workflow_capacity();
        self.state.workflow_runs.insert(id.clone(), running);
        self.apply_workflow_event(id, WorkflowStepEvent::Retry { from: place, queued })?;
        let row = self.tx.workflow_run(id)?;
        let status = row.map_or(WorkflowRunStatus::Running, |row| row.head.status);
        Ok(Ok(Some(CommandReply::WorkflowRun { run: id.clone(), status, is_new: false })))
    }

    fn set_workflow_enabled(
        &mut self,
        name: &str,
        enabled: bool,
        by: &str,
    ) -> Result<EventOutcome, DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        // Also allowed for a workflow with faults, so that it can be disabled before it is
        // corrected.
        let faulty = setup.loaded.faulty_workflow(name).and_then(|faulty| faulty.name.clone());
        let name = match (setup.workflow(name), faulty) {
            (Ok(loaded), _) => loaded.workflow.name.to_string(),
            (Err(_), Some(name)) => name,
            (Err(refused), None) => return Ok(Err(refused)),
        };
        let row = WorkflowOverride { name: name.clone(), enabled, at: self.now, by: by.to_owned() };
        self.tx.put_workflow_override(&row)?;
        let how = if enabled { "enabled" } else { "disabled; its active runs continue" };
        let message = format!("{name} is {how}");
        tracing::info!(workflow = name, by, message, "changed");
        Ok(Ok(Some(CommandReply::Done { message })))
    }

    /// Fails runs that cannot continue: their definition cannot be read, or names agents that no
    /// longer exist.
    pub(super) fn fail_broken_workflow_runs(&mut self) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        for row in self.tx.active_workflow_runs()? {
            if self.state.workflow_runs.contains_key(&row.head.id) {
                continue;
            }
            let why = match setup.definition_of(self.tx, &row)? {
                Ok(workflow) => {
                    let id = row.head.id.clone();
                    let running = ActiveWorkflowRun::load(self.tx, row, workflow)?;
                    self.state.workflow_runs.insert(id, running);
                    continue;
                }
                Err(refused) => refused.message,
            };
            self.end_workflow_run(row, &why)?;
        }
        Ok(())
    }

    /// Fails a run with a step that was refused.
    pub(crate) fn fail_workflow_run(
        &mut self,
        id: &WorkflowRunId,
        why: &str,
    ) -> Result<(), DatabaseError> {
        self.state.workflow_runs.remove(id);
        match self.tx.workflow_run(id)? {
            Some(row) => self.end_workflow_run(row, why),
            None => Ok(()),
        }
    }

    fn end_workflow_run(
        &mut self,
        mut row: WorkflowRunRow,
        why: &str,
    ) -> Result<(), DatabaseError> {
        let id = row.head.id.clone();
        tracing::error!(run = %id, why, "a workflow run cannot continue");
        self.tx.add_workflow_event(&id, "ended", None, &format!("failed: {why}"), self.now)?;
        row.head.status = WorkflowRunStatus::Failed;
        row.head.finished_at = Some(self.now);
        row.head.error = Some(why.to_owned());
        self.tx.update_workflow_run(&row)?;
        self.cancel_parts(&id, false)
    }

    /// Starts queued runs if there is capacity.
    pub(crate) fn start_waiting_workflow_runs(&mut self) -> Result<(), DatabaseError> {
        if self.state.fleet.is_queue_held() || self.is_stopping {
            return Ok(());
        }
        while self.has_workflow_capacity() {
            let waiting = self.state.workflow_runs.iter();
            let waiting = waiting.filter(|(_, it)| it.state.status == WorkflowRunStatus::Queued);
            let first = waiting.min_by_key(|(id, it)| (it.row.head.started_at, (*id).clone()));
            let Some(id) = first.map(|(id, _)| id.clone()) else { break };
            if let Some(running) = self.state.workflow_runs.get_mut(&id) {
                running.state.status = WorkflowRunStatus::Running;
            }
            self.apply_workflow_event(&id, WorkflowStepEvent::Continue)?;
        }
        Ok(())
    }

    /// Reports the end of a part's job to its workflow run.
    pub(super) fn record_part_end(
        &mut self,
        job: &Job,
        class: Option<ErrorClass>,
    ) -> Result<(), DatabaseError> {
        let (Some(run), Some(phase), Some(part), Some(seq)) =
            (&job.workflow_run_id, &job.phase, job.part, job.seq)
        else {
            return Ok(());
        };
        let Ok(id) = run.parse::<WorkflowRunId>() else { return Ok(()) };
        let Some(running) = self.state.workflow_runs.get(&id) else {
            return self.record_unjudged_part(job);
        };
        let Some(place) = running.state.workflow.phase_index(phase) else { return Ok(()) };
        let how = PartOutcome::from_job(job.head.status, job.head.exit_reason, job.interrupted);
        let Some(how) = how else { return Ok(()) };
        // A failing command is a negative result of a check, not an error.
        let said_no = matches!(part, PhasePart::Check(_)) && class == Some(ErrorClass::AgentFailed);
        let ended = EndedPart {
            phase: place,
            part,
            seq,
            job: job.head.id.clone(),
            outcome: how,
            output: job.output_text.clone(),
            error: job.error.clone().filter(|_| !said_no),
            micros: self.tx.spent_by_job(&job.head.id)?,
            is_stopped: self.is_stopping && job.head.status == JobStatus::Cancelled,
        };
        self.apply_workflow_event(&id, WorkflowStepEvent::PartEnded(ended))
    }

    /// Records that a part succeeded after its run had ended, so its output was never evaluated.
    fn record_unjudged_part(&mut self, job: &Job) -> Result<(), DatabaseError> {
        if job.head.status != JobStatus::Completed || job.decision.is_some() {
            return Ok(());
        }
        let Some(mut job) = self.tx.job(&job.head.id)? else { return Ok(()) };
        job.decision = Some(PartDecision::Unjudged);
        self.tx.update_job(&job).map(|_| ())
    }

    /// Reports a stored gate answer to the workflow run.
    pub(super) fn apply_gate_answer(
        &mut self,
        approval: &Approval,
        consents: bool,
        text: Option<&str>,
        by: &str,
    ) -> Result<(), DatabaseError> {
        let (Some(phase), Some(part), Some(seq)) = (&approval.phase, approval.part, approval.seq)
        else {
            return Ok(());
        };
        let Ok(id) = approval.workflow_run_id.parse::<WorkflowRunId>() else { return Ok(()) };
        let Some(running) = self.state.workflow_runs.get(&id) else { return Ok(()) };
        let Some(place) = running.state.workflow.phase_index(phase) else { return Ok(()) };
        let verb = match (consents, approval.kind) {
            (true, ApprovalKind::Reply) => "answered",
            (true, _) => "approved",
            (false, _) => "rejected",
        };
        let told = text.map(|text| format!(": {text}")).unwrap_or_default();
        let whose = GateAnswer::describe_author(by);
        let said = format!("`{}` {verb}{whose}{told}", approval.gate);
        self.tx.add_workflow_event(&id, verb, Some(phase), &said, self.now)?;
        let answer = GateAnswer {
            is_approved: consents,
            text: text.map(str::to_owned),
            by: by.to_owned(),
            at: self.now,
            seq,
        };
        self.apply_workflow_event(
            &id,
            WorkflowStepEvent::GateAnswered { phase: place, part, answer },
        )
    }
}

/// Returns the row of a new run.
fn new_row(
    id: &WorkflowRunId,
    workflow: &str,
    trigger_id: String,
    trigger: &TriggerType,
    status: WorkflowRunStatus,
    now: Timestamp,
) -> WorkflowRunRow {
    WorkflowRunRow {
        head: WorkflowRunHead {
            id: id.clone(),
            workflow: workflow.to_owned(),
            trigger_id,
            trigger_type: Some(trigger.as_str().to_owned()),
            current_phase: String::new(),
            status,
            restart_count: 0,
            started_at: now,
            updated_at: now,
            finished_at: None,
            spent: 0,
            origin: None,
            error: None,
            mode: None,
        },
        version: 1,
        seq: 0,
        definition: None,
        triggered_by: None,
        context: Json::Null,
        scratch: Map::new(),
    }
}

fn workflow_run_not_found(id: &WorkflowRunId) -> DaemonCommandError {
    let message = format!("there is no workflow run {id}");
    DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message)
        .with_hint("heeler workflow runs")
}
