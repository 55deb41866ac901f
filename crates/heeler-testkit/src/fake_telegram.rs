//! A fake Telegram: the Bot API over a small model.
//!
//! It keeps the semantics that matter for a bot: an update is delivered until a call with a higher
//! offset confirms it, the older of two pollers gets 409, texts are at most 4096 units long, HTML is
//! checked, and values of buttons have at most 64 bytes. Start at [`FakeTelegram`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};

use crate::WAIT_MAX;
use crate::fake_files::FakeFiles;
use crate::fake_form::form_parts;
use crate::fake_server::FakeServer;

/// Longest text of a message, in UTF-16 units.
const TEXT_UNITS_MAX: usize = 4096;

/// Tags that Telegram accepts.
const TAGS: [&str; 8] = ["b", "i", "u", "s", "a", "code", "pre", "blockquote"];

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct FakeTelegram {
    server: FakeServer,
    shared: Arc<SharedTelegram>,
}

/// A message that the bot has posted.
#[derive(Debug, Clone, PartialEq)]
pub struct TelegramPost {
    pub id: i64,
    pub chat: String,
    /// Text without tags.
    pub text: String,
    /// Values of the buttons.
    pub buttons: Vec<String>,
    /// Message that it answers.
    pub reply_to: Option<i64>,
    /// True if the text was changed after it was posted.
    pub is_edited: bool,
    /// Content of the file in it.
    pub file: Option<String>,
}

/// A failure of the next call of a method.
#[derive(Debug, Clone)]
pub struct TelegramFailure {
    pub method: &'static str,
    pub status: u16,
    pub description: &'static str,
    pub retry_after: Option<u64>,
    /// True if the call is executed before it fails, as when a response is lost.
    pub is_executed: bool,
}

#[derive(Debug, Default)]
struct SharedTelegram {
    state: Mutex<TelegramState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TelegramState {
    token: String,
    last_update: i64,
    last_message: i64,
    updates: BTreeMap<i64, Json>,
    posts: Vec<TelegramPost>,
    /// Menu of the bot.
    commands: Vec<Json>,
    /// Texts that answered clicks.
    click_answers: Vec<String>,
    failures: VecDeque<TelegramFailure>,
    /// Methods of all calls, with the time of each.
    calls: Vec<(String, Instant)>,
    /// Number of the newest poller.
    poller: u64,
    files: FakeFiles,
    /// Number of times that each update was delivered.
    deliveries: BTreeMap<i64, u32>,
}

impl FakeTelegram {
    /// Starts a server for a bot with this token. The bot's name is `heeler_bot`.
    pub fn start(token: &str) -> Self {
        let shared = Arc::new(SharedTelegram::default());
        token.clone_into(&mut shared.lock().token);
        let router = Router::new().fallback(handle).with_state(Arc::clone(&shared));
        Self { server: FakeServer::start(router), shared }
    }

    /// Returns the address of the API.
    pub fn url(&self) -> &str {
        self.server.url()
    }

    /// Lets a person write a direct message; returns the ID of the update.
    pub fn say(&self, user: i64, text: &str) -> i64 {
        self.write(user, json!({"id": user, "type": "private"}), text, &json!({}))
    }

    /// Lets a person write to a group.
    pub fn say_in_group(&self, chat: i64, user: i64, text: &str) -> i64 {
        self.write(user, json!({"id": chat, "type": "supergroup"}), text, &json!({}))
    }

    /// Lets a person write a message with further fields.
    pub fn write(&self, user: i64, chat: Json, text: &str, fields: &Json) -> i64 {
        let mut state = self.shared.lock();
        state.last_message += 1;
        let mut message = json!({
            "message_id": state.last_message, "date": 0, "chat": chat, "text": text,
            "from": {"id": user, "is_bot": false, "first_name": format!("User{user}")},
        });
        for (key, value) in fields.as_object().unwrap() {
            message[key] = value.clone();
        }
        let id = state.add_update(|id| json!({"update_id": id, "message": message}));
        drop(state);
        self.shared.changed.notify_all();
        id
    }

