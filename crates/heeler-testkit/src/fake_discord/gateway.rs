//! The gateway of the fake Discord.

use std::collections::VecDeque;

use serde_json::{Value as Json, json};

use super::{DiscordState, GUILD, SharedDiscord};
use crate::fake_sockets::{SocketAction, SocketService};

/// A session, which outlives its connections.
#[derive(Debug, Default)]
pub(super) struct GatewaySessionState {
    /// Events by number, starting at 1.
    events: Vec<Json>,
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct GatewaySocketState {
    frames: VecDeque<String>,
    session: Option<String>,
    pub(super) is_aborted: bool,
    close: Option<u16>,
}

impl GatewaySocketState {
    pub(super) fn is_connected(&self) -> bool {
        self.session.is_some() && !self.is_aborted && self.frames.is_empty()
    }
}

impl DiscordState {
    /// Adds an event to all sessions, and delivers it to those that are connected.
    pub(super) fn add_event(&mut self, kind: &str, data: Json) {
        let names: Vec<String> = self.sessions.keys().cloned().collect();
        for name in names {
            self.add_session_event(&name, kind, data.clone());
        }
    }

    fn add_session_event(&mut self, name: &str, kind: &str, data: Json) {
        let session = self.sessions.entry(name.to_owned()).or_default();
        let seq = session.events.len() + 1;
        let frame = json!({"op": 0, "s": seq, "t": kind, "d": data});
        session.events.push(frame.clone());
        let sockets = self.sockets.values_mut();
        for socket in sockets.filter(|socket| socket.session.as_deref() == Some(name)) {
            socket.frames.push_back(frame.to_string());
        }
    }

    pub(super) fn send_to_all(&mut self, frame: &Json) {
        let sockets = self.sockets.values_mut();
        sockets.for_each(|socket| socket.frames.push_back(frame.to_string()));
    }

    fn take_frame(&mut self, number: u64, frame: &Json) {
        let data = &frame["d"];
        match frame["op"].as_u64() {
            Some(1) => self.send(number, &json!({"op": 11, "d": null})),
            Some(2) => self.identify(number, data),
            Some(6) => self.resume(number, data),
            _ => self.close(number, 4001),
        }
    }

    fn send(&mut self, number: u64, frame: &Json) {
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.frames.push_back(frame.to_string());
        }
    }

    fn close(&mut self, number: u64, code: u16) {
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.close = Some(code);
        }
    }

    fn identify(&mut self, number: u64, data: &Json) {
        let refusal = match data["token"] == self.token.as_str() {
            true => self.refusal,
            false => Some(4004),
        };
        if let Some(code) = refusal {
            return self.close(number, code);
        }
        self.starts += 1;
        let name = format!("session-{}", self.starts);
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.session = Some(name.clone());
        }
        let ready = json!({
            "v": 10, "session_id": name, "resume_gateway_url": self.gateway_url,
            "user": {"id": self.bot, "username": "heeler"}, "guilds": [{"id": GUILD}],
        });
        self.add_session_event(&name, "READY", ready);
        let guild = json!({
            "id": GUILD, "channels": [{"id": "500", "type": 0}], "threads": [],
            "roles": [{"id": "70", "tags": {"bot_id": self.bot}}],
        });
        self.add_session_event(&name, "GUILD_CREATE", guild);
    }

    fn resume(&mut self, number: u64, data: &Json) {
        let name = data["session_id"].as_str().unwrap_or_default().to_owned();
        let Some(session) =
            self.sessions.get(&name).filter(|_| data["token"] == self.token.as_str())
        else {
            return self.send(number, &json!({"op": 9, "d": false}));
        };
        let seq = usize::try_from(data["seq"].as_u64().unwrap_or(0)).unwrap();
        if seq > session.events.len() {
            return self.close(number, 4007);
        }
        let missed: Vec<String> = session.events[seq..].iter().map(Json::to_string).collect();
        self.resumes += 1;
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.frames.extend(missed);
            socket.session = Some(name.clone());
        }
        self.add_session_event(&name, "RESUMED", json!({}));
    }
}

impl SocketService for SharedDiscord {
    fn admit(&self, path: &str) -> Option<u64> {
        let mut state = self.lock();
        if !path.contains("v=10") || !path.contains("encoding=json") {
            return None;
        }
        state.last_id += 1;
        let (number, heartbeat) = (state.last_id, state.heartbeat_ms);
        let mut socket = GatewaySocketState::default();
        let hello = json!({"op": 10, "d": {"heartbeat_interval": heartbeat}});
        socket.frames.push_back(hello.to_string());
        state.sockets.insert(number, socket);
        Some(number)
    }

    fn take_text(&self, socket: u64, text: &str) {
        let frame: Json = serde_json::from_str(text).unwrap_or_default();
        self.lock().take_frame(socket, &frame);
        self.changed.notify_all();
    }

    fn next_action(&self, number: u64) -> SocketAction {
        let mut state = self.lock();
        let is_frozen = state.is_frozen;
        let Some(socket) = state.sockets.get_mut(&number) else { return SocketAction::Abort };
        if socket.is_aborted {
            return SocketAction::Abort;
        }
        if is_frozen {
            return SocketAction::Freeze;
        }
        if let Some(frame) = socket.frames.pop_front() {
            return SocketAction::Send(frame);
        }
        match socket.close {
            Some(code) => SocketAction::Close(code, "refused"),
            None => SocketAction::Listen,
        }
    }

    fn end(&self, number: u64) {
        self.lock().sockets.remove(&number);
        self.changed.notify_all();
    }
}
