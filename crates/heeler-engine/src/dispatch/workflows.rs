//! Runs of workflows: what people, schedules, jobs and answers want of them.
//!
//! What happens to a run is decided by its course. Start at [`Turn::workflow_order`].

use std::sync::Arc;

use heeler_model::run::ErrorClass;
use heeler_model::workflow::{
    Answer as GateAnswer, CourseStatus, Decision, Ended, Happening, How, Part, freeze,
};
use heeler_model::{Approval, ApprovalKind, Job, JobStatus, TriggerType, WorkflowRunId};
use heeler_store::{DbError, WorkflowOverride, WorkflowRunHead, WorkflowRunRow};
use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::turn::{Outcome, Turn};
use crate::command::{Answer, Refused, RefusedKind};
use crate::workflows::{BegunRun, Running, WorkflowOrder, WorkflowWanted};

impl Turn<'_, '_> {
    /// Does what a person wants of workflows.
    pub(super) fn workflow_order(
        &mut self,
        order: WorkflowOrder,
        by: &str,
    ) -> Result<Outcome, DbError> {
        match order {
            WorkflowOrder::Run(wanted) => {
                let begun = self.begin_workflow(wanted, by)?;
                Ok(begun.map(|BegunRun { run, status, is_new }| {
                    Some(Answer::WorkflowRun { run, status, is_new })
                }))
            }
            WorkflowOrder::Cancel { run, now } => self.cancel_workflow(&run, now, by),
            WorkflowOrder::Retry { run, from } => self.retry_workflow(&run, from.as_deref(), by),
            WorkflowOrder::Enable { workflow } => self.switch_workflow(&workflow, true, by),
            WorkflowOrder::Disable { workflow } => self.switch_workflow(&workflow, false, by),
        }
    }

    /// Begins a run, unless one about the same goes on.
    pub(super) fn begin_workflow(
        &mut self,
        wanted: WorkflowWanted,
        by: &str,
    ) -> Result<Result<BegunRun, Refused>, DbError> {
        let WorkflowWanted { workflow: name, inputs, trigger_id, trigger, mode } = wanted;
        let setup = Arc::clone(&self.board.setup);
        let loaded = match setup.workflow(&name) {
            Ok(loaded) => loaded,
            Err(refused) => return Ok(Err(refused)),
        };
        let name = loaded.workflow.name.as_str();
        if let Some(refused) = self.switched_off(name)? {
            return Ok(Err(refused));
        }
        let inputs = match heeler_model::workflow::inputs::check(&loaded.workflow, inputs) {
            Ok(inputs) => inputs,
            Err(faults) => {
                let refused = Refused::new(RefusedKind::Usage, faults.to_string());
                return Ok(Err(refused.hint(format!("heeler workflow show {name}"))));
            }
        };
        let (hash, files) = freeze(loaded);
        self.tx.put_definition(&hash, name, &files, self.now)?;
        let id = self.tx.new_workflow_run_id(self.now)?;
        let status = match self.has_room_for_workflow() {
            true => CourseStatus::Running,
            false => CourseStatus::Queued,
        };
        let about = trigger_id.unwrap_or_else(|| id.to_string());
        let context = Json::Object(inputs);
        let mut redacted = context.clone();
        self.board.redactor.json(&mut redacted);
        let mut row = WorkflowRunRow {
            definition: Some(hash),
            triggered_by: Some(by.to_owned()),
            context: redacted,
            ..new_row(&id, name, about, &trigger, status, self.now)
        };
        row.head.mode = mode.as_text();
        if let Err(active) = self.tx.insert_workflow_run(&row)? {
            let status = self.tx.workflow_run(&active)?.map(|row| row.head.status);
            let status = status.unwrap_or(CourseStatus::Running);
            return Ok(Ok(BegunRun { run: active, status, is_new: false }));
        }
        self.tx.add_workflow_event(
            &id,
            "started",
            None,
            &format!("asked for by {by}"),
            self.now,
        )?;
        tracing::info!(run = %id, workflow = name, by, "a workflow starts");
        let mut running = Running::begin(self.tx, row, Arc::new(loaded.workflow.clone()))?;
        // What was typed may hold secrets: it is known as long as this daemon lives.
        running.course.context = context;
        self.board.courses.insert(id.clone(), running);
        if status == CourseStatus::Running {
            self.happens(&id, Happening::GoOn)?;
        }
        let row = self.tx.workflow_run(&id)?;
        let status = row.map_or(CourseStatus::Running, |row| row.head.status);
        Ok(Ok(BegunRun { run: id, status, is_new: true }))
    }

