//! Requests of people to the run, and questions of the agent to people.
//!
//! Every client gets a reply. The first answer to a question counts, and it is recorded in a row
//! before the agent receives it. Start at [`RunEventLoop::handle_request`].

use std::io;
use std::time::{Duration, Instant};

use heeler_model::outcome::AgentProcessExit;
use heeler_model::permission_grant::PermissionGrant;
use heeler_model::run::{
    AgentQuestion, ControlEvent, ControlOperation, ControlReplyBody, PROTOCOL, QuestionAnswer,
    QuestionOutcome, QuestionPolicy, RunState,
};
use heeler_model::{error_chain, iso_millis, question};
use heeler_transcript::DiskError;
use serde_json::Value as Json;
use uuid::Uuid;

use super::RunEventLoop;
use super::effects::DiskFullError;
use super::streamed_message::StreamedMessage;
use crate::control::{ControlPeer, PendingControlRequest};
use crate::files::RunFileError;
use crate::mcp::ToolQuestion;
use crate::questions::{QUESTION_BYTES_MAX, RunQuestionOutcome};
use crate::runtime::{AgentQuestionKind, RuntimeEffect};

/// Refusal of a process that may not watch the run.
const NOT_WATCHABLE: &str = "only the fleet's daemon, people and the run itself may watch a run";

