//! Commands in chats: words that the fleet answers itself.
//!
//! Start at [`DispatchTransaction::apply_chat_command`].

use std::collections::HashSet;

use heeler_connect::{BotCommand, ChatEvent, ChatPolicy, ChatRoute, route_message};
use heeler_model::{Approval, ApprovalId, ApprovalStatus, Job, JobId, JobRequest, TriggerType};
use heeler_store::DatabaseError;

use super::chat_events::{ChatOutcome, sender_name};
use super::chat_posts::conversation_place;
use super::chat_questions::{QUESTIONS_MAX, question_text, yes_or_no};
use super::commands::retry_request;
use super::event::DispatchEffect;
use super::question_notices::question_channels;
use super::transaction::DispatchTransaction;
use crate::dispatch_failure::DispatchFailure;

/// Most events of the bot in which jobs of a conversation are looked for.
const HISTORY_EVENTS_MAX: usize = 1_000;

/// Most jobs in a list.
const JOBS_SHOWN: usize = 10;

/// Answer to a command in a channel that has a conversation in each thread.
const THREADS_ONLY: &str = "Each thread of this channel is a conversation of its own. Write the command in the thread, \
     with `!` in place of `/`.";

/// The conversations that a command is about: one, or all threads of a channel.
struct ConversationScope {
    channel: String,
    has_threads: bool,
}

impl ConversationScope {
    fn of_event(event: &ChatEvent) -> ConversationScope {
        let channel = event.place.channel(event.platform);
        ConversationScope { channel, has_threads: event.place.is_around_threads(event.platform) }
    }

    fn contains(&self, channel: &str) -> bool {
        let rest = channel.strip_prefix(self.channel.as_str());
        rest.is_some_and(|rest| rest.is_empty() || self.has_threads && rest.starts_with('/'))
    }
}

