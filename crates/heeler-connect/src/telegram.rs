//! The Bot API of Telegram: the calls that a fleet needs.
//!
//! An update is confirmed by asking for those after it. So a program that records updates before it
//! asks again loses none. Start at [`TelegramBot`].

use std::fmt;
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::api_call::{RequestBody, UploadPart, post_body, safe_text};
use crate::bot_command::{BOT_COMMANDS, BotCommand};
use crate::chat_error::ChatApiError;
use crate::chat_event::ChatPlace;
use crate::outgoing_post::{ChatButton, OutgoingPost, PostedFile};
use crate::split_text::split_text;
use crate::telegram_html::render_telegram;

/// Longest text of a message, in UTF-16 units.
pub const TELEGRAM_TEXT_MAX: usize = 4096;

/// Length at which texts are split: the form for Telegram may be longer than the Markdown.
const SPLIT_LENGTH: usize = 3800;

/// Time limit of a call, in addition to the time that it waits for updates.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Name of the call that posts a file, in errors.
const POST_FILE: &str = "post a file";

/// Most updates of one answer.
const UPDATES_MAX: u32 = 100;

/// Name in errors.
const PLATFORM: &str = "Telegram";

/// A bot with its token.
#[derive(Clone)]
pub struct TelegramBot {
    api_url: String,
    token: String,
    variable: String,
}

impl fmt::Debug for TelegramBot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TelegramBot({})", self.variable)
    }
}

/// A user of Telegram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelegramUser {
    pub id: String,
    /// Name without `@`.
    pub username: String,
}

/// Returns the account of a bot token: the public part before the colon. `None` if the text has not
/// the form of a token.
pub fn telegram_account(token: &str) -> Option<&str> {
    let (account, secret) = token.split_once(':')?;
    let is_account = !account.is_empty() && account.bytes().all(|b| b.is_ascii_digit());
    let is_secret = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    // The token becomes a part of an address, so other characters are refused.
    (is_account && secret.len() >= 8 && secret.bytes().all(is_secret)).then_some(account)
}

/// Splits a text into parts that Telegram accepts.
pub(crate) fn telegram_parts(text: &str) -> Vec<String> {
    let fits = |part: &str| render_telegram(part).units <= TELEGRAM_TEXT_MAX;
    let parts = split_text(text, SPLIT_LENGTH).into_iter();
    // Marks that keep a text from notifying people may double its length.
    parts
        .flat_map(|part| if fits(&part) { vec![part] } else { split_text(&part, SPLIT_LENGTH / 2) })
        .collect()
}

impl TelegramBot {
    /// Creates a bot. `variable` is the name of the variable with the token, for errors.
    pub fn new(api_url: &str, token: &str, variable: &str) -> Result<TelegramBot, ChatApiError> {
        match telegram_account(token) {
            Some(_) => Ok(TelegramBot {
                api_url: api_url.trim_end_matches('/').to_owned(),
                token: token.to_owned(),
                variable: variable.to_owned(),
            }),
            None => Err(ChatApiError::Unauthorized {
                platform: PLATFORM,
                variable: variable.to_owned(),
                said: "it has not the form of a bot token, such as 123456:ABC-DEF1234ghIkl"
                    .to_owned(),
            }),
        }
    }

    /// Returns the bot's own user.
    pub fn own_user(&self) -> Result<TelegramUser, ChatApiError> {
        let user = self.call("getMe", "ask for its own name", &json!({}), Duration::ZERO)?;
        let (id, username) = (user["id"].as_i64(), user["username"].as_str());
        match (id, username) {
            (Some(id), Some(name)) => {
                Ok(TelegramUser { id: id.to_string(), username: name.to_owned() })
            }
            _ => Err(ChatApiError::Unreachable {
                attempt: "ask for its own name",
                reason: "the answer has an unexpected form".to_owned(),
            }),
        }
    }

