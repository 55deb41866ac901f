//! Posts to chats: recorded with the change that causes them, and their results.
//!
//! Start at [`DispatchTransaction::post_job_result`].

use std::sync::Arc;

use heeler_connect::{ChatPlace, ChatPlatform, ChatPolicy, has_wide_table, post_parts};
use heeler_model::{Job, JobId, JobStatus};
use heeler_store::{ChatMessageRecord, ConversationPlace, DatabaseError, InboxRecord, SentFile};

use super::event::DispatchEffect;
use super::transaction::DispatchTransaction;
use crate::chat::{
    ChatPost, ChatPostAction, ChatPostOutcome, ChatPostResult, event_place, post_effect_kind,
};

/// Most posts to one platform that wait. Answers beyond that are not posted; they stay on record.
const POSTS_MAX: usize = 10_000;

/// Time within which the same failure is not posted again to a conversation.
const SAME_FAILURE_PERIOD: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);

/// Most files of a job that are posted. One line tells how many more there are.
const SENT_FILES_MAX: usize = 10;

/// Longest error in a post, in characters.
const ERROR_CHARS_MAX: usize = 500;

impl DispatchTransaction<'_, '_> {
    /// Records a post, to be made after the commit. A post with a known ID is not recorded again.
    pub(super) fn add_chat_post(
        &mut self,
        id: String,
        post: &ChatPost,
    ) -> Result<(), DatabaseError> {
        let kind = post_effect_kind(post.platform);
        if self.tx.count_pending_effects(kind, POSTS_MAX)? >= POSTS_MAX {
            tracing::warn!(channel = post.channel(), "a post is dropped: {POSTS_MAX} others wait");
            return Ok(());
        }
        self.tx.add_effect(&post.to_effect(id, self.now))?;
        self.effects.push(DispatchEffect::RunChatPosts);
        Ok(())
    }

    /// Records the result of a post.
    pub(super) fn apply_post_result(
        &mut self,
        result: ChatPostResult,
    ) -> Result<(), DatabaseError> {
        let ChatPostResult { effect, post, outcome } = result;
        match outcome {
            ChatPostOutcome::Postponed { error, until } => {
                let error = self.redact_text(&error);
                tracing::warn!(post = effect, error, "a post to a chat is tried again");
                self.tx.postpone_effect(&effect, &error, until)
            }
            ChatPostOutcome::Failed(error) => {
                let error = self.redact_text(&error);
                tracing::warn!(post = effect, error, "a post to a chat failed");
                self.tx.give_up_effect(&effect, &error, self.now).map(drop)
            }
            ChatPostOutcome::Posted(message) => {
                let is_first = self.tx.finish_effect(&effect, self.now)?;
                if let (true, Some(message), ChatPostAction::Ask { approval, .. }) =
                    (is_first, message, &post.action)
                {
                    self.tx.set_chat_question_message(approval, &post.channel(), &message)?;
                }
                Ok(())
            }
        }
    }

    /// Posts the result of a job that a message in a chat created.
    pub(super) fn post_job_result(&mut self, job: &Job) -> Result<(), DatabaseError> {
        let Some(event) = self.tx.inbox_event_of_job(&job.head.id)? else { return Ok(()) };
        let setup = Arc::clone(&self.state.setup);
        let platform = event.platform.parse::<ChatPlatform>().ok();
        let agent = setup.agent(&job.head.agent);
        let policy = agent.zip(platform).and_then(|(it, on)| ChatPolicy::of_agent(it, on));
        // The config may have dropped the chat since.
        let (Some(platform), Some(policy)) = (platform, policy) else { return Ok(()) };
        let Some(place) = event_place(&event) else { return Ok(()) };
        let Some(text) = self.result_text(job, &policy, &event)? else { return Ok(()) };
        self.record_answer(job, platform, &place, &text)?;
        let at = job.head.finished_at.unwrap_or(self.now).as_millisecond();
        let reply_to = event.message_id.clone().filter(|_| !place.is_direct);
        let mut actions = answer_posts(&policy, (platform, job.head.id.as_str()), text, reply_to);
        actions.extend(sent_file_posts(&job.head.id, self.dir.sent_files(&job.head.id)));
        let count = actions.len();
        for (number, action) in actions.into_iter().enumerate() {
            let post = ChatPost {
                platform,
                account: event.account.clone(),
                place: place.clone(),
                agent: Some(job.head.agent.clone()),
                notify: None,
                action,
            };
            // The numbers sort as text, because posts of one time are made in the order of their IDs.
            self.add_chat_post(format!("chat {} {at} {number:06}/{count}", job.head.id), &post)?;
        }
        Ok(())
    }

