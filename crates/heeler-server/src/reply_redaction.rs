//! Removes secrets from every text reply, whatever the scope of the caller.
//!
//! Records are redacted as they are written. This is the second line: it covers records that were
//! written before a secret was known, and data that is no record. Start at [`redact_reply`].

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use heeler_engine::DaemonSetup;
use heeler_model::redact::SecretRedactor;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use crate::problem::ProblemDetails;
use crate::redacted_reply::RedactedReply;
use crate::server_state::SharedServerState;

/// Mark of a reply that reveals a secret to the caller who asked for its creation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RevealsSecret;

/// Redactor of the current config, built once per config.
#[derive(Debug, Default)]
pub struct ReplyRedactor(Mutex<Option<(Weak<DaemonSetup>, SecretRedactor)>>);

impl ReplyRedactor {
    pub(crate) fn for_setup(&self, setup: &Arc<DaemonSetup>) -> SecretRedactor {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, redactor)) = &*cached
            && of.as_ptr() == Arc::as_ptr(setup)
        {
            return redactor.clone();
        }
        let redactor = SecretRedactor::new(&setup.secrets());
        // The weak reference keeps the address from being used again.
        *cached = Some((Arc::downgrade(setup), redactor.clone()));
        redactor
    }
}

/// Middleware that redacts the reply.
pub(crate) async fn redact_reply(
    State(app): State<SharedServerState>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    let Some(format) = ReplyFormat::of(response.headers()) else { return response };
    let marks = response.extensions();
    if marks.get::<RevealsSecret>().is_some() || marks.get::<RedactedReply>().is_some() {
        return response;
    }
    let redactor = app.reply_redactor.for_setup(&app.fleet_monitor.setup());
    let (mut head, body) = response.into_parts();
    // A stream is redacted event by event: each is one frame, and none may be held back.
    let Some(length) = body.size_hint().exact() else {
        let frames = body.into_data_stream();
        let frames = frames.map(move |frame| frame.map(|it| format.redact(&redactor, it)));
        return Response::from_parts(head, Body::from_stream(frames));
    };
    let Ok(bytes) = to_bytes(body, usize::try_from(length).unwrap_or(usize::MAX)).await else {
        return ProblemDetails::internal_error("the reply could not be read").into_response();
    };
    let clean = format.redact(&redactor, bytes);
    if clean.len() as u64 != length {
        head.headers.remove(CONTENT_LENGTH);
    }
    Response::from_parts(
        head,
        Body::new(http_body_util::Full::new(clean).map_err(|error| match error {})),
    )
}

/// Format of a reply that may hold secrets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ReplyFormat {
    Json,
    Text,
}

impl ReplyFormat {
    /// Returns the format of a reply; `None` for files, which have their own checks.
    fn of(headers: &HeaderMap) -> Option<ReplyFormat> {
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let kind = kind.split(';').next().unwrap_or_default().trim();
        match kind {
            "application/json" | "application/problem+json" => Some(ReplyFormat::Json),
            "text/html" | "text/event-stream" | "text/plain" | "text/x-diff" => {
                Some(ReplyFormat::Text)
            }
            _ => None,
        }
    }

    fn redact(self, redactor: &SecretRedactor, bytes: Bytes) -> Bytes {
        let Cow::Owned(clean) = redactor.redact_bytes(&bytes) else { return bytes };
        // A match in serialized JSON may include half an escape, so the values are redacted.
        match self {
            ReplyFormat::Json => redact_json(redactor, &bytes).unwrap_or_else(|| clean.into()),
            ReplyFormat::Text => clean.into(),
        }
    }
}

/// Redacts the text of a JSON reply.
pub(crate) fn redact_json_reply(redactor: &SecretRedactor, json: Bytes) -> Bytes {
    ReplyFormat::Json.redact(redactor, json)
}

fn redact_json(redactor: &SecretRedactor, bytes: &[u8]) -> Option<Bytes> {
    let mut json: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    redactor.redact_json(&mut json);
    serde_json::to_vec(&json).ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_json_and_other_text_loses_the_bytes() {
        let redactor = SecretRedactor::new(&["/quoted\"secret".to_owned()]);
        let json = Bytes::from_static(br#"{"a":"\\/quoted\"secret","n":1}"#);
        let clean = ReplyFormat::Json.redact(&redactor, json);
        assert_eq!(clean, r#"{"a":"\\[secret]","n":1}"#);
        let token = format!("data: heeler_{}\n\n", "0a".repeat(32));
        let clean = ReplyFormat::Text.redact(&redactor, Bytes::from(token));
        assert_eq!(clean, "data: [secret]\n\n");
    }
}
