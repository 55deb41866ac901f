//! Parts of workflow runs: every workflow effect is recorded in the transaction that decided it.
//!
//! A part that needs a process is an ordinary job: it is queued, runs, and is settled after a
//! crash. Start at [`DispatchTransaction::apply_workflow_event`].

use std::sync::Arc;

use heeler_config::workflow::{GateDefault, GateKind};
use heeler_model::fleet::UnfinishedJob;
use heeler_model::session_choice::SessionChoice;
use heeler_model::workflow::{
    EndedPart, GateQuestion, JournalEntry, PartJobSpec, PartJobWork, PartOutcome, WorkflowEffect,
    WorkflowStepContext, WorkflowStepEvent,
};
use heeler_model::{
    Approval, ApprovalId, ApprovalKind, ApprovalStatus, Job, JobId, JobRequest, PhaseJobKind,
    PhaseJobRequest, TriggerType, WorkflowRunId,
};
use heeler_store::{DatabaseError, InstantPart};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::transaction::{DispatchTransaction, add_duration};
use crate::workflows::script_command;

impl DispatchTransaction<'_, '_> {
    /// Applies an event to a workflow run and records the effects.
    pub(super) fn apply_workflow_event(
        &mut self,
        id: &WorkflowRunId,
        happening: WorkflowStepEvent,
    ) -> Result<(), DatabaseError> {
        let mut next = Some(happening);
        while let Some(happening) = next.take() {
            let setup = Arc::clone(&self.state.setup);
            let Some(running) = self.state.workflow_runs.get_mut(id) else { return Ok(()) };
            let settings = setup.workflow_settings();
            let is_off = |gate: &str| settings.gates.get(gate) == Some(&false);
            let around = WorkflowStepContext { run: id.as_str(), is_gate_disabled: &is_off };
            let step = running.state.step(happening, &around);
            running.has_ready_parts = step.has_more;
            for effect in step.effects {
                self.apply_workflow_effect(id, effect)?;
            }
            self.save_workflow_run(id)?;
            next = self
                .state
                .workflow_runs
                .get_mut(id)
                .and_then(|running| running.pending_events.pop());
        }
        Ok(())
    }

    /// Records an effect.
    fn apply_workflow_effect(
        &mut self,
        id: &WorkflowRunId,
        effect: WorkflowEffect,
    ) -> Result<(), DatabaseError> {
        match effect {
            WorkflowEffect::StartPart { entry, job: piece, after } => {
                let not_before = (!after.is_zero()).then(|| add_duration(self.now, after));
                self.start_part(id, &entry, *piece, not_before)
            }
            WorkflowEffect::RecordPart { entry } => self.record_part(id, &entry),
            WorkflowEffect::ClosePart { entry } => self.record_part_outcome(&entry),
            WorkflowEffect::AskQuestion { entry, question } => {
                self.open_gate(id, &entry, &question)
            }
            WorkflowEffect::SendMessage { phase, text } => {
                let phase = phase.and_then(|place| self.phase_name(id, place));
                let text = self.redact_text(&text);
                self.tx.add_workflow_event(id, "message", phase.as_deref(), &text, self.now)
            }
            WorkflowEffect::StopJobs { now } => self.cancel_parts(id, now),
        }
    }

    fn redact_text(&self, text: &str) -> String {
        self.state.redactor.redact_text(text).into_owned()
    }

    /// Queues an event of a workflow run, to be applied after the current one.
    fn queue_workflow_event(&mut self, id: &WorkflowRunId, happening: WorkflowStepEvent) {
        if let Some(running) = self.state.workflow_runs.get_mut(id) {
            running.pending_events.push(happening);
        }
    }

    fn phase_name(&self, id: &WorkflowRunId, place: usize) -> Option<String> {
        let running = self.state.workflow_runs.get(id)?;
        running.state.workflow.phases.get(place).map(|phase| phase.name.to_string())
    }

