//! The REST API of Discord: the calls that a fleet needs.
//!
//! The limits that Discord reports are kept: a call that would exceed one fails at once, without a
//! request. Start at [`DiscordBot`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use ring::digest;
use serde_json::{Value as Json, json};

use crate::api_call::{
    PlatformAnswer, PlatformRequest, RequestBody, UploadPart, call_api, safe_text,
};
use crate::channel_page::ChannelPage;
use crate::chat_error::ChatApiError;
use crate::chat_event::ChatPlace;
use crate::discord_frame::is_address_part;
use crate::outgoing_post::{ChatButton, OutgoingPost, PostMark, PostedFile};
use crate::split_text::split_text;

/// Longest text of a message, in UTF-16 units.
const TEXT_UNITS_MAX: usize = 2_000;

/// Time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit of a call for earlier messages. The link waits for it.
const CONTEXT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of a call for which a received message waits.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Most messages of one page.
const PAGE: usize = 100;

/// Most buttons in a row.
const ROW_MAX: usize = 5;

/// Most routes with a remembered limit.
const ROUTES_MAX: usize = 10_000;

/// Flag of messages in which addresses are not fetched.
const SUPPRESS_EMBEDS: u32 = 1 << 2;

/// Flag of messages that one person sees.
const EPHEMERAL: u32 = 1 << 6;

/// Flags of an application that may read the content of messages: with many servers, or with few.
const CONTENT_FLAGS: u64 = 1 << 18 | 1 << 19;

/// Permissions that the bot needs: view channels, send messages, also in threads, add reactions, attach
/// files, read the history.
const PERMISSIONS: u64 = 1 << 10 | 1 << 11 | 1 << 38 | 1 << 6 | 1 << 15 | 1 << 16;

/// Name under which the bot makes calls, in the form that Discord demands.
const USER_AGENT: &str =
    concat!("DiscordBot (", env!("CARGO_PKG_REPOSITORY"), ", ", env!("CARGO_PKG_VERSION"), ")");

/// Name of the call for the application, in errors.
const ASK_SETTINGS: &str = "ask for its own settings";

/// Name in errors.
const PLATFORM: &str = "Discord";

/// Times until which routes are limited, by bot and route. The limits are those of the bot, so all
/// clients of the process share them.
static LIMITS: LazyLock<Mutex<HashMap<(String, String), Instant>>> = LazyLock::new(Mutex::default);

/// A bot with its token.
#[derive(Clone)]
pub struct DiscordBot {
    api_url: String,
    token: String,
    account: String,
    variable: String,
}

impl fmt::Debug for DiscordBot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiscordBot({})", self.variable)
    }
}

/// The bot's own user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscordUser {
    pub id: String,
    pub name: String,
}

/// Where the gateway is, and how often it may be entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscordGateway {
    pub url: String,
    /// Sessions that may be started.
    pub starts_left: u64,
    /// Time until more may be started.
    pub reset_after: Duration,
}

/// A channel of Discord.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscordChannel {
    /// Channel that a thread belongs to; `None` if it is no thread.
    pub thread_of: Option<String>,
}

/// Returns the account of a bot token: the ID of the user, which is its first part. `None` if the text
/// has not the form of a bot token.
pub fn discord_account(token: &str) -> Option<String> {
    let mut parts = token.split('.');
    let (first, second, third) = (parts.next()?, parts.next()?, parts.next()?);
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_=".contains(&b))
    };
    if parts.next().is_some() || ![first, second, third].into_iter().all(is_part) {
        return None;
    }
    let bytes = STANDARD_NO_PAD.decode(first.trim_end_matches('=')).ok()?;
    let account = String::from_utf8(bytes).ok()?;
    let is_id = !account.is_empty() && account.bytes().all(|b| b.is_ascii_digit());
    is_id.then_some(account)
}

/// Splits a text into parts that Discord accepts.
pub(crate) fn discord_parts(text: &str) -> Vec<String> {
    split_text(text, TEXT_UNITS_MAX - 100)
}

/// Returns true if a channel of this type is a thread.
pub(crate) fn is_thread_type(kind: &Json) -> bool {
    kind.as_u64().is_some_and(|kind| (10..=12).contains(&kind))
}

impl DiscordBot {
    pub fn new(api_url: &str, token: &str, variable: &str) -> Result<DiscordBot, ChatApiError> {
        let account = discord_account(token).ok_or_else(|| ChatApiError::Unauthorized {
            platform: PLATFORM,
            variable: variable.to_owned(),
            said: "it has not the form of a bot token".to_owned(),
        })?;
        let (token, variable) = (token.to_owned(), variable.to_owned());
        let api_url = api_url.trim_end_matches('/').to_owned();
        Ok(DiscordBot { api_url, token, account, variable })
    }

