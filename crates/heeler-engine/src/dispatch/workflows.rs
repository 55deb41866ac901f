//! Control of workflow runs: start, cancel, retry and gate answers.
//!
//! The state machine in `heeler_model::fleet` decides each step. This module adds the facts of the
//! database and the form of the replies. Start at
//! [`DispatchTransaction::apply_workflow_operation`].

use std::sync::Arc;

use heeler_config::workflow::{Workflow, freeze_workflow};
use heeler_model::fleet::{CancelRequest, FleetEvent, WorkflowDecision, WorkflowEvent};
use heeler_model::workflow::{GateAnswer, PartDecision, WorkflowRunStatus};
use heeler_model::{Approval, ApprovalKind, JobId, JobStatus, TriggerType, WorkflowRunId};
use heeler_store::{DatabaseError, WorkflowOverride, WorkflowRunHead, WorkflowRunRow};
use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::imported_runs::is_imported;
use super::transaction::DispatchTransaction;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::stored_workflow_run::StoredWorkflowRun;
use crate::workflows::{WorkflowOperation, WorkflowRunRequest, WorkflowSubject};

/// Kind of a person whom GitHub names, as Last Light records it.
const GITHUB_ACTOR: &str = "github";

/// A run that was started, or was already active.
pub(crate) struct StartedWorkflowRun {
    pub(crate) run: WorkflowRunId,
    pub(crate) status: WorkflowRunStatus,
    pub(crate) is_new: bool,
}

impl DispatchTransaction<'_, '_> {
    /// Executes a workflow command.
    pub(super) fn apply_workflow_operation(
        &mut self,
        order: WorkflowOperation,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        match order {
            WorkflowOperation::Run(wanted) => {
                let StartedWorkflowRun { run, status, is_new } =
                    self.start_workflow_run(wanted, by)?;
                Ok(Some(CommandReply::WorkflowRun { run, status, is_new }))
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
            WorkflowOperation::Reset { workflow } => self.reset_workflow(&workflow, by),
        }
    }

    /// Starts a workflow run, unless one with the same trigger ID is active.
    pub(super) fn start_workflow_run(
        &mut self,
        wanted: WorkflowRunRequest,
        by: &str,
    ) -> Result<StartedWorkflowRun, DispatchFailure> {
        let WorkflowRunRequest { workflow: name, inputs, trigger_id, trigger, mode, subject } =
            wanted;
        let setup = Arc::clone(&self.state.setup);
        let loaded = setup.workflow(&name)?;
        let name = loaded.workflow.name.as_str();
        if let Some(refused) = self.disabled_workflow_error(name)? {
            return Err(refused.into());
        }
        let inputs = match heeler_config::workflow::inputs::resolve_inputs(&loaded.workflow, inputs)
        {
            Ok(inputs) => inputs,
            Err(faults) => {
                let refused =
                    DaemonCommandError::new(DaemonCommandErrorKind::Usage, faults.to_string());
                return Err(refused.with_hint(format!("heeler workflow show {name}")).into());
            }
        };
        let subject =
            subject.map_or_else(|| WorkflowSubject::from_inputs(&inputs), |subject| *subject);
        let id = self.tx.new_workflow_run_id(self.now)?;
        // A run without a trigger id is its own trigger, so it never conflicts with another.
        let about = trigger_id.unwrap_or_else(|| id.to_string());
        let active = match self.tx.active_workflow_run(name, &about)? {
            None => self.active_run_of_pull_request(&loaded.workflow, &subject),
            active => active,
        };
        if let Some(active) = active {
            let status = self.tx.workflow_run(&active)?.map(|row| row.head.status);
            let status = status.unwrap_or(WorkflowRunStatus::Running);
            return Ok(StartedWorkflowRun { run: active, status, is_new: false });
        }
        // The definition is stored with the run, so a later edit of the file does not affect it.
        let (hash, files) = freeze_workflow(loaded);
        self.tx.put_definition(&hash, name, &files, self.now)?;
        let context = Json::Object(inputs);
        let mut redacted = context.clone();
        self.state.redactor.redact_json(&mut redacted);
        let mut row = WorkflowRunRow {
            definition: Some(hash),
            triggered_by: Some(by.to_owned()),
            context: redacted,
            ..new_row(&id, name, about, &trigger, self.now)
        };
        row.head.mode = mode.as_text();
        row.head.owner = subject.owner;
        row.head.repo = subject.repo;
        row.head.issue_number = subject.issue_number.and_then(|number| i64::try_from(number).ok());
        if let Some(sender) = subject.sender {
            row.triggered_by = Some(sender);
            row.trigger_actor_type = Some(GITHUB_ACTOR.to_owned());
        }
        let stored = StoredWorkflowRun::new(self.tx, row, &loaded.workflow)?;
        let mut active = stored.initial_state(Arc::new(loaded.workflow.clone()));
        // The inputs may hold secrets, so the unredacted ones are kept in memory only.
        active.state.context = context;
        // The step below records changes of this run, and needs its row for that.
        self.state.workflow_records.insert(id.clone(), stored);
        tracing::info!(run = %id, workflow = name, by, "a workflow starts");
        let decision = self.step_workflow(&id, WorkflowEvent::Start(Box::new(active)))?;
        let status = self.status_after(&id, decision)?;
        Ok(StartedWorkflowRun { run: id, status, is_new: true })
    }

    /// Returns the active run of another workflow for the same pull request, if both workflows are
    /// about its branch: two agents would change it at once.
    fn active_run_of_pull_request(
        &self,
        workflow: &Workflow,
        subject: &WorkflowSubject,
    ) -> Option<WorkflowRunId> {
        if !workflow.github.is_pr_scoped {
            return None;
        }
        let number = i64::try_from(subject.issue_number?).ok()?;
        let (owner, repo) = (subject.owner.as_deref()?, subject.repo.as_deref()?);
        let is_about_it = |id: &WorkflowRunId| {
            let head = self.state.workflow_records.get(id).map(|stored| &stored.row.head);
            head.is_some_and(|head| {
                let is_same = |own: &Option<String>, name: &str| {
                    own.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(name))
                };
                head.issue_number == Some(number)
                    && is_same(&head.owner, owner)
                    && is_same(&head.repo, repo)
            })
        };
        let mut active = self.state.fleet.workflow_runs();
        let found =
            active.find(|(id, run)| run.state.workflow.github.is_pr_scoped && is_about_it(id));
        found.map(|(id, _)| id.clone())
    }

