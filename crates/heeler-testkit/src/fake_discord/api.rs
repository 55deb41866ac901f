//! The REST API of the fake Discord.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderName, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};

use crate::fake_form::form_parts;

use super::{DiscordPost, DiscordState, SharedDiscord};

/// Longest text of a message, in UTF-16 units.
const TEXT_UNITS_MAX: usize = 2_000;

/// Longest value of a button.
const VALUE_MAX: usize = 100;

type DiscordResult = Result<Json, (u16, &'static str)>;

pub(super) async fn handle(
    State(shared): State<Arc<SharedDiscord>>,
    request: Request<Body>,
) -> Response {
    let (head, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let kind = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let body: Json = match form_parts(kind.unwrap_or_default(), &bytes) {
        Some(parts) => {
            let message = parts["payload_json"].as_str().unwrap_or_default();
            let mut message: Json = serde_json::from_str(message).unwrap_or_default();
            message["file"] = parts["files[0]"].clone();
            message
        }
        None => serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    if let Some(file) = head.uri.path().strip_prefix("/attachments/") {
        let found = shared.lock().files.fetch(file);
        return match found.filter(|_| !head.headers.contains_key(AUTHORIZATION)) {
            Some(content) => content.into_response(),
            None => StatusCode::FORBIDDEN.into_response(),
        };
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let Some(path) = path.strip_prefix("/api/v10") else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let call = format!("{} {path}", head.method);
    let bearer = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (status, answer, headers) = {
        let mut state = shared.lock();
        state.calls.push((call.clone(), Instant::now()));
        let failure = state.failures.iter().position(|failure| call.starts_with(failure.call));
        let failure = failure.and_then(|place| state.failures.remove(place));
        let is_executed = failure.as_ref().is_none_or(|failure| failure.is_executed);
        let is_known = bearer == Some(format!("Bot {}", state.token).as_str());
        let result = match (is_known, is_executed) {
            (false, _) => Err((401, "401: Unauthorized")),
            (true, true) => state.execute(&call, &body),
            (true, false) => Ok(Json::Null),
        };
        match (failure, result) {
            _ if state.failing.is_some_and(|failing| call.starts_with(failing)) => {
                (500, json!({"message": "internal error", "code": 0}), Vec::new())
            }
            (Some(failure), _) => (failure.status, failure.body, failure.headers),
            (None, Ok(answer)) if answer.is_null() => (204, Json::Null, Vec::new()),
            (None, Ok(answer)) => (200, answer, Vec::new()),
            (None, Err((status, said))) => {
                (status, json!({"message": said, "code": 0}), Vec::new())
            }
        }
    };
    shared.changed.notify_all();
    let status = StatusCode::from_u16(status).unwrap();
    let mut response = match status {
        StatusCode::NO_CONTENT => status.into_response(),
        _ => (status, axum::Json(answer)).into_response(),
    };
    for (name, value) in headers {
        let name = HeaderName::from_static(name);
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

impl DiscordState {
    fn execute(&mut self, call: &str, body: &Json) -> DiscordResult {
        let (method, path) = call.split_once(' ').unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        match (method, &parts[..]) {
            ("GET", ["users", "@me"]) => Ok(json!({"id": self.bot, "username": "heeler"})),
            ("GET", ["applications", "@me"]) => {
                let flags = if self.reads_content { 1 << 19 } else { 0 };
                Ok(json!({"id": self.bot, "flags": flags}))
            }
            (_, ["applications", app, scope @ .., "commands"]) if *app == self.bot => {
                self.serve_commands(method, &scope.join("/"), body)
            }
            ("GET", ["gateway", "bot"]) => Ok(json!({
                "url": self.gateway_url, "shards": 1,
                "session_start_limit": {"total": 1000, "remaining": 999, "reset_after": 0},
            })),
            ("GET", ["channels", id]) => Ok(match self.threads.get(*id) {
                Some(parent) => json!({"id": id, "type": 11, "parent_id": parent}),
                None => json!({"id": id, "type": 0, "parent_id": "9000"}),
            }),
            ("GET", ["channels", id, "messages"]) => Ok(self.list(id, query)),
            ("POST", ["channels", id, "messages"]) => self.post(id, body),
            ("PATCH", ["channels", _, "messages", id]) => self.edit(id, body),
            ("POST", ["channels", _, "typing"]) => Ok(Json::Null),
            ("PUT", ["channels", _, "messages", id, "reactions", emoji, "@me"]) => {
                self.react(id, emoji)
            }
            ("POST", ["interactions", _, _, "callback"]) => {
                let text = body["data"]["content"].as_str().unwrap_or_default();
                self.click_answers.push(text.to_owned());
                Ok(Json::Null)
            }
            _ => Err((404, "404: Not Found")),
        }
    }

    /// Lists or replaces the commands of a scope, with the fields that Discord adds.
    fn serve_commands(&mut self, method: &str, scope: &str, body: &Json) -> DiscordResult {
        if method == "PUT" {
            let mut commands = body.as_array().ok_or((400, "Invalid Form Body"))?.clone();
            for command in &mut commands {
                let is_named = command["name"].as_str().is_some_and(|name| {
                    (1..=32).contains(&name.len()) && !name.contains(char::is_whitespace)
                });
                if !is_named || command["description"].as_str().is_none_or(str::is_empty) {
                    return Err((400, "Invalid Form Body"));
                }
                command["id"] = json!(self.new_snowflake());
                command["application_id"] = json!(self.bot);
                command["version"] = json!("1");
            }
            self.commands.insert(scope.to_owned(), commands);
        }
        Ok(json!(self.commands.get(scope).cloned().unwrap_or_default()))
    }

    fn post(&mut self, channel: &str, body: &Json) -> DiscordResult {
        let (text, buttons) = checked_content(body)?;
        let nonce = body["nonce"].as_str().filter(|_| body["enforce_nonce"] == true);
        if nonce.is_some_and(|nonce| nonce.len() > 25) {
            return Err((400, "Invalid Form Body"));
        }
        let key = nonce.map(|nonce| (channel.to_owned(), nonce.to_owned()));
        if let Some(known) = key.as_ref().and_then(|key| self.nonces.get(key)) {
            return Ok(json!({"id": known}));
        }
        let id = self.new_snowflake();
        if let Some(key) = key {
            self.nonces.insert(key, id.clone());
        }
        let author = json!({"id": self.bot, "username": "heeler", "bot": true});
        let message = json!({
            "id": id, "type": 0, "channel_id": channel, "content": text, "author": author,
        });
        self.messages.push(message.clone());
        // The bot receives its own messages too.
        self.add_event("MESSAGE_CREATE", message);
        let reply_to = body["message_reference"]["message_id"].as_str().map(str::to_owned);
        let channel = channel.to_owned();
        let is_edited = false;
        self.posts.push(DiscordPost {
            id: id.clone(),
            channel,
            text,
            buttons,
            reply_to,
            is_edited,
            file: body["file"].as_str().map(str::to_owned),
        });
        Ok(json!({"id": id}))
    }

    fn edit(&mut self, id: &str, body: &Json) -> DiscordResult {
        let (text, buttons) = checked_content(body)?;
        let post = self.posts.iter_mut().find(|post| post.id == id);
        let post = post.ok_or((404, "Unknown Message"))?;
        (post.text, post.buttons, post.is_edited) = (text, buttons, true);
        Ok(json!({"id": id}))
    }

    fn react(&mut self, id: &str, emoji: &str) -> DiscordResult {
        // Discord knows emoji by their characters and not by names.
        if !emoji.starts_with("%F0") && !emoji.starts_with("%E2") {
            return Err((400, "Unknown Emoji"));
        }
        if !self.messages.iter().any(|message| message["id"] == id) {
            return Err((404, "Unknown Message"));
        }
        self.reactions.push((id.to_owned(), emoji.to_owned()));
        Ok(Json::Null)
    }

    /// Lists the messages after or before an ID, newest first: those that are nearest to the ID.
    fn list(&self, channel: &str, query: &str) -> Json {
        let value = |key: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).next()
        };
        let after: u64 = value("after").and_then(|it| it.parse().ok()).unwrap_or(0);
        let before: Option<u64> = value("before").and_then(|it| it.parse().ok());
        let limit: usize = value("limit").and_then(|it| it.parse().ok()).unwrap_or(50);
        let is_here = |message: &&Json| {
            let id: u64 = message["id"].as_str().unwrap().parse().unwrap();
            message["channel_id"] == channel
                && id > after
                && before.is_none_or(|before| id < before)
        };
        let mut found: Vec<Json> = self.messages.iter().filter(is_here).cloned().collect();
        let limit = limit.min(100);
        match before {
            Some(_) => drop(found.drain(..found.len().saturating_sub(limit))),
            None => found.truncate(limit),
        }
        found.reverse();
        Json::Array(found)
    }
}

/// Returns text and values of buttons, or Discord's error.
fn checked_content(body: &Json) -> Result<(String, Vec<String>), (u16, &'static str)> {
    let text = body["content"].as_str().unwrap_or_default().to_owned();
    let is_quiet = body["allowed_mentions"]["parse"].as_array().is_some_and(Vec::is_empty);
    if text.is_empty() || text.encode_utf16().count() > TEXT_UNITS_MAX || !is_quiet {
        return Err((400, "Invalid Form Body"));
    }
    let mut buttons = Vec::new();
    for row in body["components"].as_array().into_iter().flatten() {
        let row = row["components"].as_array().ok_or((400, "Invalid Form Body"))?;
        for button in row {
            let value = button["custom_id"].as_str().unwrap_or_default();
            if row.len() > 5 || value.is_empty() || value.len() > VALUE_MAX {
                return Err((400, "Invalid Form Body"));
            }
            buttons.push(value.to_owned());
        }
    }
    Ok((text, buttons))
}
