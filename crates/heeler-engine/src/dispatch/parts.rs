//! Parts of workflow runs: every effect of a decision becomes a row, in the transaction that decided.
//!
//! A part that a process does is a job like any other: it waits in the queue, runs, and is settled
//! after a crash. Start at [`Turn::happens`].

use std::sync::Arc;

use heeler_model::session_choice::Wish;
use heeler_model::workflow::{
    Around, Effect, Ended, Entry, GateDefault, GateKind, Happening, How, Piece, PieceWork, Question,
};
use heeler_model::{
    Approval, ApprovalId, ApprovalKind, ApprovalStatus, Job, JobId, PhaseJob, PhaseOrder,
    TriggerType, Wanted, WorkflowRunId,
};
use heeler_store::{DbError, Step};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::board::{Asked, Stage};
use super::turn::{Turn, later};
use crate::workflows::script_command;

impl Turn<'_, '_> {
    /// Decides about something that happens to a run, and puts on record what follows.
    pub(super) fn happens(
        &mut self,
        id: &WorkflowRunId,
        happening: Happening,
    ) -> Result<(), DbError> {
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
                let text = self.clean(&text);
                self.tx.add_workflow_event(id, "message", phase.as_deref(), &text, self.now)
            }
            Effect::Stop { now } => self.stop_parts(id, now),
        }
    }

    /// Returns a text without secrets.
    fn clean(&self, text: &str) -> String {
        self.board.redactor.text(text).into_owned()
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
        not_before: Option<Timestamp>,
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
            (Some(played), PieceWork::Ask { prompt, .. }) => played.job(prompt),
            (Some(played), _) => played.job(String::new()),
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
            is_stopped: false,
        };
        self.happens_next(id, Happening::Ended(ended));
        Ok(())
    }

    /// Puts a part on record that no process does.
    fn note_part(&mut self, id: &WorkflowRunId, entry: &Entry) -> Result<(), DbError> {
        let output = entry.output.as_deref().map(|text| self.clean(text));
        let error = entry.error.as_deref().map(|text| self.clean(text));
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
            output: output.as_deref(),
            error: error.as_deref(),
        };
        self.tx.insert_step(&step, self.now)
    }

    /// Puts on record what was decided about a part that a job did.
    fn close_part(&mut self, entry: &Entry) -> Result<(), DbError> {
        let (Some(job), Some(decision)) = (&entry.job, entry.decision) else { return Ok(()) };
        let Some(mut job) = self.tx.job(job)? else { return Ok(()) };
        job.decision = Some(decision);
        if decision.is_failure() && job.error.is_none() {
            job.error = entry.error.as_deref().map(|text| self.clean(text));
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
        let approval_id = ApprovalId::of_gate(id.as_str(), entry.seq);
        let mut approval =
            Approval::asked(approval_id.clone(), id.as_str(), &question.gate, kind, self.now);
        approval.requested_by = Some(format!("{}:{phase}", workflow.name));
        let text = self.clean(&question.text);
        approval.detail = Some(Json::from(text.as_str()));
        approval.summary = text;
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
    pub(super) fn parts_of(&self, id: &WorkflowRunId) -> impl Iterator<Item = JobId> {
        let is_own =
            move |asked: &&Asked| asked.wanted.phase.as_ref().is_some_and(|it| it.run == *id);
        self.board.asked.values().filter(is_own).map(|asked| asked.row.job.clone())
    }

    /// Ends the jobs of a run that is cancelled, and withdraws its questions.
    pub(super) fn stop_parts(&mut self, id: &WorkflowRunId, now: bool) -> Result<(), DbError> {
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
        let redactor = Arc::clone(&self.board.redactor);
        let Some(running) = self.board.courses.get_mut(id) else { return Ok(()) };
        let (row, course) = (&mut running.row, &running.course);
        let was = row.head.status;
        row.head.status = course.status;
        row.head.current_phase.clone_from(&course.current);
        row.head.restart_count = i64::from(course.restarts);
        row.head.spent = course.spent;
        row.head.error = course.error.as_deref().map(|text| redactor.text(text).into_owned());
        row.head.updated_at = self.now;
        row.seq = course.seq;
        let mut scratch = Json::Object(course.scratch.clone());
        redactor.json(&mut scratch);
        if let Json::Object(scratch) = scratch {
            row.scratch = scratch;
        }
        let is_over = course.status.is_final();
        row.head.finished_at = is_over.then_some(self.now);
        row.version = self.tx.update_workflow_run(row)?;
        if is_over && !was.is_final() {
            // As it is on record, without secrets.
            let error = row.head.error.as_ref().map(|error| format!(": {error}"));
            let text = format!("{}{}", course.status, error.unwrap_or_default());
            tracing::info!(run = %id, workflow = row.head.workflow, text, "a workflow ended");
            self.tx.add_workflow_event(id, "ended", None, &text, self.now)?;
        }
        if is_over {
            self.board.courses.remove(id);
        }
        Ok(())
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
