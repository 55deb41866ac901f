//! Delivery of events to sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::hmac;
use serde_json::{Value as Json, json};

use super::{SharedSlack, SlackSocketState, SlackState};
use crate::fake_sockets::{SocketAction, SocketService};

/// Attempts at the delivery of an event.
const ATTEMPTS_MAX: u32 = 4;

/// Most sockets of an app.
const SOCKETS_MAX: usize = 10;

/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// A call of an app that takes events by HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlackHttpCall {
    /// Headers, with the signature.
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

/// Makes calls: returns status and body of the response, or `None` without one.
type CallMaker = Arc<dyn Fn(&SlackHttpCall) -> Option<(u16, String)> + Send + Sync>;

/// An app that takes events by HTTP.
#[derive(Clone)]
pub(super) struct CalledApp {
    pub(super) secret: String,
    pub(super) make_call: CallMaker,
}

impl std::fmt::Debug for CalledApp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CalledApp")
    }
}

/// An event on its way.
#[derive(Debug)]
pub(super) struct SlackDelivery {
    kind: &'static str,
    payload: Json,
    attempts: u32,
    /// Envelope of the current attempt, and its end.
    envelope: Option<(String, Instant)>,
    is_acknowledged: bool,
}

impl SlackDelivery {
    pub(super) fn has_ended(&self) -> bool {
        let is_last = self.attempts >= self.attempts_max() && self.envelope.is_none();
        self.is_acknowledged || is_last
    }

    fn attempts_max(&self) -> u32 {
        // A click or command is shown as failed and not repeated.
        if self.kind == "events_api" { ATTEMPTS_MAX } else { 1 }
    }
}

impl SlackState {
    pub(super) fn add_event(&mut self, event: Json) {
        let id = format!("Ev{}", self.new_id());
        let payload = json!({
            "type": "event_callback", "event_id": id, "team_id": "T1", "api_app_id": "A0TEST",
            "event": event,
        });
        self.add_delivery("events_api", payload);
    }

    pub(super) fn add_click(&mut self, payload: Json) {
        self.add_delivery("interactive", payload);
    }

    pub(super) fn add_command(&mut self, payload: Json) {
        self.add_delivery("slash_commands", payload);
    }

    fn add_delivery(&mut self, kind: &'static str, payload: Json) {
        let delivery =
            SlackDelivery { kind, payload, attempts: 0, envelope: None, is_acknowledged: false };
        self.deliveries.push(delivery);
    }