    /// Returns the bot's own user.
    pub fn own_user(&self) -> Result<DiscordUser, ChatApiError> {
        let user = self.get("/users/@me", "ask for its own name", CALL_TIMEOUT)?;
        match (user["id"].as_str(), user["username"].as_str()) {
            (Some(id), Some(name)) => Ok(DiscordUser { id: id.to_owned(), name: safe_text(name) }),
            _ => Err(unexpected("ask for its own name")),
        }
    }

    /// Returns true if the application may read the content of messages.
    pub fn reads_content(&self) -> Result<bool, ChatApiError> {
        let flags = self.application()?["flags"].as_u64();
        Ok(flags.ok_or_else(|| unexpected(ASK_SETTINGS))? & CONTENT_FLAGS != 0)
    }

    /// Returns the ID of the application that the bot belongs to.
    pub(crate) fn application_id(&self) -> Result<String, ChatApiError> {
        let application = self.application()?;
        let id = application["id"].as_str().filter(|id| is_address_part(id));
        id.map(str::to_owned).ok_or_else(|| unexpected(ASK_SETTINGS))
    }

    fn application(&self) -> Result<Json, ChatApiError> {
        self.get("/applications/@me", ASK_SETTINGS, CALL_TIMEOUT)
    }

    pub(crate) fn read(&self, path: &str, attempt: &'static str) -> Result<Json, ChatApiError> {
        self.get(path, attempt, CALL_TIMEOUT)
    }

    pub(crate) fn replace(
        &self,
        path: &str,
        attempt: &'static str,
        body: &Json,
    ) -> Result<(), ChatApiError> {
        self.call("PUT", path, attempt, Some(body), CALL_TIMEOUT).map(drop)
    }

    /// Fails unless the bot can read a channel.
    pub fn check_channel(&self, channel: &str) -> Result<(), ChatApiError> {
        let path = format!("/channels/{channel}/messages?limit=1");
        self.get(&path, "read a channel", CALL_TIMEOUT).map(drop)
    }

    /// Returns the address at which a person adds the bot to a server.
    pub fn invite_url(&self) -> String {
        let account = &self.account;
        format!(
            "https://discord.com/oauth2/authorize?client_id={account}&scope=bot+applications.commands&permissions={PERMISSIONS}"
        )
    }

    /// Returns the address of the gateway.
    pub fn gateway(&self) -> Result<DiscordGateway, ChatApiError> {
        let attempt = "ask for the gateway";
        let answer = self.get("/gateway/bot", attempt, CALL_TIMEOUT)?;
        let limit = &answer["session_start_limit"];
        let url = answer["url"].as_str().ok_or_else(|| unexpected(attempt))?.to_owned();
        let reset_after = Duration::from_millis(limit["reset_after"].as_u64().unwrap_or(0));
        Ok(DiscordGateway {
            url,
            starts_left: limit["remaining"].as_u64().unwrap_or(1),
            reset_after,
        })
    }

    /// Returns the frame that starts a session.
    pub fn identify_frame(&self, presence: Option<&Json>) -> String {
        let mut data = json!({
            "token": self.token, "intents": crate::discord_frame::INTENTS,
            "properties": {"os": "linux", "browser": "heeler", "device": "heeler"},
        });
        if let Some(presence) = presence {
            data["presence"] = presence.clone();
        }
        json!({"op": 2, "d": data}).to_string()
    }

    /// Returns the frame that continues a session after an event.
    pub fn resume_frame(&self, session: &str, seq: u64) -> String {
        json!({"op": 6, "d": {"token": self.token, "session_id": session, "seq": seq}}).to_string()
    }