impl DispatchTransaction<'_, '_> {
    /// Applies a command that a person chose from the platform's commands. The answer is for that person
    /// only.
    pub(super) fn apply_slash_command(
        &mut self,
        event: &ChatEvent,
        policies: &[ChatPolicy<'_>],
        text: &str,
    ) -> Result<ChatOutcome, DispatchFailure> {
        let engaged = self.engaged_agent(event, policies)?;
        let (policy, text) = match route_message(policies, event, text, true, engaged) {
            ChatRoute::Agent { policy, text } => (policy, text),
            ChatRoute::Ignored(reason) => {
                let notice = "I do not answer in this channel.".to_owned();
                let reason = Some(reason);
                return Ok(ChatOutcome { reason, notice, ..ChatOutcome::new("ignored") });
            }
            ChatRoute::Refused { reason, answer } => {
                return Ok(ChatOutcome { notice: answer, ..ChatOutcome::refused(reason) });
            }
        };
        let words = text.trim_start_matches(['/', '!']);
        let command = BotCommand::parse(&format!("/{words}"));
        if command.is_none() && policy.offers_skill(words) {
            let outcome = self.take_message(event, policy, &text)?;
            return Ok(match outcome.notice.is_empty() {
                true => ChatOutcome { notice: format!("I begin with `{text}`."), ..outcome },
                false => outcome,
            });
        }
        let command = command.unwrap_or(BotCommand::Help);
        self.apply_chat_command(event, policies, policy, &command)
    }

    pub(super) fn apply_chat_command(
        &mut self,
        event: &ChatEvent,
        policies: &[ChatPolicy<'_>],
        policy: &ChatPolicy<'_>,
        command: &BotCommand,
    ) -> Result<ChatOutcome, DispatchFailure> {
        let name = policy.agent.name.as_str();
        let channel = event.place.channel(event.platform);
        let scope = ConversationScope::of_event(event);
        let of_thread =
            matches!(command, BotCommand::New | BotCommand::Retry | BotCommand::Session);
        if command.is_operation() && !policy.may_operate(&event.sender) {
            let text = format!("You may not do that here. Your ID is {}.", event.sender.id);
            let reason = format!("{} is not in `operators`", event.sender.id);
            return Ok(self.answer_with(event, &text, ChatOutcome::refused(reason))?);
        }
        let text = match command {
            BotCommand::Help => BotCommand::help_text(),
            _ if of_thread && scope.has_threads => THREADS_ONLY.to_owned(),
            BotCommand::Status => self.conversation_status(name, &scope),
            BotCommand::Stop => self.stop_conversation(event, name, &scope)?,
            BotCommand::New => {
                let place = conversation_place(name, event.platform.as_str(), &event.place);
                if let Some(known) = self.tx.chat_conversation(place)? {
                    self.tx.end_conversation(&known.id, self.now)?;
                }
                "The next message begins a new session.".to_owned()
            }
            BotCommand::Jobs => job_list(&self.conversation_history(event, name)?),
            BotCommand::Usage => usage_text(&self.conversation_history(event, name)?),
            BotCommand::Session => match self.tx.session_of_channel(name, &channel)? {
                Some(session) => format!("`{0}` (`heeler session show {0}`)", session.id),
                None => "This conversation has no session yet.".to_owned(),
            },
            BotCommand::Agents => agent_list(event, policies),
            BotCommand::Retry => return self.retry_last_job(event, policy),
            BotCommand::Approve(id) => {
                return self.answer_by_command(event, (policies, policy), id, true);
            }
            BotCommand::Deny(id) => {
                return self.answer_by_command(event, (policies, policy), id, false);
            }
        };
        Ok(self.answer_with(event, &text, ChatOutcome::new("command"))?)
    }

    /// Lists the unfinished jobs of a conversation.
    pub(super) fn conversation_jobs(&self, agent: &str, channel: &str) -> Vec<JobId> {
        let scope = ConversationScope { channel: channel.to_owned(), has_threads: false };
        self.jobs_in_scope(agent, &scope)
    }

    fn jobs_in_scope(&self, agent: &str, scope: &ConversationScope) -> Vec<JobId> {
        let jobs = self.state.fleet.jobs().filter(|job| {
            let channel = job.request.channel.as_deref();
            job.request.agent.as_str() == agent && channel.is_some_and(|it| scope.contains(it))
        });
        let mut jobs: Vec<JobId> = jobs.map(|job| job.entry.job.clone()).collect();
        jobs.sort();
        jobs
    }

    fn conversation_status(&self, agent: &str, scope: &ConversationScope) -> String {
        let jobs = self.jobs_in_scope(agent, scope);
        let (running, waiting): (Vec<&JobId>, Vec<&JobId>) =
            jobs.iter().partition(|job| self.state.fleet.run_of_job(job).is_some());
        match (&running[..], waiting.len()) {
            ([], 0) => format!("{agent} has nothing to do in this conversation."),
            ([], waiting) => format!("{agent} has not started yet. Messages that wait: {waiting}."),
            ([job, ..], 0) => format!("{agent} is working (`{job}`)."),
            ([job, ..], waiting) => {
                format!("{agent} is working (`{job}`). Messages that wait: {waiting}.")
            }
        }
    }

    fn stop_conversation(
        &mut self,
        event: &ChatEvent,
        agent: &str,
        scope: &ConversationScope,
    ) -> Result<String, DispatchFailure> {
        let jobs = self.jobs_in_scope(agent, scope);
        Ok(match self.cancel_jobs(event, jobs)? {
            0 => "There is nothing to stop.".to_owned(),
            1 => "Stopping.".to_owned(),
            count => format!("Stopping {count} jobs."),
        })
    }

    /// Cancels the unfinished jobs of a conversation; returns their number.
    pub(super) fn cancel_conversation(
        &mut self,
        event: &ChatEvent,
        agent: &str,
        channel: &str,
    ) -> Result<usize, DispatchFailure> {
        let jobs = self.conversation_jobs(agent, channel);
        self.cancel_jobs(event, jobs)
    }

    fn cancel_jobs(
        &mut self,
        event: &ChatEvent,
        jobs: Vec<JobId>,
    ) -> Result<usize, DispatchFailure> {
        let by = sender_name(&self.state.setup, event);
        for job in &jobs {
            match self.cancel_job(job, false, &by) {
                // A job may end in the same turn.
                Ok(_) | Err(DispatchFailure::Refused(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(jobs.len())
    }

    /// Returns the jobs of a conversation of an agent, newest first.
    fn conversation_history(
        &self,
        event: &ChatEvent,
        agent: &str,
    ) -> Result<Vec<Job>, DatabaseError> {
        let (platform, scope) = (event.platform.as_str(), ConversationScope::of_event(event));
        let events = self.tx.recent_inbox_events(platform, &event.account, HISTORY_EVENTS_MAX)?;
        let mut seen = HashSet::new();
        let mut jobs = Vec::new();
        for received in events.into_iter().filter(|received| scope.contains(&received.channel)) {
            let Some(id) = received.job.filter(|id| seen.insert(id.clone())) else { continue };
            let job = self.tx.job(&id)?;
            jobs.extend(job.filter(|job| job.head.agent == agent));
        }
        Ok(jobs)
    }

    /// Queues the last job of a conversation again.
    fn retry_last_job(
        &mut self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
    ) -> Result<ChatOutcome, DispatchFailure> {
        let refuse = |this: &mut Self, text: &str| {
            Ok(this.answer_with(event, text, ChatOutcome::refused(text))?)
        };
        let history = self.conversation_history(event, policy.agent.name.as_str())?;
        let Some(last) = history.first() else {
            return refuse(self, "There is nothing to retry.");
        };
        if !last.head.status.is_final() {
            return refuse(self, "The last job has not ended yet.");
        }
        let wanted = JobRequest {
            channel: Some(event.place.channel(event.platform)),
            trigger: TriggerType::Chat,
            attended: !policy.approvers.is_empty(),
            ..retry_request(last)?
        };
        let queued = self.check_admissible(&wanted).and_then(|()| self.check_queue_space());
        match queued {
            Ok(()) => {
                let job = self.tx.new_job_id(self.now)?;
                self.enqueue_job(&job, policy.agent, &wanted)?;
                self.effects.push(DispatchEffect::ShowChatJob { job: job.clone() });
                let notice = format!("I do it again (`{job}`).");
                Ok(ChatOutcome { job: Some(job), notice, ..ChatOutcome::new("job") })
            }
            Err(refused) => refuse(self, &refused.message),
        }
    }

    /// Answers a question that was posted to this conversation, or to the chat around it.
    fn answer_by_command(
        &mut self,
        event: &ChatEvent,
        (policies, policy): (&[ChatPolicy<'_>], &ChatPolicy<'_>),
        id: &str,
        approve: bool,
    ) -> Result<ChatOutcome, DispatchFailure> {
        let Some((approval, channel)) = self.asked_here(event, policy, id)? else {
            let refused = ChatOutcome::refused("its question was not asked here");
            let text = "No such question was asked in this conversation.";
            return Ok(self.answer_with(event, text, refused)?);
        };
        let refusal = match approval.status {
            _ if !self.may_answer(policies, &approval, event, &channel) => {
                Some(format!("You may not answer. Your ID is {}.", event.sender.id))
            }
            ApprovalStatus::Pending if approve && !question_text(&approval).1 => Some(format!(
                "The request is too long to be allowed here. Read it with `heeler approvals show {}`.",
                approval.id
            )),
            _ if approval.kind.expects_text() && approve => {
                Some("This question is answered with a text.".to_owned())
            }
            _ => None,
        };
        if let Some(text) = refusal {
            return Ok(self.answer_with(event, &text, ChatOutcome::refused(text.clone()))?);
        }
        let outcome = self.answer_from_chat(event, &approval, yes_or_no(&approval, approve))?;
        match outcome.word {
            "refused" => {
                let text = outcome.notice.clone();
                Ok(self.answer_with(event, &text, outcome)?)
            }
            _ => Ok(outcome),
        }
    }
}

impl DispatchTransaction<'_, '_> {
    /// Returns a question of the agent, or a gate, that was posted where an event happened, with the
    /// channel of the post.
    fn asked_here(
        &self,
        event: &ChatEvent,
        policy: &ChatPolicy<'_>,
        id: &str,
    ) -> Result<Option<(Approval, String)>, DatabaseError> {
        let Ok(id) = id.parse::<ApprovalId>() else { return Ok(None) };
        let mut channels = question_channels(event);
        if event.place.is_around_threads(event.platform) {
            let scope = ConversationScope::of_event(event);
            let open = self.tx.open_chat_questions(QUESTIONS_MAX)?.into_iter();
            let here = open.filter(|it| it.approval == id && scope.contains(&it.channel));
            channels.extend(here.map(|question| question.channel));
        }
        for channel in channels {
            if self.tx.chat_question(&id, &channel)?.is_none() {
                continue;
            }
            let own = Some(policy.agent.name.as_str());
            let approval = self.tx.approval(&id)?;
            let approval =
                approval.filter(|it| it.ask_id.is_none() || it.requested_by.as_deref() == own);
            return Ok(approval.map(|approval| (approval, channel)));
        }
        Ok(None)
    }
}

fn job_list(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "This conversation has no jobs yet.".to_owned();
    }
    let line = |job: &Job| format!("- `{}` {}", job.head.id, job.head.status);
    let lines: Vec<String> = jobs.iter().take(JOBS_SHOWN).map(line).collect();
    lines.join("\n")
}

fn usage_text(jobs: &[Job]) -> String {
    let costs: Vec<f64> = jobs.iter().filter_map(|job| job.head.cost_usd).collect();
    let total: f64 = costs.iter().sum();
    let total = heeler_model::format_usd(total);
    format!("{} jobs of this conversation cost {total}.", jobs.len())
}

fn agent_list(event: &ChatEvent, policies: &[ChatPolicy<'_>]) -> String {
    let here = policies.iter().filter(|policy| policy.answers_in(&event.place));
    let names: Vec<&str> = here.map(|policy| policy.agent.name.as_str()).collect();
    format!(
        "Agents that answer here: {}. Begin a message with a name to address one: `{}: …`",
        names.join(", "),
        names.first().unwrap_or(&"agent")
    )
}
