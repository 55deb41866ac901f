//! Conversations in chats, and what people and agents said in them.
//!
//! Start at [`FleetReader::chat_messages`].

use std::collections::BTreeMap;

use heeler_model::redact::SecretRedactor;
use heeler_store::{ListedConversation, StoreReader};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// Platforms, in the order of the list.
const PLATFORMS: [&str; 4] = ["discord", "github", "slack", "telegram"];

/// Most conversations of a platform that are looked at.
const CONVERSATIONS_MAX: usize = 10_000;

/// Messages that are read at once.
const MESSAGES_PER_PAGE: usize = 500;

/// A conversation of an agent in a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatConversation {
    /// ID.
    pub id: String,
    /// Place: `platform/chat[/thread]`.
    pub channel: String,
    /// Agent; absent for an imported conversation of Last Light.
    pub agent: Option<String>,
    /// ID of the agent's session.
    pub session: Option<String>,
    /// Time of the last message.
    pub last_activity_at: Timestamp,
    /// Number of messages.
    pub messages: i64,
    /// False if a person has ended the conversation.
    pub active: bool,
}

/// Conversations, the last used first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatConversationList {
    /// Conversations.
    pub conversations: Vec<ChatConversation>,
    /// True if there are more.
    pub more: bool,
}

/// Which messages are listed.
#[derive(Debug, Clone, Default)]
pub struct ChatMessageQuery {
    /// Only conversations at this place and in its threads.
    pub channel: Option<String>,
    /// Only messages with this text, without regard to case.
    pub search: Option<String>,
    /// Only messages before this number.
    pub before: Option<i64>,
    /// Maximum number of messages; the last ones are returned.
    pub limit: usize,
}

/// A message in a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatMessageDetails {
    /// Number, which rises with time.
    pub number: i64,
    /// Place of the conversation.
    pub channel: String,
    /// Agent of the conversation.
    pub agent: Option<String>,
    /// Speaker: `user` or `assistant`.
    pub role: String,
    /// Time of the record.
    pub at: Timestamp,
    /// Text, without secrets.
    pub text: String,
}

/// Messages in chats, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatMessagePage {
    /// Messages.
    pub messages: Vec<ChatMessageDetails>,
    /// Value of `before` for the previous page; absent at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

impl From<ListedConversation> for ChatConversation {
    fn from(listed: ListedConversation) -> ChatConversation {
        ChatConversation {
            id: listed.id,
            channel: listed.channel,
            agent: listed.agent,
            session: listed.session,
            last_activity_at: listed.last_activity_at,
            messages: listed.message_count,
            active: listed.is_active,
        }
    }
}

impl FleetReader {
    /// Lists conversations in chats, the last used first.
    pub fn chat_conversations(&self, limit: usize) -> Result<ChatConversationList, QueryError> {
        let mut conversations = list_conversations(&*self.reader()?)?;
        conversations.sort_by(|one, other| {
            (other.last_activity_at, &other.id).cmp(&(one.last_activity_at, &one.id))
        });
        let more = conversations.len() > limit;
        conversations.truncate(limit);
        Ok(ChatConversationList { conversations, more })
    }

    /// Lists messages in chats.
    ///
    /// Memory is bounded by `limit` and one page of a conversation (`MESSAGES_PER_PAGE`). Once `limit` messages
    /// and one more are found, those with lower numbers are neither redacted nor searched. The time of a search
    /// has no other bound: one for a rare text reads all messages of the conversations.
    pub fn chat_messages(&self, query: &ChatMessageQuery) -> Result<ChatMessagePage, QueryError> {
        let reader = self.reader()?;
        let wanted = MessageFilter {
            redactor: SecretRedactor::new(&self.context().secrets()),
            text: query.search.as_ref().map(|text| text.to_lowercase()),
            before: query.before.unwrap_or(i64::MAX),
        };
        let mut newest = NewestMessages::new(query.limit.saturating_add(1));
        let mut conversations = list_conversations(&reader)?;
        // The newest messages come first, so that most of the others are found to be older.
        conversations.sort_by_key(|it| std::cmp::Reverse(it.last_activity_at));
        for conversation in conversations {
            if query.channel.as_ref().is_none_or(|channel| is_below(&conversation.channel, channel))
            {
                add_messages(&reader, &wanted, &conversation, &mut newest)?;
            }
        }
        let mut messages: Vec<_> = newest.kept.into_values().collect();
        let surplus = messages.len().saturating_sub(query.limit);
        messages.drain(..surplus);
        let first = messages.first().map(|message| message.number);
        Ok(ChatMessagePage { messages, next: first.filter(|_| surplus > 0) })
    }
}