    fn switched_off(&self, name: &str) -> Result<Option<Refused>, DbError> {
        let off = self.tx.workflow_override(name)?.filter(|row| !row.enabled);
        Ok(off.map(|row| {
            let message = format!("{name} was switched off by {}", row.by);
            let refused = Refused::new(RefusedKind::NotAllowed, message);
            refused.hint(format!("heeler workflow enable {name}"))
        }))
    }

    fn has_room_for_workflow(&self) -> bool {
        let most = self.board.setup.workflow_settings().max_concurrent;
        let running = self.board.courses.values();
        let running = running.filter(|it| it.course.status == CourseStatus::Running).count();
        most.is_none_or(|most| running < most.get() as usize)
    }

    fn cancel_workflow(
        &mut self,
        id: &WorkflowRunId,
        now: bool,
        by: &str,
    ) -> Result<Outcome, DbError> {
        let Some(row) = self.tx.workflow_run(id)? else { return Ok(Err(no_run(id))) };
        let is_ending = now && self.parts_of(id).next().is_some();
        match self.board.courses.contains_key(id) {
            true => {
                tracing::info!(run = %id, by, "a workflow is cancelled");
                self.happens(id, Happening::Cancel { by: by.to_owned(), now })?;
            }
            // Its jobs were to end gracefully, and take their time.
            false if row.head.status == CourseStatus::Cancelled && is_ending => {
                self.stop_parts(id, now)?;
            }
            false => {
                let message = format!("{id} has ended already: {}", row.head.status);
                return Ok(Err(Refused::new(RefusedKind::Busy, message)));
            }
        }
        Ok(Ok(Some(Answer::WorkflowRun {
            run: id.clone(),
            status: CourseStatus::Cancelled,
            is_new: false,
        })))
    }

    fn retry_workflow(
        &mut self,
        id: &WorkflowRunId,
        from: Option<&str>,
        by: &str,
    ) -> Result<Outcome, DbError> {
        let Some(mut row) = self.tx.workflow_run(id)? else { return Ok(Err(no_run(id))) };
        let busy = |message: String| Ok(Err(Refused::new(RefusedKind::Busy, message)));
        if !row.head.status.is_final() {
            return busy(format!("{id} has not ended: {}", row.head.status));
        }
        if row.head.status == CourseStatus::Succeeded && from.is_none() {
            let refused = Refused::new(RefusedKind::Busy, format!("{id} has succeeded"));
            return Ok(Err(refused.hint(format!("heeler workflow retry {id} --from PHASE"))));
        }
        let workflow = match self.board.setup.definition_of(self.tx, &row)? {
            Ok(workflow) => workflow,
            Err(refused) => return Ok(Err(refused)),
        };
        let place = match from {
            None => None,
            Some(name) => match workflow.place_of(name) {
                Some(place) => Some(place),
                None => {
                    let names: Vec<&str> =
                        workflow.phases.iter().map(|phase| phase.name.as_str()).collect();
                    let message = format!("{} has no phase `{name}`", workflow.name);
                    let refused = Refused::new(RefusedKind::NotFound, message);
                    return Ok(Err(refused.hint(format!("it has {}", names.join(", ")))));
                }
            },
        };
        let active = self.tx.active_workflow_run(&row.head.workflow, &row.head.trigger_id)?;
        if let Some(active) = active {
            return busy(format!("{active} is at the same ({}) now", row.head.trigger_id));
        }
        if let Some(refused) = self.switched_off(&row.head.workflow)? {
            return Ok(Err(refused));
        }
        row.head.finished_at = None;
        row.head.status = CourseStatus::Running;
        let running = Running::restore(self.tx, row, workflow)?;
        if running.course.is_at_work() {
            return busy(format!("jobs of {id} are still ending; try again in a moment"));
        }
        let text = from.map_or_else(String::new, |from| format!(", from `{from}`"));
        let text = format!("tried again by {by}{text}");
        self.tx.add_workflow_event(id, "retried", from, &text, self.now)?;
        // It waits for its turn as any other run does.
        let queued = !self.has_room_for_workflow();
        self.board.courses.insert(id.clone(), running);
        self.happens(id, Happening::Retry { from: place, queued })?;
        let row = self.tx.workflow_run(id)?;
        let status = row.map_or(CourseStatus::Running, |row| row.head.status);
        Ok(Ok(Some(Answer::WorkflowRun { run: id.clone(), status, is_new: false })))
    }

