//! Calls of Slack: events, clicks and commands of apps with `events: http`.
//!
//! A call is signed with the signing secret of its app, and answered after its event is recorded. Slack
//! repeats a call without an answer; an event that was recorded before has no further effect, however its
//! call is repeated. Start at [`slack`].

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use heeler_engine::{CommandReply, SlackCall, SlackCallKind};
use serde_json::{Map, Value, json};

use super::signature::SlackSignature;
use super::{WebhookLimits, WebhookPeer, WebhookSender, acquire_permit, unsigned_problem};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Size limit of a call.
const CALL_BYTES_MAX: usize = 1 << 20;

/// Longest wait for the record of an event. Slack waits for 3 s.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(10);

/// Content of a call.
pub(super) enum SlackBody {
    /// Slack checks the address when it is set.
    Challenge(Value),
    Call(SlackCallKind, Value),
}

/// Handles a call of Slack.
pub(super) async fn slack(
    State(app): State<SharedServerState>,
    Extension(limits): Extension<WebhookLimits>,
    peer: WebhookPeer,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ProblemDetails> {
    let sender = WebhookSender::new(None, &peer);
    let signature = SlackSignature::read(&headers, (app.clock)());
    let apps = app.fleet_monitor.setup().calling_slack_apps();
    // A call that can never be accepted is rejected before its body is read.
    let signature = signature.filter(|_| !apps.is_empty()).ok_or_else(unsigned_problem)?;
    let body = limits.bodies.read(sender.network, body, CALL_BYTES_MAX).await?;
    // A slow sender must not hold one of the few permits.
    let permit = acquire_permit(&limits.call_permits).await?;
    let signer = apps.into_iter().find(|(_, secret)| signature.is_made_with(secret, &body));
    let (account, _) = signer.ok_or_else(unsigned_problem)?;
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (kind, payload) = match parse_body(kind, &body)? {
        SlackBody::Challenge(challenge) => {
            return Ok(Json(json!({ "challenge": challenge })).into_response());
        }
        SlackBody::Call(kind, payload) => (kind, payload),
    };
    // Apps may share a secret by mistake; a call counts for its own app only.
    if payload["api_app_id"].as_str().is_some_and(|app| app != account) {
        return Err(unsigned_problem());
    }
    drop(permit);
    Ok(pass_call(&app, SlackCall { account, kind, payload }).await)
}

/// Passes a call on, and answers it when its event is recorded.
async fn pass_call(app: &SharedServerState, call: SlackCall) -> Response {
    let is_command = call.kind == SlackCallKind::Command;
    let (sender, recorded) = tokio::sync::oneshot::channel();
    app.dispatcher.pass_slack_call(call, Box::new(move |answer| drop(sender.send(answer))));
    match tokio::time::timeout(RECORD_WAIT_MAX, recorded).await {
        Ok(Ok(Ok(CommandReply::Done { message }))) if is_command && !message.is_empty() => {
            Json(json!({ "response_type": "ephemeral", "text": message })).into_response()
        }
        Ok(Ok(Ok(_))) => StatusCode::OK.into_response(),
        // Slack calls again.
        _ => (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")]).into_response(),
    }
}

pub(super) fn parse_body(content_type: &str, body: &[u8]) -> Result<SlackBody, ProblemDetails> {
    let invalid = || ProblemDetails::bad_request("the call has not the form of a call of Slack");
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let mut fields = Map::new();
        for (name, value) in url::form_urlencoded::parse(body) {
            // A field that occurs twice could mean two things.
            if fields.insert(name.into_owned(), Value::from(value.into_owned())).is_some() {
                return Err(invalid());
            }
        }
        return match fields.get("payload").and_then(Value::as_str) {
            Some(payload) => {
                let payload = serde_json::from_str(payload).map_err(|_| invalid())?;
                Ok(SlackBody::Call(SlackCallKind::Interaction, payload))
            }
            None => Ok(SlackBody::Call(SlackCallKind::Command, Value::Object(fields))),
        };
    }
    let mut payload: Value = serde_json::from_slice(body).map_err(|_| invalid())?;
    match payload["type"].as_str() {
        Some("url_verification") => Ok(SlackBody::Challenge(payload["challenge"].take())),
        Some(_) => Ok(SlackBody::Call(SlackCallKind::Event, payload)),
        None => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_call_is_recognized_and_no_other_is() {
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        let kind = |content_type: &str, body: &str| match parse_body(content_type, body.as_bytes())
        {
            Ok(SlackBody::Call(kind, payload)) => Ok((kind, payload)),
            Ok(SlackBody::Challenge(challenge)) => Err(challenge.to_string()),
            Err(_) => Err("refused".to_owned()),
        };
        let event = json!({"type": "event_callback", "event": {}});
        let read = kind("application/json", &event.to_string()).unwrap();
        assert_eq!(read, (SlackCallKind::Event, event));
        let click = kind(form, "payload=%7B%22type%22%3A%22block_actions%22%7D").unwrap();
        assert_eq!(click, (SlackCallKind::Interaction, json!({"type": "block_actions"})));
        let command = kind(form, "command=%2Fheeler&text=status").unwrap();
        let fields = json!({"command": "/heeler", "text": "status"});
        assert_eq!(command, (SlackCallKind::Command, fields));
        let challenge = r#"{"type":"url_verification","challenge":"abc"}"#;
        assert_eq!(kind("application/json", challenge), Err("\"abc\"".to_owned()));
        for (content_type, body) in [
            (form, "payload=%7B%7D&payload=%7B%7D"),
            (form, "payload=x"),
            ("application/json", "{}"),
            ("application/json", "["),
            ("", ""),
        ] {
            assert_eq!(kind(content_type, body), Err("refused".to_owned()), "{body}");
        }
    }
}
