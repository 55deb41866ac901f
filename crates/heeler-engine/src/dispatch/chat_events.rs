//! Events of chats: each is recorded once, in the commit of what follows from it.
//!
//! A message becomes a job, a command or an answer, or it is refused with a reason on record. The
//! link acknowledges the event after the commit; an event that comes again changes nothing. Start at
//! [`DispatchTransaction::apply_chat_event`].

use std::sync::Arc;

use heeler_config::{AttachmentConfig, ChatLogLevel, WhileBusy};
use heeler_connect::{
    BotCommand, ChatContent, ChatEvent, ChatFile, ChatPlatform, ChatPolicy, ChatRoute, FileVerdict,
    describe_files, judge_files, quote_earlier, route_message,
};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{ChannelKey, JobId, JobRequest, MessageFile, MessageFiles, TriggerType};
use heeler_store::{ChatMessageRecord, DatabaseError, InboxRecord};
use jiff::SignedDuration;

use super::chat_posts::conversation_place;
use super::event::DispatchEffect;
use super::transaction::DispatchTransaction;
use crate::chat::{ChatGapChange, ChatPost, ChatPostAction, account_policies, issue_of_place};
use crate::command::CommandReply;
use crate::dispatch_failure::DispatchFailure;
use crate::setup::DaemonSetup;

/// Time for which events are remembered. No platform delivers an event again after a day.
const EVENTS_KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Longest message, in bytes. Platforms have lower limits.
const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// Text of a message that was spoken. Its transcript is added before the job starts.
const VOICE_ONLY: &str = "I sent a voice message.";

/// Time in which the messages of a person are counted.
const FLOOD_PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// Outcome of an event.
pub(super) struct ChatOutcome {
    /// Word in the record.
    pub(super) word: &'static str,
    pub(super) job: Option<JobId>,
    pub(super) reason: Option<String>,
    /// Short text for the person who clicked.
    pub(super) notice: String,
}

impl ChatOutcome {
    pub(super) fn new(word: &'static str) -> ChatOutcome {
        ChatOutcome { word, job: None, reason: None, notice: String::new() }
    }

    pub(super) fn refused(reason: impl Into<String>) -> ChatOutcome {
        ChatOutcome { reason: Some(reason.into()), ..ChatOutcome::new("refused") }
    }
}

impl DispatchTransaction<'_, '_> {
    /// Applies an event, unless it was applied before.
    pub(super) fn apply_chat_event(
        &mut self,
        event: &ChatEvent,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let ChatEvent { platform, account, event_id, .. } = event;
        if let Ok(before) = self.now.checked_sub(EVENTS_KEPT) {
            self.tx.prune_inbox(before)?;
        }
        // The platform repeats what it does not know to be received.
        if self.tx.inbox_event(platform.as_str(), account, event_id)?.is_some() {
            return Ok(Some(CommandReply::Done { message: String::new() }));
        }
        let setup = Arc::clone(&self.state.setup);
        let policies = account_policies(&setup.loaded, &setup.env, *platform, account);
        let outcome = match &event.content {
            ChatContent::Message { text, addresses_bot, replies_to, files, .. } => {
                let answered = match files.is_empty() {
                    true => self.answer_by_reply(event, &policies, text, replies_to.as_deref())?,
                    // An answer is a text.
                    false => None,
                };
                match answered {
                    Some(outcome) => outcome,
                    None => self.apply_written_message(event, &policies, text, *addresses_bot)?,
                }
            }
            ChatContent::Wordless { addresses_bot } => {
                let engaged = self.engaged_agent(event, &policies)?;
                let route = route_message(&policies, event, "", *addresses_bot, engaged);
                if matches!(route, ChatRoute::Agent { .. }) {
                    self.answer_event(event, "I can only read text.")?;
                }
                ChatOutcome::refused("it has no text")
            }
            ChatContent::Command { text, .. } => {
                self.apply_slash_command(event, &policies, text)?
            }
            ChatContent::Click { message, value, .. } => {
                self.apply_chat_click(event, &policies, (message, value))?
            }
        };
        let notice = outcome.notice.clone();
        log_event(event, &policies, &outcome);
        self.record_event(event, outcome)?;
        Ok(Some(CommandReply::Done { message: notice }))
    }

