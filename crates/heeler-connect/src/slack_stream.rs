//! Messages of Slack that grow while they are written: streams.
//!
//! A stream has a recipient, is a reply in a thread, and cannot be changed before it ends. Slack ends it
//! after about five minutes. A start cannot be repeated safely and takes no metadata, so a stream is
//! recognized by a text in it. Start at [`SlackBot::start_stream`].

use serde_json::{Value as Json, json};

use crate::chat_error::ChatApiError;
use crate::chat_event::ChatPlace;
use crate::slack::{MARK_TYPE, SCOPE_MISSING, SlackBot, unexpected};

/// Most characters that one call adds to a stream.
pub const STREAM_TEXT_MAX: usize = 12_000;

/// A character without width, which keeps a text of an agent from being a mention or a link of Slack.
const WORD_JOINER: char = '\u{2060}';

/// Beginnings of refusals that hold for all streams of an app. Other refusals concern one place.
const APP_REFUSALS: [&str; 7] = [
    "unknown_method",
    SCOPE_MISSING,
    "feature_not_enabled",
    "method_deprecated",
    "access_denied",
    "no_permission",
    "team_access_not_granted",
];

/// Person for whom a stream is written.
#[derive(Debug, Clone, Copy)]
pub struct StreamRecipient<'a> {
    pub user: &'a str,
    /// ID of the workspace.
    pub team: &'a str,
}

/// Result of an attempt to start a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStart {
    /// The stream has begun; the ID is that of the message.
    Started(String),
    /// Slack offers no stream. Nothing was posted.
    NotOffered {
        reason: String,
        /// True if the app gets no stream anywhere.
        is_of_app: bool,
    },
}

impl SlackBot {
    /// Returns the ID of the app's workspace.
    pub fn team_id(&self) -> Result<String, ChatApiError> {
        let attempt = "ask for its workspace";
        let answer = self.call("auth.test", attempt, &json!({}))?;
        answer["team_id"].as_str().map(str::to_owned).ok_or_else(|| unexpected(attempt))
    }

    /// Begins a message that grows. Only a thread can have one.
    pub fn start_stream(
        &self,
        place: &ChatPlace,
        recipient: StreamRecipient<'_>,
        markdown: &str,
    ) -> Result<StreamStart, ChatApiError> {
        let Some(thread) = &place.thread else {
            let reason = "the conversation is not a thread".to_owned();
            return Ok(StreamStart::NotOffered { reason, is_of_app: false });
        };
        let attempt = "begin a message that grows";
        let body = json!({
            "channel": place.chat, "thread_ts": thread, "markdown_text": stream_text(markdown),
            "recipient_user_id": recipient.user, "recipient_team_id": recipient.team,
        });
        match self.call("chat.startStream", attempt, &body) {
            Ok(answer) => match answer["ts"].as_str() {
                Some(ts) => Ok(StreamStart::Started(ts.to_owned())),
                None => Err(unexpected(attempt)),
            },
            Err(ChatApiError::Refused { said, .. }) => {
                let is_of_app = APP_REFUSALS.iter().any(|refusal| said.starts_with(refusal));
                Ok(StreamStart::NotOffered { reason: said, is_of_app })
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a text to the end of a stream.
    pub fn append_stream(
        &self,
        place: &ChatPlace,
        message: &str,
        markdown: &str,
    ) -> Result<(), ChatApiError> {
        let text = stream_text(markdown);
        let body = json!({"channel": place.chat, "ts": message, "markdown_text": text});
        self.call("chat.appendStream", "add to a message", &body).map(drop)
    }

    /// Ends a stream. The message is an ordinary one from then on. A stream that has ended before is no
    /// failure.
    pub fn stop_stream(&self, place: &ChatPlace, message: &str) -> Result<(), ChatApiError> {
        let body = json!({"channel": place.chat, "ts": message});
        match self.call("chat.stopStream", "end a message that grows", &body) {
            Err(ChatApiError::Refused { .. }) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Returns the ID of the app's message with a mark, or of its stream with a text that occurs in no other, if
    /// it was made since a time.
    pub fn find_live_post(
        &self,
        place: &ChatPlace,
        (mark, text): (&str, &str),
        since: i64,
    ) -> Result<Option<String>, ChatApiError> {
        let messages = match self.messages_since(place, since) {
            Ok(messages) => messages,
            // An app that may not read the channel cannot know it.
            Err(ChatApiError::Refused { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_marked = |message: &Json| message["metadata"]["event_payload"]["id"] == mark;
        let is_meant = |message: &&Json| is_marked(message) || is_stream_with(message, text);
        let found = messages.iter().find(is_meant);
        Ok(found.and_then(|message| message["ts"].as_str()).map(str::to_owned))
    }
}

/// Returns true for a message of a bot that is neither a recorded post nor a file, and shows a text.
fn is_stream_with(message: &Json, text: &str) -> bool {
    message["bot_id"].is_string()
        && message["metadata"]["event_type"] != MARK_TYPE
        && !message["files"].is_array()
        && (message["text"].as_str().is_some_and(|shown| shown.contains(text))
            || message["blocks"].to_string().contains(text))
}

/// Returns a text for a stream. Slack reads its own markup in it too.
fn stream_text(markdown: &str) -> String {
    let text: String = markdown.chars().take(STREAM_TEXT_MAX).collect();
    let marked = text.replace('<', &format!("<{WORD_JOINER}"));
    marked.chars().take(STREAM_TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_stream_mentions_people_or_exceeds_the_limit() {
        let text = stream_text("<!channel> <@U1> <#C1|x> a < b");
        assert!(!text.contains("<!") && !text.contains("<@") && !text.contains("<#"), "{text}");
        assert_eq!(text.replace(WORD_JOINER, ""), "<!channel> <@U1> <#C1|x> a < b");
        assert_eq!(stream_text(&"<".repeat(STREAM_TEXT_MAX)).chars().count(), STREAM_TEXT_MAX);
    }

    #[test]
    fn a_stream_is_recognized_by_its_text_and_no_other_message_is() {
        let own = json!({"ts": "1.1", "bot_id": "B1", "text": "Working (job-1)"});
        assert!(is_stream_with(&own, "job-1") && !is_stream_with(&own, "job-2"));
        let in_blocks =
            json!({"ts": "1.1", "bot_id": "B1", "text": "", "blocks": [{"x": "job-1"}]});
        assert!(is_stream_with(&in_blocks, "job-1"));
        let changed = |key: &str, value: Json| {
            let mut message = own.clone();
            message[key] = value;
            message
        };
        assert!(!is_stream_with(&changed("bot_id", Json::Null), "job-1"));
        assert!(!is_stream_with(&changed("files", json!([{"id": "F1"}])), "job-1"));
        let marked = changed("metadata", json!({"event_type": MARK_TYPE}));
        assert!(!is_stream_with(&marked, "job-1"));
    }
}