    /// Posts a message; returns its ID. Discord recognizes a repeated post for some minutes.
    pub fn send_once(
        &self,
        place: &ChatPlace,
        post: &OutgoingPost,
        mark: PostMark<'_>,
    ) -> Result<String, ChatApiError> {
        let parts = discord_parts(&post.text);
        let last = parts.len().saturating_sub(1);
        let mut message = None;
        for (number, part) in parts.into_iter().enumerate() {
            let mut body = json!({
                "content": part,
                // No text of an agent notifies people.
                "allowed_mentions": {"parse": []},
                // Discord would fetch addresses that an agent wrote.
                "flags": SUPPRESS_EMBEDS,
                "nonce": nonce(&format!("{} {number}", mark.id)),
                "enforce_nonce": true,
            });
            if let Some(answered) = post.reply_to.as_ref().filter(|_| number == 0) {
                body["message_reference"] =
                    json!({"message_id": answered, "fail_if_not_exists": false});
            }
            if number == last && !post.buttons.is_empty() {
                body["components"] = components(&post.buttons);
            }
            let path = format!("/channels/{}/messages", target(place));
            let answer = self.call("POST", &path, "post a message", Some(&body), CALL_TIMEOUT)?;
            message =
                Some(answer["id"].as_str().ok_or_else(|| unexpected("post a message"))?.to_owned());
        }
        message.ok_or_else(|| unexpected("post a message"))
    }

    /// Posts a file; returns the ID of the post. Discord recognizes a repeated post for some
    /// minutes.
    pub fn send_file_once(
        &self,
        place: &ChatPlace,
        file: &PostedFile,
        mark: PostMark<'_>,
    ) -> Result<String, ChatApiError> {
        let attempt = "post a file";
        let message = json!({
            "content": file.heading,
            "allowed_mentions": {"parse": []},
            "flags": SUPPRESS_EMBEDS,
            "nonce": nonce(mark.id),
            "enforce_nonce": true,
            "attachments": [{"id": 0, "filename": file.name}],
        });
        let fields = json!({"payload_json": message.to_string()});
        let file = UploadPart { field: "files[0]", file };
        let body = RequestBody::Upload { fields: &fields, file };
        let path = format!("/channels/{}/messages", target(place));
        let answer = self.call_with_body("POST", &path, attempt, Some(body), CALL_TIMEOUT)?;
        answer["id"].as_str().map(str::to_owned).ok_or_else(|| unexpected(attempt))
    }

    /// Replaces the text of a message, and removes its buttons.
    pub fn edit(&self, place: &ChatPlace, message: &str, text: &str) -> Result<(), ChatApiError> {
        let text = discord_parts(text).into_iter().next().unwrap_or_default();
        let body = json!({"content": text, "components": [], "allowed_mentions": {"parse": []}});
        let path = format!("/channels/{}/messages/{message}", target(place));
        self.call("PATCH", &path, "change a message", Some(&body), CALL_TIMEOUT).map(drop)
    }

    /// Shows for ten seconds that the bot is writing.
    pub fn show_typing(&self, place: &ChatPlace) -> Result<(), ChatApiError> {
        let path = format!("/channels/{}/typing", target(place));
        let attempt = "show that it is writing";
        self.call("POST", &path, attempt, Some(&json!({})), LOOKUP_TIMEOUT).map(drop)
    }

    /// Adds a reaction to a message.
    pub fn react(&self, place: &ChatPlace, message: &str, emoji: &str) -> Result<(), ChatApiError> {
        let emoji: String = url::form_urlencoded::byte_serialize(emoji.as_bytes()).collect();
        let channel = target(place);
        let path = format!("/channels/{channel}/messages/{message}/reactions/{emoji}/@me");
        self.call("PUT", &path, "add a reaction", Some(&json!({})), LOOKUP_TIMEOUT).map(drop)
    }

    /// Answers a click or command with a text that only the person sees. `callback` is `ID/TOKEN`.
    pub fn answer_click(&self, callback: &str, text: &str) -> Result<(), ChatApiError> {
        let body = match text.is_empty() {
            true => json!({"type": 6}),
            false => json!({"type": 4, "data": {
                "content": text, "flags": EPHEMERAL, "allowed_mentions": {"parse": []},
            }}),
        };
        let path = format!("/interactions/{callback}/callback");
        self.call("POST", &path, "answer a click", Some(&body), LOOKUP_TIMEOUT).map(drop)
    }

    /// Returns a channel.
    pub fn channel(&self, id: &str) -> Result<DiscordChannel, ChatApiError> {
        let answer = self.get(&format!("/channels/{id}"), "read a channel", LOOKUP_TIMEOUT)?;
        let parent = answer["parent_id"].as_str().filter(|_| is_thread_type(&answer["type"]));
        Ok(DiscordChannel { thread_of: parent.map(str::to_owned) })
    }

