//! The Web API of Slack: the calls that a fleet needs.
//!
//! Start at [`SlackBot`].

use std::fmt;
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::api_call::{RequestBody, post_body, safe_text};
use crate::channel_page::ChannelPage;
use crate::chat_error::ChatApiError;
use crate::chat_event::ChatPlace;
use crate::outgoing_post::{ChatButton, OutgoingPost, PostMark, PostedFile};
use crate::person_name::person_name;
use crate::slack_text::render_slack;
use crate::split_text::{split_text, units};

/// Longest text of a post, in UTF-16 units. Slack advises against more.
const TEXT_UNITS_MAX: usize = 4_000;

/// Longest text of a block, in UTF-16 units.
const SECTION_UNITS_MAX: usize = 3_000;

/// Shortest length at which texts are split. One character becomes at most five.
const SPLIT_LENGTH_MIN: usize = 400;

/// Time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit of a call for a name, for which a message waits that must be acknowledged within 3 s.
const NAME_TIMEOUT: Duration = Duration::from_secs(1);

/// Most messages of a thread that are read at once. Later ones of a longer thread are not read.
const THREAD_MAX: u32 = 999;

/// Time limit of a call for earlier messages. The message waits for it, and Slack waits 3 s.
const CONTEXT_TIMEOUT: Duration = Duration::from_secs(2);

/// Most messages of one page.
const PAGE: u32 = 100;

/// Most pages that are read to find a message of the bot itself.
const PAGES_MAX: u32 = 10;

/// Time by which the clocks of Slack and of this machine may differ, in seconds.
const CLOCK_DIFFERENCE_MAX: i64 = 600;

/// Name in errors.
const PLATFORM: &str = "Slack";

/// Type of the metadata by which the fleet recognizes its own posts.
pub(crate) const MARK_TYPE: &str = "heeler_post";

/// Beginning of the reason of calls for which the app lacks a scope.
pub(crate) const SCOPE_MISSING: &str = "the app lacks the scope";

/// Scopes that the bot token needs.
const SCOPES: [&str; 6] = [
    "app_mentions:read",
    "chat:write",
    "im:history",
    "channels:history",
    "groups:history",
    "users:read",
];

/// Scope that the bot token needs for files that people send.
const FILES_SCOPE: &str = "files:read";

/// Errors that a wrong or revoked token causes.
const TOKEN_ERRORS: [&str; 8] = [
    "not_authed",
    "invalid_auth",
    "account_inactive",
    "token_revoked",
    "token_expired",
    "user_removed_from_team",
    "team_disabled",
    "not_allowed_token_type",
];

/// Errors that end by themselves.
const TRANSIENT_ERRORS: [&str; 6] = [
    "internal_error",
    "fatal_error",
    "service_unavailable",
    "request_timeout",
    "team_added_to_org",
    // A message that grows cannot be changed. Slack ends it after some minutes.
    "streaming_state_conflict",
];

/// A Slack app with its tokens.
#[derive(Clone)]
pub struct SlackBot {
    api_url: String,
    tokens: SlackTokens,
}

/// Tokens of a Slack app, with the variables that hold them.
#[derive(Clone, PartialEq, Eq)]
pub struct SlackTokens {
    pub bot_token: String,
    pub bot_variable: String,
    pub app_token: String,
    pub app_variable: String,
}

impl fmt::Debug for SlackTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlackTokens({}, {})", self.bot_variable, self.app_variable)
    }
}

impl fmt::Debug for SlackBot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlackBot({})", self.tokens.bot_variable)
    }
}

/// The app's own user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlackUser {
    /// ID of the user as which the app posts.
    pub id: String,
    pub name: String,
    /// Name of the workspace.
    pub team: String,
}

/// Returns the ID of the app that an app token belongs to: `xapp-1-A012345-…`. `None` if the text has
/// not the form of an app token.
pub fn slack_account(app_token: &str) -> Option<&str> {
    let mut parts = app_token.strip_prefix("xapp-")?.split('-');
    let (version, app, secret) = (parts.next()?, parts.next()?, parts.next()?);
    let is_app = app.len() > 1 && app.bytes().all(|b| b.is_ascii_alphanumeric());
    (!version.is_empty() && is_app && !secret.is_empty()).then_some(app)
}

