//! Answers to approvals. An answer is stored before anything acts on it, and the first answer
//! counts.
//!
//! Start at [`DispatchTransaction::answer_question`].

use std::sync::Arc;

use heeler_model::ALLOWED_ALWAYS;
use heeler_model::redact::SecretRedactor;
use heeler_model::workflow::TIMEOUT_ANSWERER;
use heeler_model::{
    APPROVAL_TEXT_BYTES_MAX, Approval, ApprovalAnswer, ApprovalId, ApprovalKind, ApprovalStatus,
    RunId, WorkflowRunId, iso_millis, question,
};
use heeler_store::DatabaseError;
use serde_json::Value as Json;

use super::transaction::DispatchTransaction;
use crate::approvals;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::prepare::environment;
use crate::run_questions::RunQuestionFiles;

/// Maximum number of expired gates that are decided in one turn.
const GATES_PER_TURN: usize = 256;

impl DispatchTransaction<'_, '_> {
    /// Stores the questions of a run, and the outcomes of those that are closed.
    pub(super) fn record_questions(
        &mut self,
        run: RunId,
        asks: &RunQuestionFiles,
    ) -> Result<(), DatabaseError> {
        // The run has ended, and the outcomes of its questions were recorded with its end.
        let Some(job) = self.state.fleet.runs().get(&run).map(|live| live.job.clone()) else {
            return Ok(());
        };
        let Some(job) = self.tx.job(&job)? else { return Ok(()) };
        let key = self.tx.run(run)?.and_then(|run| run.result_key);
        let asks = asks.accept(key.as_ref());
        asks.report_refused(run);
        for ask in &asks.open {
            let approval = approvals::record_question(self.tx, &job, run, ask)?;
            self.post_question(&job, &approval)?;
            self.notify_question(Some(&job), &approval)?;
        }
        for closed in &asks.closed {
            approvals::record_closed_question(self.tx, &job, run, closed, self.now)?;
        }
        Ok(())
    }

    /// Stores an answer. The first answer counts; later ones are refused.
    pub(super) fn answer_question(
        &mut self,
        id: &ApprovalId,
        answer: &ApprovalAnswer,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Some(approval) = self.tx.approval(id)? else {
            return Err(approval_not_found(id).into());
        };
        if let Err(refused) = check_answer(&approval, answer) {
            return Err(refused.into());
        }
        // Only questions of a run have an id of their own; the others are gates.
        if approval.ask_id.is_none() {
            return self.answer_gate(&approval, answer, by);
        }
        let live = approval.run_id.is_some_and(|run| self.state.fleet.runs().contains_key(&run));
        // Nothing could deliver the answer any more.
        if !live {
            let message = format!("the run that asked {id} has ended");
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message).into());
        }
        let redactor = self.redactor_of(&approval);
        let status = match answer.approve {
            true => ApprovalStatus::Approved,
            false => ApprovalStatus::Rejected,
        };
        if let Some(input) = &answer.updated_input {
            let mut detail = approval.detail.clone().unwrap_or(Json::Null);
            let mut input = input.clone();
            // The agent gets the unredacted answer from memory; only the record is redacted.
            redactor.redact_json(&mut input);
            detail["updatedInput"] = input;
            self.tx.set_approval_detail(id, &detail)?;
        }
        if answer.always {
            let mut detail = approval.detail.clone().unwrap_or(Json::Null);
            detail[ALLOWED_ALWAYS] = Json::Bool(true);
            self.tx.set_approval_detail(id, &detail)?;
        }
        let text = answer.text.as_deref().map(|text| redactor.redact_text(text));
        self.tx.answer_approval(id, status, text.as_deref(), by, self.now)?;
        tracing::info!(approval = %id, by, status = %status, "answered");
        let message = match (approval.kind, answer.approve) {
            (ApprovalKind::Question, true) => format!("{id} is answered"),
            (_, true) if answer.always => {
                let rules = approval.offered_rules().join(", ");
                format!("{} is allowed, and always: {rules} ({id})", approval.gate)
            }
            (_, true) => format!("{} is allowed ({id})", approval.gate),
            (_, false) => format!("{} is denied ({id})", approval.gate),
        };
        Ok(Some(CommandReply::Done { message }))
    }

    /// Stores the answer to a gate of a workflow run.
    fn answer_gate(
        &mut self,
        approval: &Approval,
        answer: &ApprovalAnswer,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let given = (answer.approve, answer.text.as_deref());
        if let Some(reply) = self.prepare_imported_gate(approval, given, by)? {
            return Ok(Some(reply));
        }
        let Approval { id, workflow_run_id: run, .. } = approval;
        let run = run.parse::<WorkflowRunId>();
        // The run is looked up before the decision, which may end it.
        let is_awaited = run.is_ok_and(|run| self.state.fleet.workflow_run(&run).is_some());
        let redactor = Arc::clone(&self.state.redactor);
        let text = answer.text.as_deref().map(|text| redactor.redact_text(text).into_owned());
        self.decide_gate(approval, answer.approve, text.as_deref(), by)?;
        let how = match (answer.approve, approval.kind.expects_text()) {
            (true, true) => "is answered",
            (true, false) => "is approved",
            (false, _) => "is rejected",
        };
        let mut message =
            format!("`{}` of {} {how} ({id})", approval.gate, approval.workflow_run_id);
        if !is_awaited {
            message.push_str("; no workflow run waits for it here");
        }
        Ok(Some(CommandReply::Done { message }))
    }

    /// Stores the decision on a gate and continues its workflow run.
    fn decide_gate(
        &mut self,
        approval: &Approval,
        consents: bool,
        text: Option<&str>,
        by: &str,
    ) -> Result<(), DatabaseError> {
        let status = match consents {
            true => ApprovalStatus::Approved,
            false => ApprovalStatus::Rejected,
        };
        // A gate may have been answered in this turn. Only the first answer continues the run.
        if self.tx.answer_approval(&approval.id, status, text, by, self.now)? {
            tracing::info!(approval = %approval.id, by, status = %status, "answered");
            self.apply_gate_answer(approval, consents, text, by)?;
        }
        self.state.gate_expires_at = self.tx.next_gate_expiry()?;
        Ok(())
    }

    /// Decides gates that were not answered in time, with the default that their workflow defines.
    pub(crate) fn expire_gates(&mut self) -> Result<(), DatabaseError> {
        if self.state.gate_expires_at.is_none_or(|at| at > self.now) {
            return Ok(());
        }
        for gate in self.tx.expired_gates(self.now, GATES_PER_TURN)? {
            let default = gate.default_answer.as_deref().unwrap_or("reject");
            let by = TIMEOUT_ANSWERER;
            match default.strip_prefix("reply:") {
                Some(text) => self.decide_gate(&gate, true, Some(text), by)?,
                None => self.decide_gate(&gate, default == "approve", None, by)?,
            }
        }
        self.state.gate_expires_at = self.tx.next_gate_expiry()?;
        Ok(())
    }

    /// Returns a redactor for the secrets of the agent that asked.
    fn redactor_of(&self, approval: &Approval) -> SecretRedactor {
        let setup = &self.state.setup;
        let agent = approval.requested_by.as_deref().and_then(|name| setup.agent(name));
        let given = agent.and_then(|agent| environment::select_environment(agent, &setup.env).ok());
        // Without the agent's config no secrets are known.
        given.map_or_else(|| SecretRedactor::new(&[]), |given| SecretRedactor::new(&given.secrets))
    }
}