    /// Reads the messages of a channel that follow a message, the oldest first, and one page of them.
    pub fn messages_after(&self, channel: &str, after: &str) -> Result<ChannelPage, ChatApiError> {
        let attempt = "read the messages of a channel";
        let path = format!("/channels/{channel}/messages?limit={PAGE}&after={after}");
        let Json::Array(mut messages) = self.get(&path, attempt, CALL_TIMEOUT)? else {
            return Err(unexpected(attempt));
        };
        messages.sort_by_key(|message| snowflake(message["id"].as_str().unwrap_or_default()));
        let last = messages.last().and_then(|message| message["id"].as_str());
        let next = last.filter(|_| messages.len() >= PAGE).map(str::to_owned);
        Ok(ChannelPage { messages, next })
    }

    /// Lists messages of a channel before a message, at most a hundred. The oldest is first.
    pub fn messages_before(
        &self,
        channel: &str,
        before: &str,
        count: usize,
    ) -> Result<Vec<Json>, ChatApiError> {
        let attempt = "read the earlier messages of a channel";
        let count = count.clamp(1, PAGE);
        let path = format!("/channels/{channel}/messages?limit={count}&before={before}");
        let Json::Array(mut messages) = self.get(&path, attempt, CONTEXT_TIMEOUT)? else {
            return Err(unexpected(attempt));
        };
        messages.sort_by_key(|message| snowflake(message["id"].as_str().unwrap_or_default()));
        Ok(messages)
    }

    pub(crate) fn api_url(&self) -> &str {
        &self.api_url
    }

    fn get(
        &self,
        path: &str,
        attempt: &'static str,
        timeout: Duration,
    ) -> Result<Json, ChatApiError> {
        self.call("GET", path, attempt, None, timeout)
    }

    fn call(
        &self,
        method: &'static str,
        path: &str,
        attempt: &'static str,
        body: Option<&Json>,
        timeout: Duration,
    ) -> Result<Json, ChatApiError> {
        self.call_with_body(method, path, attempt, body.map(RequestBody::Json), timeout)
    }

    fn call_with_body(
        &self,
        method: &'static str,
        path: &str,
        attempt: &'static str,
        body: Option<RequestBody<'_>>,
        timeout: Duration,
    ) -> Result<Json, ChatApiError> {
        let limited =
            |retry_after| ChatApiError::RateLimited { platform: PLATFORM, attempt, retry_after };
        let route = route_of(method, path);
        if let Some(wait) = self.limit_of(&route) {
            return Err(limited(wait));
        }
        let url = format!("{}{path}", self.api_url);
        let authorization = format!("Bot {}", self.token);
        let answer = call_api(PlatformRequest {
            method,
            url: &url,
            authorization: Some(authorization),
            user_agent: USER_AGENT,
            body,
            timeout,
        });
        let answer = answer.map_err(|reason| ChatApiError::Unreachable { attempt, reason })?;
        if let Some(wait) = answer.bucket_wait {
            self.note_limit(&route, wait);
        }
        if (200..300).contains(&answer.status) {
            return Ok(answer.body);
        }
        Err(match answer.status {
            429 => {
                let wait = demanded_wait(&answer);
                let is_global = answer.body["global"] == true;
                self.note_limit(if is_global { GLOBAL } else { &route }, wait);
                limited(wait)
            }
            _ => self.refusal(&answer, attempt),
        })
    }

    fn refusal(&self, answer: &PlatformAnswer, attempt: &'static str) -> ChatApiError {
        let said = answer.body["message"].as_str().unwrap_or("without a reason");
        let said = safe_text(&said.replace(&self.token, "[secret]"));
        match answer.status {
            401 => ChatApiError::Unauthorized {
                platform: PLATFORM,
                variable: self.variable.clone(),
                said,
            },
            500.. => {
                ChatApiError::Unreachable { attempt, reason: format!("Discord failed: {said}") }
            }
            403 => {
                let said = format!("{said} (the bot needs the right to read and write there)");
                ChatApiError::Refused { platform: PLATFORM, attempt, said }
            }
            _ => ChatApiError::Refused { platform: PLATFORM, attempt, said },
        }
    }

    /// Returns the time until which a route is limited.
    fn limit_of(&self, route: &str) -> Option<Duration> {
        let now = Instant::now();
        let limits = limits();
        let wait = |route: &str| limits.get(&(self.account.clone(), route.to_owned())).copied();
        let until = [wait(route), wait(GLOBAL)].into_iter().flatten().max()?;
        (until > now).then(|| until.duration_since(now))
    }

    fn note_limit(&self, route: &str, wait: Duration) {
        let (now, mut limits) = (Instant::now(), limits());
        if limits.len() >= ROUTES_MAX {
            limits.retain(|_, until| *until > now);
        }
        limits.insert((self.account.clone(), route.to_owned()), now + wait);
    }
}