    /// Puts the commands into the menu of the bot, unless it has some. Commands that need an ID are left out.
    pub fn offer_commands(&self) -> Result<(), ChatApiError> {
        let attempt = "set its commands";
        let known = self.call("getMyCommands", attempt, &json!({}), Duration::ZERO)?;
        if known.as_array().is_some_and(|known| !known.is_empty()) {
            return Ok(());
        }
        let offered = BOT_COMMANDS.iter().filter(|(name, _)| !BotCommand::takes_id(name));
        let commands: Vec<Json> = offered
            .map(|(name, description)| json!({"command": name, "description": description}))
            .collect();
        let body = json!({"commands": commands});
        self.call("setMyCommands", attempt, &body, Duration::ZERO).map(drop)
    }

    /// Confirms all updates before `offset`, and returns those from it. Waits until there is one.
    pub fn updates(&self, offset: i64, wait: Duration) -> Result<Vec<Json>, ChatApiError> {
        let body = json!({
            "offset": offset,
            "limit": UPDATES_MAX,
            "timeout": wait.as_secs(),
            "allowed_updates": ["message", "callback_query"],
        });
        match self.call("getUpdates", "receive messages", &body, wait)? {
            Json::Array(updates) => Ok(updates),
            _ => Err(ChatApiError::Unreachable {
                attempt: "receive messages",
                reason: "the answer has an unexpected form".to_owned(),
            }),
        }
    }

    /// Posts a message; returns its ID.
    pub fn send(&self, place: &ChatPlace, post: &OutgoingPost) -> Result<String, ChatApiError> {
        let mut body = json!({
            "chat_id": place.chat,
            // Telegram would fetch addresses that an agent wrote.
            "link_preview_options": {"is_disabled": true},
        });
        if let Some(thread) = &place.thread {
            body["message_thread_id"] = number_or_text(thread);
        }
        if let Some(message) = &post.reply_to {
            let message = number_or_text(message);
            // The message may have been deleted.
            body["reply_parameters"] =
                json!({"message_id": message, "allow_sending_without_reply": true});
        }
        if !post.buttons.is_empty() {
            body["reply_markup"] = keyboard(&post.buttons);
        }
        let sent = self.call_with_text("sendMessage", "post a message", body, &post.text)?;
        match sent["message_id"].as_i64() {
            Some(id) => Ok(id.to_string()),
            None => Err(ChatApiError::Unreachable {
                attempt: "post a message",
                reason: "the answer has an unexpected form".to_owned(),
            }),
        }
    }

    /// Posts a file; returns the ID of the post.
    pub fn send_file(&self, place: &ChatPlace, file: &PostedFile) -> Result<String, ChatApiError> {
        let mut fields = json!({"chat_id": place.chat, "caption": file.heading});
        if let Some(thread) = &place.thread {
            fields["message_thread_id"] = json!(thread);
        }
        let file = UploadPart { field: "document", file };
        let body = RequestBody::Upload { fields: &fields, file };
        let sent = self.call_with_body("sendDocument", POST_FILE, body, Duration::ZERO)?;
        match sent["message_id"].as_i64() {
            Some(id) => Ok(id.to_string()),
            None => Err(ChatApiError::Unreachable {
                attempt: POST_FILE,
                reason: "the answer has an unexpected form".to_owned(),
            }),
        }
    }