    /// Returns the reason why a run cannot be active again: another one would do its work twice.
    fn retry_conflict(
        &self,
        head: &WorkflowRunHead,
        workflow: &Workflow,
    ) -> Result<Option<String>, DatabaseError> {
        let trigger = &head.trigger_id;
        if let Some(active) = self.tx.active_workflow_run(&head.workflow, trigger)? {
            let message = format!("{active} is already active for the same trigger ({trigger})");
            return Ok(Some(message));
        }
        let active = self.active_run_of_pull_request(workflow, &subject_of(head));
        Ok(active.map(|active| format!("{active} is already active for the same pull request")))
    }

    /// Creates the record of a run that starts.
    pub(super) fn record_workflow_start(
        &mut self,
        id: &WorkflowRunId,
        status: WorkflowRunStatus,
    ) -> Result<(), DatabaseError> {
        let Some(stored) = self.state.workflow_records.get_mut(id) else { return Ok(()) };
        stored.row.head.status = status;
        if let Err(active) = self.tx.insert_workflow_run(&stored.row)? {
            let id = active.to_string();
            // `start_workflow_run` has checked this in the same transaction.
            return Err(DatabaseError::Exists { what: "active workflow run", id });
        }
        let by = stored.row.triggered_by.as_deref().unwrap_or_default();
        let place = match stored.row.trigger_actor_type.as_deref() {
            Some(GITHUB_ACTOR) => " on GitHub",
            _ => "",
        };
        let text = format!("requested by {by}{place}");
        self.tx.add_workflow_event(id, "started", None, &text, self.now)
    }