    /// Records a change of a gap.
    pub(super) fn record_gap(
        &mut self,
        change: &ChatGapChange,
    ) -> Result<CommandReply, DatabaseError> {
        match change {
            ChatGapChange::Begin { key, marks } => self.tx.begin_chat_gap(key, marks)?,
            ChatGapChange::End { key, kept } => self.tx.end_chat_gap(key, kept)?,
        }
        Ok(CommandReply::Done { message: String::new() })
    }

    /// Applies a message that answers no question.
    fn apply_written_message(
        &mut self,
        event: &ChatEvent,
        policies: &[ChatPolicy<'_>],
        text: &str,
        addresses_bot: bool,
    ) -> Result<ChatOutcome, DispatchFailure> {
        // Where people talk to each other too, only a command continues a conversation without a mention.
        let may_continue =
            !event.platform.has_public_threads() || BotCommand::is_marked_command(text);
        let engaged = match may_continue {
            true => self.engaged_agent(event, policies)?,
            false => None,
        };
        Ok(match route_message(policies, event, text, addresses_bot, engaged) {
            ChatRoute::Agent { policy, text } => {
                self.apply_chat_message(event, policies, policy, &text)?
            }
            ChatRoute::Ignored(reason) => {
                ChatOutcome { reason: Some(reason), ..ChatOutcome::new("ignored") }
            }
            ChatRoute::Refused { reason, answer } => {
                self.refuse_sender(event, &answer)?;
                ChatOutcome::refused(reason)
            }
        })
    }

    /// Returns the agent that takes part in the thread of a message. Its replies need no mention.
    pub(super) fn engaged_agent<'c>(
        &self,
        event: &ChatEvent,
        policies: &[ChatPolicy<'c>],
    ) -> Result<Option<&'c str>, DatabaseError> {
        if event.place.thread.is_none() || !event.platform.has_reply_threads() {
            return Ok(None);
        }
        let mut engaged = None;
        for policy in policies {
            let name = policy.agent.name.as_str();
            let place = conversation_place(name, event.platform.as_str(), &event.place);
            if self.tx.chat_conversation(place)?.is_some() {
                // With two agents, a message must name one.
                if engaged.is_some() {
                    return Ok(None);
                }
                engaged = Some(name);
            }
        }
        Ok(engaged)
    }

    fn record_event(
        &mut self,
        event: &ChatEvent,
        outcome: ChatOutcome,
    ) -> Result<(), DatabaseError> {
        let message_id = match &event.content {
            ChatContent::Message { id, .. } => Some(id.clone()),
            ChatContent::Click { message, .. } => Some(message.clone()),
            ChatContent::Wordless { .. } | ChatContent::Command { .. } => None,
        };
        let channel = event.place.channel(event.platform);
        self.tx.add_inbox_event(&InboxRecord {
            platform: event.platform.to_string(),
            account: event.account.clone(),
            event_id: event.event_id.clone(),
            received_at: self.now,
            channel,
            is_direct: event.place.is_direct,
            message_id,
            sender: event.sender.id.clone(),
            outcome: outcome.word.to_owned(),
            job: outcome.job,
            reason: outcome.reason,
        })
    }