    /// Replaces the text of a message, and removes its buttons.
    pub fn edit(&self, place: &ChatPlace, message: &str, text: &str) -> Result<(), ChatApiError> {
        let body = json!({
            "chat_id": place.chat,
            "message_id": number_or_text(message),
            "link_preview_options": {"is_disabled": true},
        });
        match self.call_with_text("editMessageText", "change a message", body, text) {
            // The text is as it should be.
            Err(ChatApiError::Refused { said, .. }) if said.contains("is not modified") => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Shows for five seconds that the bot is writing.
    pub fn show_typing(&self, place: &ChatPlace) -> Result<(), ChatApiError> {
        let mut body = json!({"chat_id": place.chat, "action": "typing"});
        if let Some(thread) = &place.thread {
            body["message_thread_id"] = number_or_text(thread);
        }
        self.call("sendChatAction", "show that it is writing", &body, Duration::ZERO).map(drop)
    }

    /// Answers a click with a short text.
    pub fn answer_click(&self, callback: &str, text: &str) -> Result<(), ChatApiError> {
        let text: String = text.chars().take(200).collect();
        let body = json!({"callback_query_id": callback, "text": text});
        self.call("answerCallbackQuery", "answer a click", &body, Duration::ZERO).map(drop)
    }

    /// Sends a text with formatting, or without if Telegram does not accept the formatting.
    fn call_with_text(
        &self,
        method: &str,
        attempt: &'static str,
        mut body: Json,
        text: &str,
    ) -> Result<Json, ChatApiError> {
        body["text"] = json!(render_telegram(text).html);
        body["parse_mode"] = json!("HTML");
        match self.call(method, attempt, &body, Duration::ZERO) {
            Err(ChatApiError::Refused { said, .. }) if said.contains("can't parse entities") => {
                body["text"] = json!(text.replace('@', "@\u{2060}"));
                body["parse_mode"] = Json::Null;
                self.call(method, attempt, &body, Duration::ZERO)
            }
            outcome => outcome,
        }
    }

    /// Returns the address of a file.
    pub(crate) fn file_url(&self, path: &str) -> String {
        format!("{}/file/bot{}/{path}", self.api_url, self.token)
    }

    pub(crate) fn call(
        &self,
        method: &str,
        attempt: &'static str,
        body: &Json,
        wait: Duration,
    ) -> Result<Json, ChatApiError> {
        self.call_with_body(method, attempt, RequestBody::Json(body), wait)
    }

    fn call_with_body(
        &self,
        method: &str,
        attempt: &'static str,
        body: RequestBody<'_>,
        wait: Duration,
    ) -> Result<Json, ChatApiError> {
        let url = format!("{}/bot{}/{method}", self.api_url, self.token);
        let answer = post_body(&url, None, body, CALL_TIMEOUT + wait);
        let mut answer = answer.map_err(|reason| ChatApiError::Unreachable { attempt, reason })?;
        if answer.body["ok"] == true {
            return Ok(answer.body["result"].take());
        }
        let said = answer.body["description"].as_str().unwrap_or("without a reason");
        // The platform may repeat the token.
        let said = safe_text(&said.replace(&self.token, "[secret]"));
        let limit = answer.body["parameters"]["retry_after"].as_u64().or(answer.retry_after);
        Err(match (answer.status, limit) {
            (401 | 404, _) => ChatApiError::Unauthorized {
                platform: PLATFORM,
                variable: self.variable.clone(),
                said,
            },
            (409, _) => ChatApiError::Conflict { platform: PLATFORM, attempt, said },
            (429, limit) => {
                let retry_after = Duration::from_secs(limit.unwrap_or(5).clamp(1, 3600));
                ChatApiError::RateLimited { platform: PLATFORM, attempt, retry_after }
            }
            (500.., _) => {
                ChatApiError::Unreachable { attempt, reason: format!("Telegram failed: {said}") }
            }
            _ => ChatApiError::Refused { platform: PLATFORM, attempt, said },
        })
    }
}

fn number_or_text(text: &str) -> Json {
    text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number))
}

fn keyboard(buttons: &[ChatButton]) -> Json {
    let row: Vec<Json> = buttons
        .iter()
        .map(|button| json!({"text": button.label, "callback_data": button.value}))
        .collect();
    json!({"inline_keyboard": [row]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split_text::units;

    #[test]
    fn a_token_has_an_account_and_a_secret() {
        assert_eq!(telegram_account("123456:ABC-DEF_1234"), Some("123456"));
        for text in ["", "123456", "x:ABCDEFGHIJ", "123:short", "123:ABCDEFGH/../x", ":ABCDEFGHIJ"]
        {
            assert_eq!(telegram_account(text), None, "{text}");
        }
        let bot = TelegramBot::new("https://x.example/", "123456:ABC-DEF_1234", "T").unwrap();
        assert!(!format!("{bot:?}").contains("ABC-DEF"), "{bot:?}");
    }

    #[test]
    fn every_part_fits_also_with_marks() {
        let text = "@a ".repeat(4_000);
        for part in telegram_parts(&text) {
            let rendered = render_telegram(&part);
            assert!(rendered.units <= TELEGRAM_TEXT_MAX, "{}", rendered.units);
        }
        assert_eq!(
            telegram_parts(&"x".repeat(4_000)).iter().map(|it| units(it)).sum::<usize>(),
            4_000
        );
    }
}
