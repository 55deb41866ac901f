//! Messages of chats to running jobs (`while_busy: say`).
//!
//! Such a message is recorded as an effect in the commit of its event, and sent to the run afterwards. The
//! messages to one job are sent one after the other. A message that the run does not take becomes a job of
//! its own, so none is lost. If the daemon is killed between sending and recording that, the next one finds out
//! whether the run has taken it. Start at [`DispatchTransaction::say_to_job`].

use std::collections::HashSet;

use heeler_connect::{ChatEvent, ChatPlatform, ChatPolicy};
use heeler_model::{JobId, JobRequest, TriggerType, error_chain};
use heeler_store::{EffectRecord, InboxRecord, StoreReader};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::chat_events::{ChatOutcome, sender_name};
use super::dispatcher::Dispatcher;
use super::event::DispatchEffect;
use super::transaction::DispatchTransaction;
use crate::chat::{ChatPost, ChatPostAction, SaidMessageResult, event_place};
use crate::dispatch_failure::DispatchFailure;
use crate::executor::SaidMessageDelivery;

/// Kind of the effects that are messages to running jobs.
const SAY_KIND: &str = "chat_say";

/// Most messages that wait to be sent. Further ones become jobs.
const SAID_MAX: usize = 1_000;

/// A message to a running job, as it is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SaidMessage {
    job: JobId,
    text: String,
    by: String,
    platform: String,
    account: String,
    event_id: String,
    /// By this ID the runner recognizes the message. Records of earlier releases have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message_id: Option<Uuid>,
}

impl DispatchTransaction<'_, '_> {
    /// Returns the job of a conversation that runs, if no other message of the conversation waits.
    pub(super) fn job_to_talk_to(&self, agent: &str, channel: &str) -> Option<JobId> {
        match &self.conversation_jobs(agent, channel)[..] {
            [only] => self.state.fleet.run_of_job(only).map(|_| only.clone()),
            // Messages are answered in order.
            _ => None,
        }
    }

    /// Records a message to a running job. Returns `None` if too many wait.
    pub(super) fn say_to_job(
        &mut self,
        event: &ChatEvent,
        job: &JobId,
        prompt: &str,
    ) -> Result<Option<ChatOutcome>, DispatchFailure> {
        if self.tx.count_pending_effects(SAY_KIND, SAID_MAX)? >= SAID_MAX {
            return Ok(None);
        }
        let message = SaidMessage {
            job: job.clone(),
            text: self.redact_text(prompt),
            by: sender_name(&self.state.setup, event),
            platform: event.platform.to_string(),
            account: event.account.clone(),
            event_id: event.event_id.clone(),
            message_id: Some(Uuid::new_v4()),
        };
        self.tx.add_effect(&EffectRecord {
            id: format!("chat say {} {} {}", event.platform, event.account, event.event_id),
            kind: SAY_KIND.to_owned(),
            key: job.to_string(),
            payload: serde_json::to_string(&message).expect("a message is JSON"),
            created_at: self.now,
            attempts: 0,
            last_error: None,
        })?;
        self.effects.push(DispatchEffect::SendSaidMessages);
        Ok(Some(ChatOutcome { job: Some(job.clone()), ..ChatOutcome::new("said") }))
    }

    /// Records the result of an attempt. A message that was not taken becomes a job.
    pub(super) fn apply_said_message(
        &mut self,
        result: &SaidMessageResult,
    ) -> Result<(), DispatchFailure> {
        // The next message of the job may be sent.
        self.effects.push(DispatchEffect::SendSaidMessages);
        let effect = self.tx.pending_effects_of_kind(SAY_KIND, SAID_MAX)?;
        let effect = effect.into_iter().find(|effect| effect.id == result.effect);
        let is_first = self.tx.finish_effect(&result.effect, self.now)?;
        let (Some(effect), true) = (effect, is_first && !result.is_taken) else { return Ok(()) };
        let Ok(message) = serde_json::from_str::<SaidMessage>(&effect.payload) else {
            return Ok(());
        };
        let SaidMessage { platform, account, event_id, .. } = &message;
        let Some(event) = self.tx.inbox_event(platform, account, event_id)? else { return Ok(()) };
        self.queue_untaken(&message, event)
    }