    /// Returns a call with a payload, signed at a time.
    pub(super) fn http_call(
        &self,
        (kind, payload, retry): (&str, &Json, u32),
        age: i64,
    ) -> SlackHttpCall {
        let (content_type, body) = match kind {
            "events_api" => ("application/json", payload.to_string()),
            kind => {
                let mut form = url::form_urlencoded::Serializer::new(String::new());
                match kind {
                    "interactive" => drop(form.append_pair("payload", &payload.to_string())),
                    _ => payload.as_object().unwrap().iter().for_each(|(name, value)| {
                        form.append_pair(name, value.as_str().unwrap_or_default());
                    }),
                }
                ("application/x-www-form-urlencoded", form.finish())
            }
        };
        let secret = self.called.as_ref().map(|app| app.secret.clone()).unwrap_or_default();
        let seconds = i64::try_from(self.began.elapsed().as_secs()).unwrap();
        let time = (self.started_at + seconds - age).to_string();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, format!("v0:{time}:{body}").as_bytes());
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut headers = vec![
            ("content-type", content_type.to_owned()),
            ("x-slack-request-timestamp", time),
            ("x-slack-signature", format!("v0={hex}")),
        ];
        if retry > 0 {
            headers.push(("x-slack-retry-num", retry.to_string()));
            headers.push(("x-slack-retry-reason", "http_timeout".to_owned()));
        }
        SlackHttpCall { headers, body }
    }

    /// Returns the calls that are due, with their envelopes, if the app takes events by HTTP.
    pub(super) fn take_calls(&mut self) -> Vec<(CalledApp, String, SlackHttpCall)> {
        let Some(app) = self.called.clone() else { return Vec::new() };
        let (now, ack_time) = (Instant::now(), self.ack_time);
        let mut due = Vec::new();
        for delivery in &mut self.deliveries {
            if delivery.envelope.as_ref().is_some_and(|(_, until)| *until <= now) {
                delivery.envelope = None;
            }
            if delivery.has_ended() || delivery.envelope.is_some() {
                continue;
            }
            let retry = delivery.attempts;
            delivery.attempts += 1;
            self.last_id += 1;
            let id = format!("call-{}", self.last_id);
            delivery.envelope = Some((id.clone(), now + ack_time));
            due.push((id, delivery.kind, delivery.payload.clone(), retry));
        }
        let calls = due.into_iter().map(|(id, kind, payload, retry)| {
            let call = self.http_call((kind, &payload, retry), 0);
            (app.clone(), id, call)
        });
        calls.collect()
    }

    /// Takes the response to a call.
    pub(super) fn take_response(&mut self, envelope: &str, response: Option<(u16, String)>) {
        if let Some((200, body)) = response {
            self.acknowledge(envelope, &serde_json::from_str(&body).unwrap_or_default());
        }
    }

    /// Sends what is due to one of the sockets each.
    pub(super) fn deliver(&mut self) {
        let now = Instant::now();
        let ready = |socket: &SlackSocketState| socket.is_greeted && !socket.is_aborted;
        let sockets: Vec<u64> =
            self.sockets.iter().filter(|(_, it)| ready(it)).map(|(number, _)| *number).collect();
        let mut next_id = self.last_id;
        for delivery in &mut self.deliveries {
            if delivery.envelope.as_ref().is_some_and(|(_, until)| *until <= now) {
                delivery.envelope = None;
            }
            if delivery.has_ended() || delivery.envelope.is_some() {
                continue;
            }
            let retry = delivery.attempts;
            delivery.attempts += 1;
            next_id += 1;
            let id = format!("env-{next_id}");
            delivery.envelope = Some((id.clone(), now + self.ack_time));
            // An attempt without a socket fails too.
            if sockets.is_empty() {
                continue;
            }
            let place = usize::try_from(next_id).unwrap() % sockets.len();
            let mut frame = json!({
                "type": delivery.kind, "envelope_id": id, "payload": delivery.payload,
                "accepts_response_payload": delivery.kind != "events_api",
            });
            if delivery.kind == "events_api" {
                frame["retry_attempt"] = json!(retry);
                frame["retry_reason"] = json!(if retry > 0 { "timeout" } else { "" });
            }
            let socket = self.sockets.get_mut(&sockets[place]).unwrap();
            socket.frames.push_back(frame.to_string());
        }
        self.last_id = next_id;
    }

    /// Records the time at which a message of a person was sent to the app.
    fn note_sending(&mut self, frame: &str) {
        let frame: Json = serde_json::from_str(frame).unwrap_or_default();
        let is_of_person = frame["payload"]["event"]["bot_id"].is_null();
        if let Some(envelope) = frame["envelope_id"].as_str().filter(|_| is_of_person) {
            self.sent.insert(envelope.to_owned(), Instant::now());
        }
    }

    fn acknowledge(&mut self, envelope: &str, answer: &Json) {
        self.command_answers.extend(answer["text"].as_str().map(str::to_owned));
        let sent = self.sent.remove(envelope);
        self.ack_times.extend(sent.map(|at| at.elapsed()));
        if self.lost_acks > 0 {
            self.lost_acks -= 1;
            return;
        }
        for delivery in &mut self.deliveries {
            if delivery.envelope.as_ref().is_some_and(|(id, _)| id == envelope) {
                delivery.is_acknowledged = true;
                delivery.envelope = None;
            }
        }
    }
}

impl SocketService for SharedSlack {
    fn admit(&self, path: &str) -> Option<u64> {
        let mut state = self.lock();
        let ticket = path.strip_prefix("/link/?ticket=")?;
        // A ticket works once.
        if !state.tickets.remove(ticket) {
            return None;
        }
        let number = state.new_id();
        let count = state.sockets.len() + 1;
        let frame = match count > SOCKETS_MAX {
            true => json!({"type": "disconnect", "reason": "too_many_websockets"}),
            false => json!({
                "type": "hello", "num_connections": count,
                "debug_info": {"approximate_connection_time": 360},
                "connection_info": {"app_id": "A1"},
            }),
        };
        let mut socket = SlackSocketState::default();
        socket.frames.push_back(frame.to_string());
        state.sockets.insert(number, socket);
        Some(number)
    }

    fn take_text(&self, _: u64, text: &str) {
        let frame: Json = serde_json::from_str(text).unwrap_or_default();
        let envelope = frame["envelope_id"].as_str().unwrap_or_default().to_owned();
        self.lock().acknowledge(&envelope, &frame["payload"]);
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
            socket.is_greeted |= frame.contains("\"hello\"");
            state.note_sending(&frame);
            self.changed.notify_all();
            return SocketAction::Send(frame);
        }
        let is_due = socket.pinged_at.is_none_or(|at| at.elapsed() > PING_INTERVAL);
        match is_due {
            true => {
                socket.pinged_at = Some(Instant::now());
                SocketAction::Ping
            }
            false => SocketAction::Listen,
        }
    }

    fn end(&self, number: u64) {
        self.lock().sockets.remove(&number);
        self.changed.notify_all();
    }
}