/// Name of the limit of all routes.
const GLOBAL: &str = "global";

fn limits() -> MutexGuard<'static, HashMap<(String, String), Instant>> {
    LIMITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the route of a call, as Discord counts it: without IDs after the channel.
fn route_of(method: &str, path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let mut parts = path.split('/').skip(1);
    let (first, id) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match first {
        "channels" => format!("{method} {first}/{id}/{}", parts.next().unwrap_or_default()),
        _ => format!("{method} {first}"),
    }
}

/// Returns the pause that a refusal demands. A refusal of a proxy has only the header.
fn demanded_wait(answer: &PlatformAnswer) -> Duration {
    let of_body = answer.body["retry_after"].as_f64().filter(|seconds| *seconds > 0.0);
    let of_body = of_body.map(|seconds| Duration::from_secs_f64(seconds.min(3600.0)));
    let of_header = answer.retry_after.map(|seconds| Duration::from_secs(seconds.min(3600)));
    of_body.or(of_header).unwrap_or(Duration::from_secs(5)).max(Duration::from_millis(250))
}

/// Returns the number of an ID. IDs of Discord are ordered by time.
pub(crate) fn snowflake(id: &str) -> u64 {
    id.parse().unwrap_or(0)
}

/// Returns the ID under which Discord recognizes a post: at most 25 characters.
fn nonce(mark: &str) -> String {
    let hash = digest::digest(&digest::SHA256, mark.as_bytes());
    URL_SAFE_NO_PAD.encode(&hash.as_ref()[..18])
}

/// Returns the channel to which posts of a place go: a thread is a channel of its own.
fn target(place: &ChatPlace) -> &str {
    place.thread.as_deref().unwrap_or(&place.chat)
}

fn components(buttons: &[ChatButton]) -> Json {
    let button = |button: &ChatButton| json!({"type": 2, "style": 2, "label": button.label, "custom_id": button.value});
    let row = |row: &[ChatButton]| {
        let buttons: Vec<Json> = row.iter().map(button).collect();
        json!({"type": 1, "components": buttons})
    };
    buttons.chunks(ROW_MAX).map(row).collect()
}

fn unexpected(attempt: &'static str) -> ChatApiError {
    let reason = "the answer has an unexpected form".to_owned();
    ChatApiError::Unreachable { attempt, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_bot() {
        let token = format!("{}.abc.def-secret", STANDARD_NO_PAD.encode("123456789"));
        assert_eq!(discord_account(&token).as_deref(), Some("123456789"));
        for text in ["", "a.b", "a.b.c.d", "YWJj.b.c", "MTIz.b/../.c", "MTIz..c"] {
            assert_eq!(discord_account(text), None, "{text}");
        }
        let bot = DiscordBot::new("https://x.example", &token, "T").unwrap();
        assert!(!format!("{bot:?}").contains("secret"));
    }

    #[test]
    fn a_repeated_post_has_the_same_nonce() {
        assert_eq!(nonce("a 0"), nonce("a 0"));
        assert_ne!(nonce("a 0"), nonce("a 1"));
        assert!(nonce("a 0").len() <= 25, "{}", nonce("a 0"));
    }

    #[test]
    fn a_limited_route_is_not_called() {
        let token = format!("{}.abc.def", STANDARD_NO_PAD.encode("77701"));
        // Nothing listens there.
        let bot = DiscordBot::new("http://127.0.0.1:1", &token, "T").unwrap();
        bot.note_limit(&route_of("POST", "/channels/5/messages"), Duration::from_secs(60));
        let place = |chat: &str| ChatPlace {
            chat: chat.to_owned(),
            thread: None,
            is_direct: false,
            person: None,
            server: None,
        };
        let post = OutgoingPost { text: "x".to_owned(), buttons: Vec::new(), reply_to: None };
        let mark = PostMark { id: "m", maybe_made_since: None };
        let limited = bot.send_once(&place("5"), &post, mark).unwrap_err();
        assert!(limited.retry_after().is_some_and(|wait| wait.as_secs() > 50), "{limited}");
        let other = bot.send_once(&place("6"), &post, mark).unwrap_err();
        assert_eq!(other.retry_after(), None, "another channel has a limit of its own");
        bot.note_limit(GLOBAL, Duration::from_secs(60));
        assert!(bot.send_once(&place("6"), &post, mark).unwrap_err().retry_after().is_some());
    }
}