    /// Returns the status of a run after a step. Answers of a simulated run are steps of their own.
    fn status_after(
        &self,
        id: &WorkflowRunId,
        decision: WorkflowDecision,
    ) -> Result<WorkflowRunStatus, DatabaseError> {
        let row = self.tx.workflow_run(id)?;
        Ok(match (row, decision) {
            (Some(row), _) => row.head.status,
            (None, WorkflowDecision::Stepped(status)) => status,
            (None, _) => WorkflowRunStatus::Running,
        })
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

    fn cancel_workflow(
        &mut self,
        id: &WorkflowRunId,
        now: bool,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Some(row) = self.tx.workflow_run(id)? else {
            return Err(workflow_run_not_found(id).into());
        };
        if is_imported(&row) && !row.head.status.is_final() {
            let (status, why) = (WorkflowRunStatus::Cancelled, format!("cancelled by {by}"));
            self.close_imported_run(row, status, &why, by)?;
            return Ok(Some(CommandReply::WorkflowRun { run: id.clone(), status, is_new: false }));
        }
        let request = CancelRequest { now, by: by.to_owned() };
        // A repeated cancel succeeds, so that a client may repeat it.
        let is_cancelled = row.head.status == WorkflowRunStatus::Cancelled;
        let event = WorkflowEvent::Cancel { request, is_cancelled };
        if self.step_workflow(id, event)? == WorkflowDecision::NotActive {
            let message = format!("{id} has ended already: {}", row.head.status);
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message).into());
        }
        tracing::info!(run = %id, by, "a workflow is cancelled");
        Ok(Some(CommandReply::WorkflowRun {
            run: id.clone(),
            status: WorkflowRunStatus::Cancelled,
            is_new: false,
        }))
    }

    fn retry_workflow(
        &mut self,
        id: &WorkflowRunId,
        from: Option<&str>,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Some(mut row) = self.tx.workflow_run(id)? else {
            return Err(workflow_run_not_found(id).into());
        };
        let busy = |message: String| {
            Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message).into())
        };
        if !row.head.status.is_final() {
            let message = format!("{id} has not ended: {}", row.head.status);
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
            return Err(refused.with_hint(format!("heeler workflow show {id}")).into());
        }
        if row.head.status == WorkflowRunStatus::Succeeded && from.is_none() {
            let refused = DaemonCommandError::new(
                DaemonCommandErrorKind::Busy,
                format!("{id} has succeeded"),
            );
            return Err(refused
                .with_hint(format!("heeler workflow retry {id} --from PHASE"))
                .into());
        }
        if let Some(refused) = self.disabled_workflow_error(&row.head.workflow)? {
            return Err(refused.into());
        }
        // The definition with which the run began is used, not the current file. An imported run has
        // none: it continues with the file of this fleet.
        let is_imported = is_imported(&row);
        let workflow = match is_imported {
            true => self.imported_definition(&row)?,
            false => self.state.setup.definition_of(self.tx, &row)?,
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
                    return Err(refused.with_hint(format!("it has {}", names.join(", "))).into());
                }
            },
        };
        if let Some(conflict) = self.retry_conflict(&row.head, &workflow)? {
            return busy(conflict);
        }
        if is_imported {
            self.adopt_imported_run(&mut row, by)?;
        }
        row.head.finished_at = None;
        row.head.status = WorkflowRunStatus::Running;
        let stored = StoredWorkflowRun::new(self.tx, row, &workflow)?;
        let active = Box::new(stored.load_state(self.tx, workflow)?);
        let event = WorkflowEvent::Retry { active, from: place };
        let step = self.state.fleet.step(FleetEvent::Workflow { run: id, event }, self.now);
        let decision = step.workflow.unwrap_or(WorkflowDecision::NotActive);
        // Nothing is stored yet, so refusing here leaves the run as it was.
        if decision == WorkflowDecision::PartsEnding {
            return busy(format!("jobs of {id} are still ending; try again in a moment"));
        }
        let text = from.map_or_else(String::new, |from| format!(", from `{from}`"));
        let text = format!("retried by {by}{text}");
        self.tx.add_workflow_event(id, "retried", from, &text, self.now)?;
        // The record must exist before the changes of the step are written.
        self.state.workflow_records.insert(id.clone(), stored);
        self.write_step(step)?;
        let status = self.status_after(id, decision)?;
        Ok(Some(CommandReply::WorkflowRun { run: id.clone(), status, is_new: false }))
    }

    fn set_workflow_enabled(
        &mut self,
        name: &str,
        enabled: bool,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let setup = Arc::clone(&self.state.setup);
        // Also allowed for a workflow with faults, so that it can be disabled before it is
        // corrected.
        let faulty = setup.loaded.faulty_workflow(name).and_then(|faulty| faulty.name.clone());
        let name = match (setup.workflow(name), faulty) {
            (Ok(loaded), _) => loaded.workflow.name.to_string(),
            (Err(_), Some(name)) => name,
            (Err(refused), None) => return Err(refused.into()),
        };
        let row = WorkflowOverride { name: name.clone(), enabled, at: self.now, by: by.to_owned() };
        self.tx.put_workflow_override(&row)?;
        let how = if enabled { "enabled" } else { "disabled; its active runs continue" };
        let message = format!("{name} is {how}");
        tracing::info!(workflow = name, by, message, "changed");
        Ok(Some(CommandReply::Done { message }))
    }

    /// Removes the setting of a workflow. A workflow that the fleet no longer has may have one.
    fn reset_workflow(
        &mut self,
        name: &str,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let setup = Arc::clone(&self.state.setup);
        let faulty = setup.loaded.faulty_workflow(name).and_then(|faulty| faulty.name.clone());
        let known = setup.workflow(name).map(|loaded| loaded.workflow.name.to_string());
        let name = known.clone().ok().or(faulty).unwrap_or_else(|| name.to_owned());
        if !self.tx.remove_workflow_override(&name)? {
            known?;
            let message = format!("{name} has no setting to remove; it is enabled");
            return Ok(Some(CommandReply::Done { message }));
        }
        tracing::info!(workflow = name, by, "the setting of a workflow is removed");
        let message = format!("{name} is enabled: its setting is removed");
        Ok(Some(CommandReply::Done { message }))
    }

    /// Fails runs that cannot continue: their definition cannot be read, or names agents that no
    /// longer exist.
    pub(super) fn fail_broken_workflow_runs(&mut self) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        for row in self.tx.active_workflow_runs()? {
            let id = row.head.id.clone();
            // Runs that are loaded have a usable definition.
            if self.state.fleet.workflow_run(&id).is_some() {
                continue;
            }
            match setup.definition_of(self.tx, &row) {
                Ok(workflow) => self.state.load_workflow_run(self.tx, row, workflow)?,
                Err(DispatchFailure::Database(error)) => return Err(error),
                Err(DispatchFailure::Refused(refused)) => {
                    self.fail_workflow_run(&id, &refused.message)?;
                }
            }
        }
        Ok(())
    }

    /// Fails a run with a step that was refused.
    pub(crate) fn fail_workflow_run(
        &mut self,
        id: &WorkflowRunId,
        why: &str,
    ) -> Result<(), DatabaseError> {
        self.step_workflow(id, WorkflowEvent::Fail { why: why.to_owned() }).map(drop)
    }

    /// Records that a run cannot continue.
    pub(super) fn record_workflow_failure(
        &mut self,
        id: &WorkflowRunId,
        why: &str,
    ) -> Result<(), DatabaseError> {
        // The row is read from the database, because the state may never have had this run.
        self.state.workflow_records.remove(id);
        let Some(mut row) = self.tx.workflow_run(id)? else { return Ok(()) };
        tracing::error!(run = %id, why, "a workflow run cannot continue");
        self.tx.add_workflow_event(id, "ended", None, &format!("failed: {why}"), self.now)?;
        row.head.status = WorkflowRunStatus::Failed;
        row.head.finished_at = Some(self.now);
        row.head.error = Some(why.to_owned());
        self.tx.update_workflow_run(&row).map(drop)
    }

    /// Records that a part succeeded after its run had ended, so its output was never evaluated.
    pub(super) fn record_unjudged_part(&mut self, id: &JobId) -> Result<(), DatabaseError> {
        let Some(mut job) = self.tx.job(id)? else { return Ok(()) };
        if job.head.status != JobStatus::Completed || job.decision.is_some() {
            return Ok(());
        }
        job.decision = Some(PartDecision::Unjudged);
        self.tx.update_job(&job).map(|_| ())
    }

    /// Applies an event of a workflow run and stores the changes.
    pub(super) fn step_workflow(
        &mut self,
        run: &WorkflowRunId,
        event: WorkflowEvent,
    ) -> Result<WorkflowDecision, DatabaseError> {
        let step = self.state.fleet.step(FleetEvent::Workflow { run, event }, self.now);
        let decision = step.workflow.unwrap_or(WorkflowDecision::NotActive);
        self.write_step(step)?;
        Ok(decision)
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
        let Some(active) = self.state.fleet.workflow_run(&id) else { return Ok(()) };
        let Some(place) = active.state.workflow.phase_index(phase) else { return Ok(()) };
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
        let event = WorkflowEvent::GateAnswered { phase: place, part, answer };
        self.step_workflow(&id, event).map(drop)
    }
}