/// Returns true if a text has the form of a bot token.
pub fn is_slack_bot_token(token: &str) -> bool {
    // Tokens that expire have a prefix.
    let token = token.strip_prefix("xoxe.").unwrap_or(token);
    token.starts_with("xoxb-") && token.len() > 10 && token.bytes().all(|b| b.is_ascii_graphic())
}

/// Splits a text into parts that Slack shows completely.
pub(crate) fn slack_parts(text: &str) -> Vec<String> {
    fitting_parts(text, TEXT_UNITS_MAX)
}

/// Splits Markdown so that each part fits in Slack's own form, which may be longer.
fn fitting_parts(text: &str, limit: usize) -> Vec<String> {
    let mut length = limit - limit / 8;
    let mut parts = split_text(text, length);
    let is_long = |part: &String| units(&render_slack(part)) > limit;
    while length > SPLIT_LENGTH_MIN && parts.iter().any(is_long) {
        length = (length / 2).max(SPLIT_LENGTH_MIN);
        parts = parts
            .into_iter()
            .flat_map(|part| if is_long(&part) { split_text(&part, length) } else { vec![part] })
            .collect();
    }
    parts
}

impl SlackBot {
    pub fn new(api_url: &str, tokens: SlackTokens) -> SlackBot {
        SlackBot { api_url: api_url.trim_end_matches('/').to_owned(), tokens }
    }

    /// Returns the app's own user.
    pub fn own_user(&self) -> Result<SlackUser, ChatApiError> {
        let answer = self.call("auth.test", "ask for its own name", &json!({}))?;
        let text = |key: &str| safe_text(answer[key].as_str().unwrap_or_default());
        match answer["user_id"].as_str() {
            Some(id) => Ok(SlackUser { id: id.to_owned(), name: text("user"), team: text("team") }),
            None => Err(unexpected("ask for its own name")),
        }
    }