fn approval_not_found(id: &ApprovalId) -> DaemonCommandError {
    let refused = DaemonCommandError::new(
        DaemonCommandErrorKind::NotFound,
        format!("there is no approval {id}"),
    );
    refused.with_hint("heeler approvals list --all")
}

/// Refuses answers that are invalid or late.
fn check_answer(approval: &Approval, answer: &ApprovalAnswer) -> Result<(), DaemonCommandError> {
    let Approval { id, kind, .. } = approval;
    if approval.status != ApprovalStatus::Pending {
        let message = closed_approval_text(approval);
        return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message));
    }
    let usage = |message: String, hint: String| {
        Err(DaemonCommandError::new(DaemonCommandErrorKind::Usage, message).with_hint(hint))
    };
    // The question that a person saw must be the one that is on record.
    if answer.input_hash.is_some() && answer.input_hash != approval.shown_hash() {
        let message = format!("{id} was not answered: the request changed; look again");
        return Err(DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message)
            .with_hint(format!("heeler approvals show {id}")));
    }
    let text = answer.text.as_deref().unwrap_or_default().trim();
    if text.len() > APPROVAL_TEXT_BYTES_MAX {
        let message = format!("an answer has at most {APPROVAL_TEXT_BYTES_MAX} bytes");
        return usage(message, "write it to a file and answer with its path".to_owned());
    }
    if answer.always
        && (approval.offered_rules().is_empty()
            || !answer.approve
            || answer.updated_input.is_some())
    {
        let hint = format!("heeler approvals approve {id}");
        return usage(format!("{id} cannot be allowed always, only as it is asked"), hint);
    }
    if !kind.expects_text() || !answer.approve || answer.updated_input.is_some() {
        return Ok(());
    }
    let hint = format!("heeler approvals reply {id} 'your answer'");
    if text.is_empty() {
        return usage(format!("{id} needs a text answer, not yes or no"), hint);
    }
    let input = approval.detail.as_ref().map_or(&Json::Null, |detail| &detail["input"]);
    // Only answers to agents' questions must fit their options; a gate accepts any text.
    match (approval.ask_id.is_some()).then(|| question::fill_answers(input, text)) {
        Some(Err(wrong)) => usage(format!("not a valid answer to {id}: {wrong}"), hint),
        _ => Ok(()),
    }
}

/// Describes the outcome of an approval that is no longer pending.
fn closed_approval_text(approval: &Approval) -> String {
    let Approval { id, status, .. } = approval;
    let by = approval.responded_by.as_deref().unwrap_or("an unknown person");
    let at = approval.responded_at.map(iso_millis).unwrap_or_default();
    match status {
        ApprovalStatus::Expired => format!("{id} expired at {at} without an answer"),
        ApprovalStatus::Withdrawn => format!("{id} was withdrawn at {at}: nothing waits for it"),
        _ => format!("{id} was answered already: {status} by {by} at {at}"),
    }
}