/// Returns the issue or pull request of a recorded run.
fn subject_of(head: &WorkflowRunHead) -> WorkflowSubject {
    WorkflowSubject {
        owner: head.owner.clone(),
        repo: head.repo.clone(),
        issue_number: head.issue_number.and_then(|number| u64::try_from(number).ok()),
        sender: None,
    }
}

/// Returns the row of a new run.
fn new_row(
    id: &WorkflowRunId,
    workflow: &str,
    trigger_id: String,
    trigger: &TriggerType,
    now: Timestamp,
) -> WorkflowRunRow {
    WorkflowRunRow {
        head: WorkflowRunHead {
            id: id.clone(),
            workflow: workflow.to_owned(),
            trigger_id,
            trigger_type: Some(trigger.as_str().to_owned()),
            current_phase: String::new(),
            status: WorkflowRunStatus::Queued,
            restart_count: 0,
            started_at: now,
            updated_at: now,
            finished_at: None,
            spent: 0,
            origin: None,
            error: None,
            mode: None,
            owner: None,
            repo: None,
            issue_number: None,
        },
        version: 1,
        seq: 0,
        definition: None,
        triggered_by: None,
        trigger_actor_type: None,
        context: Json::Null,
        scratch: Map::new(),
    }
}

fn workflow_run_not_found(id: &WorkflowRunId) -> DaemonCommandError {
    let message = format!("there is no workflow run {id}");
    DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message)
        .with_hint("heeler workflow runs")
}