    /// Applies a message for an agent.
    fn apply_chat_message(
        &mut self,
        event: &ChatEvent,
        policies: &[ChatPolicy<'_>],
        policy: &ChatPolicy<'_>,
        text: &str,
    ) -> Result<ChatOutcome, DispatchFailure> {
        if let Some(command) = BotCommand::parse(text) {
            return self.apply_chat_command(event, policies, policy, &command);
        }
        let files = message_files(event);
        if files.is_empty()
            && let Some(outcome) = self.answer_open_question(event, policy, text)?
        {
            return Ok(outcome);
        }
        self.take_message(event, policy, text)
    }

    /// Makes a message the work of an agent.
    pub(super) fn take_message(
        &mut self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
        text: &str,
    ) -> Result<ChatOutcome, DispatchFailure> {
        let files = message_files(event);
        let verdicts = judge_files(files, policy.files, policy.voice);
        if text.is_empty() && verdicts.iter().all(|verdict| verdict.outcome.is_err()) {
            return self.refuse_files(event, &verdicts);
        }
        let channel = event.place.channel(event.platform);
        if channel.parse::<ChannelKey>().is_err() || text.len() > MESSAGE_BYTES_MAX {
            let refused = ChatOutcome::refused("it is too long");
            return Ok(self.answer_with(event, "This message is too long.", refused)?);
        }
        if self.is_flooding(event, policy)? {
            return self.refuse_flood(event, policy);
        }
        if policy.while_busy == WhileBusy::Interrupt {
            self.cancel_conversation(event, policy.agent.name.as_str(), &channel)?;
        }
        // A running job receives texts only.
        if policy.while_busy == WhileBusy::Say
            && files.is_empty()
            && let Some(job) = self.job_to_talk_to(policy.agent.name.as_str(), &channel)
            && let Some(outcome) = self.say_to_job(event, &job, &spoken_prompt(event, text))?
        {
            self.record_said(event, policy, text)?;
            return Ok(outcome);
        }
        match self.create_chat_job(event, policy, (text, &verdicts), channel) {
            Ok(job) => Ok(ChatOutcome { job: Some(job), ..ChatOutcome::new("job") }),
            // The reason is posted, because no one watches the daemon's log here.
            Err(DispatchFailure::Refused(refused)) => {
                let answer = format!("I cannot take this message: {}", refused.message);
                Ok(self.answer_with(event, &answer, ChatOutcome::refused(refused.message))?)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Returns true if agents took as many messages of the sender within a minute as the policy allows.
    fn is_flooding(
        &self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
    ) -> Result<bool, DatabaseError> {
        let since = self.now.checked_sub(FLOOD_PERIOD).unwrap_or(self.now);
        let sender = (event.platform.as_str(), event.account.as_str(), event.sender.id.as_str());
        let most = policy.messages_per_minute;
        Ok(self.tx.count_messages_taken(sender, since, most)? >= most)
    }

    /// Refuses a message of a person who writes too many. The person gets one notice an hour.
    fn refuse_flood(
        &mut self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
    ) -> Result<ChatOutcome, DispatchFailure> {
        let most = policy.messages_per_minute;
        let (channel, sender) = (event.place.channel(event.platform), &event.sender.id);
        let hour = self.now.as_second() / 3600;
        let id = format!("chat flood {} {channel} {sender} {hour}", event.account);
        let text = format!(
            "I take at most {most} messages of one person in a minute. I do not take this one, nor \
             further ones until then. Write again later."
        );
        self.post_notice(event, id, &text)?;
        let reason = format!(
            "{sender} wrote more than {most} messages within a minute (`messages_per_minute`)"
        );
        Ok(ChatOutcome { notice: text, ..ChatOutcome::refused(reason) })
    }

    /// Refuses a message of which nothing is left.
    fn refuse_files(
        &mut self,
        event: &ChatEvent,
        verdicts: &[FileVerdict<'_>],
    ) -> Result<ChatOutcome, DispatchFailure> {
        let reasons: Vec<String> = verdicts
            .iter()
            .filter_map(|FileVerdict { file, outcome, .. }| {
                let reason = outcome.as_ref().err()?;
                Some(format!("\"{}\": {reason}", file.shown_name()))
            })
            .collect();
        let reasons = reasons.join("; ");
        self.answer_event(event, &format!("I cannot take this file. {reasons}"))?;
        Ok(ChatOutcome::refused(format!("it has no text, and its files are not taken: {reasons}")))
    }

    /// Queues the job of a message.
    fn create_chat_job(
        &mut self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
        (text, verdicts): (&str, &[FileVerdict<'_>]),
        channel: String,
    ) -> Result<JobId, DispatchFailure> {
        let agent = policy.agent;
        let name = agent.name.as_str();
        let job = self.tx.new_job_id(self.now)?;
        let folder = format!("{}/{job}", policy.files_folder);
        let text = &text_with_files(text, verdicts, &folder);
        let mut prompt = spoken_prompt(event, text);
        let place = conversation_place(name, event.platform.as_str(), &event.place);
        let known = self.tx.chat_conversation(place)?;
        if !known.as_ref().is_some_and(|known| known.is_active) {
            prompt = quote_earlier(&event.earlier, &prompt);
        }
        let wanted = JobRequest {
            prompt: Some(prompt),
            channel: Some(channel),
            trigger: TriggerType::Chat,
            // Questions reach the people who may answer them.
            attended: !policy.approvers.is_empty(),
            files: accepted_files(event, policy, verdicts, folder),
            session: match &known {
                // A person has ended the conversation.
                Some(known) if !known.is_active => SessionChoice::Fresh,
                _ => SessionChoice::Usual,
            },
            ..JobRequest::new(agent.name.clone())
        };
        self.check_admissible(&wanted)?;
        self.check_queue_space()?;
        self.enqueue_job(&job, agent, &wanted)?;
        self.effects.push(DispatchEffect::ShowChatJob { job: job.clone() });
        self.acknowledge_on_github(event, policy)?;
        let conversation = match known.filter(|known| known.is_active) {
            Some(known) => known.id,
            None => {
                let id = format!("chat-{}", uuid::Uuid::new_v4());
                self.tx.begin_conversation(&id, place, self.now)?;
                id
            }
        };
        self.add_user_message(event, &conversation, text)?;
        Ok(job)
    }

    /// Adds a message to the record of its conversation.
    fn add_user_message(
        &mut self,
        event: &ChatEvent,
        conversation: &str,
        text: &str,
    ) -> Result<(), DatabaseError> {
        let content = self.redact_text(text);
        let message = ChatMessageRecord { role: "user".to_owned(), content, at: self.now };
        let platform_id = match &event.content {
            ChatContent::Message { id, .. } => Some(id.as_str()),
            _ => None,
        };
        self.tx.add_chat_message(conversation, &message, platform_id, None)
    }

    /// Records a message that a running job receives.
    fn record_said(
        &mut self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
        text: &str,
    ) -> Result<(), DatabaseError> {
        let name = policy.agent.name.as_str();
        let place = conversation_place(name, event.platform.as_str(), &event.place);
        match self.tx.chat_conversation(place)? {
            Some(known) => self.add_user_message(event, &known.id, text),
            None => Ok(()),
        }
    }

    /// Answers an event: a command for its sender only, others at their place.
    pub(super) fn answer_with(
        &mut self,
        event: &ChatEvent,
        text: &str,
        outcome: ChatOutcome,
    ) -> Result<ChatOutcome, DatabaseError> {
        if !matches!(event.content, ChatContent::Command { .. }) {
            self.answer_event(event, text)?;
        }
        Ok(ChatOutcome { notice: self.redact_text(text), ..outcome })
    }

    /// Answers an event at its place.
    pub(super) fn answer_event(
        &mut self,
        event: &ChatEvent,
        text: &str,
    ) -> Result<(), DatabaseError> {
        let id = format!("chat {} {} {}", event.platform, event.account, event.event_id);
        self.post_notice(event, id, text)
    }

    /// Tells a person once a day that the message was refused. The limit keeps strangers from making
    /// the fleet post.
    pub(super) fn refuse_sender(
        &mut self,
        event: &ChatEvent,
        text: &str,
    ) -> Result<(), DatabaseError> {
        // Where everyone can write, strangers could make the fleet post everywhere.
        if event.sender.is_outsider {
            return Ok(());
        }
        let day = self.now.to_string();
        let day = day.split('T').next().unwrap_or_default();
        let (channel, sender) = (event.place.channel(event.platform), &event.sender.id);
        let id = format!("chat refused {} {channel} {sender} {day}", event.account);
        self.post_notice(event, id, text)
    }

    fn post_notice(
        &mut self,
        event: &ChatEvent,
        id: String,
        text: &str,
    ) -> Result<(), DatabaseError> {
        let reply_to = match &event.content {
            ChatContent::Message { id, .. } if !event.place.is_direct => Some(id.clone()),
            _ => None,
        };
        let post = ChatPost {
            platform: event.platform,
            account: event.account.clone(),
            place: event.place.clone(),
            agent: None,
            notify: None,
            action: ChatPostAction::Notice { text: self.redact_text(text), reply_to },
        };
        self.add_chat_post(id, &post)
    }
}

fn message_files(event: &ChatEvent) -> &[ChatFile] {
    match &event.content {
        ChatContent::Message { files, .. } => files,
        _ => &[],
    }
}

/// Returns the text of a message with the list of its files.
fn text_with_files(text: &str, verdicts: &[FileVerdict<'_>], folder: &str) -> String {
    let is_spoken = verdicts.iter().any(|verdict| verdict.is_transcribed);
    let text = if is_spoken && text.is_empty() { VOICE_ONLY } else { text };
    match (verdicts.iter().all(|verdict| verdict.is_transcribed), text) {
        (true, text) => text.to_owned(),
        (false, "") => describe_files(verdicts, folder),
        (false, text) => format!("{text}\n\n{}", describe_files(verdicts, folder)),
    }
}

/// Returns the files that are fetched before the job starts.
fn accepted_files(
    event: &ChatEvent,
    policy: &ChatPolicy<'_>,
    verdicts: &[FileVerdict<'_>],
    folder: String,
) -> Option<Box<MessageFiles>> {
    let files = verdicts.iter().filter_map(|FileVerdict { file, outcome, is_transcribed }| {
        let name = outcome.as_ref().ok()?.clone();
        let (media_type, source) = (file.media_type.clone(), file.source.clone());
        Some(MessageFile { name, media_type, source, is_voice: *is_transcribed })
    });
    let files: Vec<MessageFile> = files.collect();
    let bytes_max = policy.files.map_or(0, AttachmentConfig::file_bytes_max);
    let (platform, account) = (event.platform.to_string(), event.account.clone());
    (!files.is_empty())
        .then(|| Box::new(MessageFiles { platform, account, folder, bytes_max, files }))
}

/// Returns the prompt of a message. Several people speak in a group, so each message names its speaker.
/// On GitHub it names the issue too.
fn spoken_prompt(event: &ChatEvent, text: &str) -> String {
    let issue = (event.platform == ChatPlatform::Github).then(|| issue_of_place(&event.place));
    match (event.place.is_direct, issue.flatten()) {
        (true, _) => text.to_owned(),
        (false, Some(issue)) => format!("[{} on {issue}] {text}", event.sender.name),
        (false, None) => format!("[{}] {text}", event.sender.name),
    }
}

/// Logs an event as the most talkative agent of the bot wants it.
fn log_event(event: &ChatEvent, policies: &[ChatPolicy<'_>], outcome: &ChatOutcome) {
    let (channel, reason) = (event.place.channel(event.platform), outcome.reason.as_deref());
    let is_heard = outcome.word != "ignored";
    let wants_log = |policy: &ChatPolicy<'_>| match policy.log_level {
        ChatLogLevel::Minimal => false,
        ChatLogLevel::Standard => is_heard,
        ChatLogLevel::Verbose => true,
    };
    match policies.iter().any(wants_log) {
        true => tracing::info!(channel, outcome = outcome.word, reason, "message in a chat"),
        false => tracing::debug!(channel, outcome = outcome.word, reason, "message in a chat"),
    }
}

/// Returns the name of a sender for records: that of a person of `notify.people`, or the one that the sender
/// chose. The ID is what proves who it was.
pub(super) fn sender_name(setup: &DaemonSetup, event: &ChatEvent) -> String {
    let (platform, id) = (event.platform.as_str(), event.sender.id.as_str());
    let notify = setup.root().and_then(|root| root.notify.as_ref());
    let mut people = notify.iter().flat_map(|notify| &notify.people);
    let person = people.find(|person| person.account(platform) == Some(id));
    let name = person.map_or(event.sender.name.as_str(), |person| person.name.as_str());
    format!("{name} ({platform} {id})")
}
