//! Conversations in chats, and what people and agents said in them.
//!
//! Start at [`FleetReader::chat_messages`].

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
    pub fn chat_messages(&self, query: &ChatMessageQuery) -> Result<ChatMessagePage, QueryError> {
        let reader = self.reader()?;
        let redactor = SecretRedactor::new(&self.context().secrets());
        let mut found = Vec::new();
        for conversation in list_conversations(&reader)? {
            if query.channel.as_ref().is_none_or(|channel| is_below(&conversation.channel, channel))
            {
                add_messages(&reader, &redactor, query, &conversation, &mut found)?;
            }
        }
        found.sort_by_key(|message| message.number);
        let surplus = found.len().saturating_sub(query.limit);
        let messages = found.split_off(surplus);
        let first = messages.first().map(|message| message.number);
        Ok(ChatMessagePage { messages, next: first.filter(|_| surplus > 0) })
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

/// Adds the newest messages of a conversation that a query wants, and one more.
fn add_messages(
    reader: &StoreReader,
    redactor: &SecretRedactor,
    query: &ChatMessageQuery,
    conversation: &ChatConversation,
    found: &mut Vec<ChatMessageDetails>,
) -> Result<(), QueryError> {
    let wanted = query.search.as_ref().map(|text| text.to_lowercase());
    let most = query.limit.saturating_add(1);
    let (mut before, mut count) = (query.before.unwrap_or(i64::MAX), 0);
    loop {
        let page = reader.conversation_messages(&conversation.id, before, MESSAGES_PER_PAGE)?;
        let is_last = page.len() < MESSAGES_PER_PAGE;
        for (number, message) in page {
            before = before.min(number);
            let text = redactor.redact_text(&message.content).into_owned();
            let is_wanted =
                wanted.as_ref().is_none_or(|wanted| text.to_lowercase().contains(wanted.as_str()));
            if !is_wanted {
                continue;
            }
            found.push(ChatMessageDetails {
                number,
                channel: conversation.channel.clone(),
                agent: conversation.agent.clone(),
                role: message.role,
                at: message.at,
                text,
            });
            count += 1;
            if count == most {
                return Ok(());
            }
        }
        if is_last {
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
}