    /// Queues the job of a part.
    fn start_part(
        &mut self,
        id: &WorkflowRunId,
        entry: &JournalEntry,
        piece: PartJobSpec,
        not_before: Option<Timestamp>,
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let Some(running) = self.state.workflow_runs.get(id) else { return Ok(()) };
        let workflow = Arc::clone(&running.state.workflow);
        let phase = &workflow.phases[entry.phase];
        let trigger = running.row.head.trigger_type.as_deref().unwrap_or("manual");
        let trigger = TriggerType::from_word(trigger);
        let agent = piece.agent.clone().or_else(|| setup.workflow_agent());
        let (Some(agent), job) = (agent, self.tx.new_job_id(self.now)?) else {
            // The definition was checked when it was loaded, but the config has changed since.
            let why = "no agent is named, and the fleet has several".to_owned();
            return self.record_failed_part(id, entry, why);
        };
        let played = running.simulate_part(&setup, agent.as_str(), entry, &piece);
        let attended = is_attended(&trigger);
        let (prompt, work) = match (played, piece.work) {
            (Some(played), PartJobWork::Ask { prompt, .. }) => played.into_job(prompt),
            (Some(played), _) => played.into_job(String::new()),
            (None, PartJobWork::Ask { prompt, model }) => (prompt, PhaseJobKind::Ask { model }),
            (None, PartJobWork::Bash { command, env }) => {
                (String::new(), PhaseJobKind::Command { command, env })
            }
            (None, PartJobWork::Script { source, language, env }) => {
                (source, PhaseJobKind::Command { command: script_command(language), env })
            }
        };
        let order = PhaseJobRequest {
            run: id.clone(),
            work,
            timeout_ms: piece.timeout.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            folder: piece.folder,
            micros_left: piece.micros_left,
        };
        let wanted = JobRequest {
            prompt: Some(prompt),
            session: SessionChoice::Fresh,
            trigger: trigger.clone(),
            attended,
            phase: Some(Box::new(order)),
            ..JobRequest::new(agent)
        };
        let Ok(agent) = setup.agent_for(&wanted) else {
            let why = format!("there is no agent {} any more", wanted.agent);
            return self.record_failed_part(id, entry, why);
        };
        let redacted = setup.redact_for_agent(&agent, &wanted);
        let mut row = Job::new_pending(job.clone(), agent.name.as_str(), trigger, self.now);
        row.skill = format!("{}:{}", workflow.name, entry.part.label(&phase.name));
        row.trigger_id = running.row.head.trigger_id.clone();
        row.workflow_run_id = Some(id.to_string());
        row.phase = Some(phase.name.to_string());
        row.part = Some(entry.part);
        row.seq = Some(entry.seq);
        row.prompt = redacted.prompt.clone().filter(|prompt| !prompt.is_empty());
        self.tx.insert_job(&row)?;
        self.submit_job(&job, wanted, &redacted, not_before)
    }

    /// Records that a part's job could not be created. The part counts as failed.
    fn record_failed_part(
        &mut self,
        id: &WorkflowRunId,
        entry: &JournalEntry,
        why: String,
    ) -> Result<(), DatabaseError> {
        let failed = JournalEntry {
            outcome: Some(PartOutcome::Failed),
            error: Some(why.clone()),
            ..entry.clone()
        };
        self.record_part(id, &failed)?;
        let ended = EndedPart {
            phase: entry.phase,
            part: entry.part,
            seq: entry.seq,
            job: "none".parse().expect("it is a plain word"),
            outcome: PartOutcome::Failed,
            output: None,
            error: Some(why),
            micros: 0,
            is_stopped: false,
        };
        self.queue_workflow_event(id, WorkflowStepEvent::PartEnded(ended));
        Ok(())
    }

    /// Records a part that needs no process.
    fn record_part(
        &mut self,
        id: &WorkflowRunId,
        entry: &JournalEntry,
    ) -> Result<(), DatabaseError> {
        let output = entry.output.as_deref().map(|text| self.redact_text(text));
        let error = entry.error.as_deref().map(|text| self.redact_text(text));
        let Some(running) = self.state.workflow_runs.get(id) else { return Ok(()) };
        let workflow = &running.state.workflow;
        let phase = &workflow.phases[entry.phase].name;
        let step = InstantPart {
            run: id,
            skill: format!("{}:{}", workflow.name, entry.part.label(phase)),
            trigger_type: running.row.head.trigger_type.as_deref().unwrap_or("manual"),
            phase: phase.as_str(),
            part: entry.part,
            seq: entry.seq,
            outcome: entry.outcome.unwrap_or(PartOutcome::Succeeded),
            decision: entry.decision,
            output: output.as_deref(),
            error: error.as_deref(),
        };
        self.tx.insert_instant_part(&step, self.now)
    }

    /// Records the decision about a part's job.
    fn record_part_outcome(&mut self, entry: &JournalEntry) -> Result<(), DatabaseError> {
        let (Some(job), Some(decision)) = (&entry.job, entry.decision) else { return Ok(()) };
        let Some(mut job) = self.tx.job(job)? else { return Ok(()) };
        job.decision = Some(decision);
        if decision.is_failure() && job.error.is_none() {
            job.error = entry.error.as_deref().map(|text| self.redact_text(text));
        }
        self.tx.update_job(&job).map(|_| ())
    }

