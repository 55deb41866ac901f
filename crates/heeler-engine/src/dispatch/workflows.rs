//! Runs of workflows: what happens to one is decided by its course, and every effect of that becomes a
//! row in the same transaction.
//!
//! A part that a process does is a job like any other: it waits in the queue, runs, and is settled
//! after a crash. Start at [`Turn::workflow_order`] and [`Turn::happens`].

use std::sync::Arc;

use heeler_model::run::ErrorClass;
use heeler_model::session_choice::Wish;
use heeler_model::workflow::{
    Answer as GateAnswer, Around, CourseStatus, Effect, Ended, Entry, GateDefault, GateKind,
    Happening, How, Part, Piece, PieceWork, Question, freeze,
};
use heeler_model::{
    Approval, ApprovalKind, ApprovalStatus, ExitReason, Job, JobId, JobStatus, PhaseJob,
    PhaseOrder, TriggerType, Wanted, WorkflowRunId,
};
use heeler_store::{DbError, Step, WorkflowOverride, WorkflowRunHead, WorkflowRunRow};
use serde_json::{Map, Value as Json};

use super::board::{Asked, Stage};
use super::turn::{Outcome, Turn, later};
use crate::command::{Answer, Refused, RefusedKind};
use crate::workflows::{BegunRun, Running, WorkflowOrder, WorkflowWanted, script_command};

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
        if let Some(row) = self.tx.workflow_override(name)?.filter(|row| !row.enabled) {
            let message = format!("{name} was switched off by {}", row.by);
            let refused = Refused::new(RefusedKind::NotAllowed, message);
            return Ok(Err(refused.hint(format!("heeler workflow enable {name}"))));
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
        let row = WorkflowRunRow {
            head: WorkflowRunHead {
                id: id.clone(),
                workflow: name.to_owned(),
                trigger_id: trigger_id.unwrap_or_else(|| id.to_string()),
                trigger_type: Some(trigger.as_str().to_owned()),
                current_phase: String::new(),
                status,
                restart_count: 0,
                started_at: self.now,
                updated_at: self.now,
                finished_at: None,
                spent: 0,
                origin: None,
                error: None,
            },
            version: 1,
            seq: 0,
            definition: Some(hash),
            mode: mode.as_text(),
            triggered_by: Some(by.to_owned()),
            context: Json::Object(inputs),
            scratch: Map::new(),
        };
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
        let running = Running::begin(self.tx, row, Arc::new(loaded.workflow.clone()))?;
        self.board.courses.insert(id.clone(), running);
        if status == CourseStatus::Running {
            self.happens(&id, Happening::GoOn)?;
        }
        let row = self.tx.workflow_run(&id)?;
        let status = row.map_or(CourseStatus::Running, |row| row.head.status);
        Ok(Ok(BegunRun { run: id, status, is_new: true }))
    }

    fn has_room_for_workflow(&self) -> bool {
        let most = self.board.setup.workflow_settings().max_concurrent;
        let running = self.board.courses.values();
        let running = running.filter(|it| it.course.status != CourseStatus::Queued).count();
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
        row.head.finished_at = None;
        let running = Running::restore(self.tx, row, workflow)?;
        if running.course.is_at_work() {
            return busy(format!("jobs of {id} are still ending; try again in a moment"));
        }
        let text = from.map_or_else(String::new, |from| format!(", from `{from}`"));
        let text = format!("tried again by {by}{text}");
        self.tx.add_workflow_event(id, "retried", from, &text, self.now)?;
        self.board.courses.insert(id.clone(), running);
        self.happens(id, Happening::Retry { from: place })?;
        let row = self.tx.workflow_run(id)?;
        let status = row.map_or(CourseStatus::Running, |row| row.head.status);
        Ok(Ok(Some(Answer::WorkflowRun { run: id.clone(), status, is_new: false })))
    }

    fn switch_workflow(&mut self, name: &str, enabled: bool, by: &str) -> Result<Outcome, DbError> {
        let setup = Arc::clone(&self.board.setup);
        let name = match setup.workflow(name) {
            Ok(loaded) => loaded.workflow.name.to_string(),
            Err(refused) => return Ok(Err(refused)),
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
        for mut row in self.tx.active_workflow_runs()? {
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
            let id = row.head.id.clone();
            tracing::error!(run = %id, why, "a workflow cannot go on");
            self.tx.add_workflow_event(&id, "ended", None, &format!("failed: {why}"), self.now)?;
            row.head.status = CourseStatus::Failed;
            row.head.finished_at = Some(self.now);
            row.head.error = Some(why);
            self.tx.update_workflow_run(&row)?;
            self.stop_parts(&id, false)?;
        }
        Ok(())
    }

    /// Begins what earlier steps left, and runs that waited for room.
    pub(crate) fn go_on_with_workflows(&mut self) -> Result<(), DbError> {
        let more = self.board.courses.iter().filter(|(_, it)| it.has_more);
        let more: Vec<WorkflowRunId> = more.map(|(id, _)| id.clone()).collect();
        for id in more {
            self.happens(&id, Happening::GoOn)?;
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
        // A run that was cancelled knows all that it needs from the record.
        let Some(running) = self.board.courses.get(&id) else { return Ok(()) };
        let Some(place) = running.course.workflow.place_of(phase) else { return Ok(()) };
        // A command said no; that is no error of a check.
        let said_no = matches!(part, Part::Check(_)) && class == Some(ErrorClass::AgentFailed);
        let ended = Ended {
            phase: place,
            part,
            seq,
            job: job.head.id.clone(),
            how: how_of(job),
            output: job.output_text.clone(),
            error: job.error.clone().filter(|_| !said_no),
            micros: self.tx.spent_by_job(&job.head.id)?,
        };
        self.happens(&id, Happening::Ended(ended))
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
        let said = format!("`{}` {verb} by {by}{told}", approval.gate);
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

    /// Decides about something that happens to a run, and puts on record what follows.
    fn happens(&mut self, id: &WorkflowRunId, happening: Happening) -> Result<(), DbError> {
        let mut next = Some(happening);
        while let Some(happening) = next.take() {
            let setup = Arc::clone(&self.board.setup);
            let Some(running) = self.board.courses.get_mut(id) else { return Ok(()) };
            let settings = setup.workflow_settings();
            let is_off = |gate: &str| settings.gates.get(gate) == Some(&false);
            let around = Around { run: id.as_str(), is_off: &is_off };
            let step = running.course.step(happening, &around);
            running.has_more = step.has_more;
            for effect in step.effects {
                self.take_effect(id, effect)?;
            }
            self.save_course(id)?;
            next = self.board.courses.get_mut(id).and_then(|running| running.next.pop());
        }
        Ok(())
    }

    /// Puts an effect on record.
    fn take_effect(&mut self, id: &WorkflowRunId, effect: Effect) -> Result<(), DbError> {
        match effect {
            Effect::Start { entry, piece, after } => {
                let not_before = (!after.is_zero()).then(|| later(self.now, after));
                self.start_part(id, &entry, *piece, not_before)
            }
            Effect::Note { entry } => self.note_part(id, &entry),
            Effect::Close { entry } => self.close_part(&entry),
            Effect::Ask { entry, question } => self.ask_gate(id, &entry, &question),
            Effect::Say { phase, text } => {
                let phase = phase.and_then(|place| self.phase_name(id, place));
                self.tx.add_workflow_event(id, "message", phase.as_deref(), &text, self.now)
            }
            Effect::Stop { now } => self.stop_parts(id, now),
        }
    }

    /// Lets something happen to a run after what happens now.
    fn happens_next(&mut self, id: &WorkflowRunId, happening: Happening) {
        if let Some(running) = self.board.courses.get_mut(id) {
            running.next.push(happening);
        }
    }

    fn phase_name(&self, id: &WorkflowRunId, place: usize) -> Option<String> {
        let running = self.board.courses.get(id)?;
        running.course.workflow.phases.get(place).map(|phase| phase.name.to_string())
    }

    /// Lets a job wait for its turn that does a part.
    fn start_part(
        &mut self,
        id: &WorkflowRunId,
        entry: &Entry,
        piece: Piece,
        not_before: Option<jiff::Timestamp>,
    ) -> Result<(), DbError> {
        let setup = Arc::clone(&self.board.setup);
        let Some(running) = self.board.courses.get(id) else { return Ok(()) };
        let workflow = Arc::clone(&running.course.workflow);
        let phase = &workflow.phases[entry.phase];
        let trigger = running.row.head.trigger_type.as_deref().unwrap_or("manual");
        let trigger = TriggerType::from_word(trigger);
        let agent = piece.agent.clone().or_else(|| setup.workflow_agent());
        let (Some(agent), job) = (agent, self.tx.new_job_id(self.now)?) else {
            // The definition was checked when it was read; the config has changed since.
            let why = "no agent is named, and the fleet has several".to_owned();
            return self.part_impossible(id, entry, why);
        };
        let played = running.play(&setup, agent.as_str(), entry, &piece);
        let attended = is_attended(&trigger);
        let (prompt, work) = match (played, piece.work) {
            (Some(text), PieceWork::Ask { prompt, .. }) => (prompt, PhaseJob::Play { text }),
            (Some(text), _) => (String::new(), PhaseJob::Play { text }),
            (None, PieceWork::Ask { prompt, model }) => (prompt, PhaseJob::Ask { model }),
            (None, PieceWork::Bash { command, env }) => {
                (String::new(), PhaseJob::Command { command, env })
            }
            (None, PieceWork::Script { source, language, env }) => {
                (source, PhaseJob::Command { command: script_command(language), env })
            }
        };
        let order = PhaseOrder {
            run: id.clone(),
            work,
            timeout_ms: piece.timeout.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            folder: piece.folder,
            micros_left: piece.micros_left,
        };
        let wanted = Wanted {
            prompt: Some(prompt),
            session: Wish::Fresh,
            trigger: trigger.clone(),
            attended,
            phase: Some(Box::new(order)),
            ..Wanted::of(agent)
        };
        let Ok(agent) = setup.agent_for(&wanted) else {
            let why = format!("there is no agent {} any more", wanted.agent);
            return self.part_impossible(id, entry, why);
        };
        let redacted = setup.redacted(&agent, &wanted);
        let mut row = Job::asked(job.clone(), agent.name.as_str(), trigger, self.now);
        row.skill = format!("{}:{}", workflow.name, entry.part.label(&phase.name));
        row.trigger_id = running.row.head.trigger_id.clone();
        row.workflow_run_id = Some(id.to_string());
        row.phase = Some(phase.name.to_string());
        row.part = Some(entry.part);
        row.seq = Some(entry.seq);
        row.prompt = redacted.prompt.clone().filter(|prompt| !prompt.is_empty());
        self.tx.insert_job(&row)?;
        let queued = self.row(&job, &agent, &wanted, &redacted, "", not_before);
        self.tx.enqueue(&queued)?;
        self.board.ask(Asked { row: queued, wanted, stage: Stage::Waiting });
        Ok(())
    }

    /// Puts on record that a part could not even be asked for; it counts as failed.
    fn part_impossible(
        &mut self,
        id: &WorkflowRunId,
        entry: &Entry,
        why: String,
    ) -> Result<(), DbError> {
        let failed = Entry { how: Some(How::Failed), error: Some(why.clone()), ..entry.clone() };
        self.note_part(id, &failed)?;
        let ended = Ended {
            phase: entry.phase,
            part: entry.part,
            seq: entry.seq,
            job: "none".parse().expect("it is a plain word"),
            how: How::Failed,
            output: None,
            error: Some(why),
            micros: 0,
        };
        self.happens_next(id, Happening::Ended(ended));
        Ok(())
    }

    /// Puts a part on record that no process does.
    fn note_part(&mut self, id: &WorkflowRunId, entry: &Entry) -> Result<(), DbError> {
        let Some(running) = self.board.courses.get(id) else { return Ok(()) };
        let workflow = &running.course.workflow;
        let phase = &workflow.phases[entry.phase].name;
        let step = Step {
            run: id,
            skill: format!("{}:{}", workflow.name, entry.part.label(phase)),
            trigger_type: running.row.head.trigger_type.as_deref().unwrap_or("manual"),
            phase: phase.as_str(),
            part: entry.part,
            seq: entry.seq,
            how: entry.how.unwrap_or(How::Succeeded),
            decision: entry.decision,
            output: entry.output.as_deref(),
            error: entry.error.as_deref(),
        };
        self.tx.insert_step(&step, self.now)
    }

    /// Puts on record what was decided about a part that a job did.
    fn close_part(&mut self, entry: &Entry) -> Result<(), DbError> {
        let (Some(job), Some(decision)) = (&entry.job, entry.decision) else { return Ok(()) };
        let Some(mut job) = self.tx.job(job)? else { return Ok(()) };
        job.decision = Some(decision);
        if decision.is_failure() && job.error.is_none() {
            job.error.clone_from(&entry.error);
        }
        self.tx.update_job(&job).map(|_| ())
    }

    fn ask_gate(
        &mut self,
        id: &WorkflowRunId,
        entry: &Entry,
        question: &Question,
    ) -> Result<(), DbError> {
        let Some(running) = self.board.courses.get(id) else { return Ok(()) };
        let workflow = Arc::clone(&running.course.workflow);
        let phase = &workflow.phases[entry.phase].name;
        let played = running.play_answer(entry, self.now);
        let kind = match question.kind {
            GateKind::Approve => ApprovalKind::Approve,
            GateKind::Reply => ApprovalKind::Reply,
        };
        let approval_id = self.tx.new_approval_id()?;
        let mut approval =
            Approval::asked(approval_id.clone(), id.as_str(), &question.gate, kind, self.now);
        approval.requested_by = Some(format!("{}:{phase}", workflow.name));
        approval.summary = question.text.clone();
        approval.detail = Some(Json::from(question.text.as_str()));
        approval.artifact = question.artifact.clone();
        approval.phase = Some(phase.to_string());
        approval.part = Some(entry.part);
        approval.seq = Some(entry.seq);
        if let Some((wait, default)) = &question.timeout {
            approval.expires_at = Some(later(self.now, *wait));
            approval.default_answer = Some(default_word(default));
        }
        self.tx.insert_approval(&approval)?;
        self.board.gate_expires_at = self.tx.next_gate_expiry()?;
        let Some(answer) = played else {
            let text = format!("`{}` asks ({approval_id})", question.gate);
            return self.tx.add_workflow_event(id, "asked", Some(phase.as_str()), &text, self.now);
        };
        let status = match answer.consents {
            true => ApprovalStatus::Approved,
            false => ApprovalStatus::Rejected,
        };
        let text = answer.text.as_deref();
        self.tx.answer_approval(&approval_id, status, text, &answer.by, self.now)?;
        let (phase, part) = (entry.phase, entry.part);
        self.happens_next(id, Happening::Answered { phase, part, answer });
        Ok(())
    }

    /// Returns the jobs of a run that are not over.
    fn parts_of(&self, id: &WorkflowRunId) -> impl Iterator<Item = JobId> {
        let is_own =
            move |asked: &&Asked| asked.wanted.phase.as_ref().is_some_and(|it| it.run == *id);
        self.board.asked.values().filter(is_own).map(|asked| asked.row.job.clone())
    }

    /// Ends the jobs of a run that is cancelled, and withdraws its questions.
    fn stop_parts(&mut self, id: &WorkflowRunId, now: bool) -> Result<(), DbError> {
        let jobs: Vec<JobId> = self.parts_of(id).collect();
        let by = format!("the end of {id}");
        for job in jobs {
            if let Err(refused) = self.cancel(&job, now, &by)? {
                tracing::warn!(%job, why = refused.message, "a job of a workflow does not end");
            }
        }
        for approval in self.tx.pending_approvals_of(id.as_str())? {
            if approval.seq.is_some() {
                let withdrawn = ApprovalStatus::Withdrawn;
                self.tx.answer_approval(&approval.id, withdrawn, None, &by, self.now)?;
            }
        }
        self.board.gate_expires_at = self.tx.next_gate_expiry()?;
        Ok(())
    }

    /// Puts on record where a run is. One that has ended is forgotten here.
    fn save_course(&mut self, id: &WorkflowRunId) -> Result<(), DbError> {
        let Some(running) = self.board.courses.get_mut(id) else { return Ok(()) };
        let (row, course) = (&mut running.row, &running.course);
        let was = row.head.status;
        row.head.status = course.status;
        row.head.current_phase.clone_from(&course.current);
        row.head.restart_count = i64::from(course.restarts);
        row.head.spent = course.spent;
        row.head.error.clone_from(&course.error);
        row.head.updated_at = self.now;
        row.seq = course.seq;
        row.scratch.clone_from(&course.scratch);
        let is_over = course.status.is_final();
        row.head.finished_at = is_over.then_some(self.now);
        row.version = self.tx.update_workflow_run(row)?;
        if is_over && !was.is_final() {
            let (status, error) = (course.status, course.error.clone());
            let text = error.map(|error| format!(": {error}")).unwrap_or_default();
            let text = format!("{status}{text}");
            tracing::info!(run = %id, workflow = row.head.workflow, text, "a workflow ended");
            self.tx.add_workflow_event(id, "ended", None, &text, self.now)?;
        }
        if is_over {
            self.board.courses.remove(id);
        }
        Ok(())
    }
}

/// Says how a part ended, by its job.
fn how_of(job: &Job) -> How {
    match (job.head.status, job.head.exit_reason) {
        (JobStatus::Cancelled, _) => How::Cancelled,
        (JobStatus::Failed, _) if job.interrupted => How::Interrupted,
        (_, Some(ExitReason::MaxTurns)) => How::Soft,
        (JobStatus::Completed, _) => How::Succeeded,
        _ => How::Failed,
    }
}

/// Says whether somebody is there who can answer what agents ask.
fn is_attended(trigger: &TriggerType) -> bool {
    matches!(
        trigger,
        TriggerType::Manual
            | TriggerType::Web
            | TriggerType::Chat
            | TriggerType::Slack
            | TriggerType::Discord
    )
}

/// Returns what is an answer when nobody gives one, as it is written down.
fn default_word(default: &GateDefault) -> String {
    match default {
        GateDefault::Approve => "approve".to_owned(),
        GateDefault::Reject => "reject".to_owned(),
        GateDefault::Reply(text) => format!("reply:{text}"),
    }
}

fn no_run(id: &WorkflowRunId) -> Refused {
    let message = format!("there is no workflow run {id}");
    Refused::new(RefusedKind::NotFound, message).hint("heeler workflow runs")
}
