//! Streams of the fake Slack: messages that grow.

use serde_json::{Value as Json, json};

use super::api::visible;
use super::{BOT_USER, SlackPost, SlackState};

/// Longest text of a call, in characters.
const TEXT_CHARS_MAX: usize = 12_000;

/// ID of the only workspace.
const TEAM: &str = "T1";

impl SlackState {
    pub(super) fn start_stream(&mut self, body: &Json) -> Result<Json, &'static str> {
        self.check_streams()?;
        let text = |key: &str| body[key].as_str().filter(|text| !text.is_empty());
        let channel = text("channel").ok_or("channel_not_found")?.to_owned();
        let thread = text("thread_ts").ok_or("invalid_arguments")?.to_owned();
        let is_root = |message: &Json| message["ts"] == *thread && message["channel"] == *channel;
        if !self.messages.iter().any(is_root) {
            return Err("thread_not_found");
        }
        text("recipient_user_id").ok_or("missing_recipient_user_id")?;
        let team = text("recipient_team_id").ok_or("missing_recipient_team_id")?;
        if team != TEAM {
            return Err("team_not_found");
        }
        let raw = checked_text(body)?;
        let ts = self.new_ts();
        let message = json!({
            "type": "message", "user": BOT_USER, "bot_id": "B1", "text": raw, "ts": ts,
            "channel": channel, "thread_ts": thread,
        });
        self.messages.push(message.clone());
        // The app receives its own messages too.
        self.add_event(message);
        self.posts.push(SlackPost {
            ts: ts.clone(),
            channel,
            thread: Some(thread),
            text: visible(&raw),
            raw,
            buttons: Vec::new(),
            is_edited: false,
            is_open: true,
            file: None,
        });
        Ok(json!({"ts": ts}))
    }

    pub(super) fn append_stream(&mut self, body: &Json) -> Result<Json, &'static str> {
        let added = checked_text(body)?;
        let post = self.open_stream(body)?;
        post.raw.push_str(&added);
        post.text = visible(&post.raw);
        let (ts, raw) = (post.ts.clone(), post.raw.clone());
        let message = self.messages.iter_mut().find(|message| message["ts"] == *ts);
        message.ok_or("message_not_found")?["text"] = json!(raw);
        Ok(json!({"ts": ts}))
    }

    pub(super) fn stop_stream(&mut self, body: &Json) -> Result<Json, &'static str> {
        let post = self.open_stream(body)?;
        post.is_open = false;
        Ok(json!({"ts": post.ts}))
    }

    fn check_streams(&self) -> Result<(), &'static str> {
        match self.offers_streams {
            true if self.scopes.contains("chat:write") => Ok(()),
            true => Err("missing_scope"),
            false => Err("unknown_method"),
        }
    }

    fn open_stream(&mut self, body: &Json) -> Result<&mut SlackPost, &'static str> {
        self.check_streams()?;
        let (channel, ts) = (body["channel"].as_str(), body["ts"].as_str());
        let found = |post: &&mut SlackPost| {
            Some(post.ts.as_str()) == ts && Some(post.channel.as_str()) == channel
        };
        let post = self.posts.iter_mut().find(found).ok_or("message_not_found")?;
        if post.is_open { Ok(post) } else { Err("message_not_in_streaming_state") }
    }
}

fn checked_text(body: &Json) -> Result<String, &'static str> {
    let text = body["markdown_text"].as_str().unwrap_or_default();
    match text.chars().count() {
        0 => Err("no_text"),
        1..=TEXT_CHARS_MAX => Ok(text.to_owned()),
        _ => Err("msg_too_long"),
    }
}