    /// Returns the text that is posted at the end of a job, without secrets.
    fn result_text(
        &self,
        job: &Job,
        policy: &ChatPolicy<'_>,
        event: &InboxRecord,
    ) -> Result<Option<String>, DatabaseError> {
        let said = job.output_text.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let mut text = match job.head.status {
            JobStatus::Completed => said.unwrap_or("Done.").to_owned(),
            JobStatus::Cancelled => "Stopped.".to_owned(),
            _ => {
                let error = job.error.as_deref().unwrap_or("it failed without a reason");
                let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
                let text = format!("The job failed: {error}");
                if !policy.shows_errors || self.is_repeated_failure(job, event, &text)? {
                    return Ok(None);
                }
                format!("{text}\n\n(`heeler jobs show {}`)", job.head.id)
            }
        };
        if policy.shows_cost {
            let cost = job.head.cost_usd.map(heeler_model::format_usd);
            let time = job.head.duration_ms.map(|ms| format!("{:.0} s", ms as f64 / 1000.0));
            let parts: Vec<String> = cost.into_iter().chain(time).collect();
            text.push_str(&format!("\n\n{}", parts.join(" · ")));
        }
        Ok(Some(self.redact_text(&text)))
    }

    /// Returns true if the last post of the conversation says the same.
    fn is_repeated_failure(
        &self,
        job: &Job,
        event: &InboxRecord,
        text: &str,
    ) -> Result<bool, DatabaseError> {
        let Some(place) = event_place(event) else { return Ok(false) };
        let place = conversation_place(&job.head.agent, &event.platform, &place);
        let Some(conversation) = self.tx.chat_conversation(place)? else { return Ok(false) };
        let last = self.tx.last_chat_answer(&conversation.id)?;
        let text = self.redact_text(text);
        Ok(last.is_some_and(|last| {
            let age = self.now.duration_since(last.at);
            last.content.starts_with(&text) && age < SAME_FAILURE_PERIOD
        }))
    }

    /// Records an answer in its conversation.
    fn record_answer(
        &mut self,
        job: &Job,
        platform: ChatPlatform,
        place: &ChatPlace,
        text: &str,
    ) -> Result<(), DatabaseError> {
        let place = conversation_place(&job.head.agent, platform.as_str(), place);
        let Some(conversation) = self.tx.chat_conversation(place)? else { return Ok(()) };
        let message = ChatMessageRecord {
            role: "assistant".to_owned(),
            content: text.to_owned(),
            at: self.now,
        };
        let session = job.head.session_id.as_ref().map(heeler_model::AgentSessionId::as_str);
        self.tx.add_chat_message(&conversation.id, &message, None, session)
    }
}