    /// Lets a person send a file directly; returns the ID of the update.
    pub fn send_document(
        &self,
        user: i64,
        caption: &str,
        file: (&str, &str),
        content: &[u8],
    ) -> i64 {
        let (name, media_type) = file;
        let number = self.shared.lock().files.add(content);
        let document = json!({
            "file_id": format!("F-{number}"), "file_name": name, "mime_type": media_type,
            "file_size": content.len(),
        });
        let mut fields = json!({"document": document, "text": null});
        if !caption.is_empty() {
            fields["caption"] = json!(caption);
        }
        self.write(user, json!({"id": user, "type": "private"}), "", &fields)
    }

    /// Lets a person send a voice message. Its audio is a text in tests.
    pub fn send_voice(&self, user: i64, audio: &str) -> i64 {
        let number = self.shared.lock().files.add(audio.as_bytes());
        let voice = json!({
            "file_id": format!("F-{number}"), "duration": 3, "mime_type": "audio/ogg",
            "file_size": audio.len(),
        });
        let fields = json!({"voice": voice, "text": null});
        self.write(user, json!({"id": user, "type": "private"}), "", &fields)
    }

    /// Returns the number of downloads of files.
    pub fn file_fetches(&self) -> usize {
        self.shared.lock().files.fetch_count()
    }

    /// Lets a person click on a button of a post, with this value.
    pub fn click(&self, user: i64, post: &TelegramPost, value: &str) -> i64 {
        let mut state = self.shared.lock();
        let chat: i64 = post.chat.parse().unwrap();
        let kind = if chat < 0 { "supergroup" } else { "private" };
        let message = json!({"message_id": post.id, "chat": {"id": chat, "type": kind}});
        let from = json!({"id": user, "is_bot": false, "first_name": format!("User{user}")});
        let id = state.add_update(|id| {
            let click =
                json!({"id": format!("c{id}"), "from": from, "message": message, "data": value});
            json!({"update_id": id, "callback_query": click})
        });
        drop(state);
        self.shared.changed.notify_all();
        id
    }

    /// Returns the names in the menu of the bot.
    pub fn commands(&self) -> Vec<String> {
        let state = self.shared.lock();
        let names = state.commands.iter().filter_map(|command| command["command"].as_str());
        names.map(str::to_owned).collect()
    }

    /// Makes the next call of a method fail.
    pub fn fail_next(&self, failure: TelegramFailure) {
        self.shared.lock().failures.push_back(failure);
    }

    /// Delivers an update again, as if its confirmation had been lost.
    pub fn redeliver(&self, update: Json) {
        let mut state = self.shared.lock();
        let id = update["update_id"].as_i64().unwrap();
        state.updates.insert(id, update);
    }

    /// Returns an update that is not confirmed.
    pub fn update(&self, id: i64) -> Option<Json> {
        self.shared.lock().updates.get(&id).cloned()
    }

    /// Returns all posts, in order.
    pub fn posts(&self) -> Vec<TelegramPost> {
        self.shared.lock().posts.clone()
    }

    /// Returns the texts that answered clicks.
    pub fn click_answers(&self) -> Vec<String> {
        self.shared.lock().click_answers.clone()
    }

    /// Returns the times of all calls of a method.
    pub fn calls(&self, method: &str) -> Vec<Instant> {
        let state = self.shared.lock();
        state.calls.iter().filter(|(name, _)| name == method).map(|(_, at)| *at).collect()
    }

    /// Returns the number of times that an update was delivered.
    pub fn deliveries(&self, update: i64) -> u32 {
        self.shared.lock().deliveries.get(&update).copied().unwrap_or(0)
    }

    /// Waits until a function of the posts returns a value.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&[TelegramPost]) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = look(&state.posts) {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}: {:#?}", state.posts);
            state = self.shared.changed.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
        }
    }

    /// Waits until all updates are confirmed.
    #[track_caller]
    pub fn wait_until_confirmed(&self) {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        while !state.updates.is_empty() {
            assert!(Instant::now() < deadline, "updates are not confirmed: {:#?}", state.updates);
            state = self.shared.changed.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
        }
    }
}

impl SharedTelegram {
    fn lock(&self) -> MutexGuard<'_, TelegramState> {
        self.state.lock().unwrap()
    }
}

