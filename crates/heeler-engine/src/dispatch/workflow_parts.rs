//! Parts of workflow runs: every decision is recorded in the transaction that made it.
//!
//! A part that needs a process is an ordinary job: it is queued, runs, and is settled after a
//! crash. Start at [`DispatchTransaction::record_workflow_effect`].

use std::sync::Arc;

use heeler_config::RuntimeConfig;
use heeler_config::workflow::{GateDefault, GateKind, Workflow};
use heeler_model::fleet::{
    FleetEvent, NewJob, OpenPart, SubmittedPart, WorkflowEvent, WorkflowRunRecord,
};
use heeler_model::session_choice::SessionChoice;
use heeler_model::workflow::{
    EndedPart, GateQuestion, JournalEntry, PartJobSpec, PartJobWork, PartOutcome, WorkflowEffect,
};
use heeler_model::{
    Approval, ApprovalId, ApprovalKind, ApprovalStatus, Job, JobRequest, PhaseJobKind,
    PhaseJobRequest, TriggerType, WorkflowRunId,
};
use heeler_store::{DatabaseError, InstantPart};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::transaction::{DispatchTransaction, add_duration};
use crate::stored_workflow_run::{PartAgent, script_command};

impl DispatchTransaction<'_, '_> {
    /// Records a decision of a workflow run.
    pub(super) fn record_workflow_effect(
        &mut self,
        id: &WorkflowRunId,
        workflow: &Workflow,
        effect: WorkflowEffect,
    ) -> Result<(), DatabaseError> {
        match effect {
            WorkflowEffect::StartPart { entry, job: piece, after } => {
                // The delay of a retry is stored with the job, so there is no timer to lose in a
                // crash.
                let not_before = (!after.is_zero()).then(|| add_duration(self.now, after));
                self.start_part(id, workflow, &entry, *piece, not_before)
            }
            WorkflowEffect::RecordPart { entry } => self.record_part(id, workflow, &entry),
            WorkflowEffect::ClosePart { entry } => self.record_part_outcome(&entry),
            WorkflowEffect::AskQuestion { entry, question } => {
                self.open_gate(id, workflow, &entry, &question)
            }
            WorkflowEffect::PostReview { entry, findings } => {
                self.begin_review_part(id, workflow, &entry, *findings)
            }
            WorkflowEffect::SendMessage { phase, text } => {
                let phase = phase.and_then(|place| workflow.phases.get(place));
                let phase = phase.map(|phase| phase.name.as_str());
                let text = self.redact_text(&text);
                self.tx.add_workflow_event(id, "message", phase, &text, self.now)?;
                self.post_workflow_message(id, &text)
            }
            // The fleet's state machine turns it into cancellations.
            WorkflowEffect::StopJobs { .. } => Ok(()),
        }
    }

    pub(super) fn redact_text(&self, text: &str) -> String {
        self.state.redactor.redact_text(text).into_owned()
    }

