//! Delivery of events to sockets.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::{SharedSlack, SlackSocketState, SlackState};
use crate::fake_sockets::{SocketAction, SocketService};

/// Attempts at the delivery of an event.
const ATTEMPTS_MAX: u32 = 4;

/// Most sockets of an app.
const SOCKETS_MAX: usize = 10;

/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(2);

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
        // A click is shown as failed and not repeated.
        if self.kind == "interactive" { 1 } else { ATTEMPTS_MAX }
    }
}

impl SlackState {
    pub(super) fn add_event(&mut self, event: Json) {
        let id = format!("Ev{}", self.new_id());
        let payload =
            json!({"type": "event_callback", "event_id": id, "team_id": "T1", "event": event});
        self.add_delivery("events_api", payload);
    }

    pub(super) fn add_click(&mut self, payload: Json) {
        self.add_delivery("interactive", payload);
    }

    fn add_delivery(&mut self, kind: &'static str, payload: Json) {
        let delivery =
            SlackDelivery { kind, payload, attempts: 0, envelope: None, is_acknowledged: false };
        self.deliveries.push(delivery);
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

    fn acknowledge(&mut self, envelope: &str) {
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
        self.lock().acknowledge(&envelope);
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
