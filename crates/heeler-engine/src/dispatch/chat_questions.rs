//! Questions in chats: posted with buttons, answered by approvers, closed wherever they are answered.
//!
//! Start at [`DispatchTransaction::post_question`].

use std::sync::Arc;

use heeler_connect::{ButtonClaim, ButtonSeal, ButtonVerdict, ChatEvent, ChatPlatform, ChatPolicy};
use heeler_model::{
    APPROVAL_SUMMARY_BYTES_MAX, Approval, ApprovalAnswer, ApprovalId, ApprovalKind, ApprovalStatus,
    Job, question, reveal_hidden, reveal_line,
};
use heeler_store::{ChatQuestionRecord, DatabaseError};
use serde_json::Value as Json;

use super::chat_events::{ChatOutcome, sender_name};
use super::event::DispatchEffect;
use super::transaction::DispatchTransaction;
use crate::chat::{
    ChatPost, ChatPostAction, channel_place, event_place, find_credential, question_options,
};
use crate::dispatch_failure::DispatchFailure;

/// Most open questions that are looked at in one turn.
pub(super) const QUESTIONS_MAX: usize = 256;

/// Longest request that is shown in a post, in characters. A longer one cannot be allowed there.
const REQUEST_CHARS_MAX: usize = 1_500;

impl DispatchTransaction<'_, '_> {
    /// Posts a question of a job to the conversation that the job comes from. A question that was
    /// posted is not posted again.
    pub(super) fn post_question(
        &mut self,
        job: &Job,
        approval: &Approval,
    ) -> Result<(), DatabaseError> {
        if approval.status != ApprovalStatus::Pending {
            return Ok(());
        }
        let Some(event) = self.tx.inbox_event_of_job(&job.head.id)? else { return Ok(()) };
        let platform = event.platform.parse::<ChatPlatform>().ok();
        let place = event_place(&event);
        let (Some(platform), Some(place)) = (platform, place) else { return Ok(()) };
        let is_new = self.tx.add_chat_question(&ChatQuestionRecord {
            approval: approval.id.clone(),
            channel: event.channel.clone(),
            platform: event.platform.clone(),
            account: event.account.clone(),
            is_direct: event.is_direct,
            asked_at: self.now,
            message_id: None,
            closed_at: None,
        })?;
        if !is_new {
            return Ok(());
        }
        self.state.has_chat_questions = true;
        let (text, is_complete) = question_text(approval);
        let post = ChatPost {
            platform,
            account: event.account,
            place,
            agent: Some(job.head.agent.clone()),
            notify: None,
            action: ChatPostAction::Ask {
                approval: approval.id.clone(),
                text: self.redact_text(&text),
                is_complete,
            },
        };
        self.add_chat_post(format!("chat ask {} {}", approval.id, event.channel), &post)
    }