    fn switch_workflow(&mut self, name: &str, enabled: bool, by: &str) -> Result<Outcome, DbError> {
        let setup = Arc::clone(&self.board.setup);
        // One with faults too: whoever corrects it may not want it to start at once.
        let faulty = setup.loaded.faulty_workflow(name).and_then(|faulty| faulty.name.clone());
        let name = match (setup.workflow(name), faulty) {
            (Ok(loaded), _) => loaded.workflow.name.to_string(),
            (Err(_), Some(name)) => name,
            (Err(refused), None) => return Ok(Err(refused)),
        };
        let row = WorkflowOverride { name: name.clone(), enabled, at: self.now, by: by.to_owned() };
        self.tx.put_workflow_override(&row)?;
        let how = if enabled { "on" } else { "off: runs of it that go on end as they would" };
        let message = format!("{name} is switched {how}");
        tracing::info!(workflow = name, by, message, "changed");
        Ok(Ok(Some(Answer::Done { message })))
    }

    /// Ends runs that cannot go on: what they go by cannot be read, or names what is gone.
    pub(super) fn give_up_workflows(&mut self) -> Result<(), DbError> {
        let setup = Arc::clone(&self.board.setup);
        for row in self.tx.active_workflow_runs()? {
            if self.board.courses.contains_key(&row.head.id) {
                continue;
            }
            let why = match setup.definition_of(self.tx, &row)? {
                Ok(workflow) => {
                    let id = row.head.id.clone();
                    let running = Running::restore(self.tx, row, workflow)?;
                    self.board.courses.insert(id, running);
                    continue;
                }
                Err(refused) => refused.message,
            };
            self.end_workflow(row, &why)?;
        }
        Ok(())
    }

    /// Ends a run whose next step is refused.
    pub(crate) fn give_up_workflow(
        &mut self,
        id: &WorkflowRunId,
        why: &str,
    ) -> Result<(), DbError> {
        self.board.courses.remove(id);
        match self.tx.workflow_run(id)? {
            Some(row) => self.end_workflow(row, why),
            None => Ok(()),
        }
    }

    fn end_workflow(&mut self, mut row: WorkflowRunRow, why: &str) -> Result<(), DbError> {
        let id = row.head.id.clone();
        tracing::error!(run = %id, why, "a workflow cannot go on");
        self.tx.add_workflow_event(&id, "ended", None, &format!("failed: {why}"), self.now)?;
        row.head.status = CourseStatus::Failed;
        row.head.finished_at = Some(self.now);
        row.head.error = Some(why.to_owned());
        self.tx.update_workflow_run(&row)?;
        self.stop_parts(&id, false)
    }

