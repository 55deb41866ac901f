//! Extractors of requests: limited bodies, parameters, callers. An invalid request becomes a
//! [`ProblemDetails`].

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use heeler_engine::{IdempotencyKey, recorded_reply};
use heeler_model::PROMPT_BYTES_MAX;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::caller::{AccessScope, KeyedCaller, RequestCaller};
use crate::problem::ProblemDetails;
use crate::replies::DaemonReply;
use crate::server_state::SharedServerState;

/// Size limit of a request body: JSON encodes some characters of a prompt in six bytes.
pub(crate) const BODY_BYTES_MAX: usize = PROMPT_BYTES_MAX as usize * 6 + (2 << 20);

/// Header with the idempotency key of a request.
pub(crate) const IDEMPOTENCY_KEY_HEADER: &str = "Idempotency-Key";

/// Longest idempotency key.
pub(crate) const KEY_CHARS_MAX: usize = 255;

/// Header of a reply that repeats the first reply to an idempotency key.
const REPLAYED_HEADER: &str = "idempotency-replayed";

/// Time limit for receiving a body.
pub(crate) const BODY_WAIT: Duration = Duration::from_secs(30);

/// Reads a body within limits of size and time.
pub(crate) async fn read_bytes(body: Body, bytes_max: usize) -> Result<Bytes, ProblemDetails> {
    let slow = |_| {
        let detail = format!("the request took more than {} s to arrive", BODY_WAIT.as_secs());
        ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail)
    };
    let read = tokio::time::timeout(BODY_WAIT, axum::body::to_bytes(body, bytes_max)).await;
    read.map_err(slow)?.map_err(|error| match is_too_long(&error) {
        true => {
            let detail = format!("the request is longer than {bytes_max} bytes");
            ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
        }
        false => ProblemDetails::bad_request(format!("the request was cut off: {error}")),
    })
}

fn is_too_long(error: &axum::Error) -> bool {
    // The error of the limit is wrapped in errors of the body.
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Body of JSON; an empty body counts as `{}`.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ProblemDetails;

    async fn from_request(request: Request, _: &S) -> Result<JsonBody<T>, ProblemDetails> {
        let bytes = read_bytes(request.into_body(), BODY_BYTES_MAX).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        let body = serde_json::from_slice(&bytes);
        body.map(JsonBody)
            .map_err(|error| ProblemDetails::bad_request(format!("invalid request: {error}")))
    }
}

#[derive(Debug)]
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ProblemDetails;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &S,
    ) -> Result<QueryParams<T>, ProblemDetails> {
        let params = Query::<T>::from_request_parts(parts, state).await;
        params
            .map(|Query(params)| QueryParams(params))
            .map_err(|error| ProblemDetails::bad_request(error.body_text()))
    }
}

#[derive(Debug)]
pub(crate) struct PathParams<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParams<T> {
    type Rejection = ProblemDetails;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &S,
    ) -> Result<PathParams<T>, ProblemDetails> {
        let named = Path::<T>::from_request_parts(parts, state).await;
        named
            .map(|Path(named)| PathParams(named))
            .map_err(|error| ProblemDetails::bad_request(error.body_text()))
    }
}

impl<S: Sync> FromRequestParts<S> for RequestCaller {
    type Rejection = ProblemDetails;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<RequestCaller, ProblemDetails> {
        RequestCaller::from_extensions(&parts.extensions).cloned()
    }
}

impl RequestCaller {
    /// Returns the caller that access control attached to a request.
    pub(crate) fn from_extensions(
        extensions: &Extensions,
    ) -> Result<&RequestCaller, ProblemDetails> {
        let unauthenticated = || {
            ProblemDetails::new(
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "a token or login is required",
            )
        };
        extensions.get().ok_or_else(unauthenticated)
    }

    /// Returns a problem if the caller's scope is insufficient.
    pub(crate) fn require_scope(&self, scope: AccessScope) -> Result<(), ProblemDetails> {
        if self.scope < scope {
            let detail = format!("{} may not do this: it needs the scope {scope}", self.name);
            return Err(ProblemDetails::new(StatusCode::FORBIDDEN, "not-allowed", detail));
        }
        Ok(())
    }
}

impl FromRequestParts<SharedServerState> for KeyedCaller {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        app: &SharedServerState,
    ) -> Result<KeyedCaller, Response> {
        let caller = RequestCaller::from_request_parts(parts, app).await;
        let caller = caller.map_err(ProblemDetails::into_response)?;
        let key = parts.extensions.get::<IdempotencyKey>().cloned();
        // This comes before any lookup, because the objects of the first request may be gone.
        if let Some(key) = key.clone() {
            let known = app.read(move |records| {
                let reader = records.reader()?;
                Ok(recorded_reply(&reader, &key)?)
            });
            let known = known.await.map_err(ProblemDetails::into_response)?;
            let known = known.transpose().map_err(ProblemDetails::from);
            if let Some(answer) = known.map_err(ProblemDetails::into_response)? {
                let replayed = [(REPLAYED_HEADER, HeaderValue::from_static("true"))];
                return Err((replayed, Json(DaemonReply::from(answer))).into_response());
            }
        }
        Ok(KeyedCaller { caller, key })
    }
}

/// Reads the idempotency key of a request, and computes the fingerprint that tells it from other
/// requests with the same key.
pub(crate) async fn attach_request_key(
    caller: RequestCaller,
    request: Request,
    next: Next,
) -> Result<Response, ProblemDetails> {
    let Some(name) = parse_idempotency_key(request.headers())? else {
        return Ok(next.run(request).await);
    };
    // The body is needed twice: for the fingerprint and for the handler.
    let (mut parts, body) = request.into_parts();
    let bytes = read_bytes(body, BODY_BYTES_MAX).await?;
    let mut digest = Sha256::new();
    // The lengths keep the parts apart, so that different requests have different fingerprints.
    for part in [parts.method.as_str().as_bytes(), parts.uri.to_string().as_bytes(), &bytes] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let fingerprint = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    // Each caller has keys of its own, so that nobody gets the reply to another's request.
    parts.extensions.insert(IdempotencyKey { caller: caller.name, key: name, fingerprint });
    Ok(next.run(Request::from_parts(parts, Body::from(bytes))).await)
}

fn parse_idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ProblemDetails> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
    match value.to_str() {
        Ok(name) if (1..=KEY_CHARS_MAX).contains(&name.len()) => Ok(Some(name.to_owned())),
        _ => Err(ProblemDetails::bad_request(format!(
            "the header {IDEMPOTENCY_KEY_HEADER} must have 1 to {KEY_CHARS_MAX} visible characters"
        ))),
    }
}