    fn open_gate(
        &mut self,
        id: &WorkflowRunId,
        entry: &JournalEntry,
        question: &GateQuestion,
    ) -> Result<(), DatabaseError> {
        let Some(running) = self.state.workflow_runs.get(id) else { return Ok(()) };
        let workflow = Arc::clone(&running.state.workflow);
        let phase = &workflow.phases[entry.phase].name;
        let played = running.simulate_answer(entry, self.now);
        let kind = match question.kind {
            GateKind::Approve => ApprovalKind::Approve,
            GateKind::Reply => ApprovalKind::Reply,
        };
        let approval_id = ApprovalId::for_gate(id.as_str(), entry.seq);
        let mut approval =
            Approval::new_pending(approval_id.clone(), id.as_str(), &question.gate, kind, self.now);
        approval.requested_by = Some(format!("{}:{phase}", workflow.name));
        let text = self.redact_text(&question.text);
        approval.detail = Some(Json::from(text.as_str()));
        approval.summary = text;
        approval.artifact = question.artifact.clone();
        approval.phase = Some(phase.to_string());
        approval.part = Some(entry.part);
        approval.seq = Some(entry.seq);
        if let Some((wait, default)) = &question.timeout {
            approval.expires_at = Some(add_duration(self.now, *wait));
            approval.default_answer = Some(gate_default_text(default));
        }
        self.tx.insert_approval(&approval)?;
        self.state.gate_expires_at = self.tx.next_gate_expiry()?;
        let Some(answer) = played else {
            let text = format!("`{}` waits for an answer ({approval_id})", question.gate);
            return self.tx.add_workflow_event(id, "asked", Some(phase.as_str()), &text, self.now);
        };
        let status = match answer.is_approved {
            true => ApprovalStatus::Approved,
            false => ApprovalStatus::Rejected,
        };
        let text = answer.text.as_deref();
        self.tx.answer_approval(&approval_id, status, text, &answer.by, self.now)?;
        let (phase, part) = (entry.phase, entry.part);
        self.queue_workflow_event(id, WorkflowStepEvent::GateAnswered { phase, part, answer });
        Ok(())
    }

    pub(super) fn unfinished_jobs_of_run(&self, id: &WorkflowRunId) -> impl Iterator<Item = JobId> {
        let is_own = move |asked: &&UnfinishedJob| {
            asked.request.phase.as_ref().is_some_and(|it| it.run == *id)
        };
        self.state.fleet.jobs().filter(is_own).map(|asked| asked.entry.job.clone())
    }

    /// Cancels the jobs of a cancelled workflow run and withdraws its questions.
    pub(super) fn cancel_parts(
        &mut self,
        id: &WorkflowRunId,
        now: bool,
    ) -> Result<(), DatabaseError> {
        let jobs: Vec<JobId> = self.unfinished_jobs_of_run(id).collect();
        let by = format!("the end of {id}");
        for job in jobs {
            if let Err(refused) = self.cancel_job(&job, now, &by)? {
                tracing::warn!(%job, why = refused.message, "a job of a workflow does not end");
            }
        }
        for approval in self.tx.pending_approvals_of(id.as_str())? {
            if approval.seq.is_some() {
                let withdrawn = ApprovalStatus::Withdrawn;
                self.tx.answer_approval(&approval.id, withdrawn, None, &by, self.now)?;
            }
        }
        self.state.gate_expires_at = self.tx.next_gate_expiry()?;
        Ok(())
    }

    /// Stores the progress of a workflow run. A run that has ended is removed from the in-memory
    /// state.
    fn save_workflow_run(&mut self, id: &WorkflowRunId) -> Result<(), DatabaseError> {
        let redactor = Arc::clone(&self.state.redactor);
        let Some(running) = self.state.workflow_runs.get_mut(id) else { return Ok(()) };
        let (row, course) = (&mut running.row, &running.state);
        let was = row.head.status;
        row.head.status = course.status;
        row.head.current_phase.clone_from(&course.current_phase);
        row.head.restart_count = i64::from(course.restarts);
        row.head.spent = course.spent_micros;
        row.head.error =
            course.error.as_deref().map(|text| redactor.redact_text(text).into_owned());
        row.head.updated_at = self.now;
        row.seq = course.seq;
        let mut scratch = Json::Object(course.scratch.clone());
        redactor.redact_json(&mut scratch);
        if let Json::Object(scratch) = scratch {
            row.scratch = scratch;
        }
        let is_over = course.status.is_final();
        row.head.finished_at = is_over.then_some(self.now);
        row.version = self.tx.update_workflow_run(row)?;
        if is_over && !was.is_final() {
            // The redacted text.
            let error = row.head.error.as_ref().map(|error| format!(": {error}"));
            let text = format!("{}{}", course.status, error.unwrap_or_default());
            tracing::info!(run = %id, workflow = row.head.workflow, text, "a workflow ended");
            self.tx.add_workflow_event(id, "ended", None, &text, self.now)?;
        }
        if is_over {
            self.state.workflow_runs.remove(id);
        }
        Ok(())
    }
}

/// Returns true if the trigger implies a person who can answer questions.
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

/// Returns the stored form of a gate's default answer.
fn gate_default_text(default: &GateDefault) -> String {
    match default {
        GateDefault::Approve => "approve".to_owned(),
        GateDefault::Reject => "reject".to_owned(),
        GateDefault::Reply(text) => format!("reply:{text}"),
    }
}
