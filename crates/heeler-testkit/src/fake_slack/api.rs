//! The Web API of the fake Slack.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::{Html, IntoResponse as _, Response};
use serde_json::{Value as Json, json};

use super::{BOT_USER, SharedSlack, SlackFailure, SlackPost, SlackState};

/// Longest text of a section, in UTF-16 units.
const SECTION_UNITS_MAX: usize = 3_000;

/// Longest text of a message, in UTF-16 units.
const TEXT_UNITS_MAX: usize = 40_000;

pub(super) async fn handle(
    State(shared): State<Arc<SharedSlack>>,
    request: Request<Body>,
) -> Response {
    let (head, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    if let Some(id) = head.uri.path().strip_prefix("/upload/") {
        let content = String::from_utf8_lossy(&bytes).into_owned();
        let mut state = shared.lock();
        let Some(upload) = state.uploads.get_mut(id) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        upload.1 = Some(content);
        return "OK".into_response();
    }
    if let Some(file) = head.uri.path().strip_prefix("/files/") {
        return serve_file(&shared, file, head.headers.get(AUTHORIZATION));
    }
    let Some(method) = head.uri.path().strip_prefix("/api/").map(str::to_owned) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let kind = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let body = arguments(&method, kind.unwrap_or_default(), &bytes);
    let bearer = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let (mut response, retry_after) = {
        let mut state = shared.lock();
        state.calls.push((method.clone(), Instant::now()));
        let failure = state.failures.iter().position(|failure| failure.method == method);
        let failure = failure.and_then(|place| state.failures.remove(place));
        let is_failing = state.failing.is_some_and(|failing| failing == method);
        match failure.or_else(|| is_failing.then(constant_failure)) {
            Some(failure) => {
                if failure.is_executed {
                    drop(state.execute(&method, bearer, &body));
                }
                let answer = json!({"ok": false, "error": failure.error});
                let status = StatusCode::from_u16(failure.status).unwrap();
                ((status, axum::Json(answer)).into_response(), failure.retry_after)
            }
            None => {
                let answer = match state.execute(&method, bearer, &body) {
                    Ok(mut answer) => {
                        answer["ok"] = json!(true);
                        answer
                    }
                    Err(error) => json!({"ok": false, "error": error}),
                };
                (axum::Json(answer).into_response(), None)
            }
        }
    };
    shared.changed.notify_all();
    let scopes = shared.lock().scopes.clone();
    response.headers_mut().insert("x-oauth-scopes", scopes.parse().unwrap());
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// Hands out a file. Without the right to read it, Slack shows its login page.
fn serve_file(shared: &SharedSlack, file: &str, authorization: Option<&HeaderValue>) -> Response {
    let mut state = shared.lock();
    let bearer = format!("Bearer {}", state.bot_token);
    let may_read = state.scopes.split(',').any(|scope| scope.trim() == "files:read");
    if !may_read || authorization.is_none_or(|value| value.as_bytes() != bearer.as_bytes()) {
        return Html("<html>Sign in to Slack</html>").into_response();
    }
    match state.files.fetch(file) {
        Some(content) => content.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A failure of Slack itself.
fn constant_failure() -> SlackFailure {
    SlackFailure {
        method: "",
        status: 500,
        error: "internal_error",
        retry_after: None,
        is_executed: false,
    }
}

/// Returns the arguments of a call. Slack ignores JSON in the calls that read.
fn arguments(method: &str, content_type: &str, bytes: &[u8]) -> Json {
    if !content_type.starts_with("application/x-www-form-urlencoded") {
        let is_write = method.starts_with("chat.") || method.starts_with("apps.");
        return match is_write {
            true => serde_json::from_slice(bytes).unwrap_or_default(),
            false => json!({}),
        };
    }
    let mut arguments = json!({});
    for (key, value) in url::form_urlencoded::parse(bytes) {
        let structured = matches!(&*key, "blocks" | "metadata" | "files");
        arguments[&*key] = match structured {
            true => serde_json::from_str(&value).unwrap_or_default(),
            false => json!(value),
        };
    }
    arguments
}

impl SlackState {
    fn execute(&mut self, method: &str, bearer: &str, body: &Json) -> Result<Json, &'static str> {
        let is_app_call = method == "apps.connections.open";
        let expected = if is_app_call { &self.app_token } else { &self.bot_token };
        if bearer != expected {
            return Err("invalid_auth");
        }
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        match method {
            "apps.connections.open" => {
                let ticket = format!("ticket-{}", self.new_id());
                let url = format!("{}/link/?ticket={ticket}", self.socket_url);
                self.tickets.insert(ticket);
                Ok(json!({"url": url}))
            }
            "auth.test" => {
                Ok(json!({"user_id": BOT_USER, "user": "heeler", "team": "Acme", "team_id": "T1"}))
            }
            "users.info" => {
                let id = text("user");
                if id.is_empty() {
                    return Err("user_not_found");
                }
                let profile = json!({"display_name": format!("Name of {id}")});
                Ok(json!({"user": {"id": id, "profile": profile}}))
            }
            "chat.postMessage" => self.post_message(body),
            "chat.update" => self.update_message(body),
            "reactions.add" if self.scopes.contains("reactions:write") => {
                self.reactions.push((text("timestamp"), text("name")));
                Ok(json!({}))
            }
            "reactions.add" => Err("missing_scope"),
            "chat.startStream" => self.start_stream(body),
            "chat.appendStream" => self.append_stream(body),
            "chat.stopStream" => self.stop_stream(body),
            "chat.postEphemeral" => {
                self.whispers.push((text("user"), text("text")));
                Ok(json!({}))
            }
            "assistant.threads.setStatus" if self.scopes.contains("assistant:write") => {
                self.statuses.push((text("channel_id"), text("thread_ts")));
                Ok(json!({}))
            }
            "assistant.threads.setStatus" => Err("missing_scope"),
            "conversations.history" | "conversations.replies" if text("channel").is_empty() => {
                Err("invalid_arguments")
            }
            "conversations.history" if self.foreign_channels.contains(&text("channel")) => {
                Err("not_in_channel")
            }
            "conversations.history" if self.refuses_later_pages && !text("cursor").is_empty() => {
                Err("access_denied")
            }
            "conversations.history" => Ok(self.list(body, false)),
            "conversations.replies" => Ok(self.list(body, true)),
            _ if method.starts_with("files.") && !self.scopes.contains("files:write") => {
                Err("missing_scope")
            }
            "files.getUploadURLExternal" => {
                let id = format!("F{}", self.new_id());
                self.uploads.insert(id.clone(), (text("filename"), None));
                // It is not below `/api/`, and needs no token.
                let url = format!("{}/upload/{id}", self.http_url);
                Ok(json!({"upload_url": url, "file_id": id}))
            }
            "files.completeUploadExternal" => self.complete_upload(body),
            _ => Err("unknown_method"),
        }
    }

    /// Posts a file that was uploaded.
    fn complete_upload(&mut self, body: &Json) -> Result<Json, &'static str> {
        let id = body["files"][0]["id"].as_str().ok_or("invalid_arguments")?.to_owned();
        let (name, content) = self.uploads.remove(&id).ok_or("file_not_found")?;
        let content = content.ok_or("file_not_found")?;
        let channel = body["channel_id"].as_str().ok_or("channel_not_found")?.to_owned();
        let thread = body["thread_ts"].as_str().map(str::to_owned);
        let raw = body["initial_comment"].as_str().unwrap_or_default().to_owned();
        let ts = self.new_ts();
        let mut message = json!({
            "type": "message", "subtype": "file_share", "user": BOT_USER, "bot_id": "B1",
            "text": raw, "ts": ts, "channel": channel,
            "files": [{"id": id, "name": name, "title": body["files"][0]["title"]}],
        });
        if let Some(thread) = &thread {
            message["thread_ts"] = json!(thread);
        }
        self.messages.push(message.clone());
        self.add_event(message);
        let (text, file) = (visible(&raw), Some(content));
        let (buttons, is_edited, is_open) = (Vec::new(), false, false);
        let post = SlackPost { ts, channel, thread, text, raw, buttons, is_edited, is_open, file };
        self.posts.push(post);
        Ok(json!({"files": [{"id": id}]}))
    }

    fn post_message(&mut self, body: &Json) -> Result<Json, &'static str> {
        let (raw, buttons) = checked_content(body)?;
        let ts = self.new_ts();
        let channel = body["channel"].as_str().ok_or("channel_not_found")?.to_owned();
        let thread = body["thread_ts"].as_str().map(str::to_owned);
        let mut message = json!({
            "type": "message", "user": BOT_USER, "bot_id": "B1", "text": raw, "ts": ts,
            "channel": channel, "metadata": body["metadata"],
        });
        if let Some(thread) = &thread {
            message["thread_ts"] = json!(thread);
        }
        self.messages.push(message.clone());
        // The app receives its own messages too.
        self.add_event(message);
        let text = visible(&raw);
        self.posts.push(SlackPost {
            ts: ts.clone(),
            channel,
            thread,
            text,
            raw,
            buttons,
            is_edited: false,
            is_open: false,
            file: None,
        });
        Ok(json!({"ts": ts}))
    }

    fn update_message(&mut self, body: &Json) -> Result<Json, &'static str> {
        let (raw, buttons) = checked_content(body)?;
        let (channel, ts) = (body["channel"].as_str(), body["ts"].as_str());
        let found = |post: &&mut SlackPost| {
            Some(post.ts.as_str()) == ts && Some(post.channel.as_str()) == channel
        };
        let post = self.posts.iter_mut().find(found).ok_or("message_not_found")?;
        if post.is_open {
            return Err("streaming_state_conflict");
        }
        post.text = visible(&raw);
        (post.raw, post.buttons, post.is_edited) = (raw, buttons, true);
        Ok(json!({"ts": ts}))
    }

    /// Lists messages of a channel, newest first, or of a thread, oldest first.
    fn list(&self, body: &Json, is_thread: bool) -> Json {
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        let (channel, root, oldest) = (text("channel"), text("ts"), text("oldest"));
        let latest = body["latest"].as_str();
        let is_inclusive = body["inclusive"] == true || body["inclusive"] == "true";
        let is_late = |ts: &str| ts > oldest.as_str() || is_inclusive && ts == oldest;
        let limit: usize = text("limit").parse().unwrap_or(100);
        let skip: usize = text("cursor").parse().unwrap_or(0);
        let belongs = |message: &&Json| {
            let (ts, thread) = (message["ts"].as_str().unwrap(), message["thread_ts"].as_str());
            let is_root = thread.is_none_or(|thread| thread == ts);
            let is_here = match is_thread {
                // Slack returns the root in any case.
                true => ts == root || (thread == Some(&root) && is_late(ts)),
                false => is_root && is_late(ts),
            };
            let is_early = latest.is_none_or(|latest| ts < latest || is_inclusive && ts == latest);
            message["channel"] == channel && is_here && is_early
        };
        let mut found: Vec<Json> = self.messages.iter().filter(belongs).cloned().collect();
        if !is_thread {
            found.reverse();
        }
        let is_last = found.len() <= skip + limit;
        let cursor = if is_last { String::new() } else { (skip + limit).to_string() };
        let page: Vec<Json> = found
            .into_iter()
            .skip(skip)
            .take(limit)
            .map(|mut message| {
                // A list does not repeat its channel, and a root names its own thread.
                let fields = message.as_object_mut().unwrap();
                fields.remove("channel");
                fields.remove("channel_type");
                let ts = message["ts"].clone();
                if self.messages.iter().any(|it| it["thread_ts"] == ts && it["ts"] != ts) {
                    message["thread_ts"] = ts;
                    message["reply_count"] = json!(1);
                }
                message
            })
            .collect();
        json!({"messages": page, "has_more": !is_last, "response_metadata": {"next_cursor": cursor}})
    }
}