    /// Queues the job of a part.
    fn start_part(
        &mut self,
        id: &WorkflowRunId,
        workflow: &Workflow,
        entry: &JournalEntry,
        piece: PartJobSpec,
        not_before: Option<Timestamp>,
    ) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let Some(stored) = self.state.workflow_records.get(id) else { return Ok(()) };
        let phase = &workflow.phases[entry.phase];
        let trigger = stored.row.head.trigger_type.as_deref().unwrap_or("manual");
        let trigger = TriggerType::from_word(trigger);
        let agent = piece.agent.clone().or_else(|| setup.workflow_agent());
        let (Some(agent), job) = (agent, self.tx.new_job_id(self.now)?) else {
            // The definition was checked when it was loaded, but the config has changed since.
            let why = "no agent is named, and the fleet has several".to_owned();
            return self.record_failed_part(id, workflow, entry, why);
        };
        let config = setup.agent(agent.as_str());
        let is_scripted = config.is_some_and(|it| matches!(it.runtime, RuntimeConfig::Scripted(_)));
        let part_agent = PartAgent { name: agent.as_str(), is_scripted };
        let played = stored.simulate_part(phase, &part_agent, entry, &piece);
        let (prompt, work) = match (played, piece.work) {
            (Some(played), PartJobWork::Ask { prompt, .. }) => played.into_job(prompt),
            (Some(played), _) => played.into_job(String::new()),
            (None, PartJobWork::Ask { prompt, model, effort }) => {
                (prompt, PhaseJobKind::Ask { model, effort })
            }
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
            skills: stored.skill_source(phase.name.as_str(), piece.has_skill_files),
            git_access: workflow.github.access,
            run_clone: workflow.run_clone,
        };
        let wanted = JobRequest {
            prompt: Some(prompt),
            session: SessionChoice::Fresh,
            attended: is_attended(&trigger),
            trigger: trigger.clone(),
            phase: Some(Box::new(order)),
            ..JobRequest::new(agent)
        };
        let Ok(agent) = setup.agent_for(&wanted) else {
            let why = format!("there is no agent {} any more", wanted.agent);
            return self.record_failed_part(id, workflow, entry, why);
        };
        // The job runs with the original; only its record is redacted.
        let redacted = setup.redact_for_agent(&agent, &wanted);
        let mut row = Job::new_pending(job.clone(), agent.name.as_str(), trigger, self.now);
        row.skill = format!("{}:{}", workflow.name, entry.part.label(&phase.name));
        row.trigger_id = stored.row.head.trigger_id.clone();
        row.workflow_run_id = Some(id.to_string());
        row.phase = Some(phase.name.to_string());
        row.part = Some(entry.part);
        row.seq = Some(entry.seq);
        row.prompt = redacted.prompt.clone().filter(|prompt| !prompt.is_empty());
        self.tx.insert_job(&row)?;
        let request_json = serde_json::to_string(&redacted).expect("a request is JSON");
        let part = SubmittedPart {
            job,
            part: OpenPart::new(entry.phase, entry.part, entry.seq),
            new: NewJob { request: wanted, request_json },
            not_before,
        };
        let event = WorkflowEvent::PartSubmitted(Box::new(part));
        let step = self.state.fleet.step(FleetEvent::Workflow { run: id, event }, self.now);
        // `write_step` would apply the pending events in the middle of the current step.
        step.changes.into_iter().try_for_each(|change| self.write_change(change))
    }

    /// Records that a part's job could not be created. The part counts as failed.
    fn record_failed_part(
        &mut self,
        id: &WorkflowRunId,
        workflow: &Workflow,
        entry: &JournalEntry,
        why: String,
    ) -> Result<(), DatabaseError> {
        let failed = JournalEntry {
            outcome: Some(PartOutcome::Failed),
            error: Some(why.clone()),
            ..entry.clone()
        };
        self.record_part(id, workflow, &failed)?;
        let ended = EndedPart {
            phase: entry.phase,
            part: entry.part,
            seq: entry.seq,
            // No job exists, but the field is not optional.
            job: "none".parse().expect("it is a plain word"),
            outcome: PartOutcome::Failed,
            output: None,
            error: Some(why),
            micros: 0,
            is_stopped: false,
        };
        // The current step is not complete, so the failure is applied after it.
        self.pending_events.push((id.clone(), WorkflowEvent::JoblessPartEnded(ended)));
        Ok(())
    }

    /// Records a part that needs no process.
    fn record_part(
        &mut self,
        id: &WorkflowRunId,
        workflow: &Workflow,
        entry: &JournalEntry,
    ) -> Result<(), DatabaseError> {
        let output = entry.output.as_deref().map(|text| self.redact_text(text));
        let error = entry.error.as_deref().map(|text| self.redact_text(text));
        let Some(stored) = self.state.workflow_records.get(id) else { return Ok(()) };
        let phase = &workflow.phases[entry.phase].name;
        let step = InstantPart {
            run: id,
            skill: format!("{}:{}", workflow.name, entry.part.label(phase)),
            trigger_type: stored.row.head.trigger_type.as_deref().unwrap_or("manual"),
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
        // The job row is the journal entry, so the decision is stored there.
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
        workflow: &Workflow,
        entry: &JournalEntry,
        question: &GateQuestion,
    ) -> Result<(), DatabaseError> {
        let Some(stored) = self.state.workflow_records.get(id) else { return Ok(()) };
        let phase = &workflow.phases[entry.phase];
        let played = stored.simulate_answer(phase, entry, self.now);
        let phase = &phase.name;
        let kind = match question.kind {
            GateKind::Approve => ApprovalKind::Approve,
            GateKind::Reply => ApprovalKind::Reply,
        };
        // The id follows from the run and the number of the part, so a repetition cannot ask twice.
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
        // A simulated run has its answer ready, so nobody is asked.
        let Some(answer) = played else {
            self.notify_question(None, &approval)?;
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
        let event = WorkflowEvent::GateAnswered { phase, part, answer };
        self.pending_events.push((id.clone(), event));
        Ok(())
    }

    /// Withdraws the questions of a workflow run that has ended.
    pub(super) fn withdraw_questions(
        &mut self,
        id: &WorkflowRunId,
        by: &str,
    ) -> Result<(), DatabaseError> {
        for approval in self.tx.pending_approvals_of(id.as_str())? {
            // Questions of agents are closed with their runs; only gates are withdrawn here.
            if approval.seq.is_some() {
                let withdrawn = ApprovalStatus::Withdrawn;
                self.tx.answer_approval(&approval.id, withdrawn, None, by, self.now)?;
            }
        }
        self.state.gate_expires_at = self.tx.next_gate_expiry()?;
        self.withdraw_reviews(id)
    }

    /// Stores the progress of a workflow run.
    pub(super) fn record_workflow_progress(
        &mut self,
        id: &WorkflowRunId,
        record: WorkflowRunRecord,
    ) -> Result<(), DatabaseError> {
        let redactor = Arc::clone(&self.state.redactor);
        let Some(stored) = self.state.workflow_records.get_mut(id) else { return Ok(()) };
        let row = &mut stored.row;
        let status = record.status;
        row.head.status = status;
        row.head.current_phase = record.current_phase;
        row.head.restart_count = i64::from(record.restarts);
        row.head.spent = record.spent_micros;
        row.head.error =
            record.error.as_deref().map(|text| redactor.redact_text(text).into_owned());
        row.head.updated_at = self.now;
        row.seq = record.seq;
        let mut scratch = Json::Object(record.scratch);
        // A phase's output may repeat a secret of its inputs.
        redactor.redact_json(&mut scratch);
        if let Json::Object(scratch) = scratch {
            row.scratch = scratch;
        }
        row.head.finished_at = status.is_final().then_some(self.now);
        row.version = self.tx.update_workflow_run(row)?;
        if record.has_ended {
            // The redacted text.
            let error = row.head.error.as_ref().map(|error| format!(": {error}"));
            let text = format!("{status}{}", error.unwrap_or_default());
            tracing::info!(run = %id, workflow = row.head.workflow, text, "a workflow ended");
            self.tx.add_workflow_event(id, "ended", None, &text, self.now)?;
        }
        // Before the record is removed, which names the issue.
        self.update_checklist(id)?;
        if status.is_final() {
            self.state.workflow_records.remove(id);
        }
        Ok(())
    }
}

/// Returns true if the trigger implies a person who can answer questions.
fn is_attended(trigger: &TriggerType) -> bool {
    matches!(
        trigger,
        TriggerType::Manual
            | TriggerType::Api
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