    /// Queues the job of a message that its run did not take.
    fn queue_untaken(
        &mut self,
        message: &SaidMessage,
        mut event: InboxRecord,
    ) -> Result<(), DispatchFailure> {
        let setup = std::sync::Arc::clone(&self.state.setup);
        let earlier = self.tx.job(&message.job)?;
        let agent = earlier.and_then(|job| setup.agent(&job.head.agent));
        let platform = message.platform.parse::<ChatPlatform>().ok();
        let policy = agent.zip(platform).and_then(|(it, on)| ChatPolicy::of_agent(it, on));
        let refusal = match &policy {
            None => Some("the agent does not answer here any more".to_owned()),
            Some(policy) => {
                let wanted = JobRequest {
                    prompt: Some(message.text.clone()),
                    channel: Some(event.channel.clone()),
                    trigger: TriggerType::Chat,
                    attended: !policy.approvers.is_empty(),
                    ..JobRequest::new(policy.agent.name.clone())
                };
                let queued = self.check_admissible(&wanted).and_then(|()| self.check_queue_space());
                match queued {
                    Err(refused) => Some(refused.message),
                    Ok(()) => {
                        let job = self.tx.new_job_id(self.now)?;
                        self.enqueue_job(&job, policy.agent, &wanted)?;
                        self.effects.push(DispatchEffect::ShowChatJob { job: job.clone() });
                        (event.outcome, event.job) = ("job".to_owned(), Some(job));
                        None
                    }
                }
            }
        };
        if let Some(reason) = refusal {
            (event.outcome, event.reason) = ("refused".to_owned(), Some(reason.clone()));
            if let (Some(platform), Some(place)) = (platform, event_place(&event)) {
                let text = self.redact_text(&format!("I cannot take this message: {reason}"));
                let action = ChatPostAction::Notice { text, reply_to: event.message_id.clone() };
                let account = event.account.clone();
                let post = ChatPost { platform, account, place, agent: None, notify: None, action };
                let id = format!("chat {} {} {}", platform, event.account, event.event_id);
                self.add_chat_post(id, &post)?;
            }
        }
        Ok(self.tx.set_inbox_outcome(&event)?)
    }
}

impl Dispatcher {
    /// Sends the recorded messages to their runs, one of each job at a time.
    pub(super) fn send_said_messages(&mut self) {
        let pending = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error));
        let pending = pending.and_then(|reader| {
            let pending = reader.pending_effects_of_kind(SAY_KIND, SAID_MAX);
            pending.map_err(|error| error_chain(&error))
        });
        let pending = match pending {
            Ok(pending) => pending,
            // The next message, or the next daemon, reads them again.
            Err(reason) => return tracing::warn!(reason, "cannot read the messages to jobs"),
        };
        // Results that are recorded need not be remembered.
        let known: HashSet<&str> = pending.iter().map(|effect| effect.id.as_str()).collect();
        self.deferred.said_messages.retain(|id| known.contains(id.as_str()));
        let mut busy: HashSet<String> = HashSet::new();
        for effect in pending {
            // One after the other, so that they arrive in order.
            if !busy.insert(effect.key.clone())
                || !self.deferred.said_messages.insert(effect.id.clone())
            {
                continue;
            }
            self.send_said_message(effect);
        }
    }

    fn send_said_message(&self, record: EffectRecord) {
        let EffectRecord { id: effect, payload, .. } = record;
        match serde_json::from_str::<SaidMessage>(&payload) {
            Ok(SaidMessage { job, text, by, message_id, .. }) => {
                tracing::info!(%job, by, "message to a job");
                let run = self.state().fleet.run_of_job(&job);
                let delivery = SaidMessageDelivery { effect, job, run, message_id, text };
                self.executor.send_said_message(delivery);
            }
            // A newer release may have recorded it; it stays for that release.
            Err(error) => tracing::warn!(effect, %error, "a message to a job cannot be read"),
        }
    }
}