/// Returns text and values of buttons, or Slack's error.
fn checked_content(body: &Json) -> Result<(String, Vec<String>), &'static str> {
    let text = body["text"].as_str().unwrap_or_default().to_owned();
    let units = |text: &str| text.encode_utf16().count();
    if text.is_empty() {
        return Err("no_text");
    }
    if units(&text) > TEXT_UNITS_MAX {
        return Err("msg_too_long");
    }
    let (mut shown, mut buttons) = (Vec::new(), Vec::new());
    let blocks = body["blocks"].as_array();
    if blocks.is_some_and(|blocks| blocks.len() > 50) {
        return Err("invalid_blocks");
    }
    for block in blocks.into_iter().flatten() {
        match block["type"].as_str() {
            Some("section") => {
                let text = block["text"]["text"].as_str().unwrap_or_default();
                if text.is_empty() || units(text) > SECTION_UNITS_MAX {
                    return Err("invalid_blocks");
                }
                shown.push(text.to_owned());
            }
            Some("actions") => {
                for button in block["elements"].as_array().into_iter().flatten() {
                    let value = button["value"].as_str().unwrap_or_default();
                    let label = button["text"]["text"].as_str().unwrap_or_default();
                    if label.is_empty() || units(label) > 75 || units(value) > 2_000 {
                        return Err("invalid_blocks");
                    }
                    buttons.push(value.to_owned());
                }
            }
            _ => return Err("invalid_blocks"),
        }
    }
    let shown = if shown.is_empty() { text } else { shown.join("\n") };
    Ok((shown, buttons))
}

pub(super) fn visible(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