async fn handle(State(shared): State<Arc<SharedTelegram>>, request: Request<Body>) -> Response {
    let path = request.uri().path().to_owned();
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or_default().to_owned();
    let bytes = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
    let body: Json = match form_parts(&kind, &bytes) {
        Some(parts) => parts,
        None => serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    let token = shared.lock().token.clone();
    if let Some(file) = path.strip_prefix(&format!("/file/bot{token}/documents/file_")) {
        return match shared.lock().files.fetch(file) {
            Some(content) => content.into_response(),
            None => error(404, "Not Found", None),
        };
    }
    let Some(method) = path.strip_prefix(&format!("/bot{token}/")).map(str::to_owned) else {
        return error(401, "Unauthorized", None);
    };
    let failure = {
        let mut state = shared.lock();
        state.calls.push((method.clone(), Instant::now()));
        let place = state.failures.iter().position(|failure| failure.method == method);
        place.and_then(|place| state.failures.remove(place))
    };
    if let Some(failure) = failure {
        if failure.is_executed {
            drop(shared.lock().execute(&method, &body));
            shared.changed.notify_all();
        }
        return error(failure.status, failure.description, failure.retry_after);
    }
    if method == "getUpdates" {
        return poll(&shared, &body).await;
    }
    let answer = shared.lock().execute(&method, &body);
    shared.changed.notify_all();
    match answer {
        Ok(result) => axum::Json(json!({"ok": true, "result": result})).into_response(),
        Err((status, description)) => error(status, &description, None),
    }
}

/// Waits for updates from an offset, which confirms those before it.
async fn poll(shared: &Arc<SharedTelegram>, body: &Json) -> Response {
    let offset = body["offset"].as_i64().unwrap_or(0);
    let wait = Duration::from_secs(body["timeout"].as_u64().unwrap_or(0));
    let limit = body["limit"].as_u64().unwrap_or(100).clamp(1, 100);
    let (own, deadline) = {
        let mut state = shared.lock();
        state.updates.retain(|id, _| *id >= offset);
        state.poller += 1;
        (state.poller, Instant::now() + wait)
    };
    shared.changed.notify_all();
    loop {
        let found: Vec<Json> = {
            let mut state = shared.lock();
            if state.poller != own {
                let description = "Conflict: terminated by other getUpdates request; make sure \
                                   that only one bot instance is running";
                return error(409, description, None);
            }
            let limit = usize::try_from(limit).unwrap();
            let ids: Vec<i64> = state.updates.keys().copied().take(limit).collect();
            for id in &ids {
                *state.deliveries.entry(*id).or_default() += 1;
            }
            ids.iter().map(|id| state.updates[id].clone()).collect()
        };
        if !found.is_empty() || Instant::now() >= deadline {
            return axum::Json(json!({"ok": true, "result": found})).into_response();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn error(status: u16, description: &str, retry_after: Option<u64>) -> Response {
    let mut body = json!({"ok": false, "error_code": status, "description": description});
    if let Some(seconds) = retry_after {
        body["parameters"] = json!({"retry_after": seconds});
    }
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}

impl TelegramState {
    fn add_update(&mut self, make: impl FnOnce(i64) -> Json) -> i64 {
        self.last_update += 1;
        self.updates.insert(self.last_update, make(self.last_update));
        self.last_update
    }

    fn execute(&mut self, method: &str, body: &Json) -> Result<Json, (u16, String)> {
        let bot = self.token.split(':').next().unwrap().parse::<i64>().unwrap();
        match method {
            "getFile" => {
                let id = body["file_id"].as_str().and_then(|id| id.strip_prefix("F-"));
                match id.filter(|id| self.files.has(id)) {
                    Some(id) => Ok(
                        json!({"file_id": body["file_id"], "file_path": format!("documents/file_{id}")}),
                    ),
                    None => Err((400, "Bad Request: invalid file_id".to_owned())),
                }
            }
            "getMyCommands" => Ok(json!(self.commands)),
            "setMyCommands" => {
                self.commands = body["commands"].as_array().cloned().unwrap_or_default();
                Ok(json!(true))
            }
            "getMe" => Ok(json!({"id": bot, "is_bot": true, "username": "heeler_bot"})),
            "sendDocument" if body["document"].as_str().is_none_or(str::is_empty) => {
                Err((400, "Bad Request: there is no document in the request".to_owned()))
            }
            "sendMessage" | "sendDocument" => {
                let text = match method {
                    "sendDocument" => body["caption"].as_str().unwrap_or_default().to_owned(),
                    _ => checked_text(body)?,
                };
                let buttons = buttons(body)?;
                self.last_message += 1;
                let chat = body["chat_id"].to_string().trim_matches('"').to_owned();
                let reply_to = body["reply_parameters"]["message_id"].as_i64();
                let id = self.last_message;
                let is_edited = false;
                let file = body["document"].as_str().map(str::to_owned);
                let post = TelegramPost { id, chat, text, buttons, reply_to, is_edited, file };
                self.posts.push(post);
                Ok(json!({"message_id": id}))
            }
            "editMessageText" => {
                let (text, buttons) = (checked_text(body)?, buttons(body)?);
                let id = body["message_id"].as_i64();
                let post = self.posts.iter_mut().find(|post| Some(post.id) == id);
                let post =
                    post.ok_or((400, "Bad Request: message to edit not found".to_owned()))?;
                if post.text == text && post.buttons == buttons {
                    return Err((400, "Bad Request: message is not modified".to_owned()));
                }
                (post.text, post.buttons, post.is_edited) = (text, buttons, true);
                Ok(json!(true))
            }
            "sendChatAction" if body["action"] == "typing" => Ok(json!(true)),
            "answerCallbackQuery" => {
                self.click_answers.push(body["text"].as_str().unwrap_or_default().to_owned());
                Ok(json!(true))
            }
            _ => Err((404, "Not Found".to_owned())),
        }
    }
}

fn buttons(body: &Json) -> Result<Vec<String>, (u16, String)> {
    let rows = body["reply_markup"]["inline_keyboard"].as_array().into_iter().flatten();
    let mut found = Vec::new();
    for button in rows.flat_map(|row| row.as_array().into_iter().flatten()) {
        let value = button["callback_data"].as_str().unwrap_or_default();
        if value.is_empty() || value.len() > 64 {
            return Err((400, "Bad Request: BUTTON_DATA_INVALID".to_owned()));
        }
        found.push(value.to_owned());
    }
    Ok(found)
}

/// Returns the visible text, or Telegram's error.
fn checked_text(body: &Json) -> Result<String, (u16, String)> {
    let text = body["text"].as_str().unwrap_or_default();
    let text = match body["parse_mode"].as_str() {
        Some("HTML") => visible_text(text)
            .map_err(|why| (400, format!("Bad Request: can't parse entities: {why}")))?,
        _ => text.to_owned(),
    };
    match text.encode_utf16().count() {
        0 => Err((400, "Bad Request: message text is empty".to_owned())),
        units if units > TEXT_UNITS_MAX => {
            Err((400, "Bad Request: message is too long".to_owned()))
        }
        _ => Ok(text),
    }
}

fn visible_text(html: &str) -> Result<String, String> {
    let (mut text, mut open, mut rest) = (String::new(), Vec::new(), html);
    while let Some(at) = rest.find(['<', '&']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix('&') {
            let end = after.find(';').ok_or("an entity has no end")?;
            text.push_str(match &after[..end] {
                "amp" => "&",
                "lt" => "<",
                "gt" => ">",
                "quot" => "\"",
                other => return Err(format!("unknown entity {other}")),
            });
            rest = &after[end + 1..];
            continue;
        }
        let end = rest.find('>').ok_or("a tag has no end")?;
        let tag = &rest[1..end];
        match tag.strip_prefix('/') {
            Some(name) if open.pop().as_deref() == Some(name) => {}
            Some(name) => return Err(format!("unmatched end tag {name}")),
            None => {
                let name = tag.split(' ').next().unwrap_or_default();
                if !TAGS.contains(&name) {
                    return Err(format!("unsupported start tag {name}"));
                }
                open.push(name.to_owned());
            }
        }
        rest = &rest[end + 1..];
    }
    text.push_str(rest);
    match open.is_empty() {
        true => Ok(text),
        false => Err("a tag is not closed".to_owned()),
    }
}