    /// Lists the needed scopes that the bot token lacks, with those for files that people send; `None` if Slack
    /// does not list its scopes.
    pub fn missing_scopes(
        &self,
        takes_files: bool,
    ) -> Result<Option<Vec<&'static str>>, ChatApiError> {
        let attempt = "ask for its scopes";
        let url = format!("{}/auth.test", self.api_url);
        let body = json!({});
        let token = Some(self.tokens.bot_token.as_str());
        let answer = post_body(&url, token, RequestBody::Form(&body), CALL_TIMEOUT);
        let answer = answer.map_err(|reason| ChatApiError::Unreachable { attempt, reason })?;
        let missing = answer.scopes.map(|list| {
            let is_granted = |scope: &&str| list.split(',').any(|granted| granted.trim() == *scope);
            let of_files = takes_files.then_some(FILES_SCOPE);
            SCOPES.into_iter().chain(of_files).filter(|scope| !is_granted(scope)).collect()
        });
        Ok(missing)
    }

    /// Fails unless the app can read a channel. It must be a member of it.
    pub fn check_channel(&self, chat: &str) -> Result<(), ChatApiError> {
        let body = json!({"channel": chat, "limit": 1});
        self.call("conversations.history", "read a channel", &body).map(drop)
    }

    /// Returns the address of a new socket. It can be used once.
    pub fn open_socket(&self) -> Result<String, ChatApiError> {
        let attempt = "open a socket";
        let SlackTokens { app_token, app_variable, .. } = &self.tokens;
        let token = CallToken { token: app_token, variable: app_variable };
        let call =
            SlackMethodCall { method: "apps.connections.open", attempt, timeout: CALL_TIMEOUT };
        let answer = self.call_as(token, call, &json!({}))?;
        answer["url"].as_str().map(str::to_owned).ok_or_else(|| unexpected(attempt))
    }

    /// Posts a message, unless an earlier attempt has made it; returns its ID.
    pub fn send_once(
        &self,
        place: &ChatPlace,
        post: &OutgoingPost,
        mark: PostMark<'_>,
    ) -> Result<String, ChatApiError> {
        if let Some(since) = mark.maybe_made_since {
            match self.find_post(place, mark.id, since) {
                Ok(Some(message)) => return Ok(message),
                // An app that may not read the channel cannot know it.
                Ok(None) | Err(ChatApiError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let text = render_slack(&post.text);
        let mut body = json!({
            "channel": place.chat,
            "text": text,
            // Slack would fetch addresses that an agent wrote.
            "unfurl_links": false,
            "unfurl_media": false,
            "metadata": {"event_type": MARK_TYPE, "event_payload": {"id": mark.id}},
        });
        if let Some(thread) = &place.thread {
            body["thread_ts"] = json!(thread);
        }
        if !post.buttons.is_empty() {
            let mut blocks = sections(&post.text);
            blocks.push(actions(&post.buttons));
            body["blocks"] = Json::Array(blocks);
        }
        let attempt = "post a message";
        let answer = self.call("chat.postMessage", attempt, &body)?;
        answer["ts"].as_str().map(str::to_owned).ok_or_else(|| unexpected(attempt))
    }

    /// Posts a file, unless an earlier attempt has made the post; returns the ID of the file.
    /// Needs the scope `files:write`.
    pub fn send_file_once(
        &self,
        place: &ChatPlace,
        file: &PostedFile,
        mark: PostMark<'_>,
    ) -> Result<String, ChatApiError> {
        if let Some(since) = mark.maybe_made_since
            && let Some(id) = self.find_file(place, file, since)?
        {
            return Ok(id);
        }
        let attempt = "post a file";
        let body = json!({"filename": file.name, "length": file.content.len()});
        let answer = self.call("files.getUploadURLExternal", attempt, &body)?;
        let (url, id) = (answer["upload_url"].as_str(), answer["file_id"].as_str());
        let (Some(url), Some(id)) = (url, id) else { return Err(unexpected(attempt)) };
        // The content must not travel with less protection than the call.
        if url.split_once(':').map(|it| it.0) != self.api_url.split_once(':').map(|it| it.0) {
            return Err(unexpected(attempt));
        }
        let sent = post_body(url, None, RequestBody::File(&file.content), CALL_TIMEOUT);
        let sent = sent.map_err(|reason| ChatApiError::Unreachable { attempt, reason })?;
        if !(200..300).contains(&sent.status) {
            let reason = format!("Slack answered {} to the content", sent.status);
            return Err(ChatApiError::Unreachable { attempt, reason });
        }
        let mut body = json!({
            "files": [{"id": id, "title": file.name}],
            "channel_id": place.chat, "initial_comment": render_slack(&file.heading),
        });
        if let Some(thread) = &place.thread {
            body["thread_ts"] = json!(thread);
        }
        self.call("files.completeUploadExternal", attempt, &body)?;
        Ok(id.to_owned())
    }

    /// Returns the ID of a file with a name and heading, if it was posted since a time.
    fn find_file(
        &self,
        place: &ChatPlace,
        file: &PostedFile,
        since: i64,
    ) -> Result<Option<String>, ChatApiError> {
        let heading = render_slack(&file.heading);
        let messages = match self.messages_since(place, since) {
            Ok(messages) => messages,
            // An app that may not read the channel cannot know it.
            Err(ChatApiError::Refused { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let messages = messages.iter().filter(|message| message["text"] == heading.as_str());
        let files = messages.filter_map(|message| message["files"].as_array()).flatten();
        let is_meant =
            |found: &&Json| [&found["name"], &found["title"]].contains(&&json!(file.name));
        let found = files.filter(is_meant);
        Ok(found.filter_map(|file| file["id"].as_str()).map(str::to_owned).next())
    }

    /// Replaces the text of a message, and removes its buttons.
    pub fn edit(&self, place: &ChatPlace, message: &str, text: &str) -> Result<(), ChatApiError> {
        let body = json!({
            "channel": place.chat, "ts": message, "text": render_slack(text),
            "blocks": sections(text),
        });
        self.call("chat.update", "change a message", &body).map(drop)
    }

    /// Returns the ID of the post with a mark, if it was made since a time.
    fn find_post(
        &self,
        place: &ChatPlace,
        mark: &str,
        since: i64,
    ) -> Result<Option<String>, ChatApiError> {
        let messages = self.messages_since(place, since)?;
        let found = messages.iter().find(|message| {
            let metadata = &message["metadata"];
            metadata["event_type"] == MARK_TYPE && metadata["event_payload"]["id"] == mark
        });
        Ok(found.and_then(|message| message["ts"].as_str()).map(str::to_owned))
    }

    /// Lists the newest messages of a place that were made since a time. The oldest is first. At most a
    /// thousand are read.
    pub(crate) fn messages_since(
        &self,
        place: &ChatPlace,
        since: i64,
    ) -> Result<Vec<Json>, ChatApiError> {
        let oldest = format!("{}.000000", since.saturating_sub(CLOCK_DIFFERENCE_MAX).max(0));
        let list = MessageList { chat: &place.chat, thread: place.thread.as_deref() };
        let (mut messages, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page = self.message_page(list, &oldest, cursor.as_deref())?;
            messages.extend(page.messages);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        sort_messages(&mut messages);
        Ok(messages)
    }

    /// Reads one page of the messages of a channel, or of one of its threads, that are newer than a
    /// message. `cursor` is that of the page before. Slack begins with the newest page of a channel.
    pub fn message_page(
        &self,
        list: MessageList<'_>,
        oldest: &str,
        cursor: Option<&str>,
    ) -> Result<ChannelPage, ChatApiError> {
        let (method, mut body) = match list.thread {
            Some(thread) => ("conversations.replies", json!({"ts": thread})),
            None => ("conversations.history", json!({})),
        };
        body["channel"] = json!(list.chat);
        body["oldest"] = json!(oldest);
        body["limit"] = json!(PAGE);
        body["include_all_metadata"] = json!(true);
        if let Some(cursor) = cursor {
            body["cursor"] = json!(cursor);
        }
        let mut answer = self.call(method, "read the messages of a channel", &body)?;
        let mut messages = match answer["messages"].take() {
            Json::Array(messages) => messages,
            _ => Vec::new(),
        };
        // The root of a thread is on every page.
        messages.retain(|message| message["ts"].as_str().is_some_and(|ts| ts > oldest));
        let next = answer["response_metadata"]["next_cursor"].as_str();
        Ok(ChannelPage { messages, next: next.filter(|it| !it.is_empty()).map(str::to_owned) })
    }

    /// Lists messages of a channel, or of one of its threads, before a message. The oldest is first.
    pub fn messages_before(
        &self,
        list: MessageList<'_>,
        latest: &str,
        count: usize,
    ) -> Result<Vec<Json>, ChatApiError> {
        // Slack lists channels from their end and threads from their beginning.
        let (method, mut body) = match list.thread {
            Some(thread) => ("conversations.replies", json!({"ts": thread, "limit": THREAD_MAX})),
            None => ("conversations.history", json!({"limit": count})),
        };
        body["channel"] = json!(list.chat);
        body["latest"] = json!(latest);
        let attempt = "read the earlier messages of a channel";
        let call = SlackMethodCall { method, attempt, timeout: CONTEXT_TIMEOUT };
        let mut answer = self.call_as(self.bot_token(), call, &body)?;
        let Json::Array(mut messages) = answer["messages"].take() else {
            return Err(unexpected(attempt));
        };
        messages.sort_by_key(|message| message["ts"].as_str().unwrap_or_default().to_owned());
        messages.retain(|message| message["ts"].as_str().is_some_and(|ts| ts < latest));
        Ok(messages)
    }

    /// Returns a message of a channel, or of one of its threads.
    pub fn message(&self, list: MessageList<'_>, ts: &str) -> Result<Option<Json>, ChatApiError> {
        let (method, mut body) = match list.thread {
            Some(thread) => ("conversations.replies", json!({"ts": thread})),
            None => ("conversations.history", json!({})),
        };
        for (key, value) in [("channel", list.chat), ("oldest", ts), ("latest", ts)] {
            body[key] = json!(value);
        }
        body["inclusive"] = json!(true);
        let call = SlackMethodCall { method, attempt: "read a message", timeout: CONTEXT_TIMEOUT };
        let mut answer = self.call_as(self.bot_token(), call, &body)?;
        let messages = answer["messages"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(messages.into_iter().find(|message| message["ts"] == ts))
    }

    /// Returns the name of a person.
    pub fn user_name(&self, id: &str) -> Result<String, ChatApiError> {
        let call = SlackMethodCall {
            method: "users.info",
            attempt: "ask for a name",
            timeout: NAME_TIMEOUT,
        };
        let answer = self.call_as(self.bot_token(), call, &json!({"user": id}))?;
        let user = &answer["user"];
        let names = [&user["profile"]["display_name"], &user["real_name"], &user["name"]];
        let name = names.into_iter().filter_map(Json::as_str).find(|name| !name.is_empty());
        Ok(person_name(name.unwrap_or_default(), id))
    }

    /// Shows below a thread that the app works, until its next message there. Elsewhere Slack has no
    /// indicator.
    pub fn show_status(&self, place: &ChatPlace) -> Result<(), ChatApiError> {
        let Some(thread) = &place.thread else { return Ok(()) };
        let body = json!({"channel_id": place.chat, "thread_ts": thread, "status": "is working…"});
        self.call("assistant.threads.setStatus", "show that it is working", &body).map(drop)
    }

    /// Adds a reaction to a message. Needs the scope `reactions:write`.
    pub fn react(&self, place: &ChatPlace, message: &str, emoji: &str) -> Result<(), ChatApiError> {
        let body = json!({"channel": place.chat, "timestamp": message, "name": emoji});
        self.call("reactions.add", "add a reaction", &body).map(drop)
    }

    /// Shows a text to one person only.
    pub fn whisper(&self, place: &ChatPlace, user: &str, text: &str) -> Result<(), ChatApiError> {
        let mut body = json!({"channel": place.chat, "user": user, "text": render_slack(text)});
        if let Some(thread) = &place.thread {
            body["thread_ts"] = json!(thread);
        }
        self.call("chat.postEphemeral", "answer a click", &body).map(drop)
    }

    pub(crate) fn api_url(&self) -> &str {
        &self.api_url
    }

    /// Returns the value of the header `authorization`.
    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.tokens.bot_token)
    }

    fn bot_token(&self) -> CallToken<'_> {
        CallToken { token: &self.tokens.bot_token, variable: &self.tokens.bot_variable }
    }

    pub(crate) fn call(
        &self,
        method: &'static str,
        attempt: &'static str,
        body: &Json,
    ) -> Result<Json, ChatApiError> {
        let call = SlackMethodCall { method, attempt, timeout: CALL_TIMEOUT };
        self.call_as(self.bot_token(), call, body)
    }

    fn call_as(
        &self,
        CallToken { token, variable }: CallToken<'_>,
        SlackMethodCall { method, attempt, timeout }: SlackMethodCall,
        body: &Json,
    ) -> Result<Json, ChatApiError> {
        let url = format!("{}/{method}", self.api_url);
        // All methods read forms, but several of those that only read ignore JSON.
        let answer = post_body(&url, Some(token), RequestBody::Form(body), timeout);
        let answer = answer.map_err(|reason| ChatApiError::Unreachable { attempt, reason })?;
        if answer.body["ok"] == true {
            return Ok(answer.body);
        }
        let word = answer.body["error"].as_str().unwrap_or("unknown_error");
        let said = safe_text(&word.replace(token, "[secret]"));
        Err(match word {
            _ if answer.status == 429 || word == "ratelimited" => {
                let seconds = answer.retry_after.unwrap_or(1).clamp(1, 3600);
                let retry_after = Duration::from_secs(seconds);
                ChatApiError::RateLimited { platform: PLATFORM, attempt, retry_after }
            }
            word if TOKEN_ERRORS.contains(&word) => ChatApiError::Unauthorized {
                platform: PLATFORM,
                variable: variable.to_owned(),
                said,
            },
            word if TRANSIENT_ERRORS.contains(&word) || answer.status >= 500 => {
                ChatApiError::Unreachable { attempt, reason: format!("Slack failed: {said}") }
            }
            "not_in_channel" | "channel_not_found" => {
                let said = format!("{said} (invite the app to the channel with /invite)");
                ChatApiError::Refused { platform: PLATFORM, attempt, said }
            }
            "missing_scope" => {
                let needed = safe_text(answer.body["needed"].as_str().unwrap_or_default());
                let said = format!("{SCOPE_MISSING} {needed}: add it and reinstall the app");
                ChatApiError::Refused { platform: PLATFORM, attempt, said }
            }
            _ => ChatApiError::Refused { platform: PLATFORM, attempt, said },
        })
    }
}

/// Sorts messages, the oldest first.
pub fn sort_messages(messages: &mut [Json]) {
    // IDs are seconds with six decimals, so they sort as text.
    messages.sort_by_key(|message| message["ts"].as_str().unwrap_or_default().to_owned());
}

/// A channel, or one of its threads.
#[derive(Debug, Clone, Copy)]
pub struct MessageList<'a> {
    pub chat: &'a str,
    pub thread: Option<&'a str>,
}

#[derive(Clone, Copy)]
struct CallToken<'a> {
    token: &'a str,
    variable: &'a str,
}

struct SlackMethodCall {
    method: &'static str,
    attempt: &'static str,
    timeout: Duration,
}

pub(crate) fn unexpected(attempt: &'static str) -> ChatApiError {
    let reason = "the answer has an unexpected form".to_owned();
    ChatApiError::Unreachable { attempt, reason }
}

/// Returns the blocks that show a text.
fn sections(markdown: &str) -> Vec<Json> {
    let parts = fitting_parts(markdown, SECTION_UNITS_MAX);
    let section = |part: String| json!({"type": "section", "text": {"type": "mrkdwn", "text": render_slack(&part)}});
    parts.into_iter().map(section).collect()
}

fn actions(buttons: &[ChatButton]) -> Json {
    let elements: Vec<Json> = buttons
        .iter()
        .enumerate()
        .map(|(place, button)| {
            let text = json!({"type": "plain_text", "text": button.label});
            let id = format!("heeler_{place}");
            json!({"type": "button", "action_id": id, "text": text, "value": button.value})
        })
        .collect();
    json!({"type": "actions", "elements": elements})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_recognized_by_their_form() {
        assert_eq!(slack_account("xapp-1-A0123ABC-456-f00d"), Some("A0123ABC"));
        for text in
            ["", "xapp-", "xapp-1", "xapp-1-A0123ABC", "xoxb-1-A0123ABC-456", "xapp-1-../-x"]
        {
            assert_eq!(slack_account(text), None, "{text}");
        }
        assert!(is_slack_bot_token("xoxb-123-456-abc") && is_slack_bot_token("xoxe.xoxb-1-abcdef"));
        assert!(!is_slack_bot_token("xoxp-123-456-abc") && !is_slack_bot_token("xoxb-1\n456-abc"));
        let tokens = SlackTokens {
            bot_token: "xoxb-secret".to_owned(),
            bot_variable: "B".to_owned(),
            app_token: "xapp-secret".to_owned(),
            app_variable: "A".to_owned(),
        };
        let bot = SlackBot::new("https://x.example/", tokens.clone());
        assert!(!format!("{bot:?} {tokens:?}").contains("secret"));
    }

    #[test]
    fn every_part_and_every_block_fits_also_with_escapes() {
        let text = format!("{}\n```\n{}\n```", "a <b> & ".repeat(2_000), "&&&&&&&&\n".repeat(800));
        for part in slack_parts(&text) {
            assert!(units(&render_slack(&part)) <= TEXT_UNITS_MAX);
        }
        let blocks = sections(&"&".repeat(1_500));
        assert!(blocks.len() > 1);
        for block in blocks {
            let shown = block["text"]["text"].as_str().unwrap();
            assert!(units(shown) <= SECTION_UNITS_MAX, "{}", units(shown));
        }
    }
}