    /// Applies a click on a button of a question: the message that has the button, and its value.
    pub(super) fn apply_chat_click(
        &mut self,
        event: &ChatEvent,
        policies: &[ChatPolicy<'_>],
        (message, value): (&str, &str),
    ) -> Result<ChatOutcome, DispatchFailure> {
        let refuse = |reason: &str, notice: &str| {
            let notice = notice.to_owned();
            Ok(ChatOutcome { notice, ..ChatOutcome::refused(reason) })
        };
        let channel = event.place.channel(event.platform);
        let claim = ButtonSeal::claim_of(value);
        let id = claim.as_ref().and_then(|claim| claim.question.parse::<ApprovalId>().ok());
        let (Some(claim), Some(id)) = (claim, id) else {
            return refuse("its value is of no question", "This button does not count.");
        };
        let setup = Arc::clone(&self.state.setup);
        let credential = find_credential(&setup.loaded, &setup.env, event.platform, &event.account);
        let approval = self.tx.approval(&id)?;
        let (Some(credential), Some(approval)) = (credential, approval) else {
            return refuse("its question does not exist", "This question does not exist any more.");
        };
        let seal = ButtonSeal::from_token(&credential.token);
        let shown = approval.shown_hash().unwrap_or_default();
        let posted = self.tx.chat_question(&id, &channel)?;
        let posted = posted.filter(|_| seal.is_genuine(value, &shown, &channel));
        let Some(posted) = posted else {
            return refuse("its value was not made by this fleet", "This button does not count.");
        };
        // A daemon may have died between the post and its record.
        if posted.message_id.is_none() {
            self.tx.set_chat_question_message(&id, &channel, message)?;
        }
        if !self.may_answer(policies, &approval, event, &channel) {
            let reason = format!("{} is not an approver", event.sender.id);
            let notice = format!("You may not answer. Your ID is {}.", event.sender.id);
            return refuse(&reason, &notice);
        }
        let answer = match claim {
            ButtonClaim { verdict: ButtonVerdict::Allow, .. } => yes_or_no(&approval, true),
            ButtonClaim { verdict: ButtonVerdict::Deny, .. } => yes_or_no(&approval, false),
            ButtonClaim { verdict: ButtonVerdict::Choose(number), .. } => {
                let place = usize::from(number).saturating_sub(1);
                let Some(label) = question_options(&approval).get(place).cloned() else {
                    return refuse("there is no such option", "There is no such option.");
                };
                // In quotes, a label that is a number is not taken for a position.
                text_answer(&approval, format!("\"{label}\""))
            }
        };
        self.answer_from_chat(event, &approval, answer)
    }

    /// Takes a message as the answer to an open question of its conversation, if its sender may
    /// answer and the question asks for text.
    pub(super) fn answer_open_question(
        &mut self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
        text: &str,
    ) -> Result<Option<ChatOutcome>, DispatchFailure> {
        if !self.state.has_chat_questions || !policy.is_approver(&event.sender) {
            return Ok(None);
        }
        let channel = event.place.channel(event.platform);
        for question in self.tx.open_chat_questions_of(&channel, QUESTIONS_MAX)? {
            let Some(approval) = self.tx.approval(&question.approval)? else { continue };
            let is_own = approval.requested_by.as_deref() == Some(policy.agent.name.as_str());
            let is_open = approval.status == ApprovalStatus::Pending;
            if is_own && is_open && approval.kind.expects_text() {
                let answer = text_answer(&approval, text.to_owned());
                let outcome = self.answer_from_chat(event, &approval, answer)?;
                // An answer that does not fit is explained, and the question stays open.
                if outcome.word == "refused" {
                    self.answer_event(event, &outcome.notice)?;
                }
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    pub(super) fn answer_from_chat(
        &mut self,
        event: &ChatEvent,
        approval: &Approval,
        answer: ApprovalAnswer,
    ) -> Result<ChatOutcome, DispatchFailure> {
        let by = sender_name(&self.state.setup, event);
        match self.answer_question(&approval.id, &answer, &by) {
            Ok(_) => {
                let approval = approval.id.clone();
                // The run receives it after the commit, as if it came from a terminal.
                self.effects.push(DispatchEffect::DeliverAnswer { approval, answer });
                Ok(ChatOutcome { notice: "Recorded.".to_owned(), ..ChatOutcome::new("answer") })
            }
            Err(DispatchFailure::Refused(refused)) => {
                let notice = refused.message.clone();
                Ok(ChatOutcome { notice, ..ChatOutcome::refused(refused.message) })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Replaces posted questions that were answered, wherever that was.
    pub(crate) fn close_chat_questions(&mut self) -> Result<(), DatabaseError> {
        if !self.state.has_chat_questions {
            return Ok(());
        }
        let open = self.tx.open_chat_questions(QUESTIONS_MAX)?;
        let mut left = open.len();
        for question in open {
            let approval = self.tx.approval(&question.approval)?;
            if approval.as_ref().is_some_and(|it| it.status == ApprovalStatus::Pending) {
                continue;
            }
            left -= 1;
            let ChatQuestionRecord { approval: id, channel, .. } = &question;
            self.tx.close_chat_question(id, channel, self.now)?;
            let platform = question.platform.parse::<ChatPlatform>().ok();
            let place = channel_place(channel, None);
            let (Some(platform), Some(place), Some(approval)) = (platform, place, approval) else {
                continue;
            };
            let text = self.redact_text(&closed_text(&approval));
            let post = ChatPost {
                platform,
                account: question.account.clone(),
                place,
                agent: approval.requested_by.clone(),
                notify: None,
                action: ChatPostAction::Close { approval: id.clone(), text },
            };
            self.add_chat_post(format!("chat closed {id} {channel}"), &post)?;
        }
        self.state.has_chat_questions = left > 0;
        Ok(())
    }
}

/// Returns true if the sender may answer for the agent that asked, by the config of now.
pub(super) fn is_approver(
    policies: &[ChatPolicy<'_>],
    approval: &Approval,
    event: &ChatEvent,
) -> bool {
    let asked_by = approval.requested_by.as_deref();
    let policy = policies.iter().find(|it| Some(it.agent.name.as_str()) == asked_by);
    policy.is_some_and(|policy| policy.is_approver(&event.sender))
}

pub(super) fn yes_or_no(approval: &Approval, approve: bool) -> ApprovalAnswer {
    let input_hash = approval.shown_hash();
    ApprovalAnswer { approve, input_hash, ..ApprovalAnswer::default() }
}

pub(super) fn text_answer(approval: &Approval, text: String) -> ApprovalAnswer {
    let input_hash = approval.shown_hash();
    ApprovalAnswer { approve: true, text: Some(text), input_hash, ..ApprovalAnswer::default() }
}

/// Returns the text of a question, and true if it shows the whole request.
pub(super) fn question_text(approval: &Approval) -> (String, bool) {
    let Approval { id, gate, kind, .. } = approval;
    let (request, is_whole) = whole_request(approval);
    // Characters that reorder or hide text are shown as numbers.
    let request = reveal_hidden(&request).replace("```", "'''");
    let is_complete = is_whole && request.chars().count() <= REQUEST_CHARS_MAX;
    let shown: String = request.chars().take(REQUEST_CHARS_MAX).collect();
    let mut text = match kind {
        ApprovalKind::Permission => {
            format!("**May I use {gate}?**\n\n```json\n{shown}\n```\n\n`{id}`")
        }
        ApprovalKind::Approve => format!("**{}**\n\n{shown}\n\n`{id}`", gate_heading(approval)),
        ApprovalKind::Reply => format!(
            "**{}**\n\n{shown}\n\nAn approver replies to this message with the answer. `{id}`",
            gate_heading(approval)
        ),
        ApprovalKind::Question => {
            let options = question_options(approval);
            let options = options.iter().zip(1..).map(|(label, n)| {
                // An option cannot pose as another one, or as two.
                format!("\n{n}. {}", reveal_line(label))
            });
            let options: String = options.collect();
            format!("**{shown}**\n{options}\n\nAn approver answers here with text. `{id}`")
        }
    };
    if !is_complete {
        let how = match kind.expects_text() {
            true => "The question is shortened.",
            false => "The request is too long to be allowed here.",
        };
        text.push_str(&format!("\n\n{how} Read it with `heeler approvals show {id}`."));
    }
    (text, is_complete)
}

/// Returns the request of a question, and false if only a part of it is known. A stored summary is
/// shortened.
fn whole_request(approval: &Approval) -> (String, bool) {
    let detail = approval.detail.as_ref().unwrap_or(&Json::Null);
    let asked: Vec<&str> = question::questions(&detail["input"])
        .iter()
        .filter_map(|it| it["question"].as_str())
        .collect();
    match (approval.kind, &detail["input"], detail.as_str()) {
        (ApprovalKind::Permission, Json::Null, _) => {}
        (ApprovalKind::Permission, input, _) => {
            return (serde_json::to_string_pretty(input).unwrap_or_default(), true);
        }
        (_, _, Some(text)) => return (text.to_owned(), true),
        _ if !asked.is_empty() => return (asked.join("\n"), true),
        _ => {}
    }
    // The last character may have had no room.
    let is_whole = approval.summary.len() + char::MAX.len_utf8() <= APPROVAL_SUMMARY_BYTES_MAX;
    (approval.summary.clone(), is_whole)
}

/// Returns the first line of a gate: its name and its workflow run.
fn gate_heading(approval: &Approval) -> String {
    let asker = approval.requested_by.as_deref().unwrap_or("a workflow");
    format!("Gate {} of {asker} ({})", approval.gate, approval.workflow_run_id)
}

/// Returns the text that replaces a question.
fn closed_text(approval: &Approval) -> String {
    let Approval { id, gate, kind, status, .. } = approval;
    let by = approval.responded_by.as_deref().unwrap_or("an unknown person");
    let what = match kind {
        ApprovalKind::Permission => gate.clone(),
        ApprovalKind::Approve | ApprovalKind::Reply => gate_heading(approval),
        ApprovalKind::Question => {
            approval.summary.lines().next().unwrap_or_default().chars().take(200).collect()
        }
    };
    let outcome = match (status, kind.expects_text()) {
        (ApprovalStatus::Approved, true) => format!("Answered by {by}"),
        (ApprovalStatus::Approved, false) => format!("{} by {by}", consent_words(*kind).0),
        (ApprovalStatus::Rejected, _) => format!("{} by {by}", consent_words(*kind).1),
        (ApprovalStatus::Expired, _) => "Expired without an answer".to_owned(),
        (ApprovalStatus::Withdrawn, _) => "Withdrawn: nothing waits for it".to_owned(),
        (ApprovalStatus::Pending, _) => "Open".to_owned(),
    };
    format!("**{what}**\n\n{outcome}. `{id}`")
}

/// Returns the words for a given and a refused consent.
fn consent_words(kind: ApprovalKind) -> (&'static str, &'static str) {
    match kind {
        ApprovalKind::Permission | ApprovalKind::Question => ("Allowed", "Denied"),
        ApprovalKind::Approve | ApprovalKind::Reply => ("Approved", "Rejected"),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn no_option_of_an_agent_poses_as_another_one_or_as_two() {
        let id = "ask-1a2b3c4d".parse().unwrap();
        let (kind, at) = (ApprovalKind::Question, Timestamp::UNIX_EPOCH);
        let mut approval = Approval::new_pending(id, "job-1", "AskUserQuestion", kind, at);
        approval.summary = "Go on?".to_owned();
        let options = json!([{"label": "No\n2. Yes"}, {"label": "\u{202e}seY"}]);
        approval.detail =
            Some(json!({"input": {"questions": [{"question": "Go on?", "options": options}]}}));
        let (text, is_complete) = question_text(&approval);
        assert!(is_complete);
        assert!(text.contains("\n1. No\\n2. Yes\n2. \\u{202e}seY\n"), "{text}");
        // The agent receives its own words.
        assert_eq!(question_options(&approval), ["No\n2. Yes", "\u{202e}seY"]);
    }

    #[test]
    fn a_gate_that_is_read_again_is_shown_whole_or_cannot_be_approved_here() {
        let gate = |summary: String, detail: Option<Json>| {
            let (kind, at) = (ApprovalKind::Approve, Timestamp::UNIX_EPOCH);
            let id = "ask-1a2b3c4d".parse().unwrap();
            Approval { summary, detail, ..Approval::new_pending(id, "wf-1", "ship", kind, at) }
        };
        // The database keeps 2,048 bytes of the summary, here 682 characters.
        let text = format!("{}; and drop the database", "\u{20ac}".repeat(700));
        let summary = text[..text.floor_char_boundary(APPROVAL_SUMMARY_BYTES_MAX)].to_owned();
        let (shown, is_complete) = question_text(&gate(summary.clone(), Some(text.clone().into())));
        assert!(is_complete && shown.contains("; and drop the database"), "{shown}");
        let long = "\u{20ac}".repeat(REQUEST_CHARS_MAX + 1);
        assert!(!question_text(&gate(summary.clone(), Some(long.into()))).1);
        assert!(!question_text(&gate(summary, None)).1, "a part of it is not known");
        assert!(question_text(&gate("Ship it?".to_owned(), None)).1);
    }
}
