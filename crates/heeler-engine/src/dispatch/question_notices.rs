//! Questions that `notify` sends to a chat with buttons, and the people who may answer them there.
//!
//! A question of an agent is answered by the approvers of that agent. A gate of a workflow is answered by
//! the approvers of the channel, or else by those of the workflows' agent. Both are read from the config
//! of the moment of the answer. Start at [`DispatchTransaction::ask_in_chat`].

use std::sync::Arc;

use heeler_config::{AgentConfig, NotifyChat, NotifyConfig};
use heeler_connect::{ChatEvent, ChatPlace, ChatPlatform, ChatPolicy};
use heeler_model::{Approval, ApprovalStatus};
use heeler_store::{ChatQuestionRecord, DatabaseError};

use super::chat_events::ChatOutcome;
use super::chat_questions::{QUESTIONS_MAX, is_approver, question_text, text_answer};
use super::transaction::DispatchTransaction;
use crate::chat::{ChatCredential, ChatPost, ChatPostAction, find_bot_of_variable};
use crate::dispatch_failure::DispatchFailure;
use crate::notices::NoticePlan;
use crate::setup::DaemonSetup;

impl DispatchTransaction<'_, '_> {
    /// Posts a question with buttons, if the channel is a chat in which people may answer it. Returns true
    /// if it did. The chat then replaces the post when the question is closed.
    pub(super) fn ask_in_chat(
        &mut self,
        config: &NotifyConfig,
        agent: Option<&AgentConfig>,
        plan: &NoticePlan,
        approval: &Approval,
    ) -> Result<bool, DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let chat = config.channel(&plan.channel).and_then(|channel| channel.target.chat());
        let bot = chat.and_then(|chat| chat_bot_of(&setup, &chat));
        let (Some(chat), Some(bot)) = (chat, bot) else { return Ok(false) };
        let can_be_answered = match approval.ask_id {
            Some(_) => agent.is_some_and(|agent| !agent_approvers(&setup, agent, &bot).is_empty()),
            None => !gate_approvers(&setup, &chat, &bot).is_empty(),
        };
        // A later post is a plain notice with a link.
        let is_now = plan.due_at <= self.now && !plan.in_digest;
        if !can_be_answered || !is_now {
            return Ok(false);
        }
        let (platform, account) = (bot.platform, bot.account);
        let place = ChatPlace::of_chat(platform, chat.chat);
        let channel = place.channel(platform);
        let is_new = self.tx.add_chat_question(&ChatQuestionRecord {
            approval: approval.id.clone(),
            channel: channel.clone(),
            platform: platform.to_string(),
            account: account.clone(),
            is_direct: place.is_direct,
            asked_at: self.now,
            message_id: None,
            closed_at: None,
        })?;
        if is_new {
            self.state.has_chat_questions = true;
            let (text, is_complete) = question_text(approval);
            let (approval, text) = (approval.id.clone(), self.redact_text(&text));
            let id = format!("chat ask {approval} {channel}");
            let action = ChatPostAction::Ask { approval, text, is_complete };
            let agent = agent.map(|agent| agent.name.to_string());
            let notify = Some(plan.channel.clone());
            self.add_chat_post(id, &ChatPost { platform, account, place, agent, notify, action })?;
        }
        Ok(true)
    }

    /// Takes a message that replies to a posted question as its answer, if the question asks for text.
    /// Other replies are handled like every message.
    pub(super) fn answer_by_reply(
        &mut self,
        event: &ChatEvent,
        policies: &[ChatPolicy<'_>],
        text: &str,
        replies_to: Option<&str>,
    ) -> Result<Option<ChatOutcome>, DispatchFailure> {
        if !self.state.has_chat_questions || event.sender.is_bot {
            return Ok(None);
        }
        let Some((question, approval)) = self.replied_question(event, replies_to)? else {
            return Ok(None);
        };
        if !self.may_answer(policies, &approval, event, &question.channel) {
            let reason = format!("{} is not an approver", event.sender.id);
            let answer = format!("You may not answer. Your ID is {}.", event.sender.id);
            self.refuse_sender(event, &answer)?;
            return Ok(Some(ChatOutcome::refused(reason)));
        }
        let answer = text_answer(&approval, text.to_owned());
        let outcome = self.answer_from_chat(event, &approval, answer)?;
        // An answer that does not fit is explained, and the question stays open.
        if outcome.word == "refused" {
            self.answer_event(event, &outcome.notice)?;
        }
        Ok(Some(outcome))
    }

    /// Returns the open question that a message replies to: by a reference to the post, or in the thread
    /// that the post begins.
    fn replied_question(
        &self,
        event: &ChatEvent,
        replies_to: Option<&str>,
    ) -> Result<Option<(ChatQuestionRecord, Approval)>, DatabaseError> {
        let posts: Vec<&str> =
            replies_to.into_iter().chain(event.place.thread.as_deref()).collect();
        for channel in question_channels(event) {
            for question in self.tx.open_chat_questions_of(&channel, QUESTIONS_MAX)? {
                let is_meant = question.message_id.as_deref().is_some_and(|it| posts.contains(&it));
                if !is_meant || question.account != event.account {
                    continue;
                }
                let Some(approval) = self.tx.approval(&question.approval)? else { continue };
                let is_open = approval.status == ApprovalStatus::Pending;
                if is_open && approval.kind.expects_text() {
                    return Ok(Some((question, approval)));
                }
            }
        }
        Ok(None)
    }

    /// Returns true if the sender may answer a question that was posted to a channel, by the config of
    /// now.
    pub(super) fn may_answer(
        &self,
        policies: &[ChatPolicy<'_>],
        approval: &Approval,
        event: &ChatEvent,
        channel: &str,
    ) -> bool {
        if approval.ask_id.is_some() {
            return is_approver(policies, approval, event);
        }
        let setup = &self.state.setup;
        let config = setup.root().and_then(|root| root.notify.as_ref());
        let chats = config.into_iter().flat_map(|config| &config.channels);
        let mut chats = chats.filter_map(|channel| channel.target.chat());
        chats.any(|chat| {
            let Some(bot) = chat_bot_of(setup, &chat) else { return false };
            let place = ChatPlace::of_chat(bot.platform, chat.chat);
            let is_here = bot.platform == event.platform
                && bot.account == event.account
                && place.channel(bot.platform) == channel;
            is_here && gate_approvers(setup, &chat, &bot).contains(&event.sender.id)
        })
    }
}

/// Returns the conversations in which a question may have been posted that an event concerns: its own,
/// and the chat around its thread.
pub(super) fn question_channels(event: &ChatEvent) -> Vec<String> {
    let own = event.place.channel(event.platform);
    let around = event.place.without_thread().channel(event.platform);
    match own == around {
        true => vec![own],
        false => vec![own, around],
    }
}

/// Returns the bot of a chat of `notify`, if an agent uses it too. Otherwise no answer would be received.
fn chat_bot_of(setup: &DaemonSetup, chat: &NotifyChat<'_>) -> Option<ChatCredential> {
    let platform = chat.platform.parse::<ChatPlatform>().ok()?;
    find_bot_of_variable(&setup.loaded, &setup.env, platform, chat.token_variable)
}

/// Returns the people who may answer an agent's questions to a bot.
fn agent_approvers<'c>(
    setup: &DaemonSetup,
    agent: &'c AgentConfig,
    bot: &ChatCredential,
) -> &'c [String] {
    let Some(policy) = ChatPolicy::of_agent(agent, bot.platform) else { return &[] };
    let own = find_bot_of_variable(&setup.loaded, &setup.env, bot.platform, policy.token_variable);
    match own.is_some_and(|own| own.account == bot.account) {
        true => policy.approvers,
        false => &[],
    }
}

/// Returns the people who may answer gates of workflows in a chat.
fn gate_approvers<'c>(
    setup: &'c DaemonSetup,
    chat: &NotifyChat<'c>,
    bot: &ChatCredential,
) -> &'c [String] {
    if !chat.approvers.is_empty() {
        return chat.approvers;
    }
    let agent = setup.workflow_agent().and_then(|name| setup.agent(name.as_str()));
    agent.map_or(&[], |agent| agent_approvers(setup, agent, bot))
}