/// Filter of a query, without regard to the place.
struct MessageFilter {
    redactor: SecretRedactor,
    /// In lower case.
    text: Option<String>,
    before: i64,
}

impl MessageFilter {
    /// Returns the text of a message without secrets if the query wants it.
    fn wanted_text(&self, content: &str) -> Option<String> {
        let text = self.redactor.redact_text(content).into_owned();
        let is_wanted =
            self.text.as_ref().is_none_or(|wanted| text.to_lowercase().contains(wanted.as_str()));
        is_wanted.then_some(text)
    }
}

/// Messages with the highest numbers of those that were found so far.
struct NewestMessages {
    /// By number.
    kept: BTreeMap<i64, ChatMessageDetails>,
    /// Most messages that are kept.
    most: usize,
}

impl NewestMessages {
    fn new(most: usize) -> NewestMessages {
        NewestMessages { kept: BTreeMap::new(), most }
    }

    /// Returns the number that a message must exceed to be kept.
    fn floor(&self) -> i64 {
        let is_full = self.kept.len() >= self.most;
        let first = self.kept.first_key_value().filter(|_| is_full);
        first.map_or(i64::MIN, |(number, _)| *number)
    }

    fn add(&mut self, message: ChatMessageDetails) {
        self.kept.insert(message.number, message);
        if self.kept.len() > self.most {
            self.kept.pop_first();
        }
    }
}

fn list_conversations(reader: &StoreReader) -> Result<Vec<ChatConversation>, QueryError> {
    let mut found = Vec::new();
    for platform in PLATFORMS {
        let listed = reader.listed_conversations(platform, CONVERSATIONS_MAX)?;
        found.extend(listed.into_iter().map(ChatConversation::from));
    }
    Ok(found)
}

/// Returns true if a place is another one, or a thread of it.
fn is_below(place: &str, other: &str) -> bool {
    let rest = place.strip_prefix(other);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Adds the messages of a conversation that a query wants, as far as they are among the newest.
fn add_messages(
    reader: &StoreReader,
    wanted: &MessageFilter,
    conversation: &ChatConversation,
    newest: &mut NewestMessages,
) -> Result<(), QueryError> {
    // Without a text, all messages are wanted.
    let page_size = match wanted.text {
        Some(_) => MESSAGES_PER_PAGE,
        None => MESSAGES_PER_PAGE.min(newest.most),
    };
    let mut before = wanted.before;
    loop {
        let page = reader.conversation_messages(&conversation.id, before, page_size)?;
        let is_last = page.len() < page_size;
        for (number, message) in page {
            before = before.min(number);
            if number <= newest.floor() {
                continue;
            }
            let Some(text) = wanted.wanted_text(&message.content) else { continue };
            newest.add(ChatMessageDetails {
                number,
                channel: conversation.channel.clone(),
                agent: conversation.agent.clone(),
                role: message.role,
                at: message.at,
                text,
            });
        }
        // Further pages have lower numbers.
        if is_last || before <= newest.floor() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_below_its_channel_and_no_other_channel_is() {
        assert!(is_below("slack/C1", "slack/C1") && is_below("slack/C1/17.5", "slack/C1"));
        assert!(is_below("slack/C1", "slack"));
        assert!(!is_below("slack/C12", "slack/C1") && !is_below("slack/C1", "slack/C1/17.5"));
    }

    #[test]
    fn only_the_newest_messages_are_kept_and_they_tell_which_others_are_too_old() {
        let message = |number| ChatMessageDetails {
            number,
            channel: "slack/C1".to_owned(),
            agent: None,
            role: "user".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            text: String::new(),
        };
        let mut newest = NewestMessages::new(3);
        for (number, floor) in [(7, i64::MIN), (5, i64::MIN), (9, 5), (4, 5), (8, 7), (10, 8)] {
            newest.add(message(number));
            assert_eq!(newest.floor(), floor, "{number}");
            assert!(newest.kept.len() <= 3);
        }
        assert_eq!(newest.kept.into_keys().collect::<Vec<_>>(), [8, 9, 10]);
    }
}