impl RunEventLoop<'_> {
    /// Ends the run on a person's request: gently, unless `now`.
    pub(super) fn cancel(&mut self, by: String, now: bool) {
        // A run with a result is no longer cancelled, but the processes that delay its end are
        // still ended.
        let first = self.run.ending.is_none() && !self.done;
        if first && !self.tree_ended {
            self.set_ending(AgentProcessExit::Cancelled { by });
            self.interrupt(Instant::now());
        }
        if self.tree_ended && self.is_blocked() {
            let reason = self.run.disk_failure.as_ref().map(|disk| disk.reason.clone());
            self.set_ending(AgentProcessExit::Disk { reason: reason.unwrap_or_default() });
        }
        self.must_kill |= now || self.done;
    }

    /// Handles the request of a client.
    pub(super) fn handle_request(&mut self, request: &PendingControlRequest) {
        match &request.op {
            ControlOperation::Cancel { now, by } => {
                let Some(by) = request.authorize(by) else { return };
                self.cancel(by, *now);
                request.reply(ControlReplyBody::Done);
            }
            ControlOperation::Message { text, message_id } => {
                if request.authorize("").is_none() {
                    return;
                }
                match self.send_message_once(text, *message_id) {
                    Ok(()) => request.reply(ControlReplyBody::Done),
                    Err(reason) => request.refuse(reason),
                }
            }
            ControlOperation::Answer { ask, answer, by, shown } => {
                let Some(by) = request.authorize(by) else { return };
                match self.answer_question(ask, answer, &by, shown.as_deref()) {
                    Ok(()) => request.reply(ControlReplyBody::Done),
                    Err(reason) => request.refuse(reason),
                }
            }
            _ if !self.may_watch(request) => request.refuse(NOT_WATCHABLE),
            ControlOperation::Status => request.reply(ControlReplyBody::Status(self.run_state())),
            ControlOperation::Subscribe => {
                let said = self.deltas.as_mut().and_then(StreamedMessage::said_so_far);
                self.run.control.subscribe(request, said.as_ref());
            }
        }
    }

    /// Returns true if a client may watch the run. Watching changes nothing, so a process of the run
    /// itself may do it.
    fn may_watch(&self, request: &PendingControlRequest) -> bool {
        request.peer != ControlPeer::Stranger
            || request.pid.is_some_and(|pid| self.tree.contains(pid))
    }

    fn run_state(&self) -> RunState {
        RunState {
            run: self.run.spec.run,
            job: self.run.spec.job.clone(),
            session: self.run.session.clone(),
            // The PID of an agent that has exited may belong to another process by now.
            agent_pid: self.exit.is_none().then(|| self.agent.pid.as_raw_pid().cast_unsigned()),
            started_at: self.run.started_at,
            last_line_at: self.run.last_line_at,
            rows: self.run.journal.job_rows(),
            cost_usd: self.run.tally.cost_usd(),
            asks: self.run.questions.list(),
            cancelling: self.run.ending.is_some(),
            disk_trouble: self.run.disk_failure.as_ref().map(|trouble| trouble.reason.clone()),
        }
    }

    /// Returns the reason that nothing new can begin, if any.
    fn refusal_reason(&self) -> Option<String> {
        if let Some(trouble) = &self.run.disk_failure {
            return Some(format!(
                "the disk accepts no rows ({}); try again when there is space",
                trouble.reason
            ));
        }
        if self.run.side_reply.is_some() {
            return Some("the agent is summarizing the session; try again in a moment".to_owned());
        }
        let ending = self.done || self.run.ending.is_some() || self.tree_ended;
        ending.then(|| "the run is ending; start another job instead".to_owned())
    }

    /// Sends a message unless one with its ID came before. The reply is then that of the first time:
    /// a daemon that was killed before it recorded the reply asks again.
    fn send_message_once(&mut self, text: &str, id: Option<Uuid>) -> Result<(), String> {
        let Some(id) = id else { return self.send_user_message(text, Uuid::new_v4()) };
        if let Some(earlier) = self.run.message_outcomes.get(&id) {
            return earlier.clone();
        }
        let outcome = self.send_user_message(text, id);
        if outcome.is_ok() {
            // The row proves that the message was taken, also to a daemon that finds the run ended.
            // A full disk is handled when the agent writes.
            drop(self.flush());
        }
        self.run.message_outcomes.insert(id, outcome.clone());
        outcome
    }

    fn send_user_message(&mut self, text: &str, uuid: Uuid) -> Result<(), String> {
        if let Some(reason) = self.refusal_reason() {
            return Err(reason);
        }
        // A text grows when it is encoded as JSON, because quotes and line breaks are escaped.
        if !self.input.has_room(text.len().saturating_mul(2)) {
            return Err("the agent has not read the previous messages yet; wait for it".to_owned());
        }
        let steps = self.run.runtime.send_message(uuid, text).filter(|_| self.input.is_open());
        let Some(steps) = steps else {
            return Err("this agent accepts no further messages; start another job".to_owned());
        };
        // Effects wait for rows, so the message is on disk before the agent receives it.
        self.run.record_prompt(uuid, text);
        self.pending_effects.extend(steps);
        Ok(())
    }

    fn answer_question(
        &mut self,
        id: &str,
        answer: &QuestionAnswer,
        by: &str,
        shown: Option<&str>,
    ) -> Result<(), String> {
        // A late answer is told who was faster, even if the run is ending by now.
        let Some(open) = self.run.questions.get(id) else {
            return Err(self.run.questions.refusal_reason(id));
        };
        if let Some(reason) = self.refusal_reason() {
            return Err(reason);
        }
        // The file or record that the person was shown is not the request of the agent.
        if shown.is_some_and(|shown| shown != open.ask.shown_hash()) {
            return Err(self.deny_changed_question(id));
        }
        let is_changed = matches!(answer, QuestionAnswer::Allow { input: Some(input) }
            if open.ask.kind == AgentQuestionKind::Permission.as_str() && *input != open.ask.input);
        if is_changed && !self.run.runtime.accepts_changed_input() {
            return Err("this agent cannot take a changed input: allow the request as it is, or \
                        deny it and say what to do instead"
                .to_owned());
        }
        let tool = &open.ask.tool;
        let granted = open.ask.grant.as_ref().map(PermissionGrant::describe);
        if *answer == QuestionAnswer::AllowSession && granted.is_none() {
            return Err("this request can be allowed only once".to_owned());
        }
        let kept_rules = match answer {
            QuestionAnswer::AllowAlways => {
                let rules = open.ask.grant.as_ref().and_then(PermissionGrant::lasting_rules);
                rules.ok_or("this request cannot be allowed always; allow it once")?
            }
            _ => Vec::new(),
        };
        let description = match answer {
            QuestionAnswer::AllowSession => {
                let granted = granted.as_deref().unwrap_or_default();
                format!("{by} allowed {tool} for this conversation: {granted}")
            }
            QuestionAnswer::AllowAlways => {
                format!("{by} allowed {tool} always: {}", kept_rules.join(", "))
            }
            QuestionAnswer::Allow { input: None } => format!("{by} allowed {tool}"),
            QuestionAnswer::Allow { input: Some(_) } => {
                format!("{by} allowed {tool} with a changed input")
            }
            QuestionAnswer::Deny { message, .. } => format!("{by} denied {tool}: {message}"),
        };
        let (how, text) = match answer {
            QuestionAnswer::AllowSession => {
                let granted = granted.unwrap_or_default();
                (QuestionOutcome::Allowed, Some(format!("for this conversation: {granted}")))
            }
            QuestionAnswer::AllowAlways => {
                (QuestionOutcome::Allowed, Some(format!("always: {}", kept_rules.join(", "))))
            }
            QuestionAnswer::Allow { input } => {
                (QuestionOutcome::Allowed, input.as_ref().and_then(question::format_answers))
            }
            QuestionAnswer::Deny { message, .. } => {
                (QuestionOutcome::Denied, Some(message.clone()))
            }
        };
        let mut end = self.question_outcome(how, Some(by), text.as_deref());
        end.kept_rules = kept_rules;
        if let QuestionAnswer::Allow { input: Some(input) } = answer {
            let mut input = input.clone();
            self.run.redactor.redact_json(&mut input);
            // The answers to a question are its text already.
            end.updated_input = end.text.is_none().then_some(input);
        }
        let description = match &end.updated_input {
            Some(input) => format!("{description}: {input}"),
            None => description,
        };
        self.close_question(id, Some(end), "answered", &description, Some(answer));
        Ok(())
    }

    /// Denies a question that was shown to a person in another form than the agent asked it.
    fn deny_changed_question(&mut self, id: &str) -> String {
        let message = "the request changed before it was answered, so it is denied; look again";
        let denial = QuestionAnswer::Deny { message: message.to_owned(), interrupt: false };
        let end = self.question_outcome(QuestionOutcome::Denied, Some("heeler"), Some(message));
        self.close_question(id, Some(end), "denied", message, Some(&denial));
        message.to_owned()
    }

    /// Closes a question: file, row, agent, subscribers. Without an answer nothing is sent to the
    /// agent.
    fn close_question(
        &mut self,
        id: &str,
        end: Option<RunQuestionOutcome>,
        subtype: &str,
        text: &str,
        answer: Option<&QuestionAnswer>,
    ) {
        let late_reply = format!("too late: {text}, at {}", iso_millis((self.run.now)()));
        let Some(open) = self.run.questions.close(id, end, late_reply) else { return };
        self.run.recorder.exclude_wait(&open.ask.tool, open.ask.at, (self.run.now)());
        self.run.add_note(subtype, &format!("{text} (question {id})"));
        match answer {
            Some(answer) => self.deliver_answer(&open.agent_id, answer),
            // Dropping the sender tells the waiting tool that no answer will come.
            None => drop(self.run.question_replies.remove(&open.agent_id)),
        }
        // Subscribers learn of it last, when a late answer is already refused.
        self.publish_after_rows(&ControlEvent::Settled { ask: id.to_owned() });
    }

    fn question_outcome(
        &self,
        how: QuestionOutcome,
        by: Option<&str>,
        text: Option<&str>,
    ) -> RunQuestionOutcome {
        let clean = |text: &str| self.run.redactor.redact_text(text).into_owned();
        RunQuestionOutcome {
            closing: how,
            answered_by: by.map(clean),
            text: text.map(clean),
            updated_input: None,
            kept_rules: Vec::new(),
            at: (self.run.now)(),
        }
    }

    /// Asks a person, or denies if the run is unattended.
    pub(super) fn ask_person(
        &mut self,
        agent_id: String,
        (kind, grant): (AgentQuestionKind, Option<PermissionGrant>),
        tool: String,
        mut input: Json,
    ) -> Result<(), DiskFullError> {
        let timeout_ms = match self.question_timeout(&input) {
            Ok(timeout_ms) => timeout_ms,
            Err(reason) => {
                self.deny_question(&agent_id, &tool, reason);
                return Ok(());
            }
        };
        // A full disk repeats the question later, with the original input, not the redacted one.
        let again = RuntimeEffect::Ask {
            id: agent_id.clone(),
            kind,
            tool: tool.clone(),
            input: input.clone(),
            grant: grant.clone(),
        };
        self.run.redactor.redact_json(&mut input);
        let at = (self.run.now)();
        let wait = Duration::from_millis(timeout_ms);
        let ask = AgentQuestion {
            protocol: PROTOCOL,
            // An ID that contains a secret must not become a file name.
            id: self.run.questions.assign_id(&self.run.redactor.redact_text(&agent_id)),
            at,
            kind: kind.as_str().to_owned(),
            tool: self.run.redactor.redact_text(&tool).into_owned(),
            input,
            until: at.checked_add(wait).ok(),
            network_host: self.run.network_questions.get(&agent_id).map(|it| it.as_str().into()),
            // A rule that contains a secret would be shown and stored as it is.
            grant: grant.filter(|it| {
                let text = it.describe();
                self.run.redactor.redact_text(&text) == text
            }),
        };
        let until = Instant::now().checked_add(wait);
        match self.run.questions.add(ask.clone(), agent_id.clone(), until) {
            Ok(()) => {}
            // A question must be on disk before anyone sees it, so it waits for space.
            Err(error) if is_full(&error) => {
                self.pending_effects.push_front(again);
                return Err(DiskFullError(error_chain(&error)));
            }
            // The agent waits for a reply, so a question that cannot be recorded is denied.
            Err(error) => {
                self.deny_question(&agent_id, &tool, error_chain(&error));
                return Ok(());
            }
        }
        crate::fault::point(crate::fault::RunnerFaultPoint::QuestionAsked);
        let what = if kind == AgentQuestionKind::Question {
            "asks a question with"
        } else {
            "wants to use"
        };
        self.run.add_note("asked", &format!("the agent {what} {tool} (question {})", ask.id));
        self.publish_after_rows(&ControlEvent::Asked { ask });
        Ok(())
    }

    /// Publishes an event once its row is written. A full disk, which is published too, does not
    /// delay it.
    fn publish_after_rows(&mut self, happening: &ControlEvent) {
        drop(self.flush());
        self.run.control.publish(happening);
    }

    /// Returns the time a person has to answer, or the reason that no person is asked.
    fn question_timeout(&self, input: &Json) -> Result<u64, String> {
        let QuestionPolicy::Person { timeout_ms } = self.run.spec.attendance else {
            return Err(
                "this run is unattended, so the request cannot be allowed or answered".to_owned()
            );
        };
        if self.run.side_reply.is_some() {
            return Err("the agent may only summarize the session".to_owned());
        }
        if self.run.ending.is_some() {
            return Err("the run is being ended".to_owned());
        }
        if !self.run.questions.has_room() {
            return Err("too many questions are open".to_owned());
        }
        if input.to_string().len() > QUESTION_BYTES_MAX {
            return Err(format!("its input has more than {QUESTION_BYTES_MAX} bytes"));
        }
        Ok(timeout_ms)
    }

    /// Denies at once, and records the denial.
    fn deny_question(&mut self, agent_id: &str, tool: &str, reason: String) {
        self.run.add_note("denied", &format!("{tool} was denied: {reason}"));
        self.deliver_answer(agent_id, &QuestionAnswer::Deny { message: reason, interrupt: false });
    }

    /// Asks people the question of an injected tool.
    pub(super) fn ask_for_tool(&mut self, question: ToolQuestion) {
        let ToolQuestion { tool, input, network_host, reply } = question;
        // The agent does not know the ID, so no question of its own has it.
        let (id, kind, tool) =
            (Uuid::new_v4().to_string(), AgentQuestionKind::Question, tool.to_owned());
        self.run.network_questions.extend(network_host.map(|host| (id.clone(), host)));
        self.run.question_replies.insert(id.clone(), reply);
        // As an effect it is asked in order, and waits for the disk like a question of the agent.
        self.pending_effects.push_back(RuntimeEffect::Ask { id, kind, tool, input, grant: None });
    }

    /// Delivers an answer to the party that asked: an injected tool, or the agent.
    fn deliver_answer(&mut self, agent_id: &str, answer: &QuestionAnswer) {
        match self.run.question_replies.remove(agent_id) {
            // The receiving call may have been cancelled.
            Some(reply) => drop(reply.send(answer.clone())),
            None => {
                let steps = self.run.runtime.deliver_answer(agent_id, answer);
                self.pending_effects.extend(steps);
            }
        }
    }

    /// Denies a question that was not answered in time.
    pub(super) fn expire_question(&mut self, id: &str) {
        let message = "nobody answered in time".to_owned();
        let answer = QuestionAnswer::Deny { message: message.clone(), interrupt: false };
        let end = Some(self.question_outcome(QuestionOutcome::Expired, None, None));
        self.close_question(id, end, "denied", &message, Some(&answer));
    }

    /// Closes a question that the agent withdrew.
    pub(super) fn withdraw_question(&mut self, agent_id: &str) {
        if let Some(id) = self.run.questions.find_by_agent_id(agent_id) {
            let end = Some(self.question_outcome(QuestionOutcome::Withdrawn, None, None));
            self.close_question(&id, end, "withdrawn", "the agent withdrew it", None);
        }
    }

    /// Closes the remaining questions after the agent ended.
    pub(super) fn close_all_questions(&mut self) {
        // The run's result makes these questions moot, so they need no outcome file.
        for ask in self.run.questions.list() {
            self.close_question(
                &ask.id,
                None,
                "withdrawn",
                "the agent ended before an answer",
                None,
            );
        }
    }
}

/// Returns true if the write may succeed once there is space again.
fn is_full(error: &RunFileError) -> bool {
    let RunFileError::Disk(DiskError { source, .. }) = error else { return false };
    matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