    /// Begins runs that waited for room.
    pub(crate) fn admit_workflows(&mut self) -> Result<(), DbError> {
        if self.board.is_held || self.is_stopping {
            return Ok(());
        }
        while self.has_room_for_workflow() {
            let waiting = self.board.courses.iter();
            let waiting = waiting.filter(|(_, it)| it.course.status == CourseStatus::Queued);
            let first = waiting.min_by_key(|(id, it)| (it.row.head.started_at, (*id).clone()));
            let Some(id) = first.map(|(id, _)| id.clone()) else { break };
            if let Some(running) = self.board.courses.get_mut(&id) {
                running.course.status = CourseStatus::Running;
            }
            self.happens(&id, Happening::GoOn)?;
        }
        Ok(())
    }

    /// Takes note of a job that is over and was a part of a run.
    pub(super) fn part_over(
        &mut self,
        job: &Job,
        class: Option<ErrorClass>,
    ) -> Result<(), DbError> {
        let (Some(run), Some(phase), Some(part), Some(seq)) =
            (&job.workflow_run_id, &job.phase, job.part, job.seq)
        else {
            return Ok(());
        };
        let Ok(id) = run.parse::<WorkflowRunId>() else { return Ok(()) };
        let Some(running) = self.board.courses.get(&id) else { return self.note_unjudged(job) };
        let Some(place) = running.course.workflow.place_of(phase) else { return Ok(()) };
        let how = How::of_job(job.head.status, job.head.exit_reason, job.interrupted);
        let Some(how) = how else { return Ok(()) };
        // A command said no; that is no error of a check.
        let said_no = matches!(part, Part::Check(_)) && class == Some(ErrorClass::AgentFailed);
        let ended = Ended {
            phase: place,
            part,
            seq,
            job: job.head.id.clone(),
            how,
            output: job.output_text.clone(),
            error: job.error.clone().filter(|_| !said_no),
            micros: self.tx.spent_by_job(&job.head.id)?,
            is_stopped: self.is_stopping && job.head.status == JobStatus::Cancelled,
        };
        self.happens(&id, Happening::Ended(ended))
    }

    /// Notes that a part ended well after its run was over: nobody has looked at what it said.
    fn note_unjudged(&mut self, job: &Job) -> Result<(), DbError> {
        if job.head.status != JobStatus::Completed || job.decision.is_some() {
            return Ok(());
        }
        let Some(mut job) = self.tx.job(&job.head.id)? else { return Ok(()) };
        job.decision = Some(Decision::Unjudged);
        self.tx.update_job(&job).map(|_| ())
    }

    /// Takes note of the answer to a gate, which is on record.
    pub(super) fn gate_answered(
        &mut self,
        approval: &Approval,
        consents: bool,
        text: Option<&str>,
        by: &str,
    ) -> Result<(), DbError> {
        let (Some(phase), Some(part), Some(seq)) = (&approval.phase, approval.part, approval.seq)
        else {
            return Ok(());
        };
        let Ok(id) = approval.workflow_run_id.parse::<WorkflowRunId>() else { return Ok(()) };
        let Some(running) = self.board.courses.get(&id) else { return Ok(()) };
        let Some(place) = running.course.workflow.place_of(phase) else { return Ok(()) };
        let verb = match (consents, approval.kind) {
            (true, ApprovalKind::Reply) => "answered",
            (true, _) => "approved",
            (false, _) => "rejected",
        };
        let told = text.map(|text| format!(": {text}")).unwrap_or_default();
        let whose = GateAnswer::whose(by);
        let said = format!("`{}` {verb}{whose}{told}", approval.gate);
        self.tx.add_workflow_event(&id, verb, Some(phase), &said, self.now)?;
        let answer = GateAnswer {
            consents,
            text: text.map(str::to_owned),
            by: by.to_owned(),
            at: self.now,
            seq,
        };
        self.happens(&id, Happening::Answered { phase: place, part, answer })
    }
}

/// Returns the record of a run that has not begun.
fn new_row(
    id: &WorkflowRunId,
    workflow: &str,
    trigger_id: String,
    trigger: &TriggerType,
    status: CourseStatus,
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

fn no_run(id: &WorkflowRunId) -> Refused {
    let message = format!("there is no workflow run {id}");
    Refused::new(RefusedKind::NotFound, message).hint("heeler workflow runs")
}