/// Returns the posts of an answer: its parts, or its beginning and a file with all of it.
fn answer_posts(
    policy: &ChatPolicy<'_>,
    (platform, job): (ChatPlatform, &str),
    text: String,
    reply_to: Option<String>,
) -> Vec<ChatPostAction> {
    let parts = post_parts(platform, &text);
    let is_long = parts.len() > policy.posts_max;
    let shown = if is_long { 1 } else { parts.len() };
    let parts = parts.into_iter().take(shown).enumerate().map(|(number, text)| {
        // The first part answers the message; the others follow it. On GitHub, a reply selects the thread.
        let is_reply = number == 0 || platform == ChatPlatform::Github;
        ChatPostAction::Say { text, reply_to: reply_to.clone().filter(|_| is_reply) }
    });
    // GitHub shows tables, and takes no files.
    let is_wide = platform != ChatPlatform::Github && has_wide_table(&text);
    let file = (is_long || is_wide).then(|| {
        let name = format!("answer-{job}.md");
        ChatPostAction::File { name, content: text.clone() }
    });
    parts.chain(file).collect()
}

/// Returns the posts of the files that the agent of a job sent, and a line about those beyond the limit.
fn sent_file_posts(job: &JobId, sent: Vec<SentFile>) -> Vec<ChatPostAction> {
    let count = sent.len();
    let files = (1..).zip(sent).take(SENT_FILES_MAX).filter_map(|(number, sent)| {
        let (job, copy) = (job.clone(), sent.path.file_name()?.to_owned());
        let position = (count > 1).then_some((number, count));
        Some(ChatPostAction::SentFile { job, copy, name: sent.name, position })
    });
    let rest = match count.saturating_sub(SENT_FILES_MAX) {
        0 => None,
        1 => Some("1 more file of this job is not posted".to_owned()),
        more => Some(format!("{more} more files of this job are not posted")),
    };
    let rest = rest.map(|said| {
        let text = format!("{said}. `heeler jobs show {job}` lists all files with their paths.");
        ChatPostAction::Say { text, reply_to: None }
    });
    files.chain(rest).collect()
}

/// Returns the place of an agent's conversation, as its record names it.
pub(super) fn conversation_place<'a>(
    agent: &'a str,
    platform: &'a str,
    place: &'a ChatPlace,
) -> ConversationPlace<'a> {
    ConversationPlace { agent, platform, chat: &place.chat, thread: place.thread.as_deref() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the posts of a number of files with the same name.
    fn posts(count: usize) -> Vec<ChatPostAction> {
        let sent = |number| SentFile {
            name: "a.md".to_owned(),
            path: format!("/files/{number:032x}-a.md").into(),
            bytes: 1,
        };
        let job = "job-2026-11-14-abcdef".parse().unwrap();
        sent_file_posts(&job, (0..count).map(sent).collect())
    }

    fn positions(posts: &[ChatPostAction]) -> Vec<Option<(usize, usize)>> {
        let position = |post: &ChatPostAction| match post {
            ChatPostAction::SentFile { position, .. } => *position,
            other => panic!("{other:?}"),
        };
        posts.iter().map(position).collect()
    }

    #[test]
    fn each_file_of_a_job_has_its_position_unless_it_is_the_only_one() {
        assert_eq!(positions(&posts(0)), []);
        assert_eq!(positions(&posts(1)), [None]);
        assert_eq!(positions(&posts(2)), [Some((1, 2)), Some((2, 2))]);
        assert_eq!(posts(SENT_FILES_MAX).len(), SENT_FILES_MAX);
    }

    #[test]
    fn one_line_tells_how_many_files_beyond_the_limit_there_are() {
        let shown = |count: usize| {
            let mut posts = posts(count);
            let last = posts.pop();
            assert_eq!(posts.len(), SENT_FILES_MAX);
            assert_eq!(positions(&posts)[SENT_FILES_MAX - 1], Some((SENT_FILES_MAX, count)));
            match last {
                Some(ChatPostAction::Say { text, reply_to: None }) => text,
                other => panic!("{other:?}"),
            }
        };
        let how = "`heeler jobs show job-2026-11-14-abcdef` lists all files with their paths.";
        assert_eq!(
            shown(SENT_FILES_MAX + 1),
            format!("1 more file of this job is not posted. {how}")
        );
        assert_eq!(
            shown(SENT_FILES_MAX + 3),
            format!("3 more files of this job are not posted. {how}")
        );
    }
}
